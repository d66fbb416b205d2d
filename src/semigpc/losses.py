"""Losses that several algorithms share."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return mean_b - sum_c t_bc log softmax(z_b)_c for logits and probabilities t, both (M, C)."""
    return -(targets * F.log_softmax(logits, dim=1)).sum(dim=1).mean()


def masked_cross_entropy(logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Return mean_b m_b H(z_b, t_b): the mean is over the batch, not over the mask.

    Args:
        logits: (U, C) of the strong views.
        targets: (U,) classes, or (U, C) probabilities. No gradient flows into them.
        mask: (U,) of 0 and 1, or booleans.
    """
    return (F.cross_entropy(logits, targets.detach(), reduction="none") * mask).mean()


def class_weighted_cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return mean_b m_b ( - sum_c w_c t_bc log softmax(z_b)_c ), also for soft targets t.

    The mean is over the rows and not over their weights, which would cancel the weights where a
    batch has one class.

    Args:
        logits: (M, C). targets: (M,) classes, or (M, C) probabilities, without gradient. weights:
            (C,). mask: (M,), or none.
    """
    losses = F.cross_entropy(logits, targets.detach(), weights.to(logits), reduction="none")
    return losses.mean() if mask is None else (losses * mask).mean()


def mean_log_probs(logits: Tensor) -> Tensor:
    """log mean_t softmax(z_t), in float32 at least: (T, M, C) -> (M, C)."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.logsumexp(F.log_softmax(wide, dim=-1), dim=0) - math.log(len(logits))
