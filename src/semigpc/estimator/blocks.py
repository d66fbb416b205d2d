"""The blocks in which an estimator scores rows: who keeps to them gets the same numbers to the last bit.

A matrix product may round a row differently with its place among the others, and with their number. It does not with what the
others hold.
"""

from semigpc.estimator.classifier import CHUNK, SemiGPClassifier
from semigpc.estimator.posterior import CHUNK as PRODUCT
from semigpc.estimator.posterior import CHUNK_CELLS

BLOCK = CHUNK  # rows of a call of ``answer`` that are scored at a time, from its first one on


def product_rows(model: SemiGPClassifier) -> int:
    """Rows of a block that share one product; BLOCK if they differ from one product to another."""
    labels = len(model.labeled_rows_)
    return PRODUCT if model.self_training_ == 0 and labels * PRODUCT <= CHUNK_CELLS else BLOCK


def frame(first: int, stop: int, *, call: int, product: int, rows: int) -> tuple[int, int]:
    """The rows, from which to which, of all products that the rows ``first`` to ``stop`` (exclusive) of a block take part in.

    Args:
        first, stop: within one block of one call. call: rows of all calls of ``answer`` but the last. product: rows of a
            product. rows: of all calls.
    """
    begin = first // call * call
    block = begin + (first - begin) // BLOCK * BLOCK
    low = block + (first - block) // product * product
    high = block - (block - stop) // product * product
    return low, min(high, block + BLOCK, begin + call, rows)


def block_ends(first: int, stop: int, *, call: int) -> list[int]:
    """Where to cut the rows ``first`` to ``stop`` (exclusive), so that every piece is within one block; ends with ``stop``."""
    ends: list[int] = []
    while first < stop:
        begin = first // call * call
        first = min(begin + ((first - begin) // BLOCK + 1) * BLOCK, begin + call, stop)
        ends.append(first)
    return ends
