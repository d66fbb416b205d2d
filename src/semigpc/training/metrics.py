"""Metrics of predictions, in total and class by class, and of pseudo-labels."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semigpc.io.text import CLASS_GROUPS
from semigpc.types import PseudoLabels

Array = npt.NDArray[Any]
METRIC = "balanced_accuracy"  # by which evaluations are compared
FIGURES = (METRIC, "top1", "macro_f1", "ece")  # that tables and comparisons show
BINS = 15  # of the reliability diagram, as in USB


def class_groups(
    labeled_counts: Array, unlabeled_counts: Array | None = None
) -> dict[str, list[int]]:
    """Return thirds of the classes by frequency: many, medium, few. They are empty where all
    classes are equally frequent.

    Classes are ordered by labelled images; ties by unlabelled ones, where those are known, and then
    by their number.

    Args:
        labeled_counts: (C,). unlabeled_counts: (C,).
    """
    ties = np.zeros_like(labeled_counts) if unlabeled_counts is None else unlabeled_counts
    if np.ptp(labeled_counts) == np.ptp(ties) == 0:
        return {name: [] for name in CLASS_GROUPS}
    order = np.lexsort((np.arange(len(labeled_counts)), -ties, -labeled_counts))
    return {
        name: sorted(map(int, part))
        for name, part in zip(CLASS_GROUPS, np.array_split(order, 3), strict=True)
    }


def classification_metrics(
    probs: Array, labels: Array, groups: dict[str, list[int]]
) -> dict[str, Any]:
    """Return everything reported about predictions on labelled images, as plain numbers; None where
    a class has no image.

    Balanced accuracy is the mean recall of the classes that occur, a group's accuracy the same over
    its classes, and the calibration error sums |accuracy - confidence| over 15 bins of confidence,
    weighted by their images.

    Args:
        probs: (M, C). labels: (M,) all known. groups: class ids by name.
    """
    n_classes = probs.shape[1]
    predicted = probs.argmax(axis=1)
    confusion = np.bincount(labels * n_classes + predicted, minlength=n_classes**2).reshape(
        n_classes, n_classes
    )
    true, guessed, right = confusion.sum(axis=1), confusion.sum(axis=0), np.diag(confusion)
    occurring = true > 0
    recall = right / np.maximum(true, 1)
    precision = right / np.maximum(guessed, 1)
    f1 = 2 * right / np.maximum(true + guessed, 1)
    top5 = (probs >= np.sort(probs, axis=1)[:, -min(5, n_classes)][:, None])[
        np.arange(len(labels)), labels
    ]
    reliability, error = calibration(probs.max(axis=1), predicted == labels)
    return {
        "n": len(labels),
        "loss": float(-np.log(np.maximum(probs[np.arange(len(labels)), labels], 1e-12)).mean()),
        "top1": float((predicted == labels).mean()),
        "top5": float(top5.mean()),
        "balanced_accuracy": float(recall[occurring].mean()),
        "macro_precision": float(precision[occurring].mean()),
        "macro_recall": float(recall[occurring].mean()),
        "macro_f1": float(f1[occurring].mean()),
        "groups": {
            name: _mean(recall[[c for c in classes if occurring[c]]])
            for name, classes in groups.items()
        },
        "per_class_recall": [
            float(value) if here else None for value, here in zip(recall, occurring, strict=True)
        ],
        "per_class_precision": [
            float(value) if n else None for value, n in zip(precision, guessed, strict=True)
        ],
        "ece": error,
        "confusion": confusion.tolist(),
        "reliability": reliability,
    }


def calibration(confidence: Array, right: Array) -> tuple[dict[str, list[Any]], float]:
    """Return the reliability diagram over 15 equal bins of confidence, and its calibration error."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    sure = np.bincount(bins, weights=confidence, minlength=BINS) / np.maximum(count, 1)
    hit = np.bincount(bins, weights=right.astype(float), minlength=BINS) / np.maximum(count, 1)
    error = float((count * np.abs(sure - hit)).sum() / max(len(confidence), 1))
    diagram = {
        "edges": np.linspace(0, 1, BINS + 1).tolist(),
        "confidence": [float(value) if n else None for value, n in zip(sure, count, strict=True)],
        "accuracy": [float(value) if n else None for value, n in zip(hit, count, strict=True)],
        "count": count.tolist(),
    }
    return diagram, error


