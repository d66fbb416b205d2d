"""Scalings: how a row of numbers becomes a point whose distances mean something."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHUNK = 8192  # rows at a time, to bound memory
KNOTS = 257  # of the empirical distribution that ranks are read from
RANKED = 20_000  # rows from which it is estimated
MANY = 200  # labels that can choose among all scalings
ALIKE = 0.45  # share of effective columns from which all columns are taken for one kind of quantity
SCALINGS = ("none", "unit", "centered", "standard", "rank")


@dataclass(frozen=True)
class Scaling:
    """h = (x - shift) * factor, then put on the unit sphere if ``unit``; or Gaussian ranks if there are ``knots``. float32.

    ``unit`` divides a row by its length, as suits embeddings; ``centered`` takes the mean away first. ``standard`` gives every
    column mean 0 and deviation 1, and ``rank`` the values of a standard normal in the order of the column, which outliers and
    skewed columns cannot stretch: they suit tables of unlike quantities. ``none`` changes nothing.

    Args:
        name: of the above. shift, factor: (D,). unit: as above. knots: (D, KNOTS) quantiles of each column, or None.
    """

    name: str
    shift: Tensor
    factor: Tensor
    unit: bool = False
    knots: Tensor | None = None

    def __call__(self, X: NDArray[Any] | Tensor) -> Tensor:
        """Points (M, D) of rows (M, D). A row that is 0 after the shift stays 0. O(M D)."""
        if isinstance(X, np.ndarray) and not X.flags.writeable:
            X = X.copy()  # torch has no read-only tensors, and complains
        rows = torch.as_tensor(X).to(torch.float32)
        if self.knots is not None:
            return self._ranks(rows)
        if self.name == "none":
            return rows
        points = rows.clone() if self.name == "unit" else (rows - self.shift).mul_(self.factor)
        return torch.nn.functional.normalize(points, dim=1, out=points) if self.unit else points

    def _ranks(self, rows: Tensor) -> Tensor:
        assert self.knots is not None
        columns = rows.mT.contiguous()
        below = torch.searchsorted(self.knots, columns)
        above = torch.searchsorted(self.knots, columns, right=True)  # values that occur often get the middle of their ranks
        shares = (below + above + 1).float() / (2 * KNOTS + 2)
        ranks: Tensor = torch.special.ndtri(shares)
        return ranks.mT.contiguous()


def fit_scalings(X: NDArray[Any], name: str = "auto", *, labels: int = 0) -> dict[str, Scaling]:
    """The scaling of this name, or for ``auto`` those to choose from, by statistics of all rows (n, D). O(n D).

    From 200 labels on, these can tell which of all scalings is best. Fewer are helped by the effective number of columns,
    (sum_j v_j)^2 / sum_j v_j^2 with v_j their variances. Where it is small beside D, some columns are measured in much
    larger units than others: the table is one of unlike quantities.
    """
    mean, deviation = _moments(X)
    names: Sequence[str] = (name,)
    if name == "auto":
        v = np.square(deviation)
        effective = v.sum() ** 2 / max(np.square(v).sum(), 1e-300) / len(v)
        names = ("unit", "centered") if effective >= ALIKE else ("standard", "rank")
        names = ("unit", "centered", "standard", "rank") if labels >= MANY else names
    return {one: _fit(one, X, mean, deviation) for one in names}


def _fit(name: str, X: NDArray[Any], mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> Scaling:
    shift, factor = torch.from_numpy(mean).float(), torch.ones(len(mean))
    if name == "rank":
        sample = X[:: -(-len(X) // RANKED)]
        quantiles = np.quantile(sample, np.linspace(0, 1, KNOTS), axis=0).T
        return Scaling(name, shift, factor, knots=torch.from_numpy(np.ascontiguousarray(quantiles)).float())
    if name == "standard":
        constant = deviation <= 1e-6 * np.maximum(np.abs(mean), 1e-30)
        factor = torch.from_numpy(np.where(constant, 0.0, 1 / np.where(constant, 1.0, deviation))).float()
    return Scaling(name, shift, factor, unit=name in ("unit", "centered"))


def _moments(X: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of each column, (D,), in float64."""
    chunks = [slice(start, start + CHUNK) for start in range(0, len(X), CHUNK)]
    mean = np.sum([X[chunk].sum(axis=0, dtype=np.float64) for chunk in chunks], axis=0) / len(X)
    squares = np.sum([np.square(X[chunk] - mean).sum(axis=0) for chunk in chunks], axis=0)
    return mean, np.sqrt(squares / len(X))
