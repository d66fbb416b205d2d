"""The low-rank engine: a Gaussian process over any number of rows, represented by a few landmarks."""

import copy
import logging
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import cholesky_ex, solve_triangular

from semigpc.gp.engine import Engine, Expansion, NotPositiveDefiniteError, full_precision
from semigpc.gp.kernels import Kernel
from semigpc.gp.landmarks import LandmarkFeatures, choose_landmarks
from semigpc.gp.tiles import DelayedInverse, rounding_floor

logger = logging.getLogger(__name__)

CHUNK = 4096  # rows that are converted to float64, and whose features are computed, at a time
BATCH = 512  # rows replaced at a time
# times the rank: rows among which landmarks are chosen, so that the cost of this does not grow with
# N either
CANDIDATES = 16
FAILED = 1e300  # larger than any pivot
MEMORY = 0.9  # weight of earlier batches in the running share that new rows leave unexplained
READ_EVERY = 16  # steps after which the host reads that share, as it has to wait for the device
WORSE, NOTABLE = (
    1.5,
    0.02,
)  # landmarks are chosen anew when it exceeds this factor of what it was, plus this share ...
APART = 8  # ... and at most so many times while the buffer turns over once
GAP_QUERIES = 512  # rows predicted by ``gap`` at most
GAP_SAMPLE = (
    16  # times the rows wanted: rows among which ``gap`` looks for them and for the landmarks
)
CARRIED = 1e-3  # share of k(x, x) unexplained below which a row is a landmark, or as good as one


class Gap(NamedTuple):
    """A low-rank mean compared with the exact one: both over the same rows, at queries that are
    other rows and no landmarks.

    Attributes:
        mean: average of |difference| over queries and classes. largest: the largest of them.
        same_class: share of queries for which both predict the same class.
        rows: that both were made of. queries: that were compared.
    """

    mean: float
    largest: float
    same_class: float
    rows: int
    queries: int


@dataclass(frozen=True, kw_only=True)
class LowRankHealth:
    """What a low-rank engine knows of itself.

    Args:
        steps: calls that changed the buffer.
        rebuilds: times everything was computed anew because an update failed. Should stay 0.
        choices: times that landmarks were chosen. landmarks: how many there are now, m.
        steps_since, rows_since: steps taken and rows changed since the last choice.
            rows_chosen_from: rows held then.
        uncovered: share of k(x, x) that the landmarks leave unexplained, of the rows written lately
            ...
        uncovered_then: ... and of all rows when the landmarks were chosen.
    """

    steps: int = 0
    rebuilds: int = 0
    choices: int = 0
    landmarks: int = 0
    steps_since: int = 0
    rows_since: int = 0
    rows_chosen_from: int = 0
    uncovered: float = 0.0
    uncovered_then: float = 0.0

    def counted(self, rows: int) -> "LowRankHealth":
        """Return it after one more step, which changes so many rows."""
        return replace(
            self,
            steps=self.steps + 1,
            steps_since=self.steps_since + 1,
            rows_since=self.rows_since + rows,
        )


