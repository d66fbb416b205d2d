"""One battery over every kernel."""

import math

import pytest
import torch
from torch import Tensor

from semigpc.gp import KERNELS, NTK, RBF, Clipped, Cosine, Kernel, Laplace
from tests.gp.streams import assert_near

EVERY_KERNEL: list[Kernel] = [
    *(kernel() for kernel in KERNELS.values()),
    RBF(length_scale=0.7, output_scale=2.5),
    Laplace(length_scale=0.7, output_scale=2.5),
    Cosine(output_scale=2.5),
    NTK(output_scale=2.5, bias=0.3),
    Clipped(RBF(length_scale=0.7), 0.1),
]
every_kernel = pytest.mark.parametrize("kernel", EVERY_KERNEL, ids=repr)


@pytest.fixture
def points(generator: torch.Generator) -> Tensor:
    """(30, 5), two of them the same."""
    x = torch.randn(30, 5, generator=generator, dtype=torch.float64) * 0.6
    x[7] = x[3]
    return x


@every_kernel
def test_is_symmetric_with_its_own_diagonal(kernel: Kernel, points: Tensor) -> None:
    K = kernel(points, points)
    assert_near(K, K.mT, atol=1e-12)
    assert_near(K.diagonal(), kernel.diagonal(points), atol=1e-7)


@every_kernel
def test_is_positive_definite_with_noise_where_it_says_so(kernel: Kernel, points: Tensor) -> None:
    K = kernel(points, points)
    K.diagonal().copy_(kernel.diagonal(points) + 1e-6)
    if kernel.positive_definite:
        assert torch.linalg.eigvalsh(K).min() > 0
    else:
        assert isinstance(kernel, Clipped)


@every_kernel
def test_rows_do_not_depend_on_each_other(kernel: Kernel, points: Tensor) -> None:
    whole = kernel(points[:4], points)
    assert_near(whole[2:3], kernel(points[2:3], points), atol=1e-12)
    assert_near(whole[:, 5:9], kernel(points[:4], points[5:9]), atol=1e-12)


@every_kernel
def test_given_square_norms_change_nothing(kernel: Kernel, points: Tensor) -> None:
    given = kernel(points[:4], points, points.square().sum(dim=1))
    assert_near(given, kernel(points[:4], points), atol=1e-12)


@every_kernel
def test_gradient_reaches_the_queries(kernel: Kernel, points: Tensor) -> None:
    def value(x: Tensor) -> Tensor:
        return kernel(x, points[10:20])

    assert torch.autograd.gradcheck(value, points[:3].clone().requires_grad_())


@every_kernel
def test_float32_near_duplicates_keep_their_digits(
    kernel: Kernel, generator: torch.Generator
) -> None:
    x = torch.nn.functional.normalize(torch.randn(20, 64, generator=generator), dim=1)
    near = x + 1e-4 * torch.randn(20, 64, generator=generator)
    exact = kernel(x.double(), near.double())
    assert_near(kernel(x, near).double(), exact, atol=1e-5)


def test_rbf_is_the_papers_formula() -> None:
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.5]])
    expected = 3.0 * math.exp(-(1.0**2 + 1.5**2) / (2 * 0.8**2))
    assert RBF(length_scale=0.8, output_scale=3.0)(a, b).item() == pytest.approx(expected, rel=1e-6)


def test_laplace_is_exponential_in_the_distance() -> None:
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[-2.0, -2.0]])
    assert Laplace(length_scale=0.5)(a, b).item() == pytest.approx(math.exp(-5 / 0.5), rel=1e-6)


def test_cosine_ignores_length_and_gives_zero_vectors_nothing() -> None:
    x = torch.tensor([[2.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    expected = torch.tensor([[1.0, 0.0, 0.5**0.5], [0.0, 0.0, 0.0], [0.5**0.5, 0.0, 1.0]])
    torch.testing.assert_close(Cosine()(x, x), expected)
    torch.testing.assert_close(Cosine().diagonal(x), torch.tensor([1.0, 0.0, 1.0]))


def test_cosine_takes_directions_over_the_whole_range_of_norms() -> None:
    x = torch.tensor([[1.0, 0.0]])
    for scale in (1e-15, 1e-3, 1e3, 1e15):
        assert Cosine()(scale * x, x).item() == pytest.approx(1.0)
    for scale in (1e-30, 1e30):  # the norm underflows or overflows
        assert Cosine()(scale * x, x).item() == Cosine().diagonal(scale * x).item() == 0.0


def test_ntk_is_the_product_of_the_gradients_of_a_linear_layer(points: Tensor) -> None:
    layer = torch.nn.Linear(5, 3).double()
    K = NTK()(points, points)

    def gradient(i: int, c: int) -> Tensor:
        parts = torch.autograd.grad(layer(points[i])[c], list(layer.parameters()))
        return torch.cat([part.flatten() for part in parts])

    for row, column in ((0, 1), (3, 7), (4, 4)):
        for c in range(3):
            product = float(gradient(row, c) @ gradient(column, c))
            assert product == pytest.approx(float(K[row, column]), abs=1e-12)


def test_ntk_needs_a_bias_that_is_not_negative() -> None:
    with pytest.raises(ValueError, match="bias must be 0"):
        NTK(bias=-0.1)


def test_clipping_keeps_exactly_what_is_above_the_threshold(points: Tensor) -> None:
    K = RBF(length_scale=0.7)(points, points)
    clipped = Clipped(RBF(length_scale=0.7), 0.3)(points, points)
    assert torch.equal(clipped, torch.where(K > 0.3, K, 0.0))
    assert 0 < int((clipped == 0).sum()) < clipped.numel()


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-30, math.nan, math.inf])
def test_scales_must_be_positive_and_finite(value: float) -> None:
    for build in (
        lambda: RBF(length_scale=value),
        lambda: RBF(output_scale=value),
        lambda: Laplace(length_scale=value),
        lambda: Cosine(output_scale=value),
        lambda: NTK(output_scale=value),
        lambda: Clipped(RBF(), value),
    ):
        with pytest.raises(ValueError, match="positive finite number, between 1e-12 and 1e12; got"):
            build()
