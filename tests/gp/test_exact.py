"""The engine equals a fresh solve, whatever has been done to it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.references import append_rows, drop_oldest_rows, kernel_matrix, posterior
from semigpc.gp import KERNELS, RBF, Clipped, ExactGP, Kernel, Laplace
from semigpc.gp import tiles as tiles_module
from tests.gp.streams import assert_near, clusters, replace_rows

WIDTH, CLASSES, NOISE_STD = 16, 4, 0.3


def make(capacity: int, kernel: Kernel | None = None) -> ExactGP:
    return ExactGP(capacity, WIDTH, CLASSES, kernel=kernel, noise_std=NOISE_STD)


def assert_true(engine: ExactGP, queries: Tensor, atol: float = 1e-10) -> None:
    """Mean, variance and leave-out answers equal those of a GP fitted afresh."""
    held = engine.occupied
    features, targets = engine.features[held], engine.targets[held]
    mean, variance = posterior(queries, features, targets, engine.kernel, engine.noise_std)
    assert_near(engine.mean(queries), mean, atol=atol)
    assert_near(engine.variance(queries), variance.clamp_min(0), atol=atol)
    alpha = torch.linalg.solve(kernel_matrix(features, engine.kernel, engine.noise_std), targets)
    assert_near(engine.alpha[held], alpha, atol=10 * atol)
    slots = held.nonzero().squeeze(1)[:3]
    others = held.clone()
    others[slots] = False
    features, targets = engine.features[others], engine.targets[others]
    queries = engine.features[slots]
    left_out, _ = posterior(queries, features, targets, engine.kernel, engine.noise_std)
    assert_near(engine.leave_block_out(slots).mean, left_out, atol=10 * atol)


@pytest.fixture(params=["one tile", "many tiles"])
def few_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small engines in one tile, as they would be, and in many, as only large ones are."""
    if request.param == "many tiles":
        monkeypatch.setattr(tiles_module, "ONE_TILE", 1)
        monkeypatch.setattr(tiles_module, "TILE", 32)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["fifo", "balanced", "arbitrary"])
def test_five_thousand_replacements_leave_the_means_exact(
    order: str, generator: torch.Generator
) -> None:
    engine, draw = make(120), clusters(generator)
    queries = draw(40)[0]
    sizes = torch.randint(1, 9, (5000,), generator=generator).tolist()
    for step in replace_rows(engine, order, draw, sizes, generator):
        if step in (0, 3, 20, 100, 1000):
            assert_true(engine, queries)
    assert engine.health.steps >= 5000
    assert engine.health.rebuilds == 0
    assert_true(engine, queries)


@pytest.mark.usefixtures("few_tiles")
def test_growing_replacing_and_removing_equal_a_fresh_solve(generator: torch.Generator) -> None:
    engine, draw = make(100), clusters(generator)
    queries = draw(20)[0]
    for step in range(60):
        slots = torch.randperm(100, generator=generator)[: 1 + step % 7]
        engine.replace(slots, *draw(len(slots)))
        if step % 5 == 4:
            held = engine.occupied.nonzero().squeeze(1)
            engine.remove(held[torch.randperm(len(held), generator=generator)[:3]])
        assert_true(engine, queries)
    assert len(engine) == int(engine.occupied.sum())


@pytest.mark.usefixtures("few_tiles")
def test_a_batch_larger_than_one_chunk_goes_in_whole(generator: torch.Generator) -> None:
    engine, draw = make(600), clusters(generator)
    engine.replace(torch.arange(600), *draw(600))
    assert_true(engine, draw(20)[0])
    engine.replace(torch.randperm(600, generator=generator)[:300], *draw(300))
    assert_true(engine, draw(20)[0])


@pytest.mark.parametrize(
    "kernel",
    [
        *(kernel() for kernel in KERNELS.values()),
        Laplace(output_scale=2.0),
        Clipped(RBF(length_scale=1.0), 0.5),
    ],
    ids=repr,
)
def test_every_kernel_stays_exact(kernel: Kernel, generator: torch.Generator) -> None:
    engine = ExactGP(50, WIDTH, CLASSES, kernel=kernel, noise_std=0.5)
    draw = clusters(generator, spread=1.0)
    for step in range(40):
        engine.replace((torch.arange(5) + 5 * step) % 50, *draw(5))
    if isinstance(kernel, Clipped):  # indefinite: rebuilds where its conditioning is too poor
        K = kernel_matrix(engine.features, kernel, engine.noise_std)
        assert torch.linalg.eigvalsh(K)[0] < 0
        assert_true(engine, draw(20)[0], atol=1e-6)
    else:
        assert_true(engine, draw(20)[0])
        assert engine.health.rebuilds == 0


