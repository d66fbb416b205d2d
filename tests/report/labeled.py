"""The summary of a labelled data set, made up: what ``semigpc label`` passes to its page."""

from typing import Any

import numpy as np

from semigpc.report.style import Floats

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
    suspects = [_suspect(number, names) for number in range(9)]
    far = {"confidence": 0.31, "variance": 0.99}
    lost = [
        {"id": f"scans/page_{i}.png", "label": names[i % n], **far}
        for i in range(min(100, outlier))
    ]
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
        "statuses": {
            "labelled": int(given.sum()),
            "pseudo": int(pseudo.sum()),
            "abstained": unlabeled - int(pseudo.sum()) - outlier,
            "outlier": outlier,
        },
        "threshold": 0.62,
        "target_precision": 0.95,
        "promise": None,
        "model": {
            "kernel": "rbf",
            "length_scale": 0.71,
            "noise_std": 0.17,
            "logit_scale": 9.4,
            "scaling": "centered",
        },
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


def _accepted(threshold: float, coverage: float, *interval: float) -> dict[str, float]:
    keys = ("threshold", "coverage", "precision", "low", "high")
    return dict(zip(keys, map(float, (threshold, coverage, *interval)), strict=True))


def make_evidence(names: list[str], given: Any, rng: np.random.Generator) -> dict[str, Any]:
    """What cross-validation might have found for classes with so many labels (C,)."""
    recall = np.clip(rng.normal(0.9, 0.07, len(names)) - 0.25 * (given < 8), 0.1, 1)
    precision = np.clip(recall + rng.normal(0, 0.05, len(names)), 0.1, 1)
    measured = given > 1
    rows = [
        {"class": name, "given": int(n), "held_out": int(n) if n > 1 else 0, "believed": int(n)}
        | _shares("recall", r if n > 1 else None, n)
        | _shares("precision", p if n > 1 else None, n)
        for name, n, r, p in zip(names, given, recall, precision, strict=True)
    ]
    at = np.linspace(0.2, 0.98, 50)
    coverage = 1 - 0.8 * at**4
    right = 0.86 + 0.13 * at**1.5
    half = 0.012 / np.sqrt(coverage)
    curve = [
        _accepted(t, c, p, p - 2 * h, min(1, p + h))
        for t, c, p, h in zip(at, coverage, right, half, strict=True)
    ]
    edges = np.linspace(0, 1, 11)
    middles = (edges[1:] + edges[:-1]) / 2
    balanced = float(np.mean(recall[measured])) if measured.any() else 0.5
    near = {"low": balanced - 0.03, "high": balanced + 0.02}
    confusions = [
        {
            "true": names[c],
            "believed": names[(c * 7 + 1) % len(names)],
            "count": 12 // (c + 1) + 1,
            "share": 0.3 / (c + 1),
        }
        for c in range(min(22, len(names)))
        if (c * 7 + 1) % len(names) != c
    ]
    return {
        "folds": 5,
        "seed": 0,
        "labels": int(given.sum()),
        "used": int(given.sum()),
        "held_out": int(given[measured].sum()),
        "never_held_out": [name for name, n in zip(names, given, strict=True) if n == 1],
        "hyper_parameters": "of all labels",
        "weighted": True,
        "seconds": 12.0,
        "accuracy": {"value": 0.9, "low": 0.87, "high": 0.92, "std": 0.02},
        "balanced_accuracy": near | {"value": balanced, "std": 0.03},
        "per_class": rows,
        "curve": curve,
        "chosen": _accepted(0.62, 0.882, 0.9234, 0.8995, 0.9412),
        "reliability": {
            "edges": edges.tolist(),
            "accuracy": np.clip(middles + rng.normal(0, 0.04, 10), 0, 1).tolist(),
            "confidence": middles.tolist(),
            "count": np.geomspace(2, 200, 10).astype(int).tolist(),
        },
        "ece": 0.031,
        "confusions": confusions,
        "suspects": [],
        "preparation": "unit",
        "peer_unlabeled": 5000,
        "peers": [
            _method(name, title, None if gain is None else balanced + gain)
            for name, title, gain in METHODS
        ],
    }


def _shares(key: str, value: float | None, n: int) -> dict[str, float | None]:
    if value is None:
        return {key: None, f"{key}_low": None, f"{key}_high": None}
    half = 0.9 / np.sqrt(n + 3)
    return {
        key: float(value),
        f"{key}_low": float(max(0, value - half)),
        f"{key}_high": float(min(1, value + half / 2)),
    }


def _method(name: str, title: str, value: float | None) -> dict[str, Any]:
    both: dict[str, Floats | float | None] = {
        "balanced_accuracy": value,
        "accuracy": None if value is None else min(0.99, value + 0.02),
    }
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
