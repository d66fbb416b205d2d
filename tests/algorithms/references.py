"""One step of each algorithm from its equations (algorithms sections 2, 4, 5, 6): float64, loops
over images and classes.

Every reference carries its own state from step to step. Those with a memory are in
``references_memory.py``.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from semigpc.algorithms import FixMatchConfig, FreeMatchConfig, ReMixMatchConfig
from semigpc.types import Batch, Clock, ModelOutput, Networks
from tests.algorithms.slow_refiners import SlowRefiner
from tests.algorithms.tiny import CLASSES, COUNTS


class Expected(NamedTuple):
    """What a step should answer: its loss, the loss's named terms, and what it believed."""

    loss: Tensor
    terms: dict[str, Tensor]
    probs: Tensor | None = None
    mask: list[bool] | None = None


class Reference(Protocol):
    """A reference of an algorithm."""

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> Expected: ...

    def state(self) -> dict[str, Tensor]:
        """Its state under the names of the algorithm's own ``state_dict``."""


def softmax(z: Tensor) -> Tensor:
    """exp(z_c) / sum_j exp(z_j), of one row."""
    powers = torch.exp(z - z.max())
    return powers / powers.sum()


def cross_entropy(z: Tensor, t: Tensor | int) -> Tensor:
    """H(z, t) of one row: t a class, or a row of probabilities."""
    log_probs = z - z.max() - torch.log(torch.exp(z - z.max()).sum())
    if isinstance(t, int):
        return -log_probs[t]
    total = z.new_zeros(())
    for c in range(len(z)):
        total = total - t[c] * log_probs[c]
    return total


def mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).sum() / len(values)


def supervised_loss(z: Tensor, y: Tensor) -> Tensor:
    return mean([cross_entropy(z[b], int(y[b])) for b in range(len(y))])


def masked(z_s: Tensor, targets: Sequence[Tensor | int], mask: Sequence[bool]) -> Tensor:
    """L_u: the mean is over the whole batch, whatever the mask lets through."""
    rows = zip(z_s, targets, mask, strict=True)
    return mean([float(m) * cross_entropy(z, t) for z, t, m in rows])


def align(p: Tensor, q: Tensor, r: Tensor) -> Tensor:
    rows = []
    for row in p:
        moved = torch.stack([row[c] * (q[c] + 1e-6) / (r[c] + 1e-6) for c in range(len(q))])
        rows.append(moved / moved.sum())
    return torch.stack(rows)


def sharpen(p: Tensor, temperature: float) -> Tensor:
    powers = [row ** (1 / temperature) for row in p]
    return torch.stack([row / row.sum() for row in powers])


def weak_probs(refiner: SlowRefiner, weak: ModelOutput) -> Tensor:
    """softmax of the weak logits, refined; no gradient."""
    z = refiner.logits(weak).detach()
    return refiner.probs("semantic", weak, torch.stack([softmax(row) for row in z]))


def forward(network: nn.Module, *parts: Tensor) -> list[ModelOutput]:
    """One pass over all parts together, cut afterwards."""
    output: ModelOutput = network(torch.cat(parts))
    pieces, start = [], 0
    for part in parts:
        rows = slice(start, start + len(part))
        heads = {name: values[rows] for name, values in output.heads.items()}
        pieces.append(ModelOutput(output.logits[rows], output.features[rows], heads))
        start += len(part)
    return pieces


def three_views(student: nn.Module, batch: Batch) -> list[ModelOutput]:
    """What it says of the labelled images, the weak and the strong views, in one pass."""
    return forward(student, batch.x, batch.views["weak"], batch.views["strong"])


class SlowSupervised:
    def __init__(self, refiner: SlowRefiner) -> None:
        self.refiner = refiner

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> Expected:
        (x,) = forward(networks.student, batch.x)
        self.refiner.take("before", x, batch)
        loss = supervised_loss(self.refiner.logits(x, batch.index), batch.y)
        self.refiner.take("after", x, batch)
        return Expected(loss, {"loss_x": loss})

    def state(self) -> dict[str, Tensor]:
        return {}


