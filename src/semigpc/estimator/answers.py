"""What the estimator returns, and the steps around its GP: from rows to points, from scores to
probabilities and grades.

Also the confidence interval of a share, such as the share of right answers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import config_context
from torch import Tensor

from semigpc.gp.certainty import class_scales
from semigpc.io.errors import DataError
from semigpc.io.tables import data_frame

if TYPE_CHECKING:
    import pandas

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
SCALINGS = ("none", "unit", "centered", "standard", "rank")
WHITENED = "whitened"
# Scalings whose columns are weighted, and what they are made of.
WEIGHTED = {"weighted": "standard", "weighted_rank": "rank", "weighted_steps": "rank"}
KNOTS = 257  # quantiles from which ranks are computed
STEPS = 18  # that a column of ranks is encoded by, ...
FARTHEST_STEP = 3.0  # ... from minus this to this; ranks are normal values within 2.9
# Deviation over mean below which the mean of a column is subtracted before rounding: float32 has 24
# bits, and at least 12 of them are to be left for the deviation.
OFFSET_RATIO = 2.0**-12
# Of the probabilities: chosen together on 49 problems, seeds 100 to 103 (docs/results.md).
GIVEN_WEIGHT = 0.6  # of the GP over given labels, ...
UNLIKE_WEIGHT = 0.3  # ... and where the rest is much more even than the labels, whose shares it has
# Difference of both entropies, in parts of log C, from which that is so. Between 0.14 and 0.16 all
# tuning problems come out the same.
UNLIKE_ENTROPY = 0.15
SHARE_POWER = 0.5  # of pi
# Factor of lambda: left-out scores are less confident than those of unlabelled rows, and shares
# estimated from soft scores collapse.
SHARPENING = 2.0
FEW_LABELS = 0.5  # labels of a class at which b is half of beta
SMALLEST = 1e-12  # probability and share, before logarithms
FEWEST_LEFT_OUT = 10  # labels; from fewer, nothing is promised ...
# ... nor from fewer labels in all than this, unless every class has as many as that: of 20 and 25
# random labels, promises of 80 % were kept in 15 of 22 draws, of 30 and 40 in 27 of 29.
FEWEST_LABELS = 30
FEWEST_EACH = 4
Z95 = 1.959963984540054  # normal quantile of a two-sided 95% interval


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
            ones: its entry of ``predict_proba``.
        second, second_confidence: (M,) the most probable of the other classes, and its probability.
        variance: (M,) posterior over prior variance, 0 (known) to 1 (unlike all labelled rows);
            None if not requested.
        status: (M,) uint8, a :class:`Status`; never LABELLED.
        grade: (M,) the highest precision that is guaranteed for labels like this one; 0 if none is.
        rows: (M, top) numbers of the labelled rows that contribute most to the class, -1 where
            there are fewer.
        weights: (M, top) what each adds to the score of the class, signed.
        scores: (M,) that score: the sum of the weights of ALL labelled rows.
    """

    codes: Integers
    confidence: Floats
    second: Integers
    second_confidence: Floats
    variance: Floats | None
    status: NDArray[np.uint8]
    grade: Floats
    rows: Integers
    weights: Floats
    scores: Floats

    def frame(self, classes: NDArray[Any]) -> "pandas.DataFrame":
        """Return a row for each of the M rows, with the columns of labels.csv but its reasons.

        Args:
            classes: (C,) ``classes_`` of the model.
        """
        status = np.array(STATUSES, dtype=object)[self.status]
        label = classes[self.codes].astype(object)
        label[self.status != Status.PSEUDO] = None
        columns: dict[str, NDArray[Any]] = {
            "label": label,
            "guess": classes[self.codes],
            "confidence": self.confidence,
            "second": classes[self.second],
            "second_confidence": self.second_confidence,
        }
        if self.variance is not None:
            columns["variance"] = self.variance
        grade = np.where(self.grade > 0, np.round(self.grade.astype(np.float64), 6), np.nan)
        return data_frame(columns | {"status": status, "grade": grade})


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

    def frame(self, classes: NDArray[Any]) -> "pandas.DataFrame":
        """Return a row for each reason: its labelled row, weight and difference.

        ``row`` is the place in ``X``, ``guess`` the class explained, ``score`` its score, and
        ``because_of`` the number of the labelled row.

        Args:
            classes: (C,) ``classes_`` of the model.
        """
        row, rank = np.nonzero(self.rows >= 0)
        columns = {
            "row": row,
            "guess": classes[self.codes[row]],
            "score": self.scores[row],
            "because_of": self.rows[row, rank],
            "weight": self.weights[row, rank],
            "difference": self.differences[row, rank],
        }
        return data_frame(columns)


