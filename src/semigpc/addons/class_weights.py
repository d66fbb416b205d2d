"""Class weights by the effective number of samples (Cui et al., 2019)."""

import torch
from torch import Tensor

from semigpc.addons.base import AddOn
from semigpc.types import Task


def effective_number_weights(counts: Tensor, beta: float) -> Tensor:
    """w_c ~ (1 - beta) / (1 - beta^n_c), scaled to sum to C: (C,) from counts (C,), in float64.

    beta = 0 weighs all classes alike, beta -> 1 by 1 / n_c. Counts are floored at 1, so that a class nobody has seen weighs as
    much as one seen once. 1 - beta^n is taken as -expm1(n log beta): it stays exact where beta is close to 1.
    """
    if not 0 <= beta < 1:
        raise ValueError(f"beta must lie in [0, 1) for weights by effective numbers; got {beta}. Values near 1 weigh by 1 / n.")
    n = counts.to(torch.float64).clamp_min(1)
    if beta == 0:
        return torch.ones_like(n)
    log_beta = torch.tensor(beta - 1, dtype=torch.float64, device=n.device).log1p()
    weights = -1 / torch.expm1(n * log_beta)  # the factor 1 - beta goes with the scaling
    return weights * len(n) / weights.sum()


def known_counts(addon: AddOn, task: Task) -> Tensor:
    """(C,) labels that people gave of each class, in float64; a class without any counts as one, and the run is told."""
    counts = task.given_counts.to(torch.float64)
    absent = [c for c, count in enumerate(counts.tolist()) if count < 1]
    if absent:
        addon.note(f"Classes {absent} have no label; the add-on counts them as if they had one.")
    return counts.clamp_min(1)