class SlowFixMatch:
    def __init__(self, config: FixMatchConfig, refiner: SlowRefiner) -> None:
        self.config, self.refiner = config, refiner

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> Expected:
        x, weak, strong = three_views(networks.student, batch)
        self.refiner.take("before", x, batch)
        p = weak_probs(self.refiner, weak)
        mask = [sure >= self.config.threshold for sure in self.refiner.trust(weak, p)]
        targets: list[Tensor | int] = [int(row.argmax()) for row in p]
        if not self.config.hard_labels:
            targets = list(sharpen(p, self.config.temperature))
        loss_x = supervised_loss(self.refiner.logits(x, batch.index), batch.y)
        loss_u = masked(self.refiner.logits(strong), targets, mask)
        self.refiner.take("after", x, batch)
        loss = loss_x + self.config.unlabeled_weight * loss_u
        return Expected(loss, {"loss_x": loss_x, "loss_u": loss_u}, p, mask)

    def state(self) -> dict[str, Tensor]:
        return {}


class SlowFreeMatch:
    def __init__(self, config: FreeMatchConfig, refiner: SlowRefiner) -> None:
        self.config, self.refiner = config, refiner
        self.tau = torch.tensor(1 / CLASSES, dtype=torch.float64)
        self.p = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
        self.h = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> Expected:
        x, weak, strong = three_views(networks.student, batch)
        self.refiner.take("before", x, batch)
        q = weak_probs(self.refiner, weak)
        trust = self.refiner.trust(weak, q)
        self.follow(q, torch.tensor(trust, dtype=torch.float64))
        thresholds = [self.tau * self.p[c] / max(self.p) for c in range(CLASSES)]
        targets: list[Tensor | int] = [int(row.argmax()) for row in q]
        mask = [bool(trust[row] >= thresholds[c]) for row, c in enumerate(q.argmax(dim=1).tolist())]
        loss_x = supervised_loss(self.refiner.logits(x, batch.index), batch.y)
        z_s = self.refiner.logits(strong)
        loss_u = masked(z_s, targets, mask)
        loss_f = self.fairness([softmax(z) for z, m in zip(z_s, mask, strict=True) if m])
        loss = loss_x + self.config.unlabeled_weight * loss_u + self.config.fairness_weight * loss_f
        self.refiner.take("after", x, batch)
        terms = {"loss_x": loss_x, "loss_u": loss_u, "loss_f": loss_f, "threshold": self.tau}
        return Expected(loss, terms, q, mask)

    def follow(self, q: Tensor, confidences: Tensor) -> None:
        m = self.config.momentum
        if self.config.quantile is None:
            typical = confidences.sum() / len(q)
        else:
            typical = torch.quantile(confidences, self.config.quantile)
        self.tau = m * self.tau + (1 - m) * typical
        if self.config.clip is not None:
            self.tau = self.tau.clamp(*self.config.clip)
        self.p = m * self.p + (1 - m) * q.sum(dim=0) / len(q)
        self.h = m * self.h + (1 - m) * histogram(list(q))

    def fairness(self, passed: list[Tensor]) -> Tensor:
        if not passed:
            return torch.zeros((), dtype=torch.float64)
        pbar = torch.stack(passed).sum(dim=0) / len(passed)
        a, b = share(self.p, self.h), share(pbar, histogram(passed))
        total = torch.zeros((), dtype=torch.float64)
        for c in range(CLASSES):
            total = total + a[c] * torch.log(b[c] + 1e-12)
        return total

    def state(self) -> dict[str, Tensor]:
        return {"threshold": self.tau, "mean_probs": self.p, "histogram": self.h}


def histogram(rows: list[Tensor]) -> Tensor:
    """How often each class is the largest, as shares."""
    counts = torch.zeros(CLASSES, dtype=torch.float64)
    for row in rows:
        counts[int(row.argmax())] += 1
    return counts / len(rows)


def share(p: Tensor, h: Tensor) -> Tensor:
    """SN(p / h), where 1/0 counts 0."""
    ratio = torch.stack([p[c] / h[c] if h[c] > 0 else p[c] * 0 for c in range(CLASSES)])
    return ratio / ratio.sum()


