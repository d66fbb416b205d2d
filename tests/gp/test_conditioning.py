"""The engine stays exact for strongly correlated rows, and rejects a K it cannot invert."""

import pytest
import torch
from torch import Tensor

from benchmarks.references import kernel_matrix, posterior
from semigpc.gp import RBF, Clipped, ExactGP
from tests.gp.streams import assert_near, clusters


def error_of_the_mean(engine: ExactGP, queries: Tensor) -> float:
    rows = engine.features[engine.occupied], engine.targets[engine.occupied]
    mean, _ = posterior(queries.double(), *rows, engine.kernel, engine.noise_std)
    return float((engine.mean(queries.double()) - mean).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spread", "noise_variance", "condition", "error"),
    [(0.05, 0.002, 1e5, 1e-8), (0.005, 2e-6, 1e8, 1e-5)],
)
def test_tight_clusters_stay_true_for_twenty_turnovers(
    spread: float, noise_variance: float, condition: float, error: float, generator: torch.Generator
) -> None:
    size, batch = 1000, 8
    draw = clusters(generator, width=32, spread=spread, dtype=torch.float32)
    engine = ExactGP(size, 32, 4, kernel=RBF(length_scale=0.316), noise_std=noise_variance**0.5)
    engine.replace(torch.arange(size), *draw(size))
    K = kernel_matrix(engine.features, engine.kernel, engine.noise_std)
    eigenvalues = torch.linalg.eigvalsh(K)
    assert eigenvalues[-1] / eigenvalues[0] >= condition
    for step in range(20 * size // batch):
        engine.replace((torch.arange(batch) + batch * step) % size, *draw(batch))
    outliers = torch.nn.functional.normalize(torch.randn(50, 32, generator=generator), dim=1)
    assert error_of_the_mean(engine, torch.cat([draw(200)[0], outliers])) <= error
    assert engine.health.rebuilds == 0


@pytest.mark.parametrize("noise_std", [0.01, 0.03])
def test_contradictory_labels_at_coincident_points_stay_true(
    noise_std: float, generator: torch.Generator
) -> None:
    """The worst case for alpha: it reaches 1 / sigma^2, and every digit that P loses shows in the
    mean.
    """
    points = torch.randn(5, 3, generator=generator)
    engine = ExactGP(100, 3, 2, kernel=RBF(length_scale=1.0), noise_std=noise_std)
    for _ in range(200):
        slots = torch.randperm(100, generator=generator)[:8]
        labels = torch.randint(2, (8,), generator=generator)
        rows = points[torch.randint(5, (8,), generator=generator)]
        engine.replace(slots, rows, torch.eye(2)[labels])
        assert error_of_the_mean(engine, points) < 1e-5
    weights = engine.label_weights(points.double())
    assert_near(weights @ engine.targets, engine.mean(points.double()), atol=1e-5)


def test_an_indefinite_kernel_stays_true(generator: torch.Generator) -> None:
    draw = clusters(generator, n_classes=3, width=6, dtype=torch.float32)
    engine = ExactGP(100, 6, 3, kernel=Clipped(RBF(length_scale=0.5), 0.1))
    for step in range(60):
        engine.replace((torch.arange(8) + 8 * step) % 100, *draw(8))
        assert error_of_the_mean(engine, draw(20)[0]) < 1e-3


def test_a_damaged_inverse_is_noticed_and_rebuilt(generator: torch.Generator) -> None:
    engine, draw = ExactGP(100, 16, 4), clusters(generator, dtype=torch.float32)
    engine.replace(torch.arange(100), *draw(100))
    engine.inverse.fold()
    engine.inverse.base.tiles.mul_(1.5)
    for step in range(70):
        engine.replace((torch.arange(4) + 4 * step) % 100, *draw(4))
    assert engine.health.rebuilds >= 1
    assert error_of_the_mean(engine, draw(20)[0]) < 1e-8


def test_noise_that_is_too_small_is_an_error_that_names_it(generator: torch.Generator) -> None:
    engine = ExactGP(64, 16, 4, noise_std=1e-9)
    draw = clusters(generator, spread=0.0, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"noise_std=1e-09 cannot be inverted.*Raise noise_std"):
        engine.replace(torch.arange(64), *draw(64))
    assert len(engine) == 0
    assert torch.equal(engine.mean(draw(3)[0]), torch.zeros(3, 4))


def test_a_batch_that_cannot_go_in_leaves_the_others_where_they_are(
    generator: torch.Generator,
) -> None:
    engine = ExactGP(700, 16, 4, noise_std=1e-9)
    apart = clusters(generator, n_classes=4, spread=100.0, dtype=torch.float32)
    coincident = clusters(generator, spread=0.0, dtype=torch.float32)
    features, targets = apart(300)
    engine.replace(torch.arange(300), features, targets)
    before = engine.mean(features)
    with pytest.raises(ValueError, match="cannot be inverted"):
        engine.replace(torch.arange(250, 700), *coincident(450))
    assert len(engine) == 300
    assert torch.equal(engine.features[:300], features.double())
    assert torch.equal(engine.targets[:300], targets.double())
    assert not engine.occupied[300:].any()
    assert_near(engine.mean(features), before, atol=1e-6)


def test_another_kernel_that_cannot_be_inverted_leaves_the_old_one(
    generator: torch.Generator,
) -> None:
    engine, draw = ExactGP(200, 16, 4, kernel=RBF(length_scale=0.3)), clusters(generator)
    engine.replace(torch.arange(200), *draw(200))
    queries = draw(5)[0]
    before = engine.mean(queries)
    with pytest.raises(ValueError, match="cannot be inverted"):
        engine.reanchor(RBF(length_scale=1e4), 1e-9)
    assert engine.kernel == RBF(length_scale=0.3)
    assert_near(engine.mean(queries), before, atol=1e-12)
