"""Choosing a kernel's scales from labelled rows."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import semigpc.gp.scales as module
from benchmarks.references import kernel_matrix
from semigpc.gp import NTK, RBF, Clipped, Cosine, Kernel, Laplace
from semigpc.gp.kernels import squared_distances
from semigpc.gp.scales import (
    GRID_LENGTHS,
    GRID_NOISES,
    LeaveOneOut,
    balanced_subset,
    choose_by_grid,
    draw_by_class,
    learn_kernel,
    median_distance,
    neighbour_length_scale,
    scales_of,
    with_scales,
)
from tests.gp.streams import assert_near, clusters

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
    """(60, 16) with one-hot (60, 4); two rows are the same."""
    features, targets = clusters(generator, spread=1.0)(60)
    features[7] = features[3]
    return features, targets


def refitted(h: Tensor, y: Tensor, kernel: Kernel, noise_std: float = NOISE) -> Tensor:
    """The mean at every row from a GP that never saw it."""
    means = torch.zeros_like(y)
    for i in range(len(h)):
        rest = torch.arange(len(h)) != i
        K = kernel_matrix(h[rest], kernel, noise_std)
        means[i] = (kernel(h[i : i + 1], h[rest]) @ torch.linalg.solve(K, y[rest])).squeeze()
    return means


# Grid and neighbours ------------------------------------------------------------------------------


def test_the_error_of_a_setting_is_that_of_fits_without_each_row(
    rows: tuple[Tensor, Tensor],
) -> None:
    h, y = rows
    codes = y.argmax(dim=1)
    setting = choose_by_grid({"none": h}, codes, kernel="rbf", length_scale=0.9, noise_std=0.3)
    errors = (y - refitted(h, y, RBF(length_scale=0.9), 0.3)).square().sum(dim=1)
    by_class = [float(errors[codes == c].mean()) for c in range(4)]
    assert setting.error == pytest.approx(sum(by_class) / 4, rel=1e-9)
    assert setting[:3] == ("none", 0.9, 0.3)


@pytest.mark.parametrize("kernel", ["rbf", "laplace", "cosine"])
def test_the_best_setting_of_the_grid_is_chosen(kernel: str, rows: tuple[Tensor, Tensor]) -> None:
    h, y = rows[0], rows[1].argmax(dim=1)
    points = {"none": h, "tight": h / 100}
    best = choose_by_grid(points, y, kernel=kernel)
    each = [
        choose_by_grid({name: x}, y, kernel=kernel, length_scale=length, noise_std=noise).error
        for name, x in points.items()
        for length in [factor * median_distance(x) for factor in GRID_LENGTHS]
        for noise in GRID_NOISES
    ]
    assert best.error == pytest.approx(min(each), rel=1e-9)


def test_rows_that_coincide_and_classes_of_one_row_have_a_setting() -> None:
    same = torch.ones(4, 3)
    assert median_distance(same) == 1
    setting = choose_by_grid({"none": same}, torch.arange(4), kernel="rbf")
    assert setting.length_scale in GRID_LENGTHS


def test_a_typical_query_reaches_its_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.tensor([[0.0], [10.0], [20.0], [99.0]])
    queries = torch.tensor([[1.0], [12.0], [23.0], [99.0]])
    present = torch.tensor([True, True, True, False])
    expected = (1.5 * 2.0**2) ** 0.5  # nearest rows at 1, 2, 3 and 79: the lower median is 2
    for chunk in (1, 3, 8192):
        monkeypatch.setattr(module, "NEIGHBOUR_CHUNK", chunk)
        assert neighbour_length_scale(queries, rows, present) == pytest.approx(expected)
    assert neighbour_length_scale(rows, rows) == 1e-3, "rows have no distance to themselves"


def test_a_subset_takes_from_the_largest_classes_first() -> None:
    codes = np.repeat([0, 1, 2, 4], [80, 20, 3, 1])
    rng = np.random.default_rng(0)
    kept = balanced_subset(codes, 30, rng)
    assert np.bincount(codes[kept]).tolist() == [13, 13, 3, 0, 1]
    assert (np.diff(kept) > 0).all()
    assert balanced_subset(codes, 200, rng).tolist() == list(range(104))
    assert np.bincount(codes[balanced_subset(codes, 3, rng)]).tolist() == [1, 1, 1, 0, 1]
    assert np.bincount(codes[balanced_subset(codes, 4, rng, least=2)]).tolist() == [2, 2, 2, 0, 1]
    drawn = draw_by_class(codes, np.array([5, 0, 9, 9, 9]), rng)
    assert np.bincount(codes[drawn]).tolist() == [5, 0, 3, 0, 1]


# The objective of learning ------------------------------------------------------------------------


@every_kernel
def test_left_out_means_are_those_of_as_many_refits(
    kernel: Kernel, rows: tuple[Tensor, Tensor]
) -> None:
    h, y = rows[0][:30], rows[1][:30]
    left_out = LeaveOneOut(h, y, kernel)
    residuals, _ = left_out.residuals(scales_of(kernel, NOISE))
    expected = refitted(h, y, kernel)
    assert_near(y - residuals, expected, atol=1e-10)
    labels = y.argmax(dim=1)
    own = torch.log_softmax(5 * expected, dim=1)[torch.arange(30), labels]
    by_class = torch.stack([own[labels == c].mean() for c in range(4)])
    loss = left_out.loss(residuals, torch.tensor(5.0, dtype=torch.float64).log())
    assert_near(loss, -by_class.mean(), atol=1e-10)


def test_the_output_scale_is_where_the_density_of_the_residuals_is_largest(
    rows: tuple[Tensor, Tensor],
) -> None:
    left_out = LeaveOneOut(*rows, RBF())
    scales = scales_of(RBF(length_scale=0.7), NOISE)
    residuals, diagonal = left_out.residuals(scales)
    eta = float(left_out.output_scale(scales))

    def density(value: float) -> float:
        normal = torch.distributions.Normal(0.0, (value / diagonal).sqrt().expand(-1, 4))
        return float(left_out.weights @ normal.log_prob(residuals).sum(dim=1))

    assert density(eta) > max(density(0.98 * eta), density(1.02 * eta))


@every_kernel
def test_gradients_reach_the_scales(kernel: Kernel, rows: tuple[Tensor, Tensor]) -> None:
    scales = scales_of(kernel, NOISE).requires_grad_()
    log_lambda = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    left_out = LeaveOneOut(rows[0][:30], rows[1][:30], kernel)
    assert torch.autograd.gradcheck(
        lambda x, z: left_out.loss(left_out.residuals(x)[0], z), (scales, log_lambda)
    )


def test_a_row_alone_in_its_class_does_not_count(rows: tuple[Tensor, Tensor]) -> None:
    h, y = rows[0][:5], torch.eye(4, dtype=torch.float64)[[0, 0, 1, 1, 2]]
    assert LeaveOneOut(h, y, RBF()).weights.tolist() == [0.25] * 4 + [0.0]


def test_scales_are_logarithms_there_and_back() -> None:
    scales = scales_of(RBF(length_scale=0.3, output_scale=2.0), 0.1)
    assert scales.tolist() == pytest.approx([math.log(0.3), math.log(2.0), math.log(0.1)])
    torch.testing.assert_close(scales_of(*with_scales(RBF(), scales)), scales)
    assert with_scales(NTK(bias=0.3), scales)[0] == NTK(bias=0.3, output_scale=math.exp(scales[1]))


# Learning -----------------------------------------------------------------------------------------


@every_kernel
def test_every_kernel_improves_and_keeps_its_kind(
    kernel: Kernel, rows: tuple[Tensor, Tensor]
) -> None:
    start, _ = with_scales(kernel, scales_of(kernel, 1.0).clamp_max(math.log(0.1)))
    found = learn_kernel(*rows, start, 2.0, iterations=10)
    assert found.improved
    assert found.after < found.before
    assert type(found.kernel) is type(kernel)
    if isinstance(found.kernel, NTK):
        assert found.kernel.bias == 0.3


def test_left_out_rows_become_more_probable(rows: tuple[Tensor, Tensor]) -> None:
    left_out = LeaveOneOut(*rows, RBF())
    log_lambda = torch.tensor(6.0, dtype=torch.float64).log()
    found = learn_kernel(*rows, RBF(length_scale=0.1), 1.0, logit_scale=6.0)

    def loss(kernel: Kernel, noise_std: float) -> float:
        residuals, _ = left_out.residuals(scales_of(kernel, noise_std))
        return float(left_out.loss(residuals, log_lambda))

    assert loss(found.kernel, found.noise_std) < 0.8 * loss(RBF(length_scale=0.1), 1.0)


@pytest.mark.parametrize("start", [1e-6, 1e6])
def test_everything_stays_within_its_bounds(start: float, rows: tuple[Tensor, Tensor]) -> None:
    median = float(squared_distances(rows[0], rows[0]).flatten()[1:].median().sqrt())
    found = learn_kernel(*rows, RBF(length_scale=start), start, iterations=5)
    assert isinstance(found.kernel, RBF)
    assert 0.095 <= found.kernel.length_scale / median <= 4.2
    assert 1e-3 <= found.kernel.output_scale <= 1e3
    assert 0.199 <= found.noise_std / found.kernel.output_scale**0.5 <= 2.01


def test_the_same_seed_gives_the_same_bits(generator: torch.Generator) -> None:
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor([80, 20, 3, 1]))
    h, y = torch.randn(104, 6, generator=generator), F.one_hot(labels).float()
    start = RBF(length_scale=1.0)
    learned = [learn_kernel(h, y, start, 0.3, rows=30, iterations=5, seed=s) for s in (1, 1, 2)]
    assert learned[0] == learned[1] != learned[2]


def test_a_kernel_that_cannot_be_improved_stays_as_it_is(rows: tuple[Tensor, Tensor]) -> None:
    first = learn_kernel(*rows, RBF(), 0.3)
    again = learn_kernel(*rows, first.kernel, first.noise_std)
    assert first.improved
    assert not again.improved
    assert (again.kernel, again.noise_std) == (first.kernel, first.noise_std)
    assert again.after == again.before


@pytest.mark.parametrize("broken", [False, True])
def test_a_search_that_fails_changes_nothing(
    broken: bool, rows: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    nan = torch.tensor(torch.nan, dtype=torch.float64, requires_grad=True)

    def value(*_: object) -> Tensor:
        if broken:
            raise module.LinAlgError("not positive definite")
        return nan * 1

    monkeypatch.setattr(module._Search, "value", value)
    found = learn_kernel(*rows, RBF(length_scale=0.5), 0.3)
    assert (found.kernel, found.noise_std, found.improved) == (RBF(length_scale=0.5), 0.3, False)


def test_learning_leaves_the_callers_gradients_and_precision_alone(
    rows: tuple[Tensor, Tensor],
) -> None:
    features = rows[0].float().requires_grad_()
    start = RBF(length_scale=0.1)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = learn_kernel(features, rows[1].float(), start, 0.3, iterations=5)
    assert features.grad is None
    assert found == learn_kernel(rows[0].float(), rows[1].float(), start, 0.3, iterations=5)


def test_rows_and_kernels_that_cannot_be_learned_from_are_rejected(
    rows: tuple[Tensor, Tensor],
) -> None:
    with pytest.raises(TypeError, match="to be learned; got Clipped"):
        learn_kernel(*rows, Clipped(RBF(), 0.1), 0.3)
    with pytest.raises(ValueError, match="every class has a single row"):
        learn_kernel(rows[0][:3], torch.eye(3), RBF(), 0.3)
