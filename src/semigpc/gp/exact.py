"""The exact engine: a Gaussian process over a buffer whose rows change at every step."""

import logging
import math
import os
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import cholesky_ex, solve_triangular

from semigpc.gp.engine import Engine, Expansion, NotPositiveDefiniteError
from semigpc.gp.kernels import Kernel, square_norms, squared_distances
from semigpc.gp.scales import left_out_block, left_out_residuals
from semigpc.gp.tiles import DelayedInverse, rounding_floor

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 256  # rows replaced, or queries computed, at a time: bounds the memory of one call
# Share of the rows replaced at once from which a Cholesky inverse takes fewer operations than
# updates.
REBUILD_SHARE = 0.25
PROBED_ROWS = 4  # rows whose residual is computed ...
PROBE_EVERY = 64  # steps; a probe costs about a fifth of an update
REBUILD_ABOVE = 1e-4  # residual of the mean at which P is rebuilt; 1e-11 is usual
FAILED_PIVOT = 1e300  # larger than any pivot
EXACT_ROWS = 32_768  # beyond, a step takes a second on two cores
MEMORY_SHARE = 0.5  # of the device's memory that inverses of K may take


class Fit(NamedTuple):
    """Whether the exact engine suits so many rows, and why or why not."""

    fits: bool
    reason: str


def exact_fits(rows: int, device: torch.device | str | None = None, *, matrices: int = 1) -> Fit:
    """Return whether the exact engine suits so many rows, by memory and by the time of a step.

    All of a device's memory counts, not what is free, so that a resumed run makes the same choice.

    Args:
        matrices: 2 where something as large as the inverse of K is stored beside it.
    """
    if rows > EXACT_ROWS:
        return Fit(False, f"{rows} rows are more than {EXACT_ROWS}")
    needed = 4 * rows**2 * matrices  # bytes: half of a symmetric matrix in float64
    what = f"{matrices} matrices for {rows} rows take"
    if matrices == 1:
        what = f"the inverse of K for {rows} rows takes"
    reason = f"{what} {needed / 2**20:.0f} MiB of {_memory(device) / 2**20:.0f}"
    return Fit(needed <= memory_budget(device), reason)


def members_needed(rows: int, device: torch.device | str | None = None) -> int:
    """Return how many exact engines must share so many rows to fit into memory, at least 1.

    M engines of N / M rows take 4 N^2 / M bytes together, and each holds at most EXACT_ROWS.
    """
    by_memory = 4 * rows**2 / memory_budget(device)
    return max(1, math.ceil(max(by_memory, rows / EXACT_ROWS)))


def memory_budget(device: torch.device | str | None = None) -> float:
    """Return the bytes that the inverses of exact engines may take."""
    return MEMORY_SHARE * _memory(device)


def _memory(device: torch.device | str | None) -> int:
    """Return the bytes of the machine's memory, or of the GPU's."""
    if device is not None and torch.device(device).type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 2**33


class LeftOut(NamedTuple):
    """Each of n slots predicted without its own row.

    Shapes: ``mean`` (n, C), ``ones`` (n,) the mean of a target of ones, ``variance`` (n,).
    """

    mean: Tensor
    ones: Tensor
    variance: Tensor


@dataclass(kw_only=True)
class Health:
    """Counters and the numerical error of an exact engine.

    Args:
        steps: calls that changed the buffer.
        rebuilds: times P was rebuilt because an update failed or the residual had grown. Should
            stay 0.
        mean_residual: max |K[I] alpha - y[I]| over the rows I probed last, which is also the error
            of the mean near the data.
    """

    steps: int = 0
    rebuilds: int = 0
    mean_residual: float = 0.0


