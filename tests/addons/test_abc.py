"""ABC against a slow reading of its equations, and the second head as the one that answers."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semigpc.addons import ABC, ABCConfig, Step
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
    seeded,
    stream,
)

STEPS = 4


class WithHead(TinyNetwork):
    """The tiny network with a second classifier."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(seed, dtype)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed + 99)
            self.second = nn.Linear(WIDTH, CLASSES, dtype=dtype)

    def forward(self, images: Tensor) -> ModelOutput:
        output = super().forward(images)
        return output._replace(heads={**output.heads, "abc": 3 * self.second(output.features)})


def networks() -> Networks:
    return Networks(WithHead(0), WithHead(1))


def say(network: Networks, batch: Batch) -> list[ModelOutput]:
    return network.forward(batch.x, batch.views["weak"], batch.views["strong"])


def slow_errors(
    outputs: list[Tensor], batch: Batch, counts: tuple[int, ...], progress: float, **how: Any
) -> tuple[float, Tensor, Tensor, list[bool], list[bool]]:
    """Row by row: loss, derivatives by the logits of x (B, C) and strong (U, C), and rows kept."""
    logits_x, logits_w, logits_s = outputs
    loss, dx, ds = 0.0, torch.zeros_like(logits_x), torch.zeros_like(logits_s)
    kept_x, kept_u = [], []
    drawn_x, drawn_u = torch.rand(len(logits_x)), torch.rand(len(logits_s))
    for b, label in enumerate(batch.y.tolist()):
        kept_x.append(float(drawn_x[b]) < min(counts) / counts[label])
        p = logits_x[b].exp() / logits_x[b].exp().sum()
        if kept_x[-1]:
            loss -= float(p[label].log()) / len(logits_x)
            dx[b] = p / len(logits_x)
            dx[b, label] -= 1 / len(logits_x)
    for b in range(len(logits_s)):
        q = logits_w[b].exp() / logits_w[b].exp().sum()
        guess = int(q.argmax())
        chance = 1 - progress * (1 - min(counts) / counts[guess])
        kept_u.append(float(q.max()) >= how["threshold"] and float(drawn_u[b]) < chance)
        target = torch.eye(len(q), dtype=q.dtype)[guess] if how["hard"] else q
        p = logits_s[b].exp() / logits_s[b].exp().sum()
        if kept_u[-1]:
            loss -= float((target * p.log()).sum()) / len(logits_s)
            ds[b] = (p - target) / len(logits_s)
    return loss, dx, ds, kept_x, kept_u


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("counts", [COUNTS, (3, 7, 1, 5)])  # the rarest class last, and elsewhere
def test_loss_and_gradients_follow_the_equations(hard: bool, counts: tuple[int, ...]) -> None:
    task = Task(torch.tensor(counts), LABELED, UNLABELED)
    addon = ABC(ABCConfig(threshold=0.6, hard_labels=hard, abc_weight=1.3), task).double()
    fast = networks()
    slow = copy_of(fast)
    kept: list[bool] = []
    for k, batch in enumerate(stream(STEPS)):
        clock = Clock(k + 1, STEPS + 1, 2)
        x, weak, strong = say(fast, batch)
        extra = seeded(k, addon.extra_loss, Step(fast, batch, clock), x, weak, strong)
        gradients = learn(fast, extra.loss)

        outputs = [output.heads["abc"] for output in say(slow, batch)]
        raw = [logits.detach() for logits in outputs]
        progress = (k + 1) / (STEPS + 1)
        slowly = partial(slow_errors, threshold=0.6, hard=hard)
        loss, dx, ds, kept_x, kept_u = seeded(k, slowly, raw, batch, counts, progress)
        # its gradient is that of the loss
        carried = 1.3 * ((outputs[0] * dx).sum() + (outputs[2] * ds).sum())
        expected = learn(slow, carried)

        torch.testing.assert_close(extra.loss.item(), 1.3 * loss, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(extra.metrics["mask_rate_abc"].item(), sum(kept_u) / UNLABELED)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12)
        assert gradients["backbone.1.weight"].abs().max() > 0, "the features learn too"
        kept += [*kept_x, *kept_u]
    assert 0 < sum(kept) < len(kept), "no mixed masks, nothing shown"


def test_the_second_head_is_asked_for_and_answers() -> None:
    config = ABCConfig()
    assert config.heads(CLASSES) == {"abc": HeadSpec("linear", CLASSES)}
    assert (config.threshold, config.hard_labels, config.abc_weight) == (0.95, False, 1.0)
    addon, output = ABC(config, TASK), WithHead()(stream(1)[0].x)
    assert addon.answers
    assert addon.learns
    assert addon.answer(output) is output.heads["abc"]


def test_a_class_without_labels_is_noted_and_does_not_silence_the_others() -> None:
    addon = ABC(ABCConfig(), Task(torch.tensor([6, 0, 2, 3]), LABELED, UNLABELED))
    assert addon.keep.tolist() == pytest.approx([1 / 3, 1, 1, 2 / 3])
    assert addon.take_notes() == ["ABC: no labels of class 1; treated as one of the rarest class."]
