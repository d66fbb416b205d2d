"""The kernel head: an engine's mean as plain tensors, in float64."""

import math

import pytest
import torch
from torch import Tensor, nn

from semigpc.gp import (
    KERNELS,
    NTK,
    RBF,
    Clipped,
    Cosine,
    ExactGP,
    Expansion,
    Kernel,
    KernelHead,
    Laplace,
)
from tests.gp.streams import assert_near, clusters

EVERY_KERNEL = [
    *(kernel() for kernel in KERNELS.values()),
    RBF(length_scale=0.7, output_scale=2.5),
    NTK(bias=0.3, output_scale=2.0),
    Clipped(RBF(length_scale=0.5), 0.05),
    Clipped(Laplace(length_scale=0.5), 0.05),
]


def slow_value(kernel: Kernel, a: Tensor, b: Tensor) -> float:
    """k(a, b) for two vectors, by the formula in the kernel's docstring."""
    if isinstance(kernel, Clipped):
        inner = slow_value(kernel.kernel, a, b)
        return inner if inner > kernel.threshold else 0.0
    apart = float((a - b).square().sum())
    if isinstance(kernel, RBF):
        return kernel.output_scale * math.exp(-apart / (2 * kernel.length_scale**2))
    if isinstance(kernel, Laplace):
        return kernel.output_scale * math.exp(-math.sqrt(apart) / kernel.length_scale)
    if isinstance(kernel, Cosine):
        return kernel.output_scale * float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))
    return float(kernel(a.unsqueeze(0), b.unsqueeze(0)))


@pytest.mark.parametrize("kernel", EVERY_KERNEL, ids=str)
def test_it_is_a_sum_of_kernels(kernel: Kernel) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    points, queries, weights, scales = draw(9, 6) / 2, draw(5, 6) / 2, draw(9, 3), draw(3)
    queries[0] = points[0]  # distance 0
    slow = [[slow_value(kernel, a, b) for b in points] for a in queries]
    K = torch.tensor(slow, dtype=torch.float64)
    said = KernelHead(kernel, Expansion(points, weights), scales=scales)(queries)
    assert_near(said, (K @ weights) * scales, atol=2e-7)  # the root at distance 0; 1e-12 elsewhere
    assert_near(said[1:], ((K @ weights) * scales)[1:], atol=1e-12)


@pytest.mark.parametrize("kernel", EVERY_KERNEL, ids=str)
def test_it_says_what_the_engine_says(kernel: Kernel) -> None:
    draw = clusters(torch.Generator().manual_seed(1))
    features, targets = draw(40)
    engine = ExactGP(64, features.shape[1], targets.shape[1], kernel=kernel)
    engine.replace(torch.arange(10, 50), features.double(), targets.double())
    engine.remove(torch.arange(12, 20))
    queries = draw(30)[0].double()
    offset = torch.linspace(0.1, 0.4, targets.shape[1], dtype=torch.float64)
    head = KernelHead(engine.kernel, engine.expansion(offset=offset))
    assert_near(head(queries), engine.mean(queries, offset=offset), atol=1e-7)


def test_queries_are_put_on_the_sphere_if_asked() -> None:
    points, weights = torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    head = KernelHead(RBF(length_scale=1.0), Expansion(points, weights), unit=True)
    expected = torch.tensor([[1.0, math.exp(-1), math.exp(-1)]], dtype=torch.float64)
    assert_near(head(torch.tensor([[5.0, 0, 0]])), expected, atol=1e-12)


def test_large_weights_that_cancel_keep_their_digits() -> None:
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(400, 32, generator=generator)
    points = nn.functional.normalize(torch.randn(1, 32, generator=generator) + 1e-4 * noise, dim=1)
    weights = 1e4 * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(200).unsqueeze(1)
    queries = points[:50] + 1e-4
    K = RBF()(queries.double(), points.double())
    head = KernelHead(RBF(), Expansion(points, weights))
    assert_near(head(queries), K @ weights, atol=1e-7)
    float32 = RBF()(queries, points).double() @ weights
    assert float((float32 - K @ weights).abs().max()) > 1e-3  # what the float64 is for


def test_it_is_a_copy_and_its_state_can_be_saved() -> None:
    points, weights = torch.randn(4, 2), torch.randn(4, 3, dtype=torch.float64)
    head = KernelHead(RBF(), Expansion(points, weights))
    before = head(points)
    weights.zero_()
    points.zero_()
    twin = KernelHead(RBF(), Expansion(points, weights))
    twin.load_state_dict(head.state_dict())
    assert isinstance(twin, nn.Module)
    torch.testing.assert_close(twin(head.points), before)


def test_no_points_say_nothing() -> None:
    head = KernelHead(RBF(), Expansion(torch.empty(0, 2), torch.empty(0, 3, dtype=torch.float64)))
    assert torch.equal(head(torch.ones(5, 2)), torch.zeros(5, 3, dtype=torch.float64))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(P, D\) and weights .*got \(4, 2\) and \(3, 2\)"):
        KernelHead(RBF(), Expansion(torch.ones(4, 2), torch.ones(3, 2)))
    with pytest.raises(ValueError, match=r"scales must have shape \(2,\).*; got \(3,\)"):
        KernelHead(RBF(), Expansion(torch.ones(4, 2), torch.ones(4, 2)), scales=torch.ones(3))
