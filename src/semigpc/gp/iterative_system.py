"""The points of a buffer and alpha = K^-1 y, followed to a tolerance as points come and go, without K."""

import logging
import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from semigpc.gp.conjugate_gradients import Linear, NotConvergedError, Solved, solve
from semigpc.gp.health import IterativeHealth
from semigpc.gp.kernels import Kernel
from semigpc.gp.points import Points
from semigpc.gp.preconditioner import LandmarkPreconditioner

logger = logging.getLogger(__name__)

CHUNK = 256  # rows replaced by their columns alone; larger batches are written and solved for
GOAL = 0.5  # of the tolerance, at which a solve stops: the rest is room for rounding and for the next changes
ROUNDS = 12  # of relaxation at most ...
RELAXED = 1024  # ... on at most so many rows, beside the landmarks, each
WORTH_IT = 0.9  # of the residual: what a round must come below for another to follow
AUDITED = 128  # rows whose residual is looked at in float64 after a solve, and otherwise ...
AUDIT_EVERY = 16  # ... every so many changes
DRIFT = 0.25  # of the tolerance: what it may be off by
REFRESH_EVERY = 1000  # changes after which the residual is computed afresh in any case
MAX_ITERATIONS = 500
ROUNDING = 8 * torch.finfo(torch.float64).eps  # of a sum of kernel values, some of which cancel


