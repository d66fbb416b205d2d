"""NP-Match (Wang et al., 2022): a neural process in the classifier's place, which estimates its own
uncertainty.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

import torch
from torch import Tensor, nn

from semigpc.addons import AddOn, Step
from semigpc.losses import mean_log_probs
from semigpc.pseudo_labels import align, count_classes, last_of_each
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

HEAD = "neural_process"


@dataclass(frozen=True, kw_only=True)
class NPMatchConfig:
    """Options of NP-Match; the numbers are the original's.

    Args:
        threshold: tau, of the refiner's confidence; without a GP that is max p.
        entropy: H_max, the largest entropy of p_w, in nats, that is believed.
        unlabeled_weight: w_u.
        divergence_weight: w_d.
    """

    heads: ClassVar[dict[str, HeadSpec]] = {HEAD: HeadSpec("neural_process")}
    threshold: float = 0.95
    entropy: float = 0.4
    unlabeled_weight: float = 1.0
    divergence_weight: float = 0.01

    def __post_init__(self) -> None:
        check_ranges(self, fractions=("threshold",), positive=("entropy",))


class Process(Protocol):
    """The methods of the head :class:`semigpc.models.neural_process.NeuralProcess` that are used
    here.
    """

    def predict(self, features: Tensor) -> Tensor:
        """log p, (U, C), from the memories."""

    def study(
        self, x: Tensor, y: Tensor, strong: Tensor, targets: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (T, B, C) and (T, U, C) to learn from, and the divergence."""


class NPMatch(nn.Module):
    """L = mean_t H(z_x,t, y) + w_u mean_t m H(z_s,t, argmax p) + w_d D_a(N_c, N_s), with logits of
    T latent samples.

    p_w = mean_t softmax(z_w,t), from the process's memories and refined by f; p is p_w divided by
    the batch's mean of it, rows renormalised. The mask m = 1[ conf(p) >= tau_c and H(p_w) <= H_max
    ] has class thresholds as FlexMatch's: every unlabelled image keeps the class c that it last had
    with conf(p) >= tau and H(p_w) <= H_max; n_c have class c and n_0 have none yet, and tau_c = tau
    beta_c / (2 - beta_c) with beta_c = n_c / max(n_0, n_1, ...), before the batch is counted. All
    are 0
    at first, when the entropy alone decides: a short run needs no warm-up. As in all algorithms
    here, the mean of the second term is over the whole batch; in the original it is over what the
    mask lets through. D_a is the divergence of the latent Gaussians of labelled images and of
    strong views, skewed to that with less entropy.

    The linear classifier is not trained: the process answers in its place, and what add-ons see as
    logits are log p of it. Draws T L numbers for the weak views, then 2 T L to learn from. A step
    costs O(T (B + 2 U) D^2 + u) more than FixMatch's.
    """

    views = ("weak", "strong")
    sites = ("semantic",)
    takes_addons = True
    last_class: Tensor

    def __init__(
        self, config: NPMatchConfig, refiner: Refiner, task: Task, addon: AddOn | None = None
    ) -> None:
        super().__init__()
        self.config, self.refiner, self.addon = config, refiner, addon or AddOn.none(task)
        self.n_classes = task.n_classes
        if task.n_unlabeled < 1:
            raise ValueError(
                f"NP-Match keeps a class for each unlabelled image, so task.n_unlabeled must be at least 1; got "
                f"{task.n_unlabeled}. Say how many there are."
            )
        self.register_buffer(
            "last_class", torch.full((task.n_unlabeled,), -1)
        )  # (u,), -1: none yet

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        config, refiner, addon, step = (
            self.config,
            self.refiner,
            self.addon,
            Step(networks, batch, clock),
        )
        x, weak, strong = networks.forward(batch.x, batch.views["weak"], batch.views["strong"])
        process = process_of(networks.student)

        refiner.observe("before", x, batch)
        with torch.no_grad():
            weak = weak._replace(logits=process.predict(weak.features))
            weak_output = addon.weak(step, weak)
            probs_w = refiner.refine(
                "semantic", weak_output, refiner.classify(weak_output).logits.softmax(dim=1)
            )  # (U, C)
            probs_w = addon.opinion(step, weak_output, probs_w)
            probs = align(
                probs_w, torch.full_like(probs_w[0], 1 / self.n_classes), probs_w.mean(dim=0)
            )
            probs = addon.targets(step, weak_output, probs)
            entropy = torch.special.entr(probs_w).sum(dim=1)
            mask = self._select(
                probs, refiner.confidence(weak_output, probs), entropy, batch.view_index
            )  # (U,)
            targets = probs.argmax(dim=1)

        samples_x, samples_s, loss_d = process.study(
            x.features, batch.y, strong.features, targets, mask
        )
        x, strong = (
            x._replace(logits=mean_log_probs(samples_x)),
            strong._replace(logits=mean_log_probs(samples_s)),
        )
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
        """The mask (U,); what is sure beyond tau itself becomes the last class of its image."""
        classes, certain = probs.argmax(dim=1), entropy <= self.config.entropy
        mask = (confidence >= self.class_thresholds().to(confidence)[classes]) & certain
        sure = (confidence >= self.config.threshold) & certain
        last = last_of_each(
            index, sure
        )  # an image may stand twice in a batch larger than the unlabelled set
        self.last_class[index] = torch.where(last >= 0, classes[last], self.last_class[index])
        return mask


def process_of(network: nn.Module) -> Process:
    """The head of a network, whatever is wrapped around that."""
    for name, module in network.named_modules():
        if name == f"heads.{HEAD}" or name.endswith(f".heads.{HEAD}"):
            return cast("Process", module)
    raise ValueError(
        f"NP-Match needs a network with a head {HEAD!r}; this one has none. Build it with the config's heads."
    )


def unless_replaced(samples: Tensor, asked: ModelOutput, answered: ModelOutput) -> Tensor:
    """Logits to learn from: all samples as rows (T M, C), unless a refiner put logits (M, C) of its
    own in their place.
    """
    return samples.flatten(0, 1) if answered.logits is asked.logits else answered.logits
