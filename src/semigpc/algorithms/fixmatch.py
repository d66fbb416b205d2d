"""FixMatch (Sohn et al., 2020): confident predictions for weak views label the strong views."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from semigpc.addons import Step
from semigpc.algorithms.base import Algorithm, AlgorithmConfig
from semigpc.pseudo_labels import sharpen
from semigpc.types import Batch, Clock, Networks, PseudoLabels, StepOutput, check_ranges


@dataclass(frozen=True, kw_only=True)
class FixMatchConfig(AlgorithmConfig):
    """Options of FixMatch.

    Args:
        threshold: tau, of the refiner's confidence; without a GP that is max p_w.
        unlabeled_weight: w_u.
        hard_labels: argmax as target; otherwise the probabilities sharpened with ``temperature``.
        temperature: T, for soft targets only.
    """

    presets: ClassVar = {"digits": {"unlabeled_weight": 0.5}, "short": {"threshold": 0.8}}

    threshold: float = 0.95
    unlabeled_weight: float = 1.0
    hard_labels: bool = True
    temperature: float = 0.5

    def __post_init__(self) -> None:
        check_ranges(self, fractions=("threshold",), positive=("temperature",))


class FixMatch(Algorithm):
    """L = H(z_x, y) + w_u 1[conf(p_w) >= tau] H(z_s, argmax p_w).

    p_w is refined by f; conf is the refiner's, max p_w by default.
    """

    views = ("weak", "strong")
    takes_addons = True
    config: FixMatchConfig

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        config = self.config
        refiner = self.refiner
        addon = self.addon
        step = Step(networks, batch, clock)
        x, weak, strong = networks.forward(batch.x, batch.views["weak"], batch.views["strong"])

        refiner.observe("before", x, batch)
        logits_x = refiner.classify(x, batch.index).logits  # (B, C)
        logits_s = refiner.classify(strong).logits  # (U, C)
        with torch.no_grad():
            weak_output, probs = self.weak_probs(step, weak)  # (U, C)
            probs = addon.targets(step, weak_output, probs)
            mask = refiner.confidence(weak_output, probs) >= config.threshold  # (U,)
            if config.hard_labels:
                targets = probs.argmax(dim=1)
            else:
                targets = sharpen(probs, config.temperature)
        refiner.observe("after", x, batch)

        loss_x = addon.labeled_loss(step, logits_x, batch.y)
        loss_u = addon.unlabeled_loss(step, logits_s, targets, mask)
        output = StepOutput(
            loss_x + config.unlabeled_weight * loss_u,
            {"loss_x": loss_x, "loss_u": loss_u, "mask_rate": mask.float().mean()},
            PseudoLabels(probs, mask),
        )
        return addon.with_extra_loss(output, step, x, weak, strong)
