"""Rows that are answered again and again while labels come one by one.

A prediction takes O(D) for each row and each labelled or joined row, nearly all of it for kernel
values that are the same as before. Here they are kept: an answer for all rows then takes O(N C) for
each, and D is paid for new labels only.
"""

from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from semigpc.estimator.answers import Answers, Floats, Scaling
from semigpc.estimator.classifier import SemiGPClassifier
from semigpc.estimator.memory import Memory
from semigpc.estimator.posterior import ScaledKernel, Scored
from semigpc.gp import Kernel
from semigpc.io.threads import suited_to

MOST_CELLS = 2**28  # kernel values that are kept, 1 GB
SPARE_COLUMNS = 256  # for labels to come
POINTS_AT_ONCE = 2048
VARIANCE_WORK = 4e10  # multiplications up to which the variance of all rows is computed again


@dataclass(frozen=True)
class Snapshot:
    """What answers depend on, taken at one moment: the model may change afterwards.

    Attributes:
        model: a shallow copy. given, joined: numbers (N,), points (N, D) and weights (N, C) of both
            GPs; ``joined`` is None without self-training. own: numbers (J,) of rows that joined,
            and their scores (J, C) without their own guess.
    """

    model: SemiGPClassifier
    given: tuple[Tensor, Tensor, Tensor]
    joined: tuple[Tensor, Tensor, Tensor] | None
    own: tuple[Tensor, Tensor] | None
    scales: Tensor


class WatchedRows:
    """Rows (M, D) of numbers 0 to M - 1, with their kernel values to all rows of both GPs.

    Memory: M (D + N) numbers. A call with B new labelled or joined rows takes O(M B D + M N C), and
    O(M n^2) more for the variance by n labels.

    Args:
        X: (M, D) finite.
    """

    def __init__(self, X: Floats) -> None:
        self._X = X
        self._kernel: Kernel | None = None
        self._scaling: Scaling | None = None
        self._points = torch.empty(0)
        self._slots: dict[int, int] = {}
        self._values = torch.empty(0, len(X))

    @staticmethod
    def suits(rows: int, model: SemiGPClassifier) -> bool:
        """Return whether kernel values of so many rows can be kept: for one exact GP alone."""
        held = max(len(memory) for memory in model.memories())
        return model.engine_ == "exact" and rows * (held + SPARE_COLUMNS) <= MOST_CELLS

    @staticmethod
    def snapshot(model: SemiGPClassifier) -> Snapshot:
        """Return what the answers depend on now. O(N (D + C) + N^2) for what left out guesses."""
        memories = model.memories()
        joined = memories[1] if len(memories) > 1 else None
        own = None
        if joined is not None:
            rows = joined.joined()
            own = torch.from_numpy(rows.numbers), rows.scores.float()
        return Snapshot(
            model=copy(model),
            given=_contents(memories[0]),
            joined=None if joined is None else _contents(joined),
            own=own,
            scales=memories[0].scales().clamp_min(1e-9).float(),
        )

    @torch.no_grad()
    def answers(self, now: Snapshot, *, variance: bool = True) -> Answers:
        """Return the answers (M,) of all rows, without reasons, as :meth:`SemiGPClassifier.answer`.

        Args:
            variance: whether to compute it if that is affordable; otherwise it is None, and no row
                is called an outlier.
        """
        model = now.model
        self._follow(model)
        self._add(now)
        mean = self._mean(now.given)
        even = mean if now.joined is None else self._mean(now.joined)
        if now.own is not None:
            rows, scores = now.own
            inside = rows < len(self._X)
            even = even.clone() if even is mean else even
            even[rows[inside]] = scores[inside]
        probabilities = model.probabilities()
        probs = probabilities.of(mean / now.scales, even)
        decided = probabilities.decide(probs)
        affordable = len(now.given[0]) ** 2 * len(self._X) <= VARIANCE_WORK
        scored = Scored(
            mean=mean,
            variance=self._variance(now) if variance and affordable else None,
            classes=decided.classes,
            slots=torch.empty(len(mean), 0, dtype=torch.int64),
            reasons=torch.empty(len(mean), 0),
        )
        return model.answered(probs, scored)

    def _follow(self, model: SemiGPClassifier) -> None:
        """Forget the values if the points or the kernel are others than before."""
        same = self._kernel is not None and repr(self._kernel) == repr(model.kernel_)
        if same and self._scaling is model.row_scaling:
            return
        points = model.points(self._X)
        self._scaling = model.row_scaling
        if same and points.shape == self._points.shape and torch.equal(points, self._points):
            return
        self._points = points
        self._kernel = model.kernel_
        self._slots = {}

    def _add(self, now: Snapshot) -> None:
        """Compute the values of rows that are held now and were not before."""
        parts = [now.given] if now.joined is None else [now.given, now.joined]
        new: dict[int, Tensor] = {}
        for numbers, points, _ in parts:
            for number, point in zip(numbers.tolist(), points, strict=True):
                if number not in self._slots:
                    new[number] = point
        if not new:
            return
        first = len(self._slots)
        self._reserve(first + len(new))
        assert self._kernel is not None
        kernel = ScaledKernel(torch.stack(list(new.values())), self._kernel)
        with suited_to(len(new) * self._points.numel()):
            for start in range(0, len(self._points), POINTS_AT_ONCE):
                chunk = self._points[start : start + POINTS_AT_ONCE]
                values = torch.empty(len(chunk), len(new))
                r = kernel.write(chunk, values, start)
                if r is not None:
                    values.exp_().mul_(r.unsqueeze(1))
                values.mul_(kernel.units)
                self._values[first : first + len(new), start : start + len(chunk)] = values.mT
        self._slots.update(zip(new, range(first, first + len(new)), strict=True))

    def _reserve(self, columns: int) -> None:
        if columns <= len(self._values):
            return
        larger = torch.empty(columns + SPARE_COLUMNS, len(self._X))
        larger[: len(self._slots)] = self._values[: len(self._slots)]
        self._values = larger

    def _mean(self, part: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return scores (M, C): the sum over the rows held of k(h, h_i) w_i. O(M N C)."""
        numbers, _, weights = part
        whole = torch.zeros(len(self._slots), weights.shape[1])
        whole[torch.tensor([self._slots[number] for number in numbers.tolist()])] = weights
        with suited_to(len(self._X) * whole.numel()):
            return self._values[: len(whole)].mT @ whole

    def _variance(self, now: Snapshot) -> Tensor:
        """Return the variance (M,) by the given labels. O(n^3 + M n^2)."""
        numbers, points, _ = now.given
        kernel = now.model.kernel_
        held = torch.tensor([self._slots[number] for number in numbers.tolist()])
        with suited_to(len(held) ** 2 * len(self._X)):
            K = kernel(points.double(), points.double())
            K.diagonal().add_(now.model.noise_std_**2)
            factor = torch.linalg.cholesky(K).float()
            solved = torch.linalg.solve_triangular(factor, self._values[held], upper=False)
            explained = solved.square_().sum(dim=0)
        variance: Tensor = (kernel.diagonal(self._points) - explained).clamp_min_(0)
        return variance


def _contents(memory: Memory) -> tuple[Tensor, Tensor, Tensor]:
    rows = memory.expansion()
    return torch.from_numpy(memory.row_numbers()), rows.points, rows.weights.float()
