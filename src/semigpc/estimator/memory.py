"""The labelled rows of an estimator: one exact GP, or the average of several where one would be too
large.

Each member of an ensemble holds all rows of the small classes and a part of the large ones. With an
equal share of every class,
members would be worse on small classes than one GP over far fewer rows: on MNIST with a tail of 1 :
100, balanced accuracy fell from 0.952 to 0.939.
"""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.estimator.posterior import Posterior, Scored
from semigpc.gp import ExactGP, Kernel, LeftOut, exact
from semigpc.gp.certainty import class_scales
from semigpc.gp.scales import balanced_quota
from semigpc.io.threads import suited_to

Integers = NDArray[np.int64]
MEMBER_SHARE = 3 / 8  # of the rows that one exact GP may hold; smaller members were less accurate
DEALT = (
    5 / 6
)  # of a member's rows are its share of all rows; the rest is for small classes, which all members hold
SPARE = 256  # free slots beyond the rows, or a quarter of the rows if that is more
# times fewer points than rows: a factor then costs more, n^3 / 3, than it saves, about 2 n^2 per
# point
FEW = 6


class _Combined(NamedTuple):
    """The rows of all members as one sum of kernels.

    Attributes:
        places: for each member, the positions (n,) of its slots among the rows held, by ascending
            number.
        parts: for each member, what its slots add to ``weights`` (N, C). posterior: of all rows
            with these weights.
    """

    places: list[Tensor]
    parts: list[Tensor]
    weights: Tensor
    posterior: Posterior


