"""How sure must a label be to be given out, so that enough of those given out are right?

``target_precision`` is a promise with a probability: with probability 90 % over the labels that were drawn, at least that
share of the labels given out is right, if the labels of each class are a random sample of that class.

The errors among the unlabelled rows of confidence >= t are predicted from what the probabilities themselves say, corrected by
how often they were wrong about left-out labels:

    errors(t) ~ Poisson( phi(t) sum_c g_c v_c b_c(t) )
    b_c(t)    rows of class c that are called otherwise with confidence >= t, by the probabilities
    phi(t)    ~ Gamma(1 + e, 1/2 + E): left-out labels of confidence >= t, e of which are wrong where E were expected to be
    g_c       ~ Gamma(2, mean 1 + 3 / n_c): errors come in groups, as when no label is like a part of a class
    v_c       ~ exp(0.7 z / sqrt(n_c)): the share of a class with n_c labels is not known exactly

Left-out labels are weighted by the estimated shares of their classes. The threshold is the least t for which the errors are few
enough in 90 % of the draws. The constants were chosen on tuning splits of nine data sets (docs/results.md).

Apart from that, ``supported`` is a bound that trusts no probability: that of Clopper and Pearson for the left-out labels
above the threshold.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv
from scipy.stats import beta, poisson
from torch import Tensor

from semigpc.estimator.confidence import Decisions

PROBABILITY = 0.9  # with which a promise is kept
NEVER = 1.0 + 1e-6  # a confidence that no row reaches
DRAWS = 200  # of g, v and phi
PRIOR_ERRORS, PRIOR_EXPECTED = 1.0, 0.5  # of phi, whose mean is 2 before any label is left out
GROUPED = 2.0  # shape of g_c
DOUBT = 3.0  # errors of a class with one label are 1 + 3 times as many as the probabilities say
UNCERTAIN = 0.7  # deviation of the logarithm of a share that was estimated with one label
LEAST_ERRORS = 0.001  # share of each class that is taken to be wrong however sure the probabilities are
STEPS = 60  # thresholds tried, from that of FIRST rows to that of all
FIRST = 20
LOWER = tuple(x / 100 for x in range(99, 49, -1))  # promises to try where the one that was asked for cannot be made

Array = NDArray[np.float64]


class Promise(NamedTuple):
    """What can be said of the labels given out.

    Attributes:
        thresholds: (C,) confidence from which a label of each class is given out; above 1 where none is.
        target: the precision that was asked for, or None.
        supported: the precision that left-out labels alone support with probability 90 %, at most the target; None if no
            left-out label reaches the threshold.
        expected: the mean confidence of the labels given out; None if there are none.
        possible: where no label can be given out, the largest promise under which some could be; None if there is none.
    """

    thresholds: Array
    target: float | None = None
    supported: float | None = None
    expected: float | None = None
    possible: float | None = None


def make_promise(
    left_out: Decisions, truth: Tensor, pool: Decisions, shares: Tensor, target: float, *, per_class: bool = False
) -> Promise:
    """Return the thresholds that keep ``target``, for all labels together or for those of each class.

    O(u C + n C + DRAWS STEPS C), and with ``per_class`` O(DRAWS STEPS C^2).

    Args:
        left_out: decisions for n labelled rows, each without its own label. truth: (n,) their given classes.
        pool: decisions for u unlabelled rows; the left-out ones stand for them if there are none.
        shares: (C,) of the unlabelled rows.
    """
    odds = _Odds(left_out, truth.numpy(), pool if len(pool.classes) else left_out, shares.double().numpy())
    promise = odds.promise(target, per_class=per_class)
    if promise.expected is None:
        possible = (lower for lower in LOWER if lower < target and (odds.promise(lower).thresholds <= 1).any())
        promise = promise._replace(possible=next(possible, None))
    return promise


class _Odds:
    """Probabilities of the numbers of errors."""

    def __init__(self, left_out: Decisions, truth: NDArray[np.int64], pool: Decisions, shares: Array) -> None:
        self.probs, self.codes = pool.probs.double().numpy(), pool.classes.numpy()
        self.confidence = np.where(pool.is_likeliest.numpy(), pool.confidence.double().numpy(), 0.0)
        self.counts = np.bincount(truth, minlength=len(shares)).astype(np.float64)
        known = np.maximum(self.counts, 1)
        rng = np.random.default_rng(0)  # the same labels give the same promise
        groups = rng.gamma(GROUPED, (1 + DOUBT / known) / GROUPED, (DRAWS, len(shares)))
        self.doubts = groups * np.exp(UNCERTAIN / np.sqrt(known) * rng.standard_normal(groups.shape))  # g v, (DRAWS, C)
        self.quantiles = (rng.permutation(DRAWS) + 0.5) / DRAWS  # of phi
        checked = self.counts[truth] > 1  # the only label of a class cannot be left out
        sure = left_out.confidence.double().numpy()
        weights = np.where(checked, shares[truth] / known[truth], 0.0)
        weights *= weights.sum() / max(np.square(weights).sum(), 1e-300)  # they sum up to their effective number
        order = np.argsort(-np.where(left_out.is_likeliest.numpy(), sure, 0.0), kind="stable")
        self.left_confidence = np.where(left_out.is_likeliest.numpy(), sure, 0.0)[order]
        wrong = left_out.classes.numpy() != truth
        self.left_decided = left_out.classes.numpy()[order]
        self.left_weights, self.left_wrong = weights[order], (weights * wrong)[order]
        self.left_expected = (weights * (1 - sure))[order]

    def promise(self, target: float, *, per_class: bool = False) -> Promise:
        """Return thresholds for the target, and what is known of the labels above them."""
        classes = len(self.counts)
        if (self.counts > 0).sum() < 2:
            return Promise(np.full(classes, NEVER), target)  # nothing is known of rows outside of this class
        if per_class:
            thresholds = np.array([self._threshold(self.codes == c, target) for c in range(classes)])
        else:
            thresholds = np.full(classes, self._threshold(np.ones(len(self.codes), dtype=bool), target))
        given = self.confidence >= thresholds[self.codes]
        above = self.left_confidence >= thresholds[self.left_decided]
        trials, errors = self.left_weights[above].sum(), self.left_wrong[above].sum()
        supported = None
        if given.any() and trials > 0:
            supported = min(target, float(1 - beta.ppf(PROBABILITY, errors + 1, max(trials - errors, 1e-9))))
        expected = float(self.confidence[given].mean()) if given.any() else None
        return Promise(thresholds, target, supported, expected)

    def _threshold(self, rows: NDArray[np.bool_], target: float) -> float:
        """Return the least confidence such that the promise is kept for the labels of these rows (u,)."""
        chosen = np.flatnonzero(rows & (self.confidence > 0))
        if not len(chosen):
            return NEVER
        chosen = chosen[np.argsort(-self.confidence[chosen], kind="stable")]
        sizes = np.unique(np.geomspace(min(FIRST, len(chosen)), len(chosen), STEPS).round().astype(int))
        tried = self.confidence[chosen][sizes - 1]
        others = self.probs[chosen]
        others[np.arange(len(chosen)), self.codes[chosen]] = 0
        believed = np.add.reduceat(others, np.concatenate([[0], sizes[:-1]]), axis=0).cumsum(axis=0)  # b, (STEPS, C)
        believed += LEAST_ERRORS * self.probs.sum(axis=0) / len(self.probs) * sizes[:, None]
        above = np.searchsorted(-self.left_confidence, -tried, side="right")
        wrong, expected = (np.append(0, x.cumsum())[above][:, None] for x in (self.left_wrong, self.left_expected))
        phi = gammaincinv(PRIOR_ERRORS + wrong, self.quantiles) / (PRIOR_EXPECTED + expected)  # (STEPS, DRAWS)
        allowed = np.floor((1 - target) * sizes + 1e-9)[:, None]
        kept = poisson.cdf(allowed, phi * (believed @ self.doubts.T)).mean(axis=1) >= PROBABILITY
        return float(tried[np.flatnonzero(kept)[-1]]) if kept.any() else NEVER
