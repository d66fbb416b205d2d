"""ReMixMatch (Berthelot et al., 2020): sharpened labels on mixed images, and a rotation task."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.addons import Step
from semigpc.algorithms.base import Algorithm, AlgorithmConfig
from semigpc.pseudo_labels import EMAAlignment, one_hot, sharpen
from semigpc.types import (
    Batch,
    Clock,
    HeadSpec,
    ModelOutput,
    Networks,
    PseudoLabels,
    StepOutput,
    Task,
    check_ranges,
)


@dataclass(frozen=True, kw_only=True)
class ReMixMatchConfig(AlgorithmConfig):
    """Options of ReMixMatch.

    Args:
        temperature: T of the sharpening.
        mixup: alpha of the Beta distribution that mixing weights come from.
        unlabeled_weight: of the mixed unlabelled images.
        premix_weight: of the un-mixed strong view.
        rotation_weight: of the rotation task; 0 leaves the task and its head out, as training on
            features of a frozen network requires.
        threshold: labels below this confidence are not used, mixed or not; 0 uses all of them, as
            the paper does, but those to which a refiner gives a confidence of 0.
        warmup: share of training over which the first two weights rise from 0.
        alignment_momentum: of the distribution alignment.
    """

    presets: ClassVar = {
        "digits": {"unlabeled_weight": 0.75},
        "short": {"alignment_momentum": 0.99},
        "frozen": {"rotation_weight": 0.0},  # features cannot be rotated
    }
    small_ratio: ClassVar[int] = 1  # as in the classic recipes; each image is seen three times

    temperature: float = 0.5
    mixup: float = 0.75
    unlabeled_weight: float = 1.5
    premix_weight: float = 0.5
    rotation_weight: float = 0.5
    threshold: float = 0.0
    warmup: float = 1 / 64
    alignment_momentum: float = 0.999

    def __post_init__(self) -> None:
        check_ranges(
            self,
            fractions=("alignment_momentum", "warmup", "threshold"),
            positive=("temperature", "mixup"),
        )

    @property
    def heads(self) -> dict[str, HeadSpec]:
        """The classifier of quarter turns."""
        return {"rotation": HeadSpec("linear", 4)} if self.rotation_weight else {}

    def conflict(self, *, frozen: bool, average: bool) -> str | None:
        """Return why these options do not fit a run on cached features, or None."""
        if frozen and self.rotation_weight:
            return "cached features cannot be rotated; set algorithm.rotation_weight=0."
        return None


class ReMixMatch(Algorithm):
    """L = H(z~_x, y~_x) + w(t) ( w_u H(z~_u, y~_u) + w_pre H(z_s, t) ) + w_rot H(z_rot, turns).

    t = sharpen(DA(p_w)); the tilde marks mixup over labelled and unlabelled images together; z_rot
    are logits for the quarter turns of the rotated u_s. Batch normalisation learns its statistics
    from the first mixed chunk only. Draws from torch's generator, in this order: quarter turns,
    mixing weight, permutation.
    """

    views = ("weak", "strong", "strong2")
    takes_addons = True
    config: ReMixMatchConfig

    def prepare(self, task: Task) -> None:
        shares = task.class_counts / task.n_labeled
        self.alignment = EMAAlignment(shares, self.config.alignment_momentum)

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        config = self.config
        refiner = self.refiner
        addon = self.addon
        step = Step(networks, batch, clock)
        student = networks.student
        strong = batch.views["strong"]

        with torch.no_grad(), frozen_statistics(student):
            weak: ModelOutput = student(batch.views["weak"])
            x: ModelOutput | None = None  # un-mixed, for the memory
            if refiner.observes:
                x = student(batch.x)
                refiner.observe("before", x, batch)
            weak_output, probs = self.weak_probs(step, weak)  # (U, C)
            aligned = addon.targets(step, weak_output, self.alignment(probs))
            targets = sharpen(aligned, config.temperature)  # (U, C)
            mask = self._mask(weak_output, aligned)  # (U,)
            # H is linear in the label: rows of zeros add nothing, mixed or not
            masked_targets = targets * mask.unsqueeze(1)
            turns = torch.randint(4, (len(strong),), device=strong.device)
            images, labels = self._mixed(batch, masked_targets)

        first, *rest = images.split(len(batch.x))
        logits_x = refiner.classify(student(first)).logits
        with frozen_statistics(student):
            logits_u = torch.cat([refiner.classify(student(chunk)).logits for chunk in rest])
            strong_output: ModelOutput = student(strong)
            logits_s = refiner.classify(strong_output).logits
            if addon.learns:
                x = student(batch.x)  # again, with gradient: the mixed images have no single class
            loss_rot = self._rotation_loss(student, strong, turns)
        if x is not None:
            refiner.observe("after", x, batch)

        loss_x = addon.labeled_loss(step, logits_x, labels[: len(first)])
        loss_u = addon.unlabeled_loss(step, logits_u, labels[len(first) :])
        loss_pre = addon.unlabeled_loss(step, logits_s, masked_targets)
        ramp = min(clock.step / (config.warmup * clock.total_steps), 1.0) if config.warmup else 1.0
        output = StepOutput(
            loss_x
            + ramp * (config.unlabeled_weight * loss_u + config.premix_weight * loss_pre)
            + config.rotation_weight * loss_rot,
            {"loss_x": loss_x, "loss_u": loss_u, "loss_pre": loss_pre, "loss_rot": loss_rot},
            PseudoLabels(targets, mask),
        )
        return output if x is None else addon.with_extra_loss(output, step, x, weak, strong_output)

    def _mixed(self, batch: Batch, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return all views with their labels, mixed: labelled, strong, second strong, weak."""
        views = batch.views
        images = torch.cat([batch.x, views["strong"], views["strong2"], views["weak"]])
        labeled = one_hot(batch.y, targets.shape[1]).to(targets)
        labels = torch.cat([labeled, targets, targets, targets])
        return mixup(images, labels, self.config.mixup)

    def _mask(self, weak: ModelOutput, probs: Tensor) -> Tensor:
        """Return which labels (U, C), before sharpening, are used, (U,)."""
        confidence = self.refiner.confidence(weak, probs)
        return (confidence >= self.config.threshold) & (confidence > 0)

    def _rotation_loss(self, student: nn.Module, images: Tensor, turns: Tensor) -> Tensor:
        """Return the cross-entropy of the head that predicts the quarter turns (U,)."""
        if not self.config.rotation_weight:
            return torch.zeros((), device=images.device)
        # all four, so that ``turns`` stays on the device
        turned = torch.stack([images.rot90(k, dims=(2, 3)) for k in range(4)])
        turned = turned[turns, torch.arange(len(turns), device=turns.device)]
        return F.cross_entropy(student(turned).heads["rotation"], turns)


def mixup(images: Tensor, labels: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Return a v + (1 - a) v[pi] for images (M, 3, H, W) and labels (M, C).

    One a = max(b, 1 - b) for the whole batch, b ~ Beta(alpha, alpha).
    """
    b = float(torch.distributions.Beta(alpha, alpha).sample())
    a = max(b, 1 - b)
    order = torch.randperm(len(images)).to(images.device, non_blocking=True)
    return a * images + (1 - a) * images[order], a * labels + (1 - a) * labels[order]


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Normalise by batch statistics as in training, without updating the running statistics."""
    norm = nn.modules.batchnorm._BatchNorm
    layers = [layer for layer in network.modules() if isinstance(layer, norm)]
    tracking = [layer.track_running_stats for layer in layers]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer, was in zip(layers, tracking, strict=True):
            layer.track_running_stats = was
