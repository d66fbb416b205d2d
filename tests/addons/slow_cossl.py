"""CoSSL's three parts row by row, and the small task that its tests share."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from semigpc.addons import CoSSL, CoSSLConfig, Survey
from semigpc.types import Batch, Clock, Labeled, ModelOutput, Networks, Task
from tests.algorithms.tiny import CLASSES, COUNTS, LABELED, LABELS, UNLABELED, WIDTH, seeded, stream

POOL = 30
TASK = Task(torch.tensor(COUNTS), LABELED, UNLABELED, POOL, WIDTH)
AFTER = Clock(8, 10, 5)  # the first step after the warm-up
OPTIONS: dict[str, Any] = {
    "head_rate": 0.05,
    "head_decay": 0.03,
    "head_momentum": 0.7,
    "start_steps": 7,
}


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
    centres = torch.randn(CLASSES, WIDTH, generator=generator, dtype=torch.float64)
    labeled = centres[y] + 0.5 * torch.randn(
        len(y), WIDTH, generator=generator, dtype=torch.float64
    )
    unlabeled = 1.5 * torch.randn(POOL, WIDTH, generator=generator, dtype=torch.float64)
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
            for mean, value in zip(
                self.average.parameters(), self.linear.parameters(), strict=True
            ):
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
    partners = torch.multinomial(
        torch.tensor(odds, dtype=torch.float64), len(own), replacement=True
    ).tolist()
    chances, shares = torch.rand(len(own)).tolist(), torch.rand(len(own)).tolist()
    rows, enhanced = [], []
    for b, label in enumerate(batch.balanced.y.tolist()):
        partner = (list(labeled) + list(unlabeled))[partners[b]]
        enhanced.append(chances[b] < (max(COUNTS) - COUNTS[label]) / max(COUNTS))
        r = 0.6 + 0.4 * shares[b]
        rows.append(r * own[b] + (1 - r) * partner if enhanced[-1] else own[b])
    head.learn(torch.stack(rows), batch.balanced.y.tolist())
    return logits, enhanced
