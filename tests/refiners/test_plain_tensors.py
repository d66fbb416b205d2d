"""``probs`` and ``remember``: SemiGPC for loops that know nothing of our types."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.refiners import GaussianProcessRefiner, GPConfig, auto_logit_scale
from tests.refiners.outputs import (
    CLASSES,
    WIDTH,
    make,
    paper_scales,
    points,
    said,
    show,
    state_of,
    unchanged,
)


def by_hand(memory: list[tuple[list[float], int]], queries: Tensor, scale: float) -> Tensor:
    """softmax(lambda k(h, h_Q) (K + sigma^2 I)^-1 y_Q), by entries, with l^2 = sigma^2 = 0.1."""

    def unit(row: list[float]) -> list[float]:
        length = math.sqrt(sum(value**2 for value in row))
        return [value / length for value in row]

    def kernel(a: list[float], b: list[float]) -> float:
        return math.exp(-sum((u - v) ** 2 for u, v in zip(a, b, strict=True)) / (2 * 0.1))

    stored = [unit(row) for row, _ in memory]
    asked = [unit(query) for query in queries.tolist()]
    table = partial(torch.tensor, dtype=torch.float64)
    K = table([[kernel(a, b) for b in stored] for a in stored])
    K = K + 0.1 * torch.eye(len(stored), dtype=torch.float64)
    Y = table([[float(label == c) for c in range(CLASSES)] for _, label in memory])
    k = table([[kernel(query, row) for row in stored] for query in asked])
    return torch.softmax(scale * k @ torch.linalg.solve(K, Y), dim=1)


def test_three_steps_of_a_plain_loop_follow_the_equations(generator: torch.Generator) -> None:
    config = GPConfig(buffer_size=12, warmup_steps=0, **paper_scales())
    refiner = GaussianProcessRefiner(config, WIDTH, CLASSES)
    memory: list[tuple[list[float], int]] = []
    for _ in range(3):
        features, labels = points(5, generator)
        refiner.remember(features, labels)
        memory = [*memory, *zip(features.tolist(), labels.tolist(), strict=True)][-12:]
        queries = points(4, generator)[0]
        expected = by_hand(memory, queries, auto_logit_scale(CLASSES))
        torch.testing.assert_close(refiner.probs(queries), expected, rtol=0, atol=1e-9)
    assert (len(refiner.buffer), int(refiner.placement.steps)) == (12, 3)


def test_in_the_warm_up_the_loop_keeps_its_own_opinion_and_the_gp_alone_still_answers(
    generator: torch.Generator,
) -> None:
    refiner = make("gp", warmup_steps=2)
    own = torch.eye(CLASSES)
    queries = points(3, generator)[0].float()
    for _ in range(2):
        assert refiner.probs(queries, own=own) is own
        refiner.remember(*points(5, generator))
        assert float((refiner.probs(queries) - 1 / CLASSES).abs().max()) > 0.01
    torch.testing.assert_close(refiner.probs(queries, own=own), refiner.probs(queries))


@pytest.mark.parametrize(
    "options",
    [{}, {"l2norm": False}, {"feature": "projection"}, {"balanced": True}, {"blend": 0.25}],
)
def test_both_ways_in_are_one(options: dict[str, Any], generator: torch.Generator) -> None:
    """Our algorithms call refine and observe; a plain loop calls probs and remember."""
    ours, plain = make("gp", **options), make("gp", **options)
    own = torch.full((3, CLASSES), 1 / CLASSES)
    for _ in range(3):
        features, labels = points(9, generator)
        show(ours, features, labels)
        queries = points(3, generator)[0]
        shown, asked = features, queries
        if "feature" in options:
            shown, asked = (said(x).heads["projection"] for x in (features, queries))
        plain.remember(shown, labels, torch.arange(9))
        assert torch.equal(plain.probs(asked, own=own), ours.refine("semantic", said(queries), own))
    state = plain.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in ours.state_dict().items())


def test_steps_that_are_remembered_are_steps_of_learning(generator: torch.Generator) -> None:
    refiner = make("gp", learn="leave_one_out", learn_steps=2)
    refiner.remember(*points(12, generator))
    assert refiner.learned["times"] == 0
    refiner.remember(*points(12, generator))
    assert refiner.learned["times"] == 1


def test_half_precision_is_taken_and_no_gradient_is_given(generator: torch.Generator) -> None:
    refiner = make("gp")
    features, labels = points(6, generator)
    refiner.remember(features.bfloat16().requires_grad_(), labels)
    answer = refiner.probs(features.bfloat16().requires_grad_())
    assert (answer.dtype, answer.requires_grad) == (torch.float32, False)
    own = torch.ones(6, CLASSES, dtype=torch.float16)
    assert refiner.probs(features.bfloat16(), own=own).dtype == torch.float16


def bad(features: Tensor, row: int = 0) -> Tensor:
    features = features.clone()
    features[row, 0] = torch.nan
    return features


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda x, y: (x[:, 1:], y), r"features must have shape \(5, 8\); got \(5, 7\)"),
        (lambda x, y: (x[:4], y), r"features must have shape \(5, 8\); got \(4, 8\)"),
        (lambda x, y: (x, y[:4]), r"features must have shape \(4, 8\); got \(5, 8\)"),
        (lambda x, y: (bad(x), y), "features must be finite"),
        (lambda x, y: (x, y + CLASSES), r"labels must lie in \[0, 3\)"),
        (lambda x, y: (x, y.float()), "labels must be integers"),
        (lambda x, y: (x[:0], y[:0]), "at least one label"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_and_changes_nothing(
    change: Any, complaint: str, generator: torch.Generator
) -> None:
    refiner = make("gp", balanced=True)
    refiner.remember(*points(8, generator))
    queries = points(4, generator)[0]
    before = state_of(refiner)
    answer = refiner.probs(queries)
    with pytest.raises((TypeError, ValueError), match=complaint):
        refiner.remember(*change(*points(5, generator)))
    assert unchanged(refiner, before)
    assert torch.equal(refiner.probs(queries), answer)


def test_an_opinion_of_other_rows_is_refused(generator: torch.Generator) -> None:
    queries = points(4, generator)[0]
    with pytest.raises(ValueError, match=r"own must have shape \(4, 3\).*got \(3, 3\)"):
        make("gp").probs(queries, own=torch.eye(CLASSES))
