"""What the estimator returns, and how scores become calibrated probabilities and class shares."""

import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor

from semigpc.gp.certainty import class_scales

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
LOGIT_SCALES = tuple(float(x) for x in np.geomspace(1.0, 80.0, 40))
EM_ROUNDS = 200  # of expectation-maximisation at most
CONVERGED_CHANGE = 1e-6  # of a share, below which it stops
# Factor of lambda: left-out scores are less confident than those of unlabelled rows, and shares
# estimated from soft scores collapse.
SHARPENING = 2.0
RELIED_SHARE = 0.15  # of the unlabelled rows that counts for the prior: their classes are estimates
STRENGTHS = np.geomspace(1, 1e5, 41)  # tried, of the prior proportional to the labels, in labels
LEAST_SHARE = 0.01  # of an even share: that of the pseudo-rows of a class
# Largest over smallest count of labels up to which they count as chosen evenly by a person, so that
# they contain nothing about shares.
EVEN_RATIO = 1.5


class Status(IntEnum):
    """What a row's label is worth. Arrays hold the number; files hold the name in lower case."""

    LABELLED = 0  # the label was given
    PSEUDO = 1  # predicted, and confident enough to be given out
    ABSTAINED = 2  # predicted, and left for people to decide
    OUTLIER = 3  # unlike every labelled row

    @property
    def text(self) -> str:
        """Return the name that files hold."""
        return self.name.lower()


STATUSES = tuple(status.text for status in Status)  # by number


class Answers(NamedTuple):
    """Everything about M rows from one pass.

    Attributes:
        codes: (M,) the class, as an index into ``classes_``.
        confidence: (M,) the probability that this class is right for a row like the unlabelled
            ones.
        likeliest, likeliest_confidence: (M,) the class of largest probability, and that
            probability. Where it is another class, the row is not given a label.
        variance: (M,) posterior over prior variance, 0 (known) to 1 (unlike all labelled rows);
            None if not requested.
        status: (M,) uint8, a :class:`Status`; never LABELLED.
        rows: (M, top) numbers of the labelled rows that contribute most to the class, -1 where
            there are fewer.
        weights: (M, top) what each adds to the score of the class, signed.
        scores: (M,) that score: the sum of the weights of ALL labelled rows.
    """

    codes: Integers
    confidence: Floats
    likeliest: Integers
    likeliest_confidence: Floats
    variance: Floats | None
    status: NDArray[np.uint8]
    rows: Integers
    weights: Floats
    scores: Floats


class Explanation(NamedTuple):
    """Why M rows get their class.

    Attributes:
        codes: (M,) the class explained.
        rows: (M, top) numbers of the labelled rows that contribute most to the class, -1 where
            there are fewer.
        weights: (M, top) what each adds to the score, signed: k(h, h_i) a[i, c].
        differences: (M, top) the score minus what it would be had that row never been labelled, all
            else equal.
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
        proba: (n, C) by the other labels, under equal class priors.
        decided: (n,) the class that they decide for. confidence: (n,) its probability under the
            estimated shares.
        likeliest: (n,) the class of largest probability under these.
        variance: (n,) posterior over prior variance without the row itself.
    """

    rows: Integers
    codes: Integers
    proba: Floats
    decided: Integers
    confidence: Floats
    likeliest: Integers
    variance: Floats


class Decisions(NamedTuple):
    """Classes (M,) decided for M rows, and probabilities (M, C) under the estimated shares."""

    probs: Tensor
    classes: Tensor

    @property
    def confidence(self) -> Tensor:
        """Return the probability (M,) that the class is right."""
        return self.probs.gather(1, self.classes.unsqueeze(1)).squeeze(1)


class Calibration(NamedTuple):
    """What turns scores (M, C) into probabilities.

    Attributes:
        logit_scale: lambda. confidence_scale: lambda'.
        log_shares: (C,) of the unlabelled rows. counts: (C,) labels of each class; a class without
            labels is never chosen.
        scales: (C,) factors that scores contain already. estimated: whether the class is chosen
            under these shares.
    """

    logit_scale: float
    confidence_scale: float
    log_shares: Tensor
    counts: Tensor
    scales: Tensor
    estimated: bool

    def bias(self) -> Tensor:
        """Return the log prior over the logit scale, (C,)."""
        bias = (
            self.log_shares / self.confidence_scale
            if self.estimated
            else torch.zeros(len(self.counts))
        )
        return bias.masked_fill(self.counts <= 0, -1e30)

    def probs(self, scores: Tensor) -> Tensor:
        """Return probabilities (M, C) under the class prior by which classes are chosen."""
        if self.estimated:
            return torch.softmax(self.pool_logits(scores), dim=1)
        return torch.softmax(
            (self.logit_scale * scores).masked_fill(self.counts <= 0, -math.inf), dim=1
        )

    def pool_logits(self, scores: Tensor) -> Tensor:
        """Return log probabilities (M, C), up to a constant, under the estimated shares."""
        factors = (self.confidence_scale / self.scales.clamp_min(1e-9)).float()
        return torch.addcmul(
            self.log_shares.masked_fill(self.counts <= 0, -math.inf), scores, factors
        )


