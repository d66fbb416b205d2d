"""DebiasPL against a slow reading of its equations, and the defects of USB's."""

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.addons import DebiasPL, DebiasPLConfig, Step
from semigpc.types import Clock, ModelOutput
from tests.algorithms.tiny import CLASSES, TASK, copy_of, make_algorithm, make_refiner, pair, stream

STEPS, ROWS = 4, 10


@functools.cache
def a_step() -> Step:
    return Step(pair(), stream(1)[0], Clock(0, 10, 5))


def say(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weak and strong logits (U, C) of a network that likes the first classes."""
    bias = torch.tensor([2.0, 1.0, 0.0, -2.0], dtype=torch.float64)
    weak, strong = (
        2 * torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64) + bias
        for _ in range(2)
    )
    return weak, strong


def hear(addon: DebiasPL, weak: Tensor) -> Tensor:
    return addon.opinion(a_step(), ModelOutput(weak, weak, {}), torch.softmax(weak, dim=1))


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(z) for z in row]
    return [p / sum(powers) for p in powers]


class Slow:
    """Class by class, row by row: labels use the shares before the batch, the loss those after."""

    def __init__(self, strength: float, momentum: float) -> None:
        self.strength, self.momentum, self.shares = strength, momentum, [1 / CLASSES] * CLASSES

    def shifted(self, row: list[float], strength: float) -> list[float]:
        return softmax([z + strength * math.log(r) for z, r in zip(row, self.shares, strict=True)])

    def debias(self, weak: list[list[float]]) -> list[list[float]]:
        labels = [self.shifted(row, -self.strength) for row in weak]
        means = [sum(column) / len(weak) for column in zip(*map(softmax, weak), strict=True)]
        self.shares = [
            self.momentum * r + (1 - self.momentum) * m
            for r, m in zip(self.shares, means, strict=True)
        ]
        return labels

    def loss(self, strong: list[list[float]], targets: list[list[float]], mask: list[bool]) -> Any:
        total = 0.0
        for row, target, heard in zip(strong, targets, mask, strict=True):
            p = self.shifted(row, self.strength)
            total -= heard * sum(t * math.log(q) for t, q in zip(target, p, strict=True))
        return pytest.approx(total / len(strong), rel=1e-10)


@pytest.mark.parametrize(
    "options", [{}, {"strength": 0.7, "share_momentum": 0.6}, {"strength": 1.3}]
)
def test_opinion_shares_and_losses_follow_the_equations(options: dict[str, float]) -> None:
    addon = DebiasPL(DebiasPLConfig(**options), TASK).double()
    slow = Slow(options.get("strength", 0.4), options.get("share_momentum", 0.999))
    generator = torch.Generator().manual_seed(0)
    addon.shares.fill_(1 / CLASSES)  # in float64
    for _ in range(STEPS):
        weak, strong = say(generator)
        opinion = hear(addon, weak)
        expected = torch.tensor(slow.debias(weak.tolist()), dtype=torch.float64)
        torch.testing.assert_close(opinion, expected, rtol=1e-10, atol=1e-12)
        assert addon.shares.tolist() == pytest.approx(slow.shares, rel=1e-12)

        mask = opinion.max(dim=1).values >= 0.7
        targets = opinion.argmax(dim=1)
        hard = torch.nn.functional.one_hot(targets, CLASSES).tolist()
        assert 0 < mask.sum() < len(mask)
        masked = addon.unlabeled_loss(a_step(), strong, targets, mask)
        assert masked.item() == slow.loss(strong.tolist(), hard, mask.tolist())

        # rows of zeros: a mask in them
        mixed = torch.cat([0.8 * opinion + 0.05, torch.zeros(2, CLASSES, dtype=torch.float64)])
        rows = torch.cat([strong, strong[:2]])
        soft = addon.unlabeled_loss(a_step(), rows, mixed)
        assert soft.item() == slow.loss(rows.tolist(), mixed.tolist(), [True] * len(rows))


def test_the_shares_keep_their_own_momentum_whatever_that_of_the_network() -> None:
    """USB decays them with the momentum of the model's moving average, which may be 0."""
    batch = stream(1)[0]
    for same in (True, False):
        networks = pair()
        networks = networks._replace(teacher=networks.student) if same else networks
        addon = DebiasPL(DebiasPLConfig(), TASK).double()
        algorithm: Any = make_algorithm("fixmatch", make_refiner("none"))
        algorithm.addon = addon
        _, weak, _ = copy_of(networks).forward(batch.x, batch.views["weak"], batch.views["strong"])
        algorithm.step(networks, batch, Clock(0, 10, 5))
        means = torch.softmax(weak.logits, dim=1).mean(dim=0)
        torch.testing.assert_close(
            addon.shares, 0.999 / CLASSES + 0.001 * means, rtol=1e-10, atol=0
        )


def test_mask_and_target_of_an_algorithm_are_taken_from_the_debiased_opinion() -> None:
    networks, batch = pair(), stream(1)[0]
    addon = DebiasPL(DebiasPLConfig(strength=2.0), TASK).double()
    addon.shares.copy_(torch.tensor([0.7, 0.2, 0.09, 0.01]))
    _, weak, _ = copy_of(networks).forward(batch.x, batch.views["weak"], batch.views["strong"])
    expected = torch.softmax(weak.logits - 2 * addon.shares.log(), dim=1)
    algorithm: Any = make_algorithm("fixmatch", make_refiner("none"), threshold=0.7)
    algorithm.addon = addon
    pseudo = algorithm.step(networks, batch, Clock(0, 10, 5)).pseudo
    torch.testing.assert_close(pseudo.probs, expected, rtol=1e-10, atol=0)
    assert pseudo.mask.tolist() == (expected.max(dim=1).values >= 0.7).tolist()
    plain = torch.softmax(weak.logits, dim=1).max(dim=1).values >= 0.7
    assert pseudo.mask.tolist() != plain.tolist()


def test_a_class_that_is_never_predicted_makes_no_nan() -> None:
    addon = DebiasPL(DebiasPLConfig(share_momentum=0.0), TASK)
    weak = torch.tensor([[0.0, 1.0, -torch.inf, -200.0]]).repeat(ROWS, 1)
    for _ in range(3):
        opinion = hear(addon, weak)
        loss = addon.unlabeled_loss(a_step(), torch.zeros(ROWS, CLASSES), opinion)
    assert addon.shares[2] == 0
    assert opinion.isfinite().all()
    assert loss.isfinite()
