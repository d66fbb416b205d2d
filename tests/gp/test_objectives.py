"""What kernels are learned by, against the formulas written out."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from benchmarks.references import kernel_matrix
from semigpc.gp import NTK, RBF, Clipped, Cosine, Kernel, Laplace
from semigpc.gp.scales import LeaveOneOut, MarginalLikelihood, scales_of, with_scales
from tests.gp.streams import clusters

KERNELS: list[Kernel] = [
    RBF(length_scale=0.7, output_scale=1.5),
    Laplace(length_scale=0.9, output_scale=0.6),
    Cosine(output_scale=2.0),
    NTK(output_scale=0.4, bias=0.3),
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=repr)
NOISE = 0.4


@pytest.fixture
def rows(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(30, 16) with one-hot (30, 4); two rows are the same."""
    features, targets = clusters(generator, spread=1.0)(30)
    features[7] = features[3]
    return features, targets


def dense_evidence(h: Tensor, y: Tensor, kernel: Kernel, noise_std: float) -> Tensor:
    normal = torch.distributions.MultivariateNormal(
        y.new_zeros(len(h)), kernel_matrix(h, kernel, noise_std)
    )
    total: Tensor = normal.log_prob(y.mT).sum()
    return total


def different(kernel: Kernel, classes: int) -> tuple[tuple[Kernel, ...], tuple[float, ...]]:
    """A kernel and a noise for each class, all different."""
    steps = (
        0.2
        * torch.arange(classes, dtype=torch.float64)[:, None]
        * torch.tensor([1.0, -0.7, 0.5], dtype=torch.float64)
    )
    return with_scales(kernel, scales_of([kernel], [NOISE]) + steps)


@every_kernel
def test_with_every_row_a_landmark_the_bound_is_the_evidence(
    kernel: Kernel, rows: tuple[Tensor, Tensor]
) -> None:
    h, y = rows
    found = MarginalLikelihood(h, y, h, kernel)(scales_of([kernel], [NOISE]))
    torch.testing.assert_close(found, dense_evidence(h, y, kernel, NOISE), rtol=0, atol=1e-5)


def test_a_kernel_a_class_has_the_evidence_of_its_own_column(rows: tuple[Tensor, Tensor]) -> None:
    h, y = rows
    kernels, noise_stds = different(RBF(length_scale=0.7), 4)
    columns = zip(y.split(1, dim=1), kernels, noise_stds, strict=True)
    expected = torch.stack(
        [dense_evidence(h, column, kernel, noise) for column, kernel, noise in columns]
    ).sum()
    found = MarginalLikelihood(h, y, h, RBF())(scales_of(kernels, noise_stds))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_fewer_landmarks_give_the_low_rank_evidence_less_the_trace(
    rows: tuple[Tensor, Tensor],
) -> None:
    h, y = rows
    kernel, Z = KERNELS[0], h[10:18]
    Q = kernel(h, Z) @ torch.linalg.solve(kernel(Z, Z), kernel(Z, h))
    normal = torch.distributions.MultivariateNormal(
        y.new_zeros(30), Q + NOISE**2 * torch.eye(30, dtype=torch.float64)
    )
    missed = 4 * float(kernel.diagonal(h).sum() - Q.trace()) / (2 * NOISE**2)
    found = MarginalLikelihood(h, y, Z, kernel)(scales_of([kernel], [NOISE]))
    torch.testing.assert_close(found, normal.log_prob(y.mT).sum() - missed, rtol=0, atol=1e-5)
    assert missed > 1
    assert float(found) < float(dense_evidence(h, y, kernel, NOISE))


def refitted(
    h: Tensor, y: Tensor, kernels: Sequence[Kernel], noise_stds: Sequence[float]
) -> Tensor:
    """The mean at every row from a GP that never saw it, class by class."""
    means = torch.zeros_like(y)
    for i in range(len(h)):
        rest = torch.arange(len(h)) != i
        for c, (kernel, noise) in enumerate(zip(kernels, noise_stds, strict=True)):
            K = kernel_matrix(h[rest], kernel, noise)
            means[i, c] = (
                kernel(h[i : i + 1], h[rest]) @ torch.linalg.solve(K, y[rest, c])
            ).squeeze()
    return means


