"""Conjugate gradients, preconditioned by landmarks, with a kernel matrix that is never stored.

Our own rather than ``linear_operator.utils.linear_cg``, and each reason concerns the online rule.
That one takes 12 products at least, however good the start is: 11 steps, and one for the residual
of the initial guess, which we know already. It stops by the MEAN of the residuals over right-hand
sides: on 3000 clustered rows with a tolerance of 1e-3 the worst class was left at 1.6e-3. It
returns neither residual nor number of steps. And where it fails it warns, and returns what it has.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from semigpc.gp.kernels import Kernel, square_norms
from semigpc.io.errors import SemiGPCError

Linear = Callable[[Tensor], Tensor]

# Rows and columns of the largest piece of K that exists at any time: 4 MB in float32.
PIECE = 1024
CONVERTED_ROWS = 4096  # of the buffer, converted to float64 at a time
STALE_FACTOR = 1.5  # by which landmarks may explain the rows worse than when they were chosen
PROPOSALS = 128  # landmarks proposed at a time
NEGLIGIBLE_SHARE = 1e-6  # of the sum of k(x, x): less left unexplained needs no landmark
# Share of k(x, x) left unexplained below which a row counts as explained by others.
DEPENDENT = {torch.float32: 1e-5, torch.float64: 1e-11}


class NotConvergedError(SemiGPCError, ValueError):
    """The tolerance was not reached; the message says which option to change."""


class Solved(NamedTuple):
    """A solution x (n, R), its residual (n, R), the products taken, and whether it converged."""

    x: Tensor
    residual: Tensor
    iterations: int
    converged: bool


@torch.no_grad()
def solve(
    product: Linear,
    precondition: Linear,
    x: Tensor,
    residual: Tensor,
    goals: Tensor,
    *,
    max_iterations: int,
) -> Solved:
    """Change x until each column of the residual b - K x has a norm of at most its goal.

        z = M^-1 r        p = z + p (r . z) / (r . z before)
        a = (r . z) / (p . K p)        x += a p        r -= a K p

    One product per step. Columns are independent solves that share the products with K. A block
    method, which would let them share search directions too, breaks down here: one-hot targets sum
    to the column of ones, so right-hand sides are dependent.

    Args:
        product: K, symmetric positive definite, on (n, R) float64.
        precondition: M^-1, the same.
        x: (n, R) start. residual: (n, R) b - K x, not computed again.
        goals: (R,) norms; columns without a residual stay as they are.
        max_iterations: products at most.
    """
    x = x.clone()
    residual = residual.clone()
    norms = torch.linalg.vector_norm(residual, dim=0)
    direction = torch.zeros_like(x)
    before = torch.ones_like(goals)
    iterations = 0
    while not bool((norms <= goals).all()):
        if iterations == max_iterations or not bool(norms.isfinite().all()):
            return Solved(x, residual, iterations, False)
        preconditioned = precondition(residual)
        now = (residual * preconditioned).sum(dim=0)
        direction = preconditioned + direction * torch.where(before > 0, now / before, 0)
        image = product(direction)
        curvature = (direction * image).sum(dim=0)
        step = torch.where(curvature > 0, now / curvature, 0)
        x += step * direction
        residual -= step * image
        norms = torch.linalg.vector_norm(residual, dim=0)
        before = now
        iterations += 1
    return Solved(x, residual, iterations, True)


# Preconditioning by landmarks ---------------------------------------------------------------------


class LandmarkPreconditioner:
    """M^-1 for M = Phi Phi^T + sigma^2 I, kept up to date as rows change.

        M^-1 r = (r - Phi W^-1 Phi^T r) / sigma^2        W = Phi^T Phi + sigma^2 I, (m, m)

    Phi (N, m) are the landmark features in the buffer's dtype, so M is K with the Nystrom kernel in
    place of k. A row replaced is a rank-2 change of W, O(B m^2); its factor is computed when it is
    needed, O(m^3 / 3). All algebra is float64, over chunks of rows. k(h, h) - |phi(h)|^2 beside the
    noise, as in FITC, was tried: up to 3 steps fewer cold, more when warm.

    Landmarks are rows of the time when they were chosen and may have left the buffer since. Any M
    gives the right solution; a bad one takes more steps.

    Args:
        features: (N, D). occupied: (N,). kernel: k. noise_variance: sigma^2.
        rank: m at most; fewer where fewer rows explain all the others.
        seed: of the choice.
    """

    def __init__(
        self,
        features: Tensor,
        occupied: Tensor,
        kernel: Kernel,
        *,
        noise_variance: float,
        rank: int,
        seed: int,
    ) -> None:
        slots = occupied.nonzero().squeeze(1)
        rows = features[slots]
        generator = torch.Generator().manual_seed(seed)
        chosen = choose_landmarks(rows, kernel, min(rank, len(rows)), generator)
        # slots of the landmarks still in the buffer, those that explain most first
        self.anchors: list[int] = slots[chosen].tolist()
        self.noise_variance = noise_variance
        self._landmarks = LandmarkFeatures(rows[chosen], kernel)
        self._phi = features.new_zeros(len(features), len(chosen))
        self._unexplained = features.new_zeros(len(features), dtype=torch.float64)
        eye = torch.eye(len(chosen), dtype=torch.float64, device=features.device)
        self._W = eye * noise_variance
        self._factor: Tensor | None = None
        self._written = 0  # rows since the choice
        for part in slots.split(CONVERTED_ROWS):
            self._enter(part, features[part])
        self._chosen_at = len(slots)
        self._written = 0
        self._unexplained_then = float(self._unexplained.sum()) / len(slots)

    def replace(self, slots: Tensor, features: Tensor | None) -> None:
        """Follow a change of slots (B,), on the CPU, to rows (B, D) or to none. O(B m (D + m))."""
        replaced = set(slots.tolist())
        self.anchors = [slot for slot in self.anchors if slot not in replaced]
        slots = slots.to(self._phi.device, non_blocking=True)
        wide = self._phi[slots].double()
        self._W.addmm_(wide.mT, wide, alpha=-1)
        self._phi[slots] = 0
        self._unexplained[slots] = 0
        self._factor = None
        if features is not None:
            self._enter(slots, features)

    def is_stale(self, count: int) -> bool:
        """Return whether to choose landmarks anew for ``count`` rows.

        So it is when as many rows have been written as there were at the choice, or a quarter of
        that and the landmarks explain the rows clearly worse. For a full buffer this is one to four
        times per turnover.
        """
        if not self._chosen_at <= 4 * self._written < 4 * self._chosen_at:
            return self._written >= self._chosen_at
        unexplained = float(self._unexplained.sum()) / max(count, 1)
        return unexplained > STALE_FACTOR * self._unexplained_then + self.noise_variance

    def __call__(self, residual: Tensor) -> Tensor:
        """Return M^-1 r, (n, R) float64, for the first n slots. O(n m R).

        Raises:
            LinAlgError: the noise is lost in rounding.
        """
        if self._factor is None:
            self._factor = torch.linalg.cholesky(self._W)
        inner = self._W.new_zeros(len(self._W), residual.shape[1])
        phi = self._phi[: len(residual)]
        for rows, part in zip(
            phi.split(CONVERTED_ROWS), residual.split(CONVERTED_ROWS), strict=True
        ):
            inner.addmm_(rows.double().mT, part)
        solved = torch.cholesky_solve(inner, self._factor)
        explained = torch.cat([rows.double() @ solved for rows in phi.split(CONVERTED_ROWS)])
        return (residual - explained).div_(self.noise_variance)

    def _enter(self, slots: Tensor, features: Tensor) -> None:
        # Rounded first: what leaves W later is computed from the stored values.
        phi = self._landmarks.phi(features).to(self._phi.dtype)
        self._phi[slots] = phi
        self._unexplained[slots] = self._landmarks.residual(features, phi)
        wide = phi.double()
        self._W.addmm_(wide.mT, wide)
        self._written += len(slots)


class LandmarkFeatures:
    """phi(x) = L^-1 k(Z, x) with k(Z, Z) = L L^T: phi(x) . phi(x') is the Nystrom kernel.

    All arithmetic is float64.

    Args:
        landmarks: (m, D) Z, none of which the others explain to rounding, as
            :func:`choose_landmarks` returns them. kernel: k.
    """

    root_inverse: Tensor  # L^-1, (m, m)

    def __init__(self, landmarks: Tensor, kernel: Kernel) -> None:
        self.kernel = kernel
        self.landmarks = landmarks.double()
        inner = kernel(self.landmarks, self.landmarks)
        inner.diagonal().copy_(kernel.diagonal(self.landmarks))
        root = torch.linalg.cholesky(inner)
        eye = torch.eye(len(root), dtype=root.dtype, device=root.device)
        self.root_inverse = torch.linalg.solve_triangular(root, eye, upper=False)

    def phi(self, x: Tensor) -> Tensor:
        """Return phi of each row, (M, m). O(M m (D + m))."""
        return self.kernel(x.double(), self.landmarks) @ self.root_inverse.mT

    def residual(self, x: Tensor, phi: Tensor) -> Tensor:
        """Return k(x, x) - |phi(x)|^2, (M,), at least 0: the prior variance left unexplained."""
        return (self.kernel.diagonal(x.double()) - phi.square().sum(dim=1)).clamp_min_(0)


@torch.no_grad()
def choose_landmarks(
    features: Tensor, kernel: Kernel, rank: int, generator: torch.Generator
) -> Tensor:
    """Return positions (m,) of at most ``rank`` rows of features (n, D).

    Randomly pivoted Cholesky: each pivot is drawn with probability in proportion to what the
    earlier ones leave unexplained of k(x, x). Blocks of pivots are proposed at once and thinned by
    rejection, which keeps the distribution and makes most of the work matrix products. It stops
    early when next to nothing of the sum of k(x, x) is left, or when no row is left that the others
    do not explain to rounding: rows that coincide are chosen once. O(n m (D + m)) time and n m
    memory, in the features' dtype.

    Args:
        features: (n, D) finite. rank: m at most, 1 or more. generator: of the draws, on the CPU.
    """
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
        if not float(shares.sum()) > NEGLIGIBLE_SHARE * total:
            break
        shares = torch.where(shares > limits_on_host, shares, 0)
        left = torch.where(left > limits, left, 0)
        count = min(PROPOSALS, factor.shape[1] - len(chosen), int((shares > 0).sum()))
        if not count:
            break
        drawn = torch.multinomial(shares, count, generator=generator)
        proposed = drawn.to(left.device, non_blocking=True)
        held = factor[:, : len(chosen)]
        within = _unexplained(features[proposed], held[proposed], own[proposed], kernel).cpu()
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


def _unexplained(features: Tensor, factor: Tensor, own: Tensor, kernel: Kernel) -> Tensor:
    """Return k(x, x) - F F^T, (b, b) float64, for rows (b, D), their F (b, m) and k(x_i, x_i)."""
    k = kernel(features, features).double()
    k.diagonal().copy_(own)
    k -= factor.double() @ factor.double().mT
    return k


def _accept(within: Tensor, floor: Tensor, generator: torch.Generator) -> Tensor:
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


# Products with K ----------------------------------------------------------------------------------


def symmetric_product(features: Tensor, kernel: Kernel, x: Tensor) -> Tensor:
    """Return k(h, h) @ x, (n, R) float64, for h (n, D) and x (n, R) float64.

    O(n^2 (D + R)) time, O(n R) memory. A tile off the diagonal is used twice, as itself and
    transposed. Tiles have the dtype of the features. With float32 ones x is split into two float32
    parts, high and low, so that nothing of x is rounded, and sums over tiles are float64. What is
    left is the rounding of kernel values and of sums within a tile: some 1e-6 of y in y - K alpha,
    and 1e-5 without the split, for long length-scales. Both parts together take half the time of a
    float64 product, whose tiles would be converted first.
    """
    parts = _parts(x, features.dtype)
    norms = square_norms(features)
    result = torch.zeros_like(x)
    starts = range(0, len(features), PIECE)
    for start in starts:
        rows = slice(start, start + PIECE)
        tile = kernel(features[rows], features[rows], norms[rows])
        tile.diagonal().copy_(kernel.diagonal(features[rows]))
        result[rows] += _joined(tile @ parts[rows], x.shape[1])
        for other in starts[start // PIECE + 1 :]:
            columns = slice(other, other + PIECE)
            tile = kernel(features[rows], features[columns], norms[columns])
            result[rows] += _joined(tile @ parts[columns], x.shape[1])
            result[columns] += _joined(tile.mT @ parts[rows], x.shape[1])
    return result


def cross_product(features: Tensor, points: Tensor, kernel: Kernel, x: Tensor) -> Tensor:
    """Return k(h, points) @ x, (n, R) float64, for h (n, D), points (B, D) and x (B, R) float64.

    O(n B (D + R)). As precise as ``symmetric_product``; a few rows of k(h, points) exist at a time.
    """
    parts = _parts(x, features.dtype)
    norms = square_norms(points)
    products = [kernel(rows, points, norms) @ parts for rows in features.split(PIECE)]
    return torch.cat([_joined(product, x.shape[1]) for product in products])


def kernel_columns(features: Tensor, points: Tensor, kernel: Kernel) -> Tensor:
    """Return k(h, points), (n, B), evaluated in float64, for h (n, D), points (B, D). O(n B D)."""
    wide = points.double()
    return torch.cat([kernel(rows.double(), wide) for rows in features.split(CONVERTED_ROWS)])


def _parts(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x (n, R) in float64, or (n, 2 R) in float32: x rounded to float32, and the rest."""
    if dtype == torch.float64:
        return x
    high = x.float()
    return torch.cat([high, (x - high.double()).float()], dim=1)


def _joined(product: Tensor, width: int) -> Tensor:
    """Return the product (n, R) in float64 from the product with both parts."""
    if product.dtype == torch.float64:
        return product
    return product[:, :width].double() + product[:, width:].double()
