"""How good the pseudo-labels are, where the truth is known; it is used for this and nothing else."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semigpc.types import PseudoLabels


class PseudoLabelStats:
    """Counts over a window of steps.

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
        self.seen = np.zeros(self.n_classes + 1, dtype=np.int64)  # by true class, the unknown ones last
        self.accepted = np.zeros((self.n_classes + 1, self.n_classes), dtype=np.int64)  # true class x pseudo-label
        self.believed = np.zeros(self.n_classes, dtype=np.int64)

    def add(self, pseudo: PseudoLabels, view_index: Tensor) -> None:
        """Take in one step: what was believed of the unlabelled pictures at these positions (U,)."""
        labels, mask = pseudo.probs.argmax(dim=1).cpu(), pseudo.mask.cpu().bool()
        truth = self.truth[view_index.cpu()]
        truth = torch.where(truth < 0, self.n_classes, truth)
        self.steps += 1
        self.seen += torch.bincount(truth, minlength=self.n_classes + 1).numpy()
        self.believed += torch.bincount(labels, minlength=self.n_classes).numpy()
        pairs = truth[mask] * self.n_classes + labels[mask]
        self.accepted += torch.bincount(pairs, minlength=self.accepted.size).numpy().reshape(self.accepted.shape)

    def flush(self) -> dict[str, Any] | None:
        """The window as plain numbers, None if it is empty; a new one begins."""
        if not self.steps:
            return None
        total, known = self.seen.sum(), self.accepted[:-1]
        right, taken = np.diag(known), known.sum(axis=0)
        has_truth = bool(self.seen[:-1].sum())
        entry = {
            "window": self.steps,
            "coverage": float(self.accepted.sum() / total),
            "precision": float(right.sum() / taken.sum()) if taken.sum() else None,
            "believed_counts": self.believed.tolist(),
            "accepted_counts": self.accepted.sum(axis=0).tolist(),
            "true_counts": self.seen[:-1].tolist() if has_truth else None,
            "per_class_coverage": _ratios(known.sum(axis=1), self.seen[:-1]) if has_truth else None,
            "per_class_precision": _ratios(right, taken) if has_truth else None,
        }
        self._clear()
        return entry


def _ratios(part: npt.NDArray[np.int64], whole: npt.NDArray[np.int64]) -> list[float | None]:
    return [float(a / b) if b else None for a, b in zip(part, whole, strict=True)]
