"""Float32 stays true over many turnovers, by the engine's own doing."""

import logging
from typing import Literal

import pytest
import torch
import torch.nn.functional as F

from semigpc.gp import RBF, Clipped, ExactGP, NotPositiveDefiniteError
from semigpc.gp.reference import kernel_matrix, posterior
from tests.gp.streams import clusters


def error_of_the_mean(engine: ExactGP, queries: torch.Tensor) -> float:
    held = engine.occupied
    features, targets = engine.features[held].double(), engine.targets[held].double()
    mean, _ = posterior(queries.double(), features, targets, engine.kernel, engine.noise_std)
    return float((engine.mean(queries) - mean).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("refine", ["auto", "always"])
def test_tight_clusters_stay_true_for_twenty_turnovers(refine: str, generator: torch.Generator) -> None:
    size, batch = 1000, 8
    draw = clusters(generator, width=32, spread=0.05, dtype=torch.float32)
    engine = ExactGP(size, 32, 4, kernel=RBF(length_scale=0.316), noise_std=0.002**0.5, refine=refine)  # type: ignore[arg-type]
    engine.replace(torch.arange(size), *draw(size))
    eigenvalues = torch.linalg.eigvalsh(kernel_matrix(engine.features.double(), engine.kernel, engine.noise_std))
    assert eigenvalues[-1] / eigenvalues[0] >= 1e5
    for step in range(20 * size // batch):
        engine.replace((torch.arange(batch) + batch * step) % size, *draw(batch))
    outliers = torch.nn.functional.normalize(torch.randn(50, 32, generator=generator), dim=1)
    assert error_of_the_mean(engine, torch.cat([draw(200)[0], outliers])) <= 1e-4
    assert engine.health.rebuilds <= 2


@pytest.mark.parametrize("noise_std", [0.01, 0.03])
def test_contradictory_labels_at_coincident_points_stay_true(noise_std: float, generator: torch.Generator) -> None:
    """The worst case for alpha: it reaches 1 / sigma^2, and every digit that P loses shows in the mean."""
    points = torch.randn(5, 3, generator=generator)
    engine = ExactGP(100, 3, 2, kernel=RBF(length_scale=1.0), noise_std=noise_std)
    for step in range(200):
        slots = torch.randperm(100, generator=generator)[:8]
        labels = torch.randint(2, (8,), generator=generator)
        engine.replace(slots, points[torch.randint(5, (8,), generator=generator)], torch.eye(2)[labels])
        assert step < 8 or error_of_the_mean(engine, points) < 1e-3  # the first looks need some steps
    weights = engine.label_weights(points)
    torch.testing.assert_close(weights @ engine.targets, engine.mean(points), rtol=0, atol=1e-3)


def test_an_indefinite_kernel_stays_true(generator: torch.Generator) -> None:
    draw = clusters(generator, n_classes=3, width=6, dtype=torch.float32)
    engine = ExactGP(100, 6, 3, kernel=Clipped(RBF(length_scale=0.5), 0.1))
    for step in range(60):
        engine.replace((torch.arange(8) + 8 * step) % 100, *draw(8))
        assert error_of_the_mean(engine, draw(20)[0]) < 1e-3


def test_ill_conditioning_switches_refinement_on_and_easy_data_does_not(
    generator: torch.Generator, caplog: pytest.LogCaptureFixture
) -> None:
    easy, hard = (ExactGP(200, 16, 4, noise_std=noise_std) for noise_std in (0.3, 0.01))
    with caplog.at_level(logging.INFO, logger="semigpc"):
        for engine, spread in ((easy, 1.0), (hard, 0.01)):
            draw = clusters(generator, spread=spread, dtype=torch.float32)
            for step in range(100):
                engine.replace((torch.arange(8) + 8 * step) % 200, *draw(8))
            assert error_of_the_mean(engine, draw(50)[0]) < 1e-4
    assert easy.health.refined == 0
    assert hard.health.refined > 0
    assert "refining from now on" in caplog.text


def test_rows_that_nothing_touches_are_written_anew(generator: torch.Generator) -> None:
    """A rare class of a balanced buffer keeps its slots for ever; rounding errors must not stay there as long."""
    engine, draw = ExactGP(64, 16, 4), clusters(generator, dtype=torch.float32)
    engine.replace(torch.arange(64), *draw(64))
    features = engine.features.clone()
    for step in range(200):
        engine.replace(torch.arange(4) + 4 * (step % 8), *draw(4))  # slots 32..63 are never named
    assert engine.health.reinserted > 0
    assert engine.system.touched.min() > 100
    assert torch.equal(engine.features[32:], features[32:])
    assert error_of_the_mean(engine, draw(20)[0]) < 1e-5


def test_a_damaged_inverse_is_noticed_and_rebuilt(generator: torch.Generator) -> None:
    engine, draw = ExactGP(100, 16, 4), clusters(generator, dtype=torch.float32)
    engine.replace(torch.arange(100), *draw(100))
    engine.system.solver.inverse.fold()
    engine.system.solver.inverse.base.tiles.mul_(1.5)
    for step in range(8):
        engine.replace(torch.arange(4) + 4 * step, *draw(4))
    assert engine.health.rebuilds >= 1
    assert error_of_the_mean(engine, draw(20)[0]) < 1e-5


def test_whether_it_was_refining_survives_a_save(generator: torch.Generator) -> None:
    draw = clusters(generator, spread=0.01, dtype=torch.float32)
    engine, copy = (ExactGP(100, 16, 4, noise_std=0.01) for _ in range(2))
    for step in range(60):
        engine.replace((torch.arange(8) + 8 * step) % 100, *draw(8))
    assert engine.health.refined > 0
    engine.rebuild()
    copy.load_state_dict(engine.state_dict())
    features, targets = draw(8)
    for one in (engine, copy):
        one.replace(torch.arange(8), features, targets)
    assert torch.equal(engine.mean(features), copy.mean(features))
    assert engine.health == copy.health


def test_noise_too_small_for_float32_is_refused_with_the_knob_to_turn(generator: torch.Generator) -> None:
    engine, draw = ExactGP(64, 16, 4, noise_std=1e-6), clusters(generator, spread=0.0, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"cannot be inverted in torch\.float32.*Raise noise_std"):
        engine.replace(torch.arange(64), *draw(64))
    assert len(engine) == 0
    assert torch.equal(engine.mean(draw(3)[0]), torch.zeros(3, 4))


def test_a_batch_that_cannot_go_in_leaves_the_others_where_they_are(generator: torch.Generator) -> None:
    engine = ExactGP(700, 16, 4, noise_std=1e-6)
    apart = clusters(generator, n_classes=4, spread=100.0, dtype=torch.float32)
    coincident = clusters(generator, spread=0.0, dtype=torch.float32)
    features, targets = apart(300)
    engine.replace(torch.arange(300), features, targets)
    before = engine.mean(features)
    with pytest.raises(ValueError, match="cannot be inverted"):
        engine.replace(torch.arange(250, 700), *coincident(450))
    assert len(engine) == 300
    assert torch.equal(engine.features[:300], features)
    assert torch.equal(engine.targets[:300], targets)
    assert not engine.occupied[300:].any()
    torch.testing.assert_close(engine.mean(features), before, rtol=0, atol=1e-4)


REFINE: tuple[Literal["auto"], Literal["never"]] = ("auto", "never")


def test_a_kernel_too_hard_for_float32_alone_is_taken_up_with_refinement(generator: torch.Generator) -> None:
    x = torch.randn(400, 3, generator=generator)
    y = F.one_hot(torch.randint(3, (400,), generator=generator), 3).float()
    engines = {refine: ExactGP(400, 3, 3, kernel=RBF(length_scale=0.3), refine=refine) for refine in REFINE}
    for engine in engines.values():
        engine.replace(torch.arange(400), x, y)
    hard = RBF(length_scale=1.0)
    with pytest.raises(NotPositiveDefiniteError, match=r"cannot be inverted in torch\.float32"):
        engines["never"].reanchor(hard, 0.03)
    assert engines["never"].kernel == RBF(length_scale=0.3), "what was there goes on"
    engines["auto"].reanchor(hard, 0.03)
    truth = ExactGP(400, 3, 3, kernel=hard, noise_std=0.03, dtype=torch.float64)
    truth.replace(torch.arange(400), x, y)
    torch.testing.assert_close(engines["auto"].mean(x[:50]).double(), truth.mean(x[:50].double()), rtol=0, atol=1e-3)
