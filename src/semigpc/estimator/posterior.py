"""A posterior that no longer changes: mean, variance, class and reasons of very many rows.

``Posterior`` is the entry point. ``ScaledKernel`` computes kernel values in the units that make
them cheapest, and ``ReasonSearch`` finds the labelled rows of largest weight for a query's class
without comparing all of them.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semigpc.gp.engine import NotPositiveDefiniteError, full_precision
from semigpc.gp.kernels import RBF, Kernel, Laplace, square_norms
from semigpc.io.threads import suited_to, using

PRODUCT_ROWS = 2048  # rows whose kernel values are computed by one product and held at once ...
PRODUCT_CELLS = 2**22  # ... fewer if there are more kernel values than these, 16 MB
STRIP_CELLS = 2**20  # kernel values of one elementwise pass: 4 MB, as much as caches hold
FEWEST_PRODUCT_ROWS = 256  # smaller matrix products are slow
FLOAT64_ROWS = 4096  # labelled rows up to which the kernel matrix is factorised in float64
GROUP = 64  # labelled rows that share one bound
SPARE_GROUPS = 1  # searched beyond the number of reasons
# |h|^2 / (2 l^2) up to which e, and the square of L^-1 k / r, are at most exp(80): within float32.
LARGEST_EXPONENT = 40.0
NEAR_EXPONENT = 10.0  # the same, up to which 0 is as good an origin as the mean
# Smaller kernel values are raised to this: products with denormal numbers are many times slower.
SMALLEST_VALUE = 1e-30


# Decides the class of rows from their means (m, C) and the number of the first of them.
Choose = Callable[[Tensor, int], Tensor]


class Scored(NamedTuple):
    """The posterior at M rows, given N labelled ones and C classes; float32.

    Args:
        mean: (M, C) k(h, h_Q) weights.
        variance: (M,) of the noise-free function, at least 0; None if it was not requested.
        classes: (M,) int64, argmax of the mean unless something else decides.
        slots: (M, top) int64, the labelled rows of largest k(h, h_i) weights[i, class], largest
            first; -1 where there are fewer than ``top``.
        reasons: (M, top) those weights, 0 where the slot is -1. All N of them, most of which may be
            negative, sum to the mean of the class.
    """

    mean: Tensor
    variance: Tensor | None
    classes: Tensor
    slots: Tensor
    reasons: Tensor


class Posterior:
    """A GP posterior over N labelled rows that no longer changes, for scoring many rows.

        mu(h)  = k(h, h_Q) weights                    weights = K^-1 y_Q, or corrected ones
        var(h) = k(h, h) - |L^-1 k(h_Q, h)|^2         L L^T = K = k(h_Q, h_Q) + sigma^2 I

    float32, in O(M N (D + C)) without the variance and O(M N (D + C + N)) with it. Memory beyond
    the result is that of a few chunks of kernel values for each thread, 16 MB each for N up to 16
    384, whatever M is.

    Kernel values are held as k = r g e (see ``ScaledKernel``), where weights and L contain g, and r
    is multiplied at the end. Labelled rows are kept in an order that makes reasons easy to find
    (see ``ReasonSearch``).

    Args:
        features: (N, D) h_Q. weights: (N, C). Both are copied.
        kernel: k. noise_std: sigma; only the variance needs it.
    """

    def __init__(
        self, features: Tensor, weights: Tensor, *, kernel: Kernel, noise_std: float
    ) -> None:
        self.kernel = kernel
        self.noise_std = noise_std
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
        return len(self.features)

    def row_work(self, *, variance: bool) -> int:
        """Return the multiply-adds for one row: N (D + C), and N^2 for the variance."""
        return len(self) * (
            self.features.shape[1] + self.weights.shape[1] + (len(self) if variance else 0)
        )

    @full_precision()
    @torch.no_grad()
    def score(
        self,
        queries: Tensor,
        *,
        choose: Choose | None = None,
        variance: bool = True,
        top: int = 3,
    ) -> Scored:
        """Return mean, variance, class and the largest reasons of each row.

        Args:
            queries: (M, D) of any floating dtype, finite. top: reasons per row.
            choose: decides the class whose reasons are listed; it is called with means (m, C) of
                some rows and the number of the first of them, from several threads.
            variance: whether to compute it; where N is larger than D it is most of the work.
        """
        if top < 0:
            raise ValueError(f"top must be at least 0; got {top}.")
        rows = len(queries)
        result = Scored(
            mean=self.weights.new_empty(rows, self.weights.shape[1]),
            variance=self.weights.new_empty(rows) if variance else None,
            classes=torch.empty(rows, dtype=torch.int64, device=queries.device),
            slots=torch.full((rows, top), -1, dtype=torch.int64, device=queries.device),
            reasons=self.weights.new_zeros(rows, top),
        )
        chunk = max(
            1, min(PRODUCT_ROWS, max(FEWEST_PRODUCT_ROWS, PRODUCT_CELLS // max(1, len(self))), rows)
        )
        starts = iter(range(0, rows, chunk))
        if variance and len(self) and self._factor is None:
            with suited_to(len(self) ** 3):
                self._factor = self._factorise()
        with suited_to(rows * self.row_work(variance=variance)):
            threads = torch.get_num_threads()
            if threads == 1 or rows <= chunk * (threads - 1):
                self._score_chunks(queries, starts, chunk, result, choose)
            else:
                # Each thread has chunks of its own: threads that share one wait at every operation.
                with using(1), ThreadPoolExecutor(threads) as pool:  # new threads inherit the 1
                    work = [
                        pool.submit(self._score_chunks, queries, starts, chunk, result, choose)
                        for _ in range(threads)
                    ]
                for part in work:
                    part.result()  # raises what was raised there
        return result

    @torch.no_grad()  # again, since other threads do not inherit it
    def _score_chunks(
        self,
        queries: Tensor,
        starts: Iterator[int],
        chunk: int,
        result: Scored,
        choose: Choose | None,
    ) -> None:
        """Fill in the result for chunks of queries; threads share the iterator ``starts``."""
        rows = min(chunk, len(queries))
        # For kernel values, their maxima and L^-1 k; allocated once, as new memory is cleared.
        space = (
            self._search.workspace(rows),
            self.weights.new_empty(rows, self._search.groups),
            self.weights.new_empty(0 if result.variance is None else rows, len(self)),
        )
        for start in starts:
            points = queries[start : start + chunk].detach()
            part: list[Any] = [
                None if column is None else column[start : start + chunk] for column in result
            ]
            self._score_chunk(
                points, Scored(*part), start, choose, *(memory[: len(points)] for memory in space)
            )

    def _score_chunk(
        self,
        chunk: Tensor,
        result: Scored,
        start: int,
        choose: Choose | None,
        values: Tensor,
        largest: Tensor,
        solved: Tensor,
    ) -> None:
        """Fill in the result for a chunk (m, D) that begins at row ``start`` of the queries."""
        e = values[:, : len(self)]
        r = self._scaled.write(chunk, e, start)
        strip = max(64, STRIP_CELLS // max(1, len(self)))
        top = min(result.slots.shape[1], len(self))
        bounded = isinstance(self.kernel, RBF | Laplace) and top > 0  # others may be negative
        for part, mean, whole, maxima in zip(
            *(x.split(strip) for x in (e, result.mean, values, largest)), strict=True
        ):
            torch.mm(part if r is None else part.exp_(), self._weights, out=mean)
            if bounded:
                torch.amax(whole.view(*maxima.shape, GROUP), dim=2, out=maxima)
        if r is not None:
            result.mean.mul_(r.unsqueeze(1))
        if choose is None:
            torch.argmax(result.mean, dim=1, out=result.classes)
        else:
            result.classes.copy_(choose(result.mean, start))
        if top:
            if bounded:
                places, best = self._search.find(values, largest, result.classes, top)
            else:
                places, best = self._search.find_among_all(values, result.classes, top)
            result.slots[:, :top] = self._order[places]
            result.reasons[:, :top] = best if r is None else best.mul_(r.unsqueeze(1))
        if result.variance is not None:
            prior = self.kernel.diagonal(chunk.to(torch.float32))
            explained = self._explained(e, solved)
            if r is not None:
                explained.mul_(r.square_())
            torch.sub(prior, explained, out=result.variance).clamp_min_(0)

    def _explained(self, e: Tensor, out: Tensor) -> Tensor:
        """Return |L^-1 k|^2 / r^2, (m,), for e (m, N). O(m N^2).

        ``out`` (m, N) receives L^-1 k / r.
        """
        if self._factor is None:  # no labelled rows
            return e.new_zeros(len(e))
        torch.linalg.solve_triangular(self._factor, out.copy_(e).mT, upper=False, out=out.mT)
        return square_norms(out)

    def _factorise(self) -> Tensor:
        """Return L / g, (N, N). O(N^3).

        With a factor computed in float64 and kept in float32, the error of the variance is below
        1e-5 of the prior variance at condition numbers up to 1e7; with one computed in float32, as
        for many rows to save memory, up to 1e6.
        """
        for dtype in (
            (torch.float64,) if len(self) <= FLOAT64_ROWS else (torch.float32, torch.float64)
        ):
            features = self._scaled.points.to(dtype)
            K = self.kernel(features, features)
            K.diagonal().copy_(self.kernel.diagonal(features) + self.noise_std**2)
            factor, failed = torch.linalg.cholesky_ex(K)
            if not bool(failed):
                return factor.div_(self._scaled.units.unsqueeze(1)).to(torch.float32)  # type: ignore[no-any-return]
            del K, factor
        raise NotPositiveDefiniteError(
            f"the kernel matrix of {self.kernel} with noise_std={self.noise_std:g} is not "
            "positive definite. Raise noise_std, or do without the variance."
        )


class ScaledKernel:
    """k(h, h_i) = r(h) g_i e(h, h_i): only e is evaluated here; the caller multiplies by g and r.

    For an RBF and points h_i not too far from an origin o, that is

        e   = exp((h - o).(h_i - o) / l^2)
        g_i = eta exp(-|h_i - o|^2 / (2 l^2))
        r   = exp(-|h - o|^2 / (2 l^2))

    so that e takes one matrix product and one exp. The origin is 0 or, where distances would lose
    digits, the mean of the points. For other kernels and points, e = k and g = 1. For these, and
    for queries that are too far away, r = 1.

    Args:
        points: (N, D) h_i, float32.
    """

    def __init__(self, points: Tensor, kernel: Kernel) -> None:
        self.points = points
        self.kernel = kernel
        self.units = points.new_ones(len(points))  # g, (N,)
        self.origin: Tensor | None = None
        self.columns: Tensor | None = None  # (h_i - o) / l^2, (N, D)
        if not isinstance(kernel, RBF) or not len(points):
            return
        self.half_precision = 0.5 / kernel.length_scale**2
        wide = points.double()
        if float(square_norms(wide).max()) * self.half_precision > NEAR_EXPONENT:
            self.origin = wide.mean(dim=0)
            wide = wide - self.origin
        exponents = square_norms(wide) * self.half_precision
        if float(exponents.max()) <= LARGEST_EXPONENT:
            self.columns = (wide * 2 * self.half_precision).to(torch.float32)
            self.units = exponents.neg().exp().mul(kernel.output_scale).to(torch.float32)

    def write(self, queries: Tensor, out: Tensor, start: int = 0) -> Tensor | None:
        """Write log e to ``out`` (m, N) and return r (m,), or write e and return None. O(m N D).

        Args:
            queries: (m, D) of any floating dtype, m > 0.
            start: number of the first of them, to name one that is not finite.
        """
        rows = queries
        if self.origin is not None:  # subtracted before rounding to float32
            rows = queries - self.origin.to(torch.promote_types(queries.dtype, torch.float32))
        rows = rows.to(torch.float32)
        norms = square_norms(rows)
        farthest = float(norms.max())
        if not math.isfinite(farthest):
            check_finite("queries", norms, start)
        if self.columns is not None and farthest * self.half_precision <= LARGEST_EXPONENT:
            torch.mm(rows, self.columns.mT, out=out)
            return norms.mul_(-self.half_precision).exp_()
        out.copy_(self.kernel(queries.to(torch.float32), self.points))
        if isinstance(self.kernel, RBF):
            out.clamp_min_(SMALLEST_VALUE).div_(self.units)
        return None


def check_finite(name: str, norms: Tensor, start: int = 0) -> None:
    """Raise if one of the squared norms (m,), of rows from ``start`` on, is not finite."""
    sound = norms.isfinite()
    if not bool(sound.all()):
        row = start + int((~sound).nonzero()[0, 0])
        raise ValueError(
            f"{name} must be finite, and so must their squares in float32; row {row} is not."
        )


def grouping_order(weights: Tensor) -> Tensor:
    """Return an order (N,) in which rows of one class and similar weights (N, C) are adjacent."""
    size, own = weights.max(dim=1)
    order = size.argsort(stable=True)
    return order[own[order].argsort(stable=True)]


class ReasonSearch:
    """Finds the largest e(h, h_i) a[i, c] over i for a query h and its class c, for e >= 0.

    Labelled rows are taken in groups of 64. For a class, the few groups with its largest weights
    are searched. No member of another group exceeds

        max_i e(h, h_i) * max_i a[i, c]      i in the group; a maximum below 0 counted as 0

    so where the best values reach all of these bounds, they are the best of all: the result is
    exact. For the few queries where they do not, all rows are compared. In a good order of rows
    this takes one pass over the kernel values, for their maxima, where multiplying all of them
    takes three.

    Args:
        weights: (N, C) a, in ``grouping_order``.
    """

    def __init__(self, weights: Tensor) -> None:
        self.count, classes = weights.shape
        self.groups = -(-self.count // GROUP)
        # padded with -inf, which is never chosen
        self.by_class = weights.new_full((classes, self.groups * GROUP), -math.inf)
        self.by_class[:, : self.count] = weights.mT
        by_group = self.by_class.view(classes, self.groups, GROUP)
        self.bounds = by_group.amax(dim=2).clamp_min_(0)  # (C, groups)
        self._top_groups: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def workspace(self, rows: int) -> Tensor:
        """Return memory for kernel values (rows, N rounded up to whole groups).

        Columns beyond N must not be changed: they are above 0 and below any kernel value.
        """
        values = self.by_class.new_empty(rows, self.by_class.shape[1])
        values[:, self.count :] = torch.finfo(torch.float32).tiny
        return values

    def find(
        self, values: Tensor, largest: Tensor, classes: Tensor, top: int
    ) -> tuple[Tensor, Tensor]:
        """Return positions (m, top) among the labelled rows, and e a there, largest first.

        Typically O(m (N / 64 + 64 top)).

        Args:
            values: (m, N rounded up) e. largest: (m, groups) their maxima. classes: (m,). top: from
                1 to N.
        """
        looked = top + SPARE_GROUPS
        if self.groups <= looked:
            return self.find_among_all(values, classes, top)
        class_groups, weights, others = self._largest(looked)
        groups = class_groups.index_select(0, classes)  # (m, looked)
        first = torch.arange(
            0, len(values) * self.groups, self.groups, device=values.device
        ).unsqueeze(1)
        seen = (
            values.view(-1, GROUP).index_select(0, (first + groups).view(-1)).view(len(values), -1)
        )
        best, places = seen.mul_(weights.index_select(0, classes)).topk(top, dim=1)
        places = groups.gather(1, places // GROUP).mul_(GROUP).add_(places % GROUP)
        unseen = others.index_select(0, classes).mul_(largest).amax(dim=1)
        doubtful = (best[:, -1] < unseen).nonzero().squeeze(1)
        if len(doubtful):
            places[doubtful], best[doubtful] = self.find_among_all(
                values[doubtful], classes[doubtful], top
            )
        return places, best

    def find_among_all(self, values: Tensor, classes: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """Return the same by comparing all rows, whatever the signs of e. O(m N)."""
        best, places = self.by_class.index_select(0, classes).mul_(values).topk(top, dim=1)
        return places, best

    def _largest(self, looked: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best groups (C, looked) of every class, their weights, and other bounds.

        Weights are (C, looked * 64), bounds (C, groups).
        """
        if looked not in self._top_groups:
            groups = self.bounds.topk(looked, dim=1).indices
            cells = self.by_class.view(len(self.by_class), self.groups, GROUP)
            weights = cells.gather(1, groups.unsqueeze(2).expand(-1, -1, GROUP)).flatten(1)
            self._top_groups[looked] = groups, weights, self.bounds.scatter(1, groups, 0)
        return self._top_groups[looked]