def left_out_scores(
    mean: Tensor, ones: Tensor, counts: Tensor, removed: Tensor, *, equalised: bool = True
) -> Tensor:
    """Return scores (n, C) of labelled rows as if they had never been labelled.

    Their class has fewer labels, too.

    Args:
        mean: (n, C) left-out means of the one-hot targets. ones: (n,) those of a target of ones.
        counts: (C,) labels of each class, with every row counted.
        removed: (n, C) labels of each class that were left out: of the row itself, or of all rows
            of its fold.
        equalised: whether classes are given equal evidence.

    Returns:
        The scores; -inf for a class of which no label is left.
    """
    others = counts - removed
    shares = others / others.sum(dim=1, keepdim=True).clamp_min(1)
    scores = mean - ones.unsqueeze(1) * shares
    if equalised:
        scores = scores * class_scales(others)
    is_absent = others < 1e-9
    impossible = is_absent & ~is_absent.all(dim=1, keepdim=True)  # unless no label is left at all
    return scores.masked_fill(impossible, -math.inf)


def best_logit_scale(scores: Tensor, codes: Tensor, default: float) -> float:
    """Return the lambda of largest likelihood of softmax(lambda s), classes counting the same.

    One pseudo-observation per class at the default prevents certainty from a handful of labels that
    are all predicted right. O(n C) for each value tried.

    Args:
        scores: (n, C) of rows that did not take part; rows whose own class is -inf are left out.
            codes: (n,).
        default: lambda where nothing can be learned.
    """
    rows = torch.arange(len(codes))
    usable = scores[rows, codes].isfinite()
    scores = scores[usable]
    codes = codes[usable]
    if not len(codes):
        return default
    counts = torch.bincount(codes, minlength=scores.shape[1]).to(scores)
    weights = 1 / counts[codes]
    n_c = float(len(codes)) / float((counts > 0).sum())

    def loss(scale: float) -> float:
        own = torch.log_softmax(scale * scores, dim=1)[rows[: len(codes)], codes]
        return -float(weights @ own / weights.sum()) + math.log(scale / default) ** 2 / n_c

    return min(LOGIT_SCALES, key=loss)


def estimate_shares(scores: Tensor, scale: float, counts: Tensor) -> Tensor:
    """Return class shares of unlabelled rows by expectation-maximisation.

        r_ic ~ pi_c softmax(2 lambda s_i)_c
        pi_c ~ max(1, u / 100 C) + kappa n_c / n + sum_i r_ic

    The prior is proportional to the labels. The first term are pseudo-rows, so that no share
    becomes 0. kappa is chosen each round: it
    maximises the likelihood of the counts sum_i r_ic, of which 15 % are relied on, under a
    Dirichlet-multinomial distribution around n_c / n. Labels that are drawn like the other rows
    thus decide about rare classes, and labels that are not have little weight. Where all classes
    have about as many labels, somebody chose them so, and kappa is 0. O(u C) a round.

    Args:
        scores: (u, C) of the unlabelled rows, with equal evidence for every class. scale: lambda.
        counts: (C,) labels of each class; a class without labels has no share.
    """
    present = counts > 0
    if not len(scores):
        return counts / counts.sum()
    probs = torch.softmax(
        (SHARPENING * scale * scores.double()).masked_fill(~present, -math.inf), dim=1
    )
    likely = (counts / counts.sum()).numpy()
    pseudo = present.double().numpy() * max(1.0, LEAST_SHARE * len(scores) / len(counts))
    even = float(counts.max() / counts[present].min()) <= EVEN_RATIO
    shares = present.double() / present.sum()
    for _ in range(EM_ROUNDS):
        joint = probs * shares
        rows = (joint / joint.sum(dim=1, keepdim=True).clamp_min(1e-30)).sum(dim=0).numpy()
        kappa = (
            0.0
            if even
            else _strength(RELIED_SHARE * rows[pseudo > 0], likely[pseudo > 0]) / RELIED_SHARE
        )
        total = rows + kappa * likely + pseudo
        before = shares
        shares = torch.from_numpy(total / total.sum())
        if float((shares - before).abs().max()) < CONVERGED_CHANGE:
            break
    return shares


def _strength(rows: NDArray[np.float64], likely: NDArray[np.float64]) -> float:
    """Return the kappa of largest Dirichlet-multinomial likelihood of counts (C,)."""
    prior = STRENGTHS[:, None] * likely
    evidence = (
        gammaln(STRENGTHS)
        - gammaln(STRENGTHS + rows.sum())
        + (gammaln(prior + rows) - gammaln(prior)).sum(axis=1)
    )
    return float(STRENGTHS[evidence.argmax()])
