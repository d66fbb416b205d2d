"""From scores to what is said of a label: probabilities under a class prior, and how sure it is."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.estimator.posterior import Scored
from semigpc.gp.certainty import expected_probability

Confidence = Literal["probability", "expected", "variance"]
LOGIT_SCALES = tuple(float(x) for x in np.geomspace(1.0, 80.0, 40))
ROUNDS = 200  # of expectation-maximisation at most
STILL = 1e-6  # change of a share at which it has settled
FEW = 30  # labels that count as few: beside so many, half of the errors that are asked for are allowed
NEVER = 1.0 + 1e-6  # a confidence that nothing has
Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
STATUSES = ("pseudo", "abstained", "outlier")  # what a code in ``Answers.status`` stands for
PSEUDO, ABSTAINED, OUTLIER = range(3)


class Answers(NamedTuple):
    """All that is said of M rows in one pass.

    Attributes:
        codes: (M,) the class, as an index into ``classes_``.
        confidence: (M,) the probability that the label is right for a row like the unlabelled ones, or what the estimator
            was told to go by in its place.
        variance: (M,) posterior over prior variance, 0 (known) to 1 (nothing like it was seen); None if not asked for.
        status: (M,) uint8, an index into :data:`STATUSES`.
        rows: (M, top) numbers of the labelled rows that speak most for the class, -1 where there are fewer.
        weights: (M, top) what each adds to the score of the class, signed.
        scores: (M,) that score: the sum of the weights of ALL labelled rows.
    """

    codes: Integers
    confidence: Floats
    variance: Floats | None
    status: NDArray[np.uint8]
    rows: Integers
    weights: Floats
    scores: Floats

    @classmethod
    def join(cls, parts: "Sequence[Answers]") -> "Answers":
        """One after the other."""
        joined: list[Any] = [None if column[0] is None else np.concatenate(column) for column in zip(*parts, strict=True)]
        return cls(*joined)


class Explanation(NamedTuple):
    """Why M rows get their class.

    Attributes:
        codes: (M,) the class explained.
        rows: (M, top) numbers of the labelled rows that speak most for the class, -1 where there are fewer.
        weights: (M, top) what each adds to the score, signed: k(h, h_i) a[i, c].
        differences: (M, top) the score minus what it would be had that row never been labelled, all else equal.
        rest: (M,) what all other labelled rows add: ``weights.sum(1) + rest == scores``.
        scores: (M,) score of the class.
    """

    codes: Integers
    rows: Integers
    weights: Floats
    differences: Floats
    rest: Floats
    scores: Floats


class LeftOutLabels(NamedTuple):
    """Each of the n given labels as the others would have it.

    Attributes:
        rows: (n,) row numbers. codes: (n,) the given classes.
        proba: (n, C) by the other n - 1 labels. variance: (n,) posterior over prior variance without the row itself.
    """

    rows: Integers
    codes: Integers
    proba: Floats
    variance: Floats


class Decisions(NamedTuple):
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


class Calibration(NamedTuple):
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
        return Decisions(self.pool_logits(scored.mean), decided, scored.variance).confidence(kind, self.confidence_scale)


def class_scales(counts: Tensor) -> Tensor:
    """sqrt(nbar / n_c) for counts (..., C): equal evidence for every class (algorithms 3.7); 0 for a class without labels."""
    present = counts > 0
    n_bar = counts.sum(dim=-1, keepdim=True) / present.sum(dim=-1, keepdim=True).clamp_min(1)
    return torch.where(present, (n_bar / counts.clamp_min(1e-9)).sqrt(), 0.0)


def left_out_scores(
    mean: Tensor, ones: Tensor, codes: Tensor, counts: Tensor, held: Tensor | None = None, *, equalised: bool = True
) -> Tensor:
    """Scores (n, C) of labelled rows as if each had never been labelled: its class has one label less, too.

    Args:
        mean: (n, C) leave-one-out means of the one-hot targets. ones: (n,) those of a target of ones.
        codes: (n,) given classes. counts: (C,) labels of each class, with every row counted.
        held: (n,) what a row counts for there, 1 if left out.
        equalised: whether classes are given equal evidence.

    Returns:
        The scores; -inf for the class of a row that was alone in it.
    """
    own = torch.nn.functional.one_hot(codes, len(counts)).to(counts)
    others = counts - (own if held is None else own * held.unsqueeze(1))  # (n, C)
    shares = others / others.sum(dim=1, keepdim=True).clamp_min(1)
    scores = mean - ones.unsqueeze(1) * shares
    if equalised:
        scores = scores * class_scales(others)
    impossible = (others < 1e-9) & (others >= 1e-9).any(dim=1, keepdim=True)  # of a single label, nothing can be said at all
    return scores.masked_fill(impossible, -math.inf)


def best_logit_scale(scores: Tensor, codes: Tensor, default: float) -> float:
    """lambda of the least negative log-likelihood of softmax(lambda s), every class counting the same. O(n C) a value.

    One pseudo-observation a class at the default keeps a handful of labels that are all found from claiming certainty.

    Args:
        scores: (n, C) of rows that did not take part; rows whose own class is -inf are left out. codes: (n,).
        default: lambda where nothing can be learned.
    """
    rows = torch.arange(len(codes))
    usable = scores[rows, codes].isfinite()
    scores, codes = scores[usable], codes[usable]
    if not len(codes):
        return default
    counts = torch.bincount(codes, minlength=scores.shape[1]).to(scores)
    weights = 1 / counts[codes]
    n_c = float(len(codes)) / float((counts > 0).sum())

    def loss(scale: float) -> float:
        own = torch.log_softmax(scale * scores, dim=1)[rows[: len(codes)], codes]
        return -float(weights @ own / weights.sum()) + math.log(scale / default) ** 2 / n_c

    return min(LOGIT_SCALES, key=loss)


def estimate_shares(probs: Tensor, present: Tensor, *, prior: float = 1.0) -> Tensor:
    """Class shares of unlabelled rows by expectation-maximisation: r_ic ~ pi_c p_ic, pi_c ~ prior + sum_i r_ic. O(n C) a round.

    Args:
        probs: (n, C) under equal shares. present: (C,) bool, classes that have labels.
        prior: rows of each class that are imagined beside them, so that no class is ever ruled out.
    """
    shares = present.to(probs) / present.sum()
    for _ in range(ROUNDS):
        joint = probs * shares
        counts = (joint / joint.sum(dim=1, keepdim=True).clamp_min(1e-30)).sum(dim=0) + prior * present.to(probs)
        settled = counts / counts.sum()
        moved = float((settled - shares).abs().max())
        shares = settled
        if moved < STILL:
            break
    return shares


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
