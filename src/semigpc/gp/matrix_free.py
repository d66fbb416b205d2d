"""The matrix-free engine: K is never stored; alpha is kept up to date to a tolerance."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from semigpc.gp.conjugate_gradients import (
    LandmarkPreconditioner,
    NotConvergedError,
    Solved,
    cross_product,
    kernel_columns,
    solve,
    symmetric_product,
)
from semigpc.gp.engine import Engine, Expansion
from semigpc.gp.kernels import Kernel

logger = logging.getLogger(__name__)

# Queries computed at a time, and rows replaced by their kernel columns alone: larger batches are
# written and solved for.
COLUMNS_AT_ONCE = 256
VARIANCES_AT_ONCE = 64  # queries whose variance is solved for together
GOAL = 0.5  # share of the tolerance at which a solve stops, to leave room for the next changes
MOST_ROUNDS = 12  # of relaxation
RELAXED_ROWS = 1024  # at most, beside the landmarks, in a round
WORTHWHILE = 0.9  # share of the residual that a round may leave, for another to follow
AUDITED_ROWS = 128  # whose residual is computed in float64
AUDIT_EVERY = 16  # changes, and after every solve
MOST_DRIFT = 0.25  # share of the tolerance: error of the residual at which it is computed anew
REFRESH_EVERY = 1000  # changes after which the residual is computed anew in any case
MAX_ITERATIONS = 500
EPS = torch.finfo(torch.float64).eps
TINY = 1e-300  # in place of a norm of 0


@dataclass(kw_only=True)
class IterativeHealth:
    """What a matrix-free engine has done to stay within its tolerance, since it was made."""

    steps: int = 0  # calls that changed the buffer ...
    kept: int = 0  # ... and those of them that needed no product with all of K
    solves: int = 0  # solves by conjugate gradients, with ...
    iterations: int = 0  # ... the steps of the latest one, and ...
    total_iterations: int = 0  # ... of all together
    passes: int = 0  # products with all of K, those of variances included
    # exact steps on the landmarks and the rows with the largest error, each a fraction of a pass
    rounds: int = 0
    landmark_choices: int = 0  # times that the preconditioner's landmarks were chosen
    # largest |y - K alpha| / |y| over the classes, a bound of the error of the mean at the rows
    residual: float = 0.0
    # difference of the stored residual from the true one at the last audit, in the same units
    drift: float = 0.0


class MatrixFreeGP(Engine):
    """A GP posterior over ``capacity`` slots, exact to a tolerance, in O(N (D + rank + C)) memory.

        mu(h) = k(h, h_Q) alpha        K = k(h_Q, h_Q) + sigma^2 I
        |y - K alpha| <= tolerance |y|        for every class

    What the tolerance means. With the residual r = y - K alpha, and mu* the exact mean, at the
    buffer's own rows mu = y - sigma^2 alpha - r, mu* = y - sigma^2 alpha* and alpha* - alpha = K^-1
    r. So mu* - mu = (I - sigma^2 K^-1) r, and as no eigenvalue of K is below sigma^2,

        |mu - mu*|_2 <= |r|_2                              over the buffer's rows
        |mu(h) - mu*(h)| <= sqrt(k(h, h)) |r|_2 / sigma    at any h

    The online rule for rows S, which the paper leaves to future work; the R = C + 1 right-hand
    sides are targets and ones:

    1. alpha of the rows that leave S is taken back, r += k(h, h_old) alpha_S, and r_S = y_S -
       k(h_S, h) alpha for the new ones: O(N B (D + C)), by 2B kernel columns in float64.
    2. alpha_S = K_SS^-1 r_S and r -= K_:S alpha_S, with the same columns: now r_S = 0.
    3. If |r| <= tolerance |y| for every class that is all. No pass over K.
    4. Otherwise step 2 on the landmarks and on the rows where M^-1 r is largest, a few times. That
       removes most of r, as a change of the mean is smooth but for a few rows; O(N (rank + 1024) (D
       + C)) each, with 50 000 rows a twelfth of a pass.
    5. Otherwise conjugate gradients from the current alpha and r, preconditioned by the landmarks
      (M), O(N^2 (D + C)) a step.

    r is exact but for rounding in all of these. 128 rows of it are compared with float64 after
    every solve and every 16 changes, and their error counts against the tolerance; where it is too
    large, and every 1000 changes, r is computed anew by a pass. A tolerance that float32 kernel
    values do not allow is found in this way, and is an error.

    ``state_dict`` holds the rows; the rest is solved for on load. ``rebuild`` is a deterministic
    function of that state.

    Args:
        rank: landmarks of the preconditioner at most: more of them, fewer passes; N x rank numbers
            are stored.
        tolerance: largest |y - K alpha| / |y| over the classes. Float32 kernel values allow 1e-4
            and often 1e-5.
        kernel: k, positive definite; ``RBF()`` by default.
        dtype: float32 or float64, of kernel values and stored rows. alpha and sums are float64
            either way.
        seed: of the choice of landmarks.
    """

    solution: Tensor  # (N, R) float64: alpha, and beta = K^-1 1 in the last column
    residual: Tensor  # r, (N, R) float64
    SAVED = ("features", "targets", "occupied")

    def __init__(
        self,
        capacity: int,
        n_features: int,
        n_classes: int,
        *,
        rank: int = 1024,
        tolerance: float = 1e-3,
        kernel: Kernel | None = None,
        noise_std: float = 0.1**0.5,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            capacity, n_features, n_classes, kernel=kernel, noise_std=noise_std, dtype=dtype
        )
        if not isinstance(rank, int) or rank < 1:
            raise ValueError(f"rank must be an integer of at least 1; got {rank!r}.")
        if not 0 < tolerance < 1:
            raise ValueError(f"tolerance must lie between 0 and 1; got {tolerance}.")
        self.rank = rank
        self.tolerance = tolerance
        self.seed = seed
        self.health = IterativeHealth()
        rows = torch.zeros(capacity, n_features, dtype=dtype, device=device)
        self.register_buffer("features", rows)
        self.register_buffer("targets", rows.new_zeros(capacity, n_classes))
        self.register_buffer("occupied", rows.new_zeros(capacity, dtype=torch.bool))
        zeros = torch.zeros(capacity, n_classes + 1, dtype=torch.float64, device=device)
        self.register_buffer("solution", zeros, persistent=False)
        self.register_buffer("residual", zeros.clone(), persistent=False)
        self._width = 0  # slots up to the last occupied one: no product looks further
        self._preconditioner: LandmarkPreconditioner | None = None
        self._since_refresh = 0  # changes

    @property
    def alpha(self) -> Tensor:
        """K^-1 y_Q to the tolerance, (N, C), float64, a view; rows of empty slots are 0."""
        return self.solution[:, : self.n_classes]

    # Queries --------------------------------------------------------------------------------------

    def _mean(self, queries: Tensor, offset: Tensor | None) -> Tensor:
        weights = self._weights(offset)
        stored = self.features[: self._width]
        if queries.requires_grad and torch.is_grad_enabled():
            weights = weights.clone()  # backward must find both as they are now
            stored = stored.clone()
        chunks = queries.split(COLUMNS_AT_ONCE)
        return torch.cat([self.kernel(chunk, stored).double() @ weights for chunk in chunks])

    def _expansion(self, offset: Tensor | None) -> Expansion:
        slots = self.occupied.nonzero().squeeze(1)
        return Expansion(self.features[slots], self._weights(offset)[slots])

    def _weights(self, offset: Tensor | None) -> Tensor:
        """K^-1 (y_Q - 1 offset^T), (width, C)."""
        alpha = self.alpha[: self._width]
        beta = self.solution[: self._width, self.n_classes :]
        return alpha if offset is None else alpha - beta * offset

    def _variance(self, queries: Tensor) -> Tensor:
        """Return the variance, too large by at most |rho|^2 / sigma^2.

        K v = k - rho is solved with |rho| <= tolerance |k|; then k.v + v.rho = k^T K^-1 k - rho^T
        K^-1 rho. One solve for every 64 queries, O(passes N^2 (D + 64)): for few queries.
        """
        explained = []
        for chunk in queries.split(VARIANCES_AT_ONCE):
            k = self._columns(chunk)
            goals = GOAL * self.tolerance * torch.linalg.vector_norm(k, dim=0)
            solved = self._conjugate_gradients(torch.zeros_like(k), k, goals)
            explained.append((solved.x * (k + solved.residual)).sum(dim=0))
        return self.kernel.diagonal(queries).double() - torch.cat(explained)

    def _explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        k = self.kernel(queries, self.features[: self._width]).double()
        weights = k * self.solution[: self._width].mT[classes]
        return torch.nn.functional.pad(weights, (0, self.capacity - self._width))

    # Changes --------------------------------------------------------------------------------------

    def _change(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        on_device = slots.to(self.device, non_blocking=True)
        with self._undone_on_error(on_device):
            if len(slots) > COLUMNS_AT_ONCE or not len(self):
                self.solution[on_device] = 0
                self._store(slots, features, targets)
                self._refresh()
            else:
                self._exchange(slots, on_device, features, targets)
            self._settle()
        self.health.steps += 1

    def _rebuild(self) -> None:
        """Choose landmarks anew and solve for alpha from 0. O(passes N^2 (D + C))."""
        with self._undone_on_error(slice(0)):
            self._preconditioner = None
            self.solution.zero_()
            self._refresh()
            self._solve()

    def _adopt_state(self) -> None:
        self._count(set(self.occupied.nonzero().squeeze(1).tolist()))
        self.rebuild()

    def _go_back(self, follow: Callable[[], None]) -> None:
        # ``_rebuild`` has restored all else
        self._count(set(self.occupied.nonzero().squeeze(1).tolist()))

    def _count(self, held: set[int]) -> None:
        self._held = held
        self._width = max(held, default=-1) + 1

    @contextmanager
    def _undone_on_error(self, slots: Tensor | slice) -> Iterator[None]:
        """Restore the rows of some slots, alpha, r and counts after an error or interrupt."""
        rows = self.features[slots], self.targets[slots], self.occupied[slots]
        solution = self.solution.clone()
        residual = self.residual.clone()
        held = self._held
        changes = self._since_refresh
        health = replace(self.health)
        try:
            yield
        except BaseException:
            self.features[slots], self.targets[slots], self.occupied[slots] = rows
            self.solution.copy_(solution)
            self.residual.copy_(residual)
            self._count(held)
            self._since_refresh = changes
            self.health.residual = health.residual
            self.health.drift = health.drift
            self._preconditioner = None
            raise

    def _store(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Write rows to slots (B,) on the CPU, or empty these, and update the preconditioner."""
        changed = slots.tolist()
        self._count(self._held - set(changed) if features is None else self._held.union(changed))
        on_device = slots.to(self.device, non_blocking=True)
        self.features[on_device] = 0 if features is None else features
        self.targets[on_device] = 0 if targets is None else targets
        self.occupied[on_device] = features is not None
        if 4 * len(slots) > len(self):
            self._preconditioner = None
        elif self._preconditioner is not None:
            self._preconditioner.replace(slots, features)

    def _exchange(
        self, slots: Tensor, on_device: Tensor, features: Tensor | None, targets: Tensor | None
    ) -> None:
        """Steps 1 and 2."""
        old_columns = self._columns(self.features[on_device])
        self.residual[: self._width] += old_columns @ self.solution[on_device]
        self.solution[on_device] = 0
        self.residual[on_device] = 0
        self._store(slots, features, targets)
        if features is not None:
            k = self._columns(features)
            self.residual[on_device] = self._wanted(on_device) - k.mT @ self.solution[: self._width]
            self._step(on_device, lambda step: k @ step)

    def _step(self, slots: Tensor, spread: Callable[[Tensor], Tensor]) -> None:
        """Add K_SS^-1 r_S to alpha_S, so that r_S becomes 0. O(B^3 + N B C).

        Args:
            spread: the product with k(h, h_S), which updates r elsewhere.
        """
        wide = self.features[slots].double()
        K = self.kernel(wide, wide)
        K.diagonal().copy_(self.kernel.diagonal(wide) + self.noise_std**2)
        root, failed = torch.linalg.cholesky_ex(K)
        if bool(failed):
            return  # rows that coincide, and hardly any noise: left to the solve that follows
        step = torch.cholesky_solve(self.residual[slots], root)
        self.solution[slots] += step
        self.residual[: self._width] -= spread(step)
        self.residual[slots] -= self.noise_std**2 * step

    # Solving --------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Steps 3 to 5: do what is needed, and no more, to be within the tolerance."""
        passes = self.health.passes
        absent = self._scales() == TINY  # a class without rows: its alpha is exactly 0
        self.solution.masked_fill_(absent, 0)
        self.residual.masked_fill_(absent, 0)
        self._since_refresh += 1
        if self._since_refresh % AUDIT_EVERY == 0:
            self._audit()
        if self._since_refresh >= REFRESH_EVERY or self.health.drift > MOST_DRIFT * self.tolerance:
            self._refresh()
        block = min(self.rank, self._width // 4) + min(RELAXED_ROWS, self._width // 8)
        rounds = min(max(self._width // max(block, 1), 2), MOST_ROUNDS)  # as costly as two passes
        before = math.inf
        while not self._is_within():
            if not rounds or self.health.residual > WORTHWHILE * before:
                self._solve()
                break
            rounds -= 1
            before = self.health.residual
            self._relax()
        self.health.kept += self.health.passes == passes

    def _is_within(self) -> bool:
        """Return whether r, with its error at the last audit, is within the tolerance.

        One synchronisation with the device.
        """
        self.health.residual = self._relative(self.residual[: self._width])
        return self.health.residual + self.health.drift <= self.tolerance

    def _relax(self) -> None:
        """Step 4: the exact step on the landmarks and the rows where M^-1 r is largest."""
        relative = self.residual[: self._width] / self._scales()
        urgency = self._precondition(relative).abs().amax(dim=1)
        landmarks = self._current_preconditioner().anchors[: self._width // 4]
        anchors = torch.tensor(landmarks, dtype=torch.int64)
        anchors = anchors.to(self.device, non_blocking=True)
        urgency[anchors] = 0
        urgent = urgency.topk(min(RELAXED_ROWS, -(-self._width // 8))).indices
        slots = torch.cat([anchors, urgent[urgency[urgent] > 0]])
        points = self.features[slots]
        self._step(
            slots,
            lambda step: self._masked(
                cross_product(self.features[: self._width], points, self.kernel, step)
            ),
        )
        self.health.rounds += 1

    def _solve(self) -> None:
        """Step 5, until the residual is within the tolerance and the audit confirms it."""
        for _ in range(3):
            goals = GOAL * self.tolerance * self._scales()
            solved = self._conjugate_gradients(
                self.solution[: self._width], self.residual[: self._width], goals
            )
            self.solution[: self._width] = solved.x
            self.residual[: self._width] = solved.residual
            self.health.solves += 1
            self.health.iterations = solved.iterations
            self.health.total_iterations += solved.iterations
            self._audit()
            if self._is_within():
                return
            off = self.health.drift
            self._refresh()
        raise self._not_converged(
            f"tolerance={self.tolerance:g} is smaller than {self.dtype} kernel values allow for "
            f"{self.kernel} with noise_std={self.noise_std:g}: rounding leaves a residual of "
            f"{off:.1e}. Raise tolerance or noise_std"
            f"{'' if self.dtype == torch.float64 else ', or use dtype=torch.float64'}."
        )

    def _conjugate_gradients(self, x: Tensor, residual: Tensor, goals: Tensor) -> Solved:
        """Solve, or raise an error that names the options to change."""
        solved = solve(
            self._product, self._precondition, x, residual, goals, max_iterations=MAX_ITERATIONS
        )
        if not solved.converged:
            norms = torch.linalg.vector_norm(solved.residual, dim=0) / goals.clamp_min(TINY)
            raise self._not_converged(
                f"conjugate gradients did not reach tolerance={self.tolerance:g} for "
                f"{self.kernel} with noise_std={self.noise_std:g} over {len(self)} rows: the "
                f"residual is {float(norms.max()) * GOAL:.1e} times the tolerance after "
                f"{solved.iterations} steps. Raise noise_std, rank (now {self.rank}) or tolerance."
            )
        return solved

    def _precondition(self, residual: Tensor) -> Tensor:
        """M^-1 r, (n, R)."""
        try:
            return self._current_preconditioner()(residual)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise self._not_converged() from error

    def _current_preconditioner(self) -> LandmarkPreconditioner:
        """M^-1, with landmarks chosen anew when the old ones are stale."""
        if self._preconditioner is None or self._preconditioner.is_stale(len(self)):
            self._preconditioner = None  # frees its memory first
            self._preconditioner = LandmarkPreconditioner(
                self.features,
                self.occupied,
                self.kernel,
                noise_variance=self.noise_std**2,
                rank=self.rank,
                seed=self.seed,
            )
            self.health.landmark_choices += 1
            logger.info(
                "step %d: %d landmarks chosen", self.health.steps, len(self._preconditioner.anchors)
            )
        return self._preconditioner

    def _not_converged(self, otherwise: str = "") -> NotConvergedError:
        """Return the error for noise that is lost in rounding, or ``otherwise`` if it is not."""
        # The size of the noise decides, not the step that failed, which depends on the processor.
        # Checked only after a failure, since some rows need less noise.
        trace = float(self.kernel.diagonal(self.features[self.occupied]).double().sum())
        least = math.sqrt(8 * EPS * trace / self.tolerance)  # r has errors eps trace(K) / sigma^2
        if otherwise and self.noise_std > least:
            return NotConvergedError(otherwise)
        return NotConvergedError(
            f"noise_std={self.noise_std:g} is lost in rounding beside {self.kernel} of "
            f"{len(self)} rows: K cannot be inverted to tolerance={self.tolerance:g}. Raise "
            f"noise_std to {2 * max(least, self.noise_std):.1g} or more."
        )

    def _audit(self) -> None:
        """Estimate the error of r from 128 of its rows in float64, plus their rounding.

        O(N (D + C)) per row.
        """
        self.health.drift = 0.0
        if not len(self):
            return
        stride = -(-len(self) // AUDITED_ROWS)
        rows = torch.tensor(sorted(self._held)[self._since_refresh % stride :: stride])
        rows = rows.to(self.device, non_blocking=True)
        solution = self.solution[: self._width]
        k = self._columns(self.features[rows])
        true = self._wanted(rows) - k.mT @ solution - self.noise_std**2 * solution[rows]
        off = (true - self.residual[rows]).abs() + EPS * (k.abs().mT @ solution.abs())
        self.health.drift = self._relative(off) * (len(self) / len(rows)) ** 0.5

    def _refresh(self) -> None:
        """Compute r = y - K alpha by a pass over K, or without one while alpha is 0."""
        self._since_refresh = 0
        self.residual.copy_(self._wanted(slice(None)))
        if bool(self.solution.any()):
            self.residual[: self._width] -= self._product(self.solution[: self._width])
        self._audit()

    # K and y --------------------------------------------------------------------------------------

    def _wanted(self, slots: Tensor | slice) -> Tensor:
        """Return right-hand sides (B, R) float64: targets, and 1 at occupied slots."""
        return torch.cat([self.targets[slots], self.occupied[slots, None]], dim=1).double()

    def _scales(self) -> Tensor:
        """Return |y| of each right-hand side, (R,)."""
        norms: Tensor = torch.linalg.vector_norm(self._wanted(slice(self._width)), dim=0)
        return norms.clamp_min_(TINY)

    def _relative(self, residual: Tensor) -> float:
        """Return the largest |r| / |y| over the right-hand sides, for some rows of r, (n, R)."""
        return float((torch.linalg.vector_norm(residual, dim=0) / self._scales()).max())

    def _product(self, x: Tensor) -> Tensor:
        """Return K x, (width, R): a pass over K."""
        self.health.passes += 1
        product = symmetric_product(self.features[: self._width], self.kernel, x)
        return self._masked(product) + self.noise_std**2 * x

    def _columns(self, points: Tensor) -> Tensor:
        """Return k(h, points), (width, B) float64, for points (B, D). O(N B D)."""
        return self._masked(kernel_columns(self.features[: self._width], points, self.kernel))

    def _masked(self, rows: Tensor) -> Tensor:
        """Return rows (width, .) with 0 at empty slots."""
        return rows if len(self) == self._width else rows.mul_(self.occupied[: self._width, None])

    def _check_kernel(self, kernel: Kernel, noise_std: float) -> None:
        super()._check_kernel(kernel, noise_std)
        if not kernel.positive_definite:
            raise ValueError(
                "the matrix-free engine needs a positive definite kernel: conjugate gradients "
                f"break down on others; got {kernel}. Use the exact engine for it."
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._preconditioner = None  # it is on the old device
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, tolerance={self.tolerance:g}"
