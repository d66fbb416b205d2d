"""Learning a kernel from labelled rows."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import semigpc.gp.scales as module
from benchmarks.references import kernel_matrix
from semigpc.gp import NTK, RBF, Clipped, Cosine, Kernel, Laplace
from semigpc.gp.kernels import squared_distances
from semigpc.gp.scales import LeaveOneOut, Objective, balanced_rows, learn_kernel, scales_of
from tests.gp.streams import clusters

both_objectives = pytest.mark.parametrize("objective", ["marginal", "leave_one_out"])


@pytest.fixture
def rows(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return clusters(generator, spread=1.0)(60)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_marginal_likelihood_finds_the_kernel_that_made_the_targets(
    generator: torch.Generator,
) -> None:
    h = torch.rand(150, 2, generator=generator, dtype=torch.float64)
    truth, noise = RBF(length_scale=0.3, output_scale=2.0), 0.4
    root = torch.linalg.cholesky(kernel_matrix(h, truth, noise))
    y = root @ torch.randn(150, 16, generator=generator, dtype=torch.float64)
    found = learn_kernel(h, y, RBF(length_scale=1.5, output_scale=0.5), 1.0, objective="marginal")
    (kernel,) = found.kernels
    assert isinstance(kernel, RBF)
    assert kernel.length_scale == pytest.approx(0.3, rel=0.1)
    assert kernel.output_scale == pytest.approx(2.0, rel=0.4)
    assert found.noise_stds[0] == pytest.approx(0.4, rel=0.1)


@both_objectives
@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize(
    "kernel", [RBF(length_scale=0.1), Laplace(length_scale=0.1), Cosine(), NTK(bias=0.5)], ids=repr
)
def test_every_kernel_improves_and_keeps_its_kind(
    objective: Objective, per_class: bool, kernel: Kernel, rows: tuple[Tensor, Tensor]
) -> None:
    found = learn_kernel(
        *rows, kernel, 2.0, objective=objective, per_class=per_class, iterations=10
    )
    assert found.improved
    assert found.after < found.before
    assert len(found.kernels) == len(found.noise_stds) == (4 if per_class else 1)
    assert {type(one) for one in found.kernels} == {type(kernel)}
    assert len(set(found.noise_stds)) == len(found.noise_stds)
    if isinstance(kernel, NTK):
        assert all(isinstance(one, NTK) and one.bias == 0.5 for one in found.kernels)


def test_left_out_rows_become_more_probable(rows: tuple[Tensor, Tensor]) -> None:
    start, scale = (
        scales_of([RBF(length_scale=0.1)], [1.0]),
        torch.tensor(6.0, dtype=torch.float64).log(),
    )
    left_out = LeaveOneOut(*rows, RBF())
    found = learn_kernel(*rows, RBF(length_scale=0.1), 1.0, logit_scale=6.0)
    before, after = (
        float(left_out.loss(left_out.residuals(scales)[0], scale))
        for scales in (start, scales_of(found.kernels, found.noise_stds))
    )
    assert after < 0.8 * before


@both_objectives
@pytest.mark.parametrize("per_class", [False, True])
def test_everything_stays_within_its_bounds(
    objective: Objective, per_class: bool, rows: tuple[Tensor, Tensor]
) -> None:
    median = float(squared_distances(rows[0], rows[0]).flatten()[1:].median().sqrt())
    for length_scale, noise_std in ((1e-6, 1e-6), (1e6, 1e6)):
        found = learn_kernel(
            *rows,
            RBF(length_scale=length_scale),
            noise_std,
            objective=objective,
            per_class=per_class,
            iterations=5,
        )
        for kernel, noise in zip(found.kernels, found.noise_stds, strict=True):
            assert isinstance(kernel, RBF)
            assert 0.095 <= kernel.length_scale / median <= 4.2
            assert 1e-3 <= kernel.output_scale <= 1e3
            assert 0.199 <= noise / kernel.output_scale**0.5 <= 2.01


def test_the_same_seed_gives_the_same_bits_and_large_classes_give_way(
    generator: torch.Generator,
) -> None:
    labels = torch.cat([torch.full((count,), c) for c, count in enumerate((80, 20, 3, 1))])
    chosen = balanced_rows(labels, 30, generator)
    assert torch.bincount(labels[chosen]).tolist() == [13, 13, 3, 1]
    assert torch.equal(chosen, chosen.sort().values)
    assert torch.equal(balanced_rows(labels, 200, generator), torch.arange(104))
    assert torch.bincount(labels[balanced_rows(labels, 4, generator)]).tolist() == [2, 2, 2, 1]
    h = torch.randn(104, 6, generator=generator)
    answers = [
        learn_kernel(
            h,
            F.one_hot(labels).float(),
            RBF(length_scale=1.0),
            0.3,
            rows=30,
            iterations=5,
            generator=seeded(seed),
        )
        for seed in (1, 1, 2)
    ]
    assert answers[0] == answers[1] != answers[2]


def test_what_cannot_be_improved_stays_to_the_bit(rows: tuple[Tensor, Tensor]) -> None:
    first = learn_kernel(*rows, RBF(), 0.3)
    again = learn_kernel(*rows, first.kernels, first.noise_stds)
    assert first.improved
    assert not again.improved
    assert (again.kernels, again.noise_stds) == (first.kernels, first.noise_stds)
    assert again.after == again.before


def test_a_search_that_breaks_down_changes_nothing(
    rows: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Tensor:
        raise module.LinAlgError("not positive definite")

    monkeypatch.setattr(module._Search, "value", broken)
    found = learn_kernel(*rows, RBF(length_scale=0.5), 0.3)
    assert (found.kernels, found.noise_stds, found.improved) == (
        (RBF(length_scale=0.5),),
        (0.3,),
        False,
    )


def test_a_result_that_is_not_finite_is_not_taken(
    rows: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = torch.tensor(torch.nan, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(module._Search, "value", lambda *_: nothing * 1)
    assert learn_kernel(*rows, RBF(length_scale=0.5), 0.3).kernels == (RBF(length_scale=0.5),)


def test_learning_leaves_the_callers_gradients_and_precision_alone(
    rows: tuple[Tensor, Tensor],
) -> None:
    features = rows[0].float().requires_grad_()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = learn_kernel(features, rows[1].float(), RBF(length_scale=0.1), 0.3, iterations=5)
    assert features.grad is None
    plain = learn_kernel(rows[0].float(), rows[1].float(), RBF(length_scale=0.1), 0.3, iterations=5)
    assert found == plain


def test_what_cannot_be_learned_is_refused(rows: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(TypeError, match="to be learned; got Clipped"):
        learn_kernel(*rows, Clipped(RBF(), 0.1), 0.3)
    with pytest.raises(ValueError, match="every class has a single row"):
        learn_kernel(rows[0][:3], torch.eye(3), RBF(), 0.3)
