"""Kernels: how alike two features are.

A kernel is a frozen object called as ``kernel(x1, x2)``: (N, D), (M, D) -> (N, M), with a
``diagonal`` for k(x, x), which is set exactly rather than computed through a distance. Callers that
reuse x2 may cache its squared norms. To add a kernel, write it here and list it in ``KERNELS``.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Kernel(Protocol):
    """The interface of a kernel, as the engines call it."""

    @property
    def positive_definite(self) -> bool:
        """Whether ``k(x, x) + noise`` is positive definite for any points and noise."""

    def __call__(self, x1: Tensor, x2: Tensor, square_norms2: Tensor | None = None) -> Tensor:
        """Return k (N, M) of x1 (N, D) and x2 (M, D), whose squared norms (M,) may be given."""

    def diagonal(self, x: Tensor) -> Tensor:
        """Return k(x, x), (N,), for x (N, D)."""


def square_norms(x: Tensor) -> Tensor:
    """Return |x|^2 of each row of x (N, D), (N,), without a temporary of x's size."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=1)
    return norms.square()


def squared_distances(x1: Tensor, x2: Tensor, square_norms2: Tensor | None = None) -> Tensor:
    """Return |a - b|^2 for every pair, (N, M), by one matrix product: O(N M D).

    Rounding can make |a|^2 + |b|^2 - 2 a.b slightly negative for near-duplicates, hence the clamp.
    No square root is ever taken of it: the root would turn a rounding error of 1e-7 into one of
    3e-4.

    Args:
        x1: (N, D). x2: (M, D). square_norms2: (M,).
    """
    sq2 = square_norms(x2) if square_norms2 is None else square_norms2
    return torch.addmm(sq2, x1, x2.mT, alpha=-2).add_(square_norms(x1).unsqueeze(1)).clamp_min_(0)


@dataclass(frozen=True, kw_only=True)
class RBF:
    """k(a, b) = eta * exp(-|a - b|^2 / (2 l^2)), the paper's kernel (section 3.2). O(N M D).

    Args:
        length_scale: l, the distance at which likeness falls to exp(-1/2).
        output_scale: eta, the prior variance of the mean.
    """

    length_scale: float = 0.316
    output_scale: float = 1.0
    positive_definite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_positive("length_scale", self.length_scale)
        _require_positive("output_scale", self.output_scale)

    def __call__(self, x1: Tensor, x2: Tensor, square_norms2: Tensor | None = None) -> Tensor:
        exponent = squared_distances(x1, x2, square_norms2).mul_(-0.5 / self.length_scale**2)
        if self.output_scale != 1:
            exponent.add_(math.log(self.output_scale))
        return exponent.exp_()

    def diagonal(self, x: Tensor) -> Tensor:
        return x.new_full(x.shape[:-1], self.output_scale)


@dataclass(frozen=True, kw_only=True)
class Laplace:
    """k(a, b) = eta * exp(-|a - b| / l), the Euclidean exponential kernel. O(N M D).

    Sharper at 0 than RBF, with a heavier tail. Distances come from differences, not from a matrix
    product: several times slower than RBF, but near-duplicates keep their digits through the square
    root.

    Args:
        length_scale: l. output_scale: eta.
    """

    length_scale: float = 0.316
    output_scale: float = 1.0
    positive_definite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_positive("length_scale", self.length_scale)
        _require_positive("output_scale", self.output_scale)

    def __call__(self, x1: Tensor, x2: Tensor, square_norms2: Tensor | None = None) -> Tensor:
        distance = torch.cdist(x1, x2, compute_mode="donot_use_mm_for_euclid_dist")
        return distance.mul(-1 / self.length_scale).add_(math.log(self.output_scale)).exp_()

    def diagonal(self, x: Tensor) -> Tensor:
        return x.new_full(x.shape[:-1], self.output_scale)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """k(a, b) = eta * a.b / (|a| |b|): linear in the direction of the feature. O(N M D).

    Its rank is at most D. A vector whose norm is 0, or underflows or overflows, has no direction:
    its kernel with everything, itself included, is 0.

    Args:
        output_scale: eta.
    """

    output_scale: float = 1.0
    positive_definite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_positive("output_scale", self.output_scale)

    def __call__(self, x1: Tensor, x2: Tensor, square_norms2: Tensor | None = None) -> Tensor:
        return (_directions(x1) @ _directions(x2).mT).mul(self.output_scale)

    def diagonal(self, x: Tensor) -> Tensor:
        return _directions(x).any(dim=1).to(x.dtype).mul(self.output_scale)


