"""CReST and CReST+ against their rules, worked out by hand and by plain loops."""

import math

import pytest
import torch
from torch import Tensor

from semigpc.addons import CReST, CReSTConfig, CReSTPlus, CReSTPlusConfig, Step, Survey
from semigpc.addons.crest import join_rates
from semigpc.types import Clock, ModelOutput, Task
from tests.algorithms.tiny import pair, stream

COUNTS = torch.tensor([3, 27, 8, 1])  # the largest class is not the first
TASK = Task(COUNTS, 5, 10, n_unlabeled=40, n_features=6)


def output(logits: Tensor) -> ModelOutput:
    return ModelOutput(logits, torch.zeros(len(logits), 6), {})


def survey(logits: Tensor) -> Survey:
    y = torch.repeat_interleave(torch.arange(4), COUNTS)
    return Survey(output(torch.zeros(len(y), 4)), y, output(logits))


def chosen_by_loops(logits: Tensor, power: float) -> list[int]:
    """The floor(|U_c| (n_{K+1-r} / n_1)^alpha) most confident of each predicted class."""
    counts = COUNTS.tolist()
    descending = sorted(counts, reverse=True)
    probs = torch.softmax(logits.double(), dim=1).tolist()
    given = [-1] * len(probs)
    for c, count in enumerate(counts):
        rank = descending.index(count) + 1
        rate = (descending[len(counts) - rank] / descending[0]) ** power
        members = [row for row, p in enumerate(probs) if p[c] == max(p)]
        members.sort(key=lambda row: -probs[row][c])
        for row in members[: math.floor(len(members) * rate)]:
            given[row] = c
    return given


def test_the_rarest_class_joins_whole_and_the_largest_least() -> None:
    rates = join_rates(COUNTS, 1 / 3)
    # by rank: 27, 8, 3, 1 -> (1/27)^(1/3), (3/27)^(1/3), (8/27)^(1/3), 1
    assert rates.tolist() == pytest.approx([2 / 3, 1 / 3, 9 ** (-1 / 3), 1])


@pytest.mark.parametrize("power", [1 / 3, 1.0, 0.0])
def test_the_surest_of_each_predicted_class_join_as_the_rule_says(power: float) -> None:
    addon = CReST(CReSTConfig(power=power), TASK)
    for seed in range(3):
        logits = 3 * torch.randn(40, 4, generator=torch.Generator().manual_seed(seed))
        assert addon.relabel(survey(logits)).tolist() == chosen_by_loops(logits, power)


def test_rates_go_by_labels_of_people_even_when_the_model_added_its_own() -> None:
    later = Task(torch.tensor([30, 30, 30, 30]), 5, 10, n_unlabeled=40, original_counts=COUNTS)
    logits = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    given = CReST(CReSTConfig(), later).relabel(survey(logits)).tolist()
    assert given == chosen_by_loops(logits, 1 / 3)


def test_a_class_nobody_is_put_into_adds_nobody() -> None:
    logits = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    logits[:, 3] = -50.0
    given = CReST(CReSTConfig(), TASK).relabel(survey(logits))
    assert 3 not in given.tolist()
    assert (given >= 0).any()


def test_crest_plus_aligns_to_shares_that_flatten_with_the_generations() -> None:
    """Three steps of g = 0 and three of g = 2, against SN(n^t) and a running mean in loops."""
    addon = CReSTPlus(CReSTPlusConfig(generations=3, momentum=0.9), TASK)
    batch = stream(1)[0]
    average: list[float] | None = None
    generator = torch.Generator().manual_seed(0)
    for generation in (0, 0, 0, 2, 2, 2):
        probs = torch.softmax(torch.randn(6, 4, generator=generator, dtype=torch.float64), dim=1)
        t = 1 - 0.5 * generation / 2
        powered = [(count / 39) ** t for count in COUNTS.tolist()]
        target = [value / sum(powered) for value in powered]
        mean = probs.mean(dim=0).tolist()
        average = [0.9 * a + 0.1 * m for a, m in zip(average or mean, mean, strict=True)]
        wanted = []
        for row in probs.tolist():
            scaled = [
                p * (q + 1e-6) / (r + 1e-6) for p, q, r in zip(row, target, average, strict=True)
            ]
            wanted.append([value / sum(scaled) for value in scaled])
        step = Step(pair(), batch, Clock(0, 10, 5, generation))
        found = addon.targets(step, output(torch.zeros(6, 4)), probs)
        assert torch.allclose(found, torch.tensor(wanted, dtype=torch.float64), atol=1e-6)


def test_the_temperature_falls_from_one_to_a_half() -> None:
    addon = CReSTPlus(CReSTPlusConfig(generations=6), TASK)
    assert [addon.temperature(g) for g in range(6)] == pytest.approx([1, 0.9, 0.8, 0.7, 0.6, 0.5])
