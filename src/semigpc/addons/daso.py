"""DASO (Oh et al., 2022): pseudo-labels blended with similarities to class prototypes."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, ExtraLoss, Step
from semigpc.io.errors import SettingsError
from semigpc.pseudo_labels import count_classes, last_of_each
from semigpc.types import Clock, ModelOutput, Task, check_ranges


@dataclass(frozen=True, kw_only=True)
class DASOConfig(AddOnConfig):
    """Options of DASO.

    Fallbacks: a class without entries in its queue has no part in q, and while m has not been
    counted yet labels stay as they are; both are noted once.

    Args:
        queue: labelled features kept of each class.
        temperature: T of the similarities to prototypes.
        distribution_temperature: T_d; 1.5 where labelled and unlabelled shares agree (CIFAR-10),
            0.3 otherwise.
        every: steps between two counts m of the pseudo-labels.
        warmup: share of training before labels are blended and views compared; 5000 of 250 000
            steps in the authors' code.
        alignment_weight: of the loss that compares views.
    """

    needs_average: ClassVar[bool] = True

    queue: int = 256
    temperature: float = 0.05
    distribution_temperature: float = 1.5
    every: int = 100
    warmup: float = 0.02
    alignment_weight: float = 1.0

    def __post_init__(self) -> None:
        positive = ("temperature", "distribution_temperature")
        check_ranges(
            self, fractions=("warmup",), positive=positive, at_least_one=("queue", "every")
        )


class DASO(AddOn):
    """p <- (1 - v) p + v q with q = softmax_c(cos(h(u_w), k_c) / T), and L + w_a H(q_s, q).

    v = w_{argmax p}: most for frequent predictions; q_s is the q of u_s. k_c is the mean of the
    last ``queue`` labelled features of class c, computed by the moving average; a batch enters
    before the prototypes are used. w = (m / max m)^(1/T_d), which is SN(m^(1/T_d)) over its
    maximum, with m the counts of finished labels over the last ``every`` steps. p is the weak
    view's label before an algorithm aligns or smooths it (the authors' ReMixMatch blends after
    that), and q is of the same images. H(q_s, q) starts after the warm-up like the blending, as in
    the authors' code; its gradient flows into h(u_s) alone.

    A step costs one pass of the moving average over B images and O(U C D); the queues hold C x
    queue x D numbers.
    """

    learns = True
    config: DASOConfig
    queue: Tensor
    written: Tensor
    prototypes: Tensor
    tally: Tensor
    counts: Tensor

    def __init__(self, config: DASOConfig, task: Task) -> None:
        super().__init__(config, task)
        if task.n_features < 1:
            raise SettingsError(
                f"DASO stores features: Task.n_features must be at least 1; got {task.n_features}."
            )
        self._noted = False
        self._has_entries = False  # whether a batch has entered the queues, on the host
        none = torch.zeros(task.n_classes, dtype=torch.int64)
        self.register_buffer("queue", torch.zeros(task.n_classes, config.queue, task.n_features))
        self.register_buffer("written", none.clone())  # entries of each class so far
        self.register_buffer("prototypes", torch.zeros(task.n_classes, task.n_features))
        self.register_buffer("tally", none.clone())  # finished labels since the last count
        self.register_buffer("counts", none.clone())  # m

    def opinion(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        self._push(step.networks.ask_teacher(step.batch.x).features, step.batch.y)
        if not self._is_active(step.clock):
            return probs
        self._note_fallbacks()
        q = torch.softmax(self._similarities(output.features), dim=1).to(probs)
        v = self._shares().to(probs)[probs.argmax(dim=1)].unsqueeze(1)
        return (1 - v) * probs + v * q

    def targets(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        self.tally += count_classes(probs.argmax(dim=1), probs.shape[1])
        if (step.clock.step + 1) % self.config.every == 0:
            self.counts.copy_(self.tally)
            self.tally.zero_()
        return probs

    def extra_loss(
        self, step: Step, x: ModelOutput, weak: ModelOutput, strong: ModelOutput
    ) -> ExtraLoss | None:
        if not self.config.alignment_weight or not self._is_active(step.clock):
            return None
        q = torch.softmax(self._similarities(weak.features.detach()), dim=1)
        log_q = F.log_softmax(self._similarities(strong.features), dim=1)
        log_q = log_q.masked_fill(self.written == 0, 0)  # q is 0 there, and 0 times -inf is NaN
        loss = -(q * log_q).sum(dim=1).mean()
        return ExtraLoss(self.config.alignment_weight * loss, {"loss_align": loss})

    def _note_fallbacks(self) -> None:
        """Note once what is missing when blending begins."""
        if self._noted:
            return
        self._noted = True
        missing = (self.written == 0).nonzero().flatten().tolist()
        if missing:
            self.note(
                f"DASO has no features of the classes {missing} yet; "
                "its semantic labels leave them out until then."
            )
        if not self.counts.any():
            self.note(
                f"DASO counts pseudo-labels every {self.config.every} steps; "
                "labels are blended from the first count on."
            )

    def _is_active(self, clock: Clock) -> bool:
        return clock.progress >= self.config.warmup and self._has_entries

    def _shares(self) -> Tensor:
        """Return w (C,), 1 for the class predicted most; all 0 before the first count."""
        shares = self.counts.double() / self.counts.max().clamp_min(1)
        return shares ** (1 / self.config.distribution_temperature)

    def _similarities(self, features: Tensor) -> Tensor:
        """cos(h, k_c) / T, (U, C); minus infinity where a class has no entries."""
        prototypes = F.normalize(self.prototypes.to(features), dim=1)
        scores = F.normalize(features, dim=1) @ prototypes.mT / self.config.temperature
        return scores.masked_fill(self.written == 0, -torch.inf)

    def _push(self, features: Tensor, labels: Tensor) -> None:
        """Write (B, D) over the oldest rows of their labels (B,), and update the prototypes."""
        if not len(labels):
            return
        size = self.config.queue
        same = labels.unsqueeze(1) == labels  # (B, B)
        rank = same.tril(-1).sum(dim=1)  # how many of its class came before it in this batch
        places = labels * size + (self.written[labels] + rank) % size
        newest = last_of_each(places)  # a batch may have more of a class than the ring holds
        self.queue.flatten(0, 1)[places] = features[newest].to(self.queue)
        self.written += count_classes(labels, len(self.written))
        classes = labels
        if len(labels) >= len(self.written):
            classes = torch.arange(len(self.written), device=labels.device)
        sums = self.queue[classes].sum(dim=1)  # slots never written are zero
        self.prototypes[classes] = sums / self.written[classes].clamp(1, size).unsqueeze(1)
        self._has_entries = True
