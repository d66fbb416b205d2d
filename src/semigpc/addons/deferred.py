"""Deferred re-balancing (Cao et al., 2019): learn features from the data as they are, and re-balance at the end."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, Step
from semigpc.addons.class_weights import effective_number_weights, known_counts
from semigpc.losses import class_weighted_cross_entropy
from semigpc.types import Task


@dataclass(frozen=True, kw_only=True)
class DeferredConfig(AddOnConfig):
    """Options of deferred re-balancing.

    Args:
        start: share of training after which it begins; 160 of 200 epochs in the paper.
        by: ``weights``, of the labelled loss, by effective numbers; or ``sampling``, of every class alike.
        beta: of the weights.
    """

    needs_unlabeled: ClassVar[bool] = False
    start: float = 0.8
    by: Literal["weights", "sampling"] = "weights"
    beta: float = 0.9999

    def __post_init__(self) -> None:
        if not 0 <= self.start <= 1:
            raise ValueError(f"start must lie in [0, 1], a share of training; got {self.start}.")
        if not 0 <= self.beta < 1:
            raise ValueError(f"beta must lie in [0, 1); got {self.beta}.")

    def sampling_power(self, progress: float) -> float:
        """0 from ``start`` on, where sampling is what is deferred; decided at the beginning of an epoch."""
        return 0.0 if self.by == "sampling" and progress >= self.start else 1.0


class Deferred(AddOn):
    """L_x as it was, and from ``start`` on mean_b - sum_c w_c y_bc log softmax(z_b)_c, or with classes drawn alike.

    w_c ~ (1 - beta) / (1 - beta^n_c), summing to C; the mean is over the rows. It costs nothing to speak of.
    """

    weights: Tensor

    def __init__(self, config: DeferredConfig, task: Task) -> None:
        super().__init__(config, task)
        self.config = config
        self.register_buffer("weights", effective_number_weights(known_counts(self, task), config.beta).float())

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        """The plain mean over labelled rows (B, C), later the weighted one."""
        if self.config.by == "sampling" or step.clock.progress < self.config.start:
            return super().labeled_loss(step, logits, targets)
        return class_weighted_cross_entropy(logits, targets, self.weights)
