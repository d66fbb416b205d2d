"""Table "CIFAR-100-LT": imbalance ratios 20, 50 and 100, labels long-tailed (A) or four of each class (B)."""

from pathlib import Path
from typing import Literal

from semigpc.recipes.paper_scale import long_tailed_cifar
from semigpc.training import Experiment

RATIOS = (20, 50, 100)


def cifar100_lt(
    *,
    root: str | Path,
    setting: Literal["A", "B"] = "A",
    imbalance_ratio: float = 100,
    labels_per_class: int = 4,
    algorithm: str = "simmatch",
    refiner: str = "gp",
    seed: int = 0,
    weights: str | Path | None = None,
) -> Experiment:
    """Setting A: 150 labels of the largest class; setting B: ``labels_per_class`` of each. U has 500 of the largest.

    ``semigpc reproduce cifar100_lt --root DIR``; SimMatch takes some 11 hours a run on one GPU at 5 TFLOP/s. Published with
    SemiGPC at a ratio of 100: 74.48 in setting A (+0.58), 73.47 in setting B (+3.28).
    """
    return long_tailed_cifar(
        100,
        root=root,
        setting=setting,
        imbalance_ratio=imbalance_ratio,
        labels_per_class=labels_per_class,
        weights=weights,
        algorithm=algorithm,
        refiner=refiner,
        seed=seed,
    )
