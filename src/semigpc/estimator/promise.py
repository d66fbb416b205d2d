"""Which labels to give out, so that enough of them are right.

A promise has a probability: with probability 90 % over the labels that were drawn, at least a
share t of the labels given out is right, if the labels of each class are a random sample of that
class. It is made for several t at once, the grades.

A label of probability p for class c is right with the probability

    r = (1 - e) sigmoid(a + b (logit(p) - logit(0.9)) + u_c)

a and b correct the probabilities as a whole, u_c those of a class, and e is the share of errors
that no confidence shows, such as rows of a class without labels. Before any label is left out

    a ~ N(1.95 - 0.5 log(C / 10)+, 0.7^2)    b ~ N(0.93 - 0.16 log(C / 10)+, 0.2^2)
    u_c ~ N(0, 0.5^2 + 0.8^2 / n_c)          log e ~ N(log(0.0015 + 0.02 n_1 / n), 0.7^2)

with n_1 of the n labels alone in their class (which is how often the next label is of a new class,
after Good and Turing) and C classes: with many classes, high probabilities are less reliable. Left-
out labels, by the whole procedure with its self-training, change a, b and u by Laplace's method.
They are weighted by the shares of their classes among the unlabelled rows, and by 0.7, as labels
that are left out together are not independent. What they cannot show is added to the draws:

    a + 0.1 - 0.25 d - 0.3 m - 0.3 g        b + N(0, 0.25^2)
      + N(0, (0.45 + 0.45 d)^2 + 2^2 / N + (0.3 g)^2)
    d = min(1, KL(pi | nu) / 0.3)         m = min(1, KL(pi | nu) KL(nu | even) / 0.1)

with pi the estimated shares of the unlabelled rows, nu those of the labels, and N the effective
number of left-out labels. A row has all labels to learn from, of which a left-out one lacks a
fifth, so it is more often right. d and m are doubt. Where pi is far from nu, pi itself is doubtful,
as it was estimated with these labels; the weights above then are those of shares pi^(1 - d), which
are even for d = 1. g is the share of the given labels that were chosen, and not drawn: a chooser
asks for doubtful rows, and a model that has learned them is surer of the rest than it should be.
Where nu is uneven besides, classes with few labels hide among the others: rows
of them are estimated too few, they are predicted as classes with many labels, and hardly a label is
left out that shows it.

The labels of a grade are those of the highest r, as many as keep the promise in 90 % of the draws,
unless left-out labels contradict it: so many of those above the threshold are wrong that this had a
probability below 10 % if the promise were kept.
Unless the promise is for each class, more of the rare classes are given out: an error costs the
same everywhere, while a right label is worth more in a rare class, so the odds from which a label
is given out are proportional to the square root of the share of its class. No label is given out
that is more likely wrong than right by p. The constants were chosen on 49 problems, 3 to 100
classes with 2 to 60 labels, seeds 100 to 103; what d, m and N change, on 47 of these and 12 more
with uneven labels of even rows, the same seeds (docs/results.md).
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betainc, expit, logit, ndtr
from torch import Tensor

from semigpc.estimator.answers import (
    Decisions,
    LeftOutLabels,
    highest_grade,
    labels_suffice,
)
from semigpc.estimator.calibration import label_weights, share_divergence

PROBABILITY = 0.9  # with which a promise is kept
CONTRADICTION = 0.1  # probability of so many wrong left-out labels, below which it is not made
GRADES = (0.99, 0.95, 0.9, 0.8)  # precisions that every row is tried for
NEVER = 1.0 + 1e-6  # a confidence that no row reaches
LEAST_CONFIDENCE = 0.5  # a label is given out only if it is more likely right than wrong
DRAWS = 200  # of a, b, u and e
CENTRE = math.log(9)  # logit(0.9), where a is the logit of r
FEW_CLASSES = 10  # up to which the number of classes changes nothing
LEVEL = 1.95  # mean of a ...
LEVEL_BY_CLASSES = 0.5  # ... and what each e-fold of classes takes from it
LEVEL_DEVIATION = 0.7
SLOPE = 0.93  # the same of b
SLOPE_BY_CLASSES = 0.16
SLOPE_DEVIATION = 0.2
LEAST_SLOPE = 0.05
CLASS_DEVIATION = 0.5  # of u_c with many labels ...
SINGLE_LABEL_DEVIATION = 0.8  # ... and in addition with one
RELIANCE = 0.7  # on a left-out label
UNSEEN_LEVEL = 0.45  # deviation of a that left-out labels cannot show ...
UNSEEN_LEVEL_APART = 0.45  # ... and in addition where labels have other shares, ...
APART = 0.3  # ... by this many nats
UNSEEN_LEVEL_FEW = 2.0  # of one label; falls with the root of the effective number
# The same where all labels were chosen, and what is taken from a then: a chooser asks for doubtful
# rows, and a model that has learned them is surer of the rest than the few random ones can tell.
UNSEEN_LEVEL_CHOSEN = 0.3
CHOSEN_LEVEL = 0.3
LEARNED_LEVEL = 0.1  # added to a, as rows have more labels to learn from than left-out labels ...
APART_LEVEL = 0.25  # ... and taken from it where labels have other shares, ...
HIDDEN_LEVEL = 0.3  # ... and in addition where the labels are uneven, ...
HIDDEN = 0.1  # ... by a product of so many squared nats
UNSEEN_SLOPE = 0.25
UNSEEN_ERRORS = 0.0015  # median of e, and ...
NEW_CLASS_ERRORS = 0.02  # ... of rows of a class without labels, the share that is wrong
UNSEEN_ERRORS_DEVIATION = 0.7  # of log e
EVENNESS = 0.5  # power of the share that a threshold's odds follow; 0 is one threshold for all
TRIED_THRESHOLDS = 60  # from the one that gives out FIRST_LABELS to the one that gives out all
FIRST_LABELS = 20
NEWTON_STEPS = 50
LARGEST_STEP = 2.0
CONVERGED = 1e-6

Array = NDArray[np.float64]
Codes = NDArray[np.int64]


class Promise(NamedTuple):
    """What can be said of the labels given out.

    Attributes:
        thresholds: (C,) confidence from which a label of each class is given out; above 1 where
            none is.
        target: the precision that was asked for, or None.
        grades: thresholds (C,) by precision, the highest first: ``target`` and GRADES. They only
            fall from one precision to the next. A grade is guaranteed for all rows that reach it,
            those of higher grades included. Empty if no precision was asked for.
        expected: by precision, the mean of r over the unlabelled rows that reach it; None where
            none does. What to expect, where the grade is what is guaranteed.
        reach: by precision, the share of the unlabelled rows that could be given out if their
            precision had to be expected only, and not guaranteed.
    """

    thresholds: Array
    target: float | None = None
    grades: Mapping[float, Array] = {}
    expected: Mapping[float, float | None] = {}
    reach: Mapping[float, float] = {}


def make_promise(
    left_out: LeftOutLabels,
    pool: Decisions,
    shares: Tensor,
    counts: Tensor,
    target: float,
    *,
    per_class: bool = False,
    chosen: float = 0.0,
) -> Promise:
    """Return thresholds for each grade, and what to expect of the labels above them.

    O(n C^2 + C^3) for n left-out labels, and O(u DRAWS) for u unlabelled rows.

    Args:
        left_out: labels as the others predict them, one of several copies.
        pool: decisions for u unlabelled rows; the left-out ones stand for them if there are none.
        shares: (C,) of the unlabelled rows. counts: (C,) given labels.
        target: the precision asked for. per_class: promise it for the labels of each class.
        chosen: share of the given labels that are no random sample.
    """
    classes = len(counts)
    precisions = sorted({target, *GRADES}, reverse=True)
    never = np.full(classes, NEVER)
    if not labels_suffice(len(left_out.codes), counts.numpy()):
        nothing = dict.fromkeys(precisions)
        return Promise(never, target, dict.fromkeys(precisions, never), nothing)
    trust = Reliability(left_out, shares, counts, chosen)
    confidence = left_out.confidence.astype(np.float64)
    codes = left_out.decided
    if len(pool.classes):
        confidence = pool.confidence.double().numpy()
        codes = pool.classes.numpy()
    rows = _Rows(confidence, codes, trust)
    grades = {each: rows.thresholds(each, per_class=per_class) for each in precisions}
    reached = highest_grade(grades, codes, confidence)
    expected: dict[float, float | None] = {}
    for each in precisions:
        above = rows.right[reached >= each]
        expected[each] = float(above.mean()) if len(above) else None
    reach = {each: rows.reach(each) for each in precisions}
    return Promise(grades[target], target, grades, expected, reach)


class Reliability:
    """How often labels of each confidence are right: the distribution of a, b, u and e.

    Attributes:
        level, slope: means of a and b. effects: (C,) means of u.
        levels, slopes: (DRAWS,) draws. class_effects: (DRAWS, C) draws. errors: (DRAWS,) draws of
            e.
        left_out: what it was learned from. weights: (n,) of these labels.
    """

    def __init__(
        self, left_out: LeftOutLabels, shares: Tensor, counts: Tensor, chosen: float = 0.0
    ) -> None:
        labels = counts.double().numpy()
        self.shares = shares.double().numpy().clip(1e-12)
        self.left_out = left_out
        divergence, unevenness = self._divergences(labels)
        apart = min(1.0, divergence / APART)
        hidden = min(1.0, divergence * unevenness / HIDDEN)
        doubtful = torch.from_numpy(np.where(labels > 0, self.shares ** (1 - apart), 0.0))
        weights = label_weights(torch.from_numpy(left_out.codes), doubtful).numpy()
        self.weights: Array = weights
        mean, covariance = self._fit(left_out, weights, labels)
        self.level = float(mean[0])
        self.slope = max(float(mean[1]), LEAST_SLOPE)
        self.effects: Array = mean[2:]
        rng = np.random.default_rng(0)  # the same labels give the same promise
        draws = mean + rng.standard_normal((DRAWS, len(mean))) @ np.linalg.cholesky(covariance).T
        unseen = math.hypot(
            UNSEEN_LEVEL + UNSEEN_LEVEL_APART * apart,
            UNSEEN_LEVEL_FEW / math.sqrt(max(1.0, float(weights.sum()))),
            UNSEEN_LEVEL_CHOSEN * chosen,
        )
        self.levels = draws[:, 0] + unseen * rng.standard_normal(DRAWS)
        self.levels += LEARNED_LEVEL - APART_LEVEL * apart - HIDDEN_LEVEL * hidden
        self.levels -= CHOSEN_LEVEL * chosen
        slopes = draws[:, 1] + UNSEEN_SLOPE * rng.standard_normal(DRAWS)
        self.slopes = np.maximum(slopes, LEAST_SLOPE)
        self.class_effects: Array = draws[:, 2:]
        alone = (labels == 1).sum() / labels.sum()
        median = UNSEEN_ERRORS + NEW_CLASS_ERRORS * alone
        self.errors = median * np.exp(UNSEEN_ERRORS_DEVIATION * rng.standard_normal(DRAWS))

    def _divergences(self, labels: Array) -> tuple[float, float]:
        """Return how far the shares are from those of the labels, and these from even, in nats."""
        given = labels[labels > 0] / labels.sum()
        unevenness = math.log(len(given)) + float((given * np.log(given)).sum())
        return share_divergence(self.shares, labels), max(0.0, unevenness)

    def _fit(self, left_out: LeftOutLabels, weights: Array, labels: Array) -> tuple[Array, Array]:
        """Return mean and covariance of (a, b, u) by Laplace's method."""
        many = math.log(max(1.0, (labels > 0).sum() / FEW_CLASSES))
        prior = np.zeros(2 + len(labels))
        prior[0] = LEVEL - LEVEL_BY_CLASSES * many
        prior[1] = SLOPE - SLOPE_BY_CLASSES * many
        spread = CLASS_DEVIATION**2 + SINGLE_LABEL_DEVIATION**2 / np.maximum(labels, 1)
        precision = 1 / np.concatenate([[LEVEL_DEVIATION**2, SLOPE_DEVIATION**2], spread])
        n = len(left_out.codes)
        inputs = np.zeros((n, len(prior)))
        inputs[:, 0] = 1
        inputs[:, 1] = odds(left_out.confidence.astype(np.float64))
        inputs[np.arange(n), 2 + left_out.decided] = 1
        right = left_out.decided == left_out.codes
        weights = RELIANCE * weights
        found = prior.copy()
        for _ in range(NEWTON_STEPS):
            r = expit(inputs @ found)
            gradient = inputs.T @ (weights * (right - r)) - precision * (found - prior)
            curvature = (inputs * (weights * r * (1 - r))[:, None]).T @ inputs + np.diag(precision)
            step = np.linalg.solve(curvature, gradient)
            largest = float(np.abs(step).max())
            found += step * min(1.0, LARGEST_STEP / max(largest, 1e-300))
            if largest < CONVERGED:
                break
        return found, np.linalg.inv(curvature)

    def draw(self, confidence: Array, codes: Codes) -> Array:
        """Return draws (DRAWS, M) of r for labels of some confidence (M,) and class (M,)."""
        logits = self.slopes[:, None] * odds(confidence)
        logits += self.levels[:, None]
        logits += self.class_effects[:, codes]
        return np.asarray(expit(logits, out=logits) * (1 - self.errors.clip(0, 0.5))[:, None])

    def rank(self, confidence: Array, codes: Codes) -> Array:
        """Return the order (M,) in which labels are given out, from the largest down."""
        logits = self.level + self.slope * odds(confidence) + self.effects[codes]
        ranks = logits - EVENNESS * np.log(self.shares[codes])
        return np.where(confidence >= LEAST_CONFIDENCE, ranks, -np.inf)

    def confidence_at(self, ranks: Array) -> Array:
        """Return the confidence (C,) at which a label of each class has some rank (C,)."""
        logits = ranks + EVENNESS * np.log(self.shares) - self.effects
        confidence = expit((logits - self.level) / self.slope + CENTRE)
        return np.where(np.isinf(ranks), NEVER, confidence.clip(LEAST_CONFIDENCE))


