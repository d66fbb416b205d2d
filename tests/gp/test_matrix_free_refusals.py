"""What the matrix-free engine refuses, and that a refused call leaves all as it was."""

import copy
import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from semigpc.gp import RBF, Clipped, MatrixFreeGP, NotConvergedError, matrix_free
from tests.gp.streams import clusters
from tests.gp.test_matrix_free import KERNEL, NOISE_STD, assert_within_tolerance, make

Call = Callable[[MatrixFreeGP, Tensor, Tensor], object]
HALF = {"targets": torch.ones(40, 4), "occupied": torch.ones(40, dtype=torch.bool)}
REFUSED: dict[str, tuple[Call, type[Exception], str]] = {
    "NaN": (lambda e, x, y: e.replace(torch.arange(3), x * math.nan, y), ValueError, "finite"),
    "slot": (lambda e, x, y: e.replace(torch.arange(38, 41), x, y), IndexError, r"\[0, 40\)"),
    "empty slot": (lambda e, *_: e.remove(torch.tensor([39])), IndexError, "slot 39 is empty"),
    "kernel": (lambda e, *_: e.reanchor(Clipped(KERNEL, 0.1), 0.3), ValueError, "exact engine"),
    "size": (lambda e, *_: e.load_state_dict(make(41).state_dict()), ValueError, r"\(41, 16\)"),
    "damage": (lambda e, *_: e.load_state_dict(damaged(e)), ValueError, "targets are not.*damaged"),
    "half a state": (lambda e, *_: e.load_state_dict(HALF), ValueError, "features are missing"),
    "an empty state": (lambda e, *_: e.load_state_dict({}), RuntimeError, "Missing key"),
}


def damaged(engine: MatrixFreeGP) -> dict[str, Tensor]:
    return engine.state_dict() | {"targets": torch.full((40, 4), math.nan)}


def unchanged(engine: MatrixFreeGP, before: list[Tensor]) -> bool:
    return all(map(torch.equal, engine.buffers(), before))


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_call_says_why_and_changes_nothing(case: str, generator: torch.Generator) -> None:
    engine, draw = make(40), clusters(generator)
    engine.replace(torch.arange(35), *draw(35))
    before, health = [tensor.clone() for tensor in engine.buffers()], copy.copy(engine.health)
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call(engine, *draw(3))
    assert unchanged(engine, before)
    assert engine.health == health
    assert engine.kernel == KERNEL


def test_what_no_engine_can_be_made_of_is_refused() -> None:
    with pytest.raises(ValueError, match=r"positive definite kernel.*got Clipped"):
        make(10, kernel=Clipped(KERNEL, 0.1))
    for rank in (0, 2.5):
        with pytest.raises(ValueError, match=f"rank must be an integer of at least 1; got {rank}"):
            make(10, rank=rank)
    for tolerance in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=f"tolerance must .*; got {tolerance}"):
            make(10, tolerance=tolerance)
    with pytest.raises(ValueError, match="noise_std must be a positive"):
        make(10, noise_std=0.0)


