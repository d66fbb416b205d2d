"""Long-tailed splits: how many images of each class are used, and which of them are labelled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from semigpc.data.dataset import ImageSet, Integers, Splits
from semigpc.io.errors import DataError, SettingsError

Overlap = Literal["nested", "usb", "disjoint"]
Shuffler = Literal["pcg64", "usb"]


def long_tail_counts(head_count: int, imbalance_ratio: float, n_classes: int) -> list[int]:
    """Return the number of images of each class in a long tail.

        N_c = floor(N_1 gamma^(-c / (C - 1))),  c = 0 .. C - 1

    Floored, not rounded, since only then do the totals agree with those of the paper (4196, 3720
    and 3496 for CIFAR-10).

    Args:
        head_count: N_1, images of the largest class.
        imbalance_ratio: gamma, head over tail, 1 or more; its negative puts the head at the last
            class instead of the first.
        n_classes: C, at least 2.
    """
    gamma = abs(imbalance_ratio)
    if not (gamma >= 1 and math.isfinite(gamma)):
        raise SettingsError(
            "imbalance_ratio is head over tail: 1 or more, or -1 or less for a reversed tail; got "
            f"{imbalance_ratio}."
        )
    if n_classes < 2 or head_count < 0:
        raise SettingsError(
            f"A long tail needs two classes and a head_count of 0 or more; got {n_classes} and "
            f"{head_count}."
        )
    # The small term corrects powers that are 99.99999999 in float64 instead of 100.
    counts = [
        math.floor(head_count * gamma ** (-c / (n_classes - 1)) + 1e-9) for c in range(n_classes)
    ]
    return counts if imbalance_ratio > 0 else counts[::-1]


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """How a fully labelled pool becomes labelled set L and unlabelled set U, class by class.

    With l_c and u_c the long-tailed counts of class c, and its images in random order:

    * ``nested``: U takes u_c of them (all, if there are fewer), L is the first l_c of U. Exactly
      the ratio requested.
    * ``usb``: L takes l_c; U takes L and the next u_c, or as many as are left. The ratio of U is
      then not the one requested.
    * ``disjoint``: L takes l_c, U the next u_c and none of L.

    Args:
        labeled_head: labels of the largest class.
        labeled_ratio: their imbalance ratio; negative for a reversed tail.
        unlabeled_head: unlabelled images of the largest class.
        unlabeled_ratio: their imbalance ratio.
        overlap: one of the three above.
        rng: "pcg64", or "usb" for the legacy NumPy generator, whose shuffles replay the splits of
            that code base.
        minimum: no class gets fewer labels, or fewer unlabelled images, than this: a head of 36
            over a ratio of 100 would leave the last class with none. The vectors of the paper are
            all above it.
        foreign: so many of the last classes of the pool are none of the run: U takes
            ``unlabeled_head`` images of each, and the tails are those of the other classes.
    """

    labeled_head: int
    labeled_ratio: float = 1.0
    unlabeled_head: int
    unlabeled_ratio: float = 1.0
    overlap: Overlap = "nested"
    rng: Shuffler = "pcg64"
    minimum: int = 1
    foreign: int = 0

    def __post_init__(self) -> None:
        for name, known in (("overlap", get_args(Overlap)), ("rng", get_args(Shuffler))):
            if getattr(self, name) not in known:
                raise SettingsError(
                    f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}."
                )
        if self.minimum < 1:
            raise SettingsError(
                "minimum must be at least 1, since a class without labels cannot be learnt; got "
                f"{self.minimum}."
            )
        if self.labeled_head < 1 or self.unlabeled_head < 0:
            raise SettingsError(
                "labeled_head must be at least 1 and unlabeled_head at least 0; "
                f"got {self.labeled_head} and {self.unlabeled_head}."
            )
        if self.foreign < 0:
            raise SettingsError(f"foreign must be at least 0; got {self.foreign}.")
        for ratio in (self.labeled_ratio, self.unlabeled_ratio):
            long_tail_counts(1, ratio, 2)

    def counts(self, n_classes: int) -> tuple[list[int], list[int]]:
        """Return for each class the number of labels, and of unlabelled images drawn for U."""
        labeled = long_tail_counts(self.labeled_head, self.labeled_ratio, n_classes)
        unlabeled = long_tail_counts(self.unlabeled_head, self.unlabeled_ratio, n_classes)
        least = self.minimum if self.unlabeled_head else 0  # a head of 0: no image of any class
        return (
            [max(self.minimum, count) for count in labeled],
            [max(least, count) for count in unlabeled],
        )


@dataclass(frozen=True, eq=False)
class Split:
    """Positions in the pool, in the order drawn: ``labeled`` (n,) and ``unlabeled`` (u,)."""

    labeled: Integers
    unlabeled: Integers


def long_tail_split(labels: NDArray[Any], n_classes: int, config: SplitConfig, seed: int) -> Split:
    """Draw L and U from a labelled pool; one generator shuffles class 0, then class 1, and so on.

    Args:
        labels: (P,) classes in [0, C).
        n_classes: C.
        config: counts and overlap.
        seed: of the generator, which is used for nothing else.
    """
    labeled_counts, unlabeled_counts = config.counts(n_classes)
    generator = np.random.RandomState(seed) if config.rng == "usb" else np.random.default_rng(seed)
    labeled: list[Integers] = []
    unlabeled: list[Integers] = []
    for c in range(n_classes):
        shuffled = np.flatnonzero(labels == c).astype(np.int64)
        generator.shuffle(shuffled)
        n = labeled_counts[c]
        u = unlabeled_counts[c]
        _check_class(c, len(shuffled), n, u, config.overlap)
        labeled.append(shuffled[:n])
        unlabeled.append(shuffled[:u] if config.overlap == "nested" else shuffled[n : n + u])
    if config.overlap == "usb":
        unlabeled = labeled + unlabeled
    return Split(np.concatenate(labeled), np.concatenate(unlabeled))


def long_tailed_splits(
    pool: ImageSet,
    class_names: tuple[str, ...],
    config: SplitConfig,
    seed: int,
    *,
    validation: ImageSet,
    test: ImageSet,
) -> Splits:
    """Return L and U drawn from a labelled pool, and the images put aside for validation and test.

    Of the latter two, one without images is left out; both lose their images of foreign classes.
    """
    n_classes = len(class_names) - config.foreign
    if n_classes < 2:
        raise SettingsError(
            f"foreign must leave two classes of {len(class_names)}; got {config.foreign}."
        )
    split = long_tail_split(pool.labels, n_classes, config, seed)
    outside = _foreign(pool.labels, n_classes, config, seed)
    unlabeled = pool.subset(np.concatenate([split.unlabeled, outside]))
    is_outside = unlabeled.labels >= n_classes
    parts = (part.subset(np.flatnonzero(part.labels < n_classes)) for part in (validation, test))
    own_validation, own_test = parts
    return Splits(
        labeled=pool.subset(split.labeled),
        unlabeled=unlabeled.without_labels(),
        unlabeled_truth=np.where(is_outside, -1, unlabeled.labels),
        validation=own_validation if len(own_validation) else None,
        test=own_test if len(own_test) else None,
        class_names=class_names[:n_classes],
        unlabeled_out=is_outside if config.foreign else None,
    )


def _foreign(labels: NDArray[Any], n_classes: int, config: SplitConfig, seed: int) -> Integers:
    """Return positions in the pool of unlabelled images of its classes from ``n_classes`` on."""
    generator = np.random.default_rng([seed, 2])  # not the stream of the split itself
    drawn = [np.empty(0, np.int64)]
    for c in range(n_classes, n_classes + config.foreign):
        drawn.append(generator.permutation(np.flatnonzero(labels == c))[: config.unlabeled_head])
    return np.concatenate(drawn)


def _check_class(c: int, available: int, n: int, u: int, overlap: Overlap) -> None:
    """Raise an error if a class has too few images, labelled ones at least."""
    needed = n + u if overlap == "disjoint" else n
    if needed > available:
        nest = ", or nest L in U" if overlap == "disjoint" else ""
        raise DataError(
            f"Class {c} has {available} images, and an overlap of {overlap!r} needs {needed} of it "
            f"({n} labelled, {u} unlabelled). Lower labeled_head or unlabeled_head{nest}."
        )
    if overlap == "nested" and n > u:
        raise DataError(
            f"With overlap 'nested' L is part of U, but class {c} would have {n} labelled and {u} "
            "unlabelled images. Raise unlabeled_head or lower labeled_head; if the tails run in "
            "opposite directions, choose overlap 'usb' or 'disjoint'."
        )


def carve_validation(labels: NDArray[Any], fraction: float, seed: int) -> tuple[Integers, Integers]:
    """Hold out floor(fraction n_c) labels of each class, but never the last one of a class.

    Args:
        labels: (n,) classes.
        fraction: in [0, 1).
        seed: decides which.

    Returns:
        Positions kept and positions held out, each in ascending order.
    """
    if not 0 <= fraction < 1:
        raise DataError(f"The fraction held out for validation must lie in [0, 1); got {fraction}.")
    generator = np.random.default_rng([seed, 1])  # not the stream of the split itself
    held_out = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        own = np.flatnonzero(labels == c)
        size = min(math.floor(fraction * len(own) + 1e-9), len(own) - 1)
        held_out[generator.permutation(own)[:size]] = True
    return np.flatnonzero(~held_out).astype(np.int64), np.flatnonzero(held_out).astype(np.int64)


def no_validation(fraction: float) -> str:
    """Return the note on a fraction that is too small for :func:`carve_validation`."""
    size = f"A fraction of {fraction} is less than one label of any class"
    return f"{size}: there is no validation part."


def with_validation(splits: Splits, fraction: float, seed: int) -> Splits:
    """Return the same splits with a fraction of the labels held out for validation."""
    kept, carved = carve_validation(splits.labeled.labels, fraction, seed)
    return replace(
        splits, labeled=splits.labeled.subset(kept), validation=splits.labeled.subset(carved)
    )


def put_aside(labels: NDArray[Any], sizes: Sequence[int], seed: int) -> list[Integers]:
    """Draw parts with equally many images of each class, such as a test part, before a split.

    Args:
        labels: (P,) classes 0 .. C - 1.
        sizes: images of each class in each part.
        seed: decides which.

    Returns:
        Positions of each part, class by class; last the remaining positions, in ascending order.
    """
    generator = np.random.default_rng([seed, 1])  # not the stream of the split itself
    classes = range(int(labels.max()) + 1)
    order = [generator.permutation(np.flatnonzero(labels == c)) for c in classes]
    ends = [0, *np.cumsum(sizes).tolist()]
    parts = [np.concatenate([own[first:last] for own in order]) for first, last in pairwise(ends)]
    return [*parts, np.sort(np.concatenate([own[ends[-1] :] for own in order]))]
