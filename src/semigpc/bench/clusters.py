"""Rows to label: Gaussian clusters on the unit sphere, one a class, with a long tail."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 8192  # rows drawn at a time: nothing larger than the rows themselves is ever held
IMBALANCE = 100  # the largest class has so many times the rows of the smallest


@dataclass(frozen=True)
class Clusters:
    """Unit vectors around one direction a class; class c has a share of IMBALANCE^(-c / (C - 1)), up to a factor.

    Args:
        width: D. classes: C, at least 2. seed: rows depend on nothing else.
    """

    width: int
    classes: int
    seed: int = 0

    def draw(self, rows: int, *, stream: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Rows (n, D) and their classes (n,), of which the first C are 0 .. C - 1; another ``stream``, other rows. O(n D)."""
        centres = _unit(np.random.default_rng(self.seed).standard_normal((self.classes, self.width), dtype=np.float32))
        shares = IMBALANCE ** -(np.arange(self.classes) / (self.classes - 1))
        rng = np.random.default_rng((self.seed, 1 + stream))
        codes = rng.choice(self.classes, rows, p=shares / shares.sum())
        codes[: self.classes] = np.arange(self.classes)[:rows]
        X = np.empty((rows, self.width), dtype=np.float32)
        for start in range(0, rows, BLOCK):
            block = X[start : start + BLOCK]
            rng.standard_normal(out=block, dtype=np.float32)
            block *= self.width**-0.5
            block += centres[codes[start : start + BLOCK]]
            block[:] = _unit(block)
        return X, codes


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths: NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / lengths
