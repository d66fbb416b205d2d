"""Ridge regression on m features whose rows come and go: A = Phi^T Phi + sigma^2 I, and its solution kept true."""

import logging

import torch
from torch import Tensor, nn

from semigpc.gp.engine import NotPositiveDefiniteError
from semigpc.gp.tiles import DelayedInverse

logger = logging.getLogger(__name__)

FOLD = 128  # rows of changes kept aside
LEAST = 1e-6  # eigenvalue of a B x B matrix that rounding has pushed below 0
REFACTOR_ABOVE = 1e-3  # residual |R - A w| / |R| at which the inverse is made anew


class WeightSpace(nn.Module):
    """w = A^-1 R with A = Phi^T Phi + sigma^2 I (m, m), R = Phi^T Y (m, K), as rows of Phi and Y are added and taken away.

    A change of rows V_o out, V_n in moves P = A^-1 by two rank-B terms (Sherman, Morrison and Woodbury), in one pass over P:

        W_o, W_n = P V_o, P V_n                             the pass
        S_o = I - V_o^T W_o           P1 = P + W_o S_o^-1 W_o^T
        T   = W_n + W_o S_o^-1 (V_o^T W_n)                   = P1 V_n
        S_n = I + V_n^T T             P2 = P1 - T S_n^-1 T^T
        w  += P2 (V_n (y_n - V_n^T w) - V_o (y_o - V_o^T w))

    O(B m^2 + B^2 m). P may be float32; A, R, w and the B x B algebra are float64. Whenever the changes kept aside are folded
    into A, w is refined against it, w += P (R - A w), and the residual is looked at: if P has gone wrong, it is made anew.

    Args:
        rank: m at most. n_targets: K. noise_variance: sigma^2. dtype: of P.
    """

    gram: Tensor
    moments: Tensor
    weights: Tensor

    def __init__(
        self, rank: int, n_targets: int, *, noise_variance: float, dtype: torch.dtype, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.noise_variance, self.n_targets, self.size = noise_variance, n_targets, 0
        self.inverse = DelayedInverse(rank, fold_rank=FOLD, dtype=dtype, device=device)
        self.residual, self.refactored = 0.0, 0
        for name, shape in (("gram", (0, 0)), ("moments", (0, n_targets)), ("weights", (0, n_targets))):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64, device=device), persistent=False)
        self._kept: list[tuple[Tensor, int]] = []

    def reset(self, size: int) -> None:
        """No rows, and m = ``size`` features."""
        self.size = size
        self.gram = self.gram.new_zeros(size, size)
        self.gram.diagonal().fill_(self.noise_variance)
        self.moments, self.weights = self.moments.new_zeros(size, self.n_targets), self.moments.new_zeros(size, self.n_targets)
        self._kept = []
        self.inverse.reset()

    def accumulate(self, phi: Tensor, targets: Tensor) -> None:
        """Add rows (n, m) and (n, K) to A and R alone; :meth:`solve` afterwards. O(n m^2)."""
        self.gram += (phi.mT @ phi).double()
        self.moments += phi.mT.double() @ targets.double()

    def solve(self) -> None:
        """P and w from A and R. O(m^3)."""
        root, failed = torch.linalg.cholesky_ex(self.gram)
        if bool(failed):
            raise NotPositiveDefiniteError(f"Phi^T Phi + {self.noise_variance:g} I cannot be inverted. Raise noise_std.")
        self.weights = torch.cholesky_solve(self.moments, root)
        self.inverse.reset()
        self.inverse.base.grow(self.size)
        rows = torch.zeros(self.size, self.inverse.size, dtype=self.inverse.u.dtype, device=root.device)
        rows[:, : self.size] = torch.cholesky_inverse(root).to(rows.dtype)
        self.inverse.base.set_rows(torch.arange(self.size, device=root.device), rows)

    def change(self, phi: Tensor, targets: Tensor, *, leaving: int) -> None:
        """Take the first ``leaving`` rows (B, m), (B, K) away and add the others. O(B m^2)."""
        y = targets.double()
        V, W = phi.double(), self._multiply(phi).double()  # rows
        V_o, V_n, W_o, W_n = V[:leaving], V[leaving:], W[:leaving], W[leaving:]
        root_o = _root(torch.eye(leaving, dtype=V.dtype, device=V.device) - V_o @ W_o.mT)
        half_o = torch.linalg.solve_triangular(root_o, W_o, upper=False)  # half_o^T half_o = W_o S_o^-1 W_o^T
        T = W_n + (V_n @ half_o.mT) @ half_o
        root_n = _root(torch.eye(len(V_n), dtype=V.dtype, device=V.device) + V_n @ T.mT)
        half_n = torch.linalg.solve_triangular(root_n, T, upper=False)
        signs = torch.ones(len(V), 1, dtype=V.dtype, device=V.device)
        signs[:leaving] = -1
        pull = signs * (y - V @ self.weights)  # (B, K)
        moved = W.mT @ pull + half_o.mT @ (half_o @ (V.mT @ pull)) - half_n.mT @ (half_n @ (V.mT @ pull))
        self.moments += V.mT @ (signs * y)
        self.weights = self.weights + moved
        self.inverse.add(minus=self._padded(half_n), plus=self._padded(half_o))
        self._kept += [(phi[:leaving], -1), (phi[leaving:], 1)]
        if sum(len(rows) for rows, _ in self._kept) >= FOLD:
            self._fold()

    def quadratic(self, phi: Tensor) -> Tensor:
        """phi^T A^-1 phi of each row of phi (M, m), (M,) float64. O(M m^2)."""
        return (self._multiply(phi).double() * phi).sum(dim=1)

    def _multiply(self, phi: Tensor) -> Tensor:
        """phi @ P, (B, m)."""
        padded = nn.functional.pad(phi, (0, self.inverse.size - self.size))
        return self.inverse.multiply(padded)[:, : self.size]

    def _padded(self, rows: Tensor) -> Tensor:
        return nn.functional.pad(rows, (0, self.inverse.size - self.size))

    def _fold(self) -> None:
        """Bring A up to date, and w to it."""
        rows = torch.cat([part for part, _ in self._kept])
        signed = torch.cat([sign * part for part, sign in self._kept])
        self.gram += (signed.mT @ rows).double()
        self._kept = []
        left = self.moments - self.gram @ self.weights
        self.residual = float(left.norm() / self.moments.norm().clamp_min(1e-300))
        if not self.residual <= REFACTOR_ABOVE:
            logger.info("the weights' residual is %g, making the inverse anew", self.residual)
            self.refactored += 1
            self.solve()
            return
        self.weights = self.weights + self._multiply(left.mT.to(self.inverse.u.dtype)).mT.double()


def _root(matrix: Tensor) -> Tensor:
    """Its Cholesky factor; rounding may have eaten a little of what is at least sigma^2 / (sigma^2 + |phi|^2)."""
    root: Tensor
    root, failed = torch.linalg.cholesky_ex(matrix)
    if bool(failed):
        values, vectors = torch.linalg.eigh(matrix)
        root = torch.linalg.cholesky((vectors * values.clamp_min(LEAST)) @ vectors.mT)
    return root