def test_repeated_rows_and_unchanged_rows_do_no_harm(generator: torch.Generator) -> None:
    engine, draw = make(30), clusters(generator)
    features, targets = draw(6)
    engine.replace(torch.arange(30), features.repeat(5, 1), targets.repeat(5, 1))
    assert_true(engine, draw(10)[0])
    before = engine.mean(features)
    engine.replace(torch.arange(6), features, targets)
    assert_near(engine.mean(features), before, atol=1e-12)


def test_no_queries_have_no_label_weights(generator: torch.Generator) -> None:
    engine, draw = make(64), clusters(generator)
    engine.replace(torch.arange(40), *draw(40))
    assert engine.label_weights(draw(10)[0][:0]).shape == (0, 64)


def test_a_loaded_state_goes_on_counting_steps(generator: torch.Generator) -> None:
    engine, restored, draw = make(64), make(64), clusters(generator)
    for start in (0, 8, 16):
        engine.replace(torch.arange(start, start + 8), *draw(8))
    restored.load_state_dict(engine.state_dict())
    assert restored.health.steps == engine.health.steps == 3


def test_an_engine_used_in_inference_mode_can_be_changed_outside_of_it(
    generator: torch.Generator,
) -> None:
    draw = clusters(generator, spread=0.01, dtype=torch.float32)
    engine = ExactGP(40, WIDTH, CLASSES, noise_std=0.01)
    with torch.inference_mode():
        for step in range(20):
            engine.replace((torch.arange(8) + 8 * step) % 40, *draw(8))
        engine.mean(draw(3)[0])
    engine.replace(torch.arange(8), *draw(8))
    assert len(engine) == 40


@pytest.mark.parametrize("matmul", [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul])  # type: ignore[attr-defined]
def test_the_newer_switch_of_reduced_products_is_put_back_as_it_was(
    matmul: Any, generator: torch.Generator
) -> None:
    seen: list[str] = []

    class Watched(RBF):  # a kernel that looks at the switch
        def __call__(self, x1: Tensor, x2: Tensor, square_norms2: Tensor | None = None) -> Tensor:
            seen.append(matmul.fp32_precision)
            return super().__call__(x1, x2, square_norms2)

    engine = ExactGP(8, 4, 2, kernel=Watched(length_scale=1.0))
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        engine.replace(
            torch.arange(8), torch.randn(8, 4, generator=generator), torch.eye(2).repeat(4, 1)
        )
        engine.mean(torch.randn(3, 4, generator=generator))
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
    assert set(seen) == {"ieee"}


def test_one_call_predicts_mean_and_variance(generator: torch.Generator) -> None:
    engine, draw = make(20), clusters(generator)
    engine.replace(torch.arange(20), *draw(20))
    queries, offset = draw(5)[0], torch.linspace(0, 0.3, CLASSES, dtype=torch.float64)
    mean, variance = engine.predict(queries, offset=offset)
    assert torch.equal(mean, engine.mean(queries, offset=offset))
    assert torch.equal(variance, engine.variance(queries))


def test_queries_that_are_trusted_are_not_checked_and_their_mean_is_not_a_number(
    generator: torch.Generator,
) -> None:
    engine, draw = make(20), clusters(generator)
    engine.replace(torch.arange(20), *draw(20))
    queries = draw(3)[0]
    queries[1, 0] = torch.nan
    with pytest.raises(ValueError, match="queries must be finite"):
        engine.mean(queries)
    assert engine.mean(queries, trusted=True).isnan().any(dim=1).tolist() == [False, True, False]


# The textbook paths agree with a direct inverse, so that they may serve as references -------------


def test_the_papers_block_rule_equals_a_fresh_inverse(generator: torch.Generator) -> None:
    draw = clusters(generator)
    features, _ = draw(40)
    K = kernel_matrix(features, RBF(), 0.3)
    K_inv = torch.linalg.inv(K)
    dropped = drop_oldest_rows(K_inv, 8)
    assert_near(dropped, torch.linalg.inv(K[8:, 8:]), atol=1e-10)
    torch.testing.assert_close(
        append_rows(dropped, K[8:, :8], K[:8, :8]).diagonal().sum(), K_inv.diagonal().sum()
    )
    grown = append_rows(torch.linalg.inv(K[:32, :32]), K[:32, 32:], K[32:, 32:])
    assert_near(grown, K_inv, atol=1e-10)


def test_posterior_interpolates_without_noise_and_forgets_far_away(
    generator: torch.Generator,
) -> None:
    draw = clusters(generator, spread=1.0)
    features, targets = draw(20)
    mean, variance = posterior(features, features, targets, RBF(), 1e-4)
    assert_near(mean, targets, atol=1e-5)
    assert variance.abs().max() < 1e-6
    mean, variance = posterior(100 + features, features, targets, RBF(), 1e-4)
    assert mean.abs().max() == 0
    assert (variance == 1).all()
