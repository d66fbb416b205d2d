"""The low-rank engine: a Gaussian process over any number of rows, seen through a few landmarks."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from semigpc.gp.checks import (
    check_classes,
    check_engine,
    check_offset,
    check_queries,
    check_rows,
    check_slots,
    check_tensor,
    full_precision,
)
from semigpc.gp.engine import Expansion, NotPositiveDefiniteError
from semigpc.gp.gap import Gap, measure_gap
from semigpc.gp.health import LowRankHealth
from semigpc.gp.kernels import RBF, Kernel
from semigpc.gp.landmarks import LandmarkFeatures, choose_landmarks
from semigpc.gp.stored_rows import StoredRows
from semigpc.gp.weight_space import WeightSpace

CHUNK = 4096  # rows whose features are held at a time
BATCH = 512  # rows changed at a time
CANDIDATES = 16  # times the rank: rows among which landmarks are chosen, so that this does not grow with N either


class LowRankGP(nn.Module):
    """The GP of the Nystrom kernel of m landmarks: what an exact engine does, at a cost that does not grow with N.

        phi(h) = L^-1 k(Z, h)          L L^T = k(Z, Z)                     so phi(h) . phi(h') ~ k(h, h')
        mu(h)  = phi(h)^T A^-1 R       A = Phi^T Phi + sigma^2 I           R = Phi^T y_Q
        var(h) = k(h, h) - |phi(h)|^2 + sigma^2 phi(h)^T A^-1 phi(h)

    Rows enter and leave A and R as rank-B changes, O(B m (D + m)) whatever N (gp_core, "Past the N^2 wall"). The first two
    terms of the variance are what the landmarks do not carry of the prior (the FITC correction): far from all landmarks the
    engine is as unsure as an exact one, and its mean is near 0.

    ``mean`` costs O(M m (D + C)), ``variance`` O(M m (D + m)), memory O(N (D + C) + m^2). ``gap`` compares with an exact GP.

    Landmarks are chosen anew (:func:`choose_landmarks`) when as many rows have been written as the buffer held the last time,
    or every ``landmark_steps`` steps, and sooner if new rows are left unexplained by half as much again. That costs
    O(N m (D + m)); spread over a turnover of the buffer it is O(B m (D + m)) a step.

    ``state_dict`` holds rows and landmarks. ``rebuild`` makes everything else from them, so a run that calls it as it saves
    goes on like one that resumes from the file.

    Args:
        capacity: N, slots. n_features: D. n_classes: C.
        rank: m at most.
        kernel: k; ``RBF()`` by default. It must be positive definite.
        noise_std: sigma.
        landmark_steps: as above; 0 leaves it to the turnover.
        dtype: float32 or float64, of features and A^-1. Weights, A and all small algebra are float64 either way.
        seed: of the choice of landmarks.
    """

    landmarks: Tensor
    counters: Tensor

    def __init__(
        self,
        capacity: int,
        n_features: int,
        n_classes: int,
        *,
        rank: int = 1024,
        kernel: Kernel | None = None,
        noise_std: float = 0.1**0.5,
        landmark_steps: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_engine(capacity, n_features, n_classes, kernel=kernel, noise_std=noise_std, dtype=dtype)
        if not 1 <= rank <= capacity:
            raise ValueError(f"rank must lie in [1, {capacity}], as there are no more landmarks than slots; got {rank}.")
        if landmark_steps < 0:
            raise ValueError(f"landmark_steps must not be negative; got {landmark_steps}.")
        kernel = RBF() if kernel is None else kernel
        _refuse_indefinite(kernel)
        self.capacity, self.n_features, self.n_classes = capacity, n_features, n_classes
        self.rank, self.landmark_steps, self.dtype, self.seed = rank, landmark_steps, dtype, seed
        self.kernel, self.noise_std = kernel, noise_std
        self.rows = StoredRows(capacity, n_features, n_classes, dtype=dtype, device=device)
        self.space = WeightSpace(rank, n_classes + 1, noise_variance=noise_std**2, dtype=dtype, device=device)
        self.register_buffer("landmarks", torch.zeros(rank, n_features, dtype=dtype, device=device))
        self.register_buffer("counters", torch.zeros(8, dtype=torch.float64))
        self.health = LowRankHealth()
        self.basis: LandmarkFeatures | None = None
        self.register_state_dict_pre_hook(_store_counters)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_refuse_another_rank)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_restore)  # type: ignore[no-untyped-call]

    # Asking ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Occupied slots."""
        return self.rows.count

    @property
    def features(self) -> Tensor:
        """h_Q, (N, D), a view; rows of empty slots are 0."""
        return self.rows.features

    @property
    def targets(self) -> Tensor:
        """y_Q, (N, C), a view; rows of empty slots are 0."""
        return self.rows.targets

    @property
    def occupied(self) -> Tensor:
        """(N,) bool."""
        return self.rows.occupied

    @full_precision()
    def mean(self, queries: Tensor, *, offset: Tensor | None = None) -> Tensor:
        """mu(h) = k(h, Z) v for targets less the offset, (M, C). O(M m (D + C)); differentiable in the queries.

        Args:
            queries: (M, D). offset: (C,) subtracted from every target and not added back; 0 by default.
        """
        check_queries(self, queries)
        if self.basis is None:
            return queries @ queries.new_zeros(self.n_features, self.n_classes)
        weights = self._weights(offset)
        means = [self.basis.kernel_values(part).double() @ weights for part in queries.to(self.dtype).split(CHUNK)]
        return torch.cat(means).to(queries.dtype)

    @full_precision()
    @torch.no_grad()
    def variance(self, queries: Tensor) -> Tensor:
        """var(h) with the FITC correction, (M,), of the noise-free function, at least 0. O(M m (D + m)).

        Args:
            queries: (M, D).
        """
        check_queries(self, queries)
        stored = queries.to(self.dtype)
        if self.basis is None:
            return self.kernel.diagonal(stored).to(queries.dtype)
        parts = []
        for part in stored.split(CHUNK):
            phi = self.basis.phi(part)
            parts.append(self.basis.residual(part, phi) + self.noise_std**2 * self.space.quadratic(phi))
        return torch.cat(parts).to(queries.dtype)

    @full_precision()
    @torch.no_grad()
    def explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        """What each slot adds to the mean of one class per query: phi(h) . phi(h_i) alpha[i, c], (M, N). O(N m (D + M + C)).

        alpha = (y_Q - Phi A^-1 R) / sigma^2 as for the exact engine with the Nystrom kernel; the weights sum to the mean.

        Args:
            queries: (M, D). classes: (M,) the class to explain for each query.
        """
        check_classes(self, queries, classes)
        weights = queries.new_zeros(len(queries), self.capacity)
        if self.basis is None:
            return weights
        root_inverse, v = self.basis.root_inverse, self._weights(None)
        g = self.basis.kernel_values(queries.to(self.dtype)).double() @ root_inverse.mT @ root_inverse  # (M, m)
        for slots in self.occupied.nonzero().squeeze(1).split(CHUNK):
            k = self.basis.kernel_values(self.features[slots]).double()  # (n, m)
            alpha = (self.targets[slots].double() - k @ v) / self.noise_std**2
            weights[:, slots] = (g @ k.mT * alpha[:, classes].mT).to(weights.dtype)
        return weights

    @torch.no_grad()
    def expansion(self, *, offset: Tensor | None = None) -> Expansion:
        """The mean as a sum over the landmarks (m, D), with weights L^-T A^-1 Phi^T (y_Q - 1 offset^T) (m, C). O(m^2 C)."""
        if self.basis is None:
            return Expansion(self.landmarks[:0], self.landmarks.new_zeros(0, self.n_classes, dtype=torch.float64))
        return Expansion(self.basis.landmarks.clone(), self._weights(offset).clone())

    def gap(self, *, rows: int = 8192, seed: int = 0) -> Gap:
        """How far the mean of these landmarks is from that of an exact GP, on sampled rows. O(rows^3 + rows m (D + m)).

        Both are made over the same ``rows`` sampled rows, those that are landmarks among them, and asked about others: an
        eighth of the rest, 512 at most. A landmark whose own row is left out would be a basis function without data, which
        the engine does not have. In a larger buffer landmarks are a smaller part of the rows, and the gap is larger.
        """
        return measure_gap(self.rows, self.basis, self.noise_std, rows=rows, seed=seed)

    def _weights(self, offset: Tensor | None) -> Tensor:
        """v = L^-T A^-1 Phi^T (y_Q - 1 offset^T), (m, C), float64."""
        assert self.basis is not None
        both = self.basis.root_inverse.mT @ self.space.weights  # (m, C + 1)
        v, ones = both[:, : self.n_classes], both[:, self.n_classes :]
        return v if offset is None else v - ones * check_offset(self, offset).to(v)

    # Changing -------------------------------------------------------------------------------------------------------

    @full_precision()
    @torch.no_grad()
    def replace(self, slots: Tensor, features: Tensor, targets: Tensor) -> None:
        """Put new points into slots, empty or occupied. O(B m (D + m)); a refused call changes nothing at all.

        Args:
            slots: (B,) distinct integers in [0, capacity). features: (B, D) finite. targets: (B, C) finite.
        """
        slots = check_slots(self, slots)
        features, targets = check_rows(self, slots, features, targets)
        if len(slots) >= len(self):  # most rows are new, and so should the landmarks be
            self.rows.write(slots, features, targets)
            self.health.steps += 1
            self._choose()
            return
        for part in torch.arange(len(slots), device=slots.device).split(BATCH):
            self._change(slots[part], features[part], targets[part])

    @full_precision()
    @torch.no_grad()
    def remove(self, slots: Tensor) -> None:
        """Empty some occupied slots. O(B m (D + m)). No slots, no change; a refused call changes nothing.

        Args:
            slots: (B,) distinct, occupied.
        """
        check_tensor("slots", slots)
        if slots.shape != (0,):
            for part in check_slots(self, slots, occupied=True).split(BATCH):
                self._change(part, None, None)

    @full_precision()
    @torch.no_grad()
    def rebuild(self) -> None:
        """A, R and their solution anew from the stored rows and the landmarks; sheds all drift. O(N m (D + m) + m^3)."""
        count = int(self.health.landmarks)
        self.basis = LandmarkFeatures(self.landmarks[:count], self.kernel) if count else None
        self.space.reset(count)
        if self.basis is not None:
            for slots in self.occupied.nonzero().squeeze(1).split(CHUNK):
                self.space.accumulate(self.basis.phi(self.features[slots]), _with_ones(self.targets[slots]))
            self.space.solve()

    @full_precision()
    @torch.no_grad()
    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        """Go on with another kernel and noise over the same rows, with landmarks of their own. O(N m (D + m) + m^3).

        One refused because it cannot be solved for leaves the old kernel in place.
        """
        check_engine(self.capacity, self.n_features, self.n_classes, kernel=kernel, noise_std=noise_std, dtype=self.dtype)
        _refuse_indefinite(kernel)
        before = self.kernel, self.noise_std, self.landmarks.clone(), replace(self.health)
        self._adopt(kernel, noise_std)
        try:
            if len(self):
                self._choose()
        except NotPositiveDefiniteError:
            self._adopt(*before[:2])
            self.landmarks.copy_(before[2])
            self.health = before[3]
            self.rebuild()
            raise

    def _adopt(self, kernel: Kernel, noise_std: float) -> None:
        self.kernel, self.noise_std, self.space.noise_variance = kernel, noise_std, noise_std**2

    def _change(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Take rows out and put others in; choose landmarks anew if it is time."""
        held = self.occupied[slots]
        old = slots[held]
        if self.basis is not None:
            coming = self.features[:0] if features is None else features
            phi = self.basis.phi(torch.cat([self.features[old], coming]))
            self.space.change(
                phi,
                _with_ones(torch.cat([self.targets[old], self.targets[:0] if targets is None else targets])),
                leaving=len(old),
            )
            if len(coming):
                self.health.cover(self._unexplained(coming, phi[len(old) :]))
        self.rows.write(slots, features, targets)
        self.health.count(len(slots))
        if not len(self):
            self.health.landmarks = 0
            self.rebuild()
        elif self.health.due(len(self), full=len(self) == self.capacity, every=self.landmark_steps):
            self._choose()

    def _choose(self) -> None:
        """Choose landmarks among the stored rows, and rebuild on them."""
        occupied = self.occupied.nonzero().squeeze(1)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + int(self.health.steps))
        drawn = torch.randperm(len(occupied), generator=generator)[: CANDIDATES * self.rank].sort().values
        candidates = self.features[occupied[drawn.to(occupied.device)]]
        chosen = candidates[choose_landmarks(candidates, self.kernel, self.rank, generator=generator)]
        self.landmarks.zero_()
        self.landmarks[: len(chosen)] = chosen
        self.health.chosen(len(chosen), len(occupied))
        self.rebuild()
        if self.basis is not None:  # there is one unless k(x, x) is 0 for all rows
            self.health.uncovered = self.health.uncovered_then = self._unexplained(candidates[:CHUNK])

    def _unexplained(self, features: Tensor, phi: Tensor | None = None) -> float:
        """Mean share of k(x, x) that the landmarks leave, of rows (n, D)."""
        assert self.basis is not None
        own = self.kernel.diagonal(features).double().clamp_min(1e-30)
        return float((self.basis.residual(features, phi) / own).mean())

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Follow a surrounding module to its device, never to its dtype."""
        device = fn(torch.empty(0, device=self.landmarks.device)).device
        moved = super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]
        if self.basis is not None and self.basis.landmarks.device != self.landmarks.device:
            self.rebuild()
        return moved

    def extra_repr(self) -> str:
        return (
            f"capacity={self.capacity}, n_features={self.n_features}, n_classes={self.n_classes}, rank={self.rank}, "
            f"kernel={self.kernel}, noise_std={self.noise_std:g}, dtype={self.dtype}"
        )


def _with_ones(targets: Tensor) -> Tensor:
    """Targets (n, C) and a column of ones, by which an offset costs nothing: (n, C + 1)."""
    return torch.cat([targets, targets.new_ones(len(targets), 1)], dim=1)


def _refuse_indefinite(kernel: Kernel) -> None:
    if not kernel.positive_definite:
        raise ValueError(f"landmarks need a positive definite kernel, and {kernel} may be none; use the exact engine with it.")


def _store_counters(engine: LowRankGP, _prefix: str, _keep_vars: bool) -> None:
    engine.counters.copy_(torch.tensor(engine.health.saved(), dtype=torch.float64))


def _refuse_another_rank(engine: LowRankGP, state: dict[str, Any], prefix: str, *_: object) -> None:
    saved = state.get(f"{prefix}landmarks")
    if saved is not None and saved.shape != engine.landmarks.shape:
        raise ValueError(f"saved landmarks have shape {tuple(saved.shape)}; this engine holds {tuple(engine.landmarks.shape)}.")


def _restore(engine: LowRankGP, _incompatible_keys: object) -> None:
    engine.health = LowRankHealth.restored(engine.counters.tolist())
    engine.rebuild()