def _mean(values: Array) -> float | None:
    return float(values.mean()) if len(values) else None


class PseudoLabelStats:
    """Counts pseudo-labels over a window of steps, and compares them with the truth where it is
    known.

    The confidence of a pseudo-label is its largest probability, whatever the mask was decided by.

    Args:
        n_classes: C.
        truth: (n_unlabeled,) true classes, -1 where unknown.
    """

    def __init__(self, n_classes: int, truth: npt.NDArray[np.int64]) -> None:
        self.n_classes = n_classes
        self.truth = torch.as_tensor(truth)
        self._clear()

    def _clear(self) -> None:
        self.steps = 0
        self._window: Tensor | None = None  # on the device of the pseudo-labels

    def add(self, pseudo: PseudoLabels, view_index: Tensor) -> None:
        """Add the pseudo-labels of one step, of the unlabelled images at these positions (U,). The
        host does not wait.
        """
        n_classes, labels, confidence = (
            self.n_classes,
            pseudo.probs.argmax(dim=1),
            pseudo.probs.amax(dim=1).double(),
        )
        cells = (n_classes + 1) * n_classes
        if self._window is None:
            # One row of all and one of the accepted: counts of true class, the unknown ones last, x
            # pseudo-label; then for each bin of confidence the sum of confidence - right.
            self._window = confidence.new_zeros(2, cells + BINS)
            self.truth = self.truth.to(labels.device)
        truth = self.truth[view_index.to(labels.device)]
        bins = (confidence * BINS).long().clamp(0, BINS - 1)
        counted = torch.stack([torch.ones_like(confidence), pseudo.mask.bool().to(confidence)])
        excess = torch.where(truth < 0, 0, confidence - (truth == labels).to(confidence))
        self._window.index_add_(
            1, torch.where(truth < 0, n_classes, truth) * n_classes + labels, counted
        )
        self._window.index_add_(1, cells + bins, excess * counted)
        self.steps += 1

    def flush(self) -> dict[str, Any] | None:
        """Return the window as plain numbers, None if it is empty, and begin a new one.

        ``coverage`` is the share that was accepted and ``precision`` the share of these that is
        right. ``ece`` is the expected calibration error of the accepted ones, sum over 15 bins of
        |sum of confidence - number right| / number accepted, and ``ece_all`` that of all. What
        needs the truth is None where it is unknown, and ``precision`` and ``ece`` are None where
        nothing was accepted.
        """
        if self._window is None:
            return None
        window = self._window.cpu().numpy()
        every, accepted = (
            window[:, :-BINS].reshape(2, self.n_classes + 1, self.n_classes).astype(np.int64)
        )
        gaps = np.abs(window[:, -BINS:]).sum(axis=1)
        seen, believed = every.sum(axis=1), every.sum(axis=0)
        total, known = seen.sum(), accepted[:-1]
        right, taken = np.diag(known), known.sum(axis=0)
        has_truth = bool(seen[:-1].sum())
        entry = {
            "window": self.steps,
            "coverage": float(accepted.sum() / total),
            "precision": float(right.sum() / taken.sum()) if taken.sum() else None,
            "ece": float(gaps[1] / taken.sum()) if taken.sum() else None,
            "ece_all": float(gaps[0] / seen[:-1].sum()) if has_truth else None,
            "believed_counts": believed.tolist(),
            "accepted_counts": accepted.sum(axis=0).tolist(),
            "true_counts": seen[:-1].tolist() if has_truth else None,
            "per_class_coverage": _ratios(known.sum(axis=1), seen[:-1]) if has_truth else None,
            "per_class_precision": _ratios(right, taken) if has_truth else None,
        }
        self._clear()
        return entry


def _ratios(part: npt.NDArray[np.int64], whole: npt.NDArray[np.int64]) -> list[float | None]:
    return [float(a / b) if b else None for a, b in zip(part, whole, strict=True)]
