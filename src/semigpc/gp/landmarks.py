"""Landmarks: few rows whose kernels nearly span those of all, and the features they define."""

import torch
from torch import Tensor, nn

from semigpc.gp.engine import NotPositiveDefiniteError
from semigpc.gp.kernels import Kernel

BLOCK = 128  # pivots proposed at a time
# Share of k(x, x) left unexplained below which a row counts as explained by others.
DEPENDENT = {torch.float32: 1e-5, torch.float64: 1e-11}


@torch.no_grad()
def choose_landmarks(
    features: Tensor,
    kernel: Kernel,
    rank: int,
    *,
    tolerance: float = 1e-6,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return positions (m,) of at most ``rank`` rows of features (n, D).

    Randomly pivoted Cholesky: each pivot is drawn with probability in proportion to what the
    earlier ones leave unexplained of k(x, x). Blocks of pivots are proposed at once and thinned by
    rejection, which keeps the distribution and makes most of the work matrix products. It stops
    early when the sum of what is left falls below ``tolerance`` times that of k(x, x), or when
    no row is left that the others do not explain to rounding: rows that coincide are chosen once.
    O(n m (D + m)) time and n m memory, in the features' dtype.

    Args:
        features: (n, D) finite. rank: m at most, 1 or more. generator: of the draws, on the CPU.
    """
    if rank < 1:
        raise ValueError(f"rank must be at least 1; got {rank}.")
    own = kernel.diagonal(features).double()
    limits = DEPENDENT[features.dtype] * own
    limits_on_host = limits.cpu()
    left = own.clone()
    total = float(own.sum())
    factor = features.new_empty(len(features), min(rank, len(features)))  # F with K ~ F F^T
    chosen: list[int] = []
    while len(chosen) < factor.shape[1]:
        # The host draws and decides: two copies to it per block, and no other wait for the device.
        shares = left.cpu()
        if not float(shares.sum()) > tolerance * total:
            break
        shares = torch.where(shares > limits_on_host, shares, 0)
        left = torch.where(left > limits, left, 0)
        count = min(BLOCK, factor.shape[1] - len(chosen), int((shares > 0).sum()))
        if not count:
            break
        drawn = torch.multinomial(shares, count, generator=generator)
        proposed = drawn.to(left.device, non_blocking=True)
        held = factor[:, : len(chosen)]
        within = kernel(features[proposed], features[proposed]).double()
        within.diagonal().copy_(own[proposed])
        within -= held[proposed].double() @ held[proposed].double().mT
        within = within.cpu()
        kept = _accept(within, limits_on_host[drawn], generator)
        pivots = drawn[kept].to(left.device, non_blocking=True)
        root = torch.linalg.cholesky(within[kept][:, kept]).to(factor, non_blocking=True)
        columns = kernel(features, features[pivots]) - held @ held[pivots].mT
        columns = torch.linalg.solve_triangular(root, columns.mT, upper=False).mT
        factor[:, len(chosen) : len(chosen) + len(pivots)] = columns
        left = (left - columns.square().sum(dim=1, dtype=torch.float64)).clamp_min_(0)
        left[pivots] = 0
        chosen += drawn[kept].tolist()
    return torch.tensor(chosen, dtype=torch.int64).to(features.device, non_blocking=True)


def _accept(within: Tensor, floor: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return which proposals (b,) to keep. O(b^3).

    Each is kept with the share of its residual that the kept ones before it leave.
    """
    draws = torch.rand(len(within), generator=generator, dtype=torch.float64)
    residual = within
    proposed = residual.diagonal().clone()
    kept = []
    for i in range(len(residual)):
        if residual[i, i] > floor[i] and draws[i] * proposed[i] <= residual[i, i]:
            kept.append(i)
            column = residual[:, i] / residual[i, i].sqrt()
            residual = residual - torch.outer(column, column)
    return torch.tensor(kept, dtype=torch.int64)


class LandmarkFeatures(nn.Module):
    """phi(x) = L^-1 k(Z, x) with k(Z, Z) = L L^T: phi(x) . phi(x') is the Nystrom kernel.

    Args:
        landmarks: (m, D) Z, none of which the others explain to rounding, as
            :func:`choose_landmarks` returns them. They and any other rows may be of any floating
            dtype; all arithmetic is float64. kernel: k.
    """

    landmarks: Tensor
    root_inverse: Tensor  # L^-1, (m, m)

    def __init__(self, landmarks: Tensor, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel
        landmarks = landmarks.to(torch.float64, copy=True)
        inner = kernel(landmarks, landmarks)
        inner.diagonal().copy_(kernel.diagonal(landmarks))
        root, failed = torch.linalg.cholesky_ex(inner)
        if bool(failed):
            raise NotPositiveDefiniteError(
                f"landmarks must be distinct under {kernel}; one of {len(landmarks)} coincides."
            )
        eye = torch.eye(len(root), dtype=root.dtype, device=root.device)
        self.register_buffer("landmarks", landmarks, persistent=False)
        root_inverse = torch.linalg.solve_triangular(root, eye, upper=False)
        self.register_buffer("root_inverse", root_inverse, persistent=False)

    def __len__(self) -> int:
        """Return m."""
        return len(self.landmarks)

    def kernel_values(self, x: Tensor) -> Tensor:
        """Return k(x, Z), (M, m). O(M m D)."""
        return self.kernel(x.double(), self.landmarks)

    def phi(self, x: Tensor) -> Tensor:
        """Return phi of each row, (M, m). O(M m (D + m))."""
        return self.kernel_values(x) @ self.root_inverse.mT

    def residual(self, x: Tensor, phi: Tensor | None = None) -> Tensor:
        """Return k(x, x) - |phi(x)|^2, (M,), at least 0: the prior variance left unexplained."""
        phi = self.phi(x) if phi is None else phi
        return (self.kernel.diagonal(x.double()) - phi.square().sum(dim=1)).clamp_min_(0)
