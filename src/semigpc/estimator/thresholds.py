"""When to abstain: the confidence from which labels are right as often as asked."""

import torch
from torch import Tensor

FEW = 30  # labels that count as few: beside so many, half of the errors that are asked for are allowed
NEVER = 1.0 + 1e-6  # a confidence that nothing has


def precision_threshold(
    confidence: Tensor, right: Tensor, weights: Tensor, believed: Tensor, target: float, *, chances: Tensor | None = None
) -> float:
    """The least confidence t such that labels of confidence >= t are right with probability ``target``. O(n log n + u log u).

    Three opinions are heard and the strictest one is followed. The labelled rows, each left out, say how often such labels
    were right: weighed as their classes are believed to be shared among the unlabelled rows, and all alike, since what is
    believed of classes with few labels may be quite wrong. And the confidence of the unlabelled rows themselves must keep
    the promise on average: that guards against a threshold learned from a handful of labels, and is asked for more
    strictly, 1 - (1 - target) n / (n + 30), the fewer labels n the model was calibrated on.

    Args:
        confidence: (n,) of labelled rows that did not take part. right: (n,) 1 where their label was found. weights: (n,).
        believed: (u,) confidence of unlabelled rows.
        target: precision asked for.
        chances: (u,) the probabilities that these are right, if the confidence is something else.

    Returns:
        The threshold; above 1 if no label can be promised.
    """
    thresholds = [_least(confidence, right, each, target) for each in (weights, torch.ones_like(weights))]
    if len(believed):
        stricter = 1 - (1 - target) * len(right) / (len(right) + FEW)
        thresholds.append(_least(believed, believed if chances is None else chances, torch.ones_like(believed), stricter))
    return max(thresholds)


def _least(confidence: Tensor, right: Tensor, weights: Tensor, target: float) -> float:
    """The least confidence at which the rows of at least as much are right with probability ``target``."""
    order = confidence.argsort(descending=True)
    falling = confidence[order]
    precision = (weights * right)[order].cumsum(0) / weights[order].cumsum(0)
    last_of_equals = torch.cat([falling[:-1] > falling[1:], torch.ones(min(1, len(falling)), dtype=torch.bool)])
    enough = ((precision >= target) & last_of_equals).nonzero()
    return float(falling[enough[-1, 0]]) if len(enough) else NEVER
