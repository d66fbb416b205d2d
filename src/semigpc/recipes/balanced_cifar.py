"""Table "balanced CIFAR": 40 and 250 labels of CIFAR-10, 200 and 400 of CIFAR-100."""

from pathlib import Path
from typing import Literal

from semigpc.data import SplitConfig
from semigpc.data.cifar import CifarConfig
from semigpc.recipes.paper_scale import absolute, paper_experiment
from semigpc.training import Experiment, SettingError

LABELS: dict[Literal[10, 100], tuple[int, int]] = {10: (40, 250), 100: (200, 400)}


def balanced_cifar(
    *,
    root: str | Path,
    n_classes: Literal[10, 100] = 10,
    labels: int = 40,
    algorithm: str = "simmatch",
    refiner: str = "gp",
    seed: int = 0,
    weights: str | Path | None = None,
) -> Experiment:
    """Equally many ``labels`` of each class; all 50 000 training images are unlabelled ones, those with labels too.

    ``semigpc reproduce balanced_cifar --root DIR``; SimMatch takes some 3 hours a run (CIFAR-10) or 11 (CIFAR-100) on one
    GPU at 5 TFLOP/s. Published with SemiGPC: 97.14 (40 labels, -0.18), 97.39 (250), 80.01 (200, +0.83), 83.87 (400, +0.62).
    """
    if labels < n_classes or labels % n_classes:
        raise SettingError(
            f"labels must be equally many of each of the {n_classes} classes, such as {4 * n_classes}; got {labels}."
        )
    split = SplitConfig(labeled_head=labels // n_classes, unlabeled_head=50_000 // n_classes, overlap="nested")
    return paper_experiment(
        f"cifar{n_classes}",
        CifarConfig(root=absolute(root), n_classes=n_classes, split=split),
        root=root,
        weights=weights,
        algorithm=algorithm,
        refiner=refiner,
        seed=seed,
    )
