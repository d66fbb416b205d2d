"""ACR against a slow reading of its equations: labels, the balanced head, and the strength."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semigpc.addons import ACR, ACRConfig, Step
from semigpc.types import Batch, Clock, HeadSpec, ModelOutput, Networks, Task
from tests.algorithms.tiny import (
    CLASSES,
    COUNTS,
    LABELED,
    TASK,
    UNLABELED,
    WIDTH,
    TinyNetwork,
    copy_of,
    learn,
    make_algorithm,
    make_refiner,
    stream,
)

STEPS = 5
OPTIONS: dict[str, float] = {"threshold": 0.6, "share_momentum": 0.7, "warmup": 0.2}


class WithBranch(TinyNetwork):
    """The tiny network with a second classifier."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed + 99)
            self.second = nn.Linear(WIDTH, CLASSES, dtype=torch.float64)

    def forward(self, images: Tensor) -> ModelOutput:
        output = super().forward(images)
        return output._replace(heads={**output.heads, "acr": 3 * self.second(output.features)})


def networks() -> Networks:
    return Networks(WithBranch(0), WithBranch(1))


def made(counts: tuple[int, ...] = COUNTS, **options: Any) -> ACR:
    addon = ACR(ACRConfig(**{**OPTIONS, **options}), Task(torch.tensor(counts), LABELED, UNLABELED))
    addon = addon.double()
    anchors = slow_anchors(counts)
    addon.log_anchors.copy_(torch.tensor(anchors, dtype=torch.float64).log())
    addon.shares.fill_(1 / CLASSES)  # in float64
    return addon


def slow_anchors(counts: tuple[int, ...]) -> list[list[float]]:
    """The shares of the labels, equal ones, and those of the labels the other way round."""
    labels = [n / sum(counts) for n in counts]
    places = sorted(range(len(counts)), key=lambda c: -counts[c])
    reverse = [0.0] * len(counts)
    for place, c in enumerate(places):
        reverse[c] = labels[places[-1 - place]]
    return [labels, [1 / len(counts)] * len(counts), reverse]


def slow_strength(r: list[float], counts: tuple[int, ...], most: float) -> float:
    def divergence(p: list[float], q: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    distances = [(divergence(r, a) + divergence(a, r)) / 2 for a in slow_anchors(counts)]
    return most * math.exp(distances[0]) / sum(math.exp(d) for d in distances)


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(z) for z in row]
    return [p / sum(powers) for p in powers]


def slow_errors(
    outputs: list[list[list[float]]], own: list[list[float]], y: list[int], counts: tuple[int, ...]
) -> tuple[list[float], list[bool]]:
    """Row by row: both losses of the second head, and the rows that are used.

    ``outputs`` are the second head's logits of x and strong, and the first one's of weak views.
    """
    branch_x, branch_s, weak = outputs
    margin = [2 * math.log(p) for p in slow_anchors(counts)[0]]
    adjusted = [softmax([z - m for z, m in zip(row, margin, strict=True)]) for row in weak]
    used = [max(v) >= 0.6 or max(softmax(b)) >= 0.6 for v, b in zip(adjusted, own, strict=True)]
    loss_x = 0.0
    for row, label in zip(branch_x, y, strict=True):
        p = softmax([z + m for z, m in zip(row, margin, strict=True)])
        loss_x -= math.log(p[label]) / len(y)
    loss_u = 0.0
    for row, v, kept in zip(branch_s, adjusted, used, strict=True):
        loss_u -= kept * math.log(softmax(row)[v.index(max(v))]) / len(weak)
    return [loss_x, loss_u], used


