"""The summary of a labelled data set, made up: what ``semigpc label`` passes to its page."""

from typing import Any

import numpy as np

from semigpc.gp.certainty import reliability
from semigpc.labeling.evidence import (
    HeldOut,
    accepted,
    balanced_recall,
    confusions,
    per_class,
    thresholds,
)

METHODS = (
    ("semigpc", "SemiGPC", 0.03),
    ("knn1", "Nearest neighbour", -0.04),
    ("knn5", "5 nearest neighbours", -0.09),
    ("class_mean", "Nearest class mean", -0.03),
    ("logistic", "Logistic regression", -0.05),
    ("logistic_balanced", "Logistic regression, balanced", -0.01),
    ("label_spreading", "LabelSpreading", None),
    ("self_training", "SelfTraining (balanced logistic)", 0.01),
)


def make_facts(
    *, names: list[str] | None = None, n_classes: int = 10, unlabeled: int = 20_000, **changes: Any
) -> dict[str, Any]:
    """Facts of a long tail; ``changes`` replace keys."""
    names = [f"class {c}" for c in range(n_classes)] if names is None else names
    n = len(names)
    rng = np.random.default_rng(n)
    given = np.maximum(1, (120 * 0.03 ** (np.arange(n) / max(1, n - 1)))).astype(int)
    believed = given**0.8 * rng.uniform(0.8, 1.25, n)
    believed /= believed.sum()
    labelled_share = 0.838 if unlabeled else 1.0
    pseudo = np.floor(unlabeled * labelled_share * believed * rng.uniform(0.9, 1.0, n)).astype(int)
    outlier = int(0.012 * unlabeled)
    statuses = {"labelled": int(given.sum()), "pseudo": int(pseudo.sum()), "outlier": outlier}
    statuses["abstained"] = unlabeled - statuses["pseudo"] - outlier
    suspects = [_suspect(number, names) for number in range(9)]
    far = {"confidence": 0.31, "variance": 0.99}
    kept = range(min(100, outlier))
    lost = [{"id": f"scans/page_{i}.png", "label": names[i % n], **far} for i in kept]
    facts: dict[str, Any] = {
        "title": "Birds of the garden",
        "data": "embeddings/birds.parquet",
        "rows": int(given.sum()) + unlabeled,
        "unlabelled": unlabeled,
        "width": 384,
        "id_name": "file_name",
        "rows_noun": "rows",
        "classes": names,
        "given": given.tolist(),
        "believed": believed.tolist(),
        "pseudo": pseudo.tolist(),
        "statuses": statuses,
        "threshold": 0.62,
        "target_precision": 0.95,
        "promise": None,
        "model": {"kernel": "rbf", "length_scale": 0.71, "noise_std": 0.17, "scaling": "centered"},
        "settings": {"labels": "labels.csv", "seed": 0, "folds": 5},
        "evidence": make_evidence(names, given, rng),
        "suspects": suspects,
        "copies": [],
        "outliers": lost,
        "why_none": "Nothing was held out.",
        "notes": [],
        "seconds": 41.0,
    }
    return facts | changes


def _suspect(number: int, names: list[str]) -> dict[str, Any]:
    given, believed = (names[(number + step) % len(names)] for step in (0, 3))
    return {
        "id": f"birds/{given}/IMG_{number:04d}.jpg",
        "given": given,
        "believed": believed,
        "p_given": 0.02 + 0.02 * number,
        "p_believed": 0.97 - 0.03 * number,
        "variance": 0.2 + 0.01 * number,
    }


def make_evidence(names: list[str], given: Any, rng: np.random.Generator) -> dict[str, Any]:
    """The figures of made-up predictions for classes with so many labels (C,)."""
    codes = np.repeat(np.arange(len(names)), given)
    rows = np.flatnonzero(given[codes] > 1)
    true = codes[rows]
    n = len(rows)
    held = HeldOut(
        rows=rows,
        codes=true,
        predicted=np.where(rng.random(n) < 0.9, true, (7 * true + 1) % len(names)),
        confidence=rng.uniform(0.2, 1, n),
        open=np.zeros(n, dtype=bool),
        folds=rows % 5,
        weights=np.ones(n),
    )
    classes = np.array(names)
    levels = [np.full(len(names), level) for level in thresholds(held)]
    bins, error = reliability(held.confidence, held.right, bins=10)
    balanced = balanced_recall(held)._asdict()
    mean = balanced["value"]
    found = {"threshold": 0.62, "coverage": 0.882, "precision": 0.9234, "low": 0.8995}
    return {
        "folds": 5,
        "seed": 0,
        "labels": len(codes),
        "used": len(codes),
        "held_out": n,
        "never_held_out": [name for name, count in zip(names, given, strict=True) if count == 1],
        "hyper_parameters": "of all labels",
        "weighted": True,
        "seconds": 12.0,
        "accuracy": {"value": 0.9, "low": 0.87, "high": 0.92, "std": 0.02},
        "balanced_accuracy": balanced | {"std": 0.03},
        "per_class": list(per_class(held, codes, classes)),
        "curve": [accepted(held, level) for level in levels],
        "chosen": found | {"high": 0.9412},
        "reliability": bins,
        "ece": error,
        "confusions": confusions(held, classes),
        "suspects": [],
        "preparation": "unit",
        "peer_unlabeled": 5000,
        "peers": [_method(name, title, gain, mean) for name, title, gain in METHODS],
    }


def _method(name: str, title: str, gain: float | None, balanced: float) -> dict[str, Any]:
    value = None if gain is None else balanced + gain
    accuracy = None if value is None else min(0.99, value + 0.02)
    both = {"balanced_accuracy": value, "accuracy": accuracy}
    return {
        "name": name,
        "title": title,
        "uses_unlabeled": name in ("semigpc", "label_spreading", "self_training"),
        **both,
        **{f"{key}_std": None if value is None else 0.021 for key in both},
        "seconds": 1.4,
        "failed": "no label reaches row 17" if value is None else None,
        "remarks": [],
    }
