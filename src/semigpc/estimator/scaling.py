"""Scalings: how a row of numbers becomes a point whose distances are meaningful."""

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.utils import gen_batches
from torch import Tensor

STATISTICS_ROWS = 8192  # whose statistics are taken at a time, to bound memory
KNOTS = 257  # quantiles from which ranks are computed
RANK_ROWS = 20_000  # rows from which the quantiles are estimated
ENOUGH_LABELS = 200  # to choose among all scalings
ALIKE_SHARE = 0.45  # of effective columns, from which columns count as one kind of quantity
CONSTANT_RATIO = 1e-6  # deviation over mean up to which a column is constant in float32
SCALINGS = ("none", "unit", "centered", "standard", "rank")


@dataclass(frozen=True)
class Scaling:
    """A named sequence of fitted transformers.

    ``unit`` divides a row by its length, which suits embeddings; ``centered`` subtracts the mean
    first. ``standard`` gives every column mean 0 and deviation 1, and ``rank`` replaces values by
    those of a standard normal in the order of the column, so that outliers and skewed columns have
    no more weight than others: both suit tables of unlike quantities. ``none`` changes nothing.

    Args:
        name: one of SCALINGS. steps: what is applied to rows, in this order.
    """

    name: str
    steps: tuple[Any, ...]

    def __call__(self, X: NDArray[Any]) -> Tensor:
        """Return the points (M, D) of rows (M, D), float32. O(M D).

        A row that is 0 after centring stays 0.
        """
        points = np.require(X, np.float32, "W")  # torch has no read-only tensors
        for step in self.steps if len(points) else ():  # scikit-learn's reject empty arrays
            points = step.transform(points)
        return torch.from_numpy(points)


class GaussianRanks:
    """Values of a standard normal by rank; ``knots`` (D, KNOTS) are quantiles of each column."""

    def __init__(self, knots: NDArray[np.float32]) -> None:
        self.knots = torch.from_numpy(knots)

    def transform(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the normal values (M, D) of rows (M, D). O(M D log KNOTS)."""
        columns = torch.from_numpy(X).mT.contiguous()
        below = torch.searchsorted(self.knots, columns)
        above = torch.searchsorted(self.knots, columns, right=True)
        # Values that occur often get the middle of their ranks.
        shares = (below + above + 1).float() / (2 * KNOTS + 2)
        return torch.special.ndtri(shares).mT.contiguous().numpy()  # type: ignore[no-any-return]


def fit_scalings(X: NDArray[Any], name: str = "auto", *, labels: int = 0) -> dict[str, Scaling]:
    """Return the scaling of this name, or those that ``auto`` chooses from, by name. O(n D).

    Statistics are those of all rows (n, D). 200 labels are enough to tell which of all scalings is
    best. With fewer, the effective number of columns decides between two pairs of them:
    (sum_j v_j)^2 / sum_j v_j^2 with v_j the variances of the columns. Where it is small beside D,
    some columns have much larger units than others, so the table is one of unlike quantities.
    """
    standard = StandardScaler()
    for batch in gen_batches(len(X), STATISTICS_ROWS):
        standard.partial_fit(X[batch])
    centering = copy(standard).set_params(with_std=False)
    is_constant = np.sqrt(standard.var_) <= CONSTANT_RATIO * np.abs(standard.mean_)
    standard.scale_ = np.where(is_constant, np.inf, standard.scale_)
    names: tuple[str, ...] = (name,)
    if name == "auto":
        v = standard.var_
        effective = v.sum() ** 2 / max(np.square(v).sum(), 1e-300) / len(v)
        names = ("unit", "centered") if effective >= ALIKE_SHARE else ("standard", "rank")
        names = ("unit", "centered", "standard", "rank") if labels >= ENOUGH_LABELS else names
    steps = {
        "none": (),
        "unit": (Normalizer(),),
        "centered": (centering, Normalizer(copy=False)),
        "standard": (standard,),
    }
    return {one: Scaling(one, (_fit_ranks(X),) if one == "rank" else steps[one]) for one in names}


def _fit_ranks(X: NDArray[Any]) -> GaussianRanks:
    sample = X[:: -(-len(X) // RANK_ROWS)]
    quantiles = np.quantile(sample, np.linspace(0, 1, KNOTS), axis=0).T
    return GaussianRanks(np.ascontiguousarray(quantiles, np.float32))
