"""Products with a kernel matrix that is never stored: its tiles are evaluated, used and forgotten."""

import torch
from torch import Tensor

from semigpc.gp.kernels import Kernel, square_norms

TILE = 1024  # rows and columns of a tile: the largest piece of K that exists at any time, 4 MB in float32
ROWS = 4096  # of the buffer turned to float64 at a time


def symmetric_product(features: Tensor, kernel: Kernel, x: Tensor) -> Tensor:
    """k(h, h) @ x, (n, R) float64, for features h (n, D) and x (n, R) float64. O(n^2 (D + R)) time, O(n R) memory.

    A tile off the diagonal serves twice, as itself and transposed. Tiles have the dtype of the features. With float32 ones x is
    split into two float32 parts, high and low, so that of x nothing is rounded, and sums over tiles are float64. What is left
    is the rounding of kernel values and of sums within a tile: some 1e-6 of y in y - K alpha, and 1e-5 without the split, for
    long length-scales. Both parts together take half the time of a float64 product, whose tiles would be converted first.

    k(x, x) is set exactly rather than computed through a distance.
    """
    parts = _parts(x, features.dtype)
    norms = square_norms(features)
    answer = torch.zeros_like(x)
    starts = range(0, len(features), TILE)
    for start in starts:
        rows = slice(start, start + TILE)
        tile = kernel(features[rows], features[rows], norms[rows])
        tile.diagonal().copy_(kernel.diagonal(features[rows]))
        answer[rows] += _joined(tile @ parts[rows], x.shape[1])
        for other in starts[start // TILE + 1 :]:
            columns = slice(other, other + TILE)
            tile = kernel(features[rows], features[columns], norms[columns])
            answer[rows] += _joined(tile @ parts[columns], x.shape[1])
            answer[columns] += _joined(tile.mT @ parts[rows], x.shape[1])
    return answer


def cross_product(features: Tensor, points: Tensor, kernel: Kernel, x: Tensor) -> Tensor:
    """k(h, points) @ x, (n, R) float64, for features h (n, D), points (B, D) and x (B, R) float64. O(n B (D + R)).

    Precise to what ``symmetric_product`` is; TILE rows of k(h, points) exist at a time.
    """
    parts, norms = _parts(x, features.dtype), square_norms(points)
    return torch.cat([_joined(kernel(rows, points, norms) @ parts, x.shape[1]) for rows in features.split(TILE)])


def columns(features: Tensor, points: Tensor, kernel: Kernel) -> Tensor:
    """k(h, points), (n, B) float64 and evaluated in float64, for features h (n, D) and points (B, D). O(n B D)."""
    wide = points.double()
    return torch.cat([kernel(rows.double(), wide) for rows in features.split(ROWS)])


def _parts(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x (n, R) in float64, or as (n, 2 R) in float32: what float32 holds of it, then what that leaves."""
    if dtype == torch.float64:
        return x
    high = x.float()
    return torch.cat([high, (x - high.double()).float()], dim=1)


def _joined(product: Tensor, width: int) -> Tensor:
    """The product (n, R) in float64 from that with both parts."""
    return product if product.dtype == torch.float64 else product[:, :width].double() + product[:, width:].double()
