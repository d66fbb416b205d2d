"""Metrics of predictions and of pseudo-labels, in total and class by class."""

from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, with_config
from torch import Tensor
from typing_extensions import TypedDict

from semigpc.gp.certainty import ReliabilityBins, reliability
from semigpc.io.atomic import Count, Share
from semigpc.types import PseudoLabels

Array = NDArray[Any]
Integers = NDArray[np.int64]
Head = Literal["linear", "gp", "label"]
Part = Literal["test", "validation"]
Groups = dict[str, list[int]]  # class ids by the name of their group
Numbers = list[float | None]  # (C,), None where there is no image

CLASS_GROUPS = ("many", "medium", "few")  # thirds of the classes, by their number of labels
METRIC: Final = "balanced_accuracy"  # by which evaluations are compared
FIGURES = (METRIC, "top1", "macro_f1", "ece")  # that tables and comparisons show
BINS = 15  # of the reliability diagram, as in USB
LARGEST = 1e30  # in size, of a number that can be drawn; a diverged run writes NaN or infinity
LOOSE = ConfigDict(strict=True, extra="allow")


@with_config(LOOSE)
class Figures(TypedDict, total=False):
    """Figures of an evaluation, a window of pseudo-labels or a screening, for C classes.

    An evaluation is of one ``part`` and ``head``; ``judged`` if that head was chosen at its step.
    The best one also has the ``temperatures`` of its heads. Figures that no image contributes to
    are None.
    """

    part: Part
    head: Head
    judged: bool
    temperature: float
    temperatures: dict[Head, float]
    message: str
    n: Count
    loss: float
    top1: Share
    top5: Share
    balanced_accuracy: Share
    macro_precision: Share
    macro_recall: Share
    macro_f1: Share
    ece: Share | None
    groups: dict[str, Share | None]
    per_class_recall: Numbers
    per_class_precision: Numbers | None
    confusion: list[list[Count]]
    reliability: ReliabilityBins
    chosen_by: Share
    window: Count
    coverage: Share | None
    precision: Share | None
    ece_all: Share | None
    per_class_coverage: Numbers | None
    believed_counts: Numbers | None
    accepted_counts: Numbers | None
    true_counts: Numbers | None
    n_in: Count
    n_out: Count
    auroc_linear: Share
    auroc_max_softmax: Share
    auroc_variance: Share
    auroc_expected: Share


class PseudoFigures(TypedDict):
    """Figures of the pseudo-labels of ``window`` steps: see :meth:`PseudoLabelStats.flush`."""

    window: int
    coverage: float
    precision: float | None
    ece: float | None
    ece_all: float | None
    believed_counts: list[int]
    accepted_counts: list[int]
    true_counts: list[int] | None
    per_class_coverage: Numbers | None
    per_class_precision: Numbers | None


def class_groups(labeled_counts: Array, unlabeled_counts: Array | None = None) -> Groups:
    """Return thirds of the classes by frequency: many, medium, few; empty if all are equal.

    Classes are ordered by labelled images; ties by unlabelled ones, where those are known, and then
    by their number.

    Args:
        labeled_counts: (C,). unlabeled_counts: (C,).
    """
    ties = np.zeros_like(labeled_counts) if unlabeled_counts is None else unlabeled_counts
    if np.ptp(labeled_counts) == np.ptp(ties) == 0:
        return {name: [] for name in CLASS_GROUPS}
    order = np.lexsort((np.arange(len(labeled_counts)), -ties, -labeled_counts))
    thirds = zip(CLASS_GROUPS, np.array_split(order, 3), strict=True)
    return {name: sorted(map(int, part)) for name, part in thirds}


