"""What the estimator returns, and how scores become calibrated probabilities, confidences and a threshold to abstain below."""

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.gp.certainty import expected_probability

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Confidence = Literal["probability", "expected", "variance"]
STATUSES = ("pseudo", "abstained", "outlier")  # what a code in ``Answers.status`` stands for
PSEUDO, ABSTAINED, OUTLIER = range(3)
LOGIT_SCALES = tuple(float(x) for x in np.geomspace(1.0, 80.0, 40))
EM_ROUNDS = 200  # of expectation-maximisation at most
CONVERGED = 1e-6  # change of a share below which it stops
FEW_LABELS = 30  # with so many labels, half of the errors that the target allows are allowed
NEVER = 1.0 + 1e-6  # a confidence that no row reaches


class Answers(NamedTuple):
    """Everything about M rows from one pass.

    Attributes:
        codes: (M,) the class, as an index into ``classes_``.
        confidence: (M,) the probability that the label is right for a row like the unlabelled ones, or what the estimator's
            parameter ``confidence`` names in its place.
        variance: (M,) posterior over prior variance, 0 (known) to 1 (unlike all labelled rows); None if not requested.
        status: (M,) uint8, an index into :data:`STATUSES`.
        rows: (M, top) numbers of the labelled rows that contribute most to the class, -1 where there are fewer.
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


class Explanation(NamedTuple):
    """Why M rows get their class.

    Attributes:
        codes: (M,) the class explained.
        rows: (M, top) numbers of the labelled rows that contribute most to the class, -1 where there are fewer.
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
    """Each of the n given labels as the other n - 1 predict it.

    Attributes:
        rows: (n,) row numbers. codes: (n,) the given classes.
        proba: (n, C) by the other labels. variance: (n,) posterior over prior variance without the row itself.
    """

    rows: Integers
    codes: Integers
    proba: Floats
    variance: Floats


class Decisions(NamedTuple):
    """The classes (M,) chosen for M rows, from which :meth:`confidence` is computed.

    Attributes:
        logits: (M, C) z = lambda' mu + log shares. classes: (M,).
        variance: (M,) of mu, over the prior variance; None if only probabilities are needed.
    """

    logits: Tensor
    classes: Tensor
    variance: Tensor | None

    def confidence(self, kind: Confidence, scale: float) -> Tensor:
        """Return (M,) softmax(z)_c, its expectation over the posterior with lambda' = ``scale``, or 1 - variance."""
        if kind == "probability":
            return torch.softmax(self.logits, dim=1).gather(1, self.classes.unsqueeze(1)).squeeze(1)
        assert self.variance is not None
        if kind == "variance":
            return (1 - self.variance).clamp(0, 1)
        spread = (scale * self.variance.clamp_min(0).sqrt()).to(self.logits).unsqueeze(1)
        return expected_probability(self.logits, spread.expand_as(self.logits), self.classes)


class Calibration(NamedTuple):
    """What turns scores (M, C) into probabilities.

    Attributes:
        logit_scale: lambda. confidence_scale: lambda'.
        log_shares: (C,) of the unlabelled rows. counts: (C,) labels of each class; a class without labels is never chosen.
        scales: (C,) factors that scores contain already. estimated: whether the class is chosen under these shares.
    """

    logit_scale: float
    confidence_scale: float
    log_shares: Tensor
    counts: Tensor
    scales: Tensor
    estimated: bool

    def bias(self) -> Tensor:
        """Return the log prior over the logit scale, (C,)."""
        bias = self.log_shares / self.confidence_scale if self.estimated else torch.zeros(len(self.counts))
        return bias.masked_fill(self.counts <= 0, -1e30)

    def probs(self, scores: Tensor) -> Tensor:
        """Return probabilities (M, C) under the class prior by which classes are chosen."""
        if self.estimated:
            return torch.softmax(self.pool_logits(scores), dim=1)
        return torch.softmax((self.logit_scale * scores).masked_fill(self.counts <= 0, -math.inf), dim=1)

    def pool_logits(self, scores: Tensor) -> Tensor:
        """Return log probabilities (M, C), up to a constant, under the shares of the unlabelled rows."""
        plain = scores / self.scales.clamp_min(1e-9).float()
        return (self.confidence_scale * plain + self.log_shares).masked_fill(self.counts <= 0, -math.inf)


