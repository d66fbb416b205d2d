"""FreeMatch (Wang et al., 2023): one threshold per class, from the model's own confidence."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from semigpc.addons import Step
from semigpc.algorithms.base import Algorithm, AlgorithmConfig
from semigpc.pseudo_labels import count_classes
from semigpc.types import Batch, Clock, Networks, PseudoLabels, StepOutput, Task, check_ranges


@dataclass(frozen=True, kw_only=True)
class FreeMatchConfig(AlgorithmConfig):
    """Options of FreeMatch.

    Args:
        unlabeled_weight: w_u.
        fairness_weight: w_f.
        momentum: m of the thresholds and histograms.
        quantile: of the confidences, in place of their mean, for the global threshold.
        clip: range that the global threshold is kept in; (0, 0.95) for SVHN in USB.
    """

    presets: ClassVar = {"digits": {"unlabeled_weight": 0.5}, "short": {"momentum": 0.99}}

    unlabeled_weight: float = 1.0
    fairness_weight: float = 0.001
    momentum: float = 0.999
    quantile: float | None = None
    clip: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_ranges(self, fractions=("momentum",))

    @property
    def has_threshold(self) -> bool:
        """True: the thresholds are computed in training."""
        return True


class FreeMatch(Algorithm):
    """L = H(z_x, y) + w_u mean_b( m_b H(z_s, argmax q_b) ) + w_f sum_c a_c log b_c.

    q_b is the weak view's label and m_b = 1[ conf(q_b) >= tau_c ], c = argmax q_b.
    tau_c = tau p_c / max_j p_j with tau, p and the histogram h running averages of the weak view's
    confidences (max q_b, or what a GP has in its place), probabilities and classes; a = SN(p / h)
    and b the same of the masked strong views (SN divides by the sum).
    """

    views = ("weak", "strong")
    takes_addons = True
    config: FreeMatchConfig
    threshold: Tensor
    mean_probs: Tensor
    histogram: Tensor

    def prepare(self, task: Task) -> None:
        uniform = torch.full((task.n_classes,), 1 / task.n_classes)
        self.register_buffer("threshold", uniform[0].clone())
        self.register_buffer("mean_probs", uniform.clone())
        self.register_buffer("histogram", uniform.clone())

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
            confidence = refiner.confidence(weak_output, probs)  # (U,)
            targets = probs.max(dim=1).indices  # (U,)
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
        """Update the running averages with the batch (U, C), (U,), before its mask is computed."""
        m = self.config.momentum
        if self.config.quantile is None:
            level = confidence.mean()
        else:
            level = confidence.quantile(self.config.quantile)
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
        """sum_c a_c log(b_c + 1e-12) over strong views (U, C) in the mask (U,); 0 without any."""
        probs = torch.softmax(logits, dim=1)
        passed = mask.sum().clamp_min(1)
        classes = count_classes(probs.detach().argmax(dim=1), probs.shape[1], mask) / passed
        a = _share(self.mean_probs.to(probs), self.histogram.to(probs))
        b = _share((probs * mask.unsqueeze(1)).sum(dim=0) / passed, classes.to(probs))
        return torch.where(mask.any(), (a * torch.log(b + 1e-12)).sum(), 0)


def _share(probs: Tensor, histogram: Tensor) -> Tensor:
    """SN(probs / histogram), (C,); a class that never occurs has 0, not infinity."""
    scaled = probs * torch.where(histogram > 0, 1 / histogram, 0)
    total = scaled.sum()
    return scaled / torch.where(total > 0, total, 1)  # not NaN, which would reach the gradient
