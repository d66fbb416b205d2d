"""SAW (Lai et al., 2022): the unlabelled loss weighs classes by counts of pseudo-labels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, Step
from semigpc.addons.rebalancing import effective_number_weights, known_counts
from semigpc.io.errors import SettingsError
from semigpc.losses import class_weighted_cross_entropy
from semigpc.pseudo_labels import last_of_each
from semigpc.types import ModelOutput, Task


@dataclass(frozen=True, kw_only=True)
class SAWConfig(AddOnConfig):
    """SAW has no options: beta follows from the mean count.

    Fallbacks: a class without labels, which is noted, or without pseudo-labels counts as if it had
    one. In a run of a single epoch pseudo-labels are never counted and all weigh 1; this is noted.
    """


class SAW(AddOn):
    """H(z_x, y) weighs classes by w(labelled counts), H(z_s, t) by w(counts of pseudo-labels).

    w_c = (1 - beta) / (1 - beta^n_c), scaled to sum to C, with beta = (N - 1) / N and N the mean
    count. Pseudo-labels are counted over the last label of each image, at the start of every epoch
    but the first, in which all weigh 1. A soft target stays soft: H(z, t) = - sum_c w_c t_c log
    p_c. The mean is over rows; it is not divided by the sum of their weights, which would cancel
    the weights where a batch has one class.

    A step costs U numbers written, an epoch a count over the u images.
    """

    labels: Tensor
    labeled_weights: Tensor
    unlabeled_weights: Tensor

    def __init__(self, config: SAWConfig, task: Task) -> None:
        super().__init__(config, task)
        if task.n_unlabeled < 1:
            raise SettingsError(
                f"SAW needs at least one unlabelled image; got {task.n_unlabeled}. "
                "Add unlabelled images, or leave the add-on out."
            )
        self.register_buffer("labels", torch.full((task.n_unlabeled,), -1))
        self.register_buffer("labeled_weights", _weights(known_counts(self, task)).float())
        self.register_buffer("unlabeled_weights", torch.ones(task.n_classes))

    def targets(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        """Store the class of each image; count them when an epoch begins."""
        clock = step.clock
        if clock.step == 0 and clock.total_steps <= clock.epoch_steps:
            self.note(
                "SAW counts pseudo-labels when an epoch begins, and a run of "
                f"{clock.total_steps} steps has one epoch of {clock.epoch_steps}, so all weigh "
                "alike. Lower train.epoch_steps."
            )
        if clock.step > 0 and clock.step % clock.epoch_steps == 0:
            counts = torch.bincount(self.labels + 1, minlength=probs.shape[1] + 1)[1:]
            self.unlabeled_weights.copy_(_weights(counts))
        index = step.batch.view_index
        self.labels[index] = probs.argmax(dim=1)[last_of_each(index)]
        return probs

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        return class_weighted_cross_entropy(logits, targets, self.labeled_weights)

    def unlabeled_loss(
        self, step: Step, logits: Tensor, targets: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        return class_weighted_cross_entropy(logits, targets, self.unlabeled_weights, mask)


def _weights(counts: Tensor) -> Tensor:
    """Return weights (C,) from counts (C,), floored at 1; beta = 1 - 1 / mean count."""
    counts = counts.to(torch.float64).clamp_min(1)
    return effective_number_weights(counts, 1 - 1 / float(counts.mean()))
