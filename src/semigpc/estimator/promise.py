"""How sure must a label be to be given out, so that enough of those given out are right?

``target_precision`` is a promise with a probability: with probability 90 % over the labels that
were drawn, at least that share of the labels given out is right, if the labels of each class are a
random sample of that class.

The errors among the unlabelled rows of confidence >= t are predicted from what the probabilities
themselves say, corrected by how often they were wrong about left-out labels:

    errors(t) ~ Poisson( phi(t) sum_c g_c v_c b_c(t) )
    b_c(t)    rows of class c that are called otherwise with confidence >= t, by the probabilities
    phi(t)    ~ Gamma(1 + e, 0.7 / m + E): left-out labels of confidence >= t, e of which are wrong where E were expected to be;
              m is e / E of all left-out labels, at least 1
    g_c       ~ Gamma(2, mean 1 + 8 / n_c^2): errors come in groups, as when no label is like a part of a class
    v_c       ~ exp(0.7 z / sqrt(n_c)): the share of a class with n_c labels is not known exactly

Left-out labels are weighted by the estimated shares of their classes. Thresholds are the least for
which the errors are few enough in 90 % of the draws. Unless the promise is for each class, they
differ by class so that the labels given out cover
more of the rare ones: an error costs the same everywhere, while a right label is worth more in a
rare class, so that t / (1 - t) is in proportion to the square root of the share, and t at least
1/2. In proportion to the share itself, fewer labels were given out and no more of the rare ones.
The constants were chosen on tuning splits of nine data sets (docs/results.md).

Apart from that, ``supported`` is a bound that trusts no probability: that of Clopper and Pearson
for the left-out labels above the threshold.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammaincinv, logit
from scipy.stats import beta, poisson
from torch import Tensor

from semigpc.estimator.confidence import Decisions

PROBABILITY = 0.9  # with which a promise is kept
NEVER = 1.0 + 1e-6  # a confidence that no row reaches
DRAWS = 200  # of g, v and phi
PRIOR_ERRORS, PRIOR_EXPECTED = 1.0, 0.7  # of phi, whose mean is 1.4 m before any label is left out
GROUPED = 2.0  # shape of g_c
# errors of a class with one label are 1 + 8 times as many as the probabilities say, with four 1.5
# times
DOUBT = 8.0
UNCERTAIN = 0.7  # deviation of the logarithm of a share that was estimated with one label
LEAST_ERRORS = (
    0.001  # share of each class that is taken to be wrong however sure the probabilities are
)
# power of the share that the odds of a threshold are in proportion to; 0 is one threshold for all
EVENNESS = 0.5
LEAST = 0.5  # a label is given out only if it is more likely right than wrong
STEPS = 60  # thresholds tried, from that of FIRST rows to that of all
FIRST = 20
LOWER = tuple(
    x / 100 for x in range(99, 49, -1)
)  # promises to try where the one that was asked for cannot be made

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
        possible: where no label can be given out, the largest promise under which some could be;
            None if there is none.
    """

    thresholds: Array
    target: float | None = None
    supported: float | None = None
    expected: float | None = None
    possible: float | None = None


def make_promise(
    left_out: Decisions,
    truth: Tensor,
    pool: Decisions,
    shares: Tensor,
    target: float,
    *,
    per_class: bool = False,
) -> Promise:
    """Return the thresholds that keep ``target``, for all labels together or for those of each
    class.

    O(u C + n C + DRAWS STEPS C), and with ``per_class`` O(DRAWS STEPS C^2).

    Args:
        left_out: decisions for n labelled rows, each without its own label. truth: (n,) their given
            classes.
        pool: decisions for u unlabelled rows; the left-out ones stand for them if there are none.
        shares: (C,) of the unlabelled rows.
    """
    odds = _Odds(
        left_out, truth.numpy(), pool if len(pool.classes) else left_out, shares.double().numpy()
    )
    promise = odds.promise(target, per_class=per_class)
    if promise.expected is None:
        possible = (
            lower
            for lower in LOWER
            if lower < target and (odds.promise(lower).thresholds <= 1).any()
        )
        promise = promise._replace(possible=next(possible, None))
    return promise


