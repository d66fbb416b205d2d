"""Labelled rows that are copies of each other, such as two frames of a video.

A left-out label tests nothing while a copy of its row stays: whatever the labels mean, the copy
predicts it. So copies are left out together wherever labels are, and count as one label there.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from semigpc.gp.kernels import square_norms, squared_distances
from semigpc.io.threads import suited_to

Integers = NDArray[np.int64]
COPY_COSINE = 0.999  # between copies, of standardised rows
# Distance to the nearest row that is no copy, over the largest distance of copies. Of independent
# rows that fill D dimensions evenly, a share of about 0.7 / 10^D has a neighbour this close.
SPACING_RATIO = 10.0
CONSTANT_RATIO = 1e-6  # deviation over mean up to which a column is constant in float32
MEASURED_ROWS = 512  # rows whose distances to all others are measured
CELLS = 2**22  # distances held at once, 32 MB


class Copies:
    """Groups of labelled rows that are copies of each other, kept as labels come and go.

    Two rows are copies if all their numbers are equal, or if, with every column standardised over
    the labelled rows that were fitted,

        cos(z_i, z_j) > 0.999        and        |z_i - z_j| < r

    Copies of copies are in the same group. r is the distance at which two rows of median length
    have that cosine, or less: at most a tenth of the median distance from a row to the nearest one
    that is farther than r. Copies are a cluster of their own, far from all other rows. Without that
    condition most rows of a table of few columns would be copies of some other, since its rows are
    dense and any two directions in a plane are close.

    Cost: O(n^2 D) at first, and O(B n D) for B more rows.

    Args:
        X: (n, D) labelled rows, before any scaling. numbers: (n,) by which they are known.
    """

    def __init__(self, X: NDArray[np.float32], numbers: Integers) -> None:
        self._mean = X.mean(axis=0, dtype=np.float64)
        deviation = X.std(axis=0, dtype=np.float64)
        is_constant = deviation <= CONSTANT_RATIO * np.abs(self._mean)
        self._scale = np.where(is_constant, np.inf, deviation)
        self._numbers = np.empty(0, dtype=np.int64)
        self._groups = np.empty(0, dtype=np.int64)
        self._z = torch.empty(0, X.shape[1])
        distinct = np.unique(_first_equal(X))
        with suited_to(min(len(distinct), MEASURED_ROWS) * X.size):
            self._reach = squared_reach(self._standardised(X[distinct]).double())
        self.put(numbers, X)

    def groups(self, numbers: Integers) -> Integers:
        """Return the group (n,) of each of these rows: 0, 1, ... in the order of their numbers."""
        order = np.argsort(self._numbers)
        places = order[np.searchsorted(self._numbers[order], numbers)]
        return np.unique(self._groups[places], return_inverse=True)[1].astype(np.int64)

    def put(self, numbers: Integers, X: NDArray[np.float32]) -> None:
        """Add rows (B, D), or replace those with the same numbers."""
        self.forget(numbers)
        start = len(self._numbers)
        self._numbers = np.concatenate([self._numbers, numbers])
        self._z = torch.cat([self._z, self._standardised(X)])
        fresh = np.arange(len(X)) + (self._groups.max(initial=-1) + 1)
        self._groups = np.concatenate([self._groups, fresh])
        with suited_to(len(X) * self._z.numel()):
            for first, second in self._pairs(start):
                self._groups = _joined(self._groups, first, second)

    def forget(self, numbers: Integers) -> None:
        """Remove rows; numbers that are not held are ignored."""
        stay = ~np.isin(self._numbers, numbers)
        self._numbers = self._numbers[stay]
        self._groups = self._groups[stay]
        self._z = self._z[torch.from_numpy(stay)]

    def _standardised(self, X: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(((X - self._mean) / self._scale).astype(np.float32))

    def _pairs(self, start: int) -> Iterator[tuple[Integers, Integers]]:
        """Yield places of copies, for the rows from place ``start`` on and all before each."""
        equal = _first_equal(self._z.numpy())
        yield np.arange(start, len(equal)), equal[start:]
        z = self._z.double()
        norms = square_norms(z)
        size = max(1, CELLS // max(1, len(z)))
        for low in range(start, len(z), size):
            block = z[low : low + size]
            distances = squared_distances(block, z, norms)
            near, other = (distances < self._reach).nonzero(as_tuple=True)
            products = (norms[low + near] + norms[other] - distances[near, other]) / 2
            lengths = (norms[low + near] * norms[other]).sqrt()
            alike = products > COPY_COSINE * lengths
            yield (low + near[alike]).numpy(), other[alike].numpy()


def squared_reach(z: Tensor) -> float:
    """Return r^2: distinct standardised rows (n, D) within r may be copies.

    It begins at the distance that belongs to COPY_COSINE, and is lowered until the median row has
    no other between r and SPACING_RATIO r. O(m n D) for at most MEASURED_ROWS rows m.
    """
    reach = 2 * (1 - COPY_COSINE) * float(square_norms(z).median())
    chosen = z[:: -(-len(z) // MEASURED_ROWS)]
    distances = squared_distances(chosen, z)
    while True:
        beyond = distances.masked_fill(distances <= reach, math.inf).amin(dim=1)
        lowered = float(beyond.median()) / SPACING_RATIO**2
        if lowered >= reach:
            return reach
        reach = lowered


def counted_once(groups: Integers, codes: Integers) -> NDArray[np.bool_]:
    """Return which rows (n,) stand for all copies with the same label: the first of each.

    Args:
        groups: (n,) of copies. codes: (n,) given classes; copies may disagree.
    """
    _, first = np.unique(np.stack([groups, codes]), axis=1, return_index=True)
    counted = np.zeros(len(groups), dtype=bool)
    counted[first] = True
    return counted


def _first_equal(rows: NDArray[np.float32]) -> Integers:
    """Return for each row (n,) the place of the first one with the same bytes."""
    places: dict[bytes, int] = {}
    keys = (row.tobytes() for row in rows)
    return np.array([places.setdefault(key, i) for i, key in enumerate(keys)], dtype=np.int64)


def _joined(groups: Integers, first: Integers, second: Integers) -> Integers:
    """Return groups (n,) after joining those of the rows at some pairs of places."""
    _, nodes = np.unique(groups, return_inverse=True)
    count = int(nodes.max(initial=-1)) + 1
    edges = (np.ones(len(first), dtype=bool), (nodes[first], nodes[second]))
    graph = sparse.coo_matrix(edges, shape=(count, count))
    _, joined = connected_components(graph, directed=False)
    return np.asarray(joined[nodes], dtype=np.int64)


def sums_of(values: Tensor, groups: Integers) -> Tensor:
    """Return for each row (n, K) the sum over the rows of its group."""
    names, places = np.unique(groups, return_inverse=True)
    total = values.new_zeros(len(names), values.shape[1])
    own = torch.from_numpy(places)
    return total.index_add(0, own, values)[own]
