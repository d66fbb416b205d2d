"""The exact engine: a Gaussian process over a buffer whose rows change at every step."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

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
from semigpc.gp.engine import Expansion
from semigpc.gp.kernels import RBF, Kernel, square_norms
from semigpc.gp.tiles import DelayedInverse, NotPositiveDefiniteError, rounding_floor

logger = logging.getLogger(__name__)

CHUNK = 256  # rows replaced, or queries answered, at a time: bounds the memory of one call
REBUILD_SHARE = 0.25  # of the rows replaced at once, from which a Cholesky inverse is cheaper than an update
PROBES = 4  # rows whose residual is looked at ...
PROBE_EVERY = 64  # ... every so many steps; a look costs about a fifth of an update
REBUILD_ABOVE = 1e-4  # residual of the mean at which P is rebuilt; 1e-11 is usual
SAVED = ("feature_columns", "targets", "occupied", "steps")


class LeftOut(NamedTuple):
    """What is said of each of n slots without that one: mean (n, C), mean (n,) of a target of ones, and variance (n,)."""

    mean: Tensor
    ones: Tensor
    variance: Tensor


@dataclass(kw_only=True)
class Health:
    """What an engine knows of its own numbers.

    Args:
        steps: calls that changed the buffer.
        rebuilds: times P was rebuilt because the residual had grown. Should stay 0.
        mean_residual: max |K[I] alpha - y[I]| over the rows looked at last, which is also the error of the mean near the data.
    """

    steps: int = 0
    rebuilds: int = 0
    mean_residual: float = 0.0


class ExactGP(nn.Module):
    """Exact GP posterior over ``capacity`` slots, kept up to date as slots are overwritten (section 3 of the paper).

        mu(h)  = k(h, h_Q) alpha             alpha = K^-1 y_Q        K = k(h_Q, h_Q) + sigma^2 I
        var(h) = k(h, h) - k(h, h_Q) K^-1 k(h_Q, h)

    ``replace`` moves P = K^-1 by a rank-2B change in one pass over P, O(B N^2 + B^2 N + B^3), and keeps alpha true in O(N B C),
    so that ``mean`` never touches P: O(M N (D + C)). N is the slots in use, B the rows replaced, M queries, D the feature
    width, C classes. An empty slot is a point unrelated to every other (zero cross-kernel, unit diagonal), so growing,
    replacing and removing are one formula, and an empty engine predicts 0. Where a quarter of the rows or more is replaced at
    once, K is inverted by Cholesky instead, O(N^3), in the memory of P.

    All of it is float64. That costs at most twice the time of float32 where float32 works, and has no condition number at which
    it begins to fail or needs repair: updates leave residuals of 1e-11, also where classes have collapsed onto a point. A few
    residuals are looked at now and then all the same, and P is rebuilt if they have grown (``health``). P lives in the tiles
    of its lower triangle: 4 N^2 bytes. A network's precision never reaches in here: autocast is switched off inside, and
    ``.half()`` or ``.to(dtype)`` of a surrounding module leave the engine's numbers as they are.

    ``state_dict`` holds features, targets and the number of steps; P is rebuilt on load. ``rebuild`` is a deterministic
    function of that state, so a run that calls it as it saves goes on bit for bit like one that resumes from the file.

    Args:
        capacity: N, slots.
        n_features: D.
        n_classes: C, columns of the targets.
        kernel: k; ``RBF()`` by default.
        noise_std: sigma. The mean depends on sigma^2 / eta alone.
    """

    feature_columns: Tensor
    square_norms: Tensor
    targets: Tensor
    occupied: Tensor
    steps: Tensor
    solution: Tensor
    dtype = torch.float64

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
        super().__init__()
        check_engine(capacity, n_features, n_classes, kernel=kernel, noise_std=noise_std, dtype=self.dtype)
        self.capacity, self.n_features, self.n_classes = capacity, n_features, n_classes
        self._kernel, self._noise_std = RBF() if kernel is None else kernel, noise_std
        self.health = Health()
        self._count = 0
        self._before_load: dict[str, Tensor] = {}
        self.inverse = DelayedInverse(capacity, fold_rank=256 if capacity > 2048 else 128, dtype=self.dtype, device=device)
        zeros = {"dtype": self.dtype, "device": device}
        # (D, N): against a long buffer, the product of a few queries runs fastest in this layout.
        self.register_buffer("feature_columns", torch.zeros(n_features, capacity, **zeros))
        self.register_buffer("square_norms", torch.zeros(capacity, **zeros), persistent=False)
        self.register_buffer("targets", torch.zeros(capacity, n_classes, **zeros))
        self.register_buffer("occupied", torch.zeros(capacity, dtype=torch.bool, device=device))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        # alpha^T, and in the last row beta = K^-1 1, from which any offset of the targets follows.
        self.register_buffer("solution", torch.zeros(n_classes + 1, self.inverse.u.shape[1], **zeros), persistent=False)
        self.register_state_dict_pre_hook(_store_steps)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_refuse_what_does_not_fit)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_restore)  # type: ignore[no-untyped-call]

    # Asking ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Occupied slots."""
        return self._count

    @property
    def kernel(self) -> Kernel:
        """The kernel k."""
        return self._kernel

    @property
    def noise_std(self) -> float:
        """Sigma."""
        return self._noise_std

    @property
    def features(self) -> Tensor:
        """h_Q, (N, D), a view; rows of empty slots are 0."""
        return self.feature_columns.mT

    @property
    def alpha(self) -> Tensor:
        """K^-1 y_Q, (N, C), a view; rows of empty slots are 0."""
        return self.solution[: self.n_classes, : self.capacity].mT

    @full_precision()
    def mean(self, queries: Tensor, *, offset: Tensor | None = None) -> Tensor:
        """mu(h) = k(h, h_Q) K^-1 (y_Q - 1 offset^T), (M, C). O(M N (D + C)); differentiable in the queries.

        The gradient is that of the buffer as it stands at the call, and may be taken after later changes.

        Args:
            queries: (M, D).
            offset: (C,) subtracted from every target and not added back, such as the class frequencies of a class prior; it
                may change from call to call at no cost. 0 by default.
        """
        check_queries(self, queries)
        alpha = self._weights(offset)
        if queries.requires_grad and torch.is_grad_enabled():
            alpha = alpha.clone()  # backward must find it as it is now, whatever is replaced meanwhile
        means = [self._cross(chunk) @ alpha.mT for chunk in queries.split(CHUNK)]
        return torch.cat(means).to(queries.dtype)

    @torch.no_grad()
    def expansion(self, *, offset: Tensor | None = None) -> Expansion:
        """The mean as a sum over the occupied slots: their features (n, D) and K^-1 (y_Q - 1 offset^T) (n, C). O(n (D + C))."""
        slots = self.occupied.nonzero().squeeze(1)
        return Expansion(self.features[slots].contiguous(), self._weights(offset)[:, slots].mT.contiguous())

    def _weights(self, offset: Tensor | None) -> Tensor:
        """K^-1 (y_Q - 1 offset^T), (C, width)."""
        alpha = self.solution[: self.n_classes, : self._width]
        if offset is None:
            return alpha
        return alpha - check_offset(self, offset).to(alpha).unsqueeze(1) * self.solution[self.n_classes, : self._width]

    @full_precision()
    @torch.no_grad()
    def variance(self, queries: Tensor) -> Tensor:
        """var(h) = k(h, h) - k(h, h_Q) K^-1 k(h_Q, h), (M,), of the noise-free function, at least 0. O(M N (D + N)).

        Args:
            queries: (M, D).
        """
        check_queries(self, queries)
        prior = self.kernel.diagonal(queries.to(self.dtype))
        rows = (self._padded(self._cross(chunk)) for chunk in queries.split(CHUNK))
        explained = [(self.inverse.multiply(chunk) * chunk).sum(dim=1) for chunk in rows]
        return (prior - torch.cat(explained)).clamp_min(0).to(queries.dtype)

    @full_precision()
    @torch.no_grad()
    def explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        """What each slot adds to the mean of one class per query: k(h, h_i) alpha[i, c], (M, N). O(M N D).

        The weights are signed and sum to ``mean(queries)`` at those classes, with no approximation: a complete reason for
        the label. Empty slots have weight 0.

        Args:
            queries: (M, D).
            classes: (M,) the class to explain for each query, usually the predicted one.
        """
        check_classes(self, queries, classes)
        weights = queries.new_zeros(len(queries), self.capacity)
        weights[:, : self._width] = self._cross(queries) * self.solution[classes, : self._width]
        return weights

    @full_precision()
    @torch.no_grad()
    def label_weights(self, queries: Tensor) -> Tensor:
        """w = k(h, h_Q) K^-1, (M, N): the mean is w @ y_Q, so w says how much each stored LABEL counts. O(M N (D + N)).

        Args:
            queries: (M, D).
        """
        check_queries(self, queries)
        weights = queries.new_zeros(len(queries), self.capacity)
        for rows, chunk in zip(weights.split(CHUNK), queries.split(CHUNK), strict=True):
            rows[:, : self._width] = self.inverse.multiply(self._padded(self._cross(chunk)))[:, : self._width]
        return weights

    @full_precision()
    @torch.no_grad()
    def leave_out(self, slots: Tensor) -> Tensor:
        """The mean at slots I from the buffer WITHOUT them: y_I - P[I, I]^-1 alpha_I, (I, C). O(I N + I^3).

        Args:
            slots: (I,) occupied slots, left out together.
        """
        slots = check_slots(self, slots, occupied=True)
        M = self.inverse.rows(slots)[:, slots]
        alpha = self.solution[: self.n_classes, slots].mT
        left_out: Tensor = self.targets[slots] - torch.linalg.solve(M, alpha)
        return left_out

    @full_precision()
    @torch.no_grad()
    def leave_one_out(self) -> LeftOut:
        """Every occupied slot left out alone: y_i - alpha_i / P_ii, variance 1 / P_ii - sigma^2. O(N^2 + N C).

        ``ones`` is the mean that targets of 1 would have: ``mean - ones * offset`` is that of targets less an offset.
        """
        slots = self.occupied.nonzero().squeeze(1)
        rows = [self.inverse.rows(chunk).gather(1, chunk.unsqueeze(1)) for chunk in slots.split(CHUNK)]
        diagonal = torch.cat(rows) if rows else self.targets.new_zeros(0, 1)
        wanted = torch.cat([self.targets[slots], torch.ones_like(diagonal)], dim=1)
        left_out = wanted - self.solution[:, slots].mT / diagonal
        variance = (1 / diagonal.squeeze(1) - self.noise_std**2).clamp_min(0)
        return LeftOut(left_out[:, : self.n_classes], left_out[:, self.n_classes], variance)

    @full_precision()
    @torch.no_grad()
    def covariance(self, queries: Tensor, others: Tensor) -> Tensor:
        """k(h, h') - k(h, h_Q) K^-1 k(h_Q, h'), (M, M'): what is shared by the functions' values. O(M' N^2 + M N M').

        Args:
            queries: (M, D). others: (M', D), the fewer of the two.
        """
        check_queries(self, queries)
        check_queries(self, others)
        prior = self.kernel(queries.to(self.dtype), others.to(self.dtype))
        weights = self.label_weights(others.to(self.dtype))[:, : self._width]  # (M', n)
        explained = [self._cross(chunk) @ weights.mT for chunk in queries.split(CHUNK)]
        return (prior - torch.cat(explained)).to(queries.dtype)

    @property
    def _width(self) -> int:
        """Slots that P covers: those in use, rounded up to its tiles."""
        return min(self.inverse.size, self.capacity)

    def _cross(self, queries: Tensor) -> Tensor:
        """k(h, h_Q), (M, width), 0 at empty slots."""
        stored, queries = self.features[: self._width], queries.to(self.dtype)
        if queries.requires_grad and torch.is_grad_enabled():
            stored = stored.clone()  # backward must find it as it is now, whatever is replaced meanwhile
        k = self.kernel(queries, stored, self.square_norms[: self._width])
        return k if self._count == self._width else k * self.occupied[: self._width].to(k.dtype)

    def _padded(self, rows: Tensor) -> Tensor:
        """Rows (M, width) filled with zeros to the (M, n) of P."""
        return nn.functional.pad(rows, (0, self.inverse.size - rows.shape[1]))

    # Changing -------------------------------------------------------------------------------------------------------

    @full_precision()
    @torch.no_grad()
    def replace(self, slots: Tensor, features: Tensor, targets: Tensor) -> None:
        """Put new points into slots, empty or occupied. O(B N^2), one pass over P; O(N^3) for a large part of the buffer.

        A call refused for its arguments changes nothing at all. One refused because K could not be inverted any more leaves
        what is stored as it was, and the answers up to rounding: P is rebuilt on the way.

        Args:
            slots: (B,) distinct integers in [0, capacity).
            features: (B, D) finite; any floating dtype.
            targets: (B, C) finite; usually one-hot labels.
        """
        slots = check_slots(self, slots)
        self._change(slots, *check_rows(self, slots, features, targets))

    @full_precision()
    @torch.no_grad()
    def remove(self, slots: Tensor) -> None:
        """Empty some occupied slots. O(B N^2). No slots, no change; a refused call changes nothing.

        Args:
            slots: (B,) distinct, occupied.
        """
        check_tensor("slots", slots)
        if slots.shape != (0,):
            slots = check_slots(self, slots, occupied=True)
            self._change(slots, None, None)

    def _change(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Update P, or invert K where that is cheaper; where K cannot be inverted, put all back and say so."""
        before = (self.features[slots], self.targets[slots], self.occupied[slots])
        try:
            if self.inverse.size < self.capacity:
                self.inverse.base.grow(int(slots.max()) + 1)
            if not self.kernel.positive_definite or len(slots) >= REBUILD_SHARE * self.inverse.size:
                self._store(slots, features, targets)  # a K that may be indefinite could become singular on the way
                self._invert()
            else:
                self._update_all(slots, features, targets)
        except NotPositiveDefiniteError as error:
            self.features[slots], self.targets[slots], self.occupied[slots] = before
            self._invert()
            raise self._not_invertible() from error
        self.health.steps += 1
        if self.health.steps % PROBE_EVERY == 0 and self._count:
            self._probe()

    def _update_all(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Chunk by chunk; if rounding makes one fail, write all rows and invert."""
        try:
            for start in range(0, len(slots), CHUNK):
                part = slice(start, start + CHUNK)
                rows = (None, None) if features is None or targets is None else (features[part], targets[part])
                self._update(slots[part], *rows)
        except NotPositiveDefiniteError:
            logger.info("step %d: an update fails its check, rebuilding P", self.health.steps)
            self._store(slots, features, targets)
            self._invert()
            self.health.rebuilds += 1

    def _update(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Overwrite rows and columns ``slots`` of K and keep P and alpha true. O(B n^2 + B^2 n + B^3), one pass over P.

        First the slots are forgotten, then the new ones appended, which is the paper's block rule (section 3.3) without moving
        any row. In the textbook's column form, S the slots:

            G  = P[:, S]                          M  = G[S]
            W  = P C                              the one pass over P
            V  = W - G M^-1 W[S]                  = A^-1 C, where A is K without S
            Sg = D - C^T V                        Schur complement
            Vh = V with rows S set to -I
            P += -G M^-1 G^T + Vh Sg^-1 Vh^T
            a  = alpha - G M^-1 alpha[S], rows S set to 0
            alpha = a - Vh Sg^-1 (y - C^T a)

        Raises NotPositiveDefiniteError, with nothing changed, when M or Sg has no Cholesky factor, or Sg is lost in rounding.
        """
        number = torch.arange(len(slots), device=slots.device)
        G = self.inverse.rows(slots)  # (B, n)
        y = self.solution.new_zeros(self.n_classes + 1, len(slots))
        if features is None or targets is None:
            C, D = torch.zeros_like(G), torch.eye(len(slots), dtype=G.dtype, device=G.device)
            V = torch.zeros_like(G)
        else:
            C = self._padded(self._cross(features))
            C[:, slots] = 0
            D = self.kernel(features, features)
            D.diagonal().copy_(self.kernel.diagonal(features) + self.noise_std**2)
            y[:-1], y[-1] = targets.mT, 1
            V = self.inverse.multiply(C)
        forget, failed = torch.linalg.cholesky_ex(G[:, slots])
        u_forget = torch.linalg.solve_triangular(forget, G, upper=False)  # (B, n); G M^-1 G^T = u^T u

        def kept(x: Tensor) -> Tensor:  # x P -> x A^-1, for x = 0 at the slots
            x.addmm_(torch.linalg.solve_triangular(forget, x[:, slots].mT, upper=False).mT, u_forget, alpha=-1)
            x[:, slots] = 0
            return x

        kept(V)
        append, failed_too = torch.linalg.cholesky_ex(D - C @ V.mT)
        sound = append.diagonal().square().min() > rounding_floor(D.diagonal()) * self.inverse.size / len(slots)
        if not bool(sound & (failed + failed_too == 0)):
            raise NotPositiveDefiniteError
        V[number, slots] = -1  # V is Vh from here on
        u_append = torch.linalg.solve_triangular(append, V, upper=False)
        # Nothing above has changed the state; nothing below can fail.
        a = kept(self.solution[:, : self.inverse.size])
        rest = torch.linalg.solve_triangular(append, (y - a @ C.mT).mT, upper=False)  # (B, C + 1)
        a.addmm_(rest.mT, u_append, alpha=-1)
        self.inverse.add(u_forget, sign=-1)
        self.inverse.add(u_append, sign=1)
        self._store(slots, features, targets)

    def _store(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        if features is None or self._count < self.capacity:
            self._count += (0 if features is None else len(slots)) - int(self.occupied[slots].sum())
            self.occupied[slots] = features is not None
        self.features[slots] = 0 if features is None else features
        self.square_norms[slots] = 0 if features is None else square_norms(features)
        self.targets[slots] = 0 if targets is None else targets

    def _probe(self) -> None:
        """Look at the residual of a few rows of K, others each time; rebuild P if it has grown."""
        step = self.health.steps // PROBE_EVERY
        rows = (torch.arange(PROBES, device=self.occupied.device) * (self._width // PROBES) + step) % self._width
        rows = rows[self.occupied[rows]]
        K = self._cross(self.features[rows])
        K[torch.arange(len(rows), device=rows.device), rows] = self.kernel.diagonal(self.features[rows]) + self.noise_std**2
        residual = K @ self._weights(None).mT - self.targets[rows]
        self.health.mean_residual = float(residual.abs().max()) if len(rows) else 0.0
        if not self.health.mean_residual <= REBUILD_ABOVE:
            logger.info("step %d: the residual is %.1e, rebuilding P", self.health.steps, self.health.mean_residual)
            self._invert()
            self.health.rebuilds += 1

    @full_precision()
    @torch.no_grad()
    def rebuild(self) -> None:
        """Recompute P and alpha from the stored features and targets alone; sheds all drift. O(N^3), no N^2 temporaries."""
        try:
            self._invert()
        except NotPositiveDefiniteError as error:
            raise self._not_invertible() from error

    def _invert(self) -> None:
        """P and alpha from what is stored, by a Cholesky inverse; by one with pivoting where K may be indefinite."""
        self.inverse.reset()
        self.solution.zero_()
        self.square_norms.copy_(square_norms(self.features))  # the same bits as after loading
        slots = self.occupied.nonzero().squeeze(1)
        self._count = len(slots)
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
        """Entries of K between slots: noise on the diagonal, the identity at empty ones and beyond the last."""
        x1, x2 = self.features[rows], self.features[columns]
        held = self.occupied[rows, None] & self.occupied[columns]
        K = torch.zeros(rows.stop - rows.start, columns.stop - columns.start, dtype=self.dtype, device=held.device)
        K[: len(x1), : len(x2)] = self.kernel(x1, x2) * held
        if rows == columns:
            K.diagonal().fill_(1)
            own = torch.where(self.occupied[rows], self.kernel.diagonal(x1) + self.noise_std**2, 1.0)
            K.diagonal()[: len(x1)] = own
        return K

    def _invert_indefinite(self, slots: Tensor) -> None:
        """A dense inverse of K at the occupied slots (S,), with pivoting. O(S^3), and memory for two such matrices."""
        features = self.features[slots]
        K = self.kernel(features, features)
        K.diagonal().copy_(self.kernel.diagonal(features) + self.noise_std**2)
        P, info = torch.linalg.inv_ex(K)
        if int(info) or not float((P @ K).diagonal().sub(1).abs().max()) < 1e-2:
            raise NotPositiveDefiniteError
        for part in torch.arange(len(slots), device=slots.device).split(CHUNK):
            rows = P.new_zeros(len(part), self.inverse.size)
            rows[:, slots] = P[part]
            self.inverse.base.set_rows(slots[part], rows)

    def _not_invertible(self) -> NotPositiveDefiniteError:
        told = f"the kernel matrix of {self.kernel} with noise_std={self.noise_std:g} cannot be inverted in float64."
        return NotPositiveDefiniteError(f"{told} Raise noise_std.")

    @full_precision()
    @torch.no_grad()
    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        """Go on with another kernel and noise over the same rows: P and alpha are rebuilt, O(N^3), and then kept as before.

        One refused because the new K cannot be inverted leaves the old kernel in place.
        """
        check_engine(self.capacity, self.n_features, self.n_classes, kernel=kernel, noise_std=noise_std, dtype=self.dtype)
        before = self._kernel, self._noise_std
        self._kernel, self._noise_std = kernel, noise_std
        try:
            self.rebuild()
        except NotPositiveDefiniteError:
            self._kernel, self._noise_std = before
            self._invert()
            raise

    def extra_repr(self) -> str:
        return (
            f"capacity={self.capacity}, n_features={self.n_features}, n_classes={self.n_classes}, kernel={self.kernel}, "
            f"noise_std={self.noise_std:g}"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow a surrounding module to its device, never to its dtype."""
        device = fn(torch.empty(0, device=self.targets.device)).device
        super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]
        return self


# Saving and loading ---------------------------------------------------------------------------------------------------


def _store_steps(engine: ExactGP, _prefix: str, _keep_vars: bool) -> None:
    engine.steps.fill_(engine.health.steps)


def _refuse_what_does_not_fit(engine: ExactGP, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Look at a state before any of it is copied, and remember ours in case it turns out to be useless."""
    for name in SAVED:
        saved, ours = state.get(prefix + name), getattr(engine, name)
        if saved is not None and saved.shape != ours.shape:
            raise ValueError(f"saved {name} have shape {tuple(saved.shape)}; this engine holds {tuple(ours.shape)}.")
        if saved is not None and not bool(saved.to(ours.dtype).square().isfinite().all()):
            raise ValueError(f"saved {name} are not all finite: the file is damaged or not for this engine.")
    _store_steps(engine, "", False)
    if prefix + "feature_columns" in state:
        engine._before_load = {name: getattr(engine, name).clone() for name in SAVED}


def _restore(engine: ExactGP, _incompatible_keys: object) -> None:
    if not engine._before_load:  # nothing of ours was loaded
        return
    try:
        _adopt_state(engine)
    except NotPositiveDefiniteError:
        for name, ours in engine._before_load.items():
            getattr(engine, name).copy_(ours)
        _adopt_state(engine)
        raise
    finally:
        engine._before_load = {}


def _adopt_state(engine: ExactGP) -> None:
    engine.health = Health(steps=int(engine.steps))
    engine.rebuild()
