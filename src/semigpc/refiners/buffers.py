"""Buffers: which labelled entries are kept, and which slots a new batch replaces.

:class:`FIFOBuffer` keeps the newest entries, :class:`BalancedBuffer` equally many of each class.
"""

from abc import abstractmethod
from collections import deque
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn

from semigpc.gp.engine import check_tensor
from semigpc.io.errors import SettingsError
from semigpc.types import HostState


class Written(NamedTuple):
    """What one write does to the slots, on the CPU.

    Args:
        slots: (W,) distinct slots overwritten or newly filled.
        rows: (W,) the row of the batch that goes into each; W < B when the batch holds more than
            there is room for.
    """

    slots: Tensor
    rows: Tensor


class Ledger(HostState):
    """Label, data-set index and insertion time of every slot, on the CPU; -1 for an empty slot.

    A buffer holds no features: the caller that does (a GP engine, a memory bank) overwrites the
    slots that a write returns.

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
                raise SettingsError(f"{name} must be at least 1; got {value}.")
        self.capacity = capacity
        self.n_classes = n_classes
        for name in ("labels", "indices", "times"):
            self.register_buffer(name, torch.full((capacity,), -1, dtype=torch.int64))
        self.register_buffer("total", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        """Return the number of occupied slots."""
        return int(self.occupied.sum())

    @property
    def occupied(self) -> Tensor:
        """Return which slots are occupied, (N,) bool."""
        return self.labels >= 0

    def class_counts(self) -> Tensor:
        """Return the number of occupied slots of each class, (C,) int64. O(N)."""
        return torch.bincount(self.labels[self.occupied], minlength=self.n_classes)

    def checked(self, labels: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return labels and indices (B,) as int64 on the CPU, or raise an error.

        One synchronisation with the device, for both.
        """
        check_tensor("labels", labels)
        if labels.ndim != 1 or not len(labels):
            raise ValueError(
                f"labels must be a vector of at least one label; got shape {tuple(labels.shape)}."
            )
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise TypeError(f"labels must be integers; got {labels.dtype}.")
        columns = [labels.long()]
        if indices is not None:
            check_tensor("indices", indices)
            if indices.shape != labels.shape or indices.dtype != torch.int64:
                raise ValueError(
                    f"indices must be int64 of shape {tuple(labels.shape)}, one per label; "
                    f"got {indices.dtype} {tuple(indices.shape)}."
                )
            columns.append(indices.to(labels.device))
        own, *known = torch.stack(columns).cpu()
        low = int(own.min())
        high = int(own.max())
        if low < 0 or high >= self.n_classes:
            raise ValueError(
                f"labels must lie in [0, {self.n_classes}); got {low}..{high}. "
                "Leave unlabelled rows out."
            )
        return own, known[0] if known else None

    def record(self, written: Written, labels: Tensor, indices: Tensor | None) -> None:
        """Record a write; labels and indices are those that :meth:`checked` has returned."""
        slots, rows = written
        self.labels[slots] = labels[rows]
        self.indices[slots] = -1 if indices is None else indices[rows]
        self.times[slots] = self.total + rows
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

    @property
    def entries_per_class(self) -> int:
        """Entries of each class when all rings are full; 0 for a buffer without rings."""
        return 0

    def write(self, labels: Tensor, indices: Tensor | None = None) -> Written:
        """Make room for a batch, and record it. O(B).

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

        An engine that raises an error at the new rows then leaves the buffer as it was;
        :meth:`commit` follows if it does not.

        Args:
            labels: (B,) that ``entries.checked`` has returned.
        """

    def commit(self, written: Written, labels: Tensor, indices: Tensor | None) -> None:
        """Record what :meth:`plan` returned for these labels, with no other write in between."""
        self.entries.record(written, labels, indices)