class LeftOutLabels(NamedTuple):
    """Given labels (n,) as the others predict them, without copies of their rows.

    Attributes:
        rows: (n,) row numbers. codes: (n,) the given classes. groups: (n,) of copies.
        proba: (n, C) by the other labels.
        decided: (n,) the class that they decide for.
        variance: (n,) posterior over prior variance without the row itself.
    """

    rows: Integers
    codes: Integers
    groups: Integers
    proba: Floats
    decided: Integers
    variance: Floats

    @property
    def confidence(self) -> Floats:
        """Return the probability (n,) of the class that was decided."""
        return self.proba[np.arange(len(self.decided)), self.decided]

    def frame(self, classes: NDArray[Any]) -> "pandas.DataFrame":
        """Return a row for each given label: what it is, and what the other labels say.

        ``label`` was given, ``guess`` and its ``confidence`` are by the others, and
        ``label_confidence`` is what they think of the given one. Rows of one ``group`` are copies.

        Args:
            classes: (C,) ``classes_`` of the model.
        """
        columns = {
            "row": self.rows,
            "label": classes[self.codes],
            "guess": classes[self.decided],
            "confidence": self.confidence,
            "label_confidence": self.proba[np.arange(len(self.codes)), self.codes],
            "variance": self.variance,
            "group": self.groups,
        }
        return data_frame(columns)


# From rows to points ----------------------------------------------------------------------------


def centre_of(rows: NDArray[Any]) -> Doubles | None:
    """Return what to subtract from the columns before rows are rounded to float32. O(n D).

    A column whose values are nearly equal in float32, such as 1e8 + noise, would lose in rounding
    what tells rows apart. Its mean is subtracted in the precision of the rows; distances stay as
    they are. Other columns have 0 here.

    Args:
        rows: (n, D) of any type, a sample; those that are not finite are ignored.

    Returns:
        (D,), or None if nothing is to be subtracted or float32 holds all values of that type.

    Raises:
        DataError: all numbers are too small for float32.
    """
    if np.can_cast(rows.dtype, np.float32):
        return None
    wide = rows[np.isfinite(rows).all(axis=1)].astype(np.float64)
    largest = np.abs(wide).max(initial=0)
    if 0 < largest < np.finfo(np.float32).tiny:
        raise DataError(
            f"Rows must hold numbers that float32 can represent; the largest is {largest:.3g}, "
            "which it rounds to 0. Multiply all of them by one number, so that it is about 1."
        )
    if not len(wide):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        mean = wide.mean(axis=0)
        deviation = wide.std(axis=0)
        is_far = (deviation > 0) & (deviation < OFFSET_RATIO * np.abs(mean))
    return np.where(is_far, mean, 0.0) if is_far.any() else None


def rounded(rows: NDArray[Any], centre: Doubles | None) -> Floats:
    """Return rows (M, D) minus ``centre`` (D,) as float32; infinity beyond its range."""
    with np.errstate(over="ignore"):
        return np.asarray(rows if centre is None else rows - centre, np.float32)


