"""One step of SimMatch and CoMatch from their equations (algorithms sections 7 and 8): float64,
loops, memories as lists.
"""

import torch
from torch import Tensor

from semigpc.algorithms import CoMatchConfig, SimMatchConfig
from semigpc.types import Batch, Clock, ModelOutput, Networks
from tests.algorithms.references import (
    Expected,
    align,
    forward,
    masked,
    mean,
    softmax,
    supervised_loss,
    three_views,
    weak_probs,
)
from tests.algorithms.slow_refiners import SlowRefiner, in_eval_mode
from tests.algorithms.tiny import CLASSES

UNIFORM = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)


class SlowQueue:
    """The last batch means, newest last; their mean is what alignment moves to the uniform
    distribution.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.means: list[Tensor] = []
        self.seen = 0

    def aligned(self, p: Tensor) -> Tensor:
        self.means = [*self.means, p.sum(dim=0) / len(p)][-self.length :]
        self.seen += 1
        return align(p, UNIFORM, torch.stack(self.means).sum(dim=0) / len(self.means))

    def state(self) -> dict[str, Tensor]:
        """As a ring: mean number k stands in slot k mod length, slots never written hold 0."""
        ring = torch.zeros(self.length, CLASSES, dtype=torch.float64)
        for back, row in enumerate(reversed(self.means)):
            ring[(self.seen - 1 - back) % self.length] = row
        return {
            "alignment.means": ring,
            "alignment.seen": torch.tensor(self.seen),
            "alignment.target": UNIFORM,
        }


class SlowSimMatch:
    """``start`` is the algorithm's random bank; ``written[i]``: whether image i has been seen."""

    def __init__(self, config: SimMatchConfig, refiner: SlowRefiner, start: Tensor) -> None:
        self.config, self.refiner = config, refiner
        self.queue = SlowQueue(config.alignment_batches)
        self.rows = list(start.clone())
        self.labels = [0] * len(start)
        self.written = [False] * len(start)

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> Expected:
        config = self.config
        x, weak, strong = three_views(networks.student, batch)
        if config.bank == "full_teacher":
            weak = in_eval_mode(networks.teacher, batch.views["weak"])
        remembered = in_eval_mode(networks.teacher, batch.x) if config.bank == "full_teacher" else x
        self.refiner.take("before", remembered, batch)
        p_w = self.queue.aligned(weak_probs(self.refiner, weak))
        phat, loss_in = self.refiner.probs("final", weak, p_w), torch.zeros((), dtype=torch.float64)
        if clock.epoch > 0:
            phat, targets = self.smoothed(weak, p_w)
            loss_in = self.instance_loss(strong, targets)
        mask = [sure >= config.threshold for sure in self.refiner.trust(weak, phat)]
        loss_x = supervised_loss(self.refiner.logits(x, batch.index), batch.y)
        loss_u = masked(self.refiner.logits(strong), list(phat), mask)
        loss = loss_x + config.unlabeled_weight * loss_u + config.instance_weight * loss_in
        self.write(networks, x, batch)
        self.refiner.take("after", remembered, batch)
        return Expected(loss, {"loss_x": loss_x, "loss_u": loss_u, "loss_in": loss_in}, phat, mask)

    def similarities(self, e: Tensor) -> Tensor:
        """softmax over the written slots of e . E_j / T; 0 elsewhere."""
        slots = [j for j, written in enumerate(self.written) if written]
        s = torch.zeros(len(self.rows), dtype=torch.float64)
        products = torch.stack([(e * self.rows[j]).sum() for j in slots])
        s[slots] = softmax(products / self.config.temperature)
        return s

    def smoothed(self, weak: ModelOutput, p_w: Tensor) -> tuple[Tensor, list[Tensor]]:
        """phat (U, C), and the instance target of each image."""
        a = self.config.smoothing
        s = [self.similarities(e) for e in weak.heads["projection"].detach()]
        aggregate = torch.zeros_like(p_w)
        for b, row in enumerate(s):
            for j, label in enumerate(self.labels):
                aggregate[b, label] += row[j]
        aggregate = self.refiner.probs("aggregate", weak, aggregate)
        phat = self.refiner.probs("final", weak, a * p_w + (1 - a) * aggregate)
        unfolding = self.refiner.probs("final", weak, p_w)
        targets = []
        for b, row in enumerate(s):
            q = torch.stack([row[j] * unfolding[b, label] for j, label in enumerate(self.labels)])
            targets.append(q / q.sum())
        return phat, targets

    def instance_loss(self, strong: ModelOutput, targets: list[Tensor]) -> Tensor:
        losses = []
        for e, q in zip(strong.heads["projection"], targets, strict=True):
            s = self.similarities(e)
            terms = [-q[j] * torch.log(s[j]) for j in range(len(q)) if self.written[j]]
            losses.append(torch.stack(terms).sum())
        return mean(losses)

    def write(self, networks: Networks, x: ModelOutput, batch: Batch) -> None:
        config = self.config
        if config.bank == "momentum":
            e = x.heads["projection"].detach()
            m = config.bank_momentum
            new = [m * self.rows[i] + (1 - m) * e[b] for b, i in enumerate(batch.index.tolist())]
            new = [row / row.pow(2).sum().sqrt() for row in new]
        else:
            new = list(in_eval_mode(networks.teacher, batch.x).heads["projection"])
        entries = zip(new, batch.y.tolist(), batch.index.tolist(), strict=True)
        for row, label, i in entries:  # the last of two copies stays
            self.rows[i], self.labels[i], self.written[i] = row, label, True

    def state(self) -> dict[str, Tensor]:
        own = {
            "bank": torch.stack(self.rows),
            "bank_labels": torch.tensor(self.labels),
            "visited": torch.tensor(self.written),
        }
        return {**own, **self.queue.state()}


