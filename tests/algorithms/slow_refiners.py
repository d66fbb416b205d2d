"""Refiners from the equations of the method (algorithms section 3), by fresh float64 solves over
plain lists.
"""

import copy
import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from semigpc.refiners import GPConfig
from semigpc.types import Batch, ModelOutput
from tests.algorithms.tiny import CLASSES


class SlowRefiner(Protocol):
    """What a reference algorithm asks."""

    def logits(self, output: ModelOutput, index: Tensor | None = None) -> Tensor:
        """The logits of a view: the network's own unless the refiner is the classifier."""

    def probs(self, site: str, output: ModelOutput, own: Tensor) -> Tensor:
        """The probabilities at a site, of which ``own`` are the algorithm's."""

    def trust(self, output: ModelOutput, probs: Tensor) -> list[float]:
        """How sure it is of each finished label."""

    def take(self, moment: str, x: ModelOutput, batch: Batch) -> None:
        """See the labelled batch."""


class Silent:
    """No refinement."""

    def logits(self, output: ModelOutput, index: Tensor | None = None) -> Tensor:
        return output.logits

    def probs(self, site: str, output: ModelOutput, own: Tensor) -> Tensor:
        return own

    def trust(self, output: ModelOutput, probs: Tensor) -> list[float]:
        return [float(row.max()) for row in probs]

    def take(self, moment: str, x: ModelOutput, batch: Batch) -> None:
        pass


@dataclass(frozen=True)
class Entry:
    feature: Tensor
    label: int
    index: int


def in_eval_mode(network: torch.nn.Module, images: Tensor) -> ModelOutput:
    """What a copy of the network says in evaluation mode; the network itself is not touched."""
    with torch.no_grad():
        output: ModelOutput = copy.deepcopy(network).eval()(images)
    return output


class SlowGP:
    """mu(x) = k(h(x), h_Q) K^-1 Y_Q solved afresh at every question; entries in a list, oldest
    first.
    """

    def __init__(self, config: GPConfig) -> None:
        assert not isinstance(config.length_scale, str)
        assert not isinstance(config.logit_scale, str), "this one does not tune"
        self.config = config
        self.length_scale = config.length_scale
        self.logit_scale = config.logit_scale
        self.entries: list[Entry] = []
        self.labels: list[int] = []
        self.steps = 0
        self.answers = 0

    def feature(self, output: ModelOutput) -> Tensor:
        h = output.heads["projection"] if self.config.feature == "projection" else output.features
        return h / (h**2).sum(dim=1, keepdim=True) ** 0.5 if self.config.l2norm else h

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        distances = (a**2).sum(dim=1)[:, None] + (b**2).sum(dim=1)[None, :] - 2 * a @ b.mT
        k = torch.exp(-distances / (2 * self.length_scale**2))
        return torch.where(k < self.config.kernel_clip, torch.zeros_like(k), k)

    def answer(self, output: ModelOutput, index: Tensor | None = None) -> Tensor:
        """z_GP (M, C), differentiable in the queries, without copies of the images ``index``."""
        queries = self.feature(output)
        n = len(self.entries)
        if n == 0:
            return queries.new_zeros(len(queries), CLASSES)
        h_Q = torch.stack([entry.feature for entry in self.entries])
        Y_Q = torch.zeros(n, CLASSES, dtype=torch.float64)
        for row, entry in enumerate(self.entries):
            Y_Q[row, entry.label] = 1.0
        K = self.kernel(h_Q, h_Q) + self.config.noise_std**2 * torch.eye(n, dtype=torch.float64)
        counts = Y_Q.sum(dim=0)
        weights = torch.ones(CLASSES, dtype=torch.float64)
        targets = Y_Q
        if self.config.class_prior == "frequency":
            targets = Y_Q - counts / n
            mean_count = n / sum(int(count) > 0 for count in counts)
            for c in range(CLASSES):
                weights[c] = (mean_count / counts[c]) ** 0.5 if counts[c] > 0 else 0.0
        k = self.kernel(queries, h_Q)
        if index is not None and self.config.exclude_same_index:
            stored = torch.tensor([entry.index for entry in self.entries])
            k = k * (stored != index[:, None])
        mu: Tensor = k @ torch.linalg.solve(K, targets)
        return self.logit_scale * weights * mu

    def logits(self, output: ModelOutput, index: Tensor | None = None) -> Tensor:
        if self.config.role != "classifier" or self.steps < self.config.warmup_steps:
            return output.logits
        self.answers += 1
        return self.answer(output, index)

    def probs(self, site: str, output: ModelOutput, own: Tensor) -> Tensor:
        config = self.config
        asked = config.role == "refine" and site == config.site
        if not asked or self.steps < config.warmup_steps:
            return own
        self.answers += 1
        with torch.no_grad():
            posterior = torch.softmax(self.answer(output), dim=1)
        rows = []
        for p, gp, logits in zip(own, posterior, output.logits.detach(), strict=True):
            b = config.blend
            if config.confidence == "agreement" and int(gp.argmax()) not in self.classes(logits):
                b = b / 2
            rows.append((1 - b) * p + b * gp)
        return torch.stack(rows)

    def classes(self, logits: Tensor) -> tuple[int, int]:
        """The network's class as it is, and less the log of the label shares."""
        plain = logits.tolist()
        freed = [z - math.log(1 + self.labels.count(c)) for c, z in enumerate(plain)]
        return plain.index(max(plain)), freed.index(max(freed))

    def trust(self, output: ModelOutput, probs: Tensor) -> list[float]:
        config = self.config
        by_label = [float(row.max()) for row in probs]
        if self.steps < config.warmup_steps or config.role == "classifier":
            return by_label
        if config.confidence == "max_softmax":
            return by_label
        assert config.confidence == "agreement"
        with torch.no_grad():
            posterior = torch.softmax(self.answer(output), dim=1)
        found = []
        rows = zip(posterior, output.logits.detach(), probs, strict=True)
        for row, logits, label in rows:
            c = int(label.argmax())
            found.append(float(row[c]) if c in self.classes(logits) else 0.0)
        return found

    def take(self, moment: str, x: ModelOutput, batch: Batch) -> None:
        if moment == self.config.push:
            self.write(self.feature(x).detach(), batch.y, batch.index)
            self.labels += batch.y.tolist()
        if moment == "after":
            self.steps += 1

    def write(self, features: Tensor, labels: Tensor, index: Tensor) -> None:
        rows = zip(features, labels.tolist(), index.tolist(), strict=True)
        self.entries += [Entry(*row) for row in rows]
        size = self.config.buffer_size
        balanced = newest_of_each_class(self.entries, size // CLASSES)
        self.entries = balanced if self.config.balanced else self.entries[-size:]


def newest_of_each_class(entries: list[Entry], room: int) -> list[Entry]:
    kept: list[Entry] = []
    counts = [0] * CLASSES
    for entry in reversed(entries):
        if counts[entry.label] < room:
            counts[entry.label] += 1
            kept.insert(0, entry)
    return kept
