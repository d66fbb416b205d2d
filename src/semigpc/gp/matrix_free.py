"""The matrix-free engine: K is never stored, alpha is solved for and then followed, to a tolerance."""

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
from semigpc.gp.engine import Expansion
from semigpc.gp.health import IterativeHealth
from semigpc.gp.iterative_system import GOAL, IterativeSystem
from semigpc.gp.kernels import RBF, Kernel
from semigpc.gp.points import Points
from semigpc.gp.stored_rows import SAVED

CHUNK = 256  # queries answered at a time ...
VARIANCES = 64  # ... or solved for, for their variance


class MatrixFreeGP(nn.Module):
    """A GP posterior over ``capacity`` slots, exact to a tolerance, in O(N (D + rank + C)) memory.

        mu(h) = k(h, h_Q) alpha        |y - K alpha| <= tolerance |y| for every class        K = k(h_Q, h_Q) + sigma^2 I

    What the tolerance means. With the residual r = y - K alpha, and mu* the exact mean, at the buffer's own rows
    mu = y - sigma^2 alpha - r and mu* = y - sigma^2 alpha*, while alpha* - alpha = K^-1 r. So mu* - mu = (I - sigma^2 K^-1) r,
    and as no eigenvalue of K is below sigma^2,

        |mu - mu*|_2 <= |r|_2 over the buffer's rows        |mu(h) - mu*(h)| <= sqrt(k(h, h)) |r|_2 / sigma at any h

    The online rule, which the paper leaves to future work, is in ``IterativeSystem``: a change costs O(N B (D + C)) for alpha
    and r themselves, some hundred kernel columns where that does not suffice, and only then passes over K, O(N^2 (D + C)) each,
    by preconditioned conjugate gradients from the alpha that is there. All of it is counted in ``health``.

    ``state_dict`` holds features, targets and occupied slots; the rest is solved for on load. ``rebuild`` is a deterministic
    function of that state.

    Args:
        capacity: N, slots. n_features: D. n_classes: C.
        rank: landmarks of the preconditioner at most: more of them, fewer passes; N x rank numbers are kept.
        tolerance: largest |y - K alpha| / |y| over the classes. Float32 kernel values carry down to 1e-4 and often 1e-5.
        kernel: k, positive definite; ``RBF()`` by default.
        noise_std: sigma.
        dtype: float32 or float64, of kernel values and of what is stored. alpha and sums are float64 either way.
        seed: of the choice of landmarks.
    """

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
        super().__init__()
        check_engine(capacity, n_features, n_classes, kernel=kernel, noise_std=noise_std, dtype=dtype)
        kernel = RBF() if kernel is None else kernel
        _check_iterative(kernel, rank=rank, tolerance=tolerance)
        self.capacity, self.n_features, self.n_classes, self.dtype = capacity, n_features, n_classes, dtype
        points = Points(capacity, n_features, n_classes, kernel=kernel, noise_std=noise_std, dtype=dtype, device=device)
        self.system = IterativeSystem(points, rank=rank, tolerance=tolerance, seed=seed)
        self.before_load: dict[str, Tensor] = {}
        self.register_load_state_dict_pre_hook(_remember)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_restore)  # type: ignore[no-untyped-call]

    # Asking ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Occupied slots."""
        return self.system.points.count

    @property
    def kernel(self) -> Kernel:
        """The kernel k."""
        return self.system.points.kernel

    @property
    def noise_std(self) -> float:
        """Sigma."""
        return self.system.points.noise_std

    @property
    def rank(self) -> int:
        """Landmarks of the preconditioner at most."""
        return self.system.rank

    @property
    def tolerance(self) -> float:
        """Largest |y - K alpha| / |y|."""
        return self.system.tolerance

    @property
    def features(self) -> Tensor:
        """h_Q, (N, D), a view; rows of empty slots are 0."""
        return self.system.points.features

    @property
    def targets(self) -> Tensor:
        """y_Q, (N, C), a view; rows of empty slots are 0."""
        return self.system.points.targets

    @property
    def occupied(self) -> Tensor:
        """(N,) bool."""
        return self.system.points.occupied

    @property
    def alpha(self) -> Tensor:
        """K^-1 y_Q to the tolerance, (N, C), float64, a view; rows of empty slots are 0."""
        return self.system.alpha[:, : self.n_classes]

    @property
    def health(self) -> IterativeHealth:
        """What has been done to stay within the tolerance so far."""
        return self.system.health

    @full_precision()
    def mean(self, queries: Tensor, *, offset: Tensor | None = None) -> Tensor:
        """mu(h) = k(h, h_Q) (alpha - beta offset^T), (M, C). O(M N (D + C)); differentiable in the queries.

        The gradient is that of the buffer as it stands at the call, and may be taken after later changes.

        Args:
            queries: (M, D). offset: (C,) subtracted from every target and not added back; 0 by default.
        """
        check_queries(self, queries)
        weights, stored = self._weights(offset), self.features[: self.system.points.width]
        if queries.requires_grad and torch.is_grad_enabled():
            weights, stored = weights.clone(), stored.clone()
        means = [self.kernel(chunk.to(self.dtype), stored).double() @ weights for chunk in queries.split(CHUNK)]
        return torch.cat(means).to(queries.dtype)

    @torch.no_grad()
    def expansion(self, *, offset: Tensor | None = None) -> Expansion:
        """The mean as a sum over the occupied slots: their features (n, D) and weights (n, C). O(n (D + C))."""
        slots = self.occupied.nonzero().squeeze(1)
        return Expansion(self.features[slots], self._weights(offset)[slots])

    def _weights(self, offset: Tensor | None) -> Tensor:
        """alpha - beta offset^T with beta = K^-1 1, (width, C) float64."""
        alpha = self.alpha[: self.system.points.width]
        if offset is None:
            return alpha
        return alpha - self.system.alpha[: self.system.points.width, self.n_classes :] * check_offset(self, offset).to(alpha)

    @full_precision()
    @torch.no_grad()
    def variance(self, queries: Tensor) -> Tensor:
        """var(h) = k(h, h) - k(h, h_Q) K^-1 k(h_Q, h), (M,), exact to the tolerance and from above. A solve for each chunk.

        K v = k(h_Q, h) - rho is solved with |rho| <= tolerance |k(h_Q, h)|. Then k.v + v.rho is below k^T K^-1 k by
        rho^T K^-1 rho <= |rho|^2 / sigma^2: of second order, and never too sure. As many passes over K as a cold start takes,
        for every 64 queries: O(passes N^2 (D + 64)). To be asked of few queries, or of a low-rank engine.

        Args:
            queries: (M, D).
        """
        check_queries(self, queries)
        prior = self.kernel.diagonal(queries.to(self.dtype)).double()
        explained = [torch.zeros_like(prior[:0])]
        for chunk in queries.to(self.dtype).split(VARIANCES):
            k = self.system.points.columns(chunk)
            goals = GOAL * self.tolerance * torch.linalg.vector_norm(k, dim=0)
            solved = self.system.conjugate_gradients(torch.zeros_like(k), k, goals)
            explained.append((solved.x * (k + solved.residual)).sum(dim=0))
        return (prior - torch.cat(explained)).clamp_min(0).to(queries.dtype)

    @full_precision()
    @torch.no_grad()
    def explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        """What each slot adds to the mean of one class per query: k(h, h_i) alpha[i, c], (M, N); sums to the mean. O(M N D).

        Args:
            queries: (M, D). classes: (M,) the class to explain for each query.
        """
        check_classes(self, queries, classes)
        weights, width = queries.new_zeros(len(queries), self.capacity), self.system.points.width
        k = self.kernel(queries.to(self.dtype), self.features[:width])
        weights[:, :width] = k.double() * self.alpha[:width].mT[classes]
        return weights

    # Changing -------------------------------------------------------------------------------------------------------

    @full_precision()
    @torch.no_grad()
    def replace(self, slots: Tensor, features: Tensor, targets: Tensor) -> None:
        """Put new points into slots, empty or occupied. O(N B (D + C)), and passes over K where that leaves too much to do.

        A refused call changes nothing at all, be it for its arguments or because the tolerance cannot be reached.

        Args:
            slots: (B,) distinct integers in [0, capacity). features: (B, D). targets: (B, C).
        """
        slots = check_slots(self, slots)
        self.system.change(slots, *check_rows(self, slots, features, targets))

    @full_precision()
    @torch.no_grad()
    def remove(self, slots: Tensor) -> None:
        """Empty some occupied slots, at the cost of ``replace``. No slots, no change; a refused call changes nothing.

        Args:
            slots: (B,) distinct, occupied.
        """
        check_tensor("slots", slots)
        if slots.shape != (0,):
            self.system.change(check_slots(self, slots, occupied=True), None, None)

    @full_precision()
    @torch.no_grad()
    def rebuild(self) -> None:
        """Choose landmarks and solve for alpha from 0: the cold start, O(passes N^2 (D + C))."""
        self.system.rebuild()

    @full_precision()
    @torch.no_grad()
    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        """Go on with another kernel and noise over the same rows: a cold start. Back to the old ones if it cannot be solved."""
        check_engine(self.capacity, self.n_features, self.n_classes, kernel=kernel, noise_std=noise_std, dtype=self.dtype)
        _check_iterative(kernel, rank=self.rank, tolerance=self.tolerance)
        self.system.reanchor(kernel, noise_std)

    def extra_repr(self) -> str:
        return (
            f"capacity={self.capacity}, n_features={self.n_features}, n_classes={self.n_classes}, kernel={self.kernel}, "
            f"noise_std={self.noise_std:g}, rank={self.rank}, tolerance={self.tolerance:g}, dtype={self.dtype}"
        )


def _check_iterative(kernel: Kernel, *, rank: int, tolerance: float) -> None:
    """Refuse what cannot be solved by iteration."""
    if not kernel.positive_definite:
        raise ValueError(
            f"the matrix-free engine needs a positive definite kernel: conjugate gradients break down on a K that may be "
            f"indefinite; got {kernel}. Use the exact engine for it."
        )
    if not isinstance(rank, int) or rank < 1:
        raise ValueError(f"rank must be an integer of at least 1; got {rank!r}.")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1; got {tolerance}.")


def _remember(engine: MatrixFreeGP, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Keep what there is, in case a state turns out to be useless."""
    if f"{prefix}system.points.features" in state:
        system = engine.system
        engine.before_load = {name: getattr(engine, name).clone() for name in SAVED}
        engine.before_load |= {"alpha": system.alpha.clone(), "residual": system.residual.clone()}


def _restore(engine: MatrixFreeGP, _incompatible_keys: object) -> None:
    before, engine.before_load = engine.before_load, {}
    if not before:  # nothing of ours was loaded
        return
    try:
        engine.rebuild()
    except Exception:
        for name in SAVED:
            getattr(engine, name).copy_(before[name])
        engine.system.put_back(before["alpha"], before["residual"])
        raise
