"""ReMixMatch (Berthelot et al., 2020): aligned, sharpened labels on mixed images, and a rotation to
guess.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.addons import AddOn, Step
from semigpc.pseudo_labels import EMAAlignment, one_hot, sharpen
from semigpc.refiners import Refiner
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
class ReMixMatchConfig:
    """Options of ReMixMatch.

    Args:
        temperature: T of the sharpening.
        mixup: alpha of the Beta distribution that mixing weights come from.
        unlabeled_weight: of the mixed unlabelled images.
        premix_weight: of the un-mixed strong view.
        rotation_weight: of the rotation to guess; 0 leaves that task and its head out, as features
            of a frozen network need.
        threshold: labels of which the refiner is less sure than this say nothing, mixed or not; 0,
            none, is ReMixMatch. A GP's ``confidence`` acts through it alone.
        warmup: share of training over which the first two weights rise from 0.
        alignment_momentum: of the distribution alignment.
    """

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
        """Extra heads of the network."""
        return {"rotation": HeadSpec("linear", 4)} if self.rotation_weight else {}

    def conflict(self, *, frozen: bool, average: bool) -> str | None:
        """Return why these options do not fit a run on cached features, or None."""
        if frozen and self.rotation_weight:
            return "features cannot be rotated as images can; set algorithm.rotation_weight=0 in frozen mode."
        return None


class ReMixMatch(nn.Module):
    """L = H(z~_x, y~_x) + w(t) ( w_u H(z~_u, y~_u) + w_pre H(z_s, t) ) + w_rot H(rot(h(turned
    u_s)), quarter turns).

    t = sharpen(DA(p_w)); the tilde marks mixup over labelled and unlabelled images together. Batch
    normalisation learns its statistics from the first mixed chunk only. Draws from torch's
    generator, in this order: quarter turns, mixing weight, permutation.
    """

    views = ("weak", "strong", "strong2")
    sites = ("semantic",)
    takes_addons = True

    def __init__(
        self, config: ReMixMatchConfig, refiner: Refiner, task: Task, addon: AddOn | None = None
    ) -> None:
        super().__init__()
        self.config, self.refiner, self.addon = config, refiner, addon or AddOn.none(task)
        self.alignment = EMAAlignment(task.class_counts / task.n_labeled, config.alignment_momentum)

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        config, student, addon, step = (
            self.config,
            networks.student,
            self.addon,
            Step(networks, batch, clock),
        )
        strong, strong2 = batch.views["strong"], batch.views["strong2"]

        with torch.no_grad(), frozen_statistics(student):
            weak: ModelOutput = student(batch.views["weak"])
            x: ModelOutput | None = (
                student(batch.x) if self.refiner.observes else None
            )  # un-mixed, for the memory alone
            if x is not None:
                self.refiner.observe("before", x, batch)
            weak_output = addon.weak(step, weak)
            logits_w = self.refiner.classify(weak_output).logits
            probs = self.refiner.refine("semantic", weak_output, logits_w.softmax(dim=1))  # (U, C)
            aligned = addon.targets(
                step, weak_output, self.alignment(addon.opinion(step, weak_output, probs))
            )
            targets, mask = (
                sharpen(aligned, config.temperature),
                self._mask(weak_output, aligned),
            )  # (U, C), (U,)
            masked_targets = targets * mask.unsqueeze(
                1
            )  # H is linear in the label: zeros add nothing, mixed or not
            turns = torch.randint(4, (len(strong),), device=strong.device)
            images = torch.cat([batch.x, strong, strong2, batch.views["weak"]])
            labels = torch.cat(
                [
                    one_hot(batch.y, probs.shape[1]).to(targets),
                    masked_targets,
                    masked_targets,
                    masked_targets,
                ]
            )
            images, labels = mixup(images, labels, config.mixup)

        first, *rest = images.split(len(batch.x))
        logits_x = self.refiner.classify(student(first)).logits
        with frozen_statistics(student):
            logits_u = torch.cat([self.refiner.classify(student(chunk)).logits for chunk in rest])
            strong_output: ModelOutput = student(strong)
            logits_s = self.refiner.classify(strong_output).logits
            if addon.learns:
                x = student(batch.x)  # again, with gradient: the mixed images have no single class
            loss_rot = self._rotation_loss(student, strong, turns)
        if x is not None:
            self.refiner.observe("after", x, batch)

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

    def _mask(self, weak: ModelOutput, probs: Tensor) -> Tensor:
        """Return which labels (U, C), before sharpening, are used, (U,). Without a threshold no
        confidence is computed.
        """
        if not self.config.threshold:
            return torch.ones(len(probs), dtype=torch.bool, device=probs.device)
        return self.refiner.confidence(weak, probs) >= self.config.threshold

    def _rotation_loss(self, student: nn.Module, images: Tensor, turns: Tensor) -> Tensor:
        """Return the cross-entropy of the head that predicts the number of quarter turns (U,) of
        each image.
        """
        if not self.config.rotation_weight:
            return torch.zeros((), device=images.device)
        turned = torch.stack(
            [images.rot90(k, dims=(2, 3)) for k in range(4)]
        )  # all four: ``turns`` stays on the device
        turned = turned[turns, torch.arange(len(turns), device=turns.device)]
        return F.cross_entropy(student(turned).heads["rotation"], turns)


def mixup(images: Tensor, labels: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """a v + (1 - a) v[pi] of images (M, 3, H, W) and labels (M, C), with one a = max(b, 1 - b), b ~
    Beta(alpha, alpha).
    """
    b = float(torch.distributions.Beta(alpha, alpha).sample())
    a = max(b, 1 - b)
    order = torch.randperm(len(images)).to(images.device, non_blocking=True)
    return a * images + (1 - a) * images[order], a * labels + (1 - a) * labels[order]


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Normalise by batch statistics as in training, without updating the running statistics."""
    layers = [
        layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)
    ]
    tracking = [layer.track_running_stats for layer in layers]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer, was in zip(layers, tracking, strict=True):
            layer.track_running_stats = was
