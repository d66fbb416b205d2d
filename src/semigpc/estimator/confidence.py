"""From scores to what is said of a label: probabilities under a class prior, and how sure it is."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from semigpc.estimator.posterior import Scored
from semigpc.gp.certainty import expected_probability

Confidence = Literal["probability", "expected", "variance"]


class Judged(NamedTuple):
    """What was decided of M rows, and on what grounds.

    Attributes:
        logits: (M, C) z = lambda' mu + log shares. decided: (M,) classes.
        variance: (M,) of mu, over the prior variance; None if only probabilities will be asked for.
    """

    logits: Tensor
    decided: Tensor
    variance: Tensor | None

    def confidence(self, kind: Confidence, scale: float) -> Tensor:
        """(M,) how sure it is: softmax(z)_c, its expectation over the posterior with a ``scale`` of lambda', or 1 - var."""
        if kind == "probability":
            return torch.softmax(self.logits, dim=1).gather(1, self.decided.unsqueeze(1)).squeeze(1)
        assert self.variance is not None
        if kind == "variance":
            return (1 - self.variance).clamp(0, 1)
        spread = (scale * self.variance.clamp_min(0).sqrt()).to(self.logits).unsqueeze(1)
        return expected_probability(self.logits, spread.expand_as(self.logits), self.decided)


class Beliefs(NamedTuple):
    """What turns scores (M, C) into probabilities.

    Attributes:
        logit_scale: lambda. confidence_scale: lambda'.
        log_shares: (C,) of the unlabelled rows. counts: (C,) labels of each class; one without is out of the question.
        scales: (C,) what scores are multiplied by already. estimated: whether the shares decide, too.
    """

    logit_scale: float
    confidence_scale: float
    log_shares: Tensor
    counts: Tensor
    scales: Tensor
    estimated: bool

    def bias(self) -> Tensor:
        """(C,) log prior over the logit scale."""
        bias = self.log_shares / self.confidence_scale if self.estimated else torch.zeros(len(self.counts))
        return bias.masked_fill(self.counts <= 0, -1e30)

    def probs(self, scores: Tensor) -> Tensor:
        """(M, C) under the class prior that decides."""
        if self.estimated:
            return torch.softmax(self.pool_logits(scores), dim=1)
        return torch.softmax((self.logit_scale * scores).masked_fill(self.counts <= 0, -math.inf), dim=1)

    def pool_logits(self, scores: Tensor) -> Tensor:
        """(M, C) log probabilities, up to a constant, under the shares of the unlabelled rows."""
        plain = scores / self.scales.clamp_min(1e-9).float()
        return (self.confidence_scale * plain + self.log_shares).masked_fill(self.counts <= 0, -math.inf)

    def confidence(self, kind: Confidence, scored: Scored, decided: Tensor) -> Tensor:
        """(M,) of the classes ``decided`` (M,) for."""
        return Judged(self.pool_logits(scored.mean), decided, scored.variance).confidence(kind, self.confidence_scale)