class SlowCoMatch:
    def __init__(self, config: CoMatchConfig, refiner: SlowRefiner, rows: int) -> None:
        self.config, self.refiner, self.rows = config, refiner, rows
        self.queue = SlowQueue(config.alignment_batches)
        self.memory: list[tuple[Tensor, Tensor]] = []  # (feature, probabilities), oldest first
        self.pushed = 0

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> Expected:
        config = self.config
        views = [batch.views[name] for name in ("weak", "strong", "strong2")]
        x, weak, strong, strong2 = forward(networks.student, batch.x, *views)
        self.refiner.take("before", x, batch)
        p0 = self.queue.aligned(weak_probs(self.refiner, weak))
        e_w = weak.heads["projection"].detach()
        p = p0
        if len(self.memory) == self.rows:
            answers = torch.stack([self.recall(e) for e in e_w])
            answers = self.refiner.probs("aggregate", weak, answers)
            p = config.smoothing * p0 + (1 - config.smoothing) * answers
        mask = [sure >= config.threshold for sure in self.refiner.trust(weak, p)]
        one_hot = torch.eye(CLASSES, dtype=torch.float64)[batch.y]
        e_x = x.heads["projection"].detach()
        entries = [*zip(e_w, p0, strict=True), *zip(e_x, one_hot, strict=True)]
        self.memory = [*self.memory, *entries][-self.rows :]
        self.pushed += len(entries)
        loss_x = supervised_loss(self.refiner.logits(x, batch.index), batch.y)
        loss_u = masked(self.refiner.logits(strong), list(p), mask)
        loss_c = self.contrast(p, strong.heads["projection"], strong2.heads["projection"])
        loss = loss_x + config.unlabeled_weight * loss_u + config.contrastive_weight * loss_c
        self.refiner.take("after", x, batch)
        return Expected(loss, {"loss_x": loss_x, "loss_u": loss_u, "loss_c": loss_c}, p, mask)

    def recall(self, e: Tensor) -> Tensor:
        products = torch.stack([(e * feature).sum() for feature, _ in self.memory])
        weights = softmax(products / self.config.temperature)
        total = torch.zeros(CLASSES, dtype=torch.float64)
        for weight, (_, probs) in zip(weights, self.memory, strict=True):
            total = total + weight * probs
        return total

    def contrast(self, p: Tensor, e0: Tensor, e1: Tensor) -> Tensor:
        n = len(p)
        losses = []
        for i in range(n):
            agreement = torch.stack([(p[i] * p[j]).sum() for j in range(n)])
            agreement[i] = 1
            low = agreement < self.config.graph_threshold
            joined = torch.where(low, 0.0, agreement)
            joined = joined / joined.sum()
            products = torch.stack([(e0[i] * e1[j]).sum() for j in range(n)])
            similar = softmax(products / self.config.temperature)
            losses.append((-joined * torch.log(similar + 1e-7)).sum())
        return mean(losses)

    def state(self) -> dict[str, Tensor]:
        """As a ring: row number k stands in slot k mod rows, slots never written hold 0."""
        features = torch.zeros(self.rows, self.config.projection, dtype=torch.float64)
        probs = torch.zeros(self.rows, CLASSES, dtype=torch.float64)
        for back, (feature, row) in enumerate(reversed(self.memory)):
            slot = (self.pushed - 1 - back) % self.rows
            features[slot], probs[slot] = feature, row
        own = {"features": features, "probs": probs, "pushed": torch.tensor(self.pushed)}
        return {**own, **self.queue.state()}
