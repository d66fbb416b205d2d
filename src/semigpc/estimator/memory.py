"""The labelled rows an estimator remembers: one exact GP, or the average of several where one would be too large.

Members of an ensemble hold all rows of the small classes, and of the large ones a part each. With its share of every class, a
member would know less of the small ones than one GP of far fewer, thinned out rows does: on MNIST with a tail of 1 : 100,
balanced accuracy fell from 0.952 to 0.939 (docs/results.md, "More labels than one exact GP holds").
"""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.estimator.confidence import class_scales
from semigpc.estimator.posterior import Posterior, Scored
from semigpc.gp import ExactGP, Kernel, LeftOut, exact
from semigpc.threads import suited_to

Integers = NDArray[np.int64]
MEMBER_SHARE = 3 / 8  # of the rows that one exact GP may hold; smaller members were less often right (docs/results.md)
DEALT = 5 / 6  # of a member's room for its share of all rows; the rest is for small classes, which all members hold
SPARE = 256  # slots kept free beyond the rows there are, or a quarter of them if that is more
FEW = 6  # times fewer points than rows: n^3 / 3 for a factor is then more than it saves, some 2 n^2 a point


class Reasons(NamedTuple):
    """Places (M, top) among the rows held, -1 where there are fewer; their weights (M, top), and the scores (M,) of all."""

    slots: Tensor
    weights: Tensor
    scores: Tensor


class _Combined(NamedTuple):
    """The rows of all members as one sum of kernels.

    Attributes:
        rows: (N,) numbers, ascending. places: for each member, where its slots are among them, (n,).
        parts: for each member, what its slots add to ``weights`` (N, C). posterior: of all rows with these weights.
    """

    rows: Integers
    places: list[Tensor]
    parts: list[Tensor]
    weights: Tensor
    posterior: Posterior