def classification_metrics(probs: Array, labels: Array, groups: Groups) -> Figures:
    """Return all figures of predictions on labelled images; None where a class has no image.

    Balanced accuracy is the mean recall of the classes that occur, a group's accuracy the same over
    its classes. The calibration error is over 15 bins of confidence.

    Args:
        probs: (M, C). labels: (M,) all known. groups: class ids by name.
    """
    n_classes = probs.shape[1]
    predicted = probs.argmax(axis=1)
    cells = np.bincount(labels * n_classes + predicted, minlength=n_classes**2)
    confusion = cells.reshape(n_classes, n_classes)
    n_true = confusion.sum(axis=1)
    n_predicted = confusion.sum(axis=0)
    right = np.diag(confusion)
    occurring = n_true > 0
    recall = right / np.maximum(n_true, 1)
    precision = right / np.maximum(n_predicted, 1)
    f1 = 2 * right / np.maximum(n_true + n_predicted, 1)
    own = probs[np.arange(len(labels)), labels]  # (M,) of the true class
    fifth = np.sort(probs, axis=1)[:, -min(5, n_classes)]
    bins, error = reliability(probs.max(axis=1), predicted == labels, bins=BINS)
    return {
        "n": len(labels),
        "loss": float(-np.log(np.maximum(own, 1e-12)).mean()),
        "top1": float((predicted == labels).mean()),
        "top5": float((own >= fifth).mean()),
        "balanced_accuracy": float(recall[occurring].mean()),
        "macro_precision": float(precision[occurring].mean()),
        "macro_recall": float(recall[occurring].mean()),
        "macro_f1": float(f1[occurring].mean()),
        "groups": {
            name: _mean(recall[[c for c in classes if occurring[c]]])
            for name, classes in groups.items()
        },
        "per_class_recall": _ratios(right, n_true),
        "per_class_precision": _ratios(right, n_predicted),
        "ece": error,
        "confusion": confusion.tolist(),
        "reliability": bins,
    }


def _mean(values: Array) -> float | None:
    return float(values.mean()) if len(values) else None


def _ratios(part: Integers, whole: Integers) -> Numbers:
    return [float(a / b) if b else None for a, b in zip(part, whole, strict=True)]


class PseudoLabelStats:
    """Counts pseudo-labels over a window of steps, and compares them with the truth where known.

    The confidence of a pseudo-label is its largest probability, whatever decided the mask.

    Args:
        n_classes: C.
        truth: (n_unlabeled,) true classes, -1 where unknown.
    """

    def __init__(self, n_classes: int, truth: Integers) -> None:
        self.n_classes = n_classes
        self.truth = torch.as_tensor(truth)
        self._clear()

    def _clear(self) -> None:
        self.steps = 0
        self._window: Tensor | None = None  # on the device of the pseudo-labels

    def add(self, pseudo: PseudoLabels, view_index: Tensor) -> None:
        """Add the pseudo-labels of one step, for the unlabelled images at these positions (U,).

        The host does not wait for the device.
        """
        n_classes = self.n_classes
        labels = pseudo.probs.argmax(dim=1)
        confidence = pseudo.probs.amax(dim=1).double()
        cells = (n_classes + 1) * n_classes
        if self._window is None:
            # One row of all and one of the accepted: counts of true class (unknown last) x
            # pseudo-label, then for each bin of confidence the sum of confidence - right.
            self._window = confidence.new_zeros(2, cells + BINS)
            self.truth = self.truth.to(labels.device)
        truth = self.truth[view_index.to(labels.device)]
        bins = (confidence * BINS).long().clamp(0, BINS - 1)
        counted = torch.stack([torch.ones_like(confidence), pseudo.mask.bool().to(confidence)])
        excess = torch.where(truth < 0, 0, confidence - (truth == labels).to(confidence))
        cell = torch.where(truth < 0, n_classes, truth) * n_classes + labels
        self._window.index_add_(1, cell, counted)
        self._window.index_add_(1, cells + bins, excess * counted)
        self.steps += 1

    def flush(self) -> PseudoFigures | None:
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
        counts = window[:, :-BINS].reshape(2, self.n_classes + 1, self.n_classes).astype(np.int64)
        every, accepted = counts
        gaps = np.abs(window[:, -BINS:]).sum(axis=1)
        seen = every.sum(axis=1)  # (C + 1,) by true class, the unknown ones last
        known = accepted[:-1]
        right = np.diag(known)
        taken = known.sum(axis=0)
        has_truth = bool(seen[:-1].sum())
        figures: PseudoFigures = {
            "window": self.steps,
            "coverage": float(accepted.sum() / seen.sum()),
            "precision": float(right.sum() / taken.sum()) if taken.sum() else None,
            "ece": float(gaps[1] / taken.sum()) if taken.sum() else None,
            "ece_all": float(gaps[0] / seen[:-1].sum()) if has_truth else None,
            "believed_counts": every.sum(axis=0).tolist(),
            "accepted_counts": accepted.sum(axis=0).tolist(),
            "true_counts": seen[:-1].tolist() if has_truth else None,
            "per_class_coverage": _ratios(known.sum(axis=1), seen[:-1]) if has_truth else None,
            "per_class_precision": _ratios(right, taken) if has_truth else None,
        }
        self._clear()
        return figures