def test_a_tolerance_that_is_not_reached_is_an_error_that_leaves_all_as_it_was(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    engine, draw = make(60, tolerance=1e-6, rank=4), clusters(generator)
    engine.replace(torch.arange(50), *draw(50))
    state = engine.state_dict()
    before = [tensor.clone() for tensor in engine.buffers()]
    rows = draw(20)
    residual, drift = engine.health.residual, engine.health.drift
    other = make(60, tolerance=1e-6)
    other.replace(torch.arange(60), *draw(60))
    monkeypatch.setattr(matrix_free, "MAX_ITERATIONS", 2)
    message = r"did not reach tolerance=1e-06 .*noise_std=0\.3 .*rank \(now 4\)"
    for call in (
        lambda: engine.replace(torch.arange(40, 60), *rows),
        lambda: engine.remove(torch.arange(0, 50, 2)),
        engine.rebuild,
        lambda: engine.reanchor(RBF(length_scale=0.4), NOISE_STD),
        lambda: engine.load_state_dict(other.state_dict()),
    ):
        with pytest.raises(NotConvergedError, match=message):
            call()
        assert unchanged(engine, before)
        assert (engine.kernel, engine.noise_std, len(engine)) == (KERNEL, NOISE_STD, 50)
        health = engine.health
        assert (health.residual, health.drift, health.steps) == (residual, drift, 1)
    monkeypatch.undo()
    engine.replace(torch.arange(40, 60), *rows)
    assert_within_tolerance(engine)
    engine.load_state_dict({name: value.clone() for name, value in state.items()})
    assert_within_tolerance(engine)


def test_a_kernel_that_cannot_be_solved_with_leaves_alpha_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    engine, (features, targets) = make(60), clusters(generator)(60)
    engine.replace(torch.arange(60), features[:1].repeat(60, 1), targets)
    # alpha is not that of a cold start
    engine.replace(torch.arange(5), features[1:6], targets[1:6])
    alpha, mean = engine.alpha.clone(), engine.mean(features)
    cold_starts: list[float] = []
    rebuild = engine._rebuild

    def counted() -> None:
        cold_starts.append(engine.noise_std)
        rebuild()

    monkeypatch.setattr(engine, "_rebuild", counted)
    with pytest.raises(NotConvergedError, match="noise_std=1e-09 is lost in rounding"):
        engine.reanchor(KERNEL, 1e-9)
    assert torch.equal(engine.alpha, alpha)
    assert torch.equal(engine.mean(features), mean)
    assert cold_starts == [1e-9]  # the old alpha is put back and not solved for again
    engine.rebuild()
    assert not torch.equal(engine.alpha, alpha)


@pytest.mark.parametrize("call", ["replace", "reanchor"])
def test_an_interrupted_solve_leaves_all_as_it_was(
    call: str, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    engine, draw = make(60), clusters(generator)
    engine.replace(torch.arange(50), *draw(50))
    before = [tensor.clone() for tensor in engine.buffers()]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(matrix_free, "solve", interrupted)
    monkeypatch.setattr(engine, "_relax", interrupted)
    changed = {"replace": (torch.arange(40, 60), *draw(20)), "reanchor": (RBF(), 0.5)}
    with pytest.raises(KeyboardInterrupt):
        getattr(engine, call)(*changed[call])
    assert unchanged(engine, before)
    assert (engine.kernel, engine.noise_std, len(engine)) == (KERNEL, NOISE_STD, 50)
    monkeypatch.undo()
    engine.replace(torch.arange(40, 60), *draw(20))
    assert_within_tolerance(engine)


def test_a_tolerance_beyond_float32_is_an_error_that_names_the_way_out(
    generator: torch.Generator,
) -> None:
    engine = make(200, tolerance=1e-8, dtype=torch.float32, kernel=RBF(length_scale=1.0))
    draw = clusters(generator, dtype=torch.float32)
    with pytest.raises(NotConvergedError, match=r"tolerance=1e-08 .*use dtype=torch\.float64"):
        engine.replace(torch.arange(200), *draw(200))
    assert len(engine) == 0


@pytest.mark.slow
@pytest.mark.parametrize("size", [60, 400])
@pytest.mark.parametrize("noise_std", [1e-9, 1e-8, 1e-7, 1e-6])
def test_noise_that_is_lost_in_rounding_is_one_error_whose_advice_helps(
    noise_std: float, size: int, generator: torch.Generator
) -> None:
    """Rows coincide, of several classes: which step fails depends on noise, size and rounding."""
    engine, (features, targets) = make(size, noise_std=noise_std), clusters(generator)(size)
    rows = (torch.arange(size), features[:1].repeat(size, 1), targets)
    message = rf"^noise_std={noise_std:g} is lost in rounding.*Raise noise_std"
    with pytest.raises(NotConvergedError, match=message) as raised:
        engine.replace(*rows)
    assert len(engine) == 0
    assert not engine.alpha.any()
    advice = re.search(r"to (\S+) or more\.$", str(raised.value))
    assert advice is not None
    heeding = make(size, noise_std=float(advice[1]))
    heeding.replace(*rows)
    assert len(heeding) == size
