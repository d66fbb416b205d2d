"""Buffers: which labelled entries are kept, and which slots a new batch replaces."""

from semigpc.buffers.balanced import BalancedBuffer
from semigpc.buffers.fifo import FIFOBuffer
from semigpc.buffers.ledger import Buffer, Written

BUFFERS: dict[str, type[Buffer]] = {"fifo": FIFOBuffer, "balanced": BalancedBuffer}

__all__ = ["BUFFERS", "BalancedBuffer", "Buffer", "FIFOBuffer", "Written"]
