"""DARP by plain loops and bisection."""

import itertools
import math

import torch
from torch import Tensor

from semigpc.types import Batch, Networks
from tests.algorithms.tiny import CLASSES, COUNTS, LABELED, UNLABELED


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