class IterativeSystem(nn.Module):
    """Points, alpha, and the residual r = y - K alpha; everything of a matrix-free engine that changes.

    Right-hand sides are the C targets and a column of ones, (N, R) with R = C + 1. The online rule, for rows S:

    1. alpha of what leaves S is taken back, r += k(h, h_old) alpha_S, and r_S = y_S - k(h_S, h) alpha of what comes:
       O(N B (D + C)), by 2B kernel columns in float64.
    2. alpha_S = K_SS^-1 r_S and r -= K_:S alpha_S, with the same columns: now r_S = 0.
    3. If |r| <= tolerance |y| for every class that is all. No pass over K.
    4. Otherwise the same exact step (2) on the landmarks and on the rows where M^-1 r is largest, a few times. What a change
       does to the mean is smooth but for a few rows, so this takes most of it away, or all, for O(N (rank + 1024) (D + C)) a
       round: of 50 000 rows, a twelfth of a pass.
    5. Otherwise conjugate gradients, preconditioned by the landmarks (M), from the alpha and r that are there: a pass over K
       each step.

    r is exact but for rounding in all of these. 128 rows of it are compared with float64 after every solve and every 16
    changes, and what they say it is off by counts against the tolerance. It is computed afresh, a pass, where that is too much,
    and every 1000 changes. Float32 kernel values that cannot carry the tolerance are found in this way, and refused.

    Arguments are those of ``MatrixFreeGP``, which checks them.
    """

    alpha: Tensor
    residual: Tensor

    def __init__(self, points: Points, *, rank: int, tolerance: float, seed: int) -> None:
        super().__init__()
        self.points, self.rank, self.tolerance, self.seed = points, rank, tolerance, seed
        self.health = IterativeHealth()
        for name in ("alpha", "residual"):
            self.register_buffer(name, torch.zeros_like(points.right_hand_sides()), persistent=False)
        self._preconditioner: LandmarkPreconditioner | None = None
        self._since_refresh = 0

    # Changing -------------------------------------------------------------------------------------------------------

    def change(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Put rows into slots, or empty them; where the tolerance cannot be reached put all back and say so."""
        before = self.points.features[slots], self.points.targets[slots], self.points.occupied[slots]
        alpha, residual = self.alpha.clone(), self.residual.clone()
        try:
            if len(slots) > CHUNK or not self.points.count:
                self.alpha[slots] = 0
                self._store(slots, features, targets)
                self._refresh()
            else:
                self._take_back(slots)
                self._store(slots, features, targets)
                if features is not None:
                    self._enter(slots)
            self._settle()
        except Exception:
            self.points.features[slots], self.points.targets[slots], self.points.occupied[slots] = before
            self.put_back(alpha, residual)
            raise
        self.health.steps += 1

    def rebuild(self) -> None:
        """The cold start: landmarks chosen anew, alpha from 0."""
        self.points.recount()
        self._preconditioner = None
        self.alpha.zero_()
        self._refresh()
        self._solve()

    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        """Another kernel and noise over the same rows; back to the old ones if they cannot be solved."""
        before = self.points.kernel, self.points.noise_std, self.alpha.clone(), self.residual.clone()
        self.points.kernel, self.points.noise_std = kernel, noise_std
        try:
            self.rebuild()
        except Exception:
            self.points.kernel, self.points.noise_std = before[:2]
            self.put_back(*before[2:])
            raise

    def put_back(self, alpha: Tensor, residual: Tensor) -> None:
        """Go on with the rows that are stored and the alpha and residual (N, R) that they had."""
        self.points.recount()
        self.alpha.copy_(alpha)
        self.residual.copy_(residual)
        self._preconditioner = None
        self._audit()
        self.health.residual = self._relative_residual()

    def _take_back(self, slots: Tensor) -> None:
        """alpha_S = 0, with r to match."""
        held = slots[self.points.occupied[slots]]
        if len(held):
            self.residual[: self.points.width] += self.points.columns(self.points.features[held]) @ self.alpha[held]
        self.alpha[slots] = 0
        self.residual[slots] = 0

    def _enter(self, slots: Tensor) -> None:
        """r_S of rows just stored, whose alpha is 0, and the step that makes it 0."""
        k = self.points.columns(self.points.features[slots])
        self.residual[slots] = self.points.right_hand_sides()[slots] - k.mT @ self.alpha[: self.points.width]
        self._step(slots, lambda step: k @ step)

    def _step(self, slots: Tensor, spread: Linear) -> None:
        """alpha_S += K_SS^-1 r_S, and r to match by ``spread``, the product with k(h, h_S): r_S becomes 0. O(B^3 + N B C)."""
        root, failed = torch.linalg.cholesky_ex(self.points.block(slots))
        if bool(failed):
            return  # rows that coincide, and next to no noise: left to what comes after
        step = torch.cholesky_solve(self.residual[slots], root)
        self.alpha[slots] += step
        self.residual[: self.points.width] -= spread(step)
        self.residual[slots] -= self.points.noise_std**2 * step

    def _store(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        self.points.write(slots, features, targets)
        if 4 * len(slots) > self.points.count:
            self._preconditioner = None
        if self._preconditioner is not None:
            self._preconditioner.replace(slots, features)

    # Solving --------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Steps 3 to 5: do what is needed, and no more, to be within the tolerance."""
        passes = self.health.passes
        absent = self.points.scales() == 0  # a class without rows: its alpha is 0, exactly
        self.alpha[:, absent] = 0
        self.residual[:, absent] = 0
        self._since_refresh += 1
        if self._since_refresh % AUDIT_EVERY == 0:
            self._audit()
        if self._since_refresh >= REFRESH_EVERY or self.health.drift > DRIFT * self.tolerance:
            self._refresh()
        for _ in range(self._rounds()):
            before = self._relative_residual()
            if self._is_within():
                break
            self._relax()
            if self._relative_residual() > WORTH_IT * before:
                break
        if not self._is_within():
            self._solve()
        self.health.residual = self._relative_residual()
        self.health.kept += self.health.passes == passes

    def _is_within(self) -> bool:
        """Whether r, and what it was off by when last looked at, are within the tolerance together."""
        return self._relative_residual() + self.health.drift <= self.tolerance

    def _rounds(self) -> int:
        """Rounds of relaxation that take about as many kernel values as two passes over K do, symmetry and all."""
        block = min(self.rank, self.points.width // 4) + min(RELAXED, self.points.width // 8)
        return min(max(self.points.width // max(block, 1), 2), ROUNDS)

    def _relax(self) -> None:
        """Step 4: the exact step on the landmarks and the rows that need it most."""
        anchors = self.preconditioner().anchors[: self.points.width // 4]
        urgency = self._precondition(self.residual[: self.points.width] / self.points.scales().clamp_min(1e-300))
        urgency = urgency.abs().amax(dim=1)
        urgency[anchors] = 0
        urgent = urgency.topk(min(RELAXED, -(-self.points.width // 8))).indices
        slots = torch.cat([anchors, urgent[urgency[urgent] > 0]])
        self._step(slots, lambda step: self.points.spread(slots, step))
        self.health.rounds += 1

    def _solve(self) -> None:
        """Step 5, until the residual is within the tolerance and true."""
        for _ in range(3):
            goals = GOAL * self.tolerance * self.points.scales()
            solved = self.conjugate_gradients(self.alpha[: self.points.width], self.residual[: self.points.width], goals)
            self.alpha[: self.points.width], self.residual[: self.points.width] = solved.x, solved.residual
            self.health.solves += 1
            self.health.iterations = solved.iterations
            self.health.total_iterations += solved.iterations
            self._audit()
            if self._is_within():
                self.health.residual = self._relative_residual()
                return
            off = self.health.drift
            self._refresh()
        if self._is_noise_lost():
            raise self._lost_noise()
        dtype = self.points.features.dtype
        raise NotConvergedError(
            f"tolerance={self.tolerance:g} is more than {dtype} kernel values can carry for {self.points.kernel} with "
            f"noise_std={self.points.noise_std:g}: rounding leaves a residual of {off:.1e}. Raise tolerance or noise_std"
            f"{'' if dtype == torch.float64 else ', or use dtype=torch.float64'}."
        )

    def conjugate_gradients(self, x: Tensor, residual: Tensor, goals: Tensor) -> Solved:
        """Solve, or say what to turn."""
        if not self.points.count:
            return Solved(x, residual, 0, True)
        solved = solve(self._product, self._precondition, x, residual, goals, max_iterations=MAX_ITERATIONS)
        if not solved.converged:
            norms = torch.linalg.vector_norm(solved.residual, dim=0) / goals.clamp_min(1e-300)
            if self._is_noise_lost():
                raise self._lost_noise()
            raise NotConvergedError(
                f"conjugate gradients did not reach tolerance={self.tolerance:g} for {self.points.kernel} with "
                f"noise_std={self.points.noise_std:g} over {self.points.count} rows: the residual is "
                f"{float(norms.max()) * GOAL:.1e} times the tolerance after {solved.iterations} steps. Raise noise_std, rank "
                f"(now {self.rank}) or tolerance."
            )
        return solved

    def _precondition(self, residual: Tensor) -> Tensor:
        """M^-1 r, (n, R)."""
        try:
            return self.preconditioner()(residual)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise self._lost_noise() from error

    def _is_noise_lost(self) -> bool:
        """Whether rounding is why the tolerance was not reached; asked once it was not.

        Decided by sizes and not by the step that failed, which differs from processor to processor. Nothing is
        refused beforehand, since rows that are far apart can do with less noise.
        """
        return self.points.noise_std <= self._least_noise()

    def _least_noise(self) -> float:
        """Sigma with which rounding spares the tolerance, whatever the rows: r is known to some eps trace(K) / sigma^2."""
        trace = float(self.points.kernel.diagonal(self.points.features[self.points.occupied]).double().sum())
        return math.sqrt(ROUNDING * trace / self.tolerance)

    def _lost_noise(self) -> NotConvergedError:
        return NotConvergedError(
            f"noise_std={self.points.noise_std:g} is lost in rounding beside {self.points.kernel} of {self.points.count} rows: "
            f"K cannot be inverted to tolerance={self.tolerance:g}. Raise noise_std, to "
            f"{2 * max(self._least_noise(), self.points.noise_std):.1g} or more."
        )

    def _audit(self) -> None:
        """How far r may be from the truth, by a sample of its rows. O(N (D + C)) for each of 128 rows.

        They are computed anew in float64, whose own rounding counts as well: eps (|K| |alpha|).
        """
        held = self.points.occupied.nonzero().squeeze(1)
        self.health.drift = 0.0
        if len(held):
            stride = -(-len(held) // AUDITED)
            rows = held[self._since_refresh % stride :: stride]
            k = self.points.columns(self.points.features[rows])
            true = self.points.right_hand_sides()[rows] - k.mT @ self.alpha[: self.points.width]
            true -= self.points.noise_std**2 * self.alpha[rows]
            rounding = torch.finfo(torch.float64).eps * (k.abs().mT @ self.alpha[: self.points.width].abs())
            off = torch.linalg.vector_norm((true - self.residual[rows]).abs() + rounding, dim=0)
            off *= (len(held) / len(rows)) ** 0.5
            self.health.drift = float((off / self.points.scales().clamp_min(1e-300)).max())

    def _refresh(self) -> None:
        """r = y - K alpha by a pass over K; without one while alpha is 0."""
        self._since_refresh = 0
        self.residual.copy_(self.points.right_hand_sides())
        if bool(self.alpha.any()):
            self.residual[: self.points.width] -= self._product(self.alpha[: self.points.width])
        self._audit()

    def preconditioner(self) -> LandmarkPreconditioner:
        """M^-1, with landmarks chosen anew if it is time to."""
        if self._preconditioner is None or self._preconditioner.is_stale(self.points.count):
            self._preconditioner = None  # make room first
            self._preconditioner = LandmarkPreconditioner(
                self.points.features,
                self.points.occupied,
                self.points.kernel,
                noise_variance=self.points.noise_std**2,
                rank=self.rank,
                seed=self.seed,
            )
            self.health.landmark_choices += 1
            logger.info("step %d: %d landmarks chosen", self.health.steps, len(self._preconditioner))
        return self._preconditioner

    # What both stand on -----------------------------------------------------------------------------------------------

    def _product(self, x: Tensor) -> Tensor:
        """K x, (width, R): a pass over K."""
        self.health.passes += 1
        return self.points.product(x)

    def _relative_residual(self) -> float:
        """Largest |r| / |y| over the right-hand sides."""
        norms = torch.linalg.vector_norm(self.residual, dim=0)
        return float((norms / self.points.scales().clamp_min(1e-300)).max())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow a surrounding module to its device, never to its dtype."""
        device = fn(torch.empty(0, device=self.alpha.device)).device
        super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]
        self._preconditioner = None
        return self
