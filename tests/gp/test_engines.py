"""What every engine does alike; how near each is to a dense solve stands in its own file."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.gp import RBF, EnsembleGP, ExactGP, Kernel, MatrixFreeGP, NoExpansionError
from tests.gp.streams import Draw, assert_near, clusters

CAPACITY, WIDTH, CLASSES = 40, 16, 4
KERNEL = RBF(length_scale=0.5)
OFFSET = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
Engine = ExactGP | MatrixFreeGP | EnsembleGP
Make = Callable[..., Engine]


def exact(kernel: Kernel = KERNEL, noise_std: float = 0.3) -> ExactGP:
    return ExactGP(CAPACITY, WIDTH, CLASSES, kernel=kernel, noise_std=noise_std)


def solved(kernel: Kernel = KERNEL, noise_std: float = 0.3) -> MatrixFreeGP:
    options: dict[str, Any] = {"rank": 32, "tolerance": 1e-8, "dtype": torch.float64}
    return MatrixFreeGP(CAPACITY, WIDTH, CLASSES, kernel=kernel, noise_std=noise_std, **options)


def ensemble(combine: Any, kernel: Kernel = KERNEL, noise_std: float = 0.3) -> EnsembleGP:
    def member(capacity: int) -> ExactGP:
        return ExactGP(capacity, WIDTH, CLASSES, kernel=kernel, noise_std=noise_std)

    options: dict[str, Any] = {"members": 3, "combine": combine, "stripe": 4}
    return EnsembleGP(CAPACITY, WIDTH, CLASSES, make=member, **options)


def weighted(*arguments: Any) -> EnsembleGP:
    return ensemble("precision", *arguments)


def averaged(*arguments: Any) -> EnsembleGP:
    return ensemble("mean", *arguments)


@pytest.fixture(params=[exact, solved, weighted, averaged])
def make(request: pytest.FixtureRequest) -> Make:
    chosen: Make = request.param
    return chosen


@pytest.fixture
def draw(generator: torch.Generator) -> Draw:
    return clusters(generator)


def test_an_empty_engine_answers_with_the_prior(make: Make, draw: Draw) -> None:
    engine = make()
    features, targets = draw(5)
    for _ in range(2):
        assert len(engine) == 0
        assert torch.equal(engine.mean(features), torch.zeros(5, CLASSES).double())
        assert torch.equal(engine.variance(features), torch.ones(5).double())
        assert not engine.explain(features, torch.zeros(5, dtype=torch.int64)).any()
        engine.rebuild()
        engine.replace(torch.arange(3, 8), features, targets)
        engine.remove(torch.arange(3, 8))
    assert engine.mean(features[:0]).shape == (0, CLASSES)
    assert engine.variance(features[:0]).shape == (0,)


def test_reasons_sum_to_the_mean(make: Make, draw: Draw) -> None:
    engine = make()
    engine.replace(torch.arange(5, 31), *draw(26))
    queries = draw(6)[0]
    classes = torch.arange(6) % CLASSES
    reasons = engine.explain(queries, classes)
    assert reasons.shape == (6, CAPACITY)
    own = engine.mean(queries).gather(1, classes.unsqueeze(1)).squeeze(1)
    assert_near(reasons.sum(dim=1), own, atol=1e-12)
    assert not reasons[:, ~engine.occupied].any()
    assert reasons[:, engine.occupied].all()


@pytest.mark.parametrize("rows", [8, CAPACITY])  # 8: one member of an ensemble holds nothing
def test_an_offset_equals_subtracting_it_from_every_target(
    rows: int, make: Make, draw: Draw
) -> None:
    engine, shifted = make(), make()
    features, targets = draw(rows)
    engine.replace(torch.arange(rows), features, targets)
    shifted.replace(torch.arange(rows), features, targets - OFFSET)
    queries = draw(6)[0]
    mean = engine.mean(queries, offset=OFFSET)
    assert_near(mean, shifted.mean(queries), atol=1e-6 if make is solved else 1e-10)
    if make is weighted:
        with pytest.raises(NoExpansionError, match="combine='mean'"):
            engine.expansion()
        return
    points, weights = engine.expansion(offset=OFFSET)
    assert len(points) == rows
    assert_near(KERNEL(queries, points) @ weights, mean, atol=1e-12)


@pytest.mark.parametrize("held", [12, 20])  # a buffer that is still filling too
def test_the_mean_is_differentiable_also_after_later_changes(
    held: int, make: Make, draw: Draw
) -> None:
    engine = make()
    engine.replace(torch.arange(20), *draw(20))
    engine.remove(torch.arange(held, 20))
    queries = draw(3)[0].requires_grad_()
    if make is not weighted:  # its gradient holds the members' weights still
        assert torch.autograd.gradcheck(engine.mean, queries)
    (expected,) = torch.autograd.grad(engine.mean(queries).square().sum(), queries)
    loss = engine.mean(queries).square().sum()
    engine.replace(torch.arange(20), *draw(20))
    (later,) = torch.autograd.grad(loss, queries)
    assert torch.equal(later, expected)


def test_reanchoring_equals_having_had_that_kernel_always(make: Make, draw: Draw) -> None:
    other = (RBF(length_scale=0.9), 0.5)
    engine, fresh = make(), make(*other)
    rows, batch, queries = draw(CAPACITY), draw(8), draw(5)[0]
    for one in (engine, fresh):
        one.replace(torch.arange(CAPACITY), *rows)
    engine.reanchor(*other)
    assert (engine.kernel, engine.noise_std) == other
    for _ in range(2):
        assert_near(engine.mean(queries), fresh.mean(queries), atol=1e-7)
        assert_near(engine.variance(queries), fresh.variance(queries), atol=1e-7)
        for one in (engine, fresh):
            one.replace(torch.arange(8), *batch)


def test_a_restored_engine_goes_on_bit_for_bit(make: Make, draw: Draw) -> None:
    engine, restored = make(), make()
    for step in range(12):
        engine.replace((torch.arange(7) + 7 * step) % CAPACITY, *draw(7))
    engine.rebuild()
    state = {name: value.clone() for name, value in engine.state_dict().items()}
    size = sum(value.nbytes for value in state.values())
    assert size < 4 * CAPACITY * (WIDTH + CLASSES) * 8  # no N x N matrix in it
    model = torch.nn.ModuleDict({"gp": restored})  # as a part of a model
    model.load_state_dict({f"gp.{name}": value for name, value in state.items()})
    assert len(restored) == len(engine)
    assert torch.equal(restored.occupied, engine.occupied)
    batches, queries = [draw(7) for _ in range(30)], draw(5)[0]
    for one in (engine, restored):
        for step, batch in enumerate(batches):
            one.replace((torch.arange(7) + 7 * step) % CAPACITY, *batch)
    assert torch.equal(engine.mean(queries), restored.mean(queries))


def pickled(engine: Engine) -> Any:
    return pickle.loads(pickle.dumps(engine))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
@pytest.mark.parametrize("build", [exact, solved])
def test_a_duplicate_changes_by_itself(
    build: Make, duplicate: Callable[[Engine], Engine], draw: Draw
) -> None:
    engine = build()
    engine.replace(torch.arange(CAPACITY), *draw(CAPACITY))
    queries, rows = draw(5)[0], draw(8)
    before, other = engine.mean(queries), duplicate(engine)
    assert torch.equal(other.mean(queries), before)
    other.replace(torch.arange(8), *rows)
    assert torch.equal(engine.mean(queries), before)
    engine.replace(torch.arange(8), *rows)
    assert torch.equal(engine.mean(queries), other.mean(queries))


def test_mixed_precision_around_the_engine_does_not_reach_it(make: Make, draw: Draw) -> None:
    plain, surrounded = make(), make()
    features, targets = draw(CAPACITY)
    plain.replace(torch.arange(CAPACITY), features, targets)
    model = torch.nn.Sequential(surrounded).half().to(torch.bfloat16)
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            surrounded.replace(torch.arange(CAPACITY), features, targets)
            mean = surrounded.mean(features)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(precision)
    assert surrounded.features.dtype == torch.float64
    assert model[0] is surrounded
    assert torch.equal(mean, plain.mean(features))


@pytest.mark.parametrize("ask", ["mean", "variance"])
def test_answers_come_in_the_dtype_of_the_question(ask: str, make: Make, draw: Draw) -> None:
    engine = make()
    engine.replace(torch.arange(20), *draw(20))
    queries: Tensor = draw(3)[0]
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert getattr(engine, ask)(queries.to(dtype)).dtype == dtype
