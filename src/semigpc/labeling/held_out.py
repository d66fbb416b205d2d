"""Held-out labels and the answers to them, summed up: what a page says of precision, reliability and confusion.

Held-out labels stand for the unlabelled rows, among which classes may have other shares than among the labels. So where
precision, coverage and reliability are measured, a label of class c counts as

    w_c = (believed share of c among the unlabelled rows) / (share of c among the held-out labels)

and intervals are those of (sum w)^2 / sum w^2 labels. Accuracy, recall and what is confused are plain counts.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semigpc.labeling.folds import Codes, Floats, Share, weighted_share, wilson

POINTS, BINS = 50, 10  # of the curve of coverage against precision, of reliability


class HeldOut(NamedTuple):
    """Answers (m,) for m labels by models that did not see them.

    Attributes:
        codes: given. predicted: believed. confidence: of that. outlier: whether the row would have been called one.
        folds: in which each was held out. weights: w_c of its class, with mean 1.
    """

    codes: Codes
    predicted: Codes
    confidence: Floats
    outlier: NDArray[np.bool_]
    folds: Codes
    weights: Floats

    @property
    def right(self) -> NDArray[np.bool_]:
        """Where the given label was found."""
        return np.equal(self.codes, self.predicted)


def balanced_recall(held: HeldOut) -> Share:
    """Mean recall; the half-widths of the classes' intervals, which are independent, add in squares."""
    shares = [wilson(float(held.right[of].sum()), float(of.sum())) for of in (held.codes == c for c in np.unique(held.codes))]
    value, low, high = (np.array(ends, dtype=np.float64) for ends in zip(*shares, strict=True))
    down, up = (float(np.sqrt(np.square(half).sum())) / len(value) for half in (value - low, high - value))
    mean = float(value.mean())
    return Share(mean, max(0.0, mean - down), min(1.0, mean + up))


def per_class(held: HeldOut, codes: Codes, names: NDArray[np.str_]) -> Iterator[dict[str, Any]]:
    """Recall and precision of each class with their intervals, None for a class that was never held out."""
    for c, name in enumerate(names.tolist()):
        own, believed = held.codes == c, held.predicted == c
        recall = wilson(float(held.right[own].sum()), float(own.sum()))
        precision = weighted_share(held.right[believed], held.weights[believed]) if own.any() else Share(None, None, None)
        yield {
            "class": name,
            "given": int((codes == c).sum()),
            "held_out": int(own.sum()),
            "believed": int(believed.sum()),
            "recall": recall.value,
            "recall_low": recall.low,
            "recall_high": recall.high,
            "precision": precision.value,
            "precision_low": precision.low,
            "precision_high": precision.high,
        }


def thresholds(held: HeldOut) -> Floats:
    """Confidences that accept about POINTS evenly spaced shares of what is not an outlier, lowest first."""
    usable = held.confidence[~held.outlier]
    return np.unique(np.quantile(usable, np.linspace(0, 0.98, POINTS), method="lower")) if len(usable) else np.zeros(1)


def accepted(held: HeldOut, threshold: float) -> dict[str, float | int | None]:
    """Coverage and precision of labels with at least this confidence."""
    taken = (held.confidence >= threshold) & ~held.outlier
    precision = weighted_share(held.right[taken], held.weights[taken])
    return {
        "threshold": threshold,
        "accepted": int(taken.sum()),
        "coverage": float(held.weights[taken].sum() / held.weights.sum()),
        "precision": precision.value,
        "low": precision.low,
        "high": precision.high,
    }


def reliability(held: HeldOut) -> dict[str, Any]:
    """Accuracy and mean confidence in bins of confidence, and the expected calibration error."""
    edges = np.linspace(0, 1, BINS + 1)
    place = np.clip(np.digitize(held.confidence, edges[1:-1], right=True), 0, BINS - 1)
    count = np.bincount(place, minlength=BINS)
    weight = np.bincount(place, weights=held.weights, minlength=BINS)
    sums = [np.bincount(place, weights=held.weights * values, minlength=BINS) for values in (held.right, held.confidence)]
    accuracy, confidence = (np.divide(total, weight, out=np.full(BINS, np.nan), where=weight > 0) for total in sums)
    gap = np.nan_to_num(np.abs(accuracy - confidence))

    def plain(values: Floats) -> list[float | None]:
        return [None if np.isnan(value) else float(value) for value in values]

    bins = {"edges": edges.tolist(), "accuracy": plain(accuracy), "confidence": plain(confidence), "count": count.tolist()}
    return {"reliability": bins, "ece": float((weight / weight.sum()) @ gap)}


def confusions(held: HeldOut, names: NDArray[np.str_]) -> list[dict[str, Any]]:
    """Pairs (given, believed) that differ, with their number and share of the given class, commonest first."""
    wrong = ~held.right
    pairs, counts = np.unique(np.stack([held.codes[wrong], held.predicted[wrong]], axis=1), axis=0, return_counts=True)
    of_class = np.bincount(held.codes, minlength=len(names))
    found = [
        {"true": str(names[a]), "believed": str(names[b]), "count": int(n), "share": float(n / of_class[a])}
        for (a, b), n in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]
    return sorted(found, key=lambda pair: (-pair["count"], -pair["share"]))
