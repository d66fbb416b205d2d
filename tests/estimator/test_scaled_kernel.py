"""Kernel values in units are kernel values."""

import pytest
import torch
from torch import Tensor

from semigpc.estimator.posterior import LARGEST_EXPONENT, SMALLEST_VALUE, ScaledKernel
from semigpc.gp import KERNELS, RBF, Cosine, Kernel, Laplace


def values(scaled: ScaledKernel, queries: Tensor) -> Tensor:
    """k = r g e."""
    out = torch.empty(len(queries), len(scaled.points))
    r = scaled.write(queries, out)
    return out * scaled.units if r is None else out.exp() * scaled.units * r[:, None]


def check(
    points: Tensor, queries: Tensor, kernel: Kernel, *, fast: bool, rtol: float = 1e-4
) -> ScaledKernel:
    scaled = ScaledKernel(points, kernel)
    truth = kernel(queries.double(), points.double())
    found = values(scaled, queries).double()
    torch.testing.assert_close(found, truth, rtol=rtol, atol=2 * SMALLEST_VALUE)
    assert (scaled.write(queries, torch.empty(len(queries), len(points))) is not None) == fast
    return scaled


@pytest.fixture
def points(generator: torch.Generator) -> Tensor:
    return torch.randn(40, 6, generator=generator)


def test_an_rbf_is_one_product_and_one_exp(points: Tensor) -> None:
    scaled = check(points, points[:9] + 0.1, RBF(length_scale=1.5, output_scale=2.5), fast=True)
    assert scaled.origin is None


def test_points_far_from_zero_are_seen_from_their_mean(points: Tensor) -> None:
    kernel = RBF(length_scale=1.5)
    scaled = check(points + 30, points[:9] + 30.1, kernel, fast=True, rtol=2e-4)
    assert scaled.origin is not None
    wide = (points[:9] + 30.1).double()
    found, truth = values(scaled, wide).double(), kernel(wide, (points + 30).double())
    torch.testing.assert_close(found, truth, rtol=2e-4, atol=SMALLEST_VALUE)


def test_queries_that_are_too_far_are_evaluated_as_they_are(points: Tensor) -> None:
    kernel = RBF(length_scale=1.0)
    far = 1.01 * (2 * LARGEST_EXPONENT) ** 0.5 * torch.nn.functional.normalize(points[:5], dim=1)
    scaled = check(points, torch.cat([points[5:9], far]), kernel, fast=False)
    assert scaled.columns is not None
    assert (values(scaled, 1e4 * far) <= SMALLEST_VALUE * 1.01).all()


def test_points_that_are_too_far_apart_are_evaluated_as_they_are(points: Tensor) -> None:
    scaled = check(points, points[:9] + 0.01, RBF(length_scale=0.1), fast=False, rtol=2e-3)
    assert scaled.columns is None
    assert (scaled.units == 1).all()


def test_nothing_overflows_or_vanishes_at_the_edge_of_the_range(points: Tensor) -> None:
    edge = 0.999 * (2 * LARGEST_EXPONENT) ** 0.5 * torch.nn.functional.normalize(points, dim=1)
    both = torch.cat([edge, -edge])  # the mean is 0
    check(both, both, RBF(length_scale=1.0), fast=True)


@pytest.mark.parametrize("kernel", [kernel() for kernel in KERNELS.values()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_every_kernel_and_precision(kernel: Kernel, dtype: torch.dtype, points: Tensor) -> None:
    rounded = (points[:9] * 0.3).to(dtype)
    check(points * 0.3, rounded, kernel, fast=isinstance(kernel, RBF), rtol=1e-3)


@pytest.mark.parametrize("kernel", [RBF(), Laplace(), Cosine()], ids=repr)
def test_no_points_no_values(kernel: Kernel) -> None:
    scaled = ScaledKernel(torch.empty(0, 3), kernel)
    assert scaled.write(torch.ones(2, 3), torch.empty(2, 0)) is None
    assert scaled.units.shape == (0,)


def test_a_row_that_is_not_finite_is_named(points: Tensor) -> None:
    queries = points[:4].clone()
    queries[2, 1] = torch.nan
    with pytest.raises(ValueError, match=r"queries must be finite.* row 102 is not"):
        ScaledKernel(points, RBF()).write(queries, torch.empty(4, 40), start=100)