class _Odds:
    """Probabilities of the numbers of errors."""

    def __init__(
        self, left_out: Decisions, truth: NDArray[np.int64], pool: Decisions, shares: Array
    ) -> None:
        self.probs, self.codes, self.shares = (
            pool.probs.double().numpy(),
            pool.classes.numpy(),
            shares,
        )
        self.confidence = pool.confidence.double().numpy()
        self.rank = self._ranks(self.confidence, self.codes)
        self.counts = np.bincount(truth, minlength=len(shares)).astype(np.float64)
        known = np.maximum(self.counts, 1)
        rng = np.random.default_rng(0)  # the same labels give the same promise
        groups = rng.gamma(GROUPED, (1 + DOUBT / known**2) / GROUPED, (DRAWS, len(shares)))
        self.doubts = groups * np.exp(
            UNCERTAIN / np.sqrt(known) * rng.standard_normal(groups.shape)
        )  # g v, (DRAWS, C)
        self.quantiles = (rng.permutation(DRAWS) + 0.5) / DRAWS  # of phi
        checked = self.counts[truth] > 1  # the only label of a class cannot be left out
        sure = left_out.confidence.double().numpy()
        weights = np.where(checked, shares[truth] / known[truth], 0.0)
        weights *= weights.sum() / max(
            np.square(weights).sum(), 1e-300
        )  # they sum up to their effective number
        wrong, decided = left_out.classes.numpy() != truth, left_out.classes.numpy()
        rank = self._ranks(sure, decided)
        order = np.argsort(-rank, kind="stable")
        self.left_confidence, self.left_decided, self.left_rank = (
            sure[order],
            decided[order],
            rank[order],
        )
        self.left_weights, self.left_wrong = weights[order], (weights * wrong)[order]
        self.left_expected = (weights * (1 - sure))[order]

    def _ranks(self, confidence: Array, codes: NDArray[np.int64]) -> Array:
        """Return log(p / (1 - p)) - log(share) / 2 of rows (M,), which are given out from the
        largest down; -inf for never.
        """
        odds = logit(confidence.clip(LEAST, 1 - 1e-12)) - EVENNESS * np.log(
            self.shares[codes].clip(1e-12)
        )
        return np.where(confidence >= LEAST, odds, -np.inf)

    def promise(self, target: float, *, per_class: bool = False) -> Promise:
        """Return thresholds for the target, and what is known of the labels above them."""
        classes = len(self.counts)
        if (self.counts > 0).sum() < 2:
            return Promise(
                np.full(classes, NEVER), target
            )  # nothing is known of rows outside of this class
        if per_class:
            ranks = np.array([self._least_rank(self.codes == c, target) for c in range(classes)])
        else:
            ranks = np.full(classes, self._least_rank(np.ones(len(self.codes), dtype=bool), target))
        thresholds = expit(ranks + EVENNESS * np.log(self.shares.clip(1e-12))).clip(LEAST)
        thresholds = np.where(np.isinf(ranks), NEVER, thresholds)
        given = self.confidence >= thresholds[self.codes]
        above = self.left_confidence >= thresholds[self.left_decided]
        trials, errors = self.left_weights[above].sum(), self.left_wrong[above].sum()
        supported = None
        if given.any() and trials > 0:
            supported = min(
                target, float(1 - beta.ppf(PROBABILITY, errors + 1, max(trials - errors, 1e-9)))
            )
        expected = float(self.confidence[given].mean()) if given.any() else None
        return Promise(thresholds, target, supported, expected)

    def _least_rank(self, rows: NDArray[np.bool_], target: float) -> float:
        """Return the least rank such that the promise is kept for the labels of these rows (u,);
        inf if there is none.
        """
        chosen = np.flatnonzero(rows & (self.rank > -np.inf))
        if not len(chosen):
            return np.inf
        chosen = chosen[np.argsort(-self.rank[chosen], kind="stable")]
        sizes = np.unique(
            np.geomspace(min(FIRST, len(chosen)), len(chosen), STEPS).round().astype(int)
        )
        tried = self.rank[chosen][sizes - 1]
        others = self.probs[chosen]
        others[np.arange(len(chosen)), self.codes[chosen]] = 0
        believed = np.add.reduceat(others, np.concatenate([[0], sizes[:-1]]), axis=0).cumsum(
            axis=0
        )  # b, (STEPS, C)
        believed += LEAST_ERRORS * self.probs.sum(axis=0) / len(self.probs) * sizes[:, None]
        above = np.searchsorted(-self.left_rank, -tried, side="right")
        wrong, expected = (
            np.append(0, x.cumsum())[above][:, None] for x in (self.left_wrong, self.left_expected)
        )
        usual = max(1.0, self.left_wrong.sum() / max(self.left_expected.sum(), 1e-9))  # m
        phi = gammaincinv(PRIOR_ERRORS + wrong, self.quantiles) / (
            PRIOR_EXPECTED / usual + expected
        )  # (STEPS, DRAWS)
        allowed = np.floor((1 - target) * sizes + 1e-9)[:, None]
        kept = poisson.cdf(allowed, phi * (believed @ self.doubts.T)).mean(axis=1) >= PROBABILITY
        return float(tried[np.flatnonzero(kept)[-1]]) - 1e-9 if kept.any() else np.inf
