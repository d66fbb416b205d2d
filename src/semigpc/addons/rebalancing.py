"""Re-balancing by class counts: sampling, loss weights, deferred re-balancing and logit adjustment.

Balanced sampling (Kang et al., 2020), weights by the effective number of samples (Cui et al.,
2019), deferred re-balancing (Cao et al., 2019) and logit adjustment (Menon et al., 2021). None of
them adds a measurable cost to a step.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, Step
from semigpc.losses import class_weighted_cross_entropy
from semigpc.types import ModelOutput, Task, check_ranges


def effective_number_weights(counts: Tensor, beta: float) -> Tensor:
    """w_c ~ (1 - beta) / (1 - beta^n_c), scaled to sum to C: (C,) from counts (C,), in float64.

    beta lies in [0, 1): 0 weighs all classes alike, beta -> 1 by 1 / n_c. A class without labels
    has the weight of a class with one. 1 - beta^n is computed as -expm1(n log beta), which is exact
    where beta is close to 1.
    """
    n = counts.to(torch.float64).clamp_min(1)
    if beta == 0:
        return torch.ones_like(n)
    log_beta = torch.tensor(beta - 1, dtype=torch.float64, device=n.device).log1p()
    weights = -1 / torch.expm1(n * log_beta)  # the factor 1 - beta cancels in the scaling
    return weights * len(n) / weights.sum()


def known_counts(addon: AddOn, task: Task) -> Tensor:
    """Return the given labels per class (C,), in float64; 1 for a class without, with a note."""
    counts = task.given_counts.to(torch.float64)
    absent = [c for c, count in enumerate(counts.tolist()) if count < 1]
    if absent:
        addon.note(f"Classes {absent} have no label; each is treated as if it had one.")
    return counts.clamp_min(1)


@dataclass(frozen=True, kw_only=True)
class BalancedSamplingConfig(AddOnConfig):
    """Class-balanced sampling (Kang et al., 2020) of labelled images.

    Args:
        power: p in P(class c) ~ n_c^p of a labelled draw: 0 draws every class alike, 1/2 is
            square-root sampling, 1 is none.
    """

    needs_unlabeled: ClassVar[bool] = False
    power: float = 0.0

    def __post_init__(self) -> None:
        check_ranges(self, fractions=("power",))

    def sampling_power(self, progress: float) -> float:
        return self.power


class BalancedSampling(AddOn):
    """P(class c) = n_c^p / sum_j n_j^p of a labelled draw; loss and labels do not change."""


@dataclass(frozen=True, kw_only=True)
class EffectiveNumberConfig(AddOnConfig):
    """Re-weighting of the labelled loss by the effective number of samples (Cui et al., 2019).

    Args:
        beta: in (1 - beta) / (1 - beta^n_c): 0 weighs all classes alike, towards 1 by 1 / n_c. The
            paper tries 0.9 to 0.9999.
    """

    needs_unlabeled: ClassVar[bool] = False
    beta: float = 0.999

    def __post_init__(self) -> None:
        check_ranges(self, below_one=("beta",))


class EffectiveNumber(AddOn):
    """L_x = mean_b - sum_c w_c y_bc log softmax(z_b)_c; L_u does not change.

    w_c ~ (1 - beta) / (1 - beta^n_c), summing to C. The mean is over rows, not over their weights.
    """

    weights: Tensor

    def __init__(self, config: EffectiveNumberConfig, task: Task) -> None:
        super().__init__(config, task)
        weights = effective_number_weights(known_counts(self, task), config.beta)
        self.register_buffer("weights", weights.float())

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        return class_weighted_cross_entropy(logits, targets, self.weights)


@dataclass(frozen=True, kw_only=True)
class DeferredConfig(AddOnConfig):
    """Deferred re-balancing (Cao et al., 2019): re-weighting or sampling late in training.

    Args:
        start: share of training after which it begins; 160 of 200 epochs in the paper.
        by: ``weights`` of the labelled loss, by effective numbers; or balanced ``sampling``.
        beta: of the weights.
    """

    needs_unlabeled: ClassVar[bool] = False
    start: float = 0.8
    by: Literal["weights", "sampling"] = "weights"
    beta: float = 0.9999

    def __post_init__(self) -> None:
        check_ranges(self, fractions=("start",), below_one=("beta",))

    def sampling_power(self, progress: float) -> float:
        """Return 0 from ``start`` on, if sampling is deferred; it changes when an epoch begins."""
        return 0.0 if self.by == "sampling" and progress >= self.start else 1.0


class Deferred(AddOn):
    """L_x does not change before ``start``; from then on it is weighted, or classes are balanced.

    Weighted, it is mean_b - sum_c w_c y_bc log softmax(z_b)_c with w_c ~ (1 - beta) / (1 -
    beta^n_c), summing to C; the mean is over rows.
    """

    config: DeferredConfig
    weights: Tensor

    def __init__(self, config: DeferredConfig, task: Task) -> None:
        super().__init__(config, task)
        weights = effective_number_weights(known_counts(self, task), config.beta)
        self.register_buffer("weights", weights.float())

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        if self.config.by == "sampling" or step.clock.progress < self.config.start:
            return super().labeled_loss(step, logits, targets)
        return class_weighted_cross_entropy(logits, targets, self.weights)


@dataclass(frozen=True, kw_only=True)
class LogitAdjustmentConfig(AddOnConfig):
    """Logit adjustment (Menon et al., 2021): a margin by class shares in loss or prediction.

    Args:
        strength: tau; 1 is consistent for balanced error.
        place: ``loss`` trains with z + tau log pi and predicts by z; ``answer`` trains with z and
            predicts by z - tau log pi.
    """

    needs_unlabeled: ClassVar[bool] = False
    strength: float = 1.0
    place: Literal["loss", "answer"] = "loss"

    def __post_init__(self) -> None:
        check_ranges(self, not_negative=("strength",))


class LogitAdjustment(AddOn):
    """L_x = H(z_x + tau log pi, y) with pi the labelled class shares; or z - tau log pi predicts.

    Pseudo-labels come from z.
    """

    config: LogitAdjustmentConfig
    margin: Tensor

    def __init__(self, config: LogitAdjustmentConfig, task: Task) -> None:
        super().__init__(config, task)
        self.answers = config.place == "answer"
        counts = known_counts(self, task)
        self.register_buffer("margin", (config.strength * (counts / counts.sum()).log()).float())

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        if self.config.place == "loss":
            logits = logits + self.margin.to(logits)
        return super().labeled_loss(step, logits, targets)

    def answer(self, output: ModelOutput) -> Tensor:
        return output.logits - self.margin.to(output.logits)