class Memory:
    """Points with (soft) labels, identified by row numbers; a row can be replaced or removed at any
    time in O(N^2).

        mu(h) = 1/M sum_m k(h, h_m) K_m^-1 y_m          var(h) = 1/M sum_m var_m(h)

    with M = 1, an exact GP, as long as that fits. Otherwise the variance is an upper bound of the
    expected squared error of the average. Rows that are added later go to all members, so that a
    correction has the same effect as in one GP.

    Args:
        kernel: with output scale 1. noise_std: sigma.
        equalised: whether scores give equal evidence to every class, by sqrt(nbar / n_c).
        points: (n, D). targets: (n, C) rows that sum to 1.
        rows: (n,) distinct numbers. codes: (n,) given class, -1 where the label is soft.
        seed: for the assignment of rows to members.
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
        """Build new members with free slots. O(M n^3)."""
        fit = exact.exact_fits(
            capacity_for(len(rows)), matrices=2
        )  # K^-1, and a factor of K for the variance of many rows
        parts = [np.arange(len(rows))]
        if not fit.fits:
            affordable = int(
                exact.memory_budget() * DEALT / (4 * len(rows))
            )  # K^-1 takes 4 bytes for each of its cells
            size = max(2, min(int(MEMBER_SHARE * exact.EXACT_ROWS), affordable))
            parts = deal(targets.argmax(dim=1).numpy(), size, np.random.default_rng(self.seed))
        self._fit = fit
        self.members = [
            Member(self.kernel, self.noise_std, points[part], targets[part], rows[part])
            for part in parts
        ]
        self._changed()

    def _changed(self) -> None:
        self._cached_view: _Combined | None = None
        self._left_out: LeftOut | None = None

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def engine(self) -> Literal["exact", "ensemble"]:
        """Whether one GP holds all rows, or several."""
        return "exact" if len(self.members) == 1 else "ensemble"

    @property
    def reason(self) -> str:
        """Why that engine was chosen, in a sentence."""
        if self.engine == "exact":
            return f"one exact GP holds all {len(self)} labelled rows: {self._fit.reason}."
        return (
            f"{len(self.members)} exact GPs of up to {max(map(len, self.members))} rows share the {len(self)} labelled rows, "
            f"and their average decides, since one would need a slot for each and a quarter more: {self._fit.reason}."
        )

    # Contents -------------------------------------------------------------------------------------

    def given(self) -> tuple[Integers, Integers, Tensor]:
        """Return rows (n,) and codes (n,) of given labels, and their positions (n,) among the rows
        held.
        """
        rows = self.row_numbers()
        codes = np.array([self._codes[row] for row in rows.tolist()], dtype=np.int64)
        positions = np.flatnonzero(codes >= 0)
        return rows[positions], codes[positions], torch.from_numpy(positions)

    def row_numbers(self) -> Integers:
        """Return the numbers (N,) of the rows held, ascending."""
        return np.sort(np.fromiter(self._codes, dtype=np.int64, count=len(self)))

    def counts(self) -> Tensor:
        """Return how many labels of each class a member holds on average, (C,), soft ones by their
        shares; float64.
        """
        return torch.stack([member.engine.targets.sum(dim=0) for member in self.members]).mean(
            dim=0
        )

    def held_shares(self) -> Tensor:
        """Return the share (N,) of the members that hold each row: what it adds to :meth:`counts`."""
        return self._sum([torch.ones(len(member), 1) for member in self.members]).squeeze(1) / len(
            self.members
        )

    def scales(self) -> Tensor:
        """Return the factors (C,) of the scores: sqrt(nbar / n_c) if equalised, and 1 otherwise."""
        return class_scales(self.counts()) if self.equalised else torch.ones_like(self.counts())

    def _contents(self) -> tuple[Integers, Tensor, Tensor]:
        """Return row numbers (N,), points (N, D) and targets (N, C)."""
        engine = self.members[0].engine
        points = torch.zeros(len(self), engine.n_features)
        targets = torch.zeros(len(self), engine.n_classes, dtype=torch.float64)
        for member, places in zip(self.members, self._places(), strict=True):
            points[places] = member.engine.features[member.slots].float()
            targets[places] = member.engine.targets[member.slots]
        return self.row_numbers(), points, targets

    def _places(self) -> list[Tensor]:
        """Return for each member the positions (n,) of its slots among the rows held."""
        rows = self.row_numbers()
        return [
            torch.from_numpy(np.searchsorted(rows, member.rows[member.slots.numpy()]))
            for member in self.members
        ]

    @property
    def _view(self) -> _Combined:
        """Built when it is first needed after a change. O(N (D + C))."""
        if self._cached_view is None:
            _, points, _ = self._contents()
            places, counts = self._places(), self.counts()
            offset, scales = counts / counts.sum().clamp_min(1e-9), self.scales()
            solutions = [
                member.solution() for member in self.members
            ]  # K^-1 (y, 1), from which K^-1 (y - 1 offset^T)
            parts = [
                (each[:, :-1] - each[:, -1:] * offset) * scales / len(solutions)
                for each in solutions
            ]
            weights = self._sum(parts, places)
            posterior = Posterior(
                points, weights.float(), kernel=self.kernel, noise_std=self.noise_std
            )
            self._cached_view = _Combined(places, parts, weights, posterior)
        return self._cached_view

    def _sum(self, parts: list[Tensor], places: list[Tensor] | None = None) -> Tensor:
        """Return the sum (N, K), by row, of one part (n, K) per member; float64."""
        total = torch.zeros(len(self), parts[0].shape[1], dtype=torch.float64)
        for part, where in zip(parts, places or self._view.places, strict=True):
            total[where] += part
        return total

    # Queries --------------------------------------------------------------------------------------

    def score(
        self, points: Tensor, *, bias: Tensor | None = None, variance: bool = False, top: int = 0
    ) -> Scored:
        """Return scores, classes, reasons (places among the rows held) and optionally the variance
        of points (M, D), float32.

        O(M N (D + C)), and O(M sum_m n^2) more for the variance.
        """
        alone = len(self.members) == 1
        scored = self._view.posterior.score(points, bias=bias, variance=variance and alone, top=top)
        if not variance or alone:
            return scored
        return scored._replace(
            variance=torch.stack([member.variances(points) for member in self.members]).mean(dim=0)
        )

    def row_work(self, *, variance: bool) -> int:
        """Return the multiply-adds for one row: N (D + C), and n^2 of each member for the variance."""
        squares = sum(len(member) ** 2 for member in self.members) if variance else 0
        return self._view.posterior.row_work(variance=False) + squares

    def reasons(self, points: Tensor, codes: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each row adds to the score of a class, k(h, h_i) a[i, c], the largest first;
        float64. O(M N D).

        Args:
            points: (M, D). codes: (M,) the class to explain for each.

        Returns:
            Places (M, top) among the rows held, -1 where there are fewer; weights (M, top); scores
            (M,), the sums of all.
        """
        view = self._view
        with suited_to(len(points) * len(self) * points.shape[1]):
            weights = (
                self.kernel(points.double(), view.posterior.features.double())
                * view.weights[:, codes].mT
            )
        order = weights.argsort(dim=1, descending=True, stable=True)[:, :top]
        missing = top - order.shape[1]
        slots = torch.nn.functional.pad(order, (0, missing), value=-1)
        return (
            slots,
            torch.nn.functional.pad(weights.gather(1, order), (0, missing)),
            weights.sum(dim=1),
        )

    def differences(self, points: Tensor, codes: Tensor, slots: Tensor) -> Tensor:
        """Return how much lower each score (M,) would be had a row never been labelled, (M, top),
        all else equal.

            mu(h) - mu_-i(h) = 1/M sum_m [k(h, h_m) K_m^-1]_i a_i / (K_m^-1)_ii          over the members that hold the row

        O(M sum_m n (D + n)).

        Args:
            points: (M, D). codes: (M,). slots: (M, top) from :meth:`reasons`.
        """
        view, total = self._view, torch.zeros(len(points), len(self), dtype=torch.float64)
        for member, places, part in zip(self.members, view.places, view.parts, strict=True):
            with suited_to(len(points) * len(member) ** 2):
                shares = member.engine.label_weights(points.double())[:, member.slots]
            spread = member.left_out().variance + self.noise_std**2  # 1 / (K^-1)_ii
            total[:, places] += shares * part[:, codes].mT * spread
        return torch.where(slots >= 0, total.gather(1, slots.clamp_min(0)), 0.0)

    def covariance(self, points: Tensor, others: Tensor) -> Tensor:
        """Return the covariance (M, M') at points (M, D) and others (M', D), averaged over the
        members, as the variance is.
        """
        parts = []
        for member in self.members:
            with suited_to(len(others) * len(member) ** 2):
                parts.append(member.engine.covariance(points.double(), others.double()))
        return torch.stack(parts).mean(dim=0)

    def left_out(self) -> LeftOut:
        """Return the posterior at every row without its own label: means (N, C), (N,) for a target
        of ones, variance (N,).

        Means are exact, since members that do not hold a row do not depend on it:

            mu_-i(h_i) = mu(h_i) - 1/M sum_m [K_m^-1 y_m]_i var_m,-i(h_i)          over the members that hold the row

        O(n^2) with one member, and O(N^2 (D + C)) with several. The variance at a row is then that
        of the members that hold
        it, without it: the others hold as many similar rows, and theirs would take O(N n^2 M).
        """
        if self._left_out is not None:
            return self._left_out
        each = [member.left_out() for member in self.members]
        held = self.held_shares().unsqueeze(1) * len(each)
        variance = self._sum([one.variance.unsqueeze(1) for one in each]) / held
        if len(each) == 1:
            means = self._sum([torch.cat([one.mean, one.ones.unsqueeze(1)], dim=1) for one in each])
        else:
            parts = [member.solution() / len(each) for member in self.members]
            points = self._view.posterior.features
            whole = Posterior(
                points, self._sum(parts).float(), kernel=self.kernel, noise_std=self.noise_std
            )
            own = [part * one.variance.unsqueeze(1) for part, one in zip(parts, each, strict=True)]
            means = whole.score(points, variance=False, top=0).mean - self._sum(own)
        self._left_out = LeftOut(means[:, :-1], means[:, -1], variance.squeeze(1))
        return self._left_out

    def left_out_together(self, folds: Integers) -> LeftOut:
        """Return the posterior at every row without the labels of all rows of its fold (N,), for
        one exact GP. O(N^3 / F^2).

        Rows whose fold is below 0 are never left out, and have NaN.
        """
        (member,), rows = self.members, self.row_numbers()
        order = np.argsort(member.rows[member.slots.numpy()])
        slots, count = member.slots[torch.from_numpy(order)], len(rows)  # by ascending row number
        mean = torch.full((count, member.engine.n_classes), math.nan, dtype=torch.float64)
        ones, variance = mean[:, 0].clone(), mean[:, 0].clone()
        for fold in np.unique(folds[folds >= 0]):
            places = torch.from_numpy(np.flatnonzero(folds == fold))
            with suited_to(len(places) ** 3):
                mean[places], ones[places], variance[places] = member.engine.leave_block_out(
                    slots[places]
                )
        return LeftOut(mean, ones, variance)

    def left_out_reasons(
        self, rows: Integers, codes: Tensor, top: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the others add to the score of a class at rows that are held, had each never
        been labelled; float64.

            a_-i = K_-i^-1 y = a - K^-1[:, i] a_i / (K^-1)_ii        weight_j = k(h_i, h_j) (a_-i - 1_-i pi_-i)_jc s_-i,c

        with a = K^-1 y, 1_-i the same for targets of ones, pi and s the shares and scales of the
        labels without the row. Their sum is the score of
        :func:`semigpc.estimator.confidence.left_out_scores`. O(B sum_m n (D + n)).

        Args:
            rows: (B,) numbers of rows with a given label. codes: (B,) the class to explain for
                each.

        Returns:
            Places (B, top) among the rows held, -1 where there are fewer; weights (B, top); scores
            (B,), the sums of all.
        """
        numbers, points, _ = self._contents()
        places = torch.from_numpy(np.searchsorted(numbers, rows))
        given = torch.tensor([self._codes[row] for row in rows.tolist()], dtype=torch.int64)
        own = torch.nn.functional.one_hot(given, self.members[0].engine.n_classes).double()
        others = self.counts() - own * self.held_shares()[places].unsqueeze(1)  # (B, C)
        shares = (others / others.sum(dim=1, keepdim=True).clamp_min(1)).gather(
            1, codes.unsqueeze(1)
        )
        scales = class_scales(others).gather(1, codes.unsqueeze(1))
        total = torch.zeros(len(rows), len(self), dtype=torch.float64)
        for member, held in zip(self.members, self._view.places, strict=True):
            alpha, hit = (
                member.solution(),
                held.unsqueeze(0) == places.unsqueeze(1),
            )  # (n, C + 1), (B, n)
            targets, ones = (
                alpha[:, codes].mT.clone(),
                alpha[:, -1].expand(len(rows), -1).clone(),
            )  # (B, n) each
            has = hit.any(dim=1)
            if bool(has.any()):
                at = hit[has].double().argmax(dim=1)
                inverse = member.engine.inverse.rows(member.slots[at])[:, member.slots]
                inverse = inverse / inverse.gather(1, at.unsqueeze(1))
                for solution in (targets, ones):
                    solution[has] -= inverse * solution[has].gather(1, at.unsqueeze(1))
            total[:, held] += (targets - shares * ones) * scales / len(self.members)
        weights = total * self.kernel(points[places].double(), points.double())
        weights[torch.arange(len(rows)), places] = -math.inf  # not a reason for itself
        order = weights.argsort(dim=1, descending=True, stable=True)[:, : min(top, len(self) - 1)]
        missing = top - order.shape[1]
        scores = weights.masked_fill(weights.isneginf(), 0.0).sum(dim=1)
        slots = torch.nn.functional.pad(order, (0, missing), value=-1)
        return slots, torch.nn.functional.pad(weights.gather(1, order), (0, missing)), scores

    # Changes --------------------------------------------------------------------------------------

    def put(self, rows: Integers, points: Tensor, targets: Tensor, codes: Integers) -> None:
        """Add rows, or replace those with the same numbers, in all members. O(B sum_m n^2)."""
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
        """Remove rows; numbers that are not held are ignored. O(B n^2)."""
        for member in self.members:
            member.forget(rows)
        for row in rows.tolist():
            self._codes.pop(row, None)
        self._changed()

    def rename_classes(self, places: Tensor, n_classes: int) -> None:
        """Make class c class places[c] of ``n_classes``. O(M n^3): the engines are built anew."""
        rows, points, old = self._contents()
        targets = old.new_zeros(len(rows), n_classes)
        targets[:, places] = old
        self._codes = {
            row: int(places[code]) if code >= 0 else -1 for row, code in self._codes.items()
        }
        self._build(points, targets, rows)

    def recognise(self, points: Tensor, first: int) -> tuple[Integers, Integers]:
        """Return numbers for points (M, D): those of equal rows that are held, and new ones from
        ``first`` on. O(N D).

        Returns:
            Distinct numbers, and the positions of their points among the M: the last one of equal
                points.
        """
        rows, held, _ = self._contents()
        known = {
            point.tobytes(): row for row, point in zip(rows.tolist(), held.numpy(), strict=True)
        }
        numbers: dict[int, int] = {}
        for position, point in enumerate(points.numpy()):
            number = known.setdefault(point.tobytes(), first + len(numbers))
            numbers.pop(number, None)
            numbers[number] = position
        return np.array(list(numbers), dtype=np.int64), np.array(
            list(numbers.values()), dtype=np.int64
        )


class Member:
    """One exact GP, and which row is in which of its slots; a row can be replaced or removed in
    O(n^2).

    Args:
        kernel: with output scale 1. noise_std: sigma.
        points: (n, D). targets: (n, C). rows: (n,) distinct numbers.
    """

    def __init__(
        self, kernel: Kernel, noise_std: float, points: Tensor, targets: Tensor, rows: Integers
    ) -> None:
        capacity = capacity_for(len(rows))
        self.engine = ExactGP(
            capacity, points.shape[1], targets.shape[1], kernel=kernel, noise_std=noise_std
        )
        self.rows = np.full(capacity, -1, dtype=np.int64)
        self.rows[: len(rows)] = rows
        self._slot = {int(row): slot for slot, row in enumerate(rows)}
        if len(rows):
            with suited_to(len(rows) ** 3):
                self.engine.replace(torch.arange(len(rows)), points.double(), targets.double())

    def __len__(self) -> int:
        return len(self._slot)

    @property
    def slots(self) -> Tensor:
        """Slots in use, ascending."""
        return self.engine.occupied.nonzero().squeeze(1)

    def solution(self) -> Tensor:
        """Return K^-1 (y, 1) of the slots in use, (n, C + 1); float64. Targets sum to 1, and so
        K^-1 1 is a sum.
        """
        alpha = self.engine.alpha[self.slots]
        return torch.cat([alpha, alpha.sum(dim=1, keepdim=True)], dim=1)

    def has_room_for(self, rows: Integers) -> bool:
        """Return whether :meth:`put` has a slot for each of the rows."""
        return len(self._slot.keys() | set(rows.tolist())) <= self.engine.capacity

    def left_out(self) -> LeftOut:
        """Return the posterior at each row without its own label, in the order of the slots. O(n^2
        + n C).
        """
        with suited_to(len(self) ** 2):
            return self.engine.leave_one_out()

    def variances(self, points: Tensor) -> Tensor:
        """Return the posterior variance (M,) at points (M, D), float32. O(M n (D + n)).

        For few points it is computed from K^-1 in float64; for many from a Cholesky factor of K in
        float32, which is four times as fast. The factor is not kept, since it is as large as K^-1.
        """
        if FEW * len(points) < len(self):
            with suited_to(len(points) * len(self) ** 2):
                return self.engine.variance(points.double()).float()
        features, nothing = self.engine.features[self.slots].float(), torch.zeros(len(self), 1)
        factored = Posterior(
            features, nothing, kernel=self.engine.kernel, noise_std=self.engine.noise_std
        )
        variance = factored.score(points, top=0).variance
        assert variance is not None
        return variance

    def put(self, rows: Integers, points: Tensor, targets: Tensor) -> None:
        """Add rows, or replace those with the same numbers. O(B n^2)."""
        new = [row for row in rows.tolist() if row not in self._slot]
        free = (~self.engine.occupied).nonzero().squeeze(1)[: len(new)].tolist()
        known = self._slot | dict(zip(new, free, strict=True))
        slots = np.array([known[row] for row in rows.tolist()], dtype=np.int64)
        with suited_to(len(slots) * len(self) ** 2):
            self.engine.replace(torch.from_numpy(slots), points.double(), targets.double())
        self.rows[slots], self._slot = rows, known

    def forget(self, rows: Integers) -> None:
        """Remove rows; numbers that are not held are ignored. O(B n^2)."""
        slots = [self._slot.pop(row) for row in rows.tolist() if row in self._slot]
        if slots:
            with suited_to(len(slots) * len(self) ** 2):
                self.engine.remove(torch.tensor(slots))
            self.rows[slots] = -1


def deal(codes: Integers, size: int, rng: np.random.Generator) -> list[Integers]:
    """Return the sorted positions of the rows of each member; together they hold all rows.

    A member gets an equal share of every class, and more rows of those classes that would then have
    fewer than others, up to
    its size: all members hold the small classes, and each its own part of the large ones.

    Args:
        codes: (n,) classes. size: rows of a member at most, except that it holds at least one of
            each class.
    """
    counts = np.bincount(codes)
    members = -(-len(codes) // max(1, int(DEALT * size)))
    shares = -(-counts // members)
    quota = min(balanced_quota(counts, size, least=shares), int(shares.max()))
    taken = np.maximum(shares, np.minimum(counts, quota))
    orders = [rng.permutation(np.flatnonzero(codes == c)) for c in range(len(counts))]
    parts = []
    for member in range(members):
        starts = member * counts // members
        runs = (
            order.take(np.arange(s, s + n), mode="wrap")
            for order, s, n in zip(orders, starts, taken, strict=True)
            if n
        )
        parts.append(np.sort(np.concatenate(list(runs))))
    return parts


def row_numbers(rows: Any, count: int) -> Integers:
    """Return the numbers (count,) that identify rows: ``rows`` after a check, or 0 .. count - 1."""
    if rows is None:
        return np.arange(count)
    numbers = np.asarray(rows)
    if (
        numbers.shape != (count,)
        or numbers.dtype.kind not in "iu"
        or (count and int(numbers.min()) < 0)
    ):
        raise ValueError(
            f"rows must be {count} whole numbers, 0 or more, one for each row of X; got {numbers.dtype} {numbers.shape}."
        )
    if len(np.unique(numbers)) < count:
        raise ValueError("rows must be distinct: each number identifies one row.")
    return numbers.astype(np.int64)


def capacity_for(rows: int) -> int:
    """Return the slots of an engine for so many rows, with free ones for more."""
    return rows + max(SPARE, rows // 4)