@dataclass(frozen=True, kw_only=True)
class NTK:
    """k(a, b) = eta * (a.b + bias): the neural tangent kernel of a linear last layer. O(N M D).

    The layer is z_c = w_c . h + b_c. Its gradient is h with respect to w_c, 1 with respect to b_c,
    and 0 with respect to the weights of other classes, so that all classes share one kernel:
    grad z_c(a) . grad z_c(b) = a.b + 1. ``bias`` is the square of the rate at which b_c learns
    beside w_c. A GP with this kernel is what training that layer alone would give.

    Args:
        output_scale: eta. bias: 0 for a layer without one.
    """

    output_scale: float = 1.0
    bias: float = 1.0
    positive_definite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_positive("output_scale", self.output_scale)
        if not 0 <= self.bias <= 1e12:
            raise ValueError(
                f"bias must be 0 or a positive finite number, at most 1e12; got {self.bias}."
            )

    def __call__(self, x1: Tensor, x2: Tensor, square_norms2: Tensor | None = None) -> Tensor:
        return (x1 @ x2.mT).add_(self.bias).mul_(self.output_scale)

    def diagonal(self, x: Tensor) -> Tensor:
        return square_norms(x).add_(self.bias).mul_(self.output_scale)


@dataclass(frozen=True)
class Clipped:
    """The epsilon-graph (section 3.2): entries of another kernel below ``threshold`` become 0.

    Clipping can make K indefinite. The exact engine then inverts K afresh at every change, O(N^3),
    because an update could pass through a singular matrix; only a K that is itself singular is an
    error.

    Args:
        kernel: the kernel to clip.
        threshold: epsilon, in units of the kernel's own values.
    """

    kernel: Kernel
    threshold: float
    positive_definite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _require_positive("threshold", self.threshold)

    def __call__(self, x1: Tensor, x2: Tensor, square_norms2: Tensor | None = None) -> Tensor:
        return F.threshold(self.kernel(x1, x2, square_norms2), self.threshold, 0.0)

    def diagonal(self, x: Tensor) -> Tensor:
        return F.threshold(self.kernel.diagonal(x), self.threshold, 0.0)


KERNELS: dict[str, type[Any]] = {  # dataclasses that implement Kernel
    "rbf": RBF,
    "laplace": Laplace,
    "cosine": Cosine,
    "ntk": NTK,
}


def has_length_scale(name: str) -> bool:
    """Return whether the kernel of this name has a length-scale."""
    return any(field.name == "length_scale" for field in fields(KERNELS[name]))


def has_unit_diagonal(name: str) -> bool:
    """Return whether k(x, x) of this kernel is 1 for points at any distance from 0.

    A posterior variance is then a share of the prior variance.
    """
    points = torch.tensor([[0.5, 0.0], [1.0, 2.0]])
    return bool((make_kernel(name, 1.0).diagonal(points) == 1).all())


def make_kernel(name: str, length_scale: float) -> Kernel:
    """Return the kernel of this name with output scale 1; ``length_scale`` if it has one."""
    kind = KERNELS[name]
    kernel: Kernel = kind(length_scale=length_scale) if has_length_scale(name) else kind()
    return kernel


def _directions(x: Tensor) -> Tensor:
    """Return x / |x| for x (N, D), 0 where the norm is 0 or not finite."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return torch.where((norms > 0) & norms.isfinite(), x / norms, 0)


def _require_positive(name: str, value: float) -> None:
    if not 1e-12 <= value <= 1e12:  # beyond, squares leave the range of float32
        raise ValueError(
            f"{name} must be a positive finite number, between 1e-12 and 1e12; got {value}."
        )
