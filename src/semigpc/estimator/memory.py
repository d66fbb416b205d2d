"""The labelled rows of an estimator, by row number, and the GP over them.

One exact GP, or the average of several where one would be too large
(:func:`semigpc.gp.ensemble.deal_rows` decides which of them holds which rows).
"""

import math
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from semigpc.estimator.posterior import Choose, Posterior, Scored
from semigpc.gp import EnsembleGP, ExactGP, Kernel, LeftOut, deal_rows, exact
from semigpc.gp.certainty import class_scales
from semigpc.gp.engine import Expansion
from semigpc.gp.ensemble import OWN_SHARE
from semigpc.gp.scales import left_out_block
from semigpc.io.threads import suited_to

Integers = NDArray[np.int64]
MEMBER_SHARE = 3 / 8  # of the rows that one exact GP may hold; smaller members were less accurate
SPARE_SLOTS = 256  # free slots beyond the rows, or a quarter of the rows if that is more
# Up to so many times fewer points than rows, the variance is computed from K^-1: a factor of K then
# costs more, n^3 / 3, than it saves, about 2 n^2 per point.
ROWS_PER_FACTORED_POINT = 6


class Member(NamedTuple):
    """One exact GP and the rows it holds.

    Attributes:
        engine: the GP. slots: (n,) in use, ascending.
        places: (n,) positions of the rows in these slots among all rows of the memory.
    """

    engine: ExactGP
    slots: Tensor
    places: Tensor

    def __len__(self) -> int:
        return len(self.slots)

    def solution(self) -> Tensor:
        """Return K^-1 (y, 1), (n, C + 1); float64. Targets sum to 1, and so K^-1 1 is a sum."""
        alpha = self.engine.alpha[self.slots]
        return torch.cat([alpha, alpha.sum(dim=1, keepdim=True)], dim=1)

    def left_out(self) -> LeftOut:
        """Return the posterior at each row without its own label. O(n^2 + n C)."""
        with suited_to(len(self) ** 2):
            return self.engine.leave_one_out()

    def variances(self, points: Tensor) -> Tensor:
        """Return the posterior variance (M,) at points (M, D), float32. O(M n (D + n)).

        For few points it is computed from K^-1 in float64; for many from a Cholesky factor of K in
        float32, which is four times as fast. The factor is not kept, since it is as large as K^-1.
        """
        if ROWS_PER_FACTORED_POINT * len(points) < len(self):
            with suited_to(len(points) * len(self) ** 2):
                return self.engine.variance(points.double()).float()
        factored = Posterior(
            self.engine.features[self.slots].float(),
            torch.zeros(len(self), 1),
            kernel=self.engine.kernel,
            noise_std=self.engine.noise_std,
        )
        variance = factored.score(points, top=0).variance
        assert variance is not None
        return variance


class _Combined(NamedTuple):
    """The rows of all members as one sum of kernels.

    Attributes:
        parts: for each member, what its slots add to ``weights`` (N, C).
        posterior: of all rows with these weights.
    """

    parts: list[Tensor]
    weights: Tensor
    posterior: Posterior


class Joined(NamedTuple):
    """Rows that joined: numbers (P,), points (P, D), and scores (P, C) without their own guess."""

    numbers: Integers
    points: Tensor
    scores: Tensor


