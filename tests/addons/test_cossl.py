"""CoSSL against a slow reading of its three parts, and the defects of USB's."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semigpc.addons import CoSSL, CoSSLConfig, Step, Survey
from semigpc.addons.cossl import balanced_features, imprinted_probs
from semigpc.refiners import NoRefiner
from semigpc.types import Batch, Clock, Labeled, ModelOutput, Networks, Task
from tests.algorithms import tiny
from tests.algorithms.tiny import (
    CLASSES,
    COUNTS,
    LABELED,
    LABELS,
    UNLABELED,
    WIDTH,
    copy_of,
    pair,
    seeded,
    stream,
)

STEPS, POOL = 4, 30
TASK = Task(torch.tensor(COUNTS), LABELED, UNLABELED, POOL, WIDTH)
AFTER = Clock(8, 10, 5)  # the first step after the warm-up
OPTIONS: dict[str, Any] = {"head_rate": 0.05, "head_decay": 0.03, "head_momentum": 0.7}
OPTIONS |= {"start_steps": 7}


def batches(steps: int, dtype: torch.dtype = torch.float64) -> list[Batch]:
    """Batches that bring other labelled images as their balanced part."""
    others = stream(steps, seed=5, dtype=dtype)
    return [
        batch._replace(balanced=Labeled(other.x, other.y, other.index))
        for batch, other in zip(stream(steps, dtype=dtype), others, strict=True)
    ]


def features_only(features: Tensor) -> ModelOutput:
    return ModelOutput(torch.zeros(len(features), CLASSES).to(features), features, {})


def a_survey(dtype: torch.dtype = torch.float64, y: Tensor = LABELS) -> Survey:
    generator = torch.Generator().manual_seed(3)

    def noise(rows: int) -> Tensor:
        return torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)

    labeled = noise(CLASSES)[y] + 0.5 * noise(len(y))
    unlabeled = 1.5 * noise(POOL)
    return Survey(features_only(labeled.to(dtype)), y, features_only(unlabeled.to(dtype)))


def make(dtype: torch.dtype = torch.float64, task: Task = TASK, **options: Any) -> CoSSL:
    addon: CoSSL = seeded(11, CoSSL, CoSSLConfig(**{**OPTIONS, **options}), task)
    return addon.to(dtype)


def started(dtype: torch.dtype = torch.float64, **options: Any) -> CoSSL:
    addon = make(dtype, **options)
    seeded(4, addon.survey, a_survey(dtype))
    return addon


class SlowHead:
    """nn.Linear, torch's Adam with decay on its weight alone, and a moving average."""

    def __init__(self, addon: CoSSL) -> None:
        config = addon.config
        self.linear = nn.Linear(WIDTH, CLASSES, dtype=torch.float64)
        with torch.no_grad():
            self.linear.weight.copy_(addon.head.weights[:, :-1])
            self.linear.bias.copy_(addon.head.weights[:, -1])
        self.average = copy.deepcopy(self.linear)
        self.rate = config.head_rate
        self.decay = config.head_decay
        self.momentum = config.head_momentum
        self.restart()

    def restart(self) -> None:
        groups: list[dict[str, Any]] = [
            {"params": [self.linear.weight], "weight_decay": self.decay},
            {"params": [self.linear.bias]},
        ]
        self.adam = torch.optim.Adam(groups, lr=self.rate)

    def learn(self, features: Tensor, y: list[int]) -> None:
        loss = torch.zeros((), dtype=torch.float64)
        for feature, label in zip(features, y, strict=True):
            loss = loss - torch.log_softmax(self.linear(feature), dim=0)[label] / len(y)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        with torch.no_grad():
            pairs = zip(self.average.parameters(), self.linear.parameters(), strict=True)
            for mean, value in pairs:
                mean.copy_(self.momentum * mean + (1 - self.momentum) * value)

    def agrees(self, addon: CoSSL) -> None:
        for linear, own in ((self.linear, addon.head.weights), (self.average, addon.head.average)):
            torch.testing.assert_close(own[:, :-1], linear.weight.detach(), rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(own[:, -1], linear.bias.detach(), rtol=1e-9, atol=1e-11)


def slow_balanced(survey: Survey) -> tuple[list[Tensor], list[int]]:
    """The labelled features, then those made up, class by class and one by one."""
    labeled = list(survey.labeled.features)
    y = survey.y.tolist()
    unlabeled = list(survey.unlabeled.features)
    counts = [y.count(c) for c in range(CLASSES)]
    weights = []
    for c in range(CLASSES):
        mean = sum(f for f, label in zip(labeled, y, strict=True) if label == c) / counts[c]
        weights.append(mean / mean.pow(2).sum().sqrt())
    rows, classes = list(labeled), list(y)
    for c in range(CLASSES):
        lacking = max(counts) - counts[c]
        if not lacking:
            continue
        own = [f for f, label in zip(labeled, y, strict=True) if label == c]
        others = [f for f, label in zip(labeled, y, strict=True) if label != c] + unlabeled

        def chance(f: Tensor, c: int = c) -> float:
            scores = torch.stack([w @ f for w in weights]).exp()
            return float(scores[c] / scores.sum())

        others.sort(key=chance, reverse=True)
        which = torch.randint(len(own), (lacking,)).tolist()
        shares = torch.distributions.Beta(0.75, 0.75).sample((lacking, 1)).flatten().tolist()
        for i, (k, r) in enumerate(zip(which, shares, strict=True)):
            rows.append(r * own[k] + (1 - r) * others[i])
            classes.append(c)
    return rows, classes


def slow_start(head: SlowHead, survey: Survey, steps: int) -> None:
    rows, classes = slow_balanced(survey)
    order: list[int] = []
    for _ in range(steps):
        if len(order) < LABELED:  # what is left of a pass is dropped
            order = torch.randperm(len(rows)).tolist()
        chosen, order = order[:LABELED], order[LABELED:]
        head.learn(torch.stack([rows[i] for i in chosen]), [classes[i] for i in chosen])
    head.restart()


def slow_step(head: SlowHead, networks: Networks, batch: Batch) -> tuple[Tensor, list[bool]]:
    """Weak logits of moving average and head; then the head learns. And which features were
    enhanced.
    """
    assert batch.balanced is not None
    unlabeled, labeled, own = (
        networks.ask_teacher(x).features for x in (batch.views["weak"], batch.x, batch.balanced.x)
    )
    logits = torch.stack([head.linear(f) for f in unlabeled]).detach()
    odds = [sum(COUNTS) / len(labeled)] * len(labeled) + [POOL / len(unlabeled)] * len(unlabeled)
    chance = torch.tensor(odds, dtype=torch.float64)
    partners = torch.multinomial(chance, len(own), replacement=True).tolist()
    chances, shares = torch.rand(len(own)).tolist(), torch.rand(len(own)).tolist()
    rows, enhanced = [], []
    for b, label in enumerate(batch.balanced.y.tolist()):
        partner = (list(labeled) + list(unlabeled))[partners[b]]
        enhanced.append(chances[b] < (max(COUNTS) - COUNTS[label]) / max(COUNTS))
        r = 0.6 + 0.4 * shares[b]
        rows.append(r * own[b] + (1 - r) * partner if enhanced[-1] else own[b])
    head.learn(torch.stack(rows), batch.balanced.y.tolist())
    return logits, enhanced


def test_head_and_pseudo_labels_follow_the_equations_from_the_start_on() -> None:
    # five batches a pass: three passes, the last cut short
    addon, networks, survey = (make(start_steps=13), pair(), a_survey())
    slow = SlowHead(addon)
    seeded(4, addon.survey, survey)
    seeded(4, slow_start, slow, survey, 13)
    slow.agrees(addon)
    enhanced: list[bool] = []
    for k, batch in enumerate(batches(STEPS)):
        said = networks.forward(batch.x, batch.views["weak"])[1]
        heard = seeded(k, addon.weak, Step(networks, batch, AFTER), said)
        expected, which = seeded(k, slow_step, slow, networks, batch)
        torch.testing.assert_close(heard.logits, expected, rtol=1e-9, atol=1e-11)
        assert heard.features is said.features
        slow.agrees(addon)
        enhanced += which
        # the teacher moves on
        tiny.learn(
            networks, nn.functional.cross_entropy(networks.forward(batch.x)[0].logits, batch.y)
        )
    assert 0 < sum(enhanced) < len(enhanced), "both ways must be seen"


def test_imprinting_ranks_by_the_unit_means_of_the_classes_there_are() -> None:
    labeled = torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 0.1]])
    y = torch.tensor([0, 0, 2])
    probs = imprinted_probs(torch.tensor([[1.0, 3.0]]), labeled, y, 3)
    expected = torch.softmax(torch.tensor([[1.0, 3.0]]), dim=1)[0]
    torch.testing.assert_close(probs[0], torch.stack([expected[0], torch.tensor(0.0), expected[1]]))


