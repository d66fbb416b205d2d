"""The exact engine: a Gaussian process over a buffer whose rows change at every step."""

from typing import Literal, NamedTuple

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
from semigpc.gp.health import Health
from semigpc.gp.kernels import RBF, Kernel
from semigpc.gp.system import CHUNK, KernelSystem


class LeftOut(NamedTuple):
    """What is said of each of n slots without that one: mean (n, C), mean (n,) of a target of ones, and variance (n,)."""

    mean: Tensor
    ones: Tensor
    variance: Tensor


class ExactGP(nn.Module):
    """Exact GP posterior over ``capacity`` slots, kept up to date as slots are overwritten (section 3 of the paper).

        mu(h)  = k(h, h_Q) alpha             alpha = K^-1 y_Q        K = k(h_Q, h_Q) + sigma^2 I
        var(h) = k(h, h) - k(h, h_Q) K^-1 k(h_Q, h)

    ``replace`` moves P = K^-1 by a rank-2B change in one pass over P, O(B N^2 + B^2 N + B^3), and keeps alpha true in O(N B C),
    so that ``mean`` never touches P: O(M N (D + C)). N is the slots in use, B the rows replaced, M queries, D the feature
    width, C classes. An empty slot is a point unrelated to every other (zero cross-kernel, unit diagonal), so growing,
    replacing and removing are one formula, and an empty engine predicts 0.

    P lives in the tiles of its lower triangle: 2 N^2 bytes in float32, half of the square. A network's mixed precision
    never reaches in here: autocast and reduced-precision products are switched off inside, and ``.half()`` or ``.to(dtype)`` of
    a surrounding module leave the engine's numbers as they are.

    Truth over hundreds of thousands of float32 steps rests on four things, all counted in ``health``. The residuals of a few
    rows are looked at every few steps. When they grow, or always with ``refine="always"``, the new columns of P are refined
    against K itself, which is then kept beside P (as large again). Rows that nothing has touched for two turnovers are written
    anew. And P is rebuilt from the features if a check fails all the same.

    ``state_dict`` holds features, targets and bookkeeping; P is rebuilt on load. ``rebuild`` is a deterministic function of
    that state, so a run that calls it as it saves goes on bit for bit like one that resumes from the file.

    Args:
        capacity: N, slots.
        n_features: D.
        n_classes: C, columns of the targets.
        kernel: k; ``RBF()`` by default.
        noise_std: sigma. The mean depends on sigma^2 / eta alone.
        refine: "auto" starts when the residuals ask for it, "always" at once. "never" saves the memory of K; float32 then loses
            digits from a condition number of about 3e3 on (a few classes that have collapsed onto a point suffice), and P is
            rebuilt at O(N^3) whenever the residual of the mean exceeds 1e-2.
        dtype: float32 or float64, of P and of what is stored. alpha and all B x B algebra are float64 either way.
    """

    def __init__(
        self,
        capacity: int,
        n_features: int,
        n_classes: int,
        *,
        kernel: Kernel | None = None,
        noise_std: float = 0.1**0.5,
        refine: Literal["auto", "always", "never"] = "auto",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_engine(capacity, n_features, n_classes, kernel=kernel, noise_std=noise_std, dtype=dtype)
        if refine not in ("auto", "always", "never"):
            raise ValueError(f"refine must be 'auto', 'always' or 'never'; got {refine!r}.")
        self.capacity, self.n_features, self.n_classes = capacity, n_features, n_classes
        self.refine, self.dtype = refine, dtype
        self.system = KernelSystem(
            capacity,
            n_features,
            n_classes,
            kernel=RBF() if kernel is None else kernel,
            noise_std=noise_std,
            refine=refine,
            dtype=dtype,
            device=device,
        )

    # Asking ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Occupied slots."""
        return self.system.count

    @property
    def kernel(self) -> Kernel:
        """The kernel k."""
        return self.system.kernel

    @property
    def noise_std(self) -> float:
        """Sigma."""
        return self.system.noise_std

    @property
    def features(self) -> Tensor:
        """h_Q, (N, D), a view; rows of empty slots are 0."""
        return self.system.features

    @property
    def targets(self) -> Tensor:
        """y_Q, (N, C), a view; rows of empty slots are 0."""
        return self.system.targets

    @property
    def occupied(self) -> Tensor:
        """(N,) bool."""
        return self.system.occupied

    @property
    def alpha(self) -> Tensor:
        """K^-1 y_Q, (N, C), float64, a view; rows of empty slots are 0."""
        return self.system.solver.alpha[: self.n_classes, : self.capacity].mT

    @property
    def health(self) -> Health:
        """What has been done to stay true so far."""
        return self.system.health

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
        means = [self.system.cross(chunk).double() @ alpha.mT for chunk in queries.split(CHUNK)]
        return torch.cat(means).to(queries.dtype)

    @torch.no_grad()
    def expansion(self, *, offset: Tensor | None = None) -> Expansion:
        """The mean as a sum over the occupied slots: their features (n, D) and K^-1 (y_Q - 1 offset^T) (n, C). O(n (D + C))."""
        slots = self.occupied.nonzero().squeeze(1)
        return Expansion(self.features[slots].contiguous(), self._weights(offset)[:, slots].mT.contiguous())

    def _weights(self, offset: Tensor | None) -> Tensor:
        """K^-1 (y_Q - 1 offset^T), (C, width), float64."""
        alpha = self.system.solver.alpha[: self.n_classes, : self.system.width]
        if offset is None:
            return alpha
        beta = self.system.solver.alpha[self.n_classes, : self.system.width]
        return alpha - check_offset(self, offset).to(alpha).unsqueeze(1) * beta

    @full_precision()
    @torch.no_grad()
    def variance(self, queries: Tensor) -> Tensor:
        """var(h) = k(h, h) - k(h, h_Q) K^-1 k(h_Q, h), (M,), of the noise-free function, at least 0. O(M N (D + N)).

        Args:
            queries: (M, D).
        """
        check_queries(self, queries)
        prior = self.kernel.diagonal(queries.to(self.dtype)).double()
        explained = [self.system.solver.quadratic(self.system.solver_rows(chunk)) for chunk in queries.split(CHUNK)]
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
        weights[:, : self.system.width] = (
            self.system.cross(queries).double() * self.system.solver.alpha[classes, : self.system.width]
        )
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
            products = self.system.solver.solve(self.system.solver_rows(chunk))
            rows[:, : self.system.width] = products[:, : self.system.width]
        return weights

    @full_precision()
    @torch.no_grad()
    def leave_out(self, slots: Tensor) -> Tensor:
        """The mean at slots I from the buffer WITHOUT them: y_I - P[I, I]^-1 alpha_I, (I, C). O(I N^2 + I^3).

        Args:
            slots: (I,) occupied slots, left out together.
        """
        slots = check_slots(self, slots, occupied=True)
        wanted = self.targets.new_zeros(len(slots), self.system.solver.size)
        wanted[torch.arange(len(slots), device=slots.device), slots] = 1
        M = self.system.solver.solve(wanted)[:, slots]
        alpha = self.system.solver.alpha[: self.n_classes, slots].mT
        left_out: Tensor = self.targets[slots].double() - torch.linalg.solve(M, alpha)
        return left_out.to(self.dtype)

    @full_precision()
    @torch.no_grad()
    def leave_one_out(self) -> LeftOut:
        """Every occupied slot left out alone: y_i - alpha_i / P_ii, variance 1 / P_ii - sigma^2; float64. O(N^2 + N C).

        ``ones`` is the mean that targets of 1 would have: ``mean - ones * offset`` is that of targets less an offset.
        """
        slots = self.occupied.nonzero().squeeze(1)
        rows = [self.system.solver.inverse.rows(chunk).gather(1, chunk.unsqueeze(1)) for chunk in slots.split(CHUNK)]
        diagonal = torch.cat(rows).double() if rows else self.targets.new_zeros(0, 1, dtype=torch.float64)
        alpha = self.system.solver.alpha[:, slots].mT
        wanted = torch.cat([self.targets[slots].double(), torch.ones_like(diagonal)], dim=1)
        left_out = wanted - alpha / diagonal
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
        prior = self.kernel(queries.to(self.dtype), others.to(self.dtype)).double()
        weights = self.label_weights(others).double()[:, : self.system.width]  # (M', n)
        explained = [self.system.cross(chunk).double() @ weights.mT for chunk in queries.split(CHUNK)]
        return (prior - torch.cat(explained)).to(queries.dtype)

    # Changing -------------------------------------------------------------------------------------------------------

    @full_precision()
    @torch.no_grad()
    def replace(self, slots: Tensor, features: Tensor, targets: Tensor) -> None:
        """Put new points into slots, empty or occupied. O(B N^2), one pass over P.

        A call refused for its arguments changes nothing at all. One refused because K could not be inverted any more leaves
        what is stored as it was, and the answers up to rounding: P is rebuilt on the way.

        Args:
            slots: (B,) distinct integers in [0, capacity).
            features: (B, D) finite; any floating dtype.
            targets: (B, C) finite; usually one-hot labels.
        """
        slots = check_slots(self, slots)
        features, targets = check_rows(self, slots, features, targets)
        stale = self.system.stale(slots)
        if len(stale):
            slots = torch.cat([slots, stale])
            features = torch.cat([features, self.features[stale]])
            targets = torch.cat([targets, self.targets[stale]])
        self.system.change(slots, features, targets)
        self.health.reinserted += len(stale)

    @full_precision()
    @torch.no_grad()
    def remove(self, slots: Tensor) -> None:
        """Empty some occupied slots. O(B N^2). No slots, no change; a refused call changes nothing.

        Args:
            slots: (B,) distinct, occupied.
        """
        check_tensor("slots", slots)
        if slots.shape != (0,):
            self.system.change(check_slots(self, slots, occupied=True), None, None)

    @full_precision()
    @torch.no_grad()
    def rebuild(self) -> None:
        """Recompute P and alpha from the stored features and targets alone; sheds all drift. O(N^3), no N^2 temporaries."""
        self.system.rebuild()

    @full_precision()
    @torch.no_grad()
    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        """Go on with another kernel and noise over the same rows: P and alpha are rebuilt, O(N^3), and then kept as before.

        One refused because the new K cannot be inverted leaves the old kernel in place.
        """
        check_engine(self.capacity, self.n_features, self.n_classes, kernel=kernel, noise_std=noise_std, dtype=self.dtype)
        self.system.reanchor(kernel, noise_std)

    def extra_repr(self) -> str:
        return (
            f"capacity={self.capacity}, n_features={self.n_features}, n_classes={self.n_classes}, kernel={self.kernel}, "
            f"noise_std={self.noise_std:g}, refine={self.refine!r}, dtype={self.dtype}"
        )
