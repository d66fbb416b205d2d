"""DASO against plain loops; semantic labels are those of the batch at hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.addons import DASO, DASOConfig, Step
from semigpc.algorithms.fixmatch import FixMatch, FixMatchConfig
from semigpc.refiners import NoRefiner
from semigpc.types import Batch, Clock, Networks, Task
from tests.algorithms.tiny import (
    CLASSES,
    COUNTS,
    LABELED,
    UNLABELED,
    WIDTH,
    copy_of,
    learn_alike,
    pair,
    stream,
)

TASK = Task(torch.tensor(COUNTS), LABELED, UNLABELED, n_features=WIDTH)
STEPS = 8
OPTIONS: dict[str, Any] = {"queue": 3, "every": 2, "warmup": 0.25}
OPTIONS |= {"temperature": 0.3, "alignment_weight": 0.7}


def slow_softmax(values: list[Tensor]) -> list[Tensor]:
    exponentials = [value.exp() for value in values]
    return [e / sum(exponentials) for e in exponentials]


def slow_cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


class SlowDASO:
    """FixMatch and DASO, row by row."""

    def __init__(self, threshold: float, hard: bool, distribution_temperature: float) -> None:
        self.threshold, self.hard, self.power = threshold, hard, 1 / distribution_temperature
        self.queues: list[list[Tensor]] = [[] for _ in range(CLASSES)]
        self.m, self.guesses = [0] * CLASSES, list[int]()
        self.blended = 0

    def semantic(self, feature: Tensor) -> list[Tensor]:
        known = [c for c in range(CLASSES) if self.queues[c]]
        nothing = torch.zeros(WIDTH, dtype=torch.float64)
        means = [sum(self.queues[c], nothing) / len(self.queues[c]) for c in known]
        likeness = slow_softmax([slow_cosine(feature, mean) / 0.3 for mean in means])
        shares = dict(zip(known, likeness, strict=True))
        return [shares.get(c, torch.zeros((), dtype=torch.float64)) for c in range(CLASSES)]

    def step(self, networks: Networks, batch: Batch, k: int) -> Tensor:
        features = networks.ask_teacher(batch.x).features
        for row, label in zip(features, batch.y.tolist(), strict=True):
            self.queues[label] = [*self.queues[label], row][-3:]
        x, weak, strong = networks.forward(batch.x, batch.views["weak"], batch.views["strong"])
        loss = torch.zeros((), dtype=torch.float64)
        for b, y in enumerate(batch.y.tolist()):
            loss = loss - slow_softmax(list(x.logits[b]))[y].log() / LABELED
        for b in range(UNLABELED):
            p = slow_softmax(list(weak.logits[b].detach()))
            if k / STEPS >= 0.25:
                q = self.semantic(weak.features[b].detach())
                guess = max(range(CLASSES), key=lambda c: float(p[c]))
                v = (self.m[guess] / max(self.m)) ** self.power
                self.blended += v > 0
                p = [(1 - v) * p[c] + v * q[c] for c in range(CLASSES)]
                q_s = self.semantic(strong.features[b])
                for c in range(CLASSES):
                    if self.queues[c]:
                        loss = loss - 0.7 * q[c] * q_s[c].log() / UNLABELED
            best = max(range(CLASSES), key=lambda c: float(p[c]))
            self.guesses.append(best)
            if float(p[best]) >= self.threshold:
                said = slow_softmax(list(strong.logits[b]))
                total = sum(float(value) ** 2 for value in p)
                for c in range(CLASSES):
                    target = float(c == best) if self.hard else float(p[c]) ** 2 / total
                    loss = loss - target * said[c].log() / UNLABELED
        if (k + 1) % 2 == 0:
            self.m, self.guesses = [self.guesses.count(c) for c in range(CLASSES)], []
        return loss


@pytest.mark.parametrize(("hard", "distribution_temperature"), [(True, 1.5), (False, 0.3)])
def test_fixmatch_with_daso_is_its_equations_with_hard_and_with_soft_labels(
    hard: bool, distribution_temperature: float
) -> None:
    addon = DASO(DASOConfig(distribution_temperature=distribution_temperature, **OPTIONS), TASK)
    algorithm = FixMatch(
        FixMatchConfig(threshold=0.5, hard_labels=hard), NoRefiner(), TASK, addon
    ).double()
    slow, networks = SlowDASO(0.5, hard, distribution_temperature), pair()
    twins = copy_of(networks)
    for k, batch in enumerate(stream(STEPS, seed=2)):
        output = algorithm.step(networks, batch, Clock(k, STEPS, 4))
        expected = slow.step(twins, batch, k)
        assert output.loss.item() == pytest.approx(expected.item(), rel=1e-9)
        assert addon.counts.tolist() == slow.m
        learn_alike(networks, output.loss, twins, expected, rel=1e-8)
    assert slow.blended > 10
    # a ring that is not full, and one that went round
    assert min(addon.written.tolist()) < 3 < max(addon.written.tolist())


def ready(**options: Any) -> tuple[DASO, Networks, list[Batch]]:
    """An add-on past its warm-up, whose queues hold one batch and whose counts are set."""
    addon = DASO(DASOConfig(**{**OPTIONS, **options}), TASK).double()
    networks = pair()
    batches = stream(2, seed=2)
    (weak,) = networks.forward(batches[0].views["weak"])
    addon.counts.copy_(torch.tensor([8, 4, 2, 1]))
    step = Step(networks, batches[0], Clock(4, STEPS, 4))
    addon.opinion(step, weak, torch.softmax(weak.logits, dim=1))
    return addon, networks, batches


def test_a_class_never_guessed_keeps_its_own_opinion_and_the_one_guessed_most_has_none() -> None:
    addon, networks, batches = ready()
    addon.counts.copy_(torch.tensor([8, 0, 2, 1]))
    with torch.no_grad():
        (weak,) = networks.forward(batches[1].views["weak"][:2])
    probs = torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1]], dtype=torch.float64)
    blended = addon.opinion(Step(networks, batches[1], Clock(5, STEPS, 4)), weak, probs)
    torch.testing.assert_close(blended[0], probs[0])
    assert float((blended[1] - probs[1]).abs().max()) > 0.01
    assert blended.sum(dim=1).tolist() == pytest.approx([1, 1])


def test_classes_without_entries_have_no_part_in_semantic_labels_and_are_named() -> None:
    addon, networks, batches = ready()
    addon.written[2], addon.prototypes[2] = 0, 0
    addon._noted = False
    addon.take_notes()
    few = batches[1]._replace(x=batches[1].x[:1], y=torch.tensor([0]), index=torch.tensor([0]))
    x, weak, strong = networks.forward(few.x, few.views["weak"], few.views["strong"])
    step = Step(networks, few, Clock(5, STEPS, 4))
    probs = torch.eye(CLASSES, dtype=torch.float64)[torch.zeros(UNLABELED, dtype=torch.int64)]
    blended = addon.opinion(step, weak, probs)  # v = 1: the semantic label alone
    assert blended[:, 2].tolist() == [0] * UNLABELED
    assert bool(blended.isfinite().all())
    extra = addon.extra_loss(step, x, weak, strong)
    assert extra is not None
    parameters = list(networks.student.parameters())
    gradients = torch.autograd.grad(extra.loss, parameters, allow_unused=True)
    assert bool(extra.loss.isfinite())
    assert all(bool(g.isfinite().all()) for g in gradients if g is not None)
    notes = addon.take_notes()
    assert any("no features of the classes" in note and "2" in note for note in notes)
    addon.opinion(step, weak, probs)
    assert not addon.take_notes()


def test_nothing_is_blended_while_there_are_no_entries_or_no_counts() -> None:
    addon, networks, batch = DASO(DASOConfig(**OPTIONS), TASK).double(), pair(), stream(1)[0]
    (weak,) = networks.forward(batch.views["weak"])
    probs = torch.softmax(weak.logits, dim=1)
    nobody = batch._replace(x=batch.x[:0], y=batch.y[:0], index=batch.index[:0])
    for rows in (nobody, batch):
        opinion = addon.opinion(Step(networks, rows, Clock(7, STEPS, 4)), weak, probs)
        torch.testing.assert_close(opinion, probs)
    assert any("every 2 steps" in note for note in addon.take_notes())


def test_of_more_images_than_a_ring_holds_the_newest_are_kept() -> None:
    addon = DASO(DASOConfig(**{**OPTIONS, "queue": 2}), TASK).double()
    features = torch.arange(5.0, dtype=torch.float64).unsqueeze(1).expand(5, WIDTH)
    addon._push(features, torch.tensor([1, 1, 1, 0, 1]))
    assert sorted(addon.queue[1, :, 0].tolist()) == [2, 4]
    assert addon.prototypes[:, 0].tolist() == [3, 3, 0, 0]
    addon._push(features[:1] + 10, torch.tensor([1]))
    assert sorted(addon.queue[1, :, 0].tolist()) == [4, 10]
