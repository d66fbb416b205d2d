"""What each slot of a buffer holds, and what a write changes."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from semigpc.types import HostState


class Written(NamedTuple):
    """What one write does to the slots, on the CPU.

    Args:
        slots: (W,) distinct slots overwritten or newly filled.
        rows: (W,) the row of the batch that goes into each; W < B when the batch holds more than there is room for.
        dropped: (R,) slots emptied without a successor, disjoint from ``slots``. Only strict balancing does that.
    """

    slots: Tensor
    rows: Tensor
    dropped: Tensor


class Ledger(HostState):
    """Label, data-set index and insertion time of every slot; -1 where a slot is empty. It stays on the CPU.

    A buffer holds no features: the caller that does (a GP engine, a memory bank) overwrites the slots that a write returns.

    Args:
        capacity: N, slots.
        n_classes: C.
    """

    on_host = ("labels", "indices", "times", "total")
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
        """Return the number of occupied slots."""
        return int(self.occupied.sum())

    @property
    def occupied(self) -> Tensor:
        """(N,) bool."""
        return self.labels >= 0

    def class_counts(self) -> Tensor:
        """Return the number of occupied slots of each class, (C,) int64. O(N)."""
        return torch.bincount(self.labels[self.occupied], minlength=self.n_classes)

    def checked(self, labels: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return labels and indices (B,) as int64 on the CPU; raise an error if they cannot be recorded.

        One synchronisation with the device, for both.
        """
        if not isinstance(labels, Tensor):
            raise TypeError(f"labels must be a torch.Tensor; got {type(labels).__name__}. torch.as_tensor makes one.")
        if labels.ndim != 1 or not len(labels):
            raise ValueError(f"labels must be a vector of at least one label; got shape {tuple(labels.shape)}.")
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise TypeError(f"labels must be integers; got {labels.dtype}.")
        if indices is not None and not isinstance(indices, Tensor):
            raise TypeError(f"indices must be a torch.Tensor; got {type(indices).__name__}. torch.as_tensor makes one.")
        if indices is not None and (indices.shape != labels.shape or indices.dtype != torch.int64):
            raise ValueError(
                f"indices must be int64 of shape {tuple(labels.shape)}, one a label; "
                f"got {indices.dtype} {tuple(indices.shape)}."
            )
        columns = [labels.long()] if indices is None else [labels.long(), indices.to(labels.device)]
        own, *known = torch.stack(columns).cpu()
        low, high = int(own.min()), int(own.max())
        if low < 0 or high >= self.n_classes:
            raise ValueError(
                f"labels must lie in [0, {self.n_classes}); got {low}..{high}. Unlabelled rows do not belong in the buffer."
            )
        return own, known[0] if known else None

    def record(self, written: Written, labels: Tensor, indices: Tensor | None) -> None:
        """Write down what has changed; labels and indices are those that :meth:`checked` has returned."""
        slots, rows, dropped = written
        self.labels[slots] = labels[rows]
        self.indices[slots] = -1 if indices is None else indices[rows]
        self.times[slots] = self.total + rows
        for column in (self.labels, self.indices, self.times):
            column[dropped] = -1
        self.total += len(labels)


class Buffer(nn.Module):
    """A choice of slots for the rows of a batch. To add one, implement :meth:`plan`.

    Args:
        capacity: N_Q, slots.
        n_classes: C.
    """

    def __init__(self, capacity: int, n_classes: int) -> None:
        super().__init__()
        self.entries = Ledger(capacity, n_classes)

    def __len__(self) -> int:
        """Return the number of occupied slots."""
        return len(self.entries)

    def write(self, labels: Tensor, indices: Tensor | None = None) -> Written:
        """Make room for a batch, and record it. O(B), and O(C) more with strict balancing.

        Args:
            labels: (B,) integers in [0, C).
            indices: (B,) int64 positions in the data set, where they are known.
        """
        labels, indices = self.entries.checked(labels, indices)
        written = self.plan(labels)
        self.commit(written, labels, indices)
        return written

    @abstractmethod
    def plan(self, labels: Tensor) -> Written:
        """Choose slots for a batch and change nothing.

        An engine that raises an error at the new rows then leaves the buffer as it was; :meth:`commit` follows if it does not.

        Args:
            labels: (B,) that ``entries.checked`` has returned.
        """

    def commit(self, written: Written, labels: Tensor, indices: Tensor | None) -> None:
        """Record what :meth:`plan` has returned for the same labels, with no other write in between."""
        self.entries.record(written, labels, indices)
