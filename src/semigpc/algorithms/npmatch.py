"""NP-Match (Wang et al., 2022): a neural process with uncertainty replaces the classifier."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

import torch
from torch import Tensor, nn

from semigpc.addons import Step
from semigpc.algorithms.base import Algorithm, AlgorithmConfig
from semigpc.io.errors import SettingsError
from semigpc.losses import mean_log_probs
from semigpc.pseudo_labels import align, count_classes, last_of_each
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

HEAD = "neural_process"


@dataclass(frozen=True, kw_only=True)
class NPMatchConfig(AlgorithmConfig):
    """Options of NP-Match; the numbers are the original's.

    Args:
        threshold: tau, of the refiner's confidence; without a GP that is max p.
        entropy: H_max, the largest entropy of p_w, in nats, of a label that is used.
        unlabeled_weight: w_u.
        divergence_weight: w_d.
    """

    presets: ClassVar = {"digits": {"unlabeled_weight": 0.5}, "short": {"threshold": 0.8}}

    threshold: float = 0.95
    entropy: float = 0.4
    unlabeled_weight: float = 1.0
    divergence_weight: float = 0.01

    def __post_init__(self) -> None:
        check_ranges(self, fractions=("threshold",), positive=("entropy",))

    @property
    def heads(self) -> dict[str, HeadSpec]:
        """The neural process."""
        return {HEAD: HeadSpec("neural_process")}


class Process(Protocol):
    """What is used here of :class:`semigpc.models.neural_process.NeuralProcess`."""

    def predict(self, features: Tensor) -> Tensor:
        """log p, (U, C), from the memories."""

    def study(
        self, x: Tensor, y: Tensor, strong: Tensor, targets: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (T, B, C) and (T, U, C) to learn from, and the divergence."""


class NPMatch(Algorithm):
    """L = mean_t H(z_x,t, y) + w_u mean_t m H(z_s,t, argmax p) + w_d D_a(N_c, N_s).

    The logits z_t come from T latent samples.
    p_w = mean_t softmax(z_w,t), from the process's memories and refined by f; p is p_w divided by
    the batch's mean of it, rows renormalised. The mask m = 1[ conf(p) >= tau_c and H(p_w) <= H_max
    ] has class thresholds as FlexMatch's: every unlabelled image keeps the class c that it last had
    with conf(p) >= tau and H(p_w) <= H_max; n_c have class c and n_0 have none yet, and tau_c = tau
    beta_c / (2 - beta_c) with beta_c = n_c / max(n_0, n_1, ...), before the batch is counted. All
    are 0 at first, when the entropy alone decides: a short run needs no warm-up. As in all
    algorithms here, the mean of the second term is over the whole batch; in the original it is
    over the rows in the mask. D_a is the divergence of the latent Gaussians of labelled images and
    of strong views, skewed to that with less entropy.

    The linear classifier is not trained: the process is evaluated in its place, and add-ons receive
    its log p as logits. Draws T L numbers for the weak views, then 2 T L to learn from. A step
    costs O(T (B + 2 U) D^2 + u) more than FixMatch's.
    """

    views = ("weak", "strong")
    takes_addons = True
    answers = True
    config: NPMatchConfig
    last_class: Tensor

    def prepare(self, task: Task) -> None:
        self.n_classes = task.n_classes
        if task.n_unlabeled < 1:
            raise SettingsError(
                "NP-Match stores a class for each unlabelled image, so Task.n_unlabeled must be at "
                f"least 1; got {task.n_unlabeled}. Set it to the number of unlabelled images."
            )
        no_class = torch.full((task.n_unlabeled,), -1)
        self.register_buffer("last_class", no_class)  # (u,)

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        config = self.config
        refiner = self.refiner
        addon = self.addon
        step = Step(networks, batch, clock)
        x, weak, strong = networks.forward(batch.x, batch.views["weak"], batch.views["strong"])
        process = process_of(networks.student)

        refiner.observe("before", x, batch)
        with torch.no_grad():
            weak = weak._replace(logits=process.predict(weak.features))
            weak_output, probs_w = self.weak_probs(step, weak)  # (U, C)
            uniform = torch.full_like(probs_w[0], 1 / self.n_classes)
            probs = align(probs_w, uniform, probs_w.mean(dim=0))
            probs = addon.targets(step, weak_output, probs)
            confidence = refiner.confidence(weak_output, probs)
            entropy = torch.special.entr(probs_w).sum(dim=1)
            mask = self._select(probs, confidence, entropy, batch.view_index)  # (U,)
            targets = probs.argmax(dim=1)

        samples_x, samples_s, loss_d = process.study(
            x.features, batch.y, strong.features, targets, mask
        )
        x = x._replace(logits=mean_log_probs(samples_x))
        strong = strong._replace(logits=mean_log_probs(samples_s))
        logits_x = unless_replaced(samples_x, x, refiner.classify(x, batch.index))  # (T B, C)
        logits_s = unless_replaced(samples_s, strong, refiner.classify(strong))  # (T U, C)
        refiner.observe("after", x, batch)

        loss_x = addon.labeled_loss(step, logits_x, batch.y.repeat(len(logits_x) // len(batch.y)))
        repeats = len(logits_s) // len(mask)
        loss_u = addon.unlabeled_loss(step, logits_s, targets.repeat(repeats), mask.repeat(repeats))
        output = StepOutput(
            loss_x + config.unlabeled_weight * loss_u + config.divergence_weight * loss_d,
            {
                "loss_x": loss_x,
                "loss_u": loss_u,
                "loss_d": loss_d,
                "mask_rate": mask.float().mean(),
            },
            PseudoLabels(probs, mask),
        )
        return addon.with_extra_loss(output, step, x, weak, strong)

    def answer(self, output: ModelOutput) -> Tensor:
        return output.heads[HEAD]

    def class_thresholds(self) -> Tensor:
        """tau_c, (C,)."""
        counts = count_classes(self.last_class + 1, self.n_classes + 1)  # those of no class first
        beta = counts[1:] / counts.max().clamp_min(1)
        return self.config.threshold * beta / (2 - beta)

    def _select(self, probs: Tensor, confidence: Tensor, entropy: Tensor, index: Tensor) -> Tensor:
        """Return the mask (U,); labels that reach tau itself become their image's last class."""
        classes = probs.argmax(dim=1)
        certain = (entropy <= self.config.entropy) & (confidence > 0)
        mask = (confidence >= self.class_thresholds().to(confidence)[classes]) & certain
        kept = (confidence >= self.config.threshold) & certain
        # a batch larger than the unlabelled set has images twice
        last = last_of_each(index, kept)
        self.last_class[index] = torch.where(last >= 0, classes[last], self.last_class[index])
        return mask


def process_of(network: nn.Module) -> Process:
    """Return the neural process of a network, which may be wrapped."""
    for name, module in network.named_modules():
        if name == f"heads.{HEAD}" or name.endswith(f".heads.{HEAD}"):
            return cast("Process", module)
    raise SettingsError(
        f"NP-Match needs a network with a head {HEAD!r}; this one has none. "
        "Build it with the heads of NPMatchConfig."
    )


def unless_replaced(samples: Tensor, own: ModelOutput, classified: ModelOutput) -> Tensor:
    """Return all samples as rows (T M, C), or the logits (M, C) that a refiner replaced them by."""
    return samples.flatten(0, 1) if classified.logits is own.logits else classified.logits
