"""The points of a buffer and the solver of their kernel matrix, kept true as points come and go."""

import logging
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from semigpc.gp.health import Health
from semigpc.gp.kernels import Kernel, square_norms
from semigpc.gp.solver import NotPositiveDefiniteError, OnlineSolver

logger = logging.getLogger(__name__)

CHUNK = 256  # rows replaced, or queries answered, at a time: bounds the memory of one call
PROBES = 8  # rows whose residuals are looked at ...
PROBE_EVERY = 4  # ... every so many steps
REFINE_ABOVE = 1e-2  # residual of P at which refine="auto" starts refining ...
REFINE_MEAN_ABOVE = 1e-4  # ... or residual of the mean
REFINE_ALPHA_ABOVE = 1e-5  # residual of the mean at which alpha is refined once K is held ...
REFINE_ALPHA_RHS = 16  # ... at most once for every so many right-hand sides, to bound its cost
REBUILD_ABOVE = 0.3  # residual of P at which it is given up and rebuilt ...
REBUILD_MEAN_ABOVE = 1e-2  # ... or residual of the mean
SAVED = ("feature_columns", "targets", "occupied", "touched", "counters")


class KernelSystem(nn.Module):
    """Features, targets, and K^-1 of the occupied slots; everything of an exact engine that changes.

    Arguments are those of ``ExactGP``, which checks them. N slots, D features, C targets, n the rows that the solver has in
    use: N rounded up to its tiles, or fewer while the buffer grows.
    """

    feature_columns: Tensor
    square_norms: Tensor
    targets: Tensor
    occupied: Tensor
    touched: Tensor
    counters: Tensor

    def __init__(
        self,
        capacity: int,
        n_features: int,
        n_classes: int,
        *,
        kernel: Kernel,
        noise_std: float,
        refine: Literal["auto", "always", "never"],
        dtype: torch.dtype,
        device: torch.device | str | None,
    ) -> None:
        super().__init__()
        self.capacity, self.n_classes = capacity, n_classes
        self.kernel, self.noise_std, self.refine, self.dtype = kernel, noise_std, refine, dtype
        self.health = Health()
        # (D, N): against a long buffer, the product of a few queries runs fastest in this layout.
        self.register_buffer("feature_columns", torch.zeros(n_features, capacity, dtype=dtype, device=device))
        self.register_buffer("square_norms", torch.zeros(capacity, dtype=dtype, device=device), persistent=False)
        self.register_buffer("targets", torch.zeros(capacity, n_classes, dtype=dtype, device=device))
        self.register_buffer("occupied", torch.zeros(capacity, dtype=torch.bool, device=device))
        self.register_buffer("touched", torch.zeros(capacity, dtype=torch.int64, device=device))
        self.solver = OnlineSolver(
            capacity,
            n_classes + 1,  # the last right-hand side is 1 in every occupied slot: beta = K^-1 1
            noise_variance=noise_std**2,
            dtype=dtype,
            device=device,
        )
        if refine == "always":
            self.solver.hold_kernel_matrix()
        self.count = 0
        self._alpha_refined_at = 0
        self.before_load: dict[str, Tensor] = {}
        self.register_buffer("counters", torch.zeros(7, dtype=torch.int64))
        self.register_state_dict_pre_hook(_store_counters)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_refuse_what_does_not_fit)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_restore)  # type: ignore[no-untyped-call]

    @property
    def features(self) -> Tensor:
        """h_Q, (N, D), a view; rows of empty slots are 0."""
        return self.feature_columns.mT

    def rebuild(self) -> None:
        """Recompute P and alpha from the stored features and targets alone; sheds all drift. O(N^3).

        A positive definite K is inverted by inserting its rows chunk by chunk, without N^2 temporaries. One that may be
        indefinite needs the pivoting of a dense inverse, and has it at every change.
        """
        slots = self.occupied.nonzero().squeeze(1)
        self.count = len(slots)
        self.solver.reset()
        self.health.inverse_residual = self.health.mean_residual = 0.0
        try:
            if self.kernel.positive_definite:
                self._insert(slots)
            elif len(slots):
                self.solver.grow(int(slots[-1]) + 1)
                wide = self.features[slots].double()
                K = self.kernel(wide, wide)
                K.diagonal().copy_(self.kernel.diagonal(wide) + self.noise_std**2)
                self.solver.invert(slots, K, self._all_targets()[:, slots])
        except NotPositiveDefiniteError as error:
            self.occupied[slots] = True
            if self.refine == "auto" and self.solver.K is None and self.kernel.positive_definite:
                logger.info("step %d: K cannot be inverted as it is, refining from now on", self.health.steps)
                self.solver.hold_kernel_matrix()
                self.rebuild()
                return
            raise NotPositiveDefiniteError(
                f"the kernel matrix of {self.kernel} with noise_std={self.noise_std:g} cannot be inverted in {self.dtype}. "
                + ("Raise noise_std." if self.dtype == torch.float64 else "Raise noise_std, or use dtype=torch.float64.")
            ) from error

    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        """Another kernel and noise over the same rows; back to the old ones if their K cannot be inverted. O(N^3)."""
        before = self.kernel, self.noise_std
        self._adopt(kernel, noise_std)
        try:
            self.rebuild()
        except NotPositiveDefiniteError:
            self._adopt(*before)
            self.rebuild()
            raise

    def _adopt(self, kernel: Kernel, noise_std: float) -> None:
        self.kernel, self.noise_std, self.solver.noise_variance = kernel, noise_std, noise_std**2

    def _insert(self, slots: Tensor) -> None:
        """Put what is stored at these slots into an empty solver."""
        self.occupied.zero_()
        self.count = 0
        for start in range(0, len(slots), CHUNK):
            chunk = slots[start : start + CHUNK]
            self._update(chunk, self.features[chunk], self.targets[chunk])

    def change(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Update chunk by chunk; where that fails write the rows and rebuild P; where that fails put all back and say so."""
        before = (self.features[slots], self.targets[slots], self.occupied[slots])
        probing = self.count > 0 and self.health.steps % PROBE_EVERY == 0
        try:
            if not self.kernel.positive_definite:  # on its way to the new K an update could meet a singular one
                self._store(slots, features, targets)
                self.rebuild()
            else:
                for start in range(0, len(slots), CHUNK):
                    part = slice(start, start + CHUNK)
                    rows = (None, None) if features is None or targets is None else (features[part], targets[part])
                    self._update_or_rebuild(slots[part], *rows, probe=probing and start == 0)
        except NotPositiveDefiniteError:
            self.features[slots], self.targets[slots], self.occupied[slots] = before
            self.square_norms.copy_(square_norms(self.features))
            self.rebuild()
            raise
        health = self.health
        health.steps += 1
        self.touched[slots] = health.steps
        self._refine_alpha()
        health.folds, health.refined = self.solver.inverse.folds, self.solver.rounds
        health.schur_ratio = self.solver.schur_ratio

    def _update_or_rebuild(self, slots: Tensor, features: Tensor | None, targets: Tensor | None, *, probe: bool) -> None:
        try:
            self._update(slots, features, targets, probe=probe)
        except NotPositiveDefiniteError:
            logger.info("step %d: the update fails its check, rebuilding P", self.health.steps)
            self._start_refining()
            self._store(slots, features, targets)
            self.rebuild()
            self.health.rebuilds += 1

    def _update(self, slots: Tensor, features: Tensor | None, targets: Tensor | None, *, probe: bool = False) -> None:
        """Evaluate the kernel for the new rows and hand them to the solver; None empties the slots."""
        if self.solver.size < self.capacity:
            self.solver.grow(int(slots.max()) + 1)
        G = self.solver.inverse.rows(slots)
        if probe and self._probe(slots, G):
            G = self.solver.inverse.rows(slots)
        y = self.solver.alpha.new_zeros(self.n_classes + 1, len(slots))
        if features is None or targets is None:
            C = G.new_zeros(G.shape)
            D = torch.eye(len(slots), dtype=torch.float64, device=slots.device)
        else:
            C = self.solver_rows(features)
            C[:, slots] = 0
            wide = features.double()
            D = self.kernel(wide, wide)
            D.diagonal().copy_(self.kernel.diagonal(wide) + self.noise_std**2)
            y[:-1], y[-1] = targets.mT, 1
        self.solver.replace(slots, C, D, y, G)
        self._store(slots, features, targets)

    def _store(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        if features is None or self.count < self.capacity:
            self.count += (0 if features is None else len(slots)) - int(self.occupied[slots].sum())
            self.occupied[slots] = features is not None
        self.features[slots] = 0 if features is None else features
        self.square_norms[slots] = 0 if features is None else square_norms(features)
        self.targets[slots] = 0 if targets is None else targets

    def _probe(self, slots: Tensor, G: Tensor) -> bool:
        """Look at the residuals of a few rows of K, others each time; start refining or rebuild if need be. True if rebuilt."""
        n = min(PROBES, self.width)
        step = self.health.steps // PROBE_EVERY
        probed = (torch.arange(n, device=slots.device) * (self.width // n) + step) % self.width
        K = self._evaluate_rows(probed) if self.solver.K is None else self.solver.K.rows(probed)
        inverse_residual = (G @ K.mT - (slots[:, None] == probed).to(G.dtype)).abs().max()
        alpha = self.solver.alpha[: self.n_classes, : self.solver.size]
        mean_residual = (alpha @ K.double().mT - self.targets[probed].mT).abs().max()
        health = self.health
        health.inverse_residual, health.mean_residual = float(inverse_residual), float(mean_residual)
        if not (health.inverse_residual <= REFINE_ABOVE and health.mean_residual <= REFINE_MEAN_ABOVE):
            self._start_refining()
        if not (health.inverse_residual <= REBUILD_ABOVE and health.mean_residual <= REBUILD_MEAN_ABOVE):
            logger.info("step %d: residuals too large, rebuilding P: %s", health.steps, health)
            self.rebuild()
            health.rebuilds += 1
            return True
        return False

    def _refine_alpha(self) -> None:
        """Mend alpha against K itself when its residual, probed or accumulated, is too large."""
        every = -(-(self.n_classes + 1) // REFINE_ALPHA_RHS)
        error = max(self.health.mean_residual, self.solver.alpha_error)
        if self.solver.K is None or error <= REFINE_ALPHA_ABOVE or self.health.steps < self._alpha_refined_at + every:
            return
        self._alpha_refined_at = self.health.steps
        if self.solver.refine_alpha(self._all_targets()) > REFINE_MEAN_ABOVE:
            logger.info("step %d: alpha cannot be refined with this P, rebuilding it", self.health.steps)
            self.rebuild()
            self.health.rebuilds += 1
            self.solver.refine_alpha(self._all_targets())

    def _all_targets(self) -> Tensor:
        """The solver's right-hand sides, (C + 1, n) float64: targets, and 1 at occupied slots."""
        ones = self.occupied[: self.width, None].double()
        return self._padded(torch.cat([self.targets[: self.width].double(), ones], dim=1).mT)

    def _start_refining(self) -> None:
        """With refine="auto": keep K beside P from now on."""
        if self.refine != "auto" or self.solver.K is not None:
            return
        logger.info("step %d: refining from now on, %s", self.health.steps, self.health)
        K = self.solver.hold_kernel_matrix()
        for chunk in torch.arange(self.width, device=self.occupied.device).split(CHUNK):
            K.set_rows(chunk, self._evaluate_rows(chunk))

    def stale(self, slots: Tensor) -> Tensor:
        """A few occupied slots untouched for two turnovers: an error of P stays in a row until that row is written again."""
        turnover = -(-self.count // len(slots))
        if self.health.steps <= 2 * turnover or self.health.steps % PROBE_EVERY:
            return slots[:0]
        age = torch.where(self.occupied, self.health.steps - self.touched, 0)
        age[slots] = 0
        oldest = age.topk(min(len(slots), self.capacity))
        return oldest.indices[oldest.values > 2 * turnover]

    @property
    def width(self) -> int:
        """Slots that the solver works on: those in use, rounded up to its tiles."""
        return min(self.solver.size, self.capacity)

    def cross(self, queries: Tensor) -> Tensor:
        """k(h, h_Q), (M, width), 0 at empty slots; in float64 once K is held, or if K may be indefinite."""
        stored, queries = self.features[: self.width], queries.to(self.dtype)
        if queries.requires_grad and torch.is_grad_enabled():
            stored = stored.clone()  # backward must find it as it is now, whatever is replaced meanwhile
        if self.solver.K is None and self.kernel.positive_definite:
            k = self.kernel(queries, stored, self.square_norms[: self.width])
        else:
            wide = queries.double()
            k = torch.cat([self.kernel(wide, rows.double()) for rows in stored.split(4 * CHUNK)], dim=1)
        return k if self.count == self.width else k * self.occupied[: self.width].to(k.dtype)

    def _evaluate_rows(self, slots: Tensor) -> Tensor:
        """Rows of K, (B, n): noise on the diagonal, the identity at empty slots."""
        occupied, features = self.occupied[slots], self.features[slots]
        rows = self.solver_rows(features) * occupied.unsqueeze(1)
        diagonal = self.kernel.diagonal(features) + self.noise_std**2
        rows[torch.arange(len(slots), device=slots.device), slots] = torch.where(occupied, diagonal, 1)
        return rows

    def solver_rows(self, queries: Tensor) -> Tensor:
        """k(h, h_Q) as the solver takes it: (M, n), in the engine's dtype."""
        return self._padded(self.cross(queries).to(self.dtype))

    def _padded(self, rows: Tensor) -> Tensor:
        """Rows (M, width) filled with zeros to the solver's (M, n)."""
        return nn.functional.pad(rows, (0, self.solver.size - rows.shape[1]))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow a surrounding module to its device, never to its dtype."""
        device = fn(torch.empty(0, device=self.targets.device)).device
        super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]
        return self


def _store_counters(system: KernelSystem, _prefix: str, _keep_vars: bool) -> None:
    health = system.health
    counts = [health.steps, health.folds, health.refined, health.reinserted, health.rebuilds, system._alpha_refined_at]
    system.counters.copy_(torch.tensor([*counts, system.solver.K is not None]))


def _refuse_what_does_not_fit(system: KernelSystem, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Look at a state before any of it is copied, and remember ours in case it turns out to be useless."""
    for name in SAVED:
        saved, ours = state.get(prefix + name), getattr(system, name)
        if saved is not None and saved.shape != ours.shape:
            raise ValueError(f"saved {name} have shape {tuple(saved.shape)}; this engine holds {tuple(ours.shape)}.")
        if saved is not None and not bool(saved.to(ours.dtype).square().isfinite().all()):
            raise ValueError(
                f"saved {name} are not all finite, or too large for {ours.dtype}: the file is damaged or not for this engine."
            )
    _store_counters(system, "", False)
    if prefix + "feature_columns" in state:
        system.before_load = {name: getattr(system, name).clone() for name in SAVED}


def _restore(system: KernelSystem, _incompatible_keys: object) -> None:
    if not system.before_load:  # nothing of ours was loaded
        return
    try:
        _adopt_state(system)
    except NotPositiveDefiniteError:
        for name, ours in system.before_load.items():
            getattr(system, name).copy_(ours)
        _adopt_state(system)
        raise
    finally:
        system.before_load = {}


def _adopt_state(system: KernelSystem) -> None:
    health = system.health = Health()
    counts = system.counters.tolist()
    health.steps, health.folds, health.refined, health.reinserted, health.rebuilds, system._alpha_refined_at, held = counts
    system.solver.inverse.folds, system.solver.rounds = health.folds, health.refined
    if system.refine == "auto":
        system.solver.K = None
        if held:
            system.solver.hold_kernel_matrix()
    system.square_norms.copy_(square_norms(system.features))
    system.rebuild()
    health.refined = system.solver.rounds
