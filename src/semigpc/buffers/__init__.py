"""Buffers: which labelled entries are kept, and which slots a new batch replaces."""

from semigpc.buffers.balanced import BalancedBuffer
from semigpc.buffers.fifo import FIFOBuffer
from semigpc.buffers.ledger import Written

BUFFERS: dict[str, type[FIFOBuffer] | type[BalancedBuffer]] = {"fifo": FIFOBuffer, "balanced": BalancedBuffer}

__all__ = ["BUFFERS", "BalancedBuffer", "FIFOBuffer", "Written"]
