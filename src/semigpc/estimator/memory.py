"""The labelled rows an estimator remembers: an exact GP, and which row of the user's sits in which of its slots."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.estimator.calibration import class_scales
from semigpc.gp import ExactGP, Kernel
from semigpc.gp.posterior import Posterior
from semigpc.threads import suited_to

Integers = NDArray[np.int64]
SPARE = 256  # slots kept free beyond the rows there are, or a quarter of them if that is more


class Reasons(NamedTuple):
    """Places (M, top) among the slots in use, -1 where there are fewer; their weights (M, top), and the scores (M,) of all."""

    slots: Tensor
    weights: Tensor
    scores: Tensor


class Memory:
    """Points with (soft) labels, known by row numbers; a row may be replaced or forgotten at any time in O(N^2).

    Args:
        kernel: with output scale 1. noise_std: sigma.
        equalised: whether scores give equal evidence to every class (algorithms 3.7).
        points: (n, D). targets: (n, C) rows that sum to 1.
        rows: (n,) distinct numbers. codes: (n,) given class, -1 where the label is soft.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_std: float,
        points: Tensor,
        targets: Tensor,
        rows: Integers,
        codes: Integers,
        *,
        equalised: bool,
    ) -> None:
        self.kernel, self.noise_std, self.equalised = kernel, noise_std, equalised
        self._build(points, targets, rows, codes)

    def _build(self, points: Tensor, targets: Tensor, rows: Integers, codes: Integers) -> None:
        """A new engine with room to grow. O(N^3)."""
        capacity = len(rows) + max(SPARE, len(rows) // 4)
        self.engine = ExactGP(
            capacity,
            points.shape[1],
            targets.shape[1],
            kernel=self.kernel,
            noise_std=self.noise_std,
        )
        self.rows, self.codes = np.full(capacity, -1, dtype=np.int64), np.full(capacity, -1, dtype=np.int64)
        self._slot = {int(row): slot for slot, row in enumerate(rows)}
        self.rows[: len(rows)], self.codes[: len(rows)] = rows, codes
        if len(rows):
            with suited_to(len(rows) ** 3):
                self.engine.replace(torch.arange(len(rows)), points.to(self.engine.dtype), targets.to(self.engine.dtype))
        self._posterior: Posterior | None = None

    def __len__(self) -> int:
        """Rows held."""
        return len(self._slot)

    def __contains__(self, row: int) -> bool:
        return row in self._slot

    @property
    def slots(self) -> Tensor:
        """Slots in use, ascending."""
        return self.engine.occupied.nonzero().squeeze(1)

    def given(self) -> tuple[Integers, Integers, Tensor]:
        """Rows (n,) and codes (n,) of labels that somebody gave, and their positions among the slots in use."""
        slots = self.slots.numpy()
        positions = np.flatnonzero(self.codes[slots] >= 0)
        return self.rows[slots[positions]], self.codes[slots[positions]], torch.from_numpy(positions)

    def counts(self) -> Tensor:
        """(C,) labels of each class, soft ones as far as they go; float64."""
        return self.engine.targets.sum(dim=0, dtype=torch.float64)

    def scales(self) -> Tensor:
        """(C,) what scores of a class are multiplied by: sqrt(nbar / n_c) if equalised, and 1 otherwise."""
        return class_scales(self.counts()) if self.equalised else torch.ones(self.engine.n_classes, dtype=torch.float64)

    def weights(self) -> Tensor:
        """a = K^-1 (Y - 1 pi^T) diag(scales) of the slots in use, (N, C), float64: a score is k(h, h_Q) a. O(N C)."""
        alpha = self.engine.alpha[self.slots]
        counts = self.counts()
        beta = alpha.sum(dim=1, keepdim=True)  # K^-1 1, as targets sum to 1
        return (alpha - beta * (counts / counts.sum().clamp_min(1e-9))) * self.scales()

    @property
    def posterior(self) -> Posterior:
        """For scoring many rows; made anew when something has changed."""
        if self._posterior is None:
            points = self.engine.features[self.slots].float()
            self._posterior = Posterior(points, self.weights().float(), kernel=self.kernel, noise_std=self.noise_std)
        return self._posterior

    def slot_rows(self) -> Integers:
        """Row numbers (N,) of the slots in use."""
        numbers: Integers = self.rows[self.slots.numpy()]
        return numbers

    def reasons(self, points: Tensor, codes: Tensor, top: int) -> Reasons:
        """What each row adds to the score of a class, k(h, h_i) a[i, c], the largest first; float64. O(M N D).

        Args:
            points: (M, D). codes: (M,) the class to explain for each.
        """
        with suited_to(len(points) * len(self) * self.engine.n_features):
            weights = self.kernel(points.double(), self.engine.features[self.slots].double()) * self.weights()[:, codes].mT
        order = weights.argsort(dim=1, descending=True, stable=True)[:, :top]
        missing = top - order.shape[1]
        slots = torch.nn.functional.pad(order, (0, missing), value=-1)
        return Reasons(slots, torch.nn.functional.pad(weights.gather(1, order), (0, missing)), weights.sum(dim=1))

    def differences(self, points: Tensor, codes: Tensor, slots: Tensor) -> Tensor:
        """How much lower each score (M,) would be had a row never been labelled, (M, top), all else equal. O(M N (D + N)).

            mu(h) - mu_-i(h) = [k(h, h_Q) K^-1]_i a_i / (K^-1)_ii

        Args:
            points: (M, D). codes: (M,). slots: (M, top) as :meth:`reasons` gives them.
        """
        there = slots.clamp_min(0)
        with suited_to(len(points) * len(self) ** 2):
            shares = self.engine.label_weights(points.to(self.engine.dtype)).double()[:, self.slots].gather(1, there)
            spread = (self.engine.leave_one_out().variance + self.noise_std**2)[there]  # 1 / (K^-1)_ii
        return torch.where(slots >= 0, shares * self.weights()[there, codes.unsqueeze(1)] * spread, 0.0)

    def put(self, rows: Integers, points: Tensor, targets: Tensor, codes: Integers) -> None:
        """Add rows, or replace those that are there. O(B N^2). No rows, no change."""
        if not len(rows):
            return
        new = [int(row) for row in rows if int(row) not in self._slot]
        if len(self) + len(new) > self.engine.capacity:
            held = self.slots
            self._build(
                self.engine.features[held], self.engine.targets[held], self.rows[held.numpy()], self.codes[held.numpy()]
            )
        free = iter((~self.engine.occupied).nonzero().squeeze(1)[: len(new)].tolist())
        for row in new:
            self._slot[row] = next(free)
        slots = np.array([self._slot[int(row)] for row in rows], dtype=np.int64)
        with suited_to(len(slots) * len(self) ** 2):
            self.engine.replace(torch.from_numpy(slots), points.to(self.engine.dtype), targets.to(self.engine.dtype))
        self.rows[slots], self.codes[slots] = rows, codes
        self._posterior = None

    def forget(self, rows: Integers) -> None:
        """Take rows out; those that are not held are passed over. O(B N^2)."""
        slots = [self._slot.pop(int(row)) for row in rows if int(row) in self._slot]
        if slots:
            with suited_to(len(slots) * len(self) ** 2):
                self.engine.remove(torch.tensor(slots))
            self.rows[slots] = self.codes[slots] = -1
            self._posterior = None

    def rename_classes(self, places: Tensor, n_classes: int) -> None:
        """Class c becomes class places[c] of ``n_classes``. O(N^3): the engine is built anew."""
        held = self.slots
        targets = self.engine.targets.new_zeros(len(held), n_classes)
        targets[:, places] = self.engine.targets[held]
        codes = self.codes[held.numpy()]
        codes = np.where(codes >= 0, places.numpy()[codes], -1)
        self._build(self.engine.features[held], targets, self.rows[held.numpy()], codes)

    def recognise(self, points: Tensor, first: int) -> tuple[Integers, Integers]:
        """Numbers of points (M, D): those of equal rows that are held, and new ones from ``first`` on. O(N D).

        Returns:
            Distinct numbers, and the positions among the M points they belong to: of a row that is given twice, the last.
        """
        features = self.engine.features.float().contiguous().numpy()
        known = {features[slot].tobytes(): row for row, slot in self._slot.items()}
        numbers: dict[int, int] = {}
        for position, point in enumerate(points.numpy()):
            number = known.setdefault(point.tobytes(), first + len(numbers))
            numbers.pop(number, None)
            numbers[number] = position
        return np.array(list(numbers), dtype=np.int64), np.array(list(numbers.values()), dtype=np.int64)


def row_numbers(rows: Any, count: int) -> Integers:
    """Numbers (count,) that name rows: as given, or 0 .. count - 1."""
    if rows is None:
        return np.arange(count)
    numbers = np.asarray(rows)
    if numbers.shape != (count,) or numbers.dtype.kind not in "iu" or (count and int(numbers.min()) < 0):
        raise ValueError(
            f"rows must be {count} whole numbers, 0 or more, one for each row of X; got {numbers.dtype} {numbers.shape}."
        )
    if len(np.unique(numbers)) < count:
        raise ValueError("rows must be distinct: each number names one row.")
    return numbers.astype(np.int64)
