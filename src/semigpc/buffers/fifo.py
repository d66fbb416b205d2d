"""The paper's buffer: first in, first out."""

import torch
from torch import Tensor

from semigpc.buffers.ledger import Buffer, Written


class FIFOBuffer(Buffer):
    """Each batch overwrites the oldest entries, so the buffer's classes follow the stream's (section 3.2 of the paper).

    Of a batch larger than the buffer the newest rows stay.

    Example::

        written = buffer.write(labels)
        engine.replace(written.slots, features[written.rows], one_hot[written.rows])

    Args:
        capacity: N_Q, slots.
        n_classes: C.
    """

    def plan(self, labels: Tensor) -> Written:
        capacity, start = self.entries.capacity, int(self.entries.total)
        rows = torch.arange(max(0, len(labels) - capacity), len(labels))
        return Written(slots=(start + rows) % capacity, rows=rows, dropped=rows[:0])
