"""Run and comparison folders as a training run would leave them, with numbers that are made up but
plausible.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LABELS = {"fixmatch": "FixMatch", "simmatch": "SimMatch"}
RANKS = {"fixmatch": 1, "simmatch": 4}
SKILLS = {"gp": 0.12, "similarity": 0.05, "simmatch": 0.04}  # more recall of rare classes


def long_tail(n_classes: int, head: int = 400, ratio: float = 100) -> list[int]:
    """Counts that fall from ``head`` to ``head / ratio``, in a shuffled order."""
    counts = [max(1, int(head * ratio ** (-c / max(1, n_classes - 1)))) for c in range(n_classes)]
    return [int(count) for count in np.random.default_rng(7).permutation(counts)]


def class_groups(counts: Sequence[int]) -> dict[str, list[int]]:
    ranks = np.argsort(-np.array(counts), kind="stable").tolist()
    third = -(-len(counts) // 3)
    return {"many": ranks[:third], "medium": ranks[third : 2 * third], "few": ranks[2 * third :]}


def evaluation(
    rng: np.random.Generator,
    counts: Sequence[int],
    *,
    step: int,
    progress: float,
    skill: float = 0.0,
    **more: Any,
) -> dict[str, Any]:
    """An eval entry of a classifier that favours common classes. The third class has no image to
    measure on.
    """
    n = len(counts)
    prior = np.array(counts) / max(counts)
    recall = np.clip(
        progress * (0.55 + skill + 0.4 * prior ** (0.5 - skill)) + rng.normal(0, 0.03, n), 0, 0.995
    )
    confusion = np.array([_spread(rng, c, recall[c], prior, 0 if c == 2 else 50) for c in range(n)])
    totals = confusion.sum(axis=1)
    hits = np.diag(confusion)
    recalls = [None if t == 0 else float(h / t) for h, t in zip(hits, totals, strict=True)]
    precisions = [
        float(h / t) if t else None for h, t in zip(hits, confusion.sum(axis=0), strict=True)
    ]
    balanced = float(np.mean([r for r in recalls if r is not None]))
    groups = {
        name: float(np.mean(found))
        if (found := [r for c in ids if (r := recalls[c]) is not None])
        else None
        for name, ids in class_groups(counts).items()
    }
    edges = np.linspace(0, 1, 11)
    shares = np.array([0, 0, 1, 3, 5, 6, 8, 12, 20, 45]) / 100
    confidence = [None if i < 2 else float(x) for i, x in enumerate(edges[:-1] + 0.05)]
    accuracy = [
        None if x is None else float(np.clip(x - 0.12 * x + rng.normal(0, 0.02), 0, 1))
        for x in confidence
    ]
    return {
        "kind": "eval",
        "step": step,
        "part": "test",
        "head": "linear",
        "n": int(totals.sum()),
        "loss": 2.3 - 1.8 * progress,
        "top1": float(hits.sum() / totals.sum()),
        "top5": min(1.0, balanced + 0.2),
        "balanced_accuracy": balanced,
        "macro_precision": balanced + 0.01,
        "macro_recall": balanced,
        "macro_f1": balanced - 0.02,
        "groups": groups,
        "per_class_recall": recalls,
        "per_class_precision": precisions,
        "ece": 0.09 - 0.03 * progress,
        "confusion": confusion.tolist(),
        "reliability": {
            "edges": edges.tolist(),
            "confidence": confidence,
            "accuracy": accuracy,
            "count": (shares * totals.sum()).astype(int).tolist(),
        },
        **more,
    }


def _spread(
    rng: np.random.Generator, c: int, recall: float, prior: Floats, images: int
) -> NDArray[np.int64]:
    """Predictions (C,) for the images of class c: wrong ones go to common classes."""
    wrong = prior + 0.02
    wrong[c] = 0
    chances = wrong / wrong.sum() * (1 - recall)
    chances[c] = recall
    return rng.multinomial(images, chances / chances.sum())


def pseudo_window(
    rng: np.random.Generator, counts: Sequence[int], *, step: int, progress: float, skill: float
) -> dict[str, Any]:
    prior = np.array(counts) / sum(counts)
    true = rng.multinomial(3200, prior)
    believed = true * np.clip(prior / prior.max(), 0.02, 1) ** (
        0.4 - skill - 0.2 * progress
    ) + rng.uniform(0, 2, len(counts))
    coverage = np.clip(
        progress * (0.6 + 0.4 * (prior / prior.max()) ** 0.3) + rng.normal(0, 0.03, len(counts)),
        0,
        1,
    )
    precision = np.clip(
        0.7 + 0.28 * progress - 0.2 * (prior < 0.03) + rng.normal(0, 0.03, len(counts)), 0, 1
    )
    accepted = np.floor(believed * coverage).astype(int)
    return {
        "kind": "pseudo",
        "step": step,
        "window": 100,
        "coverage": float((coverage * prior).sum()),
        "precision": float((precision * prior).sum()),
        "ece": 0.2 * (1 - progress),
        "believed_counts": believed.tolist(),
        "accepted_counts": accepted.tolist(),
        "true_counts": true.tolist(),
        "per_class_coverage": coverage.tolist(),
        "per_class_precision": [
            None if a < 3 else float(p) for a, p in zip(accepted, precision, strict=True)
        ],
    }


def write_run(
    folder: Path,
    *,
    names: Sequence[str] | None = None,
    n_classes: int = 10,
    steps: int = 2000,
    seed: int = 0,
    algorithm: str = "simmatch",
    refiner: str = "gp",
    true_known: bool = True,
) -> dict[str, Any]:
    """Write a finished run and return its summary; tests take away or spoil what they are about."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    names = names or [f"class {c}" for c in range(n_classes)]
    counts = long_tail(len(names))
    skill = SKILLS.get(refiner, 0.0) + SKILLS.get(algorithm, 0.0)
    lines: list[dict[str, Any]] = [
        {"kind": "note", "step": 0, "message": "kernel width set from the first features: 0.81"}
    ]
    for step in range(20, steps + 1, 20):
        p = 1 - np.exp(-3 * step / steps)
        loss_x = 2.2 * (1 - p) + rng.uniform(0, 0.1)
        loss_u = 0.6 * p * (1.3 - p) + rng.uniform(0, 0.05)
        losses = {"loss": loss_x + loss_u, "loss_x": loss_x, "loss_u": loss_u, "lr": 0.03}
        scales = {"logit_scale": 8 + 6 * p, "length_scale": 0.5 - 0.3 * p}
        scales = scales if refiner == "gp" else {}
        speed = {"steps_per_second": 11.5 + rng.normal(0, 0.3), "data_wait_share": 0.04}
        lines.append({"kind": "train", "step": step, **losses, **scales, **speed})
    for step in range(steps // 20, steps + 1, steps // 20):
        p = 1 - float(np.exp(-3 * step / steps))
        for part in ("test", "validation"):
            for head in ("linear", "gp"):
                lift = 0.02 * (head == "gp") - 0.01 * (part == "validation")
                lines.append(
                    evaluation(
                        rng, counts, step=step, progress=p, skill=skill + lift, part=part, head=head
                    )
                )
        window = pseudo_window(rng, counts, step=step, progress=p, skill=skill)
        unknown = ("true_counts", "per_class_coverage", "per_class_precision", "precision", "ece")
        lines.append(window if true_known else {**window, **dict.fromkeys(unknown)})
    last = [
        line
        for line in lines
        if line["kind"] == "eval" and (line["part"], line["head"]) == ("test", "linear")
    ]
    best = max(last, key=lambda line: float(line["balanced_accuracy"]))
    summary = {
        "status": "finished",
        "step": steps,
        "seconds": 174.0,
        "results": {"last": last[-1], "best_on_validation": last[-3], "best_on_test": best},
        "gp": {"length_scale": 0.81, "noise_std": 0.1, "buffer": {"size": 512, "filled": 512}},
        "class_groups": class_groups(counts),
    }
    split = {
        "class_names": list(names),
        "labeled_counts": counts,
        "unlabeled_counts": [4 * count for count in counts] if true_known else None,
        "validation_counts": [10] * len(names),
        "test_counts": [0 if c == 2 else 50 for c in range(len(names))],
        "sha256": "3f0c" * 16,
        "notes": ["labelled counts follow a long tail of ratio 100"],
    }
    config = {
        "data": {"name": "digits", "imbalance_ratio": 100.0, "size": 32},
        "model": {"backbone": "small_cnn", "heads": {"projection": 64}},
        "algorithm": {"name": algorithm, "threshold": 0.95},
        "refiner": {"name": refiner, "noise_std": 0.1},
        "train": {"steps": steps, "lr": 0.03, "ema": None},
        "seed": seed,
    }
    environment = {"python": "3.11.2", "torch": "2.6.0", "device": "cpu"}
    for name, content in (
        ("summary", summary),
        ("split", split),
        ("config", config),
        ("environment", environment),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return summary


def write_comparison(
    folder: Path,
    *,
    methods: Sequence[tuple[str, str]],
    seeds: Sequence[int] = (0, 1, 2),
    n_classes: int = 10,
    steps: int = 400,
) -> dict[str, Any]:
    """Write a comparison with all its runs, and return what comparison.json holds."""
    cells: list[dict[str, Any]] = []
    for algorithm, refiner in methods:
        runs = []
        for seed in seeds:
            where = f"cells/{algorithm}+{refiner}/seed{seed}"
            made = write_run(
                folder / where,
                n_classes=n_classes,
                steps=steps,
                seed=seed,
                algorithm=algorithm,
                refiner=refiner,
            )
            result = made["results"]["last"]
            seconds = 170.0 + seed
            runs.append({"seed": seed, "folder": where, "result": result, "seconds": seconds})
        results = [{**run["result"], **run["result"]["groups"]} for run in runs]
        keys = ("balanced_accuracy", "top1", "many", "medium", "few", "macro_f1", "ece")
        columns = {key: np.array([result[key] for result in results], dtype=float) for key in keys}
        suffix = {"gp": " + SemiGPC", "none": ""}.get(refiner, f" + {refiner}")
        cells.append(
            {
                "name": f"{algorithm}+{refiner}",
                "algorithm": algorithm,
                "refiner": refiner,
                "runs": runs,
                "rank": RANKS.get(algorithm),
                "label": LABELS.get(algorithm, algorithm) + suffix,
                "mean": {key: float(values.mean()) for key, values in columns.items()},
                "std": {key: float(values.std()) for key, values in columns.items()},
            }
        )
    pairs = []
    scores = {
        cell["name"]: [run["result"]["balanced_accuracy"] for run in cell["runs"]] for cell in cells
    }
    for algorithm in dict.fromkeys(algorithm for algorithm, _ in methods):
        if {f"{algorithm}+gp", f"{algorithm}+none"} <= scores.keys():
            gaps = np.subtract(scores[f"{algorithm}+gp"], scores[f"{algorithm}+none"])
            pairs.append(
                {
                    "name": f"{algorithm}: gp - none",
                    "with": f"{algorithm}+gp",
                    "without": f"{algorithm}+none",
                    "mean_difference": float(gaps.mean()),
                    "std": float(gaps.std()),
                    "differences": gaps.tolist(),
                    "wins": int((gaps > 0).sum()),
                    "losses": int((gaps < 0).sum()),
                }
            )
    record = {
        "title": "Does refinement help on digits?",
        "command": "semigpc compare --data digits --seeds 3",
        "metric": "balanced_accuracy",
        "baseline": cells[0]["name"],
        "seeds": list(seeds),
        "cells": cells,
        "pairs": pairs,
    }
    (folder / "comparison.json").write_text(json.dumps(record))
    return record
