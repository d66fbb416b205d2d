"""A fair sample of rows that stream by, which does not depend on how they are cut into batches.

Every row draws a key from one stream of random numbers, and the rows with the smallest keys are kept. The same keys can be
drawn again later, so nobody has to note which rows they were.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float32]


def sample_rows(eligible: Mask, size: int, seed: int) -> Rows:
    """Numbers of at most ``size`` of the rows marked in ``eligible`` (N,), sorted: those that :class:`Sample` keeps."""
    rows = np.flatnonzero(eligible)
    keys = np.random.default_rng(seed).random(len(eligible))[rows]
    return np.sort(rows[np.argsort(keys, kind="stable")[:size]])


class Sample:
    """At most ``size`` rows with their ids and embeddings.

    Args:
        size: how many are kept, each (D,) float32. width: D. seed: decides which.
    """

    def __init__(self, size: int, width: int, seed: int) -> None:
        self.size = size
        self._rng = np.random.default_rng(seed)
        self._keys = np.empty(0)
        self._rows = np.empty(0, dtype=np.int64)
        self._x = np.empty((0, width), dtype=np.float32)
        self._ids: list[str] = []

    def add(self, first: int, eligible: Mask, ids: Sequence[str], x: Floats) -> None:
        """Show the next rows, M ids and (M, D), numbered from ``first``; only those ``eligible`` (M,) may be kept."""
        keys = self._rng.random(len(eligible))
        bound = self._keys.max() if len(self._keys) == self.size and self.size else np.inf
        new = np.flatnonzero(eligible & (keys < bound))
        if not len(new) or not self.size:
            return
        all_keys = np.concatenate([self._keys, keys[new]])
        kept = np.sort(np.argsort(all_keys, kind="stable")[: self.size])
        old, fresh = kept[kept < len(self._keys)], kept[kept >= len(self._keys)] - len(self._keys)
        self._x = np.concatenate([self._x[old], x[new[fresh]]])
        self._rows = np.concatenate([self._rows[old], first + new[fresh]])
        self._ids = [*(self._ids[i] for i in old), *(ids[i] for i in new[fresh])]
        self._keys = all_keys[kept]

    def result(self) -> tuple[Rows, list[str], Floats]:
        """Row numbers (S,), sorted, their S ids and embeddings (S, D)."""
        return self._rows, self._ids, self._x
