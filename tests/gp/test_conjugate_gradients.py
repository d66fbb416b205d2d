"""Conjugate gradients reach their goals column by column, or report that they do not; landmarks are
chosen in proportion to what is left unexplained, never twice, and make the Nystrom kernel.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.references import kernel_matrix
from semigpc.gp import NTK, RBF, Cosine, Laplace
from semigpc.gp.conjugate_gradients import (
    LandmarkFeatures,
    LandmarkPreconditioner,
    choose_landmarks,
    solve,
)
from tests.gp.streams import assert_near, clusters

KERNELS = [RBF(length_scale=1.3, output_scale=2.0), Laplace(length_scale=2.0), Cosine(), NTK()]
KERNEL = RBF(length_scale=0.5)


def system(generator: torch.Generator, size: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    features, targets = clusters(generator)(size)
    return features, kernel_matrix(features, KERNEL, 0.3), targets


def identity(residual: Tensor) -> Tensor:
    return residual


def never(_: Tensor) -> Tensor:
    raise AssertionError("a product that is not needed")


def solved_from_zero(
    K: Tensor, y: Tensor, goals: Tensor, most: int = 500, preconditioner: Any = identity
) -> Any:
    zero = torch.zeros_like(y)
    return solve(lambda x: K @ x, preconditioner, zero, y, goals, max_iterations=most)


def landmarks(features: Tensor, noise_variance: float, rank: int) -> LandmarkPreconditioner:
    held = torch.ones(len(features), dtype=torch.bool)
    options: Any = {"noise_variance": noise_variance, "rank": rank, "seed": 0}
    return LandmarkPreconditioner(features, held, KERNEL, **options)


def test_every_column_reaches_its_own_goal(generator: torch.Generator) -> None:
    _, K, y = system(generator)
    goals = torch.linalg.vector_norm(y, dim=0) * torch.tensor([1e-2, 1e-4, 1e-6, 1e-8])
    solved = solved_from_zero(K, y, goals)
    assert solved.converged
    true = y - K @ solved.x
    assert (torch.linalg.vector_norm(true, dim=0) <= 1.01 * goals).all()
    assert_near(solved.residual, true, atol=1e-9)


def test_a_start_that_is_good_enough_takes_no_product(generator: torch.Generator) -> None:
    _, K, y = system(generator)
    x = torch.linalg.solve(K, y)
    solved = solve(never, identity, x, y - K @ x, torch.full((4,), 1e-6), max_iterations=10)
    assert solved.converged
    assert solved.iterations == 0
    assert torch.equal(solved.x, x)


def test_dependent_and_empty_right_hand_sides_do_no_harm(generator: torch.Generator) -> None:
    _, K, y = system(generator)
    # ones, which the targets sum to; and no target
    y = torch.cat([y, y.sum(dim=1, keepdim=True), torch.zeros(200, 1)], dim=1)
    goals = 1e-10 * torch.linalg.vector_norm(y, dim=0)
    solved = solved_from_zero(K, y, goals)
    assert solved.converged
    assert_near(solved.x, torch.linalg.solve(K, y), atol=1e-7)
    assert not solved.x[:, -1].any()


def test_running_out_of_iterations_and_overflow_are_not_called_convergence(
    generator: torch.Generator,
) -> None:
    _, K, y = system(generator)
    goals = torch.full((4,), 1e-12)
    assert not solved_from_zero(K, y, goals, most=3).converged
    assert not solved_from_zero(K * torch.nan, y, goals, most=30).converged


def test_landmarks_save_most_of_the_products(generator: torch.Generator) -> None:
    features, K, y = system(generator, 400)
    goals = 1e-8 * torch.linalg.vector_norm(y, dim=0)
    plain = solved_from_zero(K, y, goals)
    helped = solved_from_zero(K, y, goals, preconditioner=landmarks(features, 0.09, 300))
    assert helped.converged
    assert helped.iterations < plain.iterations / 3


def test_the_preconditioner_inverts_its_own_matrix_through_changes_of_rows(
    generator: torch.Generator,
) -> None:
    features, _, _ = system(generator)
    preconditioner = landmarks(features, 0.09, 40)
    anchors = features[preconditioner.anchors].clone()
    features[10:30] = clusters(generator)(20)[0]
    preconditioner.replace(torch.arange(10, 30), features[10:30])
    preconditioner.replace(torch.arange(180, 200), None)
    cross = KERNEL(features[:180], anchors)
    nystrom = cross @ torch.linalg.solve(KERNEL(anchors, anchors), cross.mT)
    M = nystrom + 0.09 * torch.eye(180, dtype=torch.float64)
    x = torch.randn(180, 3, generator=generator, dtype=torch.float64)
    assert_near(preconditioner(M @ x), x, atol=1e-6)
    assert set(preconditioner.anchors).isdisjoint([*range(10, 30), *range(180, 200)])


def test_landmarks_are_chosen_anew_once_a_turnover_or_when_rows_fit_them_badly(
    generator: torch.Generator,
) -> None:
    features, _, _ = system(generator)
    preconditioner = landmarks(features, 0.01, 150)
    assert not preconditioner.is_stale(200)
    preconditioner.replace(torch.arange(100), features[:100])
    assert not preconditioner.is_stale(200)
    preconditioner.replace(torch.arange(100), features[:100])
    assert preconditioner.is_stale(200)  # as many rows as there were
    preconditioner = landmarks(features, 0.01, 150)
    preconditioner.replace(torch.arange(60), torch.eye(16, dtype=torch.float64).repeat(4, 1)[:60])
    assert preconditioner.is_stale(200)  # rows from elsewhere


# Landmarks ----------------------------------------------------------------------------------------


def points(n: int, width: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, width, generator=seeded(seed), dtype=dtype)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unexplained(x: Tensor, landmarks: Tensor, kernel: RBF) -> Tensor:
    basis = LandmarkFeatures(landmarks, kernel)
    return basis.residual(x, basis.phi(x))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_the_features_make_the_nystrom_kernel(kernel: RBF) -> None:
    x, z = points(30), points(7, seed=1)
    z = z[choose_landmarks(z, kernel, 7, seeded())]
    basis = LandmarkFeatures(z, kernel)
    inner = kernel(z, z)
    inner.diagonal().copy_(kernel.diagonal(z))
    wanted = kernel(x, z) @ torch.linalg.solve(inner, kernel(z, x))
    torch.testing.assert_close(basis.phi(x) @ basis.phi(x).mT, wanted, rtol=1e-8, atol=1e-8)
    rest = (kernel.diagonal(x) - wanted.diagonal()).clamp_min(0)
    assert_near(unexplained(x, z, kernel), rest, atol=1e-8)


def test_landmarks_explain_themselves_completely() -> None:
    x, kernel = points(50), RBF(length_scale=1.0)
    chosen = choose_landmarks(x, kernel, 20, seeded())
    assert float(unexplained(x[chosen], x[chosen], kernel).max()) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_coincide_are_chosen_once(dtype: torch.dtype) -> None:
    x = points(10, dtype=dtype).repeat(20, 1)
    chosen = choose_landmarks(x, RBF(length_scale=1.0), 200, seeded())
    assert len(chosen) == 10
    assert sorted((chosen % 10).tolist()) == list(range(10))


def test_a_kernel_of_low_rank_needs_no_more_landmarks_than_its_rank() -> None:
    assert len(choose_landmarks(points(300), Cosine(), 100, seeded())) == 4
    assert len(choose_landmarks(points(300), NTK(), 100, seeded())) == 5


def test_a_rank_beyond_the_rows_takes_all_rows() -> None:
    assert sorted(
        choose_landmarks(points(9), RBF(length_scale=0.5), 50, seeded()).tolist()
    ) == list(range(9))


@pytest.mark.slow
def test_pivots_are_drawn_in_proportion_to_what_the_earlier_ones_leave() -> None:
    # Two rows almost alike and one apart: after one of the pair, its twin has a residual of 1 -
    # k^2, the third of 1.
    x, kernel = torch.tensor([[0.0], [0.5], [100.0]], dtype=torch.float64), RBF(length_scale=1.0)
    alike = float(kernel(x[:1], x[1:2])) ** 2
    twins = (
        sum(set(choose_landmarks(x, kernel, 2, seeded(i)).tolist()) == {0, 1} for i in range(2000))
        / 2000
    )
    expected = (2 / 3) * (1 - alike) / (1 - alike + 1)
    assert twins == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 2000) ** 0.5)


def test_the_same_seed_chooses_the_same_rows() -> None:
    x, kernel = points(500), RBF(length_scale=1.0)
    first, second, other = (choose_landmarks(x, kernel, 60, seeded(i)).tolist() for i in (3, 3, 4))
    assert first == second != other


def test_it_is_close_to_the_best_that_any_rank_can_do() -> None:
    x, kernel, rank = points(400, width=3), RBF(length_scale=1.0), 60
    best = float(torch.linalg.eigvalsh(kernel(x, x))[:-rank].clamp_min(0).sum())
    chosen = choose_landmarks(x, kernel, rank, seeded())
    assert float(unexplained(x, x[chosen], kernel).sum()) < 4 * best