@pytest.mark.parametrize("counts", [COUNTS, (3, 7, 1, 5)])
def test_labels_losses_and_strength_follow_the_equations(counts: tuple[int, ...]) -> None:
    addon = made(counts, branch_weight=1.3)
    both = networks()
    r = [1 / CLASSES] * CLASSES
    strength = 2.0
    used: list[bool] = []
    for k, batch in enumerate(stream(STEPS)):
        step = Step(both, batch, Clock(k, STEPS, 2))
        x, weak, strong = both.forward(batch.x, batch.views["weak"], batch.views["strong"])
        labels = slow_anchors(counts)[0]
        expected = weak.logits - strength * torch.tensor(labels, dtype=torch.float64).log()
        torch.testing.assert_close(addon.weak(step, weak).logits, expected, rtol=1e-10, atol=1e-12)

        extra = addon.extra_loss(step, x, weak, strong)
        outputs = [x.heads["acr"], strong.heads["acr"], weak.logits]
        own = weak.heads["acr"].tolist()
        rows = [part.tolist() for part in outputs]
        losses, mask = slow_errors(rows, own, batch.y.tolist(), counts)
        parts = [extra.metrics["loss_acr_x"].item(), extra.metrics["loss_acr_u"].item()]
        assert parts == pytest.approx(losses, rel=1e-10)
        assert extra.loss.item() == pytest.approx(1.3 * sum(losses), rel=1e-10)
        assert extra.metrics["mask_rate_acr"].item() == pytest.approx(sum(mask) / UNLABELED)
        used += mask

        if k >= 1:  # a fifth of the steps are the warm-up
            guesses = [p.index(max(p)) for p in map(softmax, own) if max(p) >= 0.6]
            if guesses:
                shares = [guesses.count(c) / len(guesses) for c in range(CLASSES)]
                r = [0.7 * old + 0.3 * new for old, new in zip(r, shares, strict=True)]
            strength = slow_strength(r, counts, 2.0)
        assert addon.shares.tolist() == pytest.approx(r, rel=1e-10)
        assert addon.strength.item() == pytest.approx(strength, rel=1e-6)
        gradients = learn(both, extra.loss)
        assert gradients["backbone.1.weight"].abs().max() > 0, "the features learn too"
        assert not gradients["classifier.weight"].any(), "the first head does not"
        strength = addon.strength.item()  # float32 in its own digits
    assert 0 < sum(used) < len(used)


@pytest.mark.parametrize(
    ("shares", "low", "high"),
    [((7, 5, 3, 1), 0.0, 0.67), ((4, 4, 4, 4), 0.5, 1.0), ((1, 3, 5, 7), 0.8, 2.0)],
)
def test_the_farther_the_rest_is_from_the_labels_the_stronger_the_adjustment(
    shares: tuple[int, ...], low: float, high: float
) -> None:
    """Where it is as the labels are it is below T / 3, and reversed above that."""
    addon = made(share_momentum=0.0)
    classes = torch.repeat_interleave(torch.arange(CLASSES), torch.tensor(shares))
    addon._estimate(classes, torch.ones(len(classes), dtype=torch.bool))
    assert low < addon.strength.item() < high
    before = addon.strength.item()
    addon._estimate(classes, torch.zeros(len(classes), dtype=torch.bool))  # nobody is confident
    assert addon.strength.item() == pytest.approx(before)


def test_equally_many_labels_leave_the_pseudo_labels_as_they_are() -> None:
    """All anchors are one, and without its weight the second head changes nothing either."""
    task = Task(torch.tensor([4, 4, 4, 4]), LABELED, UNLABELED, n_unlabeled=UNLABELED)
    plain: Any = make_algorithm("fixmatch", make_refiner("none"), threshold=0.6)
    adjusted: Any = make_algorithm("fixmatch", make_refiner("none"), threshold=0.6)
    adjusted.addon = ACR(ACRConfig(branch_weight=0.0), task).double()
    both = networks()
    batch: Batch
    for k, batch in enumerate(stream(3)):
        expected = plain.step(copy_of(both), batch, Clock(k, 3, 2))
        output = adjusted.step(copy_of(both), batch, Clock(k, 3, 2))
        torch.testing.assert_close(output.loss, expected.loss, rtol=1e-10, atol=0)
        torch.testing.assert_close(output.pseudo.probs, expected.pseudo.probs, rtol=1e-10, atol=0)
    assert expected.pseudo.mask.any()


def test_the_second_head_is_asked_for_and_answers() -> None:
    assert ACRConfig().heads(CLASSES) == {"acr": HeadSpec("linear", CLASSES)}
    addon = ACR(ACRConfig(), TASK)
    output = WithBranch()(stream(1)[0].x)
    assert addon.answers
    assert addon.learns
    assert addon.answer(output) is output.heads["acr"]


def test_a_class_without_labels_is_noted() -> None:
    addon = ACR(ACRConfig(), Task(torch.tensor([6, 0, 2, 3]), LABELED, UNLABELED))
    assert addon.log_anchors.isfinite().all()
    (note,) = addon.take_notes()
    assert "[1] have no label" in note
