"""A fair sample of rows that stream by, which does not depend on how they are cut into batches, nor on who sees them.

Every row has a key, a random number that depends on the seed and the number of the row alone, and the rows with the smallest
keys are kept. The same keys can be drawn again later, so nobody has to note which rows they were; and samples of parts of the
data merge into that of all.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float32]


def keys_of(first: int, count: int, seed: int) -> NDArray[np.float64]:
    """Keys of ``count`` rows from number ``first`` on, uniform in [0, 1). A key takes one step of the generator. O(count)."""
    bits = np.random.PCG64(seed)
    bits.advance(first)
    return np.random.Generator(bits).random(count)


def sample_rows(eligible: Mask, size: int, seed: int) -> Rows:
    """Numbers of at most ``size`` of the rows marked in ``eligible`` (N,), sorted: those that :class:`Sample` keeps."""
    rows = np.flatnonzero(eligible)
    keys = keys_of(0, len(eligible), seed)[rows]
    return np.sort(rows[np.argsort(keys, kind="stable")[:size]])


class Sample:
    """At most ``size`` rows with their ids and embeddings.

    Args:
        size: how many are kept, each (D,) float32. width: D. seed: decides which.
        below: rows with a larger key are passed over, where it is known that there are enough of smaller ones.
    """

    def __init__(self, size: int, width: int, seed: int, below: float = np.inf) -> None:
        self.size, self.seed, self.below = size, seed, below
        self._keys = np.empty(0)
        self._rows = np.empty(0, dtype=np.int64)
        self._x = np.empty((0, width), dtype=np.float32)
        self._ids: list[str] = []

    def __len__(self) -> int:
        """Rows kept so far."""
        return len(self._rows)

    def add(self, first: int, eligible: Mask, ids: Sequence[str], x: Floats) -> None:
        """Show rows, M ids and (M, D), numbered from ``first``; only those ``eligible`` (M,) may be kept."""
        keys = keys_of(first, len(eligible), self.seed)
        bound = self._keys.max() if len(self) == self.size and self.size else self.below
        new = np.flatnonzero(eligible & (keys < bound))
        if len(new) and self.size:
            self._merge(keys[new], first + new, [ids[i] for i in new.tolist()], x[new])

    def absorb(self, other: "Sample") -> None:
        """Take in the sample of later rows."""
        self._merge(other._keys, other._rows, other._ids, other._x)

    def _merge(self, keys: NDArray[np.float64], rows: Rows, ids: Sequence[str], x: Floats) -> None:
        all_keys = np.concatenate([self._keys, keys])
        kept = np.sort(np.argsort(all_keys, kind="stable")[: self.size])
        old, new = kept[kept < len(self)], kept[kept >= len(self)] - len(self)
        self._x = np.concatenate([self._x[old], x[new]])
        self._ids = [*(self._ids[i] for i in old), *(ids[i] for i in new)]
        self._rows = np.concatenate([self._rows[old], rows[new]])
        self._keys = all_keys[kept]

    def result(self) -> tuple[Rows, list[str], Floats]:
        """Row numbers (S,), sorted, their S ids and embeddings (S, D)."""
        return self._rows, self._ids, self._x