def class_scales(counts: Tensor) -> Tensor:
    """Return sqrt(nbar / n_c) for counts (..., C), equal evidence for every class; 0 for a class without labels."""
    present = counts > 0
    n_bar = counts.sum(dim=-1, keepdim=True) / present.sum(dim=-1, keepdim=True).clamp_min(1)
    return torch.where(present, (n_bar / counts.clamp_min(1e-9)).sqrt(), 0.0)


def left_out_scores(
    mean: Tensor, ones: Tensor, codes: Tensor, counts: Tensor, held: Tensor, *, equalised: bool = True
) -> Tensor:
    """Return scores (n, C) of labelled rows as if each had never been labelled: its class has one label less, too.

    Args:
        mean: (n, C) leave-one-out means of the one-hot targets. ones: (n,) those of a target of ones.
        codes: (n,) given classes. counts: (C,) labels of each class, with every row counted.
        held: (n,) what a row adds to ``counts``.
        equalised: whether classes are given equal evidence.

    Returns:
        The scores; -inf for the class of a row that was alone in it.
    """
    own = torch.nn.functional.one_hot(codes, len(counts)).to(counts)
    others = counts - own * held.unsqueeze(1)  # (n, C)
    shares = others / others.sum(dim=1, keepdim=True).clamp_min(1)
    scores = mean - ones.unsqueeze(1) * shares
    if equalised:
        scores = scores * class_scales(others)
    impossible = (others < 1e-9) & (others >= 1e-9).any(dim=1, keepdim=True)  # with a single label, no class is ruled out
    return scores.masked_fill(impossible, -math.inf)


def best_logit_scale(scores: Tensor, codes: Tensor, default: float) -> float:
    """Return the lambda of least negative log-likelihood of softmax(lambda s), every class counting the same.

    One pseudo-observation per class at the default prevents certainty from a handful of labels that are all predicted right.
    O(n C) for each value tried.

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


def estimate_shares(probs: Tensor, present: Tensor) -> Tensor:
    """Return class shares of unlabelled rows by expectation-maximisation. O(n C) per round.

        r_ic ~ pi_c p_ic          pi_c ~ 1 + sum_i r_ic

    where the 1 is a pseudo-row of each class, so that no share becomes 0.

    Args:
        probs: (n, C) under equal shares. present: (C,) bool, classes that have labels.
    """
    shares = present.to(probs) / present.sum()
    for _ in range(EM_ROUNDS):
        joint = probs * shares
        counts = (joint / joint.sum(dim=1, keepdim=True).clamp_min(1e-30)).sum(dim=0) + present.to(probs)
        before, shares = shares, counts / counts.sum()
        if float((shares - before).abs().max()) < CONVERGED:
            break
    return shares


def precision_threshold(
    confidence: Tensor, right: Tensor, weights: Tensor, believed: Tensor, target: float, *, chances: Tensor | None = None
) -> float:
    """Return the least confidence t such that labels of confidence >= t are right with probability ``target``.

    The strictest of three estimates is taken. Two are from the labelled rows, each left out: how often their labels are right,
    weighted by the estimated shares of their classes among the unlabelled rows, and unweighted, since the shares of classes
    with few labels may be quite wrong. The third is the mean probability of the unlabelled rows. It guards against a threshold
    learned from a handful of labels, and must reach 1 - (1 - target) n / (n + 30), which is stricter the fewer labels n there
    are. O(n log n + u log u).

    Args:
        confidence: (n,) of labelled rows that did not take part. right: (n,) 1 where their label is predicted. weights: (n,).
        believed: (u,) confidence of unlabelled rows.
        target: precision to reach.
        chances: (u,) the probabilities that these are right, if the confidence is something else.

    Returns:
        The threshold; above 1 if no threshold reaches the target.
    """
    thresholds = [_least(confidence, right, each, target) for each in (weights, torch.ones_like(weights))]
    if len(believed):
        stricter = 1 - (1 - target) * len(right) / (len(right) + FEW_LABELS)
        thresholds.append(_least(believed, believed if chances is None else chances, torch.ones_like(believed), stricter))
    return max(thresholds)


def _least(confidence: Tensor, right: Tensor, weights: Tensor, target: float) -> float:
    """Return the least confidence such that rows of at least that confidence are right with probability ``target``."""
    order = confidence.argsort(descending=True)
    falling = confidence[order]
    precision = (weights * right)[order].cumsum(0) / weights[order].cumsum(0)
    last_of_equals = torch.cat([falling[:-1] > falling[1:], torch.ones(min(1, len(falling)), dtype=torch.bool)])
    enough = ((precision >= target) & last_of_equals).nonzero()
    return float(falling[enough[-1, 0]]) if len(enough) else NEVER
