"""SimPro against a slow reading of its two steps, its losses and what it counts."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.addons import SimPro, SimProConfig, Step
from semigpc.types import Clock, ModelOutput, Task
from tests.algorithms.tiny import (
    CLASSES,
    COUNTS,
    LABELED,
    TASK,
    UNLABELED,
    copy_of,
    make_algorithm,
    make_refiner,
    pair,
    stream,
)

STEPS = 6
TOTAL = 20
Rows = list[list[float]]


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(z) for z in row]
    return [p / sum(powers) for p in powers]


class Slow:
    """Class by class, row by row, as the paper has it: r and s are kept as lists."""

    def __init__(self, strength: float, threshold: float, momentum: float, every: int) -> None:
        self.strength = strength
        self.threshold = threshold
        self.momentum = momentum
        self.every = every
        self.r = [1 / CLASSES] * CLASSES
        self.s = [n / sum(COUNTS) for n in COUNTS]
        self.seen: Rows = []
        self.labels: list[int] = []
        self.steps = 0

    def shifted(self, row: list[float], shares: list[float]) -> list[float]:
        return softmax([z + self.strength * math.log(p) for z, p in zip(row, shares, strict=True)])

    def label(self, logits: Rows) -> Rows:
        return [self.shifted(row, self.r) for row in logits]

    def count(self, labels: Rows, y: list[int]) -> None:
        self.seen += [row for row in labels if max(row) >= self.threshold]
        self.labels += y
        self.steps += 1
        if self.steps % self.every:
            return
        sums = [sum(row[c] for row in self.seen) for c in range(CLASSES)]
        both = [total + self.labels.count(c) for c, total in enumerate(sums)]
        m = self.momentum
        self.r = [m * old + (1 - m) * n / (sum(sums) + 1) for old, n in zip(self.r, sums)]  # noqa: B905
        self.s = [m * old + (1 - m) * n / sum(both) for old, n in zip(self.s, both)]  # noqa: B905
        self.seen = []
        self.labels = []

    def loss(self, logits: Rows, targets: Rows, mask: list[bool]) -> float:
        total = 0.0
        for row, target, used in zip(logits, targets, mask, strict=True):
            p = self.shifted(row, self.s)
            total -= used * sum(t * math.log(q) for t, q in zip(target, p, strict=True))
        return total / len(logits)


def draw(generator: torch.Generator, rows: int) -> Tensor:
    """Logits of a network that prefers the first classes."""
    preference = torch.tensor([2.0, 1.0, 0.0, -2.0], dtype=torch.float64)
    noise = torch.randn(rows, CLASSES, generator=generator, dtype=torch.float64)
    return 2 * noise + preference


def made(task: Task = TASK, **options: Any) -> SimPro:
    addon = SimPro(SimProConfig(**options), task).double()
    addon.shares.fill_(1 / CLASSES)  # in float64
    return addon


@pytest.mark.parametrize("strength", [1.0, 2.0])
@pytest.mark.parametrize(("every", "steps"), [(0.001, 1), (0.1, 2)])
def test_labels_shares_and_losses_follow_the_equations(
    strength: float, every: float, steps: int
) -> None:
    options: dict[str, Any] = {
        "strength": strength,
        "threshold": 0.7,
        "share_momentum": 0.6,
        "every": every,
    }
    addon = made(labeled_weight=0.4, **options)
    slow = Slow(strength, 0.7, 0.6, steps)
    generator = torch.Generator().manual_seed(0)
    accepted = []
    for k, batch in enumerate(stream(STEPS)):
        step = Step(pair(), batch, Clock(k, TOTAL, 5))
        weak = draw(generator, UNLABELED)
        output = ModelOutput(weak, weak, {})
        labels = addon.opinion(step, output, torch.softmax(weak, dim=1))
        expected = slow.label(weak.tolist())
        torch.testing.assert_close(labels, torch.tensor(expected).to(labels), rtol=1e-6, atol=0)
        assert labels.tolist() == [pytest.approx(row, rel=1e-10) for row in expected]
        assert torch.equal(addon.targets(step, output, labels), labels)
        slow.count(expected, batch.y.tolist())
        assert addon.shares.tolist() == pytest.approx(slow.r, rel=1e-10)
        assert addon.all_shares.tolist() == pytest.approx(slow.s, rel=1e-10)

        strong = draw(generator, UNLABELED)
        mask = labels.amax(dim=1) >= 0.7
        accepted += mask.tolist()
        hard = torch.nn.functional.one_hot(labels.argmax(dim=1), CLASSES).tolist()
        loss = addon.unlabeled_loss(step, strong, labels.argmax(dim=1), mask)
        expected_loss = slow.loss(strong.tolist(), hard, mask.tolist())
        assert loss.item() == pytest.approx(expected_loss, rel=1e-10)
        x = draw(generator, LABELED)
        given = torch.nn.functional.one_hot(batch.y, CLASSES).tolist()
        loss_x = addon.labeled_loss(step, x, batch.y)
        expected_loss = 0.4 * slow.loss(x.tolist(), given, [True] * LABELED)
        assert loss_x.item() == pytest.approx(expected_loss, rel=1e-10)
    assert 0 < sum(accepted) < len(accepted)


def test_without_strength_and_weight_a_step_is_that_of_the_algorithm() -> None:
    addon = made(strength=0.0)
    plain: Any = make_algorithm("fixmatch", make_refiner("none"), threshold=0.6)
    adjusted: Any = make_algorithm("fixmatch", make_refiner("none"), threshold=0.6)
    adjusted.addon = addon
    networks = pair()
    for k, batch in enumerate(stream(3)):
        expected = plain.step(copy_of(networks), batch, Clock(k, TOTAL, 5))
        output = adjusted.step(copy_of(networks), batch, Clock(k, TOTAL, 5))
        torch.testing.assert_close(output.loss, expected.loss, rtol=1e-10, atol=0)
        torch.testing.assert_close(output.pseudo.probs, expected.pseudo.probs, rtol=1e-10, atol=0)
    assert expected.pseudo.mask.any()
    assert addon.all_shares.std() > 0, "it counted all the same"


def test_the_shares_of_a_reversed_rest_are_found_from_a_network_without_preference() -> None:
    """The likelihoods are right and r is unknown: expectation-maximisation finds it."""
    truth = torch.tensor([0.05, 0.1, 0.25, 0.6], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    addon = made(threshold=0.0)
    for k in range(150):
        (batch,) = stream(1, seed=k)
        classes = torch.multinomial(truth, 400, replacement=True, generator=generator)
        # log p(x | y) of Gaussians around the corners: no class is preferred
        means = 2 * torch.eye(CLASSES, dtype=torch.float64)
        x = means[classes] + torch.randn(400, CLASSES, generator=generator, dtype=torch.float64)
        likelihood = -(x.unsqueeze(1) - means).square().sum(dim=2) / 2
        step = Step(pair(), batch, Clock(k, 150, 50))
        output = ModelOutput(likelihood, x, {})
        labels = addon.opinion(step, output, torch.softmax(likelihood, dim=1))
        addon.targets(step, output, labels)
    shares = addon.shares / addon.shares.sum()
    assert (shares - truth).abs().max() < 0.03


def test_a_class_without_labels_is_noted_and_stays_possible() -> None:
    addon = SimPro(SimProConfig(), Task(torch.tensor([6, 0, 2, 3]), LABELED, UNLABELED, 30))
    assert addon.all_shares.tolist() == pytest.approx([6 / 12, 1 / 12, 2 / 12, 3 / 12])
    (note,) = addon.take_notes()
    assert "[1] have no label" in note
