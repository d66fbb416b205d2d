"""Kernel values between many queries and a few fixed points, in the units that make them cheapest."""

import math

import torch
from torch import Tensor

from semigpc.gp.kernels import RBF, Kernel, square_norms

RANGE = 40.0  # |h|^2 / (2 l^2) up to which e, and the square of L^-1 k / r, are at most exp(80): within float32
NEAR = 10.0  # the same, up to which 0 is as good an origin as the mean
SMALLEST = 1e-30  # likeness below is raised to this: products with denormal numbers are many times slower


class ScaledKernel:
    """k(h, h_i) = r(h) g_i e(h, h_i): e is evaluated, and whoever uses it takes g and r into account.

    For an RBF and points h_i not too far from an origin o, that is

        e = exp((h - o).(h_i - o) / l^2)      g_i = eta exp(-|h_i - o|^2 / (2 l^2))      r = exp(-|h - o|^2 / (2 l^2))

    so that one product and one exp is all that passes over e. The origin is 0 or, where distances would lose digits, the
    mean of the points. Otherwise e = k / g with g = 1, for other kernels and points; and r = 1, for these and queries that are
    too far away.

    Args:
        points: (N, D) h_i, float32.
    """

    def __init__(self, points: Tensor, kernel: Kernel) -> None:
        self.points, self.kernel = points, kernel
        self.units = points.new_ones(len(points))  # g, (N,)
        self.origin: Tensor | None = None
        self.columns: Tensor | None = None  # (h_i - o) / l^2, (N, D)
        if not isinstance(kernel, RBF) or not len(points):
            return
        self.half_precision = 0.5 / kernel.length_scale**2
        wide = points.double()
        if float(square_norms(wide).max()) * self.half_precision > NEAR:
            self.origin = wide.mean(dim=0)
            wide = wide - self.origin
        exponents = square_norms(wide) * self.half_precision
        if float(exponents.max()) <= RANGE:
            self.columns = (wide * 2 * self.half_precision).to(torch.float32)
            self.units = exponents.neg().exp().mul(kernel.output_scale).to(torch.float32)

    def write(self, queries: Tensor, out: Tensor, start: int = 0) -> Tensor | None:
        """Write log e to ``out`` (m, N) and answer with r (m,), or write e itself and answer None. O(m N D).

        Args:
            queries: (m, D) of any floating dtype, m > 0.
            start: number of the first of them, to name one that is not finite.
        """
        rows = queries
        if self.origin is not None:  # float64 loses nothing before the origin is taken off
            rows = queries - self.origin.to(torch.promote_types(queries.dtype, torch.float32))
        rows = rows.to(torch.float32)
        norms = square_norms(rows)
        farthest = float(norms.max())
        if not math.isfinite(farthest):
            check_finite("queries", norms, start)
        if self.columns is not None and farthest * self.half_precision <= RANGE:
            torch.mm(rows, self.columns.mT, out=out)
            return norms.mul_(-self.half_precision).exp_()
        out.copy_(self.kernel(queries.to(torch.float32), self.points))
        if isinstance(self.kernel, RBF):
            out.clamp_min_(SMALLEST).div_(self.units)
        return None


def check_finite(name: str, norms: Tensor, start: int = 0) -> None:
    """Refuse rows whose squared norms (m,) are not finite; the first of them is row ``start``."""
    sound = norms.isfinite()
    if not bool(sound.all()):
        row = start + int((~sound).nonzero()[0, 0])
        raise ValueError(f"{name} must be finite, and so must their squares in float32; row {row} is not.")
