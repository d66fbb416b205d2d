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
        self._window: Tensor | None = None  # on the device of the pseudo-labels

    def add(self, pseudo: PseudoLabels, view_index: Tensor) -> None:
        """Take in one step: what was believed of the unlabelled images at these positions (U,). The host does not wait."""
        n_classes, labels = self.n_classes, pseudo.probs.argmax(dim=1)
        if self._window is None:  # of all and of the accepted: true class, the unknown ones last, x pseudo-label
            self._window = labels.new_zeros(2, n_classes + 1, n_classes)
            self.truth = self.truth.to(labels.device)
        truth = self.truth[view_index.to(labels.device)]
        cells = torch.where(truth < 0, n_classes, truth) * n_classes + labels
        counted = torch.stack([torch.ones_like(labels), pseudo.mask.bool().to(labels)])
        self._window.flatten(1).index_add_(1, cells, counted)
        self.steps += 1

    def flush(self) -> dict[str, Any] | None:
        """The window as plain numbers, None if it is empty; a new one begins."""
        if self._window is None:
            return None
        every, accepted = self._window.cpu().numpy()
        seen, believed = every.sum(axis=1), every.sum(axis=0)
        total, known = seen.sum(), accepted[:-1]
        right, taken = np.diag(known), known.sum(axis=0)
        has_truth = bool(seen[:-1].sum())
        entry = {
            "window": self.steps,
            "coverage": float(accepted.sum() / total),
            "precision": float(right.sum() / taken.sum()) if taken.sum() else None,
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
