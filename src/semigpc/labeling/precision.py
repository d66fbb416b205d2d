"""Precision of all pseudo-labels from the answers to a stratified sample, with an interval."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from semigpc.labeling.strata import Integers, Stratum

LEVEL = 0.95
NORMAL = 1.959963984540054  # the quantile of that level, two-sided


class Interval(NamedTuple):
    """A precision, and between what it lies with a confidence of 95 percent."""

    estimate: float
    low: float
    high: float


def precision(strata: Sequence[Stratum], right: Integers, checked: Integers) -> Interval | None:
    """Precision of all rows of these strata; None if nothing was answered.

        P = sum_h W_h k_h / n_h       W_h = N_h / N       1 / n_eff = sum_h W_h^2 / n_h (N_h - n_h) / (N_h - 1)

    The interval is that of Agresti and Coull for a share P among n_eff rows. It is sound where few rows were checked and all of
    them are right, where the usual variance would be 0, and a stratum that was checked to the last row adds nothing to it. In
    simulations of seven kinds of errors, with 3 to 74 rows checked in a class, it covered the truth in 96 to 98 percent overall
    and in no class in fewer than 95. Wilson's interval is a tenth narrower and falls to 90 in classes that are nearly all
    right. A posterior for each stratum by itself may never cover the truth: with few rows in many strata, the priors add up.

    A stratum without an answer is taken to be like the others of its class. If a whole class has none, nothing is known of it:
    ``low`` takes all of it to be wrong, and ``high`` to be right.

    Args:
        strata: H of them. right: (H,) answers that say so, k_h. checked: (H,) all answers, n_h.
    """
    if not checked.any():
        return None
    sizes, labels = np.array([stratum.rows for stratum in strata], float), np.array([stratum.label for stratum in strata])
    answered, weights = checked > 0, np.zeros(len(strata))
    for name in np.unique(labels[answered]):
        those = labels == name
        weights[those & answered] = sizes[those & answered] * sizes[those].sum() / sizes[those & answered].sum()
    known = float(weights.sum() / sizes.sum())
    w, k, n, size = (weights / weights.sum())[answered], right[answered], checked[answered], sizes[answered]
    estimate = float(w @ (k / n))
    unseen = (size - n) / np.maximum(size - 1, 1)
    low, high = agresti_coull(estimate, float((w**2 / n) @ unseen))
    return Interval(estimate, known * low, known * high + 1 - known)


def agresti_coull(share: float, inverse_size: float) -> tuple[float, float]:
    """The interval of a share among n rows, of which 1 / n is given: 0 if nothing is left to chance.

    c +- z sqrt(c (1 - c) / (n + z^2))       c = (n share + z^2 / 2) / (n + z^2)
    """
    z2 = NORMAL**2 * inverse_size
    centre = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * centre * (1 - centre) / (1 + z2))
    return max(0.0, centre - half), min(1.0, centre + half)
