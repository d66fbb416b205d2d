"""Landmarks: few rows whose kernels span, nearly, those of all; and the features that they make of any row."""

import torch
from torch import Tensor

from semigpc.gp.engine import NotPositiveDefiniteError
from semigpc.gp.kernels import Kernel

BLOCK = 128  # pivots proposed at a time
DEPENDENT = {torch.float32: 1e-5, torch.float64: 1e-11}  # share of k(x, x) below which a row counts as explained by others


@torch.no_grad()
def choose_landmarks(
    features: Tensor, kernel: Kernel, rank: int, *, tolerance: float = 1e-6, generator: torch.Generator | None = None
) -> Tensor:
    """Positions (m,) of at most ``rank`` rows of features (n, D), by randomly pivoted Cholesky. O(n m (D + m)), n m memory.

    Each pivot is drawn with probability in proportion to what the earlier ones leave unexplained of k(x, x). Blocks of pivots
    are proposed at once and thinned by rejection, which keeps the distribution and makes most of the work matrix products.
    It stops early when the sum of what is left falls below ``tolerance`` times that of k(x, x), or when no row is left
    that the others do not explain to rounding: rows that coincide are chosen once.

    Args:
        features: (n, D) finite. rank: m at most, 1 or more. generator: of the draws, on the CPU.
    """
    if rank < 1:
        raise ValueError(f"rank must be at least 1; got {rank}.")
    own = kernel.diagonal(features).double()
    left, total, floor = own.clone(), float(own.sum()), DEPENDENT[features.dtype]
    factor = features.new_empty(len(features), min(rank, len(features)))  # F with K ~ F F^T
    chosen: list[int] = []
    while len(chosen) < factor.shape[1] and float(left.sum()) > tolerance * total:
        left = torch.where(left > floor * own, left, 0)
        count = min(BLOCK, factor.shape[1] - len(chosen), int((left > 0).sum()))
        if not count:
            break
        proposed = torch.multinomial(left.cpu(), count, generator=generator).to(left.device)
        done = len(chosen)
        held = factor[:, :done]
        within = kernel(features[proposed], features[proposed]).double()
        within.diagonal().copy_(own[proposed])
        within -= held[proposed].double() @ held[proposed].double().mT
        kept = _accept(within, floor * own[proposed], generator)
        pivots = proposed[kept]
        root = torch.linalg.cholesky(within[kept][:, kept])
        columns = kernel(features, features[pivots]) - held @ held[pivots].mT
        columns = torch.linalg.solve_triangular(root.to(columns.dtype), columns.mT, upper=False).mT
        factor[:, done : done + len(pivots)] = columns
        left = (left - columns.square().sum(dim=1, dtype=torch.float64)).clamp_min_(0)
        left[pivots] = 0
        chosen += pivots.tolist()
    return torch.tensor(chosen, dtype=torch.int64, device=features.device)


def _accept(within: Tensor, floor: Tensor, generator: torch.Generator | None) -> Tensor:
    """Which of a block of proposals to keep: each with the share of its residual that the kept ones before it leave. O(b^3)."""
    residual, draws = within.cpu(), torch.rand(len(within), generator=generator, dtype=torch.float64)
    proposed, limits, kept = residual.diagonal().clone(), floor.cpu(), []
    for i in range(len(residual)):
        if residual[i, i] > limits[i] and draws[i] * proposed[i] <= residual[i, i]:
            kept.append(i)
            column = residual[:, i] / residual[i, i].sqrt()
            residual = residual - torch.outer(column, column)
    return torch.tensor(kept, dtype=torch.int64, device=within.device)


class LandmarkFeatures:
    """phi(x) = L^-1 k(Z, x) with k(Z, Z) = L L^T, so that phi(x) . phi(x') is the Nystrom kernel, at most k(x, x) for x = x'.

    Made in float64 and kept in the landmarks' dtype.

    Args:
        landmarks: (m, D) Z, none of which the others explain to rounding, as :func:`choose_landmarks` gives them.
        kernel: k.
    """

    def __init__(self, landmarks: Tensor, kernel: Kernel) -> None:
        self.landmarks, self.kernel = landmarks, kernel
        wide = landmarks.double()
        inner = kernel(wide, wide)
        inner.diagonal().copy_(kernel.diagonal(wide))
        root, failed = torch.linalg.cholesky_ex(inner)
        if bool(failed):
            raise NotPositiveDefiniteError(
                f"landmarks must be distinct under {kernel}; one of {len(landmarks)} coincides with others."
            )
        eye = torch.eye(len(landmarks), dtype=torch.float64, device=landmarks.device)
        self.root_inverse: Tensor = torch.linalg.solve_triangular(root, eye, upper=False)
        self._narrow = self.root_inverse.to(landmarks.dtype)
        self._square_norms = landmarks.square().sum(dim=1)

    def __len__(self) -> int:
        """m."""
        return len(self.landmarks)

    def kernel_values(self, x: Tensor) -> Tensor:
        """k(x, Z), (M, m). O(M m D)."""
        return self.kernel(x, self.landmarks, self._square_norms)

    def phi(self, x: Tensor) -> Tensor:
        """(M, m). O(M m (D + m))."""
        features: Tensor = self.kernel_values(x) @ self._narrow.mT
        return features

    def residual(self, x: Tensor, phi: Tensor | None = None) -> Tensor:
        """k(x, x) - |phi(x)|^2, (M,) float64, at least 0: the prior variance that the landmarks do not carry."""
        phi = self.phi(x) if phi is None else phi
        left: Tensor = self.kernel.diagonal(x).double() - phi.square().sum(dim=1, dtype=torch.float64)
        return left.clamp_min_(0)
