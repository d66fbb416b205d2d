"""Kernels learned while training: when, from what, and that nothing else changes."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.gp import NTK, RBF, ExactGP, NotPositiveDefiniteError
from tests.gp.streams import assert_near
from tests.refiners.outputs import CLASSES, ENGINES_OF_24, WIDTH, make, points, said, show

# so that there is something to learn
BADLY: dict[str, Any] = {"length_scale": 0.05, "noise_std": 1.0}


def learner(learn_steps: int, **options: Any) -> Any:
    return make("gp", **BADLY, learn="leave_one_out", learn_steps=learn_steps, **options)


def train(refiner: Any, generator: torch.Generator, steps: int) -> None:
    for _ in range(steps):
        show(refiner, *points(5, generator))


def length_scale(refiner: Any) -> float:
    return float(refiner.engine.kernel.length_scale)


def test_a_kernel_is_learned_every_so_many_steps(generator: torch.Generator) -> None:
    refiner = learner(4)
    seen = []
    for _ in range(9):
        train(refiner, generator, 1)
        seen.append(length_scale(refiner))
    assert seen[:3] == [0.05] * 3
    assert len(set(seen[3:7])) == 1
    assert seen[3] > 0.2
    assert refiner.learned["times"] >= 1
    assert refiner.learned["length_scale"] == pytest.approx(seen[-1])
    assert refiner.learned["noise_std"] == pytest.approx(refiner.engine.noise_std)


def test_after_learning_the_online_rule_goes_on_exactly(generator: torch.Generator) -> None:
    refiner = learner(6)
    train(refiner, generator, 10)
    engine = refiner.engine
    assert engine.kernel != RBF(length_scale=0.05)
    fresh = ExactGP(24, WIDTH, CLASSES, kernel=engine.kernel, noise_std=engine.noise_std)
    rows = engine.occupied.nonzero().squeeze(1)
    fresh.replace(rows, engine.features[rows], engine.targets[rows])
    queries = points(8, generator)[0]
    assert_near(engine.mean(queries), fresh.mean(queries), atol=1e-10)
    assert_near(engine.variance(queries), fresh.variance(queries), atol=1e-10)


@pytest.mark.parametrize("engine", sorted(ENGINES_OF_24))
def test_every_engine_goes_on_with_what_was_learned(
    engine: str, generator: torch.Generator
) -> None:
    refiner = learner(6, engine=ENGINES_OF_24[engine])
    train(refiner, generator, 8)
    assert length_scale(refiner) == pytest.approx(refiner.learned["length_scale"])
    assert length_scale(refiner) > 0.2
    assert float(refiner.logits(said(points(6, generator)[0])).abs().max()) > 0.1


def test_without_learning_nothing_is_kept_and_nothing_changes(generator: torch.Generator) -> None:
    plain, never = make("gp"), make("gp", learn="never", learn_steps=1)
    for _ in range(6):
        batch = points(5, generator)
        for refiner in (plain, never):
            show(refiner, *batch)
    queries = said(points(6, generator)[0])
    assert torch.equal(plain.logits(queries), never.logits(queries))
    assert not [name for name in never.state_dict() if "learn" in name]
    assert never.learned is None


def test_nothing_is_learned_from_too_few_rows(generator: torch.Generator) -> None:
    refiner = learner(1)
    features, _ = points(10, generator)
    show(refiner, features[:5], torch.tensor([0, 0, 1, 1, 2]))
    assert refiner.learned["times"] == 0, "fewer than two rows a class"
    other = learner(1)
    show(other, features, torch.zeros(10, dtype=torch.int64))
    assert other.learned["times"] == 0
    assert other.engine.noise_std == 1.0
    assert other.engine.kernel == RBF(length_scale=0.05)


def test_a_state_from_before_anything_was_learned_brings_the_configured_kernel_back(
    generator: torch.Generator,
) -> None:
    early, late = (learner(3) for _ in range(2))
    train(late, generator, 3)
    assert late.engine.kernel != RBF(length_scale=0.05)
    late.load_state_dict(early.state_dict())
    assert late.engine.kernel == RBF(length_scale=0.05)
    assert (late.engine.noise_std, len(late.engine)) == (1.0, 0)


def test_an_empty_copy_has_what_was_learned(generator: torch.Generator) -> None:
    refiner = learner(4)
    train(refiner, generator, 4)
    other = refiner.empty_copy()
    assert other.learned == refiner.learned
    assert other.engine.kernel == refiner.engine.kernel
    assert len(other.engine) == 0


def test_a_kernel_without_a_length_learns_its_noise(generator: torch.Generator) -> None:
    refiner = make("gp", kernel="ntk", noise_std=3.0, learn="leave_one_out", learn_steps=4)
    train(refiner, generator, 4)
    assert isinstance(refiner.engine.kernel, NTK)
    assert set(refiner.learned) == {"times", "output_scale", "noise_std"}
    assert refiner.engine.noise_std / refiner.engine.kernel.output_scale**0.5 < 2


@pytest.mark.parametrize("refusals", [0, 2, 4])
def test_a_kernel_that_the_engine_refuses_is_tried_with_more_noise(
    refusals: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    refiner = learner(4)
    train(refiner, generator, 3)
    reanchor, asked = refiner.engine.reanchor, []

    def refuse(kernel: Any, noise_std: float) -> None:
        asked.append(noise_std)
        if len(asked) <= refusals:
            raise NotPositiveDefiniteError("cannot be inverted")
        reanchor(kernel, noise_std)

    monkeypatch.setattr(refiner.engine, "reanchor", refuse)
    train(refiner, generator, 1)
    assert [value / asked[0] for value in asked] == pytest.approx([1, 2, 4, 8][: refusals + 1])
    assert refiner.learned["times"] == int(refusals < 4)
    assert refiner.learned["noise_std"] == pytest.approx(refiner.engine.noise_std)
    assert (refiner.engine.kernel == RBF(length_scale=0.05)) == (refusals == 4)


@pytest.mark.parametrize("scales", [torch.zeros(CLASSES, 3), torch.full((1, 3), math.nan)])
def test_what_another_kind_of_run_learned_is_refused(scales: Tensor) -> None:
    refiner = make("gp", **BADLY, learn="leave_one_out")
    state = refiner.state_dict() | {"learner.log_scales": scales}
    with pytest.raises(ValueError, match=r"learned scales must be finite and have shape \(1, 3\)"):
        refiner.load_state_dict(state)