@dataclass(frozen=True)
class Scaling:
    """A named sequence of fitted transformers.

    ``unit`` divides a row by its length, which suits embeddings; ``centered`` subtracts the mean
    first. ``standard`` gives every column mean 0 and deviation 1, and ``rank`` replaces values by
    those of a standard normal in the order of the column, so that outliers and skewed columns have
    no more weight than others: both suit tables of unlike quantities. ``weighted`` and
    ``weighted_rank`` then give more weight to columns that tell the labelled classes apart.
    ``weighted_steps`` encodes each weighted column of ranks by steps, so that distances add up
    absolute differences of ranks, not squared ones; see :class:`Steps`. ``whitened`` rotates and
    stretches standardised columns until they are nearly uncorrelated, so that what several columns
    share does not drown the differences between them. ``none`` changes nothing.

    Args:
        name: one of SCALINGS or WEIGHTED, or WHITENED. steps: what is applied to rows, in this
            order.
    """

    name: str
    steps: tuple[Any, ...]

    def __call__(self, X: NDArray[Any]) -> Tensor:
        """Return the points (M, D) of rows (M, D), float32. O(M D).

        A row that is 0 after centring stays 0.
        """
        points = np.require(X, np.float32, "W")  # torch has no read-only tensors
        with config_context(assume_finite=True):  # which was checked
            for step in self.steps if len(points) else ():  # scikit-learn's reject empty arrays
                points = step.transform(points)
        return torch.from_numpy(points)


class UnitRows:
    """Rows divided by their lengths.

    These are computed in float64, since squares in float32 overflow from 1e19 on and vanish below
    1e-23.
    """

    def transform(self, X: Floats) -> Floats:
        """Return rows (M, D) of length 1; a row of zeros stays. O(M D)."""
        lengths = np.sqrt(np.einsum("ij,ij->i", X, X, dtype=np.float64))
        lengths[lengths == 0] = 1
        points = np.empty_like(X)
        np.divide(X, lengths[:, None], out=points, casting="same_kind")
        return points


