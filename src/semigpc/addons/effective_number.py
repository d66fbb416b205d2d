"""Re-weighting by the effective number of samples (Cui et al., 2019): a label counts for less where there are many."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, Step
from semigpc.addons.class_weights import effective_number_weights, known_counts
from semigpc.losses import class_weighted_cross_entropy
from semigpc.types import Task


@dataclass(frozen=True, kw_only=True)
class EffectiveNumberConfig(AddOnConfig):
    """Options of re-weighting.

    Args:
        beta: in (1 - beta) / (1 - beta^n_c): 0 weighs all classes alike, towards 1 by 1 / n_c. The paper tries 0.9 to 0.9999.
    """

    needs_unlabeled: ClassVar[bool] = False
    beta: float = 0.999

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise ValueError(f"beta must lie in [0, 1); got {self.beta}.")


class EffectiveNumber(AddOn):
    """L_x = mean_b - sum_c w_c y_bc log softmax(z_b)_c, with w_c ~ (1 - beta) / (1 - beta^n_c) summing to C; L_u as it was.

    The mean is over the rows, not over their weights. It costs nothing to speak of.
    """

    weights: Tensor

    def __init__(self, config: EffectiveNumberConfig, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer("weights", effective_number_weights(known_counts(self, task), config.beta).float())

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        """The weighted mean over labelled rows (B, C); a mixed label's classes have a weight each."""
        return class_weighted_cross_entropy(logits, targets, self.weights)
