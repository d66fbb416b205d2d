"""Linear algebra of a changing kernel matrix: K, its inverse, and K^-1 y, as rows of K are overwritten.

Nothing here knows of features or classes. Right-hand sides are rows, (R, n); see ``tiles``.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from semigpc.gp.inverse import DelayedInverse
from semigpc.gp.tiles import SymmetricTiles

GOOD_AS_IT_IS = 1e-4  # residual of new columns, in units of the noise variance, that needs no refinement ...
REFINED_TO = 1e-3  # ... and the predicted one at which refinement stops
ALPHA_REFINED_TO = 1e-6  # residual of alpha
MAX_ROUNDS = 4  # of refinement in one replacement
CHUNK = 256  # rows written at a time
UNREFINED = 0.1  # predicted residual, in the same units, that refinement must come below to be believed


class NotPositiveDefiniteError(ValueError):
    """K + noise cannot be inverted in the engine's precision."""


class OnlineSolver(nn.Module):
    """P = K^-1 and alpha = y P for a symmetric K that starts as the identity and has rows and columns replaced.

    Args:
        capacity: N, rows of K at most.
        n_rhs: right-hand sides y, the rows of alpha.
        noise_variance: lower bound of the eigenvalues of K; its violation is the sign that P has gone wrong.
        dtype: of P and K; alpha and all B x B algebra are float64.
    """

    alpha: Tensor

    def __init__(
        self,
        capacity: int,
        n_rhs: int,
        *,
        noise_variance: float,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.capacity, self.dtype = capacity, dtype
        self.noise_variance = noise_variance
        fold_rank = 256 if capacity > 2048 else 128
        self.inverse = DelayedInverse(capacity, fold_rank=fold_rank, dtype=dtype, device=device)
        self.K: SymmetricTiles | None = None
        width = self.inverse.u.shape[1]
        alpha = torch.zeros(n_rhs, width, dtype=torch.float64, device=device)
        self.register_buffer("alpha", alpha, persistent=False)
        self.rounds = 0
        self.alpha_error = 0.0
        self.schur_ratio = float("inf")

    @property
    def size(self) -> int:
        """n, rows in use: slots beyond have never been written."""
        return self.inverse.size

    def hold_kernel_matrix(self) -> SymmetricTiles:
        """Keep K beside P from now on, for refinement. The caller writes its rows."""
        self.K = SymmetricTiles(self.capacity, dtype=self.dtype, device=self.alpha.device)
        self.K.grow(self.size)
        return self.K

    def grow(self, rows: int) -> None:
        """Extend P (and K) by the identity to at least ``rows`` rows."""
        self.inverse.base.grow(rows)
        if self.K is not None:
            self.K.grow(rows)

    def reset(self) -> None:
        """Back to size 0."""
        self.inverse.reset()
        self.alpha.zero_()
        self.alpha_error = 0.0
        if self.K is not None:
            self.K.reset()

    def replace(self, slots: Tensor, C: Tensor, D: Tensor, y: Tensor, G: Tensor) -> None:
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

        Raises NotPositiveDefiniteError, with nothing changed, when M or Sg cannot belong to a K as described, or when
        refinement does not converge. A K that is not positive definite is for ``invert``.

        Args:
            slots: (B,).
            C: (B, n) new entries of K, columns ``slots`` 0.
            D: (B, B) float64, new entries among the slots themselves, noise on the diagonal.
            y: (n_rhs, B) float64, new right-hand sides.
            G: (B, n) ``inverse.rows(slots)``, which the caller has often looked at already.
        """
        forget, _ = _inverse_root(G[:, slots].double(), floor=0.0)
        u_forget = forget @ G.double()  # (B, n); G M^-1 G^T = u^T u

        def kept(x: Tensor) -> Tensor:  # x P -> x A^-1, for x = 0 at the slots
            x.addmm_(x[:, slots] @ forget.mT, u_forget, alpha=-1)
            x[:, slots] = 0
            return x

        V, residual = self._solve_kept(C, slots, kept)
        C64 = C.double()
        append, smallest = _inverse_root(D - C64 @ V.mT, floor=0.5 * min(self.noise_variance, 1.0))  # D = 1 if emptied
        self.schur_ratio = smallest / self.noise_variance
        V[torch.arange(len(slots), device=V.device), slots] = -1  # V is Vh from here on
        u_append = append @ V
        # Nothing above has changed the state; nothing below can fail.
        a = kept(self.alpha[:, : self.size])
        y_rest = (y - a @ C64.mT) @ append.mT  # (n_rhs, B)
        a.addmm_(y_rest, u_append, alpha=-1)
        if residual:
            self.alpha_error += residual * float(a[:, slots].abs().sum(dim=1).max())  # what C - V A leaves in y - alpha K
        self.inverse.add(u_forget, sign=-1)
        self.inverse.add(u_append, sign=1)
        if self.K is not None:
            C[:, slots] = D.to(self.dtype)
            self.K.set_rows(slots, C)

    def invert(self, slots: Tensor, K: Tensor, y: Tensor) -> None:
        """P and alpha from K at all occupied slots at once, by a dense inverse with pivoting: K may be indefinite. O(S^3).

        Args:
            slots: (S,) within the rows in use. K: (S, S) float64, noise on the diagonal. y: (n_rhs, S) float64.
        """
        P, info = torch.linalg.inv_ex(K)
        if int(info) or not float((P @ K).diagonal().sub(1).abs().max()) < 1e-2:
            raise NotPositiveDefiniteError
        self.alpha[:, slots] = y @ P
        for start in range(0, len(slots), CHUNK):
            part = slice(start, start + CHUNK)
            for matrix, entries in ((self.inverse.base, P), (self.K, K)):
                if matrix is not None:
                    rows = self.alpha.new_zeros(len(slots[part]), self.size, dtype=self.dtype)
                    rows[:, slots] = entries[part].to(self.dtype)
                    matrix.set_rows(slots[part], rows)

    def refine_alpha(self, y: Tensor) -> float:
        """alpha += (y - alpha K) P with the residual in float64, until that is small; answers with it. O(n_rhs n^2).

        Args:
            y: (n_rhs, n) float64, all right-hand sides.
        """
        assert self.K is not None, "refine_alpha needs hold_kernel_matrix()"
        alpha = self.alpha[:, : self.size]
        self.alpha_error = 0.0
        for _ in range(MAX_ROUNDS):
            residual = y - self.K.multiply(alpha)
            if float(residual.abs().max()) <= ALPHA_REFINED_TO:
                break
            alpha += self.inverse.multiply(residual.to(self.dtype))
        return float(residual.abs().max())

    def solve(self, x: Tensor) -> Tensor:
        """x K^-1 for x (R, n), float64; refined where K is held. O(R n^2)."""
        z = self.inverse.multiply(x).double()
        if self.K is not None:
            for _ in range(2):
                z += self.inverse.multiply((x - self.K.multiply(z)).to(self.dtype))
        return z

    def quadratic(self, x: Tensor) -> Tensor:
        """x_i K^-1 x_i for each row of x (R, n), (R,) float64. O(R n^2).

        Where K is held the answer is z.x + z.(x - z K) with z = x K^-1: the error of z enters squared.
        """
        z = self.solve(x)
        return (z * x).sum(dim=1) if self.K is None else (z * (2 * x - self.K.multiply(z))).sum(dim=1)

    def _solve_kept(self, C: Tensor, slots: Tensor, kept: Callable[[Tensor], Tensor]) -> tuple[Tensor, float]:
        """V = C A^-1, (B, n) float64, where A is K without the slots, and the size of C - V A; refined where K is held.

        A round of refinement is V += (C - V A) A^-1. P errs by a factor of about |C - V A| / |C|, so the residual seen in one
        round predicts, by its square, the one that the round leaves.
        """
        V = kept(self.inverse.multiply(C).double())
        if self.K is None:
            return V, 0.0  # not known
        noise_floor = 8 * torch.finfo(self.dtype).eps
        left = math.inf
        for _ in range(MAX_ROUNDS):
            R = C - self.K.multiply(V.to(self.dtype))
            R[:, slots] = 0
            left = float(R.abs().max())
            if left <= max(GOOD_AS_IT_IS * self.noise_variance, noise_floor):
                break
            V += kept(self.inverse.multiply(R).double())
            self.rounds += 1
            left = max(left**2, noise_floor)
            if left <= max(REFINED_TO * self.noise_variance, noise_floor):
                break
        if left > max(UNREFINED * self.noise_variance, noise_floor):
            raise NotPositiveDefiniteError
        return V, left


def _inverse_root(A: Tensor, *, floor: float) -> tuple[Tensor, float]:
    """R with A^-1 = R^T R, and the smallest eigenvalue of A, which must lie above ``floor``."""
    try:
        w, Q = torch.linalg.eigh(A)  # reads one triangle
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # not finite
        raise NotPositiveDefiniteError from error
    smallest, largest = float(w[0]), float(w[-1])
    if not smallest - floor > 1e-12 * largest:
        raise NotPositiveDefiniteError
    return (Q * w.rsqrt()).mT, smallest
