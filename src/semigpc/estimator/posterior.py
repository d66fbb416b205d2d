"""A posterior that no longer changes: the mean, variance, class and reasons of very many rows.

``Posterior`` is the way in. ``ScaledKernel`` computes kernel values in the units that make them cheapest, and ``ReasonSearch``
finds the labelled rows that weigh most for a query's class without looking at all of them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from semigpc.gp.engine import NotPositiveDefiniteError, check_tensor, full_precision
from semigpc.gp.kernels import RBF, Kernel, Laplace, square_norms
from semigpc.threads import suited_to

CHUNK = 2048  # rows whose kernel values are made by one product, and held at once; fewer if there are ...
CHUNK_CELLS = 2**22  # ... more kernel values than these, 16 MB
STRIP_CELLS = 2**20  # kernel values that elementwise passes stay with before they move on: 4 MB, as much as caches hold
SMALLEST_CHUNK = 256  # fewer rows make poor products
PRECISE = 4096  # labelled rows up to which the kernel matrix is factorised in float64
GROUP = 64  # labelled rows that share one bound
SPARE = 1  # groups that are looked into beyond the number of reasons
WIDER = 2  # times as many are looked into where these were not enough
RANGE = 40.0  # |h|^2 / (2 l^2) up to which e, and the square of L^-1 k / r, are at most exp(80): within float32
NEAR = 10.0  # the same, up to which 0 is as good an origin as the mean
SMALLEST = 1e-30  # likeness below is raised to this: products with denormal numbers are many times slower


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


class _Room(NamedTuple):
    """Memory of one chunk of m queries: kernel values (m, N rounded up), their maxima (m, groups), and L^-1 k (m, N)."""

    values: Tensor
    largest: Tensor
    solved: Tensor


class Posterior:
    """A GP posterior over N labelled rows that no longer changes, for scoring many rows.

        mu(h)  = k(h, h_Q) weights                    weights = K^-1 y_Q, corrected as the caller likes
        var(h) = k(h, h) - |L^-1 k(h_Q, h)|^2         L L^T = K = k(h_Q, h_Q) + sigma^2 I

    float32, in O(M N (D + C)) without the variance and O(M N (D + C + N)) with it. Memory beyond the answer is that of a few
    chunks of kernel values, 16 MB each for N up to 16 384, whatever M is.

    Kernel values are held in units, k = r g e (see ``ScaledKernel``), of which g is taken up by weights and L, and r by the
    answer; and labelled rows in an order that helps to find reasons (see ``ReasonSearch``).

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
            check_finite(name, square_norms(value))
        self._order = grouping_order(self.weights)
        self._scaled = ScaledKernel(self.features[self._order], kernel)
        self._weights = self.weights[self._order] * self._scaled.units.unsqueeze(1)
        self._search = ReasonSearch(self._weights)
        self._factor: Tensor | None = None

    def __len__(self) -> int:
        """N, labelled rows."""
        return len(self.features)

    def row_work(self, *, variance: bool) -> int:
        """Multiply-adds for one row: N (D + C), and N^2 for the variance."""
        return len(self) * (self.features.shape[1] + self.weights.shape[1] + (len(self) if variance else 0))

    @full_precision()
    @torch.no_grad()
    def score(
        self,
        queries: Tensor,
        *,
        bias: Tensor | None = None,
        variance: bool = True,
        top: int = 3,
        prepare: Callable[[Tensor], Tensor] | None = None,
    ) -> Scored:
        """Return mean, variance, class and the largest reasons of each row.

        Args:
            queries: (M, D) of any floating dtype, finite. top: reasons per row.
            bias: (C,) added to the mean to choose the class, and to nothing else.
            variance: whether it is wanted; where N is larger than D it is most of the work.
            prepare: applied to every chunk of queries first, while it is in the cache; (m, D) -> (m, D).
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
        chunk = min(CHUNK, max(SMALLEST_CHUNK, CHUNK_CELLS // max(1, len(self))), rows)
        room = _Room(  # used again and again: memory that is new must be cleared by the system first
            values=self._search.room(chunk),
            largest=self.weights.new_empty(chunk, self._search.groups),
            solved=self.weights.new_empty(chunk if variance else 0, len(self)),
        )
        for start in range(0, rows, max(1, chunk)):
            part = slice(start, start + chunk)
            points = queries[part].detach()
            with suited_to(len(points) * self.row_work(variance=variance)):  # by the chunk: equal chunks give equal bits
                self._score_chunk(points if prepare is None else prepare(points), answer.part(part), start, bias, room)
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

    def _score_chunk(self, chunk: Tensor, answer: Scored, start: int, bias: Tensor | None, room: _Room) -> None:
        """Fill in the answer to a chunk (m, D) of the queries, which begins at row ``start`` of them."""
        values, largest = room.values[: len(chunk)], room.largest[: len(chunk)]
        e = values[:, : len(self)]
        r = self._scaled.write(chunk, e, start)
        strip = max(64, STRIP_CELLS // max(1, len(self)))
        bounded = isinstance(self.kernel, RBF | Laplace) and answer.slots.shape[1] > 0  # others may be negative
        for part, mean, whole, maxima in zip(*(x.split(strip) for x in (e, answer.mean, values, largest)), strict=True):
            torch.mm(part if r is None else part.exp_(), self._weights, out=mean)
            if bounded:
                torch.amax(whole.view(*maxima.shape, GROUP), dim=2, out=maxima)
        if r is not None:
            answer.mean.mul_(r.unsqueeze(1))
        torch.argmax(answer.mean if bias is None else answer.mean + bias, dim=1, out=answer.classes)
        self._explain(values, largest if bounded else None, r, answer)
        if answer.variance is not None:
            prior, explained = self.kernel.diagonal(chunk.to(torch.float32)), self._explained(e, room.solved[: len(chunk)])
            torch.sub(prior, explained if r is None else explained.mul_(r.square_()), out=answer.variance).clamp_min_(0)

    def _explain(self, values: Tensor, largest: Tensor | None, r: Tensor | None, answer: Scored) -> None:
        """Fill in slots and reasons from kernel values (m, N rounded up) and, if none is negative, their maxima (m, groups)."""
        top = min(answer.slots.shape[1], len(self))
        if not top:
            return
        if largest is None:
            places, best = self._search.find_among_all(values, answer.classes, top)
        else:
            places, best = self._search.find(values, largest, answer.classes, top)
        answer.slots[:, :top] = self._order[places]
        answer.reasons[:, :top] = best if r is None else best.mul_(r.unsqueeze(1))

    def _explained(self, e: Tensor, out: Tensor) -> Tensor:
        """|L^-1 k|^2 / r^2, (m,), for e (m, N), by way of L^-1 k / r in ``out`` (m, N). O(m N^2)."""
        if not len(self):
            return e.new_zeros(len(e))
        if self._factor is None:
            with suited_to(len(self) ** 3):
                self._factor = self._factorise()
        torch.linalg.solve_triangular(self._factor, out.copy_(e).mT, upper=False, out=out.mT)
        return square_norms(out)

    def _factorise(self) -> Tensor:
        """L / g, (N, N). O(N^3).

        Made in float64 and kept in float32, the variance is within 1e-5 of the prior variance at condition numbers up to
        1e7. Made in float32, as for many rows to save memory, up to 1e6.
        """
        for dtype in (torch.float64,) if len(self) <= PRECISE else (torch.float32, torch.float64):
            features = self._scaled.points.to(dtype)
            K = self.kernel(features, features)
            K.diagonal().copy_(self.kernel.diagonal(features) + self.noise_std**2)
            factor, failed = torch.linalg.cholesky_ex(K)
            if not bool(failed):
                return factor.div_(self._scaled.units.unsqueeze(1)).to(torch.float32)  # type: ignore[no-any-return]
            del K, factor
        raise NotPositiveDefiniteError(
            f"the kernel matrix of {self.kernel} with noise_std={self.noise_std:g} is not positive definite. "
            "Raise noise_std, or do without the variance."
        )


class ScaledKernel:
    """k(h, h_i) = r(h) g_i e(h, h_i): e is evaluated, and whoever uses it takes g and r into account.

    For an RBF and points h_i not too far from an origin o, that is

        e = exp((h - o).(h_i - o) / l^2)      g_i = eta exp(-|h_i - o|^2 / (2 l^2))      r = exp(-|h - o|^2 / (2 l^2))

    so that one product and one exp is all that passes over e. The origin is 0 or, where distances would lose digits, the
    mean of the points. Otherwise e = k / g with g = 1, for other kernels and points; and r = 1, for these and queries that are
    too far away.

    Args:
        points: (N, D) h_i, float32.
    """

    def __init__(self, points: Tensor, kernel: Kernel) -> None:
        self.points, self.kernel = points, kernel
        self.units = points.new_ones(len(points))  # g, (N,)
        self.origin: Tensor | None = None
        self.columns: Tensor | None = None  # (h_i - o) / l^2, (N, D)
        if not isinstance(kernel, RBF) or not len(points):
            return
        self.half_precision = 0.5 / kernel.length_scale**2
        wide = points.double()
        if float(square_norms(wide).max()) * self.half_precision > NEAR:
            self.origin = wide.mean(dim=0)
            wide = wide - self.origin
        exponents = square_norms(wide) * self.half_precision
        if float(exponents.max()) <= RANGE:
            self.columns = (wide * 2 * self.half_precision).to(torch.float32)
            self.units = exponents.neg().exp().mul(kernel.output_scale).to(torch.float32)

    def write(self, queries: Tensor, out: Tensor, start: int = 0) -> Tensor | None:
        """Write log e to ``out`` (m, N) and answer with r (m,), or write e itself and answer None. O(m N D).

        Args:
            queries: (m, D) of any floating dtype, m > 0.
            start: number of the first of them, to name one that is not finite.
        """
        rows = queries
        if self.origin is not None:  # float64 loses nothing before the origin is taken off
            rows = queries - self.origin.to(torch.promote_types(queries.dtype, torch.float32))
        rows = rows.to(torch.float32)
        norms = square_norms(rows)
        farthest = float(norms.max())
        if not math.isfinite(farthest):
            check_finite("queries", norms, start)
        if self.columns is not None and farthest * self.half_precision <= RANGE:
            torch.mm(rows, self.columns.mT, out=out)
            return norms.mul_(-self.half_precision).exp_()
        out.copy_(self.kernel(queries.to(torch.float32), self.points))
        if isinstance(self.kernel, RBF):
            out.clamp_min_(SMALLEST).div_(self.units)
        return None


def check_finite(name: str, norms: Tensor, start: int = 0) -> None:
    """Refuse rows whose squared norms (m,) are not finite; the first of them is row ``start``."""
    sound = norms.isfinite()
    if not bool(sound.all()):
        row = start + int((~sound).nonzero()[0, 0])
        raise ValueError(f"{name} must be finite, and so must their squares in float32; row {row} is not.")


def grouping_order(weights: Tensor) -> Tensor:
    """An order (N,) of labelled rows that brings rows of one class and of similar weights together, for weights (N, C)."""
    size, own = weights.max(dim=1)
    order = size.argsort(stable=True)
    return order[own[order].argsort(stable=True)]


class _Groups(NamedTuple):
    """For every class the groups of its largest weights (C, looked), all weights there (C, looked * 64), and ``bounds`` with 0
    for these groups (C, groups).
    """

    groups: Tensor
    weights: Tensor
    others: Tensor


class ReasonSearch:
    """Finds the largest of e(h, h_i) a[i, c] over i for every query h and its class c, where no e is below 0.

    Labelled rows are taken in groups of 64. For a class, the few groups with its largest weights are looked into. No member of
    another group exceeds

        max_i e(h, h_i) * max_i a[i, c]      i in the group; a maximum below 0 counted as 0

    so where the best that were seen reach all of these bounds, they are the best of all: nothing is approximate. For the
    few queries of which that is not true more groups are looked into, and in the end all. In a good order of rows
    this takes one pass over the kernel values, for their maxima, where multiplying all of them takes three.

    Args:
        weights: (N, C) a, in ``grouping_order``.
    """

    def __init__(self, weights: Tensor) -> None:
        self.count, classes = weights.shape
        self.groups = -(-self.count // GROUP)
        self.by_class = weights.new_full((classes, self.groups * GROUP), -math.inf)  # padding wins nothing
        self.by_class[:, : self.count] = weights.mT
        self.bounds = self.by_class.view(classes, self.groups, GROUP).amax(dim=2).clamp_min_(0)  # (C, groups)
        self._views: dict[int, _Groups] = {}

    def room(self, rows: int) -> Tensor:
        """Memory for kernel values (rows, N rounded up to whole groups).

        What is beyond N must be left as it is: above 0, and below any kernel value.
        """
        values = self.by_class.new_empty(rows, self.by_class.shape[1])
        values[:, self.count :] = torch.finfo(torch.float32).tiny
        return values

    def find(
        self, values: Tensor, largest: Tensor, classes: Tensor, top: int, *, looked: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Positions (m, top) among the labelled rows, and e a there, largest first. O(m (N / 64 + 64 top)), almost always.

        Args:
            values: (m, N rounded up) e. largest: (m, groups) their maxima. classes: (m,). top: from 1 to N.
            looked: groups looked into at first; one more than ``top`` if left out.
        """
        looked = top + SPARE if looked is None else looked
        if self.groups <= looked:
            return self.find_among_all(values, classes, top)
        view = self._view(looked)
        groups = view.groups.index_select(0, classes)  # (m, looked)
        first = torch.arange(0, len(values) * self.groups, self.groups, device=values.device).unsqueeze(1)
        seen = values.view(-1, GROUP).index_select(0, (first + groups).view(-1)).view(len(values), -1)
        best, places = seen.mul_(view.weights.index_select(0, classes)).topk(top, dim=1)
        places = groups.gather(1, places // GROUP).mul_(GROUP).add_(places % GROUP)
        unseen = view.others.index_select(0, classes).mul_(largest).amax(dim=1)
        doubtful = (best[:, -1] < unseen).nonzero().squeeze(1)
        if len(doubtful):
            rest = self.find(values[doubtful], largest[doubtful], classes[doubtful], top, looked=WIDER * looked)
            places[doubtful], best[doubtful] = rest
        return places, best

    def find_among_all(self, values: Tensor, classes: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """The same from all rows, whatever the signs of e. O(m N)."""
        best, places = self.by_class.index_select(0, classes).mul_(values).topk(top, dim=1)
        return places, best

    def _view(self, looked: int) -> _Groups:
        if looked not in self._views:
            groups = self.bounds.topk(looked, dim=1).indices
            cells = self.by_class.view(len(self.by_class), self.groups, GROUP)
            weights = cells.gather(1, groups.unsqueeze(2).expand(-1, -1, GROUP)).flatten(1)
            self._views[looked] = _Groups(groups, weights, self.bounds.scatter(1, groups, 0))
        return self._views[looked]