class FIFOBuffer(Buffer):
    """Each batch overwrites the oldest entries (section 3.2 of the paper).

    So the shares of classes follow the stream's. Of a batch larger than the buffer the newest rows
    stay.

    Example::

        written = buffer.write(labels)
        engine.replace(written.slots, features[written.rows], one_hot[written.rows])

    Args:
        capacity: N_Q, slots.
        n_classes: C.
    """

    def plan(self, labels: Tensor) -> Written:
        """Return the slots of the oldest entries."""
        capacity = self.entries.capacity
        rows = torch.arange(max(0, len(labels) - capacity), len(labels))
        return Written(slots=(int(self.entries.total) + rows) % capacity, rows=rows)


class BalancedBuffer(Buffer):
    """Every class keeps its newest floor(N_Q / C) entries (daggered rows of the paper's tables).

    A row takes the slot of the oldest of its own class once that class is full. Of a batch that
    brings more of a class than it may hold, the newest rows stay. Rings of rare classes fill
    slowly, and until all are full the classes are not in balance; so training fills them when the
    refiner's warm-up ends (:func:`semigpc.training.evaluate.fill_rings`).

    Slots are handed out lowest first, so a buffer whose rare rings never fill uses a leading part
    of its slots only and the engine's work stays proportional to what is held.

    Args:
        capacity: N_Q; C * floor(N_Q / C) slots are used.
        n_classes: C.
    """

    def __init__(self, capacity: int, n_classes: int) -> None:
        super().__init__(capacity, n_classes)
        self.class_capacity = capacity // n_classes
        if not self.class_capacity:
            raise SettingsError(
                "capacity must be at least n_classes, one slot per class; "
                f"got {capacity} < {n_classes}."
            )
        self._read_rings()
        self.register_load_state_dict_post_hook(_reread)  # type: ignore[no-untyped-call]

    @property
    def entries_per_class(self) -> int:
        """floor(N_Q / C)."""
        return self.class_capacity

    def plan(self, labels: Tensor) -> Written:
        """Return free slots, lowest first, and the oldest of classes that are full."""
        arrivals: dict[int, list[int]] = {}
        for row, label in enumerate(labels.tolist()):
            arrivals.setdefault(label, []).append(row)

        free = iter(self._free)
        slots: list[int] = []
        rows: list[int] = []
        for label in sorted(arrivals):
            ring = self._rings[label]
            newest = arrivals[label][-self.class_capacity :]
            reused = list(islice(ring, max(0, len(ring) + len(newest) - self.class_capacity)))
            slots += [*reused, *islice(free, len(newest) - len(reused))]
            rows += newest
        return Written(*(torch.tensor(part, dtype=torch.int64) for part in (slots, rows)))

    def commit(self, written: Written, labels: Tensor, indices: Tensor | None) -> None:
        """Record a write, and move its slots to the ends of their rings."""
        before = self.entries.labels[written.slots].tolist()
        for label in before:
            if label >= 0:
                self._rings[label].popleft()  # what leaves a ring is the oldest of it
        del self._free[: before.count(-1)]
        for slot, label in zip(written.slots.tolist(), labels[written.rows].tolist(), strict=True):
            self._rings[label].append(slot)
        super().commit(written, labels, indices)

    def _read_rings(self) -> None:
        """Read each class's slots, oldest first, and the free ones, lowest first."""
        self._rings: list[deque[int]] = [deque() for _ in range(self.entries.n_classes)]
        labels = self.entries.labels.tolist()
        for slot in self.entries.times.argsort(stable=True).tolist():
            if labels[slot] >= 0:
                self._rings[labels[slot]].append(slot)
        usable = self.class_capacity * self.entries.n_classes
        self._free = [slot for slot in range(usable) if labels[slot] < 0]


def _reread(buffer: BalancedBuffer, _incompatible_keys: object) -> None:
    buffer._read_rings()


def build_buffer(capacity: int, n_classes: int, *, balanced: bool) -> Buffer:
    """Return an empty buffer: one ring for each class, or one queue."""
    return (BalancedBuffer if balanced else FIFOBuffer)(capacity, n_classes)