class Memory:
    """Points with (soft) labels, known by row numbers; a row may be replaced or forgotten at any time in O(N^2).

        mu(h) = 1/M sum_m k(h, h_m) K_m^-1 y_m          var(h) = 1/M sum_m var_m(h)

    with M = 1, an exact GP, as long as that fits. Otherwise the variance is an upper bound of the squared error to expect of
    the average. Rows that are added later go to all members, so that a correction counts as much as in one GP.

    Args:
        kernel: with output scale 1. noise_std: sigma.
        equalised: whether scores give equal evidence to every class (algorithms 3.7).
        points: (n, D). targets: (n, C) rows that sum to 1.
        rows: (n,) distinct numbers. codes: (n,) given class, -1 where the label is soft.
        seed: of the dealing.
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
        seed: int = 0,
    ) -> None:
        self.kernel, self.noise_std, self.equalised, self.seed = kernel, noise_std, equalised, seed
        self._codes = dict(zip(rows.tolist(), codes.tolist(), strict=True))
        self._build(points, targets, rows)

    def _build(self, points: Tensor, targets: Tensor, rows: Integers) -> None:
        """New members with room to grow. O(M n^3)."""
        fit = exact.exact_fits(capacity_for(len(rows)), matrices=2)  # K^-1, and a factor of K for the variance of many rows
        parts = [np.arange(len(rows))]
        if not fit.fits:
            parts = deal(targets.argmax(dim=1).numpy(), member_size(len(rows)), np.random.default_rng(self.seed))
        self._fit = fit
        self.members = [Member(self.kernel, self.noise_std, points[part], targets[part], rows[part]) for part in parts]
        self._changed()

    def _changed(self) -> None:
        self._cached_view: _Combined | None = None
        self._left_out: LeftOut | None = None

    def __len__(self) -> int:
        """Rows held."""
        return len(self._codes)

    @property
    def n_classes(self) -> int:
        """C."""
        return self.members[0].engine.n_classes

    @property
    def engine(self) -> Literal["exact", "ensemble"]:
        """What the members are together."""
        return "exact" if len(self.members) == 1 else "ensemble"

    @property
    def reason(self) -> str:
        """Why it is that engine, in a sentence."""
        if self.engine == "exact":
            return f"one exact GP holds all {len(self)} labelled rows: {self._fit.reason}."
        return (
            f"{len(self.members)} exact GPs of up to {max(map(len, self.members))} rows share the {len(self)} labelled rows, "
            f"and their average decides, since one would need a slot for each and a quarter more: {self._fit.reason}."
        )

    # What is held ---------------------------------------------------------------------------------------------------

    def given(self) -> tuple[Integers, Integers, Tensor]:
        """Rows (n,) and codes (n,) of labels that somebody gave, and their positions among the rows held."""
        rows = self.row_numbers()
        codes = np.array([self._codes[row] for row in rows.tolist()], dtype=np.int64)
        positions = np.flatnonzero(codes >= 0)
        return rows[positions], codes[positions], torch.from_numpy(positions)

    def row_numbers(self) -> Integers:
        """(N,) of the rows held, ascending."""
        return np.sort(np.fromiter(self._codes, dtype=np.int64, count=len(self)))

    def counts(self) -> Tensor:
        """(C,) labels of each class that a member holds on average, soft ones as far as they go; float64."""
        return torch.stack([member.engine.targets.sum(dim=0) for member in self.members]).mean(dim=0)

    def held_shares(self) -> Tensor:
        """(N,) share of the members that hold each row: what it counts for in :meth:`counts`."""
        return self._sum([torch.ones(len(member), 1) for member in self.members]).squeeze(1) / len(self.members)

    def scales(self) -> Tensor:
        """(C,) what scores of a class are multiplied by: sqrt(nbar / n_c) if equalised, and 1 otherwise."""
        return class_scales(self.counts()) if self.equalised else torch.ones(self.n_classes, dtype=torch.float64)

    def _contents(self) -> tuple[Integers, Tensor, Tensor]:
        """Row numbers (N,), points (N, D) and targets (N, C)."""
        rows = self.row_numbers()
        engine = self.members[0].engine
        points = torch.zeros(len(rows), engine.n_features)
        targets = torch.zeros(len(rows), engine.n_classes, dtype=torch.float64)
        for member in self.members:
            places, slots = torch.from_numpy(np.searchsorted(rows, member.slot_rows())), member.slots
            points[places], targets[places] = member.engine.features[slots].float(), member.engine.targets[slots]
        return rows, points, targets

    @property
    def _view(self) -> _Combined:
        """Made anew when something has changed. O(N (D + C))."""
        if self._cached_view is None:
            rows, points, _ = self._contents()
            places = [torch.from_numpy(np.searchsorted(rows, member.slot_rows())) for member in self.members]
            counts = self.counts()
            offset, scales = counts / counts.sum().clamp_min(1e-9), self.scales()
            parts = [member.weights(offset) * scales / len(self.members) for member in self.members]
            weights = self._sum(parts, places)
            posterior = Posterior(points, weights.float(), kernel=self.kernel, noise_std=self.noise_std)
            self._cached_view = _Combined(rows, places, parts, weights, posterior)
        return self._cached_view

    @property
    def posterior(self) -> Posterior:
        """All rows as one sum of kernels. Its variance is that of one exact GP of them all."""
        return self._view.posterior

    def _sum(self, parts: list[Tensor], places: list[Tensor] | None = None) -> Tensor:
        """Sum (N, K), by row, of what each member has for its slots (n, K); float64."""
        total = torch.zeros(len(self), parts[0].shape[1], dtype=torch.float64)
        for part, where in zip(parts, places or self._view.places, strict=True):
            total[where] += part
        return total

    # Queries --------------------------------------------------------------------------------------------------------

    def score(self, points: Tensor, *, bias: Tensor | None = None, variance: bool = False, top: int = 0) -> Scored:
        """Scores, classes, reasons (places among the rows held) and, if wanted, the variance of points (M, D), in float32.

        O(M N (D + C)), and O(M sum_m n^2) more for the variance.
        """
        alone = len(self.members) == 1
        scored = self._view.posterior.score(points, bias=bias, variance=variance and alone, top=top)
        if not variance or alone:
            return scored
        return scored._replace(variance=torch.stack([member.variances(points) for member in self.members]).mean(dim=0))

    def row_work(self, *, variance: bool) -> int:
        """Multiply-adds for one row: N (D + C), and n^2 of each member for the variance."""
        squares = sum(len(member) ** 2 for member in self.members) if variance else 0
        return self._view.posterior.row_work(variance=False) + squares

    def reasons(self, points: Tensor, codes: Tensor, top: int) -> Reasons:
        """What each row adds to the score of a class, k(h, h_i) a[i, c], the largest first; float64. O(M N D).

        Args:
            points: (M, D). codes: (M,) the class to explain for each.
        """
        view = self._view
        with suited_to(len(points) * len(self) * points.shape[1]):
            weights = self.kernel(points.double(), view.posterior.features.double()) * view.weights[:, codes].mT
        order = weights.argsort(dim=1, descending=True, stable=True)[:, :top]
        missing = top - order.shape[1]
        slots = torch.nn.functional.pad(order, (0, missing), value=-1)
        return Reasons(slots, torch.nn.functional.pad(weights.gather(1, order), (0, missing)), weights.sum(dim=1))

    def differences(self, points: Tensor, codes: Tensor, slots: Tensor) -> Tensor:
        """How much lower each score (M,) would be had a row never been labelled, (M, top), all else equal.

            mu(h) - mu_-i(h) = 1/M sum_m [k(h, h_m) K_m^-1]_i a_i / (K_m^-1)_ii          over the members that hold the row

        O(M sum_m n (D + n)).

        Args:
            points: (M, D). codes: (M,). slots: (M, top) as :meth:`reasons` gives them.
        """
        view, total = self._view, torch.zeros(len(points), len(self), dtype=torch.float64)
        for member, places, part in zip(self.members, view.places, view.parts, strict=True):
            with suited_to(len(points) * len(member) ** 2):
                shares = member.engine.label_weights(points.double())[:, member.slots]
            spread = member.left_out().variance + self.noise_std**2  # 1 / (K^-1)_ii
            total[:, places] += shares * part[:, codes].mT * spread
        return torch.where(slots >= 0, total.gather(1, slots.clamp_min(0)), 0.0)

    def covariance(self, points: Tensor, others: Tensor) -> Tensor:
        """Posterior covariance (M, M') at points (M, D) and others (M', D), averaged over the members, as the variance is."""
        found = []
        for member in self.members:
            with suited_to(len(others) * len(member) ** 2):
                found.append(member.engine.covariance(points.double(), others.double()))
        return torch.stack(found).mean(dim=0)

    def left_out(self) -> LeftOut:
        """Every row held as the others would have it: means (N, C), those (N,) of a target of ones, variance (N,).

        Means are exact, since the members that do not hold a row know nothing of it:

            mu_-i(h_i) = mu(h_i) - 1/M sum_m [K_m^-1 y_m]_i var_m,-i(h_i)          over the members that hold the row

        O(n^2) with one member, and O(N^2 (D + C)) with several. Their variance at a row is that of the members that hold it,
        without it: the others hold as many rows like it, and are not asked, which would take O(N n^2 M).
        """
        if self._left_out is None:
            self._left_out = self._leave_out()
        return self._left_out

    def _leave_out(self) -> LeftOut:
        each = [member.left_out() for member in self.members]
        held = self.held_shares().unsqueeze(1) * len(each)
        variance = self._sum([one.variance.unsqueeze(1) for one in each]) / held
        if len(each) == 1:
            means = self._sum([torch.cat([one.mean, one.ones.unsqueeze(1)], dim=1) for one in each])
        else:
            parts = [member.solution() / len(each) for member in self.members]
            points = self._view.posterior.features
            whole = Posterior(points, self._sum(parts).float(), kernel=self.kernel, noise_std=self.noise_std)
            own = [part * one.variance.unsqueeze(1) for part, one in zip(parts, each, strict=True)]
            means = whole.score(points, variance=False, top=0).mean - self._sum(own)
        return LeftOut(means[:, :-1], means[:, -1], variance.squeeze(1))

    # Changes --------------------------------------------------------------------------------------------------------

    def put(self, rows: Integers, points: Tensor, targets: Tensor, codes: Integers) -> None:
        """Add rows, or replace those that are there, in all members. O(B sum_m n^2). No rows, no change."""
        if not len(rows):
            return
        if all(member.has_room_for(rows) for member in self.members):
            for member in self.members:
                member.put(rows, points, targets)
        else:
            held, old_points, old_targets = self._contents()
            stay = ~np.isin(held, rows)
            kept = torch.from_numpy(stay)
            self._build(
                torch.cat([old_points[kept], points.float()]),
                torch.cat([old_targets[kept], targets.double()]),
                np.concatenate([held[stay], rows]),
            )
        self._codes.update(zip(rows.tolist(), codes.tolist(), strict=True))
        self._changed()

    def forget(self, rows: Integers) -> None:
        """Take rows out; those that are not held are passed over. O(B n^2)."""
        for member in self.members:
            member.forget(rows)
        for row in rows.tolist():
            self._codes.pop(row, None)
        self._changed()

    def rename_classes(self, places: Tensor, n_classes: int) -> None:
        """Class c becomes class places[c] of ``n_classes``. O(M n^3): the engines are built anew."""
        rows, points, old = self._contents()
        targets = old.new_zeros(len(rows), n_classes)
        targets[:, places] = old
        self._codes = {row: int(places[code]) if code >= 0 else -1 for row, code in self._codes.items()}
        self._build(points, targets, rows)

    def recognise(self, points: Tensor, first: int) -> tuple[Integers, Integers]:
        """Numbers of points (M, D): those of equal rows that are held, and new ones from ``first`` on. O(N D).

        Returns:
            Distinct numbers, and the positions among the M points they belong to: of a row that is given twice, the last.
        """
        rows, held, _ = self._contents()
        known = {point.tobytes(): row for row, point in zip(rows.tolist(), held.numpy(), strict=True)}
        numbers: dict[int, int] = {}
        for position, point in enumerate(points.numpy()):
            number = known.setdefault(point.tobytes(), first + len(numbers))
            numbers.pop(number, None)
            numbers[number] = position
        return np.array(list(numbers), dtype=np.int64), np.array(list(numbers.values()), dtype=np.int64)


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


def member_size(rows: int) -> int:
    """Rows of one member for so many rows in all: fewer where all members would take more than half of the machine's memory."""
    affordable = int(exact.memory_budget() * DEALT / (4 * max(rows, 1)))  # K^-1 takes 4 bytes for each of its cells
    return max(2, min(int(MEMBER_SHARE * exact.EXACT_ROWS), affordable))