class _Rows:
    """Unlabelled rows by falling rank, and draws of how many of the first are right.

    Attributes:
        right: (u,) mean of r, in the order of the rows.
    """

    def __init__(self, confidence: Array, codes: Codes, trust: Reliability) -> None:
        self.codes = codes
        self.trust = trust
        self.rank = trust.rank(confidence, codes)
        self.draws = trust.draw(confidence, codes)
        self.right = self.draws.mean(axis=0)

    def thresholds(self, target: float, *, per_class: bool) -> Array:
        """Return the confidence (C,) from which labels are given out."""
        classes = len(self.trust.shares)
        if per_class:
            ranks = [self._least_rank(self.codes == c, target) for c in range(classes)]
            return self.trust.confidence_at(np.array(ranks))
        every = np.ones(len(self.codes), dtype=bool)
        return self.trust.confidence_at(np.full(classes, self._least_rank(every, target)))

    def _least_rank(self, rows: NDArray[np.bool_], target: float) -> float:
        """Return the least rank at which the promise is kept for rows (u,); inf if there is none.

        Thresholds are tried so that a geometric sequence of numbers of labels is given out.
        """
        order = np.flatnonzero(rows & (self.rank > -np.inf))
        if not len(order):
            return np.inf
        order = order[np.argsort(-self.rank[order], kind="stable")]
        first = min(FIRST_LABELS, len(order))
        sizes = np.unique(np.geomspace(first, len(order), TRIED_THRESHOLDS).round().astype(int))
        starts = np.concatenate([[0], sizes[:-1]])
        r = self.draws[:, order]
        right = np.add.reduceat(r, starts, axis=1).cumsum(axis=1)
        variance = np.add.reduceat(r * (1 - r), starts, axis=1).cumsum(axis=1)
        wanted = np.ceil(target * sizes - 1e-9) - 0.5
        kept = ndtr((right - wanted) / np.sqrt(variance + 1e-9)).mean(axis=0) >= PROBABILITY
        ranks = self.rank[order[sizes - 1]]
        kept &= self._likelihood(ranks, np.unique(self.codes[rows]), target) >= CONTRADICTION
        if not kept.any():
            return np.inf
        return float(ranks[kept][-1]) - 1e-9  # so that the row at the threshold is above it

    def _likelihood(self, ranks: Array, classes: Codes, target: float) -> Array:
        """Return how probable it is that so many left-out labels above ranks (S,) are wrong.

        If the promise is just kept, a binomial tail. Labels count by their weights.

        Args:
            classes: whose labels are given out.
        """
        left_out = self.trust.left_out
        own = np.isin(left_out.decided, classes)
        rank = self.trust.rank(left_out.confidence.astype(np.float64), left_out.decided)[own]
        weights = self.trust.weights[own]
        wrong = weights * (left_out.decided != left_out.codes)[own]
        above = rank >= ranks[:, None]
        total = above @ weights
        errors = above @ wrong
        tail = betainc(errors.clip(1e-9), (total - errors).clip(0) + 1, 1 - target)
        return np.where(errors > 0, tail, 1.0)

    def reach(self, target: float) -> float:
        """Return the share of the rows of which so many are expected to be right on average."""
        if not len(self.right):
            return 0.0
        falling = -np.sort(-self.right)
        mean = falling.cumsum() / np.arange(1, len(falling) + 1)
        return float((mean >= target).mean())


def odds(confidence: Array) -> Array:
    """Return logit(p) - logit(0.9), (M,)."""
    return np.asarray(logit(confidence.clip(1e-6, 1 - 1e-6)) - CENTRE)
