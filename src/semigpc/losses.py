"""Losses that several algorithms share."""

import torch.nn.functional as F
from torch import Tensor


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """mean_b - sum_c t_bc log softmax(z_b)_c, with targets (M, C) that are rows of probabilities; logits (M, C)."""
    return -(targets * F.log_softmax(logits, dim=1)).sum(dim=1).mean()


def masked_cross_entropy(logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """mean_b m_b H(z_b, t_b), divided by the whole batch and not by what the mask lets through.

    Args:
        logits: (U, C) of the strong views.
        targets: (U,) classes, or (U, C) probabilities. No gradient flows into them.
        mask: (U,) of 0 and 1, or booleans.
    """
    return (F.cross_entropy(logits, targets.detach(), reduction="none") * mask).mean()
