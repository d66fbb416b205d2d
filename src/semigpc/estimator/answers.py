"""What the estimator says of rows, in arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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


class LeaveOneOut(NamedTuple):
    """Each of the n given labels as the others would have it.

    Attributes:
        rows: (n,) row numbers. codes: (n,) the given classes.
        proba: (n, C) by the other n - 1 labels. variance: (n,) posterior over prior variance without the row itself.
    """

    rows: Integers
    codes: Integers
    proba: Floats
    variance: Floats