class SlowReMixMatch:
    """Every un-mixed view and every mixed chunk goes through in a pass of its own."""

    def __init__(self, config: ReMixMatchConfig, refiner: SlowRefiner) -> None:
        self.config, self.refiner = config, refiner
        self.q = torch.tensor([count / sum(COUNTS) for count in COUNTS], dtype=torch.float64)
        self.r: Tensor | None = None

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> Expected:
        config, student = self.config, networks.student
        turns, weight, order = self.draw(batch)
        with torch.no_grad():
            x, weak = untouched(student, batch.x), untouched(student, batch.views["weak"])
        self.refiner.take("before", x, batch)
        p = self.aligned(weak_probs(self.refiner, weak))
        t = sharpen(p, config.temperature)
        mask = [sure > 0 for sure in self.refiner.trust(weak, p)]
        used = t * torch.tensor(mask, dtype=torch.float64)[:, None]
        one_hot = torch.eye(CLASSES, dtype=torch.float64)[batch.y]
        views = [batch.views[name] for name in ("strong", "strong2", "weak")]
        images = torch.cat([batch.x, *views])
        labels = torch.cat([one_hot, used, used, used])
        mixed = weight * images + (1 - weight) * images[order]
        mixed_labels = weight * labels + (1 - weight) * labels[order]
        size = len(batch.x)
        first = self.refiner.logits(forward(student, mixed[:size])[0])
        pieces = [untouched(student, piece) for piece in mixed[size:].split(size)]
        rest = torch.cat([self.refiner.logits(piece) for piece in pieces])
        strong = untouched(student, batch.views["strong"])
        loss_x = masked(first, list(mixed_labels[:size]), [True] * size)
        loss_mix = masked(rest, list(mixed_labels[size:]), [True] * len(rest))
        loss_pre = masked(self.refiner.logits(strong), list(t), mask)
        loss_rot = torch.zeros((), dtype=torch.float64)
        if config.rotation_weight:
            loss_rot = self.rotation(student, batch, turns)
        ramp = min(max(clock.step / (config.warmup * clock.total_steps), 0.0), 1.0)
        ramped = config.unlabeled_weight * loss_mix + config.premix_weight * loss_pre
        loss = loss_x + ramp * ramped + config.rotation_weight * loss_rot
        self.refiner.take("after", x, batch)
        terms = {"loss_x": loss_x, "loss_u": loss_mix, "loss_pre": loss_pre, "loss_rot": loss_rot}
        return Expected(loss, terms, t, mask)

    def rotation(self, student: nn.Module, batch: Batch, turns: Tensor) -> Tensor:
        pairs = zip(batch.views["strong"], turns, strict=True)
        turned = torch.stack([turn(image, int(k)) for image, k in pairs])
        guesses = untouched(student, turned).heads["rotation"]
        return supervised_loss(guesses, turns)

    def draw(self, batch: Batch) -> tuple[Tensor, float, Tensor]:
        """Quarter turns, mixing weight, permutation, in this order."""
        turns = torch.randint(4, (len(batch.views["weak"]),))
        sample = float(torch.distributions.Beta(self.config.mixup, self.config.mixup).sample())
        order = torch.randperm(len(batch.x) + 3 * len(batch.views["weak"]))
        return turns, max(sample, 1 - sample), order

    def aligned(self, p: Tensor) -> Tensor:
        current = p.sum(dim=0) / len(p)
        m = self.config.alignment_momentum
        self.r = current if self.r is None else m * self.r + (1 - m) * current
        return align(p, self.q, self.r)

    def state(self) -> dict[str, Tensor]:
        assert self.r is not None
        return {
            "alignment.average": self.r,
            "alignment.target": self.q,
            "alignment.started": torch.tensor(True),
        }


def untouched(network: nn.Module, images: Tensor) -> ModelOutput:
    """A pass in the network's own mode that moves throw-away copies of its buffers."""
    buffers = {name: value.clone() for name, value in network.named_buffers()}
    output: ModelOutput = torch.func.functional_call(network, buffers, (images,))
    return output


def turn(image: Tensor, quarters: int) -> Tensor:
    """(3, H, W) turned by quarters counter-clockwise: the right column becomes the top row."""
    for _ in range(quarters % 4):
        side = image.shape[-1]
        turned = torch.empty_like(image)
        for row in range(side):
            for column in range(side):
                turned[:, row, column] = image[:, column, side - 1 - row]
        image = turned
    return image