class Memory:
    """Points with (soft) labels, identified by row numbers; replaced or removed in O(N^2).

        mu(h) = 1/M sum_m k(h, h_m) K_m^-1 y_m          var(h) = 1/M sum_m var_m(h)

    with M = 1, an exact GP, as long as that fits. Otherwise the variance is an upper bound of the
    expected squared error of the average. Rows that are added later go to all members, so that a
    correction has the same effect as in one GP.

    Args:
        kernel: with output scale 1. noise_std: sigma.
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
        seed: int = 0,
    ) -> None:
        self.kernel = kernel
        self.noise_std = noise_std
        self.seed = seed
        self._codes = dict(zip(rows.tolist(), codes.tolist(), strict=True))
        self._build(points, targets, rows)

    def _build(self, points: Tensor, targets: Tensor, rows: Integers) -> None:
        """Build a new engine with free slots. O(M n^3)."""
        # two matrices: K^-1, and a factor of K for the variance of many rows
        self._fit = exact.exact_fits(capacity_for(len(rows)), matrices=2)
        parts = [np.arange(len(rows))]
        if not self._fit.fits:
            # K^-1 takes 4 bytes for each of its cells
            affordable = int(exact.memory_budget() * OWN_SHARE / (4 * len(rows)))
            size = max(2, min(int(MEMBER_SHARE * exact.EXACT_ROWS), affordable))
            codes = targets.argmax(dim=1).numpy()
            parts = deal_rows(codes, size, np.random.default_rng(self.seed))
        self._capacity = capacity_for(max(map(len, parts)))  # slots of a member
        make = partial(
            ExactGP,
            n_features=points.shape[1],
            n_classes=targets.shape[1],
            kernel=self.kernel,
            noise_std=self.noise_std,
        )
        self._engine: ExactGP | EnsembleGP = make(self._capacity)
        if len(parts) > 1:
            self._engine = EnsembleGP(
                len(parts) * self._capacity,
                points.shape[1],
                targets.shape[1],
                make=make,
                members=len(parts),
                combine="mean",
                stripe=self._capacity,  # so that the slots of a member are consecutive
                spread=False,
            )
        self._slots = [{int(row): slot for slot, row in enumerate(rows[part])} for part in parts]
        self._changed()
        if len(rows):
            slots = [torch.arange(len(part)) + m * self._capacity for m, part in enumerate(parts)]
            held = torch.from_numpy(np.concatenate(parts))
            with suited_to(max(map(len, parts)) ** 3):
                self._engine.replace(
                    torch.cat(slots), points[held].double(), targets[held].double()
                )

    def _changed(self) -> None:
        self._cached_members: list[Member] | None = None
        self._cached_view: _Combined | None = None
        self._left_out: LeftOut | None = None
        self._joined_keys: NDArray[np.uint64] | None = None  # hashes of the points that joined
        self._joined_places = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def engine(self) -> Literal["exact", "ensemble"]:
        """Whether one GP holds all rows, or several."""
        return "exact" if len(self._slots) == 1 else "ensemble"

    @property
    def reason(self) -> str:
        """Why that engine was chosen, in a sentence."""
        if self.engine == "exact":
            return f"one exact GP holds all {len(self)} labelled rows: {self._fit.reason}."
        return (
            f"{len(self._slots)} exact GPs of up to {max(map(len, self._slots))} rows share the "
            f"{len(self)} labelled rows, and their average decides, since one would need a slot "
            f"for each and a quarter more: {self._fit.reason}."
        )

    # Contents -------------------------------------------------------------------------------------

    @property
    def members(self) -> list[Member]:
        """The GPs with the rows that each holds."""
        if self._cached_members is None:
            rows = self.row_numbers()
            engines: list[Any] = [self._engine]
            if isinstance(self._engine, EnsembleGP):
                engines = self._engine.engines
            self._cached_members = []
            for engine, slot_of in zip(engines, self._slots, strict=True):
                numbers = sorted(slot_of, key=slot_of.__getitem__)
                slots = torch.tensor([slot_of[row] for row in numbers], dtype=torch.int64)
                places = torch.from_numpy(np.searchsorted(rows, np.array(numbers, dtype=np.int64)))
                self._cached_members.append(Member(engine, slots, places))
        return self._cached_members

    def given(self) -> tuple[Integers, Integers, Tensor]:
        """Return rows (n,), codes (n,) and positions (n,) among the rows held of given labels."""
        rows = self.row_numbers()
        codes = np.array([self._codes[row] for row in rows.tolist()], dtype=np.int64)
        positions = np.flatnonzero(codes >= 0)
        return rows[positions], codes[positions], torch.from_numpy(positions)

    def row_numbers(self) -> Integers:
        """Return the numbers (N,) of the rows held, ascending."""
        return np.sort(np.fromiter(self._codes, dtype=np.int64, count=len(self)))

    def counts(self) -> Tensor:
        """Return the labels of each class that a member holds on average, (C,); float64.

        Soft labels count by their shares.
        """
        counts = [member.engine.targets.sum(dim=0) for member in self.members]
        return torch.stack(counts).mean(dim=0)

    def held_shares(self) -> Tensor:
        """Return the share (N,) of the members that hold each row: its part of :meth:`counts`."""
        held = self._sum([torch.ones(len(member), 1) for member in self.members])
        return held.squeeze(1) / len(self.members)

    def scales(self) -> Tensor:
        """Return the factors sqrt(nbar / n_c), (C,), that scores contain."""
        return class_scales(self.counts())

    def _contents(self) -> tuple[Integers, Tensor, Tensor]:
        """Return row numbers (N,), points (N, D) and targets (N, C)."""
        points = torch.zeros(len(self), self._engine.n_features)
        targets = torch.zeros(len(self), self._engine.n_classes, dtype=torch.float64)
        for engine, slots, places in self.members:
            points[places] = engine.features[slots].float()
            targets[places] = engine.targets[slots]
        return self.row_numbers(), points, targets

    @property
    def _view(self) -> _Combined:
        """Built when it is first needed after a change. O(N (D + C))."""
        if self._cached_view is None:
            _, points, _ = self._contents()
            counts = self.counts()
            offset = counts / counts.sum().clamp_min(1e-9)
            scales = self.scales()
            parts = []
            for member in self.members:
                solution = member.solution()  # K^-1 (y, 1), from which K^-1 (y - 1 offset^T)
                centred = solution[:, :-1] - solution[:, -1:] * offset
                parts.append(centred * scales / len(self.members))
            weights = self._sum(parts)
            posterior = Posterior(
                points, weights.float(), kernel=self.kernel, noise_std=self.noise_std
            )
            self._cached_view = _Combined(parts, weights, posterior)
        return self._cached_view

    def _sum(self, parts: list[Tensor]) -> Tensor:
        """Return the sum (N, K), by row, of one part (n, K) per member; float64."""
        total = torch.zeros(len(self), parts[0].shape[1], dtype=torch.float64)
        for part, member in zip(parts, self.members, strict=True):
            total[member.places] += part
        return total

    # Queries --------------------------------------------------------------------------------------

    def score(
        self, points: Tensor, *, choose: Choose | None = None, variance: bool = False, top: int = 0
    ) -> Scored:
        """Return scores, classes, reasons and optionally the variance of points (M, D); float32.

        Scores are k(h, h_Q) K^-1 (y - 1 pi^T), with pi the shares of the labels, times the
        :meth:`scales`. Reasons are places among the rows held. ``choose`` decides the class, see
        :meth:`Posterior.score`. O(M N (D + C)), and O(M sum_m n^2) more for the variance.
        """
        alone = len(self.members) == 1
        scored = self._view.posterior.score(
            points, choose=choose, variance=variance and alone, top=top
        )
        if not variance or alone:
            return scored
        variances = [member.variances(points) for member in self.members]
        return scored._replace(variance=torch.stack(variances).mean(dim=0))

    def score_unjoined(self, points: Tensor) -> Tensor:
        """Return scores (M, C) of points, those of rows that joined without their own soft labels.

        A soft label is a guess about its row, and would only confirm itself there. Rows are
        recognised by their points. O(M N (D + C)), and O(N^2) once after each change.
        """
        scores = self.score(points).mean
        joined, places = self._recognise_joined(points)
        if len(joined):
            scores[joined] = self._unjoined_scores(places).to(scores)
        return scores

    def _unjoined_scores(self, places: Tensor) -> Tensor:
        """Return scores (P, C) at rows that are held, without their own labels; float64."""
        counts = self.counts()
        left_out = self.left_out()
        ones = left_out.ones[places].unsqueeze(1)
        own = left_out.mean[places] - ones * (counts / counts.sum())
        return own * class_scales(counts)

    def joined(self) -> Joined:
        """Return the rows that joined, with :meth:`score_unjoined` of them. O(N^2)."""
        numbers, points, _ = self._contents()
        codes = np.array([self._codes[row] for row in numbers.tolist()])
        places = np.flatnonzero(codes < 0)
        held = torch.from_numpy(places)
        return Joined(numbers[places], points[held], self._unjoined_scores(held))

    def expansion(self) -> Expansion:
        """Return the scores as a sum of kernels over all rows held."""
        return Expansion(self._view.posterior.features, self._view.weights)

    def _recognise_joined(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions of points that joined, and their places among the rows held."""
        if self._joined_keys is None:
            _, held, _ = self._contents()
            codes = np.array([self._codes[row] for row in self.row_numbers().tolist()])
            self._joined_places = np.flatnonzero(codes < 0)
            keys = _row_keys(held[torch.from_numpy(self._joined_places)])
            order = np.argsort(keys)
            self._joined_places = self._joined_places[order]
            self._joined_keys = keys[order]
        if not len(self._joined_keys) or not len(points):
            return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        keys = _row_keys(points)
        found = np.searchsorted(self._joined_keys, keys).clip(0, len(self._joined_keys) - 1)
        known = np.flatnonzero(self._joined_keys[found] == keys)
        return torch.from_numpy(known), torch.from_numpy(self._joined_places[found[known]])

    def row_work(self, *, variance: bool) -> int:
        """Return multiply-adds for one row: N (D + C), and n^2 per member for the variance."""
        squares = sum(len(member) ** 2 for member in self.members) if variance else 0
        return self._view.posterior.row_work(variance=False) + squares

    def reasons(self, points: Tensor, codes: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each row adds to the score of a class, k(h, h_i) a[i, c]; float64. O(M N D).

        Args:
            points: (M, D). codes: (M,) the class to explain for each.

        Returns:
            Places (M, top) among the rows held, largest weight first, -1 where there are fewer;
            weights (M, top); scores (M,), the sums of all weights.
        """
        view = self._view
        with suited_to(len(points) * len(self) * points.shape[1]):
            k = self.kernel(points.double(), view.posterior.features.double())
            weights = k * view.weights[:, codes].mT
        return *_largest(weights, top), weights.sum(dim=1)

    def differences(self, points: Tensor, codes: Tensor, slots: Tensor) -> Tensor:
        """Return how much lower each score would be had a row never been labelled, (M, top).

            mu(h) - mu_-i(h) = 1/M sum_m [k(h, h_m) K_m^-1]_i a_i / (K_m^-1)_ii

        over the members that hold the row, all else equal. O(M sum_m n (D + n)).

        Args:
            points: (M, D). codes: (M,). slots: (M, top) from :meth:`reasons`.
        """
        total = torch.zeros(len(points), len(self), dtype=torch.float64)
        for member, part in zip(self.members, self._view.parts, strict=True):
            with suited_to(len(points) * len(member) ** 2):
                shares = member.engine.label_weights(points.double())[:, member.slots]
            spread = member.left_out().variance + self.noise_std**2  # 1 / (K^-1)_ii
            total[:, member.places] += shares * part[:, codes].mT * spread
        return torch.where(slots >= 0, total.gather(1, slots.clamp_min(0)), 0.0)

    def covariance(self, points: Tensor, others: Tensor) -> Tensor:
        """Return the covariance (M, M') at points (M, D) and others (M', D).

        Averaged over the members, as the variance is.
        """
        parts = []
        for member in self.members:
            with suited_to(len(others) * len(member) ** 2):
                parts.append(member.engine.covariance(points.double(), others.double()))
        return torch.stack(parts).mean(dim=0)

    # Rows without their own labels ----------------------------------------------------------------

    def left_out(self, groups: Integers | None = None) -> LeftOut:
        """Return the posterior at every row without its own label, or those of its group (N,).

        Means (N, C), (N,) for a target of ones, and variance (N,). Means are exact, since members
        that do not hold a row do not depend on it:

            mu_-i(h_i) = mu(h_i) - 1/M sum_m [K_m^-1 y_m]_i var_m,-i(h_i)

        over the members that hold the row. O(n^2) with one member, and O(N^2 (D + C)) with several.
        The variance at a row is then that of the members that hold it, without it: the others hold
        as many similar rows, and theirs would take O(N n^2 M). A group of g rows takes O(g^2 n)
        more per member.
        """
        if self._left_out is None:
            each = [member.left_out() for member in self.members]
            holders = self.held_shares().unsqueeze(1) * len(each)
            variance = self._sum([one.variance.unsqueeze(1) for one in each]) / holders
            if len(each) == 1:
                means = self._sum([torch.cat([each[0].mean, each[0].ones.unsqueeze(1)], dim=1)])
            else:
                means = self._left_out_means([one.variance for one in each])
            self._left_out = LeftOut(means[:, :-1], means[:, -1], variance.squeeze(1))
        if groups is None:
            return self._left_out
        shared = np.bincount(groups)[groups] > 1
        folds = np.where(shared, groups, -1)
        if len(self.members) == 1:
            together = self.left_out_together(folds)
        else:
            together = self._left_out_groups(self._left_out, folds)
        is_shared = torch.from_numpy(shared)
        mean = torch.where(is_shared.unsqueeze(1), together.mean, self._left_out.mean)
        ones = torch.where(is_shared, together.ones, self._left_out.ones)
        variance = torch.where(is_shared, together.variance, self._left_out.variance)
        return LeftOut(mean, ones, variance)

    def _left_out_means(self, variances: list[Tensor]) -> Tensor:
        """Return left-out means (N, C + 1) of several members with left-out variances (n,)."""
        parts = [member.solution() / len(self.members) for member in self.members]
        own = [part * each.unsqueeze(1) for part, each in zip(parts, variances, strict=True)]
        points = self._view.posterior.features
        whole = Posterior(
            points, self._sum(parts).float(), kernel=self.kernel, noise_std=self.noise_std
        )
        return whole.score(points, variance=False, top=0).mean - self._sum(own)

    def left_out_together(self, folds: Integers) -> LeftOut:
        """Return the posterior at every row without the labels of all rows of its fold (N,).

        For one exact GP. Rows whose fold is below 0 are never left out, and have NaN. O(N^3 / F^2).
        """
        (member,) = self.members
        slots = member.slots[member.places.argsort()]  # by ascending row number
        mean = torch.full((len(self), self._engine.n_classes), math.nan, dtype=torch.float64)
        ones = mean[:, 0].clone()
        variance = ones.clone()
        for fold in np.unique(folds[folds >= 0]):
            places = torch.from_numpy(np.flatnonzero(folds == fold))
            with suited_to(len(places) ** 3):
                left_out = member.engine.leave_block_out(slots[places])
            mean[places], ones[places], variance[places] = left_out
        return LeftOut(mean, ones, variance)

    def _left_out_groups(self, alone: LeftOut, folds: Integers) -> LeftOut:
        """Return the same as :meth:`left_out_together` for several members, by closed forms.

            mu_-F(h_F) = mu(h_F) - 1/M sum_m k(h_F, h_m) P_m[:, F] (P_m,FF)^-1 a_m,F

        with P_m = K_m^-1, over the rows of the fold that a member holds.

        Args:
            alone: each row without its own label. folds: (N,), small ones; -1 for rows to leave.
        """
        _, points, _ = self._contents()
        means = torch.cat([alone.mean, alone.ones.unsqueeze(1)], dim=1)
        means += self._sum(
            [
                member.solution() / len(self.members) * member.left_out().variance.unsqueeze(1)
                for member in self.members
            ]
        )
        variances = []
        for member in self.members:
            own = folds[member.places.numpy()]
            variance = member.left_out().variance.clone()
            alpha = member.solution() / len(self.members)
            for fold in np.unique(own[own >= 0]):
                inside = torch.from_numpy(np.flatnonzero(own == fold))
                rows = torch.from_numpy(np.flatnonzero(folds == fold))
                P = member.engine.inverse.rows(member.slots[inside])[:, member.slots]
                residuals, spread = left_out_block(alpha[inside], P[:, inside])
                variance[inside] = (spread - self.noise_std**2).clamp_min(0)
                k = self.kernel(points[rows].double(), member.engine.features[member.slots])
                means[rows] -= k @ P.mT @ residuals
            variances.append(variance.unsqueeze(1))
        holders = self.held_shares() * len(self.members)
        return LeftOut(means[:, :-1], means[:, -1], self._sum(variances).squeeze(1) / holders)

    def left_out_reasons(
        self, rows: Integers, codes: Tensor, top: int, groups: Integers
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what other rows add to the score of a class at rows that are held; float64.

            weight_j = k(h_i, h_j) (a_-i - 1_-i pi_-i)_jc s_-i,c

        as if row i, and the others of its group, had never been labelled: a_-i = K_-i^-1 y, 1_-i
        the same for targets of ones, pi and s the shares and scales of the labels without these
        rows. Their sum is the score of :func:`semigpc.estimator.answers.left_out_scores`.
        O(B sum_m n (D + n)), for few rows.

        Args:
            rows: (B,) numbers of rows with a given label. codes: (B,) the class to explain for
                each.
            groups: (N,) of all rows held.

        Returns:
            Places (B, top) among the rows held, largest weight first, -1 where there are fewer;
            weights (B, top); scores (B,), the sums of all weights.
        """
        numbers, points, targets = self._contents()
        places = np.searchsorted(numbers, rows)
        left = torch.from_numpy(groups[places, None] == groups)  # (B, N) rows left out
        removed = left.double() @ (targets * self.held_shares().unsqueeze(1))
        others = self.counts() - removed  # (B, C) labels without these rows
        shares = others / others.sum(dim=1, keepdim=True).clamp_min(1)
        scales = class_scales(others)
        weights = self.kernel(points[torch.from_numpy(places)].double(), points.double())
        for i, code in enumerate(codes.tolist()):
            alpha = self._left_out_solution(left[i], code)
            weights[i] *= (alpha[:, 0] - shares[i, code] * alpha[:, 1]) * scales[i, code]
        scores = weights.masked_fill(left, 0).sum(dim=1)
        # Neither a row nor a copy of it is a reason for it.
        listed, largest = _largest(weights.masked_fill(left, -math.inf), top)
        is_other = largest > -math.inf
        return listed.where(is_other, -1), largest.where(is_other, 0.0), scores

    def _left_out_solution(self, left: Tensor, code: int) -> Tensor:
        """Return a_-F of a class and of a target of ones, (N, 2), without the rows F ``left`` (N,).

            a_-F = a - K^-1[:, F] (K^-1_FF)^-1 a_F

        averaged over the members; those that hold none of these rows keep their a.
        """
        parts = []
        for member in self.members:
            alpha = member.solution()[:, [code, -1]]
            held = left[member.places].nonzero().squeeze(1)
            if len(held):
                P = member.engine.inverse.rows(member.slots[held])[:, member.slots]
                residuals, _ = left_out_block(alpha[held], P[:, held])
                alpha = alpha - P.mT @ residuals
            parts.append(alpha / len(self.members))
        return self._sum(parts)

    # Changes --------------------------------------------------------------------------------------

    def put(self, rows: Integers, points: Tensor, targets: Tensor, codes: Integers) -> None:
        """Add rows, or replace those with the same numbers, in all members. O(B sum_m n^2)."""
        if not len(rows):
            return
        numbers = rows.tolist()
        assigned = [self._with_slots_for(numbers, slot_of) for slot_of in self._slots]
        if all(len(slot_of) <= self._capacity for slot_of in assigned):
            repeats = (len(assigned), 1)
            with suited_to(len(rows) * max(map(len, assigned)) ** 2):
                self._engine.replace(
                    self._engine_slots([[each[row] for row in numbers] for each in assigned]),
                    points.double().repeat(repeats),
                    targets.double().repeat(repeats),
                )
            self._slots = assigned
        else:
            held, old_points, old_targets = self._contents()
            stay = ~np.isin(held, rows)
            kept = torch.from_numpy(stay)
            self._build(
                torch.cat([old_points[kept], points.float()]),
                torch.cat([old_targets[kept], targets.double()]),
                np.concatenate([held[stay], rows]),
            )
        self._codes.update(zip(numbers, codes.tolist(), strict=True))
        self._changed()

    def _with_slots_for(self, rows: list[int], slot_of: dict[int, int]) -> dict[int, int]:
        """Return the slots of a member's rows, with free ones for new rows; too many if full."""
        free = sorted(set(range(self._capacity + len(rows))).difference(slot_of.values()))
        new = [row for row in rows if row not in slot_of]
        return slot_of | dict(zip(new, free, strict=False))

    def _engine_slots(self, slots: list[list[int]]) -> Tensor:
        """Return slots of the engine for some slots of each member."""
        return torch.tensor(
            [slot + m * self._capacity for m, each in enumerate(slots) for slot in each],
            dtype=torch.int64,
        )

    def forget(self, rows: Integers) -> None:
        """Remove rows; numbers that are not held are ignored. O(B n^2)."""
        gone = set(rows.tolist())
        slots = [[slot for row, slot in each.items() if row in gone] for each in self._slots]
        with suited_to(len(gone) * max(map(len, self._slots)) ** 2):
            self._engine.remove(self._engine_slots(slots))
        self._slots = [
            {row: slot for row, slot in each.items() if row not in gone} for each in self._slots
        ]
        self._codes = {row: code for row, code in self._codes.items() if row not in gone}
        self._changed()

    def rename_classes(self, places: Tensor, n_classes: int) -> None:
        """Make class c class places[c] of ``n_classes``: O(N C), and O(M n^3) for an ensemble."""
        self._codes = {
            row: int(places[code]) if code >= 0 else -1 for row, code in self._codes.items()
        }
        if isinstance(self._engine, ExactGP):
            self._engine.rename_classes(places, n_classes)
            self._changed()
            return
        rows, points, old = self._contents()
        targets = old.new_zeros(len(rows), n_classes)
        targets[:, places] = old
        self._build(points, targets, rows)

    def recognise(self, points: Tensor, first: int) -> tuple[Integers, Integers]:
        """Return numbers for points (M, D): of equal rows held, or new ones from ``first`` on.

        O(N D).

        Returns:
            Distinct numbers, and the positions of their points among the M: the last one of equal
            points.
        """
        rows, held, _ = self._contents()
        known = {
            point.tobytes(): row for row, point in zip(rows.tolist(), held.numpy(), strict=True)
        }
        positions: dict[int, int] = {}
        for position, point in enumerate(points.numpy()):
            number = known.setdefault(point.tobytes(), first + len(positions))
            positions.pop(number, None)  # so that it comes last
            positions[number] = position
        return np.array(list(positions), dtype=np.int64), np.array(
            list(positions.values()), dtype=np.int64
        )


def _largest(weights: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return places (M, top) of the largest of weights (M, N), and these; -1 and 0 if fewer."""
    order = weights.argsort(dim=1, descending=True, stable=True)[:, :top]
    missing = top - order.shape[1]
    return pad(order, (0, missing), value=-1), pad(weights.gather(1, order), (0, missing))


def _row_keys(points: Tensor) -> NDArray[np.uint64]:
    """Return a hash (M,) of the bits of each row of points (M, D) in float32. O(M D)."""
    rows = points.float().numpy()
    if rows.shape[1] % 2:
        rows = np.pad(rows, ((0, 0), (0, 1)))
    words = np.ascontiguousarray(rows).view(np.uint64)
    factors = np.random.default_rng(0).integers(2**63, size=words.shape[1], dtype=np.uint64)
    return np.asarray(np.einsum("ij,j->i", words, 2 * factors + np.uint64(1)))  # modulo 2^64


def row_numbers(rows: Any, count: int) -> Integers:
    """Return the numbers (count,) that identify rows: ``rows`` after a check, or 0 .. count - 1."""
    if rows is None:
        return np.arange(count)
    numbers = np.asarray(rows)
    is_integer = numbers.shape == (count,) and numbers.dtype.kind in "iu"
    if not is_integer or (count and int(numbers.min()) < 0):
        raise ValueError(
            f"rows must be {count} whole numbers, 0 or more, one for each row of X; "
            f"got {numbers.dtype} {numbers.shape}."
        )
    if len(np.unique(numbers)) < count:
        raise ValueError("rows must be distinct: each number identifies one row.")
    return numbers.astype(np.int64)


def capacity_for(rows: int) -> int:
    """Return the slots of an engine for so many rows, with free ones for more."""
    return rows + max(SPARE_SLOTS, rows // 4)
