"""SAW against plain loops; soft targets stay soft."""

import pytest
import torch
from torch import Tensor

from semigpc.addons import SAW, SAWConfig, Step
from semigpc.algorithms.fixmatch import FixMatch, FixMatchConfig
from semigpc.algorithms.remixmatch import ReMixMatch, ReMixMatchConfig
from semigpc.refiners import NoRefiner
from semigpc.types import Batch, Clock, Networks, Task
from tests.algorithms.tiny import (
    CLASSES,
    COUNTS,
    LABELED,
    UNLABELED,
    copy_of,
    learn_alike,
    pair,
    seeded,
    stream_over,
)

IMAGES = 16
TASK = Task(torch.tensor(COUNTS), LABELED, UNLABELED, n_unlabeled=IMAGES)
STEPS, EPOCH = 7, 2


def slow_weights(counts: list[int]) -> list[float]:
    floored = [max(n, 1) for n in counts]
    mean = sum(floored) / len(floored)
    beta = (mean - 1) / mean
    raw = [(1 - beta) / (1 - beta**n) if beta else 1.0 for n in floored]
    return [w * len(raw) / sum(raw) for w in raw]


def slow_error(logits: Tensor, target: Tensor, weights: list[float]) -> Tensor:
    """- sum_c w_c t_c log p_c of one row."""
    log_p = logits - logits.exp().sum().log()
    return -sum(
        (weights[c] * target[c] * log_p[c] for c in range(len(weights))),
        torch.zeros((), dtype=logits.dtype),
    )


class SlowSAW:
    """FixMatch and SAW, row by row."""

    def __init__(self, threshold: float, hard: bool) -> None:
        self.threshold, self.hard = threshold, hard
        self.last: dict[int, int] = {}
        self.weights = [1.0] * CLASSES

    def step(self, networks: Networks, batch: Batch, k: int) -> Tensor:
        if k and k % EPOCH == 0:
            guesses = list(self.last.values())
            self.weights = slow_weights([guesses.count(c) for c in range(CLASSES)])
        x, weak, strong = networks.forward(batch.x, batch.views["weak"], batch.views["strong"])
        one_hot, labeled = torch.eye(CLASSES, dtype=torch.float64), slow_weights(list(COUNTS))
        loss = torch.zeros((), dtype=torch.float64)
        for b, y in enumerate(batch.y.tolist()):
            loss = loss + slow_error(x.logits[b], one_hot[y], labeled) / LABELED
        for b, image in enumerate(batch.view_index.tolist()):
            p = weak.logits[b].detach().exp()
            p = p / p.sum()
            self.last[image] = int(p.argmax())
            target = one_hot[self.last[image]] if self.hard else p**2 / (p**2).sum()
            if float(p.max()) >= self.threshold:
                loss = loss + slow_error(strong.logits[b], target, self.weights) / UNLABELED
        return loss


@pytest.mark.parametrize("hard", [True, False])
def test_fixmatch_with_saw_is_its_equations_over_several_epochs(hard: bool) -> None:
    addon = SAW(SAWConfig(), TASK)
    algorithm = FixMatch(
        FixMatchConfig(threshold=0.6, hard_labels=hard), NoRefiner(), TASK, addon
    ).double()
    labeled = slow_weights(list(COUNTS))
    assert addon.labeled_weights.tolist() == pytest.approx(labeled, rel=1e-6)  # made in float32
    addon.labeled_weights.copy_(torch.tensor(labeled, dtype=torch.float64))
    slow, networks = SlowSAW(0.6, hard), pair()
    twins, seen = copy_of(networks), set()
    for k, batch in enumerate(stream_over(IMAGES, STEPS)):
        output = algorithm.step(networks, batch, Clock(k, STEPS, EPOCH))
        expected = slow.step(twins, batch, k)
        seen.add(tuple(round(w, 6) for w in slow.weights))
        assert addon.unlabeled_weights.tolist() == pytest.approx(slow.weights, rel=1e-10)
        assert output.loss.item() == pytest.approx(expected.item(), rel=1e-10)
        learn_alike(networks, output.loss, twins, expected, rel=1e-9)
    assert len(seen) > 2


def test_soft_targets_are_not_turned_into_classes() -> None:
    addon = SAW(SAWConfig(), TASK).double()
    addon.unlabeled_weights.copy_(torch.tensor([0.4, 0.8, 1.2, 1.6], dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    logits, noise = torch.randn(2, 6, CLASSES, dtype=torch.float64, generator=generator).unbind()
    targets = torch.softmax(noise, dim=1)
    targets[2] = 0  # a row that a mask has silenced
    step = Step(pair(), stream_over(IMAGES, 1)[0], Clock(1, STEPS, EPOCH))
    rows = [slow_error(logits[b], targets[b], [0.4, 0.8, 1.2, 1.6]) for b in range(6)]
    loss = addon.unlabeled_loss(step, logits, targets)
    assert loss.item() == pytest.approx(sum(map(float, rows)) / 6, rel=1e-12)
    argmax = addon.unlabeled_loss(step, logits, targets.argmax(dim=1))
    assert abs(argmax.item() - sum(map(float, rows)) / 6) > 0.01
    mask = torch.tensor([True, False, True, True, False, True])
    masked = sum(float(row) for row, heard in zip(rows, mask.tolist(), strict=True) if heard) / 6
    loss = addon.unlabeled_loss(step, logits, targets, mask)
    assert loss.item() == pytest.approx(masked, rel=1e-12)
    labeled = [slow_error(logits[b], targets[b], addon.labeled_weights.tolist()) for b in range(6)]
    loss = addon.labeled_loss(step, logits, targets)
    assert loss.item() == pytest.approx(sum(map(float, labeled)) / 6, rel=1e-12)


def test_remixmatch_counts_too_though_it_has_no_mask() -> None:
    addon, networks = SAW(SAWConfig(), TASK), pair()
    algorithm = ReMixMatch(ReMixMatchConfig(), NoRefiner(), TASK, addon).double()
    for k, batch in enumerate(stream_over(IMAGES, 3)):
        output = seeded(k, algorithm.step, networks, batch, Clock(k, STEPS, EPOCH))
        assert bool(output.loss.isfinite())
    seen = {image for batch in stream_over(IMAGES, 3) for image in batch.view_index.tolist()}
    assert set((addon.labels >= 0).nonzero().flatten().tolist()) == seen
    assert not torch.equal(addon.unlabeled_weights, torch.ones(CLASSES, dtype=torch.float64))


def test_a_run_of_one_epoch_is_told_that_nothing_is_counted() -> None:
    addon, networks, batch = SAW(SAWConfig(), TASK), pair(), stream_over(IMAGES, 1)[0]
    (weak,) = networks.forward(batch.views["weak"])
    probs = torch.softmax(weak.logits, dim=1)
    addon.targets(Step(networks, batch, Clock(0, 50, 100)), weak, probs)
    (note,) = addon.take_notes()
    assert "one epoch of 100" in note
    addon.targets(Step(networks, batch, Clock(0, 101, 100)), weak, probs)
    assert not addon.take_notes()
