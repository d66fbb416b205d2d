"""The class-balanced buffer: one ring for each class."""

import heapq
from collections import deque
from typing import Literal

import torch
from torch import Tensor, nn

from semigpc.buffers.ledger import Ledger, Written


class BalancedBuffer(nn.Module):
    """Every class keeps its newest floor(N_Q / C) entries (the daggered rows of the paper's long-tail tables).

    Rings of rare classes fill slowly. ``balance="cap"`` lets the others fill meanwhile, so balance is reached only once all
    rings are full. ``"strict"`` holds every class to the count of the smallest one seen so far, which means dropping entries
    when a class shows up for the first time.

    Slots are handed out lowest first, so a buffer whose rare rings never fill uses a leading part of its slots only and the
    engine's work stays proportional to what is held.

    Args:
        capacity: N_Q; C * floor(N_Q / C) slots are used.
        n_classes: C.
        balance: "cap" or "strict".
    """

    def __init__(self, capacity: int, n_classes: int, *, balance: Literal["cap", "strict"] = "cap") -> None:
        super().__init__()
        if balance not in ("cap", "strict"):
            raise ValueError(f"balance must be 'cap' or 'strict'; got {balance!r}.")
        self.entries = Ledger(capacity, n_classes)
        self.class_capacity = capacity // n_classes
        if not self.class_capacity:
            raise ValueError(f"capacity must be at least n_classes, a slot a class; got {capacity} < {n_classes}.")
        self.balance = balance
        self._read_rings()
        self.register_load_state_dict_post_hook(_reread)  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        """Occupied slots."""
        return len(self.entries)

    def write(self, labels: Tensor, indices: Tensor | None = None) -> Written:
        """Make room for a batch: each row takes the place of the oldest of its own class once that class is full.

        Of a batch that brings more of a class than it may hold, the newest rows stay. O(B), and O(C) more when strict.

        Args:
            labels: (B,) integers in [0, C).
            indices: (B,) int64 positions in the data set, where they are known.
        """
        self.entries.check(labels, indices)
        arrivals: dict[int, list[int]] = {}
        for row, label in enumerate(labels.tolist()):
            arrivals.setdefault(label, []).append(row)

        limit = self._limit(arrivals)
        touched = sorted(arrivals) if self.balance == "cap" else range(self.entries.n_classes)
        evicted: dict[int, list[int]] = {}
        for label in touched:
            ring = self._rings[label]
            kept_rows = arrivals[label] = arrivals.get(label, [])[-limit:]
            surplus = max(0, len(ring) + len(kept_rows) - limit)
            evicted[label] = [ring.popleft() for _ in range(surplus)]
        slots, rows = [], []
        for label in touched:
            for row in arrivals[label]:
                slot = evicted[label].pop(0) if evicted[label] else heapq.heappop(self._free)
                self._rings[label].append(slot)
                slots.append(slot)
                rows.append(row)
        dropped = [slot for leftover in evicted.values() for slot in leftover]
        for slot in dropped:
            heapq.heappush(self._free, slot)
        written = Written(*(torch.tensor(part, dtype=torch.int64) for part in (slots, rows, dropped)))
        return self.entries.record(written, labels, indices)

    def _limit(self, arrivals: dict[int, list[int]]) -> int:
        """Entries that every class may hold once this batch is in."""
        if self.balance == "cap":
            return self.class_capacity
        counts = [len(ring) + len(arrivals.get(label, [])) for label, ring in enumerate(self._rings)]
        return min(self.class_capacity, min(count for count in counts if count))

    def _read_rings(self) -> None:
        """Slots of each class, oldest first, and the unused ones, as the ledger has them."""
        self._rings: list[deque[int]] = [deque() for _ in range(self.entries.n_classes)]
        labels = self.entries.labels.tolist()
        for slot in self.entries.times.argsort(stable=True).tolist():
            if labels[slot] >= 0:
                self._rings[labels[slot]].append(slot)
        usable = self.class_capacity * self.entries.n_classes
        self._free = [slot for slot in range(usable) if labels[slot] < 0]


def _reread(buffer: BalancedBuffer, _incompatible_keys: object) -> None:
    buffer._read_rings()