class WeightSpace(nn.Module):
    """Ridge regression on landmark features: w = A^-1 R, A = Phi^T Phi + sigma^2 I (m, m), R =
    Phi^T Y (m, K), all float64.

    Replacing rows V_o by V_n changes P = A^-1 by two rank-B terms (Sherman, Morrison and Woodbury),
    in one pass over P. In the textbook's column form:

        W_o, W_n = P V_o, P V_n                              the pass
        S_o = I - V_o^T W_o           P1 = P + W_o S_o^-1 W_o^T
        T   = W_n + W_o S_o^-1 (V_o^T W_n)                   = P1 V_n
        S_n = I + V_n^T T             P2 = P1 - T S_n^-1 T^T
        w  += P2 (V_n (y_n - V_n^T w) - V_o (y_o - V_o^T w))

    Args:
        basis: the landmark features, m of them. noise_std: sigma.
        rows: features (n, D) and values Y (n, K), chunk by chunk. n_values: K.
    """

    weights: Tensor

    def __init__(
        self,
        basis: LandmarkFeatures,
        noise_std: float,
        rows: Iterable[tuple[Tensor, Tensor]],
        *,
        n_values: int,
    ) -> None:
        super().__init__()
        self.basis = basis
        A = torch.zeros_like(basis.root_inverse)
        A.diagonal().fill_(noise_std**2)
        R = A.new_zeros(len(A), n_values)
        for features, values in rows:
            phi = basis.phi(features)
            A.addmm_(phi.mT, phi)
            R.addmm_(phi.mT, values)
        root, failed = cholesky_ex(A)
        if bool(failed):
            raise NotPositiveDefiniteError(
                f"Phi^T Phi + sigma^2 I of {len(A)} landmarks under {basis.kernel} with noise_std={noise_std:g} cannot be "
                "inverted in float64. Raise noise_std."
            )
        self.register_buffer("weights", torch.cholesky_solve(R, root), persistent=False)
        P = torch.cholesky_inverse(root)
        self.inverse = DelayedInverse(
            max(len(P), 1), device=P.device
        )  # an empty engine has no landmarks
        self.inverse.base.grow(len(P))
        padded = nn.functional.pad(
            P, (0, self.inverse.size - len(P), 0, self.inverse.size - len(P))
        )
        self.inverse.base.fill(lambda rows, columns: padded[rows, columns])

    def change(self, phi: Tensor, values: Tensor, *, leaving: int) -> None:
        """Remove the first ``leaving`` rows (B, m), (B, K) and add the others. O(B m^2 + B^2 m).

        Raises NotPositiveDefiniteError, with nothing changed, when S_o or S_n has no Cholesky
        factor, or S_o is lost in rounding. One synchronisation with the device, to learn this.
        """
        W = self.times_inverse(phi)
        V_o, V_n, W_o, W_n = phi[:leaving], phi[leaving:], W[:leaving], W[leaving:]  # rows
        root_o, failed_o = cholesky_ex(
            torch.eye(leaving, dtype=W.dtype, device=W.device).addmm_(V_o, W_o.mT, alpha=-1)
        )
        half_o = solve_triangular(root_o, W_o, upper=False)  # half_o^T half_o = W_o S_o^-1 W_o^T
        T = W_n.addmm((V_n @ half_o.mT), half_o)
        root_n, failed_n = cholesky_ex(
            torch.eye(len(V_n), dtype=W.dtype, device=W.device).addmm_(V_n, T.mT)
        )
        least = (
            torch.cat([root_o.diagonal(), root_n.diagonal()])
            .square()
            .min()
            .sub(failed_o + failed_n, alpha=FAILED)
        )
        if not float(least) > rounding_floor(len(self.basis), W.dtype):
            raise NotPositiveDefiniteError
        half_n = solve_triangular(root_n, T, upper=False)
        signs = W.new_ones(len(W), 1)
        signs[:leaving] = -1
        pull = signs * (values - phi @ self.weights)  # (B, K)
        moved = phi.mT @ pull
        self.weights = (
            self.weights + W.mT @ pull + half_o.mT @ (half_o @ moved) - half_n.mT @ (half_n @ moved)
        )
        self.inverse.add(minus=self._padded(half_n), plus=self._padded(half_o))

    def times_inverse(self, phi: Tensor) -> Tensor:
        """Return phi @ P for phi (M, m). O(M m^2)."""
        return self.inverse.multiply(self._padded(phi))[:, : len(self.basis)]

    def _padded(self, rows: Tensor) -> Tensor:
        """Return rows (B, m) filled with zeros to the width of P's tiles."""
        missing = self.inverse.size - rows.shape[1]
        return nn.functional.pad(rows, (0, missing)) if missing else rows


