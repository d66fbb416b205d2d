"""An inverse of nearly the kernel matrix, from landmarks: what makes conjugate gradients take few steps."""

import torch
from torch import Tensor

from semigpc.gp.kernels import Kernel
from semigpc.gp.landmarks import LandmarkFeatures, choose_landmarks

ROWS = 4096  # turned to float64 at a time
STALE = 1.5  # times what the landmarks left unexplained of a row when they were chosen


class LandmarkPreconditioner:
    """M^-1 for M = Phi Phi^T + sigma^2 I, kept as rows change.

        M^-1 r = (r - Phi W^-1 Phi^T r) / sigma^2        W = Phi^T Phi + sigma^2 I    (m, m), by Cholesky

    Phi (N, m) are the landmark features in the buffer's dtype, so M is K with the Nystrom kernel in place of k. A row replaced
    is a rank-2 change of W, O(B m^2); its factor is made when it is asked for, O(m^3 / 3). All algebra is float64, over chunks
    of rows. k(h, h) - |phi(h)|^2 beside the noise, as in FITC, was tried: up to 3 steps fewer cold, more when warm.

    Landmarks are rows of the time when they were chosen and may have left the buffer since: any M will do, only steps are lost.

    Args:
        features: (N, D). occupied: (N,). kernel: k. noise_variance: sigma^2.
        rank: m at most; fewer where fewer rows explain all the others.
        seed: of the choice.
    """

    def __init__(
        self, features: Tensor, occupied: Tensor, kernel: Kernel, *, noise_variance: float, rank: int, seed: int
    ) -> None:
        held = occupied.nonzero().squeeze(1)
        rows = features[held]
        generator = torch.Generator().manual_seed(seed)
        chosen = choose_landmarks(rows, kernel, min(rank, len(rows)), generator=generator)
        self.anchors = held[chosen]  # slots of landmarks that are still in the buffer, the most telling ones first
        self.noise_variance = noise_variance
        self._landmarks = LandmarkFeatures(rows[chosen], kernel)
        self._phi = features.new_zeros(len(features), len(chosen))
        self._unexplained = features.new_zeros(len(features), dtype=torch.float64)
        self._W = torch.eye(len(chosen), dtype=torch.float64, device=features.device) * noise_variance
        self._factor: Tensor | None = None
        self._written = 0
        for part in held.split(ROWS):
            self._enter(part, features[part])
        self._chosen_at, self._written = len(held), 0
        self._unexplained_then = float(self._unexplained.sum()) / len(held)

    def __len__(self) -> int:
        """m."""
        return len(self._landmarks)

    def replace(self, slots: Tensor, features: Tensor | None) -> None:
        """Other rows (B, D) in these slots (B,), or none. O(B m (D + m))."""
        wide = self._phi[slots].double()
        self._W.addmm_(wide.mT, wide, alpha=-1)
        self._phi[slots], self._unexplained[slots], self._factor = 0, 0, None
        self.anchors = self.anchors[~torch.isin(self.anchors, slots)]
        if features is not None:
            self._enter(slots, features)

    def is_stale(self, count: int) -> bool:
        """Whether to choose landmarks anew for ``count`` rows: as many rows have come as there were then, or a quarter of that
        and the landmarks explain what there is clearly worse than they did. A full buffer: once to four times a turnover.
        """
        unexplained = float(self._unexplained.sum()) / max(count, 1)
        worse = unexplained > STALE * self._unexplained_then + self.noise_variance
        return self._written >= self._chosen_at / (4 if worse else 1)

    def __call__(self, residual: Tensor) -> Tensor:
        """M^-1 r, (n, R) float64, for the first n slots. O(n m R). Raises LinAlgError where the noise is lost in rounding."""
        if self._factor is None:
            self._factor = torch.linalg.cholesky(self._W)
        inner = torch.zeros(len(self), residual.shape[1], dtype=torch.float64, device=residual.device)
        phi = self._phi[: len(residual)]
        for rows, part in zip(phi.split(ROWS), residual.split(ROWS), strict=True):
            inner.addmm_(rows.double().mT, part)
        solved = torch.cholesky_solve(inner, self._factor)
        explained = torch.cat([rows.double() @ solved for rows in phi.split(ROWS)])
        return (residual - explained).div_(self.noise_variance)

    def _enter(self, slots: Tensor, features: Tensor) -> None:
        phi = self._landmarks.phi(features)
        self._phi[slots] = phi.to(self._phi.dtype)
        self._unexplained[slots] = self._landmarks.residual(features, phi)
        wide = phi.double()
        self._W.addmm_(wide.mT, wide)
        self._written += len(slots)
