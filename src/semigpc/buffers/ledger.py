"""Who stands in each slot of a buffer, and what a write changed."""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Written(NamedTuple):
    """What one write did to the slots.

    Args:
        slots: (W,) distinct slots overwritten or newly filled.
        rows: (W,) the row of the batch that went into each; W < B when the batch held more than there was room for.
        dropped: (R,) slots emptied without a successor, disjoint from ``slots``. Only strict balancing does that.
    """

    slots: Tensor
    rows: Tensor
    dropped: Tensor


class Ledger(nn.Module):
    """Label, data-set index and insertion time of every slot; -1 where a slot is empty.

    A buffer holds no features: whoever does (a GP engine, a memory bank) is told which slots to overwrite.

    Args:
        capacity: N, slots.
        n_classes: C.
    """

    labels: Tensor
    indices: Tensor
    times: Tensor
    total: Tensor

    def __init__(self, capacity: int, n_classes: int) -> None:
        super().__init__()
        for name, value in (("capacity", capacity), ("n_classes", n_classes)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}.")
        self.capacity, self.n_classes = capacity, n_classes
        for name in ("labels", "indices", "times"):
            self.register_buffer(name, torch.full((capacity,), -1, dtype=torch.int64))
        self.register_buffer("total", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        """Occupied slots."""
        return int(self.occupied.sum())

    @property
    def occupied(self) -> Tensor:
        """(N,) bool."""
        return self.labels >= 0

    def class_counts(self) -> Tensor:
        """Occupied slots of each class, (C,) int64."""
        return torch.bincount(self.labels[self.occupied], minlength=self.n_classes)

    def check(self, labels: Tensor, indices: Tensor | None) -> None:
        """Refuse a batch that cannot be recorded, before anything is changed."""
        if not isinstance(labels, Tensor):
            raise TypeError(f"labels must be a torch.Tensor; got {type(labels).__name__}. torch.as_tensor makes one.")
        if labels.ndim != 1 or not len(labels):
            raise ValueError(f"labels must be a vector of at least one label; got shape {tuple(labels.shape)}.")
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise TypeError(f"labels must be integers; got {labels.dtype}.")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.n_classes:
            raise ValueError(
                f"labels must lie in [0, {self.n_classes}); got {low}..{high}. Unlabelled rows do not belong in the buffer."
            )
        if indices is not None and not isinstance(indices, Tensor):
            raise TypeError(f"indices must be a torch.Tensor; got {type(indices).__name__}. torch.as_tensor makes one.")
        if indices is not None and (indices.shape != labels.shape or indices.dtype != torch.int64):
            raise ValueError(
                f"indices must be int64 of shape {tuple(labels.shape)}, one a label; "
                f"got {indices.dtype} {tuple(indices.shape)}."
            )

    def record(self, written: Written, labels: Tensor, indices: Tensor | None) -> Written:
        """Write down what has changed; answers with ``written`` on the device of the labels."""
        device = self.labels.device
        slots, rows = written.slots.to(device), written.rows.to(device)
        self.labels[slots] = labels.to(device, torch.int64)[rows]
        self.indices[slots] = -1 if indices is None else indices.to(device)[rows]
        self.times[slots] = self.total + rows
        for column in (self.labels, self.indices, self.times):
            column[written.dropped.to(device)] = -1
        self.total += len(labels)
        return Written(*(part.to(labels.device) for part in written))
