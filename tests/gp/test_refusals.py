"""What the engine refuses, and that a refused call leaves it as it was."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.gp import ExactGP
from tests.gp.streams import assert_near, clusters

FEATURES = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
TARGETS = torch.eye(3, 4)


def with_value(tensor: Tensor, value: float) -> Tensor:
    spoilt = tensor.clone()
    spoilt[1, 2] = value
    return spoilt


def slots(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


SLOTS = slots(0, 1, 2)
NAN, INF, HUGE = math.nan, math.inf, 1e200
# slots, features, targets, the error and what it says
REPLACED: dict[str, tuple[Any, Any, Any, type[Exception], str]] = {
    "NaN": (SLOTS, with_value(FEATURES, NAN), TARGETS, ValueError, "features.*row 1 holds nan"),
    "infinity": (SLOTS, with_value(FEATURES, INF), TARGETS, ValueError, "row 1 holds inf"),
    "NaN target": (SLOTS, FEATURES, with_value(TARGETS, NAN), ValueError, "targets.*row 1"),
    "width": (SLOTS, FEATURES[:, :9], TARGETS, ValueError, r"features.*\(3, 16\); got \(3, 9\)"),
    "too few": (SLOTS, FEATURES[:2], TARGETS, ValueError, r"\(3, 16\); got \(2, 16\)"),
    "labels": (SLOTS, FEATURES, SLOTS, ValueError, r"targets.*\(3, 4\); got \(3,\)\. One-hot"),
    "integers": (SLOTS, FEATURES.long(), TARGETS, TypeError, "floating point; got torch.int64"),
    "integer targets": (SLOTS, FEATURES, TARGETS.long(), TypeError, r"targets.*\.float\(\)"),
    "large slot": (slots(0, 1, 40), FEATURES, TARGETS, IndexError, r"\[0, 40\); got 0\.\.40"),
    "negative slot": (slots(0, 1, -1), FEATURES, TARGETS, IndexError, r"\[0, 40\); got -1\.\.1"),
    "repeated slot": (slots(5, 1, 5), FEATURES, TARGETS, ValueError, "slot 5 is given twice"),
    "float slots": (SLOTS.float(), FEATURES, TARGETS, TypeError, "slots must be integers"),
    "no rows": (slots(), FEATURES[:0], TARGETS[:0], ValueError, "at least one slot"),
    "matrix": (SLOTS[:, None], FEATURES, TARGETS, ValueError, r"got shape \(3, 1\)"),
    "list of slots": ([0, 1, 2], FEATURES, TARGETS, TypeError, "slots.*got list.*as_tensor"),
    "array": (SLOTS, FEATURES.numpy(), TARGETS, TypeError, "features.*Tensor; got ndarray"),
    "list of targets": (SLOTS, FEATURES, TARGETS.tolist(), TypeError, "targets.*got list"),
    "huge target": (SLOTS, FEATURES, with_value(TARGETS.double(), HUGE), ValueError, "row 1"),
    "huge": (SLOTS, with_value(FEATURES.double(), HUGE), TARGETS, ValueError, r"holds 1e\+200"),
}
CALLS: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "huge query": (lambda e: e.mean(with_value(FEATURES.double(), HUGE)), ValueError, "queries"),
    "NaN offset": (lambda e: e.mean(FEATURES, offset=torch.full((4,), NAN)), ValueError, "offset"),
    "list of classes": (lambda e: e.explain(FEATURES, [0, 1, 2]), TypeError, "classes.*got list"),
    "float classes": (lambda e: e.explain(FEATURES, torch.zeros(3)), TypeError, "int64 or int32"),
    "removing a number": (lambda e: e.remove(0), TypeError, "slots.*Tensor; got int"),
    "removing a matrix": (lambda e: e.remove(SLOTS[:, None]), ValueError, r"got shape \(3, 1\)"),
    "removing nothing there": (lambda e: e.remove(slots(0, 39)), IndexError, "slot 39 is empty"),
    "leaving out": (lambda e: e.leave_block_out(slots(39)), IndexError, "slot 39 is empty"),
    "NaN query": (lambda e: e.mean(with_value(FEATURES, NAN)), ValueError, "queries must be"),
    "query width": (lambda e: e.variance(FEATURES[:, :4]), ValueError, r"any, 16\); got \(3, 4\)"),
    "offset": (lambda e: e.mean(FEATURES, offset=torch.zeros(3)), ValueError, r"got \(3,\)"),
    "class": (lambda e: e.explain(FEATURES, slots(0, 1, 4)), IndexError, r"\[0, 4\); got 0\.\.4"),
    "classes": (lambda e: e.explain(FEATURES, slots(0, 1)), ValueError, r"classes.*\(3,\)"),
    "device": (lambda e: e.mean(FEATURES.to("meta")), ValueError, "on cpu.*got meta"),
    "size": (lambda e: e.load_state_dict(larger()), ValueError, r"\(16, 41\)"),
    "damaged": (lambda e: e.load_state_dict(damaged(e)), ValueError, "damaged"),
}


def larger() -> dict[str, Any]:
    return ExactGP(41, 16, 4).state_dict()


def damaged(engine: ExactGP) -> dict[str, Any]:
    return engine.state_dict() | {"targets": torch.full((40, 4), NAN)}


def replacing(*rows: Any) -> Callable[[Any], object]:
    return lambda engine: engine.replace(*rows)


REFUSED = CALLS | {name: (replacing(*case[:3]), *case[3:]) for name, case in REPLACED.items()}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_call_says_why_and_changes_nothing(case: str, generator: torch.Generator) -> None:
    engine = ExactGP(40, 16, 4)
    draw = clusters(generator, dtype=torch.float32)
    for step in range(12):
        engine.replace((torch.arange(5) + 5 * step) % 35, *draw(5))
    tensors = [*engine.state_dict().values(), *engine.buffers()]
    before = [tensor.clone() for tensor in tensors]
    health, count, rank = copy.copy(engine.health), len(engine), engine.inverse.rank

    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call(engine)

    assert all(torch.equal(tensor, old) for tensor, old in zip(tensors, before, strict=True))
    assert (engine.health, len(engine), engine.inverse.rank) == (health, count, rank)


@pytest.mark.parametrize("noise_std", [0.0, -0.1, 1e-200, math.nan, math.inf])
def test_noise_must_be_positive(noise_std: float) -> None:
    with pytest.raises(ValueError, match=r"noise_std must be a positive.*1e-12.*; got"):
        ExactGP(10, 4, 2, noise_std=noise_std)


@pytest.mark.parametrize("sizes", [(0, 4, 2), (10, 0, 2), (10, 4, -1)])
def test_sizes_must_be_positive(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1; got"):
        ExactGP(*sizes)


def test_removing_nothing_is_no_change() -> None:
    engine = ExactGP(10, 16, 4)
    engine.remove(torch.zeros(0, dtype=torch.int64))
    assert engine.health.steps == 0


def test_a_state_that_cannot_be_inverted_leaves_the_engine_as_it_was(
    generator: torch.Generator,
) -> None:
    engine, noisier = ExactGP(40, 16, 4, noise_std=1e-9), ExactGP(40, 16, 4)
    engine.replace(torch.arange(20), *clusters(generator, spread=100.0, dtype=torch.float32)(20))
    before, state = engine.mean(FEATURES), copy.deepcopy(engine.state_dict())
    noisier.replace(torch.arange(40), torch.ones(40, 16), torch.ones(40, 4))
    with pytest.raises(ValueError, match="cannot be inverted"):
        engine.load_state_dict(noisier.state_dict())  # coincident points need noise
    assert all(torch.equal(value, state[name]) for name, value in engine.state_dict().items())
    assert_near(engine.mean(FEATURES), before, atol=1e-5)
