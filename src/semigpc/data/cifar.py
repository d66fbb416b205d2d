"""CIFAR-10 and CIFAR-100, cut to a long tail: the official binary files, or a copy as image files, in a folder or a zip."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from semigpc.data.cifar_files import FORMS, TEST, TRAINING, find
from semigpc.data.dataset import DataError, Integers, Splits, listed
from semigpc.data.splits import SplitConfig, long_tail_split


@dataclass(frozen=True, kw_only=True)
class CifarConfig:
    """Class 0, airplane or apple, is the head. All test images are used, 10 000 in the official files.

    Args:
        root: the folder with ``cifar10/`` or ``cifar100/``, where the official archive lies or is unpacked; or a copy as
            images, a folder or a ``.zip`` with ``train/<class>/`` and ``test/<class>/``, of which none is decoded before it
            is asked for.
        n_classes: 10 or 100, which says which CIFAR it is.
        split: of the training images; the default is the paper's setting A for CIFAR-10 with a ratio of 100: 3720 labels,
            all of them among 12 406 unlabelled images. The heads for CIFAR-100 are 150 and 500.
        validation_per_class: training images of each class put aside before the split, by the run's seed, to choose by.
        download: fetch the official archive into root if nothing is there.
    """

    root: str
    n_classes: Literal[10, 100] = 10
    split: SplitConfig = field(
        default_factory=lambda: SplitConfig(labeled_head=1500, labeled_ratio=100, unlabeled_head=5000, unlabeled_ratio=100)
    )
    validation_per_class: int = 0
    download: bool = False

    def __post_init__(self) -> None:
        if self.n_classes not in FORMS:
            raise DataError(f"n_classes must be 10 or 100, the CIFARs there are; got {self.n_classes}.")
        if self.validation_per_class < 0:
            raise DataError(f"validation_per_class must be 0 or more; got {self.validation_per_class}.")
        per_class = TRAINING // self.n_classes
        if self.validation_per_class + self.split.labeled_head > per_class:
            raise DataError(
                f"A class of CIFAR-{self.n_classes} has {per_class} training images, which must do for validation and the "
                f"head of the labels; got {self.validation_per_class} and {self.split.labeled_head}. Lower one of them; the "
                f"paper's heads are {per_class * 3 // 10} labelled and {per_class} unlabelled images."
            )


def load(config: CifarConfig, seed: int) -> Splits:
    """Find the images, unpacking or fetching them if need be, and draw validation, labelled and unlabelled ones."""
    images, training, class_names = find(Path(config.root).expanduser(), config.n_classes, download=config.download)
    left, held = _put_aside(images.labels[:training], config, seed)
    split = long_tail_split(images.labels[left], config.n_classes, config.split, seed)
    unlabeled = images.subset(left[split.unlabeled])
    sizes = training, len(images) - training
    return Splits(
        labeled=images.subset(left[split.labeled]),
        unlabeled=unlabeled.without_labels(),
        unlabeled_truth=unlabeled.labels,
        validation=images.subset(held) if len(held) else None,
        test=images.subset(np.arange(training, len(images))),
        class_names=class_names,
        notes=(*_incomplete(sizes, config), *_fewer(unlabeled.labels, class_names, config)),
    )


def _put_aside(labels: Integers, config: CifarConfig, seed: int) -> tuple[Integers, Integers]:
    """Positions left for the split, ascending, and positions of the validation part."""
    generator = np.random.default_rng([seed, 1])  # not the stream that the split is drawn from
    order = [generator.permutation(np.flatnonzero(labels == c)) for c in range(config.n_classes)]
    size = config.validation_per_class
    return np.sort(np.concatenate([own[size:] for own in order])), np.concatenate([own[:size] for own in order])


def _incomplete(sizes: tuple[int, int], config: CifarConfig) -> tuple[str, ...]:
    if sizes == (TRAINING, TEST):
        return ()
    found = f"{sizes[0]} training and {sizes[1]} test images"
    return (f"The copy of CIFAR-{config.n_classes} has {found}, and not {TRAINING} and {TEST}.",)


def _fewer(truth: Integers, class_names: tuple[str, ...], config: CifarConfig) -> tuple[str, ...]:
    """Nested, U takes what there is; the ratio is then not the one asked for."""
    if config.split.overlap != "nested":
        return ()
    asked = config.split.counts(config.n_classes)[1]
    got = np.bincount(truth, minlength=config.n_classes).tolist()
    short = [f"{name} ({n} of {u})" for name, n, u in zip(class_names, got, asked, strict=True) if n < u]
    return (f"Classes with fewer unlabelled images than asked for, since no more are left: {listed(short)}.",) if short else ()
