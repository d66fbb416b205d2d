"""The class-balanced buffer: one ring for each class."""

from bisect import insort
from collections import deque
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from semigpc.buffers.ledger import Buffer, Written


class BalancedBuffer(Buffer):
    """Every class keeps its newest floor(N_Q / C) entries (the daggered rows of the paper's long-tail tables).

    Rings of rare classes fill slowly. ``balance="cap"`` lets the others fill meanwhile, so balance is reached only once all
    rings are full. ``"strict"`` holds every class to the count of the smallest one seen so far, which means dropping entries
    when a class shows up for the first time.

    A row takes the slot of the oldest of its own class once that class is full. Of a batch that brings more of a class than it
    may hold, the newest rows stay.

    Slots are handed out lowest first, so a buffer whose rare rings never fill uses a leading part of its slots only and the
    engine's work stays proportional to what is held.

    Args:
        capacity: N_Q; C * floor(N_Q / C) slots are used.
        n_classes: C.
        balance: "cap" or "strict".
    """

    def __init__(self, capacity: int, n_classes: int, *, balance: Literal["cap", "strict"] = "cap") -> None:
        super().__init__(capacity, n_classes)
        if balance not in ("cap", "strict"):
            raise ValueError(f"balance must be 'cap' or 'strict'; got {balance!r}.")
        self.class_capacity = capacity // n_classes
        if not self.class_capacity:
            raise ValueError(f"capacity must be at least n_classes, a slot a class; got {capacity} < {n_classes}.")
        self.balance = balance
        self._read_rings()
        self.register_load_state_dict_post_hook(_reread)  # type: ignore[no-untyped-call]

    def plan(self, labels: Tensor) -> Written:
        arrivals: dict[int, list[int]] = {}
        for row, label in enumerate(labels.tolist()):
            arrivals.setdefault(label, []).append(row)

        limit, free = self._limit(arrivals), iter(self._free)
        slots, rows, dropped = [], [], []
        for label in sorted(arrivals) if self.balance == "cap" else range(self.entries.n_classes):
            ring, newest = self._rings[label], arrivals.get(label, [])[-limit:]
            oldest = list(islice(ring, max(0, len(ring) + len(newest) - limit)))
            reused, surplus = oldest[: len(newest)], oldest[len(newest) :]
            slots += [*reused, *islice(free, len(newest) - len(reused))]
            rows += newest
            dropped += surplus
        return Written(*(torch.tensor(part, dtype=torch.int64) for part in (slots, rows, dropped)))

    def commit(self, written: Written, labels: Tensor, indices: Tensor | None) -> None:
        before = self.entries.labels[torch.cat([written.slots, written.dropped])].tolist()
        for label in before:
            if label >= 0:
                self._rings[label].popleft()  # what leaves a ring is the oldest of it
        del self._free[: before.count(-1)]
        for slot, label in zip(written.slots.tolist(), labels[written.rows].tolist(), strict=True):
            self._rings[label].append(slot)
        for slot in written.dropped.tolist():
            insort(self._free, slot)
        super().commit(written, labels, indices)

    def _limit(self, arrivals: dict[int, list[int]]) -> int:
        """Entries that every class may hold once this batch is in."""
        if self.balance == "cap":
            return self.class_capacity
        counts = [len(ring) + len(arrivals.get(label, [])) for label, ring in enumerate(self._rings)]
        return min(self.class_capacity, min(count for count in counts if count))

    def _read_rings(self) -> None:
        """Slots of each class, oldest first, and the unused ones, lowest first, as the ledger has them."""
        self._rings: list[deque[int]] = [deque() for _ in range(self.entries.n_classes)]
        labels = self.entries.labels.tolist()
        for slot in self.entries.times.argsort(stable=True).tolist():
            if labels[slot] >= 0:
                self._rings[labels[slot]].append(slot)
        usable = self.class_capacity * self.entries.n_classes
        self._free = [slot for slot in range(usable) if labels[slot] < 0]


def _reread(buffer: BalancedBuffer, _incompatible_keys: object) -> None:
    buffer._read_rings()
