"""When to abstain: the confidence from which labels are right as often as asked."""

from typing import Literal

import torch
from torch import Tensor

FEW = 30  # labels that count as few: beside so many, half of the errors that are asked for are allowed
NEVER = 1.0 + 1e-6  # a confidence that nothing has


def precision_threshold(
    logits: Tensor,
    codes: Tensor,
    shares: Tensor,
    pool: Tensor,
    target: float,
    class_prior: Literal["balanced", "estimated"],
) -> float:
    """The least confidence t such that labels of confidence >= t are right with probability ``target``. O(n log n + u log u).

    Two opinions are heard and the stricter one is followed. The labelled rows, each left out and weighed as its class is
    shared among the unlabelled ones, say how often such labels were right. And the confidence of the unlabelled rows
    themselves must keep the promise on average: that guards against a threshold learned from a handful of labels, and is
    asked for more strictly, 1 - (1 - target) n / (n + 30), the fewer labels n the model was calibrated on.

    Returns:
        The threshold; above 1 if no label can be promised.

    Args:
        logits: (n, C) of labelled rows that did not take part. codes: (n,) their classes.
        shares: (C,) of the unlabelled rows, as which the labelled ones are weighed.
        pool: (u, C) probabilities of unlabelled rows under equal shares.
        target: precision asked for.
    """
    confidence, right = _judged(torch.softmax(logits, dim=1), shares, class_prior, codes)
    weights = shares[codes] / torch.bincount(codes, minlength=len(shares))[codes]
    thresholds = [_least(confidence, right, weights, target)]
    if len(pool):
        believed, _ = _judged(pool, shares, class_prior, None)
        stricter = 1 - (1 - target) * len(codes) / (len(codes) + FEW)
        thresholds.append(_least(believed, believed, torch.ones_like(believed), stricter))
    return max(thresholds)


def _judged(probs: Tensor, shares: Tensor, class_prior: str, codes: Tensor | None) -> tuple[Tensor, Tensor]:
    """Confidence (n,) of the class decided for, and whether it is right."""
    joint = probs * shares
    joint = joint / joint.sum(dim=1, keepdim=True).clamp_min(1e-30)
    decided = (joint if class_prior == "estimated" else probs).argmax(dim=1)
    confidence = joint.gather(1, decided.unsqueeze(1)).squeeze(1)
    return confidence, confidence if codes is None else (decided == codes).double()


def _least(confidence: Tensor, right: Tensor, weights: Tensor, target: float) -> float:
    """The least confidence at which the rows of at least as much are right with probability ``target``."""
    order = confidence.argsort(descending=True)
    falling = confidence[order]
    precision = (weights * right)[order].cumsum(0) / weights[order].cumsum(0)
    last_of_equals = torch.cat([falling[:-1] > falling[1:], torch.ones(min(1, len(falling)), dtype=torch.bool)])
    enough = ((precision >= target) & last_of_equals).nonzero()
    return float(falling[enough[-1, 0]]) if len(enough) else NEVER