@every_kernel
@pytest.mark.parametrize("per_class", [False, True])
def test_left_out_means_are_those_of_as_many_refits(
    kernel: Kernel, per_class: bool, rows: tuple[Tensor, Tensor]
) -> None:
    h, y = rows
    kernels, noise_stds = different(kernel, 4) if per_class else ((kernel,), (NOISE,))
    left_out = LeaveOneOut(h, y, kernel)
    residuals, _ = left_out.residuals(scales_of(kernels, noise_stds))
    repeat = 1 if per_class else 4
    expected = refitted(h, y, kernels * repeat, noise_stds * repeat)
    torch.testing.assert_close(y - residuals, expected, rtol=0, atol=1e-10)
    labels = y.argmax(dim=1)
    own = torch.log_softmax(5 * expected, dim=1)[torch.arange(30), labels]
    by_class = torch.stack([own[labels == c].mean() for c in range(4)])
    loss = left_out.loss(residuals, torch.tensor(5.0, dtype=torch.float64).log())
    torch.testing.assert_close(loss, -by_class.mean(), rtol=0, atol=1e-10)


def test_the_output_scale_is_where_the_density_of_the_residuals_is_largest(
    rows: tuple[Tensor, Tensor],
) -> None:
    h, y = rows
    left_out = LeaveOneOut(h, y, RBF())
    scales = scales_of([RBF(length_scale=0.7)], [NOISE])
    residuals, diagonal = left_out.residuals(scales)
    eta = float(left_out.output_scales(scales))

    def density(value: float) -> float:
        spread = (value / diagonal).sqrt().expand(-1, 4)
        return float(
            left_out.weights
            @ torch.distributions.Normal(0.0, spread).log_prob(residuals).sum(dim=1)
        )

    assert density(eta) > max(density(0.98 * eta), density(1.02 * eta))


@every_kernel
@pytest.mark.parametrize("count", [1, 4])
def test_gradients_reach_the_scales(
    kernel: Kernel, count: int, rows: tuple[Tensor, Tensor]
) -> None:
    h, y = rows
    kernels, noise_stds = different(kernel, 4)
    scales = scales_of(kernels[:count], noise_stds[:count]).requires_grad_()
    log_lambda = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    left_out = LeaveOneOut(h, y, kernel)
    assert torch.autograd.gradcheck(
        lambda x, z: left_out.loss(left_out.residuals(x)[0], z), (scales, log_lambda)
    )
    assert torch.autograd.gradcheck(MarginalLikelihood(h, y, h[:8], kernel), (scales,), rtol=1e-2)


def test_a_row_alone_in_its_class_does_not_count(rows: tuple[Tensor, Tensor]) -> None:
    h, y = rows[0][:5], torch.eye(4, dtype=torch.float64)[[0, 0, 1, 1, 2]]
    assert LeaveOneOut(h, y, RBF()).weights.tolist() == [0.25] * 4 + [0.0]
    with pytest.raises(ValueError, match="every class has a single row; give more labels"):
        LeaveOneOut(h[:2], torch.eye(2), RBF())


def test_scales_are_logarithms_there_and_back() -> None:
    kernels, noise_stds = (
        (RBF(length_scale=0.3, output_scale=2.0), RBF(length_scale=1.2)),
        (0.1, 0.5),
    )
    scales = scales_of(kernels, noise_stds)
    assert scales[0].tolist() == pytest.approx([math.log(0.3), math.log(2.0), math.log(0.1)])
    back, noises = with_scales(RBF(), scales)
    torch.testing.assert_close(scales_of(back, noises), scales)
    (ntk,), _ = with_scales(NTK(bias=0.3), scales[:1])
    assert isinstance(ntk, NTK)
    assert ntk.bias == 0.3
    assert ntk.output_scale == pytest.approx(2.0)


def test_a_clipped_kernel_cannot_be_learned() -> None:
    with pytest.raises(
        TypeError,
        match=r"kernel must be one of RBF, Laplace, Cosine and NTK to be learned; got Clipped",
    ):
        scales_of([Clipped(RBF(), 0.1)], [0.3])