def deal(codes: Integers, size: int, rng: np.random.Generator) -> list[Integers]:
    """Positions that each member gets, sorted, so that together they hold all rows.

    A member gets an equal share of every class, and more of those that would then have fewer rows than others, as far as there
    is room: all members hold the small classes, and each its own part of the large ones.

    Args:
        codes: (n,) classes. size: rows of a member at most, but for one of each class where there are very many classes.
    """
    counts = np.bincount(codes)
    members = -(-len(codes) // max(1, int(DEALT * size)))
    shares = -(-counts // members)
    common, above = 0, int(shares.max()) + 1  # rows of a class that members have room for; more would be no better balanced
    while above - common > 1:
        middle = (common + above) // 2
        fits = np.maximum(shares, np.minimum(counts, middle)).sum() <= size
        common, above = (middle, above) if fits else (common, middle)
    taken = np.maximum(shares, np.minimum(counts, common))
    orders = [rng.permutation(np.flatnonzero(codes == c)) for c in range(len(counts))]
    parts = []
    for member in range(members):
        starts = member * counts // members
        runs = (order.take(np.arange(s, s + n), mode="wrap") for order, s, n in zip(orders, starts, taken, strict=True) if n)
        parts.append(np.sort(np.concatenate(list(runs))))
    return parts


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


def capacity_for(rows: int) -> int:
    """Slots of an engine for so many rows, with room to grow."""
    return rows + max(SPARE, rows // 4)
