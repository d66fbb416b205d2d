"""What the engine refuses, and that a refused call leaves it as it was."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from semigpc.gp import ExactGP
from tests.gp.streams import clusters

FEATURES, TARGETS = torch.randn(3, 16, generator=torch.Generator().manual_seed(1)), torch.eye(3, 4)


def with_value(tensor: Tensor, value: float) -> Tensor:
    spoilt = tensor.clone()
    spoilt[1, 2] = value
    return spoilt


def slots(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


REFUSED: dict[str, tuple[Callable[[ExactGP], object], type[Exception], str]] = {
    "NaN feature": (lambda e: e.replace(slots(0, 1, 2), with_value(FEATURES, math.nan), TARGETS), ValueError, "features must be finite, and so must their squares; row 1 holds nan"),
    "infinite feature": (lambda e: e.replace(slots(0, 1, 2), with_value(FEATURES, math.inf), TARGETS), ValueError, "features must be finite, and so must their squares; row 1 holds inf"),
    "NaN target": (lambda e: e.replace(slots(0, 1, 2), FEATURES, with_value(TARGETS, math.nan)), ValueError, "targets must be finite, and so must their squares; row 1"),
    "feature width": (lambda e: e.replace(slots(0, 1, 2), FEATURES[:, :9], TARGETS), ValueError, r"features must have shape \(3, 16\); got \(3, 9\)"),
    "too few features": (lambda e: e.replace(slots(0, 1, 2), FEATURES[:2], TARGETS), ValueError, r"features must have shape \(3, 16\); got \(2, 16\)"),
    "labels for targets": (lambda e: e.replace(slots(0, 1, 2), FEATURES, torch.tensor([0, 1, 2])), ValueError, r"targets must have shape \(3, 4\); got \(3,\)\. One-hot"),
    "integer features": (lambda e: e.replace(slots(0, 1, 2), FEATURES.long(), TARGETS), TypeError, r"features must be floating point; got torch\.int64"),
    "integer targets": (lambda e: e.replace(slots(0, 1, 2), FEATURES, TARGETS.long()), TypeError, r"targets must be floating point.*\.float\(\)"),
    "slot too large": (lambda e: e.replace(slots(0, 1, 40), FEATURES, TARGETS), IndexError, r"slots must lie in \[0, 40\); got 0\.\.40"),
    "negative slot": (lambda e: e.replace(slots(0, 1, -1), FEATURES, TARGETS), IndexError, r"slots must lie in \[0, 40\); got -1\.\.1"),
    "repeated slot": (lambda e: e.replace(slots(5, 1, 5), FEATURES, TARGETS), ValueError, "slot 5 is given twice"),
    "float slots": (lambda e: e.replace(slots(0, 1, 2).float(), FEATURES, TARGETS), TypeError, "slots must be integers"),
    "no rows": (lambda e: e.replace(slots(), FEATURES[:0], TARGETS[:0]), ValueError, "slots must be a vector of at least one slot"),
    "slots of two dimensions": (lambda e: e.replace(torch.zeros(3, 1).long(), FEATURES, TARGETS), ValueError, r"at least one slot; got shape \(3, 1\)"),
    "a list for slots": (lambda e: e.replace([0, 1, 2], FEATURES, TARGETS), TypeError, r"slots must be a torch\.Tensor; got list\. torch\.as_tensor"),  # type: ignore[arg-type]
    "an array for features": (lambda e: e.replace(slots(0, 1, 2), FEATURES.numpy(), TARGETS), TypeError, "features must be a torch.Tensor; got ndarray"),  # type: ignore[arg-type]
    "a list for targets": (lambda e: e.replace(slots(0, 1, 2), FEATURES, TARGETS.tolist()), TypeError, "targets must be a torch.Tensor; got list"),  # type: ignore[arg-type]
    "targets whose squares overflow": (lambda e: e.replace(slots(0, 1, 2), FEATURES, with_value(TARGETS.double(), 1e200)), ValueError, "targets must be finite, and so must their squares; row 1"),
    "features whose squares overflow": (lambda e: e.replace(slots(0, 1, 2), with_value(FEATURES.double(), 1e200), TARGETS), ValueError, r"row 1 holds 1e\+200 in torch\.float64"),
    "queries whose squares overflow": (lambda e: e.mean(with_value(FEATURES.double(), 1e200)), ValueError, "queries must be finite, and so must their squares"),
    "a NaN in the offset": (lambda e: e.mean(FEATURES, offset=torch.full((4,), math.nan)), ValueError, "offset must be finite"),
    "a list for classes": (lambda e: e.explain(FEATURES, [0, 1, 2]), TypeError, "classes must be a torch.Tensor; got list"),  # type: ignore[arg-type]
    "float classes": (lambda e: e.explain(FEATURES, torch.zeros(3)), TypeError, "classes must be int64 or int32"),
    "removing a number": (lambda e: e.remove(0), TypeError, "slots must be a torch.Tensor; got int"),  # type: ignore[arg-type]
    "a state without its parts": (lambda e: e.load_state_dict({}), RuntimeError, "Missing key"),
    "removing an empty slot": (lambda e: e.remove(slots(0, 39)), IndexError, "slots must be occupied; slot 39 is empty"),
    "leaving out an empty slot": (lambda e: e.leave_block_out(slots(39)), IndexError, "slot 39 is empty"),
    "NaN query": (lambda e: e.mean(with_value(FEATURES, math.nan)), ValueError, "queries must be finite, and so must their squares"),
    "query width": (lambda e: e.variance(FEATURES[:, :4]), ValueError, r"queries must have shape \(any, 16\); got \(3, 4\)"),
    "offset shape": (lambda e: e.mean(FEATURES, offset=torch.zeros(3)), ValueError, r"offset must have shape \(4,\); got \(3,\)"),
    "class out of range": (lambda e: e.explain(FEATURES, slots(0, 1, 4)), IndexError, r"classes must lie in \[0, 4\); got 0\.\.4"),
    "classes for other queries": (lambda e: e.explain(FEATURES, slots(0, 1)), ValueError, r"classes must have shape \(3,\)"),
    "another device": (lambda e: e.mean(FEATURES.to("meta")), ValueError, "queries must be on cpu, where the engine is; got meta"),
    "a state of another size": (lambda e: e.load_state_dict(ExactGP(41, 16, 4).state_dict()), ValueError, r"have shape \(16, 41\)"),
    "a damaged state": (lambda e: e.load_state_dict(e.state_dict() | {"targets": torch.full((40, 4), math.nan)}), ValueError, "damaged"),
}  # fmt: skip


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
    with pytest.raises(
        ValueError,
        match=r"noise_std must be a positive finite number \(at least 1e-12\), or K cannot be inverted; got",
    ):
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
    torch.testing.assert_close(engine.mean(FEATURES), before, rtol=0, atol=1e-5)