def test_pseudo_labels_come_from_moving_average_and_head_not_from_the_student() -> None:
    """USB asks the student's head: nothing is learnt together."""
    batch = batches(1)[0]

    def ask(networks: Networks, addon: CoSSL) -> Tensor:
        algorithm: Any = tiny.make_algorithm("fixmatch", NoRefiner(), task=TASK)
        algorithm.addon = addon
        probs: Tensor = seeded(0, algorithm.step, networks, batch, AFTER).pseudo.probs
        return probs

    networks, addon = pair(), started()
    features = networks.ask_teacher(batch.views["weak"]).features
    weights = addon.head.weights
    expected = torch.softmax(features @ weights[:, :-1].mT + weights[:, -1], dim=1)
    other_student = Networks(tiny.TinyNetwork(9), copy_of(networks).teacher)
    other_teacher = Networks(copy_of(networks).student, tiny.TinyNetwork(9))
    other_average, other_head = copy.deepcopy(addon), copy.deepcopy(addon)
    other_average.head.average.mul_(-1)
    other_head.head.weights.mul_(-1)

    for same in (ask(other_student, copy.deepcopy(addon)), ask(copy_of(networks), other_average)):
        torch.testing.assert_close(same, expected, rtol=1e-10, atol=0)
    assert (ask(other_teacher, copy.deepcopy(addon)) - expected).abs().max() > 1e-3
    assert (ask(copy_of(networks), other_head) - expected).abs().max() > 1e-3


