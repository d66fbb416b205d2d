"""Landmarks: chosen in proportion to what is left unexplained, never twice, and their features make
the Nystrom kernel.
"""

import pytest
import torch

from semigpc.gp import NTK, RBF, Cosine, LandmarkFeatures, Laplace, choose_landmarks
from tests.gp.streams import assert_near

KERNELS = [RBF(length_scale=1.3, output_scale=2.0), Laplace(length_scale=2.0), Cosine(), NTK()]


def points(
    n: int, width: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_the_features_make_the_nystrom_kernel(kernel: RBF) -> None:
    x, z = points(30), points(7, seed=1)
    z = z[choose_landmarks(z, kernel, 7, generator=seeded())]
    basis = LandmarkFeatures(z, kernel)
    inner = kernel(z, z)
    inner.diagonal().copy_(kernel.diagonal(z))
    wanted = kernel(x, z) @ torch.linalg.solve(inner, kernel(z, x))
    torch.testing.assert_close(basis.phi(x) @ basis.phi(x).mT, wanted, rtol=1e-8, atol=1e-8)
    assert_near(basis.residual(x), (kernel.diagonal(x) - wanted.diagonal()).clamp_min(0), atol=1e-8)


def test_landmarks_explain_themselves_completely() -> None:
    x, kernel = points(50), RBF(length_scale=1.0)
    chosen = choose_landmarks(x, kernel, 20, generator=seeded())
    assert float(LandmarkFeatures(x[chosen], kernel).residual(x[chosen]).max()) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_coincide_are_chosen_once(dtype: torch.dtype) -> None:
    x = points(10, dtype=dtype).repeat(20, 1)
    chosen = choose_landmarks(x, RBF(length_scale=1.0), 200, generator=seeded())
    assert len(chosen) == 10
    assert sorted((chosen % 10).tolist()) == list(range(10))


def test_a_kernel_of_low_rank_needs_no_more_landmarks_than_its_rank() -> None:
    assert len(choose_landmarks(points(300), Cosine(), 100, generator=seeded())) == 4
    assert len(choose_landmarks(points(300), NTK(), 100, generator=seeded())) == 5


def test_it_stops_when_the_rest_is_below_the_tolerance() -> None:
    x, kernel = points(400), RBF(length_scale=2.0)
    chosen = choose_landmarks(x, kernel, 400, tolerance=0.05, generator=seeded())
    assert float(LandmarkFeatures(x[chosen], kernel).residual(x).mean()) <= 0.05
    assert len(chosen) < 200


def test_a_rank_beyond_the_rows_takes_all_rows() -> None:
    assert sorted(
        choose_landmarks(points(9), RBF(length_scale=0.5), 50, generator=seeded()).tolist()
    ) == list(range(9))


@pytest.mark.slow
def test_pivots_are_drawn_in_proportion_to_what_the_earlier_ones_leave() -> None:
    # Two rows almost alike and one apart: after one of the pair, its twin has a residual of 1 -
    # k^2, the third of 1.
    x, kernel = torch.tensor([[0.0], [0.5], [100.0]], dtype=torch.float64), RBF(length_scale=1.0)
    alike = float(kernel(x[:1], x[1:2])) ** 2
    twins = (
        sum(
            set(choose_landmarks(x, kernel, 2, generator=seeded(i)).tolist()) == {0, 1}
            for i in range(2000)
        )
        / 2000
    )
    expected = (2 / 3) * (1 - alike) / (1 - alike + 1)
    assert twins == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 2000) ** 0.5)


def test_the_same_seed_chooses_the_same_rows() -> None:
    x, kernel = points(500), RBF(length_scale=1.0)
    first, second, other = (
        choose_landmarks(x, kernel, 60, generator=seeded(i)).tolist() for i in (3, 3, 4)
    )
    assert first == second != other


def test_it_is_close_to_the_best_that_any_rank_can_do() -> None:
    x, kernel, rank = points(400, width=3), RBF(length_scale=1.0), 60
    best = float(torch.linalg.eigvalsh(kernel(x, x))[:-rank].clamp_min(0).sum())
    chosen = choose_landmarks(x, kernel, rank, generator=seeded())
    assert float(LandmarkFeatures(x[chosen], kernel).residual(x).sum()) < 4 * best


def test_coinciding_landmarks_given_by_hand_are_refused() -> None:
    with pytest.raises(ValueError, match=r"landmarks must be distinct.*one of 2 coincides"):
        LandmarkFeatures(torch.zeros(2, 3), RBF())


def test_a_rank_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="rank must be at least 1; got 0"):
        choose_landmarks(points(5), RBF(), 0)
