"""The engine equals a fresh solve, whatever has been done to it."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.references import kernel_matrix, posterior
from semigpc.gp import KERNELS, RBF, Clipped, Cosine, ExactGP, Kernel, Laplace
from semigpc.gp import tiles as tiles_module
from semigpc.refiners.buffers import BalancedBuffer, FIFOBuffer
from tests.gp.streams import clusters

WIDTH, CLASSES, NOISE_STD = 16, 4, 0.3


def make(capacity: int, kernel: Kernel | None = None) -> ExactGP:
    return ExactGP(capacity, WIDTH, CLASSES, kernel=kernel, noise_std=NOISE_STD)


def assert_true(engine: ExactGP, queries: Tensor, atol: float = 1e-10) -> None:
    """Mean, variance and leave-out answers equal those of a GP fitted afresh to what the engine
    holds.
    """
    held = engine.occupied
    features, targets = engine.features[held], engine.targets[held]
    mean, variance = posterior(queries, features, targets, engine.kernel, engine.noise_std)
    torch.testing.assert_close(engine.mean(queries), mean, rtol=0, atol=atol)
    torch.testing.assert_close(engine.variance(queries), variance.clamp_min(0), rtol=0, atol=atol)
    alpha = torch.linalg.solve(kernel_matrix(features, engine.kernel, engine.noise_std), targets)
    torch.testing.assert_close(engine.alpha[held], alpha, rtol=0, atol=10 * atol)
    slots = held.nonzero().squeeze(1)[:3]
    others = held.clone()
    others[slots] = False
    left_out, _ = posterior(
        engine.features[slots],
        engine.features[others],
        engine.targets[others],
        engine.kernel,
        engine.noise_std,
    )
    torch.testing.assert_close(engine.leave_block_out(slots).mean, left_out, rtol=0, atol=10 * atol)


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
    capacity = 120
    engine, draw = make(capacity), clusters(generator)
    buffer = (FIFOBuffer if order == "fifo" else BalancedBuffer)(capacity, CLASSES)
    queries = draw(40)[0]
    for step in range(5000):
        features, targets = draw(int(torch.randint(1, 9, (), generator=generator)))
        if order == "arbitrary":
            reach = min(capacity, 10 + step // 4)  # grows from nothing to full
            engine.replace(
                torch.randperm(reach, generator=generator)[: len(features)], features, targets
            )
        else:
            written = buffer.write(targets.argmax(dim=1))
            engine.replace(written.slots, features[written.rows], targets[written.rows])
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
    if isinstance(
        kernel, Clipped
    ):  # indefinite: exact to what its conditioning allows, by rebuilding where it must
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
    torch.testing.assert_close(engine.mean(features), before, rtol=0, atol=1e-12)


def test_permuting_the_slots_changes_nothing(generator: torch.Generator) -> None:
    draw = clusters(generator)
    features, targets = draw(40)
    queries = draw(10)[0]
    one, other = make(40), make(40)
    one.replace(torch.arange(40), features, targets)
    other.replace(torch.randperm(40, generator=generator), features, targets)
    torch.testing.assert_close(one.mean(queries), other.mean(queries), rtol=0, atol=1e-12)


def test_explanations_sum_to_the_mean(generator: torch.Generator) -> None:
    engine, draw = make(64), clusters(generator)
    engine.replace(torch.arange(40), *draw(40))
    queries = draw(10)[0]
    mean = engine.mean(queries)
    classes = mean.argmax(dim=1)
    weights = engine.explain(queries, classes)
    assert weights.shape == (10, 64)
    assert (weights[:, 40:] == 0).all()
    torch.testing.assert_close(weights.sum(dim=1), mean.amax(dim=1), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        engine.label_weights(queries) @ engine.targets, mean, rtol=0, atol=1e-12
    )


def test_leave_out_equals_asking_before_the_entries_went_in(generator: torch.Generator) -> None:
    engine, draw = make(64), clusters(generator)
    engine.replace(torch.arange(30), *draw(30))
    features, targets = draw(6)
    before = engine.mean(features)
    slots = torch.tensor([50, 31, 40, 33, 63, 35])
    engine.replace(slots, features, targets)
    torch.testing.assert_close(engine.leave_block_out(slots).mean, before, rtol=0, atol=1e-10)


def test_an_offset_equals_subtracting_it_from_every_target(generator: torch.Generator) -> None:
    engine, draw = make(50), clusters(generator)
    features, targets = draw(50)
    engine.replace(torch.arange(50), features, targets)
    engine.replace(torch.arange(10), *draw(10))
    queries, frequencies = draw(10)[0], engine.targets.mean(dim=0)
    expected, _ = posterior(
        queries, engine.features, engine.targets - frequencies, engine.kernel, NOISE_STD
    )
    torch.testing.assert_close(
        engine.mean(queries, offset=frequencies), expected, rtol=0, atol=1e-10
    )


def test_the_mean_is_differentiable_in_the_queries(generator: torch.Generator) -> None:
    engine, draw = make(20), clusters(generator)
    engine.replace(torch.arange(20), *draw(20))
    queries = draw(3)[0].requires_grad_()
    assert torch.autograd.gradcheck(engine.mean, queries)


@pytest.mark.parametrize("held", [12, 20])  # a buffer that is still filling too
def test_a_gradient_may_be_taken_after_the_buffer_has_changed(
    generator: torch.Generator, held: int
) -> None:
    engine, draw = make(20), clusters(generator)
    engine.replace(torch.arange(20), *draw(20))
    engine.remove(torch.arange(held, 20))
    queries = draw(3)[0].requires_grad_()
    again = queries.detach().clone().requires_grad_()
    engine.mean(again).square().sum().backward()
    loss = engine.mean(queries).square().sum()
    engine.replace(torch.arange(20), *draw(20))
    loss.backward()
    assert queries.grad is not None
    assert again.grad is not None
    assert torch.equal(queries.grad, again.grad)


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


def test_an_empty_engine_knows_nothing_and_says_so(generator: torch.Generator) -> None:
    engine, draw = make(20), clusters(generator)
    features, targets = draw(5)
    for _ in range(2):
        assert len(engine) == 0
        assert torch.equal(engine.mean(features), torch.zeros(5, CLASSES, dtype=torch.float64))
        assert torch.equal(engine.variance(features), torch.ones(5, dtype=torch.float64))
        assert torch.equal(
            engine.explain(features, torch.zeros(5, dtype=torch.int64)), torch.zeros(5, 20).double()
        )
        engine.replace(
            torch.arange(5), features, targets
        )  # and knows nothing again once all of it is removed
        engine.remove(torch.arange(5))


def test_no_queries_get_no_answers() -> None:
    engine = make(20)
    nothing = torch.zeros(0, WIDTH, dtype=torch.float64)
    assert engine.mean(nothing).shape == (0, CLASSES)
    assert engine.variance(nothing).shape == (0,)
    assert engine.label_weights(nothing).shape == (0, 20)


@pytest.mark.parametrize("ask", [ExactGP.mean, ExactGP.variance])
def test_answers_come_in_the_dtype_of_the_question(
    ask: Callable[[ExactGP, Tensor], Tensor], generator: torch.Generator
) -> None:
    engine, draw = ExactGP(20, WIDTH, CLASSES), clusters(generator, dtype=torch.float32)
    engine.replace(torch.arange(20), *draw(20))
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert ask(engine, draw(3)[0].to(dtype)).dtype == dtype


def test_mixed_precision_around_the_engine_does_not_reach_it(generator: torch.Generator) -> None:
    draw = clusters(generator, dtype=torch.float32)
    features, targets = draw(40)
    plain, surrounded = ExactGP(40, WIDTH, CLASSES), ExactGP(40, WIDTH, CLASSES)
    plain.replace(torch.arange(40), features, targets)
    model = torch.nn.Sequential(surrounded).half().to(torch.bfloat16)
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            surrounded.replace(torch.arange(40), features, targets)
            mean = surrounded.mean(features)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(precision)
    assert surrounded.features.dtype == torch.float64
    assert model[0] is surrounded
    assert torch.equal(mean, plain.mean(features))


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


def test_cosine_kernel_has_rank_of_the_features(generator: torch.Generator) -> None:
    """With more points than dimensions K alone is singular: the noise makes it invertible."""
    engine, draw = make(100, Cosine()), clusters(generator)
    engine.replace(torch.arange(100), *draw(100))
    assert_true(engine, draw(10)[0])


def test_the_state_is_all_there_and_the_inverse_is_rebuilt_on_load(
    generator: torch.Generator,
) -> None:
    draw = clusters(generator)
    engine, restored = make(60), make(60)
    for step in range(50):
        engine.replace((torch.arange(7) + 7 * step) % 60, *draw(7))
    engine.rebuild()
    state = {name: value.clone() for name, value in engine.state_dict().items()}
    assert (
        sum(value.nbytes for value in state.values()) < 4 * 60 * (WIDTH + CLASSES) * 8
    )  # no N x N matrix in it
    restored.load_state_dict(state)
    assert restored.health.steps == engine.health.steps
    assert len(restored) == len(engine)
    batches = [draw(7) for _ in range(30)]
    queries = draw(10)[0]
    for one in (engine, restored):
        for step, batch in enumerate(batches):
            one.replace((torch.arange(7) + 7 * step) % 60, *batch)
    assert torch.equal(engine.mean(queries), restored.mean(queries))  # bit for bit


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda engine: pickle.loads(pickle.dumps(engine))],
    ids=["copy", "pickle"],
)
def test_a_duplicate_goes_its_own_way(
    duplicate: Callable[[ExactGP], ExactGP], generator: torch.Generator
) -> None:
    engine, draw = make(40), clusters(generator)
    engine.replace(torch.arange(40), *draw(40))
    queries = draw(5)[0]
    before, other = engine.mean(queries), duplicate(engine)
    assert torch.equal(other.mean(queries), before)
    other.replace(torch.arange(8), *draw(8))
    assert_true(other, queries)
    assert torch.equal(engine.mean(queries), before)


def test_an_engine_inside_a_model_is_restored_with_it(generator: torch.Generator) -> None:
    draw = clusters(generator)
    queries = draw(5)[0]
    model, restored = torch.nn.ModuleDict({"gp": make(20)}), torch.nn.ModuleDict({"gp": make(20)})
    gp, gp_restored = model["gp"], restored["gp"]
    assert isinstance(gp, ExactGP)
    assert isinstance(gp_restored, ExactGP)
    gp.replace(torch.arange(12), *draw(12))
    restored.load_state_dict(model.state_dict())
    torch.testing.assert_close(gp_restored.mean(queries), gp.mean(queries), rtol=0, atol=1e-12)


def test_one_hot_integers_are_what_the_example_in_the_readme_says(
    generator: torch.Generator,
) -> None:
    features, targets = clusters(generator, dtype=torch.float32)(8)
    engine = ExactGP(8, WIDTH, CLASSES)
    engine.replace(torch.arange(8), features, F.one_hot(targets.argmax(dim=1), CLASSES).float())
    assert engine.mean(features).argmax(dim=1).equal(targets.argmax(dim=1))
