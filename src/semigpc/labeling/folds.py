"""Holding labels out: which in which fold, and what to make of the answers."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]

STAYS = -1  # the fold of a label that is never held out
Z95 = 1.959964  # of a 95% interval


def assign_folds(codes: Codes, folds: int, seed: int) -> Codes:
    """The fold (n,) in which each label is held out, :data:`STAYS` for the only label of its class.

    Every class is spread over the folds as evenly as can be, one class going on where the last left off, so that folds are
    equally large and a class with two labels or more always keeps one to learn from. A class with a single label stays in
    training: held out, nothing would know the class.

    Args:
        codes: (n,) classes. folds: how many. seed: decides which label goes where.
    """
    rng = np.random.default_rng(seed)
    fold_of = np.full(len(codes), STAYS, dtype=np.int64)
    next_fold = 0
    for c in np.unique(codes):
        members = rng.permutation(np.flatnonzero(codes == c))
        if len(members) > 1:
            fold_of[members] = (next_fold + np.arange(len(members))) % folds
            next_fold = (next_fold + len(members)) % folds
    return fold_of


class Share(NamedTuple):
    """A share with its 95% interval; all None where nothing was counted."""

    value: float | None
    low: float | None
    high: float | None


def wilson(successes: float, trials: float) -> Share:
    """Share of successes with Wilson's 95% interval, which stays sensible for few trials and for shares near 0 and 1.

        (p + z^2/2n  -+  z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n)        p = successes / n, n = trials

    Neither need be whole: weighted counts come with an effective number of trials.
    """
    if trials <= 0:
        return Share(None, None, None)
    p = min(1.0, successes / trials)
    middle, spread = p + Z95**2 / (2 * trials), Z95 * math.sqrt(p * (1 - p) / trials + (Z95 / (2 * trials)) ** 2)
    scale = 1 + Z95**2 / trials
    return Share(p, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def weighted_share(right: NDArray[np.bool_], weights: Floats) -> Share:
    """Share of the weight (n,) that lies on ``right`` (n,), with the interval of (sum w)^2 / sum w^2 trials (Kish)."""
    total = float(weights.sum())
    if total <= 0:
        return Share(None, None, None)
    trials = total**2 / float(np.square(weights).sum())
    return wilson(float(weights[right].sum()) / total * trials, trials)


class Scores(NamedTuple):
    """Accuracy and balanced accuracy over all held-out labels, and the deviation of each over the folds."""

    accuracy: float
    accuracy_std: float
    balanced_accuracy: float
    balanced_accuracy_std: float


def score(codes: Codes, predicted: Codes, fold_of: Codes) -> Scores:
    """Judge predictions (n,) of held-out labels (n,), each class that was held out counting the same if balanced."""
    right = codes == predicted
    by_fold = [fold_of == fold for fold in np.unique(fold_of)]
    plain = [float(right[held].mean()) for held in by_fold]
    even = [balanced(codes[held], right[held]) for held in by_fold]
    return Scores(float(right.mean()), float(np.std(plain)), balanced(codes, right), float(np.std(even)))


def balanced(codes: Codes, right: NDArray[np.bool_]) -> float:
    """Mean over classes of the share that is right."""
    counts, hits = np.bincount(codes), np.bincount(codes, weights=right)
    there = counts > 0
    return float((hits[there] / counts[there]).mean())