class GaussianRanks:
    """Values of a standard normal by rank, linear between the quantiles of each column.

    A value that several quantiles share, as it occurs often, has the middle of their ranks. The
    function is continuous: two computations of an embedding that differ in the last bits get nearly
    the same points.

    Args:
        knots: (D, KNOTS) quantiles of each column, rising.

    Attributes:
        values: (D, KNOTS) normal values at the knots.
    """

    def __init__(self, knots: NDArray[np.float32]) -> None:
        self.knots = torch.from_numpy(knots)
        below = torch.searchsorted(self.knots, self.knots)
        until = torch.searchsorted(self.knots, self.knots, right=True)
        shares = (below + until + 1).float() / (2 * KNOTS + 2)
        self.values: Tensor = torch.special.ndtri(shares)

    def transform(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the normal values (M, D) of rows (M, D). O(M D log KNOTS)."""
        columns = torch.from_numpy(X).mT.contiguous()
        upper = torch.searchsorted(self.knots, columns)
        lower = (upper - 1).clamp_(0)
        upper = upper.clamp_(max=KNOTS - 1)
        start = self.knots.gather(1, lower)
        width = self.knots.gather(1, upper) - start
        part = ((columns - start) / width.where(width > 0, 1.0)).clamp_(0, 1)
        first = self.values.gather(1, lower)
        normal = first + part * (self.values.gather(1, upper) - first)
        return normal.mT.contiguous().numpy()


class WeightedColumns:
    """Columns multiplied by weights (D,), which is one length-scale for each of them."""

    def __init__(self, weights: NDArray[np.float32]) -> None:
        self.weights = weights

    def transform(self, X: Floats) -> Floats:
        """Return the weighted rows (M, D). O(M D)."""
        return np.asarray(X * self.weights, np.float32)


class WhitenedColumns:
    """Rows times a matrix (D, D), in float64, so that a row has the same point in any batch."""

    def __init__(self, matrix: Doubles) -> None:
        self.matrix = torch.from_numpy(matrix)

    def transform(self, X: Floats) -> Floats:
        """Return the whitened rows (M, D). O(M D^2)."""
        return (torch.from_numpy(X).double() @ self.matrix).float().numpy()


class Steps:
    """Columns of normal values encoded by STEPS columns each, of which the first are 1.

        |phi(x) - phi(x')|^2 ~ sum_j w_j^2 |x_j - x'_j|

    so that an RBF of the encoded rows is a Laplace kernel of the L1 distance between the rows. Such
    a kernel is a product over columns and as rough along each of them as what a forest averages,
    where an RBF of the rows themselves is smooth: it suits classes with bounds along the columns.

    Args:
        weights: (D,) w of the columns.
    """

    def __init__(self, weights: NDArray[np.float32]) -> None:
        self.weights = weights

    def transform(self, X: Floats) -> Floats:
        """Return the encoded rows (M, D STEPS). O(M D STEPS)."""
        places = torch.from_numpy((X + FARTHEST_STEP) * (STEPS / (2 * FARTHEST_STEP)))
        steps = (places.unsqueeze(2) - torch.arange(STEPS)).clamp_(0, 1)
        steps *= torch.from_numpy(self.weights).unsqueeze(1)
        return steps.flatten(1).numpy()


# From scores to probabilities -------------------------------------------------------------------


class Decisions(NamedTuple):
    """Probabilities (M, C) of M rows, and the class (M,) that is decided for each."""

    probs: Tensor
    classes: Tensor

    @property
    def confidence(self) -> Tensor:
        """Return the probability (M,) that the class is right."""
        return self.probs.gather(1, self.classes.unsqueeze(1)).squeeze(1)


@dataclass(frozen=True)
class Probabilities:
    """What turns the scores (M, C) of two GPs into one vector of probabilities for each row.

        p ~ ( w softmax(lambda' mu + log(pi) / 2)
            + (1 - w) softmax(2 lambda s mu~ + log(pi) / 2) ) ^ b
        w = 0.6, or 0.3 where H(pi) - H(n) > 0.15 log C
        b = beta n_c / (n_c + 1/2)                                c the most probable class

    mu are the scores by the given labels, which are right about frequent classes. mu~ are those by
    the given labels and the rows that joined in self-training, with equal evidence
    s = sqrt(nbar / n_c) for every class: they know more, find the rare classes, and are too sure of
    them. Neither is the better one everywhere, and their average is better than both
    (docs/results.md). mu repeats the shares of the labels: where the unlabelled rows are far more
    evenly spread than these, by the entropies H of both, it has less weight. pi are the estimated
    shares of the classes among the unlabelled rows. As these are estimates, only their square root
    counts. beta is chosen so that left-out labels are most likely, less a tenth where pi is far
    from the shares of the labels; a class with one or two labels is believed less, by the last
    factor.

    Args:
        logit_scale: lambda. confidence_scale: lambda'. sharpness: beta.
        shares: (C,) pi. counts: (C,) given labels; a class without any has the probability 0.
        balanced: whether the class is decided as if all classes were equally frequent.
    """

    logit_scale: float
    confidence_scale: float
    sharpness: float
    shares: Tensor
    counts: Tensor
    balanced: bool = False

    @property
    def given_weight(self) -> Tensor:
        """Return w, the weight of the GP over given labels, as a tensor: the classifier is traced
        for export. O(C).
        """
        present = (self.counts > 0).sum().clamp_min(2).double()
        excess = _entropy(self.shares) - _entropy(self.counts)
        is_unlike = (excess > UNLIKE_ENTROPY * present.log()).double()
        return GIVEN_WEIGHT + (UNLIKE_WEIGHT - GIVEN_WEIGHT) * is_unlike

    def average(self, plain: Tensor, even: Tensor) -> Tensor:
        """Return the average (M, C) of both GPs, before it is raised to b. O(M C).

        Args:
            plain: (M, C) mu. even: (M, C) s mu~.
        """
        prior = SHARE_POWER * self.shares.clamp_min(SMALLEST).log()
        prior = prior.masked_fill(self.counts <= 0, -math.inf)
        given = torch.softmax(self.confidence_scale * plain + prior, dim=1)
        joined = torch.softmax(SHARPENING * self.logit_scale * even + prior, dim=1)
        weight = self.given_weight
        return weight * given + (1 - weight) * joined

    def of(self, plain: Tensor, even: Tensor) -> Tensor:
        """Return probabilities (M, C); rows sum to 1. O(M C)."""
        return sharpened(self.average(plain, even), self.sharpness, self.counts)

    def decide(self, probs: Tensor) -> Decisions:
        """Return the class of each row of probabilities (M, C): argmax of p, or of p / sqrt(pi)."""
        worth = probs
        if self.balanced:
            worth = probs / self.shares.clamp_min(SMALLEST).to(probs) ** SHARE_POWER
        return Decisions(probs, worth.argmax(dim=1))


def _entropy(amounts: Tensor) -> Tensor:
    """Return the entropy of the shares of amounts (C,)."""
    shares = amounts.double() / amounts.sum()
    return -(shares * shares.clamp_min(SMALLEST).log()).sum()


def sharpened(probs: Tensor, sharpness: float, counts: Tensor) -> Tensor:
    """Return probabilities (M, C) raised to b, so that they sum to 1 again. O(M C).

    Args:
        probs: (M, C). sharpness: beta. counts: (C,) or (M, C) labels of each class.
    """
    largest = probs.argmax(dim=1, keepdim=True)
    labels = counts.to(probs).expand_as(probs).gather(1, largest)
    power = sharpness * labels / (labels + FEW_LABELS)
    return torch.softmax(power * probs.clamp_min(SMALLEST).log(), dim=1).where(probs > 0, 0.0)


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


def highest_grade(
    grades: Mapping[float, Doubles], codes: Integers, confidence: Floats | Doubles
) -> Doubles:
    """Return the highest precision (M,) guaranteed for rows of these classes; 0 if none. O(M).

    Args:
        grades: thresholds (C,) by precision, the highest first. codes, confidence: (M,).
    """
    found = np.zeros(len(codes))
    for precision, thresholds in reversed(list(grades.items())):
        found[confidence >= thresholds[codes]] = precision
    return found


def labels_suffice(left_out: int, counts: NDArray[Any]) -> bool:
    """Return whether the labels are enough to guarantee anything.

    Args:
        left_out: random labels that can be left out. counts: (C,) all given labels.
    """
    present = counts[counts > 0]
    enough = counts.sum() >= FEWEST_LABELS or present.min(initial=FEWEST_EACH) >= FEWEST_EACH
    return left_out >= FEWEST_LEFT_OUT and len(present) > 1 and bool(enough)


# Counted answers --------------------------------------------------------------------------------


class Interval95(NamedTuple):
    """A share with its 95% interval; all None where nothing was counted."""

    value: float | None
    low: float | None
    high: float | None


def wilson(successes: float, trials: float) -> Interval95:
    """Return the share of successes with Wilson's 95% interval, also for few trials.

        (p + z^2/2n  -+  z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n)     p = successes / n

    for n trials. Neither need be whole, since weighted counts have an effective number of trials;
    ``scipy.stats.binomtest`` requires whole numbers.
    """
    if trials <= 0:
        return Interval95(None, None, None)
    p = min(1.0, successes / trials)
    middle = p + Z95**2 / (2 * trials)
    spread = Z95 * math.sqrt(p * (1 - p) / trials + (Z95 / (2 * trials)) ** 2)
    scale = 1 + Z95**2 / trials
    return Interval95(p, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))
