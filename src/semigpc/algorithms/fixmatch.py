"""FixMatch (Sohn et al., 2020): the weak view's confident opinion is the strong view's label."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from semigpc.addons import AddOn, Step
from semigpc.pseudo_labels import sharpen
from semigpc.refiners import Refiner
from semigpc.types import (
    Batch,
    Clock,
    HeadSpec,
    Networks,
    PseudoLabels,
    StepOutput,
    Task,
    check_ranges,
)


@dataclass(frozen=True, kw_only=True)
class FixMatchConfig:
    """Options of FixMatch.

    Args:
        threshold: tau, of the refiner's confidence; without a GP that is max p_w.
        unlabeled_weight: w_u.
        hard_labels: argmax as target; otherwise the probabilities sharpened with ``temperature``.
        temperature: T, for soft targets only.
    """

    heads: ClassVar[dict[str, HeadSpec]] = {}
    threshold: float = 0.95
    unlabeled_weight: float = 1.0
    hard_labels: bool = True
    temperature: float = 0.5

    def __post_init__(self) -> None:
        check_ranges(self, fractions=("threshold",), positive=("temperature",))


class FixMatch(nn.Module):
    """L = H(z_x, y) + w_u 1[conf(p_w) >= tau] H(z_s, argmax p_w), with p_w refined by f; conf is
    max unless f knows better.
    """

    views = ("weak", "strong")
    sites = ("semantic",)
    takes_addons = True

    def __init__(
        self, config: FixMatchConfig, refiner: Refiner, task: Task, addon: AddOn | None = None
    ) -> None:
        super().__init__()
        self.config, self.refiner, self.addon = config, refiner, addon or AddOn.none(task)

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        config, refiner, addon, step = (
            self.config,
            self.refiner,
            self.addon,
            Step(networks, batch, clock),
        )
        x, weak, strong = networks.forward(batch.x, batch.views["weak"], batch.views["strong"])

        refiner.observe("before", x, batch)
        logits_x = refiner.classify(x, batch.index).logits  # (B, C)
        logits_s = refiner.classify(strong).logits  # (U, C)
        with torch.no_grad():
            weak_output = addon.weak(step, weak)
            probs = refiner.refine(
                "semantic", weak_output, refiner.classify(weak_output).logits.softmax(dim=1)
            )  # (U, C)
            probs = addon.targets(step, weak_output, addon.opinion(step, weak_output, probs))
            mask = refiner.confidence(weak_output, probs) >= config.threshold  # (U,)
            targets = (
                probs.argmax(dim=1) if config.hard_labels else sharpen(probs, config.temperature)
            )
        refiner.observe("after", x, batch)

        loss_x = addon.labeled_loss(step, logits_x, batch.y)
        loss_u = addon.unlabeled_loss(step, logits_s, targets, mask)
        output = StepOutput(
            loss_x + config.unlabeled_weight * loss_u,
            {"loss_x": loss_x, "loss_u": loss_u, "mask_rate": mask.float().mean()},
            PseudoLabels(probs, mask),
        )
        return addon.with_extra_loss(output, step, x, weak, strong)
