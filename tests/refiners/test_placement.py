"""Where, when and how much: one battery over the refiners with a memory."""

from typing import Any

import pytest
import torch

from semigpc.refiners import NoRefiner
from tests.refiners.outputs import CLASSES, batch_of, make, points, said, show, unit

with_memory = pytest.mark.parametrize("name", ["similarity", "gp"])


def answer(refiner: Any, queries: torch.Tensor, site: str = "semantic") -> torch.Tensor:
    own = torch.softmax(torch.arange(CLASSES, dtype=queries.dtype), dim=0).expand(len(queries), -1)
    probs: torch.Tensor = refiner.refine(site, said(queries), own)
    return probs


def is_own(probs: torch.Tensor) -> bool:
    own = torch.softmax(torch.arange(CLASSES, dtype=probs.dtype), dim=0)
    return torch.equal(probs, own.expand_as(probs))


@with_memory
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("push", ["before", "after"])
def test_a_refiner_is_silent_for_as_many_steps_as_the_warm_up_has(
    name: str, push: str, steps: int, generator: torch.Generator
) -> None:
    refiner = make(name, warmup_steps=steps, push=push)
    for number in range(5):
        features, labels = points(4, generator)
        refiner.observe("before", said(features), batch_of(features, labels))
        assert is_own(answer(refiner, features)) == (number < steps), number
        refiner.observe("after", said(features), batch_of(features, labels))
    assert len(refiner.buffer) == 20


@with_memory
@pytest.mark.parametrize("site", ["semantic", "aggregate", "final"])
def test_a_refiner_acts_at_its_site_alone(name: str, site: str, generator: torch.Generator) -> None:
    refiner = make(name, site=site)
    features, labels = points(9, generator)
    show(refiner, features, labels)
    for other in ("semantic", "aggregate", "final"):
        assert is_own(answer(refiner, features, other)) == (other != site)


@with_memory
def test_a_blend_lies_between_the_two_opinions(name: str, generator: torch.Generator) -> None:
    features, labels = points(12, generator)
    queries = points(5, generator)[0]
    probs = {}
    for blend in (0.0, 0.3, 1.0):
        refiner = make(name, blend=blend)
        show(refiner, features, labels)
        probs[blend] = answer(refiner, queries)
    torch.testing.assert_close(probs[0.3], 0.7 * probs[0.0] + 0.3 * probs[1.0])
    assert not torch.allclose(probs[0.0], probs[1.0], atol=0.01)


@with_memory
def test_the_projection_may_stand_in_for_the_feature(name: str, generator: torch.Generator) -> None:
    features, labels = points(12, generator)
    queries = points(5, generator)[0]
    turned, plain = make(name, feature="projection"), make(name)
    show(turned, features, labels)
    show(plain, features.roll(1, dims=1), labels)
    assert torch.equal(answer(turned, queries), answer(plain, queries.roll(1, dims=1)))


@with_memory
def test_answers_come_in_the_type_of_what_they_replace(
    name: str, generator: torch.Generator
) -> None:
    refiner = make(name)
    features, labels = points(12, generator, dtype=torch.float32)
    show(refiner, features.bfloat16(), labels)
    probs = answer(refiner, features.bfloat16())
    assert probs.dtype == torch.bfloat16
    assert not probs.requires_grad
    exact = make(name)
    show(exact, features.bfloat16().float(), labels)
    expected = answer(exact, features.bfloat16().float())
    torch.testing.assert_close(probs.float(), expected, rtol=0, atol=0.01)


@with_memory
def test_an_empty_memory_knows_nothing(name: str, generator: torch.Generator) -> None:
    probs = answer(make(name), points(5, generator)[0])
    torch.testing.assert_close(probs, torch.full_like(probs, 1 / CLASSES))


@with_memory
def test_nothing_that_is_remembered_needs_a_gradient(name: str, generator: torch.Generator) -> None:
    refiner = make(name)
    features, labels = points(6, generator)
    show(refiner, unit(features.requires_grad_()), labels)
    assert not any(value.requires_grad for value in refiner.state_dict().values())
    assert not answer(refiner, features).requires_grad


@with_memory
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"blend": 1.5}, "blend must lie in"),
        ({"blend": -0.1}, "blend must lie in"),
        ({"warmup_steps": -1}, "warmup_steps must not be negative"),
    ],
)
def test_a_placement_that_makes_no_sense_is_refused(
    name: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        make(name, **options)


def test_without_a_refiner_everything_comes_back_untouched(generator: torch.Generator) -> None:
    refiner = NoRefiner()
    features, labels = points(6, generator)
    output, probs = said(features), torch.full((6, CLASSES), 1 / CLASSES)
    assert refiner.classify(output) is output
    assert refiner.classify(output, labels) is output
    assert refiner.refine("semantic", output, probs) is probs
    refiner.observe("before", output, batch_of(features, labels))
    assert not refiner.observes
    assert not refiner.state_dict()
