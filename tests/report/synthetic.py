"""Run and comparison folders as training leaves them: real figures of made-up predictions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from semigpc.training.comparison import pairs
from semigpc.training.metrics import PseudoLabelStats, class_groups, classification_metrics
from semigpc.types import PseudoLabels

LABELS = {"fixmatch": "FixMatch", "simmatch": "SimMatch"}
RANKS = {"fixmatch": 1, "simmatch": 4}
SKILLS = {"gp": 0.12, "similarity": 0.05, "simmatch": 0.04}
IMAGES = 20  # for test, of each class but the third, which has none


def long_tail(n_classes: int, head: int = 400, ratio: float = 100) -> NDArray[np.int64]:
    """Counts that fall from ``head`` to ``head / ratio``, in a shuffled order."""
    counts = head * ratio ** (-np.arange(n_classes) / max(1, n_classes - 1))
    return np.random.default_rng(7).permutation(counts.astype(int))


def predicted(
    rng: np.random.Generator, labels: NDArray[np.int64], counts: NDArray[np.int64], signal: float
) -> NDArray[np.float64]:
    """Probabilities (M, C) of a classifier that favours common classes."""
    logits = rng.normal(size=(len(labels), len(counts))) + 0.5 * np.log(counts)
    logits[np.arange(len(labels)), labels] += signal
    return np.asarray(torch.softmax(torch.from_numpy(logits), dim=1))


def evaluation(
    rng: np.random.Generator, counts: NDArray[np.int64], signal: float, **more: Any
) -> dict[str, Any]:
    labels = np.repeat([c for c in range(len(counts)) if c != 2], IMAGES)
    probs = predicted(rng, labels, counts, signal)
    figures = classification_metrics(probs, labels, class_groups(counts))
    return {"kind": "eval", **figures, **more}


def pseudo_window(
    rng: np.random.Generator, counts: NDArray[np.int64], signal: float, *, true_known: bool
) -> dict[str, Any]:
    truth = rng.choice(len(counts), 3200, p=counts / counts.sum())
    probs = torch.from_numpy(predicted(rng, truth, counts, signal))
    stats = PseudoLabelStats(len(counts), truth if true_known else np.full_like(truth, -1))
    stats.add(PseudoLabels(probs, probs.amax(dim=1) > 0.8), torch.arange(len(truth)))
    return {"kind": "pseudo", **(stats.flush() or {}), "window": 100}


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
    message = "kernel width set from the first features: 0.81"
    lines: list[dict[str, Any]] = [{"kind": "note", "step": 0, "message": message}]
    for step in range(20, steps + 1, 20):
        p = 1 - np.exp(-3 * step / steps)
        losses = {"loss_x": 2.2 * (1 - p), "loss_u": 0.6 * p * (1.3 - p) + rng.uniform(0, 0.05)}
        scales = {"logit_scale": 8 + 6 * p, "length_scale": 0.5 - 0.3 * p}
        speed = {"lr": 0.03, "steps_per_second": 11.5, "data_wait_share": 0.04}
        entry = {"kind": "train", "step": step, "loss": sum(losses.values()), **losses, **speed}
        lines.append(entry | (scales if refiner == "gp" else {}))
    for step in range(steps // 20, steps + 1, steps // 20):
        signal = 3 * (1 + 2 * skill) * (1 - float(np.exp(-3 * step / steps)))
        for part in ("test", "validation"):
            for head in ("linear", "gp"):
                where = {"step": step, "part": part, "head": head}
                lines.append(evaluation(rng, counts, signal + 0.1 * (head == "gp"), **where))
        window = pseudo_window(rng, counts, signal, true_known=true_known)
        lines.append(window | {"step": step})
    tests = [line for line in lines if line.get("part") == "test" and line["head"] == "linear"]
    best = max(tests, key=lambda line: float(line["balanced_accuracy"]))
    results = {"last": tests[-1], "best_on_validation": tests[-3], "best_on_test": best}
    gp = {"length_scale": 0.81, "noise_std": 0.1, "buffer": {"size": 512, "filled": 512}}
    ended = {"status": "finished", "step": steps, "seconds": 174.0}
    summary = {**ended, "results": results, "gp": gp, "class_groups": class_groups(counts)}
    files = {
        "summary": summary,
        "split": {
            "class_names": list(names),
            "labeled_counts": counts.tolist(),
            "unlabeled_counts": (4 * counts).tolist() if true_known else None,
            "validation_counts": [10] * len(names),
            "test_counts": [0 if c == 2 else IMAGES for c in range(len(names))],
            "sha256": "3f0c" * 16,
            "notes": ["labelled counts follow a long tail of ratio 100"],
        },
        "config": {
            "data": {"name": "digits", "imbalance_ratio": 100.0, "size": 32},
            "model": {"backbone": "small_cnn", "heads": {"projection": 64}},
            "algorithm": {"name": algorithm, "threshold": 0.95},
            "refiner": {"name": refiner, "noise_std": 0.1},
            "train": {"steps": steps, "lr": 0.03, "ema": None},
            "seed": seed,
        },
        "environment": {"python": "3.11.2", "torch": "2.6.0", "device": "cpu"},
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return summary


def write_comparison(
    folder: Path,
    *,
    methods: Sequence[tuple[str, str]],
    seeds: Sequence[int] = (0, 1, 2),
    n_classes: int = 10,
) -> dict[str, Any]:
    """Write a comparison with all its runs, and return what comparison.json holds."""
    cells: list[Any] = []
    keys = ("balanced_accuracy", "top1", "many", "medium", "few", "macro_f1", "ece")
    for algorithm, refiner in methods:
        method: Any = {"algorithm": algorithm, "refiner": refiner}
        runs: list[dict[str, Any]] = []
        for seed in seeds:
            where = f"cells/{algorithm}+{refiner}/seed{seed}"
            made = write_run(folder / where, n_classes=n_classes, steps=400, seed=seed, **method)
            result = made["results"]["last"]
            runs.append({"seed": seed, "folder": where, "result": result, "seconds": 170.0 + seed})
        results = [run["result"] | run["result"]["groups"] for run in runs]
        columns = {key: np.array([result[key] for result in results], dtype=float) for key in keys}
        suffix = {"gp": " + SemiGPC", "none": ""}.get(refiner, f" + {refiner}")
        cells.append(
            {
                "name": f"{algorithm}+{refiner}",
                **method,
                "runs": runs,
                "rank": RANKS.get(algorithm),
                "label": LABELS.get(algorithm, algorithm) + suffix,
                "mean": {key: float(values.mean()) for key, values in columns.items()},
                "std": {key: float(values.std()) for key, values in columns.items()},
            }
        )
    record = {
        "title": "Does refinement help on digits?",
        "command": "semigpc compare --data digits --seeds 3",
        "metric": "balanced_accuracy",
        "baseline": cells[0]["name"],
        "seeds": list(seeds),
        "cells": cells,
        "pairs": pairs(cells),
    }
    (folder / "comparison.json").write_text(json.dumps(record))
    return record