def test_the_head_learns_without_touching_the_networks() -> None:
    addon, networks, batch = started(), pair(), batches(1)[0]
    before = copy_of(networks)
    head = addon.head.weights.clone()
    said = networks.forward(batch.x, batch.views["weak"])[1]
    twin = copy_of(networks)
    heard = addon.weak(Step(networks, batch, AFTER), said)
    assert not torch.equal(addon.head.weights, head)
    assert not heard.logits.requires_grad
    assert not list(addon.parameters())
    for network, old in zip(networks, twin, strict=True):
        state = old.state_dict()
        assert all(torch.equal(a, state[name]) for name, a in network.state_dict().items())
        assert all(parameter.grad is None for parameter in network.parameters())
    assert all(map(torch.equal, before.teacher.parameters(), networks.teacher.parameters()))


def test_nothing_happens_during_the_warm_up() -> None:
    addon, networks, batch = make(), pair(), batches(1)[0]
    said = networks.forward(batch.x)[0]
    state = copy.deepcopy(addon.state_dict())
    early = Clock(7, 10, 5)
    assert not addon.surveys(early)
    assert addon.weak(Step(networks, batch, early), said) is said
    assert all(torch.equal(state[name], value) for name, value in addon.state_dict().items())
    assert torch.equal(addon.answer(said), said.logits)


def test_it_starts_once_and_then_answers_with_the_average_of_its_head() -> None:
    addon, output = make(), features_only(torch.randn(6, WIDTH, dtype=torch.float64))
    assert CoSSLConfig().warmup == 0.8
    assert addon.surveys(AFTER)
    addon.survey(a_survey())
    assert not addon.surveys(AFTER)
    assert addon.active
    average = addon.head.average
    expected = output.features @ average[:, :-1].mT + average[:, -1]
    torch.testing.assert_close(addon.answer(output), expected)
    assert not torch.equal(average, addon.head.weights)
    assert addon.answers
    assert not addon.learns, "no second pass over labelled images is asked for"


@pytest.mark.slow
def test_a_head_started_as_long_as_by_default_knows_every_class() -> None:
    survey = a_survey(torch.float32)
    addon = make(torch.float32, **{name: getattr(CoSSLConfig(), name) for name in OPTIONS})
    addon.survey(survey)
    guesses = addon.answer(survey.labeled).argmax(dim=1)
    assert all(((guesses == LABELS) & (c == LABELS)).any() for c in range(CLASSES))
    assert (guesses == LABELS).double().mean() > 0.8


def test_classes_without_labels_are_noted_and_left_out() -> None:
    y = torch.tensor([0, 0, 0, 2, 2, 3])
    task = Task(torch.tensor([3, 0, 2, 1]), LABELED, UNLABELED, POOL, WIDTH)
    addon = make(task=task)
    survey = a_survey(y=y)
    rows = (survey.labeled.features, y, survey.unlabeled.features)
    features, classes = balanced_features(*rows, CLASSES)
    assert torch.bincount(classes).tolist() == [3, 0, 3, 3]
    assert features.isfinite().all()
    addon.survey(survey)
    (note,) = addon.take_notes()
    assert "no labelled features of class 1" in note
    assert all(value.isfinite().all() for value in addon.state_dict().values())


def test_a_step_without_a_balanced_batch_is_refused() -> None:
    networks, batch = pair(), stream(1)[0]
    with pytest.raises(ValueError, match=r"Batch.balanced is None"):
        started().weak(Step(networks, batch, AFTER), networks.forward(batch.x)[0])