class ExactGP(Engine):
    """Exact GP posterior, kept up to date as slots are overwritten (section 3 of the paper).

        mu(h)  = k(h, h_Q) alpha             alpha = K^-1 y_Q        K = k(h_Q, h_Q) + sigma^2 I
        var(h) = k(h, h) - k(h, h_Q) K^-1 k(h_Q, h)

    ``replace`` changes P = K^-1 by a rank-2B term in one pass over P, O(B N^2 + B^2 N + B^3), and
    updates alpha in O(N B C), so that ``mean`` never touches P: O(M N (D + C)). ``variance`` costs
    O(M N (D + N)). An empty slot is a point unrelated to every other (zero cross-kernel, unit
    diagonal), so growing, replacing and removing are one formula, and an empty engine predicts 0.
    Where a quarter of the rows or more is replaced at once, K is inverted by Cholesky instead,
    O(N^3), in the memory of P.

    All of it is float64. That costs at most twice the time of float32 where float32 works, and
    there is no condition number at which it begins to fail or needs repair: updates leave residuals
    of 1e-11, also where classes have collapsed onto a point. A few residuals are computed now and
    then all the same, and P is rebuilt if they have grown (``health``). P is stored as the tiles of
    its lower triangle: 4 N^2 bytes.

    ``state_dict`` holds features, targets and the number of steps; P is rebuilt on load.
    ``rebuild`` is a deterministic function of that state, so a run that calls it as it saves
    continues bit for bit like one that resumes from the file.
    """

    feature_columns: Tensor
    square_norms: Tensor
    steps: Tensor
    solution: Tensor
    SAVED = ("feature_columns", "targets", "occupied", "steps")

    def __init__(
        self,
        capacity: int,
        n_features: int,
        n_classes: int,
        *,
        kernel: Kernel | None = None,
        noise_std: float = 0.1**0.5,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(capacity, n_features, n_classes, kernel=kernel, noise_std=noise_std)
        self.health = Health()
        self.inverse = DelayedInverse(capacity, dtype=self.dtype, device=device)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=self.dtype, device=device)

        # (D, N): against a long buffer, the product of a few queries runs fastest in this layout.
        self.register_buffer("feature_columns", zeros(n_features, capacity))
        self.register_buffer("square_norms", zeros(capacity), persistent=False)
        self.register_buffer("targets", zeros(capacity, n_classes))
        self.register_buffer("occupied", torch.zeros(capacity, dtype=torch.bool, device=device))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        # (C + 1, n): alpha^T, and beta = K^-1 1 in the last row.
        self.register_buffer(
            "solution", zeros(n_classes + 1, self.inverse.base.full_size), persistent=False
        )

    # Queries --------------------------------------------------------------------------------------

    @property
    def features(self) -> Tensor:  # type: ignore[override]
        """h_Q, (N, D), a view; rows of empty slots are 0."""
        return self.feature_columns.mT

    @property
    def alpha(self) -> Tensor:
        """K^-1 y_Q, (N, C), a view; rows of empty slots are 0."""
        return self.solution[: self.n_classes, : self.capacity].mT

    def _mean(self, queries: Tensor, offset: Tensor | None) -> Tensor:
        weights = self._weights(offset)
        if queries.requires_grad and torch.is_grad_enabled():
            weights = weights.clone()  # backward must find them as they are now
        return torch.cat([self._cross(chunk) @ weights.mT for chunk in queries.split(ROWS_AT_ONCE)])

    def _expansion(self, offset: Tensor | None) -> Expansion:
        slots = self.occupied.nonzero().squeeze(1)
        weights = self._weights(offset)[:, slots].mT
        return Expansion(self.features[slots].contiguous(), weights.contiguous())

    def _weights(self, offset: Tensor | None) -> Tensor:
        """Return K^-1 (y_Q - 1 offset^T), (C, width)."""
        alpha = self.solution[: self.n_classes, : self._width]
        if offset is None:
            return alpha
        return alpha - offset.unsqueeze(1) * self.solution[self.n_classes, : self._width]

    def _variance(self, queries: Tensor) -> Tensor:
        rows = (self._padded(self._cross(chunk)) for chunk in queries.split(ROWS_AT_ONCE))
        explained = [(self.inverse.multiply(chunk) * chunk).sum(dim=1) for chunk in rows]
        return self.kernel.diagonal(queries) - torch.cat(explained)

    def _nearest(self, queries: Tensor) -> Tensor:
        width = self._width
        if not width:
            return super()._nearest(queries)
        distances = squared_distances(queries, self.features[:width], self.square_norms[:width])
        if len(self) < width:
            distances.masked_fill_(~self.occupied[:width], torch.inf)
        return distances.amin(dim=1)

    def _explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        weights = queries.new_zeros(len(queries), self.capacity)
        weights[:, : self._width] = self._cross(queries) * self.solution[classes, : self._width]
        return weights

    @torch.no_grad()
    def label_weights(self, queries: Tensor) -> Tensor:
        """Return w = k(h, h_Q) K^-1, (M, N), for queries (M, D). O(M N (D + N)).

        The mean is w @ y_Q, so w is the weight of each stored LABEL.
        """
        weights = queries.new_zeros(len(queries), self.capacity)
        chunks = self._checked_queries(queries).split(ROWS_AT_ONCE)
        for rows, chunk in zip(weights.split(ROWS_AT_ONCE), chunks, strict=True):
            products = self.inverse.multiply(self._padded(self._cross(chunk)))
            rows[:, : self._width] = products[:, : self._width]
        return weights

    @torch.no_grad()
    def leave_one_out(self) -> LeftOut:
        """Return every occupied slot predicted by all others. O(N^2 + N C).

        ``ones`` is the mean that targets of 1 would have: ``mean - ones * offset`` is that of
        targets less an offset.
        """
        slots = self.occupied.nonzero().squeeze(1)
        rows = [
            self.inverse.rows(chunk).gather(1, chunk.unsqueeze(1))
            for chunk in slots.split(ROWS_AT_ONCE)
        ]
        diagonal = torch.cat(rows).squeeze(1) if rows else self.targets.new_zeros(0)
        residuals = left_out_residuals(self.solution[:, slots].mT, diagonal)
        return self._left_out(slots, residuals, 1 / diagonal)

    @torch.no_grad()
    def leave_block_out(self, slots: Tensor) -> LeftOut:
        """Return occupied slots (m,) that are all left out together. O(m^3 + m N)."""
        slots = self._checked_slots(slots, occupied=True).to(self.device)
        block = self.inverse.rows(slots)[:, slots]
        return self._left_out(slots, *left_out_block(self.solution[:, slots].mT, block))

    def _left_out(self, slots: Tensor, residuals: Tensor, variance: Tensor) -> LeftOut:
        """Return targets less residuals (n, C + 1), and the variance (n,) less the noise."""
        ones = torch.ones_like(residuals[:, :1])
        means = torch.cat([self.targets[slots], ones], dim=1) - residuals
        noise_free = (variance - self.noise_std**2).clamp_min(0)
        return LeftOut(means[:, : self.n_classes], means[:, self.n_classes], noise_free)

    @torch.no_grad()
    def covariance(self, queries: Tensor, others: Tensor) -> Tensor:
        """Return the posterior covariance k(h, h') - k(h, h_Q) K^-1 k(h_Q, h'), (M, M').

        O(M' N^2 + M N M').

        Args:
            queries: (M, D). others: (M', D), the fewer of the two.
        """
        first = self._checked_queries(queries)
        second = self._checked_queries(others)
        weights = self.label_weights(second)[:, : self._width]  # (M', n)
        explained = torch.cat(
            [self._cross(chunk) @ weights.mT for chunk in first.split(ROWS_AT_ONCE)]
        )
        return (self.kernel(first, second) - explained).to(queries.dtype)

    @property
    def _width(self) -> int:
        """Slots that P covers: those in use, rounded up to its tiles."""
        return min(self.inverse.size, self.capacity)

    def _cross(self, queries: Tensor) -> Tensor:
        """Return k(h, h_Q), (M, width), 0 at empty slots."""
        stored = self.features[: self._width]
        if queries.requires_grad and torch.is_grad_enabled():
            stored = stored.clone()  # backward must find them as they are now
        k = self.kernel(queries, stored, self.square_norms[: self._width])
        return k if len(self) == self._width else k * self.occupied[: self._width].to(k.dtype)

    def _padded(self, rows: Tensor) -> Tensor:
        """Return rows (M, width) padded with zeros to the (M, n) of P."""
        missing = self.inverse.size - rows.shape[1]
        return torch.nn.functional.pad(rows, (0, missing)) if missing else rows

    # Changes --------------------------------------------------------------------------------------

    @torch.no_grad()
    def rename_classes(self, places: Tensor, n_classes: int) -> None:
        """Make class c class ``places[c]`` of ``n_classes``. K^-1 stays as it is: O(N C)."""
        targets = self.targets.new_zeros(self.capacity, n_classes)
        targets[:, places] = self.targets
        solution = self.solution.new_zeros(n_classes + 1, self.solution.shape[1])
        solution[places] = self.solution[:-1]
        solution[-1] = self.solution[-1]
        self.targets = targets
        self.solution = solution
        self.n_classes = n_classes

    def _change(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Update P, or invert K where that is cheaper; restore the old rows if neither works."""
        if self.inverse.size < self.capacity:
            self.inverse.base.grow(int(slots.max()) + 1)
        slots = slots.to(self.device, non_blocking=True)
        before = self.features[slots], self.targets[slots]
        occupied = None if len(self) == self.capacity else self.occupied[slots]
        try:
            # Updates of an indefinite K could pass through a singular one.
            if not self.kernel.positive_definite or len(slots) >= REBUILD_SHARE * self.inverse.size:
                self._store(slots, features, targets)
                self._invert()
            else:
                self._update_all(slots, features, targets)
        except NotPositiveDefiniteError as error:
            self._store(slots, *before)
            self.occupied[slots] = True if occupied is None else occupied
            self._invert()
            raise self._not_invertible() from error
        self.health.steps += 1
        if self.health.steps % PROBE_EVERY == 0 and len(self):
            self._probe()

    def _update_all(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Update chunk by chunk; if rounding makes one fail, write all rows and invert."""
        try:
            for start in range(0, len(slots), ROWS_AT_ONCE):
                part = slice(start, start + ROWS_AT_ONCE)
                if features is None or targets is None:
                    self._update(slots[part], None, None)
                else:
                    self._update(slots[part], features[part], targets[part])
        except NotPositiveDefiniteError:
            logger.info("step %d: an update fails its check, rebuilding P", self.health.steps)
            self._store(slots, features, targets)
            self._invert()
            self.health.rebuilds += 1

    def _update(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Overwrite rows and columns ``slots`` of K, and update P and alpha.

        O(B n^2 + B^2 n + B^3), one pass over P. First the slots are forgotten, then the new ones
        appended, which is the paper's block rule (section 3.3) without moving any row. In the
        textbook's column form, S the slots:

            G  = P[:, S]                          M  = G[S]
            W  = P C                              the one pass over P
            V  = W - G M^-1 W[S]                  = A^-1 C, where A is K without S
            Sg = D - C^T V                        Schur complement
            Vh = V with rows S set to -I
            P += -G M^-1 G^T + Vh Sg^-1 Vh^T
            a  = alpha - G M^-1 alpha[S], rows S set to 0
            alpha = a - Vh Sg^-1 (y - C^T a)

        Raises NotPositiveDefiniteError, with P and alpha as they were, when M or Sg has no Cholesky
        factor, or Sg is lost in rounding. Finding out takes one synchronisation with the device.
        """
        B = len(slots)
        n = self.inverse.size
        self._store(slots, features, targets)
        G = self.inverse.rows(slots)  # (B, n)
        C, D, W, y = self._new_block(slots, features, targets)
        forget, failed = cholesky_ex(G[:, slots])
        u_forget = solve_triangular(forget, G, upper=False)  # G M^-1 G^T = u^T u
        kept = torch.cat([W, self.solution[:, :n]])  # (B + C + 1, n)
        kept.addmm_(solve_triangular(forget, kept[:, slots].mT, upper=False).mT, u_forget, alpha=-1)
        V = kept[:B]
        a = kept[B:]
        append, failed_too = cholesky_ex(torch.addmm(D, C, V.mT, alpha=-1))
        least = (append.diagonal().square() / D.diagonal()).min()
        least = least.sub(failed + failed_too, alpha=FAILED_PIVOT)
        if not float(least) > rounding_floor(n, self.dtype):
            raise NotPositiveDefiniteError
        kept.index_fill_(1, slots, 0)
        V.scatter_(1, slots.unsqueeze(1), -1)  # V is Vh from here on
        u_append = solve_triangular(append, V, upper=False)
        missing = torch.addmm(y, a, C.mT, alpha=-1)  # y - C^T a
        rest = solve_triangular(append, missing.mT, upper=False)  # (B, C + 1)
        torch.addmm(a, rest.mT, u_append, alpha=-1, out=self.solution[:, :n])
        self.inverse.add(u_forget, u_append)

    def _new_block(
        self, slots: Tensor, features: Tensor | None, targets: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return C^T (B, n), D (B, B), W^T (B, n) and y^T (C + 1, B) of new rows, or of none."""
        if features is None or targets is None:
            C = self.solution.new_zeros(len(slots), self.inverse.size)
            D = torch.eye(len(slots), dtype=C.dtype, device=C.device)
            return C, D, C, C.new_zeros(self.n_classes + 1, len(slots))
        C = self._padded(self._cross(features))
        D = C[:, slots]
        D.diagonal().copy_(self.kernel.diagonal(features) + self.noise_std**2)
        C.index_fill_(1, slots, 0)
        y = torch.nn.functional.pad(targets.mT, (0, 0, 0, 1), value=1)
        return C, D, self.inverse.multiply(C), y

    def _store(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        if features is None or len(self) < self.capacity:
            self.occupied[slots] = features is not None
        self.features[slots] = 0 if features is None else features
        self.square_norms[slots] = 0 if features is None else square_norms(features)
        self.targets[slots] = 0 if targets is None else targets

    def _probe(self) -> None:
        """Compute the residual of a few rows of K, others each time; rebuild P if it has grown."""
        step = self.health.steps // PROBE_EVERY
        rows = torch.arange(PROBED_ROWS, device=self.device) * (self._width // PROBED_ROWS)
        rows = (rows + step) % self._width
        rows = rows[self.occupied[rows]]
        K = self._cross(self.features[rows])
        own = self.kernel.diagonal(self.features[rows]) + self.noise_std**2
        K[torch.arange(len(rows), device=self.device), rows] = own
        residual = K @ self._weights(None).mT - self.targets[rows]
        self.health.mean_residual = float(residual.abs().max()) if len(rows) else 0.0
        if not self.health.mean_residual <= REBUILD_ABOVE:
            logger.info(
                "step %d: the residual is %.1e, rebuilding P",
                self.health.steps,
                self.health.mean_residual,
            )
            self._invert()
            self.health.rebuilds += 1

    def _rebuild(self) -> None:
        try:
            self._invert()
        except NotPositiveDefiniteError as error:
            raise self._not_invertible() from error

    def _invert(self) -> None:
        """Compute P and alpha from the stored rows: Cholesky, or LU where K may be indefinite."""
        self.inverse.reset()
        self.solution.zero_()
        self.square_norms.copy_(square_norms(self.features))  # the same bits as after loading
        slots = self.occupied.nonzero().squeeze(1)
        self.health.mean_residual = 0.0
        if not len(slots):
            return
        self.inverse.base.grow(int(slots[-1]) + 1)
        if self.kernel.positive_definite:
            self.inverse.base.invert(self._block)
        else:
            self._invert_indefinite(slots)
        ones = self.occupied[: self._width, None].to(self.dtype)
        y = self._padded(torch.cat([self.targets[: self._width], ones], dim=1).mT)
        self.solution[:, : self.inverse.size] = self.inverse.multiply(y)

    def _block(self, rows: slice, columns: slice) -> Tensor:
        """Return entries of K between slots, the identity at empty ones and beyond the last."""
        x1 = self.features[rows]
        x2 = self.features[columns]
        held = self.occupied[rows, None] & self.occupied[columns]
        K = x1.new_zeros(rows.stop - rows.start, columns.stop - columns.start)
        K[: len(x1), : len(x2)] = self.kernel(x1, x2) * held
        if rows == columns:
            K.diagonal().fill_(1)
            own = self.kernel.diagonal(x1) + self.noise_std**2
            K.diagonal()[: len(x1)] = torch.where(self.occupied[rows], own, 1.0)
        return K

    def _invert_indefinite(self, slots: Tensor) -> None:
        """Compute a dense inverse of K at the occupied slots (S,), with pivoting.

        O(S^3), and memory for two such matrices.
        """
        features = self.features[slots]
        K = self.kernel(features, features)
        K.diagonal().copy_(self.kernel.diagonal(features) + self.noise_std**2)
        P, info = torch.linalg.inv_ex(K)
        if int(info) or not float((P @ K).diagonal().sub(1).abs().max()) < 1e-2:
            raise NotPositiveDefiniteError
        K = torch.eye(self.inverse.size, dtype=P.dtype, device=P.device)
        K[slots.unsqueeze(1), slots] = P
        self.inverse.base.fill(lambda rows, columns: K[rows, columns])

    def _not_invertible(self) -> NotPositiveDefiniteError:
        return NotPositiveDefiniteError(
            f"the kernel matrix of {self.kernel} with noise_std={self.noise_std:g} cannot be "
            "inverted in float64. Raise noise_std."
        )

    def _store_counts(self) -> None:
        self.steps.fill_(self.health.steps)

    def _adopt_state(self) -> None:
        self.health = Health(steps=int(self.steps))
        super()._adopt_state()
