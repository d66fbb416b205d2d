"""A mean as a module of plain tensors, for export: no engine, no inverse, nothing that changes."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.gp.engine import Expansion
from semigpc.gp.kernels import Clipped, Kernel, Laplace, squared_distances


class KernelHead(nn.Module):
    """z(h) = scales * (k(h, points) @ weights): the mean of an engine when it was expanded.

    All of it is float64, whatever the queries are: weights grow like 1 / sigma^2 and cancel each
    other, so that a product of float32 kernel values loses the digits that decide. O(M P (D + C));
    on a CPU a small part of what a network costs.

    Args:
        kernel: k.
        expansion: points (P, D) and weights (P, C).
        scales: (C,) by which classes are multiplied, such as a logit scale; 1 by default.
        unit: whether queries are put on the unit sphere first.
    """

    points: Tensor
    weights: Tensor
    scales: Tensor

    def __init__(
        self,
        kernel: Kernel,
        expansion: Expansion,
        *,
        scales: Tensor | None = None,
        unit: bool = False,
    ) -> None:
        super().__init__()
        points = expansion.points.detach()
        weights = expansion.weights.detach().double()
        if points.ndim != 2 or weights.ndim != 2 or len(points) != len(weights):
            raise ValueError(
                "an expansion must have points (P, D) and weights (P, C), one row per point; "
                f"got {tuple(points.shape)} and {tuple(weights.shape)}."
            )
        if scales is not None and scales.shape != weights.shape[1:]:
            raise ValueError(
                f"scales must have shape ({weights.shape[1]},), one per class; "
                f"got {tuple(scales.shape)}."
            )
        scales = weights.new_ones(weights.shape[1]) if scales is None else scales.detach()
        self.kernel = kernel
        self.unit = unit
        self.register_buffer("points", points.clone())
        self.register_buffer("weights", weights.clone())
        self.register_buffer("scales", scales.to(weights))

    def forward(self, queries: Tensor) -> Tensor:
        """Return z, (M, C) float64, for queries (M, D) of any floating dtype."""
        queries = F.normalize(queries, dim=1) if self.unit else queries
        k = kernel_values(self.kernel, queries.double(), self.points.double())
        return (k @ self.weights) * self.scales

    def extra_repr(self) -> str:
        n_points, n_classes = self.weights.shape
        return f"kernel={self.kernel}, points={n_points}, n_classes={n_classes}, unit={self.unit}"


def kernel_values(kernel: Kernel, queries: Tensor, points: Tensor) -> Tensor:
    """Return k(queries, points), (M, P) float64, by operations that other runtimes have too.

    They have no ``cdist``. Distances for Laplace come from a matrix product instead: in float64 the
    root turns a rounding error of 1e-16 into one of 1e-8, which is harmless.
    """
    if isinstance(kernel, Clipped):
        return F.threshold(kernel_values(kernel.kernel, queries, points), kernel.threshold, 0.0)
    if isinstance(kernel, Laplace):
        distances = torch.sqrt(squared_distances(queries, points))
        return torch.exp(distances * (-1 / kernel.length_scale) + math.log(kernel.output_scale))
    return kernel(queries, points)
