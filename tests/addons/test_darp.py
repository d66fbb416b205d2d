"""DARP against plain loops and bisection: labels of all images, moved to the expected shares."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.addons import DARP, DARPConfig, Step
from semigpc.addons.darp import nearest_shares, project, trim
from semigpc.algorithms.fixmatch import FixMatch, FixMatchConfig
from semigpc.refiners import NoRefiner
from semigpc.types import Batch, Clock, ModelOutput, Networks, Task
from tests.algorithms.tiny import (
    CLASSES,
    COUNTS,
    LABELED,
    UNLABELED,
    copy_of,
    learn_alike,
    pair,
    stream,
    stream_over,
)

IMAGES, STEPS = 18, 9
TASK = Task(torch.tensor(COUNTS), LABELED, UNLABELED, n_unlabeled=IMAGES)
EXACT = 1e-9  # a tolerance


def rows(n: int, seed: int = 0, scale: float = 1.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(n, CLASSES, dtype=torch.float64, generator=generator)
    return torch.softmax(scale * noise, dim=1)


def slow_trim(p: list[list[float]], counts: list[float]) -> list[list[float]]:
    out = [[0.0] * CLASSES for _ in p]
    for c in range(CLASSES):
        largest = sorted(range(len(p)), key=lambda n: -p[n][c])[: max(math.floor(2 * counts[c]), 1)]
        mass = sum(p[n][c] for n in largest)
        for n in largest:
            out[n][c] = p[n][c] * (counts[c] + 1e-6) / (mass + 1e-6)
    return [[(v + 1e-6) / sum(w + 1e-6 for w in row) for v in row] for row in out]


def slow_root(column: list[float], h: list[float], target: float) -> float:
    """Return nu with sum_n a_n exp(- nu h_n) = target, by halving: the sum falls as nu rises."""

    def excess(nu: float) -> bool:
        powers = [math.log(a) - nu * e for a, e in zip(column, h, strict=True)]
        return sum(math.exp(min(power, 700.0)) for power in powers) > target

    low, high = -1.0, 1.0
    while not excess(low):
        low *= 2
    while excess(high):
        high *= 2
    for _ in range(90):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) else (low, middle)
    return (low + high) / 2


def slow_project(
    p: list[list[float]], counts: list[float], alternations: int = 10
) -> list[list[float]]:
    h = [-sum(v * math.log(v) for v in row) for row in p]
    nu = [0.0] * CLASSES

    def shrunk() -> list[list[float]]:
        return [[v * math.exp(-nu[c] * h[n]) for c, v in enumerate(row)] for n, row in enumerate(p)]

    for _ in range(alternations):
        x = [1 / sum(row) for row in shrunk()]
        nu = [
            slow_root([x[n] * p[n][c] for n in range(len(p))], h, counts[c]) for c in range(CLASSES)
        ]
    return [[v / sum(row) for v in row] for row in shrunk()]


class SlowDARP:
    """FixMatch and DARP, image by image; every other step is a round, from the third step on."""

    def __init__(self, threshold: float, estimated: bool) -> None:
        self.threshold, self.estimated = threshold, estimated
        self.stored: dict[int, list[float]] = {}
        self.refined: dict[int, list[float]] = {}
        self.said = [[0.0] * CLASSES for _ in range(CLASSES)]
        self.mass, self.all = [0.0] * CLASSES, [0.0] * CLASSES
        self.changed, self.kept, self.estimates = 0, 0, 0

    def shares(self) -> list[float]:
        if not self.estimated or min(self.mass) == 0:
            return [n / sum(COUNTS) for n in COUNTS]
        self.estimates += 1
        rates = torch.tensor(
            [[v / self.mass[c] for v in self.said[c]] for c in range(CLASSES)], dtype=torch.float64
        )
        mean = torch.tensor([v / sum(self.all) for v in self.all], dtype=torch.float64)
        return slow_shares((mean @ torch.linalg.inv(rates)).tolist())

    def refine(self) -> None:
        shares = [max(s, 1e-6) for s in self.shares()]
        images = sorted(self.stored)
        counts = [len(images) * s / sum(shares) for s in shares]
        q = slow_project(slow_trim([self.stored[i] for i in images], counts), counts)
        self.refined = dict(zip(images, q, strict=True))

    def step(self, networks: Networks, batch: Batch, k: int) -> Tensor:
        x, weak, strong = networks.forward(batch.x, batch.views["weak"], batch.views["strong"])
        loss = torch.zeros((), dtype=torch.float64)
        for b, y in enumerate(batch.y.tolist()):
            loss = loss - (x.logits[b, y] - x.logits[b].exp().sum().log()) / LABELED
        own = [[float(v) for v in row.exp() / row.exp().sum()] for row in weak.logits.detach()]
        self.stored |= dict(zip(batch.view_index.tolist(), own, strict=True))
        if k >= 2 and k % 2 == 0:
            self.refine()
        for b, image in enumerate(batch.view_index.tolist()):
            p = self.refined.get(image, own[b])
            self.changed += max(p) >= self.threshold and image in self.refined
            self.kept += k >= 2 and image not in self.refined
            if max(p) >= self.threshold:
                z = strong.logits[b]
                loss = loss - (z[p.index(max(p))] - z.exp().sum().log()) / UNLABELED
        self.observe(x.logits.detach(), batch.y.tolist(), own)
        return loss

    def observe(self, logits: Tensor, labels: list[int], own: list[list[float]]) -> None:
        self.said = [[0.9 * v for v in row] for row in self.said]
        self.mass, self.all = [0.9 * v for v in self.mass], [0.9 * v for v in self.all]
        for row, y in zip(logits, labels, strict=True):
            self.mass[y] += 1
            self.said[y] = [
                v + float(s) for v, s in zip(self.said[y], row.exp() / row.exp().sum(), strict=True)
            ]
        for said in own:
            self.all = [v + s for v, s in zip(self.all, said, strict=True)]


def slow_shares(values: list[float]) -> list[float]:
    """The nearest shares, by trying every set of classes that may be above 0."""
    best: tuple[float, list[float]] = (math.inf, [])
    for size in range(1, len(values) + 1):
        for support in itertools.combinations(range(len(values)), size):
            shift = (sum(values[c] for c in support) - 1) / size
            shares = [values[c] - shift if c in support else 0.0 for c in range(len(values))]
            if min(shares) >= 0:
                distance = sum((s - v) ** 2 for s, v in zip(shares, values, strict=True))
                best = min(best, (distance, shares))
    return best[1]


# The projection -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.5, 1.5, 6.0])
def test_trimming_and_projecting_are_those_of_plain_loops(scale: float) -> None:
    p, counts = rows(20, scale=scale), torch.tensor([9.0, 6.0, 4.0, 1.0], dtype=torch.float64)
    trimmed = trim(p, counts, 2.0)
    slow = slow_trim(p.tolist(), counts.tolist())
    expected = torch.tensor(slow, dtype=torch.float64)
    torch.testing.assert_close(trimmed, expected, rtol=1e-12, atol=1e-15)
    q, converged = project(trimmed, counts, tolerance=EXACT)
    assert converged
    expected = torch.tensor(slow_project(slow, counts.tolist()), dtype=torch.float64)
    torch.testing.assert_close(q, expected, rtol=1e-8, atol=1e-10)
    # with the paper's tolerance
    torch.testing.assert_close(project(trimmed, counts)[0], expected, rtol=0, atol=0.01)


def test_with_enough_alternations_columns_come_to_their_counts_and_the_result_is_stationary() -> (
    None
):
    """w_n log(q_nc / p_nc) = a_n + b_c: the differences between two classes minus those of another
    row are 0.
    """
    p, counts = rows(30), torch.tensor([18.0, 7.5, 3.5, 1.0], dtype=torch.float64)
    q, converged = project(p, counts, 400, 50, 1e-10)
    assert converged
    torch.testing.assert_close(q.sum(dim=0), counts, rtol=1e-9, atol=0)
    ones = torch.ones(30, dtype=torch.float64)
    torch.testing.assert_close(q.sum(dim=1), ones, rtol=1e-14, atol=0)
    pull = (q / p).log() / -(p * p.log()).sum(dim=1, keepdim=True)
    between = pull - pull[:, :1]
    torch.testing.assert_close(between, between[:1].expand_as(between), rtol=1e-8, atol=1e-8)
    assert float(between.abs().max()) > 0.1


def test_labels_that_have_the_right_shares_are_left_alone() -> None:
    p = rows(30)
    q, converged = project(p, p.sum(dim=0))
    assert converged
    torch.testing.assert_close(q, p, rtol=1e-12, atol=1e-14)


def test_a_projection_that_does_not_converge_answers_with_what_it_was_given() -> None:
    p = rows(30)
    counts = torch.tensor([18.0, 7.5, 3.5, 1.0], dtype=torch.float64)
    broken = torch.full_like(p, torch.nan)
    for q, converged in (project(p, counts, 10, 1, 1e-9), project(broken, counts)):
        assert not converged
        assert bool(q.isnan().all()) or torch.equal(q, p)


@pytest.mark.parametrize(
    "values",
    [[0.5, 0.3, 0.2], [0.9, 0.6, -0.5], [3.0, -1.0, -1.0], [0.1, 0.1, 0.1], [-2.0, -3.0, -2.5]],
)
def test_shares_are_the_nearest_ones_that_sum_to_one(values: list[float]) -> None:
    shares = nearest_shares(torch.tensor(values, dtype=torch.float64)).tolist()
    assert shares == pytest.approx(slow_shares(values), abs=1e-12)


# The add-on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", ["labeled", "estimated"])
def test_fixmatch_with_darp_is_its_equations_over_several_rounds(counts: Any) -> None:
    config = DARPConfig(warmup=2 / STEPS, every=2, counts=counts, momentum=0.9, tolerance=EXACT)
    addon = DARP(config, TASK)
    algorithm = FixMatch(FixMatchConfig(threshold=0.6), NoRefiner(), TASK, addon).double()
    slow, networks = SlowDARP(0.6, counts == "estimated"), pair()
    twins = copy_of(networks)
    for k, batch in enumerate(stream_over(IMAGES, STEPS)):
        output = algorithm.step(networks, batch, Clock(k, STEPS, 4))
        expected = slow.step(twins, batch, k)
        assert output.loss.item() == pytest.approx(expected.item(), rel=1e-8)
        for image, row in slow.refined.items():
            assert addon.refined[image].tolist() == pytest.approx(row, rel=1e-6, abs=1e-8)
        learn_alike(networks, output.loss, twins, expected, rel=1e-7)
    assert slow.changed > 10
    assert slow.kept > 0
    assert slow.estimates > 1 or counts == "labeled"


def ready(seen: int = IMAGES, **options: Any) -> tuple[DARP, Step, ModelOutput]:
    """An add-on past its warm-up with labels of the first ``seen`` images, and a batch of ten."""
    addon, networks, batch = DARP(DARPConfig(**options), TASK).double(), pair(), stream(1)[0]
    addon.stored[:seen], addon.seen[:seen] = rows(seen), True
    with torch.no_grad():
        (weak,) = networks.forward(batch.views["weak"])
    return addon, Step(networks, batch, Clock(50, 100, 10)), weak


def test_labels_are_stored_and_left_alone_during_the_warm_up() -> None:
    addon, step, weak = ready(seen=0)
    own = rows(UNLABELED)
    assert addon.targets(step._replace(clock=Clock(39, 100, 10)), weak, own) is own
    assert addon.seen.tolist() == [True] * UNLABELED + [False] * (IMAGES - UNLABELED)
    assert not addon.is_refined.any()


@pytest.mark.parametrize("broken", [False, True])
def test_a_round_that_does_not_converge_is_noted_once_and_leaves_labels_as_they_are(
    broken: bool,
) -> None:
    addon, step, weak = ready() if broken else ready(newton_steps=1, tolerance=1e-12)
    if broken:
        addon.stored[IMAGES - 1] = torch.nan
    own = rows(UNLABELED, seed=1)
    for _ in range(2):
        assert torch.equal(addon.targets(step, weak, own), own)
    (note,) = addon.take_notes()
    assert note.startswith("DARP's projection of 18 labels did not converge")
    if broken:
        addon.stored[IMAGES - 1] = 0.25
        # the next round is a new chance
        assert not torch.equal(addon.targets(step, weak, own), own)


def test_labels_of_an_earlier_round_do_not_outlive_one_that_fails() -> None:
    addon, step, weak = ready()
    own = rows(UNLABELED, seed=1)
    assert not torch.equal(addon.targets(step, weak, own), own)
    addon.stored[IMAGES - 1] = torch.nan
    assert torch.equal(addon.targets(step, weak, own), own)
    assert torch.equal(addon.targets(step._replace(clock=Clock(51, 100, 10)), weak, own), own)


def test_labels_nobody_doubts_move_without_breaking() -> None:
    addon, step, weak = ready(every=1)
    sure = torch.eye(CLASSES, dtype=torch.float64)[torch.full((UNLABELED,), 3)]
    addon.stored.copy_(torch.eye(CLASSES, dtype=torch.float64)[torch.full((IMAGES,), 3)])
    answer = addon.targets(step, weak, sure)
    assert bool(answer.isfinite().all())
    assert answer.sum(dim=1).tolist() == pytest.approx([1.0] * UNLABELED)


# Expected counts ----------------------------------------------------------------------------------


def spoken(classes: list[int], rates: Tensor) -> ModelOutput:
    """Rows whose probabilities are those of their class in ``rates`` (C, C)."""
    return ModelOutput(rates[classes].log(), torch.zeros(len(classes), 1, dtype=torch.float64), {})


def estimate(rates: Tensor, labels: list[int], unlabeled: list[int]) -> DARP:
    addon = DARP(DARPConfig(counts="estimated"), TASK).double()
    batch = stream(1)[0]._replace(y=torch.tensor(labels))
    for k in range(3):
        weak = spoken(unlabeled, rates)
        step = Step(pair(), batch, Clock(k, 10, 10))
        assert addon.extra_loss(step, spoken(labels, rates), weak, weak) is None
    return addon


def confused(own: float) -> Tensor:
    return torch.full((CLASSES, CLASSES), (1 - own) / 3, dtype=torch.float64).fill_diagonal_(own)


def test_estimated_shares_are_those_of_the_unlabelled_images_and_not_of_the_labels() -> None:
    addon = estimate(confused(0.7), [0, 0, 0, 1, 2, 3], [3] * 6 + [2] * 3 + [1])
    assert addon._expected_shares().tolist() == pytest.approx([0, 0.1, 0.3, 0.6], abs=1e-9)
    assert not addon.take_notes()


@pytest.mark.parametrize(
    ("own", "labels", "words"),
    [(0.7, [0, 0, 1, 2], "labelled image of the classes [3]"), (0.25, [0, 1, 2, 3], "estimate")],
)
def test_shares_that_cannot_be_estimated_are_those_of_the_labels_and_are_noted_once(
    own: float, labels: list[int], words: str
) -> None:
    addon = estimate(confused(own), labels, [3, 3, 0])
    for _ in range(2):
        shares = addon._expected_shares().tolist()
        assert shares == pytest.approx([n / sum(COUNTS) for n in COUNTS])
    (note,) = addon.take_notes()
    assert words in note
    assert "shares of the labels" in note


def test_only_an_estimate_asks_for_labelled_images() -> None:
    assert not DARP(DARPConfig(), TASK).learns
    assert DARP(DARPConfig(counts="estimated"), TASK).learns


def test_a_class_without_labels_is_noted_and_gets_next_to_nothing() -> None:
    task = Task(torch.tensor([7, 5, 4, 0]), LABELED, UNLABELED, n_unlabeled=IMAGES)
    addon = DARP(DARPConfig(alternations=50), task).double()
    (note,) = addon.take_notes()
    assert "[3]" in note
    addon.stored.copy_(rows(IMAGES))
    addon.seen.fill_(True)
    addon._refine()
    assert bool(addon.is_refined.all())
    expected = [18 * n / 16 for n in (7, 5, 4, 0)]
    assert addon.refined.sum(dim=0).tolist() == pytest.approx(expected, abs=0.05)
