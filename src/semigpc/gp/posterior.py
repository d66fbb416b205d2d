"""A posterior that no longer changes: the mean, variance, class and reasons of very many rows."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from semigpc.gp.checks import check_tensor, full_precision
from semigpc.gp.kernels import RBF, Kernel, square_norms
from semigpc.gp.reasons import GROUP, ReasonSearch
from semigpc.gp.solver import NotPositiveDefiniteError

CHUNK = 1024  # rows whose kernel values are made by one product, and held at once
STRIP_CELLS = 2**19  # kernel values that elementwise passes stay with before they move on: 2 MB, as much as caches hold
PRECISE = 4096  # labelled rows up to which the kernel matrix is factorised in float64
SMALLEST_EXPONENT = -70.0  # exp of less comes near denormal numbers, with which products are many times slower


class Scored(NamedTuple):
    """What is known of M rows, given N labelled ones and C classes; float32.

    Args:
        mean: (M, C) k(h, h_Q) weights.
        variance: (M,) of the noise-free function, at least 0; None if it was not asked for.
        classes: (M,) int64, argmax of mean + bias.
        slots: (M, top) int64, the labelled rows that speak most for the class: the largest k(h, h_i) weights[i, class],
            largest first; -1 where there are fewer than ``top``.
        reasons: (M, top) those weights, 0 where the slot is -1. All N of them, most of which may be negative, sum to the mean
            of the class.
    """

    mean: Tensor
    variance: Tensor | None
    classes: Tensor
    slots: Tensor
    reasons: Tensor

    def part(self, rows: slice) -> "Scored":
        """Some of the rows, as views."""
        variance = None if self.variance is None else self.variance[rows]
        return Scored(self.mean[rows], variance, self.classes[rows], self.slots[rows], self.reasons[rows])


class Posterior:
    """A GP posterior over N labelled rows that no longer changes, for scoring many rows.

        mu(h)  = k(h, h_Q) weights                    weights = K^-1 y_Q, corrected as the caller likes
        var(h) = k(h, h) - |L^-1 k(h_Q, h)|^2         L L^T = K = k(h_Q, h_Q) + sigma^2 I

    float32, in O(M N (D + C)) without the variance and O(M N (D + C + N)) with it. Memory beyond the answer is that of one
    chunk of kernel values, 1024 x N, whatever M is.

    Args:
        features: (N, D) h_Q. weights: (N, C). Both are copied.
        kernel: k. noise_std: sigma; only the variance needs it.
    """

    def __init__(self, features: Tensor, weights: Tensor, *, kernel: Kernel, noise_std: float) -> None:
        check_tensor("features", features)
        check_tensor("weights", weights)
        if features.ndim != 2:
            raise ValueError(f"features must have shape (any, any); got {tuple(features.shape)}.")
        if weights.ndim != 2 or len(weights) != len(features) or not weights.shape[1]:
            raise ValueError(f"weights must have shape ({len(features)}, any), a row a feature; got {tuple(weights.shape)}.")
        self.kernel, self.noise_std = kernel, noise_std
        self.features = features.detach().to(torch.float32, copy=True).contiguous()
        self.weights = weights.detach().to(torch.float32, copy=True).contiguous()
        for name, value in (("features", self.features), ("weights", self.weights)):
            _check_finite(name, square_norms(value))
        self._search = ReasonSearch(self.weights)
        self._features, self._weights = (x[self._search.order] for x in (self.features, self.weights))
        self._rbf = _RBFExponents(self._features, kernel) if isinstance(kernel, RBF) else None
        self._factor: Tensor | None = None

    def __len__(self) -> int:
        """N, labelled rows."""
        return len(self.features)

    @full_precision()
    @torch.no_grad()
    def score(self, queries: Tensor, *, bias: Tensor | None = None, variance: bool = True, top: int = 3) -> Scored:
        """Mean, variance, class and the weightiest reasons of each row.

        Args:
            queries: (M, D) of any floating dtype, finite.
            bias: (C,) added to the mean to choose the class, and to nothing else.
            variance: whether it is wanted; where N is larger than D it is most of the work.
            top: reasons a row.
        """
        bias = self._check(queries, bias, top)
        rows = len(queries)
        answer = Scored(
            mean=self.weights.new_empty(rows, self.weights.shape[1]),
            variance=self.weights.new_empty(rows) if variance else None,
            classes=torch.empty(rows, dtype=torch.int64, device=queries.device),
            slots=torch.full((rows, top), -1, dtype=torch.int64, device=queries.device),
            reasons=self.weights.new_zeros(rows, top),
        )
        room = _Room(self._search, min(CHUNK, rows), queries.shape[1])
        for start in range(0, rows, CHUNK):
            part = slice(start, start + CHUNK)
            self._score_chunk(queries[part].detach(), answer.part(part), start, bias, room)
        return answer

    def _check(self, queries: Tensor, bias: Tensor | None, top: int) -> Tensor | None:
        """Refuse what has the wrong shape; answer with the bias in float32."""
        check_tensor("queries", queries)
        if queries.ndim != 2 or queries.shape[1] != self.features.shape[1]:
            raise ValueError(f"queries must have shape (any, {self.features.shape[1]}); got {tuple(queries.shape)}.")
        if not queries.is_floating_point():
            raise TypeError(f"queries must be floating point; got {queries.dtype}. Call .float() on them first.")
        if top < 0:
            raise ValueError(f"top must be at least 0; got {top}.")
        if bias is None:
            return None
        check_tensor("bias", bias)
        if bias.shape != self.weights.shape[1:]:
            raise ValueError(f"bias must have shape ({self.weights.shape[1]},), one a class; got {tuple(bias.shape)}.")
        return bias.detach().to(self.weights)

    def _score_chunk(self, chunk: Tensor, answer: Scored, start: int, bias: Tensor | None, room: "_Room") -> None:
        """Fill in the answer to a chunk (m, D) of the queries, which begins at row ``start`` of them."""
        values, largest = room.values[: len(chunk)], room.largest[: len(chunk)]
        k = values[:, : len(self)]
        if self._rbf is not None:
            points = self._rbf.write_exponents(chunk, room.rows[: len(chunk)], k, start)
        else:
            points = chunk.to(torch.float32)
            _check_finite("queries", square_norms(points), start)
            k.copy_(self.kernel(points, self._features))
        strip = max(64, STRIP_CELLS // max(1, len(self)))
        for k_strip, mean, whole, maxima in zip(*(x.split(strip) for x in (k, answer.mean, values, largest)), strict=True):
            torch.mm(k_strip if self._rbf is None else k_strip.exp_(), self._weights, out=mean)
            torch.amax(whole.view(*maxima.shape, GROUP), dim=2, out=maxima)
        torch.argmax(answer.mean if bias is None else answer.mean + bias, dim=1, out=answer.classes)
        self._explain(values, largest, answer)
        if answer.variance is not None:
            torch.sub(self.kernel.diagonal(points), self._explained(k), out=answer.variance).clamp_min_(0)

    def _explain(self, values: Tensor, largest: Tensor, answer: Scored) -> None:
        """Fill in slots and reasons from the kernel values (m, N rounded up) and their maxima (m, groups)."""
        top = min(answer.slots.shape[1], len(self))
        if not top:
            return
        if self._rbf is None:  # other kernels may be negative
            places, answer.reasons[:, :top] = self._search.find_among_all(values, answer.classes, top)
        else:
            places, answer.reasons[:, :top] = self._search.find(values, largest, answer.classes, top)
        answer.slots[:, :top] = self._search.order[places]

    def _explained(self, k: Tensor) -> Tensor:
        """|L^-1 k|^2, (m,), for k (m, N). O(m N^2)."""
        if not len(self):
            return k.new_zeros(len(k))
        if self._factor is None:
            self._factor = self._factorise()
        solved = k.contiguous()
        torch.linalg.solve_triangular(self._factor, solved.mT, upper=False, out=solved.mT)
        return square_norms(solved)

    def _factorise(self) -> Tensor:
        """L, (N, N). O(N^3).

        Made in float64 and kept in float32, the variance is within 1e-5 of the prior variance at condition numbers up to
        1e7. Made in float32, as for many rows to save memory, up to 1e6.
        """
        for dtype in (torch.float64,) if len(self) <= PRECISE else (torch.float32, torch.float64):
            features = self._features.to(dtype)
            K = self.kernel(features, features)
            K.diagonal().copy_(self.kernel.diagonal(features) + self.noise_std**2)
            factor, failed = torch.linalg.cholesky_ex(K)
            if not bool(failed):
                return factor.to(torch.float32)  # type: ignore[no-any-return]
            del K, factor
        raise NotPositiveDefiniteError(
            f"the kernel matrix of {self.kernel} with noise_std={self.noise_std:g} is not positive definite. "
            "Raise noise_std, or do without the variance."
        )


class _RBFExponents:
    """log k(h, h_i) = log eta - |h - h_i|^2 / (2 l^2) by one product, of which the norms and eta are two further columns.

    Taken about the mean of the features: distances do not depend on the origin, but their digits do.

    Args:
        features: (N, D).
    """

    def __init__(self, features: Tensor, kernel: RBF) -> None:
        wide = features.double()
        self.origin = wide.mean(dim=0) if len(wide) else wide.new_zeros(wide.shape[1])
        self.short_origin = self.origin.to(torch.float32)
        self.precision, self.largest = kernel.length_scale**-2, math.log(kernel.output_scale)
        wide = wide - self.origin
        norms = wide.square().sum(dim=1, keepdim=True)
        self.radius = float(norms.max()) ** 0.5 if len(wide) else 0.0
        ends = norms.new_full(norms.shape, -self.precision / 2), norms.mul(-self.precision / 2).add_(self.largest)
        self.columns = torch.cat([wide.mul_(self.precision), *ends], dim=1).to(torch.float32)  # (N, D + 2)

    def write_exponents(self, queries: Tensor, rows: Tensor, out: Tensor, start: int) -> Tensor:
        """Write the exponents (m, N) of queries (m, D) to ``out``; answer with the queries about the origin. O(m N D).

        Where a pair may be so far apart that its exponent matters to nobody, or that rounding may have made a distance
        negative, exponents are clamped.

        Args:
            rows: (m, D + 2) with 1 in the last column; the others are overwritten.
        """
        points = rows[:, :-2]
        torch.sub(queries, self.origin if queries.dtype == torch.float64 else self.short_origin, out=points)
        norms = square_norms(points)
        farthest = float(norms.max())
        if not math.isfinite(farthest):
            _check_finite("queries", norms, start)
        rows[:, -2] = norms
        torch.mm(rows, self.columns.mT, out=out)
        if (farthest**0.5 + self.radius) ** 2 * self.precision / 2 > -SMALLEST_EXPONENT:
            out.clamp_(SMALLEST_EXPONENT + self.largest, self.largest)
        return points


class _Room:
    """The memory of one chunk of queries, used again and again: what is not new need not be cleared by the system first.

    Args:
        chunk: queries. width: D.
    """

    def __init__(self, search: ReasonSearch, chunk: int, width: int) -> None:
        self.values, self.largest = search.room(chunk)
        self.rows = self.values.new_ones(chunk, width + 2)


def _check_finite(name: str, norms: Tensor, start: int = 0) -> None:
    """Refuse rows whose squared norms (m,) are not finite; the first of them is row ``start``."""
    sound = norms.isfinite()
    if not bool(sound.all()):
        row = start + int((~sound).nonzero()[0, 0])
        raise ValueError(f"{name} must be finite, and so must their squares in float32; row {row} is not.")
