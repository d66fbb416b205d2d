"""Which labels to give out, so that enough of them are right.

``target_precision`` is a promise with a probability: with probability 90 % over the labels that
were drawn, at least that share of the labels given out is right, if the labels of each class are a
random sample of that class.

The errors among the unlabelled rows of confidence >= t are predicted from the probabilities
themselves, corrected by how often these were wrong about left-out labels:

    errors(t) ~ Poisson( phi(t) sum_c g_c v_c b_c(t) )
    b_c(t)    rows of class c that are called otherwise with confidence >= t, by the probabilities
    phi(t)    ~ Gamma(1 + e, 0.7 / m + E): left-out labels of confidence >= t, e of which are wrong
              where E were expected to be; m is e / E of all left-out labels, at least 1
    g_c       ~ Gamma(2, mean 1 + 8 / n_c^2): errors come in groups, as when no label is like a
              part of a class
    v_c       ~ exp(0.7 z / sqrt(n_c)): the share of a class with n_c labels is not known exactly

Left-out labels are weighted by the estimated shares of their classes. Thresholds are the least for
which the errors are few enough in 90 % of the draws. Unless the promise is for each class, they
differ by class so that the labels given out cover more of the rare ones: an error costs the same
everywhere, while a right label is worth more in a rare class, so that t / (1 - t) is proportional
to the square root of the share, and t at least 1/2. Proportional to the share itself, fewer labels
were given out and no more of the rare ones. The constants were chosen on tuning splits of nine data
sets (docs/results.md).

Apart from that, ``supported`` is a bound that uses no probability: that of Clopper and Pearson for
the left-out labels above the threshold.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammaincinv, logit
from scipy.stats import beta, poisson
from torch import Tensor

from semigpc.estimator.answers import Decisions

PROBABILITY = 0.9  # with which a promise is kept
NEVER = 1.0 + 1e-6  # a confidence that no row reaches
DRAWS = 200  # of g, v and phi
PRIOR_ERRORS = 1.0  # shape of phi before any label is left out ...
PRIOR_EXPECTED = 0.7  # ... and its rate times m: the mean is 1.4 m
GROUPING = 2.0  # shape of g_c
SINGLE_LABEL_DOUBT = 8.0  # g_c has the mean 1 + 8 / n_c^2: 9 with one label, 1.5 with four
SHARE_DEVIATION = 0.7  # standard deviation of the log of a share estimated from one label
LEAST_ERRORS = 0.001  # share of each class that counts as wrong even at probability 1
EVENNESS = 0.5  # power of the share that a threshold's odds follow; 0 is one threshold for all
LEAST_CONFIDENCE = 0.5  # a label is given out only if it is more likely right than wrong
TRIED_THRESHOLDS = 60  # from the one that gives out FIRST_LABELS to the one that gives out all
FIRST_LABELS = 20
GRADES = (0.99, 0.95, 0.9, 0.8)  # precisions that every row is tried for

Array = NDArray[np.float64]


class Promise(NamedTuple):
    """What can be said of the labels given out.

    Attributes:
        thresholds: (C,) confidence from which a label of each class is given out; above 1 where
            none is.
        target: the precision that was asked for, or None.
        supported: the precision that left-out labels alone support with probability 90 %, at most
            the target; None if no left-out label reaches the threshold.
        expected: the mean confidence of the labels given out; None if there are none.
        grades: thresholds (C,) by precision, the highest first: ``target`` and GRADES. They only
            fall from one precision to the next. A precision below the target is here only if
            left-out labels alone support it. A promise for a grade is for all rows that reach it,
            those of higher grades included. Empty if no precision was asked for.
    """

    thresholds: Array
    target: float | None = None
    supported: float | None = None
    expected: float | None = None
    grades: Mapping[float, Array] = {}


def make_promise(
    left_out: Decisions,
    truth: Tensor,
    pool: Decisions,
    shares: Tensor,
    target: float,
    *,
    per_class: bool = False,
) -> Promise:
    """Return thresholds that keep ``target`` for all labels together, or for those of each class.

    O(u C + n C + D T C) for D draws and T thresholds tried, and O(D T C^2) with ``per_class``.

    Args:
        left_out: decisions for n labelled rows, each without its own label. truth: (n,) their given
            classes.
        pool: decisions for u unlabelled rows; the left-out ones stand for them if there are none.
        shares: (C,) of the unlabelled rows.
    """
    pool = pool if len(pool.classes) else left_out
    errors = _Errors(left_out, truth.numpy(), pool, shares.double().numpy())
    grades = {}
    for precision in sorted({target, *GRADES}, reverse=True):
        found = errors.promise(precision, per_class=per_class)
        if precision == target:
            promise = found
        if precision >= target or found.supported == precision:
            grades[precision] = found.thresholds
    return promise._replace(grades=grades)


class _LeftOut(NamedTuple):
    """Left-out labels, by descending rank.

    Attributes:
        confidence: (n,). decided: (n,) the class that the other labels decide for.
        rank: (n,). weights: (n,) that sum to their effective number.
        wrong: (n,) weights of the wrong ones. expected: (n,) weights times 1 - confidence.
    """

    confidence: Array
    decided: NDArray[np.int64]
    rank: Array
    weights: Array
    wrong: Array
    expected: Array


class _Errors:
    """The distribution of the number of errors above each threshold."""

    def __init__(
        self, left_out: Decisions, truth: NDArray[np.int64], pool: Decisions, shares: Array
    ) -> None:
        self.shares = shares
        self.probs = pool.probs.double().numpy()
        self.codes = pool.classes.numpy()
        self.confidence = pool.confidence.double().numpy()
        self.rank = self._ranks(self.confidence, self.codes)
        self.counts = np.bincount(truth, minlength=len(shares)).astype(np.float64)
        known = np.maximum(self.counts, 1)
        rng = np.random.default_rng(0)  # the same labels give the same promise
        scale = (1 + SINGLE_LABEL_DOUBT / known**2) / GROUPING
        groups = rng.gamma(GROUPING, scale, (DRAWS, len(shares)))
        deviations = SHARE_DEVIATION / np.sqrt(known) * rng.standard_normal(groups.shape)
        self.doubts = groups * np.exp(deviations)  # g v, (DRAWS, C)
        self.quantiles = (rng.permutation(DRAWS) + 0.5) / DRAWS  # of phi
        self.left_out = self._left_out(left_out, truth, known)

    def _left_out(self, decisions: Decisions, truth: NDArray[np.int64], known: Array) -> _LeftOut:
        checked = self.counts[truth] > 1  # the only label of a class cannot be left out
        weights = np.where(checked, self.shares[truth] / known[truth], 0.0)
        weights *= weights.sum() / max(np.square(weights).sum(), 1e-300)
        confidence = decisions.confidence.double().numpy()
        decided = decisions.classes.numpy()
        rank = self._ranks(confidence, decided)
        order = np.argsort(-rank, kind="stable")
        return _LeftOut(
            confidence=confidence[order],
            decided=decided[order],
            rank=rank[order],
            weights=weights[order],
            wrong=(weights * (decided != truth))[order],
            expected=(weights * (1 - confidence))[order],
        )

    def _ranks(self, confidence: Array, codes: NDArray[np.int64]) -> Array:
        """Return log(p / (1 - p)) - log(share) / 2 of rows (M,); -inf below LEAST_CONFIDENCE.

        Labels are given out from the largest rank down.
        """
        odds = logit(confidence.clip(LEAST_CONFIDENCE, 1 - 1e-12))
        ranks = odds - EVENNESS * np.log(self.shares[codes].clip(1e-12))
        return np.where(confidence >= LEAST_CONFIDENCE, ranks, -np.inf)

    def promise(self, target: float, *, per_class: bool = False) -> Promise:
        """Return thresholds for the target, and what is known of the labels above them."""
        classes = len(self.counts)
        if (self.counts > 0).sum() < 2:  # nothing is known of rows outside of this class
            return Promise(np.full(classes, NEVER), target)
        if per_class:
            ranks = np.array([self._least_rank(self.codes == c, target) for c in range(classes)])
        else:
            ranks = np.full(classes, self._least_rank(np.ones(len(self.codes), dtype=bool), target))
        thresholds = expit(ranks + EVENNESS * np.log(self.shares.clip(1e-12)))
        thresholds = np.where(np.isinf(ranks), NEVER, thresholds.clip(LEAST_CONFIDENCE))
        given = self.confidence >= thresholds[self.codes]
        if not given.any():
            return Promise(thresholds, target)
        above = self.left_out.confidence >= thresholds[self.left_out.decided]
        supported = self._supported(above)
        supported = None if supported is None else min(target, supported)
        return Promise(thresholds, target, supported, float(self.confidence[given].mean()))

    def _supported(self, above: NDArray[np.bool_]) -> float | None:
        """Return the precision that some left-out labels (n,) alone support; None without any.

        The bound of Clopper and Pearson, for labels weighted by the shares of their classes and for
        labels that count alike, the lesser of the two: estimated shares can be wrong.
        """
        weights = self.left_out.weights[above]
        is_wrong = self.left_out.wrong[above] > 0
        if not weights.sum() > 0:
            return None
        ways = (weights, (weights > 0).astype(np.float64))
        bounds = [
            beta.ppf(PROBABILITY, each[is_wrong].sum() + 1, max(each[~is_wrong].sum(), 1e-9))
            for each in ways
        ]
        return float(1 - max(bounds))

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
        ranks = self.rank[order][sizes - 1]
        errors = self._corrections(ranks) * (self._believed_errors(order, sizes) @ self.doubts.T)
        allowed = np.floor((1 - target) * sizes + 1e-9)
        is_kept = poisson.cdf(allowed[:, None], errors).mean(axis=1) >= PROBABILITY
        if not is_kept.any():
            return np.inf
        return float(ranks[is_kept][-1]) - 1e-9  # so that the row at the threshold is above it

    def _believed_errors(self, order: NDArray[np.int64], sizes: NDArray[np.int64]) -> Array:
        """Return b_c, (S, C): rows of class c called otherwise among the first sizes (S,) rows."""
        others = self.probs[order]
        others[np.arange(len(order)), self.codes[order]] = 0  # of the class that is given out
        starts = np.concatenate([[0], sizes[:-1]])
        believed = np.add.reduceat(others, starts, axis=0).cumsum(axis=0)
        least = LEAST_ERRORS * self.probs.sum(axis=0) / len(self.probs)
        return np.asarray(believed + least * sizes[:, None])

    def _corrections(self, ranks: Array) -> Array:
        """Return draws of phi, (S, DRAWS), above each rank (S,)."""
        left_out = self.left_out
        above = np.searchsorted(-left_out.rank, -ranks, side="right")
        wrong = np.append(0, left_out.wrong.cumsum())[above][:, None]
        expected = np.append(0, left_out.expected.cumsum())[above][:, None]
        usual = max(1.0, left_out.wrong.sum() / max(left_out.expected.sum(), 1e-9))  # m
        draws = gammaincinv(PRIOR_ERRORS + wrong, self.quantiles)
        return np.asarray(draws / (PRIOR_EXPECTED / usual + expected))
