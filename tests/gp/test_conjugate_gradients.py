"""Conjugate gradients reach their goals column by column, or report that they do not."""

import torch
from torch import Tensor

from benchmarks.references import kernel_matrix
from semigpc.gp import RBF
from semigpc.gp.conjugate_gradients import LandmarkPreconditioner, solve
from tests.gp.streams import assert_near, clusters


def system(generator: torch.Generator, size: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    features, targets = clusters(generator)(size)
    return features, kernel_matrix(features, RBF(length_scale=0.5), 0.3), targets


def identity(residual: Tensor) -> Tensor:
    return residual


def never(_: Tensor) -> Tensor:
    raise AssertionError("a product that is not needed")


def test_every_column_reaches_its_own_goal(generator: torch.Generator) -> None:
    _, K, y = system(generator)
    goals = torch.linalg.vector_norm(y, dim=0) * torch.tensor([1e-2, 1e-4, 1e-6, 1e-8])
    solved = solve(lambda x: K @ x, identity, torch.zeros_like(y), y, goals, max_iterations=500)
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
    y = torch.cat(
        [y, y.sum(dim=1, keepdim=True), torch.zeros(200, 1)], dim=1
    )  # ones, which the targets sum to; and no target
    goals = 1e-10 * torch.linalg.vector_norm(y, dim=0)
    solved = solve(lambda x: K @ x, identity, torch.zeros_like(y), y, goals, max_iterations=500)
    assert solved.converged
    assert_near(solved.x, torch.linalg.solve(K, y), atol=1e-7)
    assert not solved.x[:, -1].any()


def test_running_out_of_iterations_and_overflow_are_not_called_convergence(
    generator: torch.Generator,
) -> None:
    _, K, y = system(generator)
    goals = torch.full((4,), 1e-12)
    assert not solve(
        lambda x: K @ x, identity, torch.zeros_like(y), y, goals, max_iterations=3
    ).converged
    broken = solve(
        lambda x: K @ x * torch.nan, identity, torch.zeros_like(y), y, goals, max_iterations=30
    )
    assert not broken.converged


def test_landmarks_save_most_of_the_products(generator: torch.Generator) -> None:
    features, K, y = system(generator, 400)
    held = torch.ones(400, dtype=torch.bool)
    preconditioner = LandmarkPreconditioner(
        features, held, RBF(length_scale=0.5), noise_variance=0.09, rank=300, seed=0
    )
    goals = 1e-8 * torch.linalg.vector_norm(y, dim=0)
    plain = solve(lambda x: K @ x, identity, torch.zeros_like(y), y, goals, max_iterations=500)
    helped = solve(
        lambda x: K @ x, preconditioner, torch.zeros_like(y), y, goals, max_iterations=500
    )
    assert helped.converged
    assert helped.iterations < plain.iterations / 3


def test_the_preconditioner_inverts_its_own_matrix_through_changes_of_rows(
    generator: torch.Generator,
) -> None:
    features, _, _ = system(generator)
    kernel, held = RBF(length_scale=0.5), torch.ones(200, dtype=torch.bool)
    preconditioner = LandmarkPreconditioner(
        features, held, kernel, noise_variance=0.09, rank=40, seed=0
    )
    landmarks = features[preconditioner.anchors].clone()
    features[10:30] = clusters(generator)(20)[0]
    preconditioner.replace(torch.arange(10, 30), features[10:30])
    preconditioner.replace(torch.arange(180, 200), None)
    cross = kernel(features[:180], landmarks)
    nystrom = cross @ torch.linalg.solve(kernel(landmarks, landmarks), cross.mT)
    M = nystrom + 0.09 * torch.eye(180, dtype=torch.float64)
    x = torch.randn(180, 3, generator=generator, dtype=torch.float64)
    assert_near(preconditioner(M @ x), x, atol=1e-6)
    assert set(preconditioner.anchors).isdisjoint([*range(10, 30), *range(180, 200)])


def test_landmarks_are_chosen_anew_once_a_turnover_or_when_rows_fit_them_badly(
    generator: torch.Generator,
) -> None:
    features, _, _ = system(generator)
    kernel, held = RBF(length_scale=0.5), torch.ones(200, dtype=torch.bool)
    preconditioner = LandmarkPreconditioner(
        features, held, kernel, noise_variance=0.01, rank=150, seed=0
    )
    assert not preconditioner.is_stale(200)
    preconditioner.replace(torch.arange(100), features[:100])
    assert not preconditioner.is_stale(200)
    preconditioner.replace(torch.arange(100), features[:100])
    assert preconditioner.is_stale(200)  # as many rows as there were
    preconditioner = LandmarkPreconditioner(
        features, held, kernel, noise_variance=0.01, rank=150, seed=0
    )
    preconditioner.replace(torch.arange(60), torch.eye(16, dtype=torch.float64).repeat(4, 1)[:60])
    assert preconditioner.is_stale(200)  # rows from elsewhere