class LowRankGP(Engine):
    """The GP of the Nystrom kernel of m landmarks: what an exact engine does, at a cost that does
    not grow with N.

        phi(h) = L^-1 k(Z, h)          L L^T = k(Z, Z)                     so phi(h) . phi(h') ~ k(h, h')
        mu(h)  = phi(h)^T A^-1 R       A = Phi^T Phi + sigma^2 I           R = Phi^T y_Q
        var(h) = k(h, h) - |phi(h)|^2 + sigma^2 phi(h)^T A^-1 phi(h)

    Rows enter and leave A and R as rank-B changes, O(B m (D + m)) whatever N. The first two terms
    of the variance are what the landmarks do not explain of the prior (the FITC correction): far
    from all landmarks the variance is that of an exact engine, and the mean is near 0. ``mean``
    costs O(M m (D + C)), ``variance`` O(M m (D + m)), ``explain`` O(N m (D + M + C)), memory O(N (D
    + C) + m^2). ``gap`` compares with an exact GP.

    Landmarks are chosen anew (:func:`choose_landmarks`) when as many rows have been changed as the
    buffer held the last time, or every ``landmark_steps`` steps, and sooner if new rows are left
    unexplained by half as much again. That costs O(N m (D + m)); spread over a turnover of the
    buffer it is O(B m (D + m)) a step.

    Rows are stored in ``dtype``; all arithmetic is float64. ``state_dict`` holds rows, landmarks
    and counters. ``rebuild`` is a deterministic function of these, so a run that calls it as it
    saves continues like one that resumes from the file.

    Args:
        capacity: N, slots. n_features: D. n_classes: C.
        rank: m at most.
        kernel: k; ``RBF()`` by default. It must be positive definite.
        noise_std: sigma.
        landmark_steps: as above; 0 leaves it to the turnover.
        dtype: of the stored rows, float32 or float64.
        seed: of the choice of landmarks.
    """

    landmarks: Tensor  # Z, (rank, D), the first m rows
    counters: Tensor
    uncovered: Tensor  # see LowRankHealth; on the device, where it is computed at every step
    space: WeightSpace
    SAVED = ("features", "targets", "occupied", "landmarks", "counters")

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
        super().__init__(
            capacity, n_features, n_classes, kernel=kernel, noise_std=noise_std, dtype=dtype
        )
        if not 1 <= rank <= capacity:
            raise ValueError(
                f"rank must lie in [1, {capacity}], as there are no more landmarks than slots; got {rank}."
            )
        if landmark_steps < 0:
            raise ValueError(f"landmark_steps must not be negative; got {landmark_steps}.")
        self.rank, self.landmark_steps, self.seed = rank, landmark_steps, seed
        self._make_rows(device)
        self.register_buffer("landmarks", torch.zeros(rank, n_features, dtype=dtype, device=device))
        self.register_buffer(
            "counters", torch.zeros(len(fields(LowRankHealth)), dtype=torch.float64)
        )
        self.register_buffer(
            "uncovered", torch.zeros((), dtype=torch.float64, device=device), persistent=False
        )
        self._health = LowRankHealth()
        self._rebuild()

    # Queries --------------------------------------------------------------------------------------

    @property
    def basis(self) -> LandmarkFeatures:
        """The landmark features phi; none while the engine is empty."""
        return self.space.basis

    @property
    def health(self) -> LowRankHealth:
        """Counters and coverage; waits for the device."""
        return replace(self._health, uncovered=float(self.uncovered))

    def _mean(self, queries: Tensor, offset: Tensor | None) -> Tensor:
        weights = self._weights(offset)
        return torch.cat(
            [self.basis.kernel_values(part) @ weights for part in queries.split(CHUNK)]
        )

    def _variance(self, queries: Tensor) -> Tensor:
        parts = []
        for part in queries.split(CHUNK):
            phi = self.basis.phi(part)
            explained = (self.space.times_inverse(phi) * phi).sum(dim=1)
            parts.append(self.basis.residual(part, phi) + self.noise_std**2 * explained)
        return torch.cat(parts)

    def _explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        """phi(h) . phi(h_i) alpha[i, c], with the alpha = (y_Q - Phi A^-1 R) / sigma^2 of an exact
        GP of the Nystrom kernel.
        """
        weights = queries.new_zeros(len(queries), self.capacity)
        v, g = (
            self._weights(None),
            self.basis.phi(queries) @ self.basis.root_inverse,
        )  # g . k(Z, h_i) = phi(h) . phi(h_i)
        for slots in self.occupied.nonzero().squeeze(1).split(CHUNK):
            k = self.basis.kernel_values(self.features[slots])
            alpha = (self.targets[slots] - k @ v) / self.noise_std**2
            weights[:, slots] = (g @ k.mT * alpha[:, classes].mT).to(weights.dtype)
        return weights

    def _expansion(self, offset: Tensor | None) -> Expansion:
        return Expansion(self.landmarks[: len(self.basis)].clone(), self._weights(offset))

    def _weights(self, offset: Tensor | None) -> Tensor:
        """L^-T A^-1 Phi^T (y_Q - 1 offset^T), (m, C)."""
        w, ones = self.space.weights[:, : self.n_classes], self.space.weights[:, self.n_classes :]
        return self.basis.root_inverse.mT @ (w if offset is None else w - ones * offset)

    @full_precision()
    @torch.no_grad()
    def gap(self, *, rows: int = 8192, seed: int = 0) -> Gap:
        """Return how far the mean of these landmarks is from that of an exact GP, on sampled rows.
        O(rows^3 + rows m (D + m)).

        Both are made over the same ``rows`` sampled rows, those that are landmarks among them, and
        compared at others: an eighth of the rest, 512 at most. A landmark whose own row is left out
        would be a basis function without data, which the engine does not have. In a larger buffer
        landmarks are a smaller part of the rows, and the gap is larger.
        """
        slots = self.occupied.nonzero().squeeze(1)
        order = torch.randperm(len(slots), generator=torch.Generator().manual_seed(seed))[
            : GAP_SAMPLE * rows
        ]
        slots = slots[order.to(slots.device)]
        free = (
            torch.cat(
                [_unexplained(self.basis, self.features[part]) for part in slots.split(CHUNK)]
            )
            > CARRIED
        )
        asked = slots[free][: min(GAP_QUERIES, -(-int(free.sum()) // 8))]
        if not len(asked) or not len(self.basis):  # all rows are landmarks, or there are none
            return Gap(0.0, 0.0, 1.0, len(self), 0)
        held = torch.cat([slots[~free], slots[free][len(asked) :]])[
            : max(rows, 2 * int((~free).sum()))
        ]
        H, y, h = (
            self.features[held].double(),
            self.targets[held].double(),
            self.features[asked].double(),
        )
        K = self.kernel(H, H)
        K.diagonal().copy_(self.kernel.diagonal(H) + self.noise_std**2)
        exact = self.kernel(h, H) @ torch.cholesky_solve(y, torch.linalg.cholesky(K))
        low = (
            self.basis.phi(h)
            @ WeightSpace(self.basis, self.noise_std, [(H, y)], n_values=self.n_classes).weights
        )
        difference, same = (
            (low - exact).abs(),
            (low.argmax(dim=1) == exact.argmax(dim=1)).double().mean(),
        )
        return Gap(
            float(difference.mean()), float(difference.max()), float(same), len(held), len(asked)
        )

    # Changes --------------------------------------------------------------------------------------

    def _change(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Update A^-1, or choose landmarks if it is time. What an error must leave alone is
        assigned when nothing can fail.
        """
        listed, slots = slots.tolist(), slots.to(self.device, non_blocking=True)
        health = self._health.counted(len(listed))
        before = self.features[slots], self.targets[slots], self.occupied[slots]
        most_are_new = features is not None and len(listed) >= len(self)
        none_stay = features is None and len(listed) == len(self)
        try:
            if most_are_new or none_stay or not len(self.basis) or self._due(health):
                self._write_rows(slots, features, targets)
                self._choose(health)
            else:
                self._update(health, listed, slots, features, targets)
        except BaseException:  # an interrupt, too: a choice can take minutes
            self.features[slots], self.targets[slots], self.occupied[slots] = before
            raise

    def _due(self, health: LowRankHealth) -> bool:
        """Return whether it is time for other landmarks.

        As many rows have changed as there were; with a schedule, once the buffer is full, every
        ``landmark_steps`` steps instead. Or new rows are covered badly.
        """
        if self.landmark_steps and health.steps_since >= self.landmark_steps:
            return True
        if health.rows_since >= health.rows_chosen_from and not (
            self.landmark_steps and len(self) == self.capacity
        ):
            return True
        if health.steps % READ_EVERY or health.rows_since * APART < len(self):
            return False
        return float(self.uncovered) > WORSE * health.uncovered_then + NOTABLE

    def _update(
        self,
        health: LowRankHealth,
        listed: list[int],
        slots: Tensor,
        features: Tensor | None,
        targets: Tensor | None,
    ) -> None:
        """Update batch by batch; if rounding makes one fail, write all rows and compute everything
        anew.
        """
        space = (
            self.space if len(listed) <= BATCH else copy.deepcopy(self.space)
        )  # a later batch may fail
        x, y = (
            (self.features[:0], self.targets[:0])
            if features is None or targets is None
            else (features, targets)
        )
        uncovered = self.uncovered
        try:
            for start in range(0, len(listed), BATCH):
                old = torch.tensor(
                    [s for s in listed[start : start + BATCH] if s in self._held], dtype=torch.int64
                )
                old, new = old.to(self.device, non_blocking=True), slice(start, start + BATCH)
                rows = torch.cat([self.features[old], x[new]])
                phi = self.basis.phi(rows)
                space.change(phi, _values(torch.cat([self.targets[old], y[new]])), leaving=len(old))
                if features is not None:
                    share = _unexplained(self.basis, rows[len(old) :], phi[len(old) :]).mean()
                    uncovered = MEMORY * uncovered + (1 - MEMORY) * share
        except NotPositiveDefiniteError:
            logger.info("step %d: an update fails its check, rebuilding A^-1", health.steps)
            self._write_rows(slots, features, targets)
            space, health = self._fit(self.basis), replace(health, rebuilds=health.rebuilds + 1)
        else:
            self._write_rows(slots, features, targets)
        self.space, self.uncovered, self._health = space, uncovered, health

    def _rebuild(self) -> None:
        self.space = self._fit(
            LandmarkFeatures(self.landmarks[: self._health.landmarks], self.kernel)
        )

    def _reanchor(self) -> None:
        self._choose(self._health)

    def _go_back(self, follow: Callable[[], None]) -> None:
        """Do nothing: an error leaves all but the rows, the kernel and the noise as it was."""

    def _choose(self, health: LowRankHealth) -> None:
        """Choose landmarks among the stored rows, and compute everything anew with them."""
        occupied = self.occupied.nonzero().squeeze(1)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + health.steps)
        drawn = (
            torch.randperm(len(occupied), generator=generator)[: CANDIDATES * self.rank]
            .sort()
            .values
        )
        candidates = self.features[occupied[drawn.to(occupied.device, non_blocking=True)]]
        chosen = candidates[
            choose_landmarks(candidates, self.kernel, self.rank, generator=generator)
        ]
        space = self._fit(LandmarkFeatures(chosen, self.kernel))
        shares = _unexplained(space.basis, candidates[:CHUNK])
        self.space, self.uncovered = space, shares.sum() / max(len(shares), 1)
        self.landmarks.zero_()
        self.landmarks[: len(chosen)] = chosen
        self._health = replace(
            health,
            choices=health.choices + (len(occupied) > 0),
            landmarks=len(chosen),
            steps_since=0,
            rows_since=0,
            rows_chosen_from=len(occupied),
            uncovered_then=float(self.uncovered),
        )

    def _fit(self, basis: LandmarkFeatures) -> WeightSpace:
        """Return the weight space of the stored rows on these features. O(N m (D + m) + m^3)."""
        slots = self.occupied.nonzero().squeeze(1).split(CHUNK)
        rows = ((self.features[part], _values(self.targets[part])) for part in slots)
        return WeightSpace(basis, self.noise_std, rows, n_values=self.n_classes + 1)

    def _store_counts(self) -> None:
        self.counters.copy_(torch.tensor(astuple(self.health), dtype=torch.float64))

    @full_precision()
    @torch.no_grad()
    def _adopt_state(self) -> None:
        numbers = zip(fields(LowRankHealth), self.counters.tolist(), strict=True)
        counts: dict[str, Any] = {
            field.name: int(number) if field.type is int else number for field, number in numbers
        }
        health = LowRankHealth(**counts)
        self.space = self._fit(LandmarkFeatures(self.landmarks[: health.landmarks], self.kernel))
        self.uncovered.fill_(health.uncovered)
        self._health, self._held = health, set(self.occupied.nonzero().squeeze(1).tolist())

    def _check_kernel(self, kernel: Kernel, noise_std: float) -> None:
        super()._check_kernel(kernel, noise_std)
        if not kernel.positive_definite:
            raise ValueError(
                f"landmarks need a positive definite kernel, which {kernel} may not be; use the exact engine."
            )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}"


def _values(targets: Tensor) -> Tensor:
    """Return targets (n, C) and a column of ones, by which an offset costs nothing: (n, C + 1),
    float64.
    """
    return nn.functional.pad(targets.double(), (0, 1), value=1)


def _unexplained(basis: LandmarkFeatures, features: Tensor, phi: Tensor | None = None) -> Tensor:
    """Return the share of k(x, x) that the landmarks leave, of rows (n, D), (n,)."""
    return basis.residual(features, phi) / basis.kernel.diagonal(features.double()).clamp_min(1e-30)
