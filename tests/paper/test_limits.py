"""What the paper says of the GP, checked where a laptop can (section 3; the numbers are those of
our notes on the method).
"""

import math

import pytest
import torch

from benchmarks.references import similarity_aggregate
from semigpc.gp import RBF, Clipped, ExactGP
from tests.gp.streams import clusters


def engine_with(features: torch.Tensor, targets: torch.Tensor, **options: object) -> ExactGP:
    engine = ExactGP(len(features), features.shape[1], targets.shape[1], **options)  # type: ignore[arg-type]
    engine.replace(torch.arange(len(features)), features, targets)
    return engine


def test_a_small_eta_over_sigma_squared_gives_the_similarity_aggregate(
    generator: torch.Generator,
) -> None:
    draw = clusters(generator, spread=1.0)
    features, targets = draw(60)
    queries = draw(20)[0]
    kernel = RBF(length_scale=0.5, output_scale=1e-9)
    engine = engine_with(features, targets, kernel=kernel, noise_std=1.0)
    expected = similarity_aggregate(queries, features, targets, RBF(length_scale=0.5))
    assert (engine.mean(queries) / 1e-9 - expected).abs().max() <= 1e-6


@pytest.mark.parametrize(
    ("count", "eta", "noise_std"), [(1, 1.0, 0.3), (7, 2.0, 0.5), (300, 1.0, 0.316)]
)
def test_coincident_points_give_eta_n_over_eta_n_plus_sigma_squared(
    count: int, eta: float, noise_std: float
) -> None:
    point, target = (
        torch.ones(count, 3, dtype=torch.float64),
        torch.ones(count, 1, dtype=torch.float64),
    )
    engine = engine_with(point, target, kernel=RBF(output_scale=eta), noise_std=noise_std)
    expected = eta * count / (eta * count + noise_std**2)
    assert engine.mean(point[:1]).item() == pytest.approx(expected, rel=1e-10)


def test_a_far_query_gets_no_confidence(generator: torch.Generator) -> None:
    features, targets = clusters(generator)(40)
    engine = engine_with(features, targets)
    probabilities = torch.softmax(6 * engine.mean(features[:5] + 50), dim=1)
    torch.testing.assert_close(probabilities, torch.full((5, 4), 0.25, dtype=torch.float64))


def test_subtracting_one_constant_from_all_targets_changes_no_probability(
    generator: torch.Generator,
) -> None:
    draw = clusters(generator)
    engine = engine_with(*draw(40))
    queries = draw(10)[0]
    plain = torch.softmax(6 * engine.mean(queries), dim=1)
    shifted = torch.softmax(6 * engine.mean(queries, offset=torch.full((4,), 0.25)), dim=1)
    torch.testing.assert_close(plain, shifted, rtol=0, atol=1e-12)


def test_only_the_ratio_of_noise_to_output_scale_matters_for_the_mean(
    generator: torch.Generator,
) -> None:
    draw = clusters(generator)
    features, targets = draw(40)
    queries = draw(10)[0]
    one = engine_with(features, targets, kernel=RBF(output_scale=1.0), noise_std=0.3)
    other = engine_with(features, targets, kernel=RBF(output_scale=4.0), noise_std=0.6)
    torch.testing.assert_close(one.mean(queries), other.mean(queries), rtol=0, atol=1e-12)


def test_on_unit_vectors_the_kernel_is_exp_of_cosine_over_temperature(
    generator: torch.Generator,
) -> None:
    features, _ = clusters(generator)(10)
    length_scale = 0.316
    cosines = features @ features.mT
    expected = torch.exp((cosines - 1) / length_scale**2)
    torch.testing.assert_close(
        RBF(length_scale=length_scale)(features, features), expected, rtol=0, atol=1e-12
    )


def test_a_clipped_kernel_leaves_far_points_isolated() -> None:
    points = torch.tensor([[0.0], [1.0], [5.0]], dtype=torch.float64)
    kernel = Clipped(RBF(length_scale=1.0), 0.5)  # exp(-1/2) = 0.61 stays, exp(-8) goes
    engine = engine_with(points, torch.eye(3, dtype=torch.float64), kernel=kernel, noise_std=1.0)
    k = math.exp(-0.5)
    pair = torch.linalg.inv(torch.tensor([[2.0, k], [k, 2.0]], dtype=torch.float64))
    torch.testing.assert_close(engine.alpha[:2, :2], pair, rtol=0, atol=1e-12)
    assert engine.alpha[2].tolist() == pytest.approx([0.0, 0.0, 0.5])
