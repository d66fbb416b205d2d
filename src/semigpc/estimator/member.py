"""One exact GP over labelled rows, and which row of the user's sits in which of its slots."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.estimator.posterior import Posterior
from semigpc.gp import ExactGP, Kernel, LeftOut
from semigpc.threads import suited_to

Integers = NDArray[np.int64]
SPARE = 256  # slots kept free beyond the rows there are, or a quarter of them if that is more
FEW = 6  # times fewer points than rows: n^3 / 3 for a factor is then more than it saves, some 2 n^2 a point


def capacity_for(rows: int) -> int:
    """Slots of an engine for so many rows, with room to grow."""
    return rows + max(SPARE, rows // 4)


class Member:
    """Rows, known by their numbers, in the slots of an exact engine; one may be replaced or taken out in O(n^2).

    Args:
        kernel: with output scale 1. noise_std: sigma.
        points: (n, D). targets: (n, C). rows: (n,) distinct numbers.
    """

    def __init__(self, kernel: Kernel, noise_std: float, points: Tensor, targets: Tensor, rows: Integers) -> None:
        capacity = capacity_for(len(rows))
        self.engine = ExactGP(capacity, points.shape[1], targets.shape[1], kernel=kernel, noise_std=noise_std)
        self.rows = np.full(capacity, -1, dtype=np.int64)
        self.rows[: len(rows)] = rows
        self._slot = {int(row): slot for slot, row in enumerate(rows)}
        if len(rows):
            with suited_to(len(rows) ** 3):
                self.engine.replace(torch.arange(len(rows)), points.double(), targets.double())

    def __len__(self) -> int:
        """Rows held."""
        return len(self._slot)

    @property
    def slots(self) -> Tensor:
        """Slots in use, ascending."""
        return self.engine.occupied.nonzero().squeeze(1)

    def slot_rows(self) -> Integers:
        """Row numbers (n,) of the slots in use."""
        numbers: Integers = self.rows[self.slots.numpy()]
        return numbers

    def solution(self) -> Tensor:
        """K^-1 (y, 1) of the slots in use, (n, C + 1), as targets sum to 1; float64."""
        alpha = self.engine.alpha[self.slots]
        return torch.cat([alpha, alpha.sum(dim=1, keepdim=True)], dim=1)

    def weights(self, offset: Tensor) -> Tensor:
        """K^-1 (y - 1 offset^T) of the slots in use, (n, C), float64."""
        solution = self.solution()
        return solution[:, :-1] - solution[:, -1:] * offset

    def has_room_for(self, rows: Integers) -> bool:
        """Whether :meth:`put` has a slot for each of the rows."""
        return len(self._slot.keys() | set(rows.tolist())) <= self.engine.capacity

    def left_out(self) -> LeftOut:
        """Each row without itself, in the order of the slots. O(n^2 + n C)."""
        with suited_to(len(self) ** 2):
            return self.engine.leave_one_out()

    def variances(self, points: Tensor) -> Tensor:
        """Posterior variance (M,) at points (M, D), float32. O(M n (D + n)).

        A few come from K^-1 in float64. Many come from a Cholesky factor of K in float32, four times as fast, which is made for
        them and not kept: it is as large as K^-1.
        """
        if FEW * len(points) < len(self):
            with suited_to(len(points) * len(self) ** 2):
                return self.engine.variance(points.double()).float()
        features, nothing = self.engine.features[self.slots].float(), torch.zeros(len(self), 1)
        factored = Posterior(features, nothing, kernel=self.engine.kernel, noise_std=self.engine.noise_std)
        variance = factored.score(points, top=0).variance
        assert variance is not None
        return variance

    def put(self, rows: Integers, points: Tensor, targets: Tensor) -> None:
        """Add rows, or replace those that are there. O(B n^2)."""
        new = [row for row in rows.tolist() if row not in self._slot]
        free = (~self.engine.occupied).nonzero().squeeze(1)[: len(new)].tolist()
        known = self._slot | dict(zip(new, free, strict=True))
        slots = np.array([known[row] for row in rows.tolist()], dtype=np.int64)
        with suited_to(len(slots) * len(self) ** 2):
            self.engine.replace(torch.from_numpy(slots), points.double(), targets.double())
        self.rows[slots], self._slot = rows, known

    def forget(self, rows: Integers) -> None:
        """Take rows out; those that are not held are passed over. O(B n^2)."""
        slots = [self._slot.pop(row) for row in rows.tolist() if row in self._slot]
        if slots:
            with suited_to(len(slots) * len(self) ** 2):
                self.engine.remove(torch.tensor(slots))
            self.rows[slots] = -1
