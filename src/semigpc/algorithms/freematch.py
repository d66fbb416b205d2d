"""FreeMatch (Wang et al., 2023): thresholds that follow the model's own confidence, class by class."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from semigpc.addons import AddOn, Step
from semigpc.pseudo_labels import count_classes
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
class FreeMatchConfig:
    """Options of FreeMatch.

    Args:
        unlabeled_weight: w_u.
        fairness_weight: w_f.
        momentum: m of the thresholds and histograms.
        quantile: of the confidences, in place of their mean, for the global threshold.
        clip: range that the global threshold is kept in; (0, 0.95) for SVHN in USB.
    """

    heads: ClassVar[dict[str, HeadSpec]] = {}
    has_threshold: ClassVar[bool] = True

    unlabeled_weight: float = 1.0
    fairness_weight: float = 0.001
    momentum: float = 0.999
    quantile: float | None = None
    clip: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_ranges(self, fractions=("momentum",))


class FreeMatch(nn.Module):
    """L = H(z_x, y) + w_u mean( 1[conf(q_b) >= tau_{argmax q_b}] H(z_s, argmax q_b) ) + w_f sum_c
    a_c log b_c.

    tau_c = tau p_c / max_j p_j with tau, p and the histogram h running averages of the weak view's
    confidences (max q_b, or what a GP has in its place), probabilities and classes; a = SN(p / h)
    and b the same of the masked strong views (SN divides by the sum).
    """

    views = ("weak", "strong")
    sites = ("semantic",)
    takes_addons = True
    threshold: Tensor
    mean_probs: Tensor
    histogram: Tensor

    def __init__(
        self, config: FreeMatchConfig, refiner: Refiner, task: Task, addon: AddOn | None = None
    ) -> None:
        super().__init__()
        self.config, self.refiner, self.addon = config, refiner, addon or AddOn.none(task)
        uniform = torch.full((task.n_classes,), 1 / task.n_classes)
        self.register_buffer("threshold", uniform[0].clone())
        self.register_buffer("mean_probs", uniform.clone())
        self.register_buffer("histogram", uniform.clone())

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
            confidence, targets = (
                refiner.confidence(weak_output, probs),
                probs.max(dim=1).indices,
            )  # (U,), (U,)
            self._follow(probs, confidence)
            mask = confidence >= self.class_thresholds().to(probs)[targets]  # (U,)
        refiner.observe("after", x, batch)

        loss_x = addon.labeled_loss(step, logits_x, batch.y)
        loss_u = addon.unlabeled_loss(step, logits_s, targets, mask)
        loss_f = self._fairness(logits_s, mask)
        output = StepOutput(
            loss_x + config.unlabeled_weight * loss_u + config.fairness_weight * loss_f,
            {
                "loss_x": loss_x,
                "loss_u": loss_u,
                "loss_f": loss_f,
                "mask_rate": mask.float().mean(),
                "threshold": self.threshold.clone(),
            },
            PseudoLabels(probs, mask),
        )
        return addon.with_extra_loss(output, step, x, weak, strong)

    def class_thresholds(self) -> Tensor:
        """tau_c, (C,): the largest of them is the global threshold."""
        return self.threshold * self.mean_probs / self.mean_probs.max()

    def _follow(self, probs: Tensor, confidence: Tensor) -> None:
        """Move the running averages by the batch (U, C), (U,), which is then judged by them."""
        m = self.config.momentum
        level = (
            confidence.mean()
            if self.config.quantile is None
            else confidence.quantile(self.config.quantile)
        )
        classes = count_classes(probs.argmax(dim=1), probs.shape[1]) / len(probs)
        for average, value in (
            (self.threshold, level),
            (self.mean_probs, probs.mean(dim=0)),
            (self.histogram, classes),
        ):
            average.mul_(m).add_((1 - m) * value.to(average))
        if self.config.clip is not None:
            self.threshold.clamp_(*self.config.clip)

    def _fairness(self, logits: Tensor, mask: Tensor) -> Tensor:
        """sum_c a_c log(b_c + 1e-12), of the strong views (U, C) that pass the mask (U,): minus a
        cross-entropy; 0 if none.
        """
        probs, passed = torch.softmax(logits, dim=1), mask.sum().clamp_min(1)
        classes = count_classes(probs.detach().argmax(dim=1), probs.shape[1], mask) / passed
        a = _share(self.mean_probs.to(probs), self.histogram.to(probs))
        b = _share((probs * mask.unsqueeze(1)).sum(dim=0) / passed, classes.to(probs))
        return torch.where(mask.any(), (a * torch.log(b + 1e-12)).sum(), 0)


def _share(probs: Tensor, histogram: Tensor) -> Tensor:
    """SN(probs / histogram), (C,), where a class that never occurs counts 0 and not infinity; 0 if
    there is no other.
    """
    scaled = probs * torch.where(histogram > 0, 1 / histogram, 0)
    total = scaled.sum()
    return scaled / torch.where(total > 0, total, 1)  # not NaN, which would reach the gradient
