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

    beta = 0 weighs all classes alike, beta -> 1 by 1 / n_c. Counts are raised to at least 1, so
    that a class without labels has the weight of a class with one. 1 - beta^n is taken as -expm1(n
    log beta): it stays exact where beta is close to 1.
    """
    if not 0 <= beta < 1:
        raise ValueError(
            f"beta must lie in [0, 1) for weights by effective numbers; got {beta}. Values near 1 weigh by 1 / n."
        )
    n = counts.to(torch.float64).clamp_min(1)
    if beta == 0:
        return torch.ones_like(n)
    log_beta = torch.tensor(beta - 1, dtype=torch.float64, device=n.device).log1p()
    weights = -1 / torch.expm1(n * log_beta)  # the factor 1 - beta goes with the scaling
    return weights * len(n) / weights.sum()


def known_counts(addon: AddOn, task: Task) -> Tensor:
    """Return the given labels per class (C,), in float64. A class without labels counts as 1, and a
    note in the run says so.
    """
    counts = task.given_counts.to(torch.float64)
    absent = [c for c, count in enumerate(counts.tolist()) if count < 1]
    if absent:
        addon.note(
            f"Classes {absent} have no label; the add-on treats each of them as if it had one."
        )
    return counts.clamp_min(1)


@dataclass(frozen=True, kw_only=True)
class BalancedSamplingConfig(AddOnConfig):
    """Class-balanced sampling (Kang et al., 2020): labelled images are drawn by class, and all
    classes equally often.

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
    """P(class c) = n_c^p / sum_j n_j^p of a labelled draw, with loss and labels as they are."""


@dataclass(frozen=True, kw_only=True)
class EffectiveNumberConfig(AddOnConfig):
    """Re-weighting by the effective number of samples (Cui et al., 2019): labels of large classes
    count less.

    Args:
        beta: in (1 - beta) / (1 - beta^n_c): 0 weighs all classes alike, towards 1 by 1 / n_c. The
            paper tries 0.9 to 0.9999.
    """

    needs_unlabeled: ClassVar[bool] = False
    beta: float = 0.999

    def __post_init__(self) -> None:
        check_ranges(self, below_one=("beta",))


class EffectiveNumber(AddOn):
    """L_x = mean_b - sum_c w_c y_bc log softmax(z_b)_c, with w_c ~ (1 - beta) / (1 - beta^n_c)
    summing to C; L_u as it was.

    The mean is over the rows, not over their weights.
    """

    weights: Tensor

    def __init__(self, config: EffectiveNumberConfig, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer(
            "weights", effective_number_weights(known_counts(self, task), config.beta).float()
        )

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        return class_weighted_cross_entropy(logits, targets, self.weights)


@dataclass(frozen=True, kw_only=True)
class DeferredConfig(AddOnConfig):
    """Deferred re-balancing (Cao et al., 2019): learn features from the data as they are, and
    re-balance at the end.

    Args:
        start: share of training after which it begins; 160 of 200 epochs in the paper.
        by: ``weights``, of the labelled loss, by effective numbers; or ``sampling``, of every class
            alike.
        beta: of the weights.
    """

    needs_unlabeled: ClassVar[bool] = False
    start: float = 0.8
    by: Literal["weights", "sampling"] = "weights"
    beta: float = 0.9999

    def __post_init__(self) -> None:
        check_ranges(self, fractions=("start",), below_one=("beta",))

    def sampling_power(self, progress: float) -> float:
        """0 from ``start`` on, where sampling is what is deferred; decided at the beginning of an
        epoch.
        """
        return 0.0 if self.by == "sampling" and progress >= self.start else 1.0


class Deferred(AddOn):
    """L_x as it was, and from ``start`` on mean_b - sum_c w_c y_bc log softmax(z_b)_c, or with
    classes drawn alike.

    w_c ~ (1 - beta) / (1 - beta^n_c), summing to C; the mean is over the rows.
    """

    weights: Tensor

    def __init__(self, config: DeferredConfig, task: Task) -> None:
        super().__init__(config, task)
        self.config = config
        self.register_buffer(
            "weights", effective_number_weights(known_counts(self, task), config.beta).float()
        )

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        if self.config.by == "sampling" or step.clock.progress < self.config.start:
            return super().labeled_loss(step, logits, targets)
        return class_weighted_cross_entropy(logits, targets, self.weights)


@dataclass(frozen=True, kw_only=True)
class LogitAdjustmentConfig(AddOnConfig):
    """Logit adjustment (Menon et al., 2021): a margin by class shares, in the labelled loss or in
    the prediction.

    Args:
        strength: tau; 1 is consistent for balanced error.
        place: ``loss`` trains with z + tau log pi and judges by z; ``answer`` trains as ever and
            judges by z - tau log pi.
    """

    needs_unlabeled: ClassVar[bool] = False
    strength: float = 1.0
    place: Literal["loss", "answer"] = "loss"

    def __post_init__(self) -> None:
        check_ranges(self, not_negative=("strength",))


class LogitAdjustment(AddOn):
    """L_x = H(z_x + tau log pi, y) with pi the labelled class shares, or argmax_c z_c - tau log
    pi_c of a plain network.

    Pseudo-labels come from z.
    """

    margin: Tensor

    def __init__(self, config: LogitAdjustmentConfig, task: Task) -> None:
        super().__init__(config, task)
        self.in_loss, self.answers = config.place == "loss", config.place == "answer"
        counts = known_counts(self, task)
        self.register_buffer("margin", (config.strength * (counts / counts.sum()).log()).float())

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        return super().labeled_loss(
            step, logits + self.margin.to(logits) if self.in_loss else logits, targets
        )

    def answer(self, output: ModelOutput) -> Tensor:
        return output.logits - self.margin.to(output.logits)
