"""The paper's buffer: first in, first out."""

import torch
from torch import Tensor, nn

from semigpc.buffers.ledger import Ledger, Written


class FIFOBuffer(nn.Module):
    """Each batch overwrites the oldest entries, so the buffer's classes follow the stream's (section 3.2 of the paper).

    Example::

        written = buffer.write(labels)
        engine.replace(written.slots, features[written.rows], one_hot[written.rows])

    Args:
        capacity: N_Q, slots.
        n_classes: C.
    """

    def __init__(self, capacity: int, n_classes: int) -> None:
        super().__init__()
        self.entries = Ledger(capacity, n_classes)

    def __len__(self) -> int:
        """Occupied slots."""
        return len(self.entries)

    def write(self, labels: Tensor, indices: Tensor | None = None) -> Written:
        """Make room for a batch. Of a batch larger than the buffer the newest rows stay. O(B).

        Args:
            labels: (B,) integers in [0, C).
            indices: (B,) int64 positions in the data set, where they are known.
        """
        self.entries.check(labels, indices)
        capacity, start = self.entries.capacity, int(self.entries.total)
        rows = torch.arange(max(0, len(labels) - capacity), len(labels))
        written = Written(slots=(start + rows) % capacity, rows=rows, dropped=rows[:0])
        return self.entries.record(written, labels, indices)
