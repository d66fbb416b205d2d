"""Whether our figures are the published ones: bands set before anything was run (published numbers, section 9)."""

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from semigpc.recipes.published import Published

BAND = 0.5  # points, at least
DEVIATIONS = 2  # as many as were printed
SHARE = 0.5  # of a printed gain that must come out again
ENOUGH_SEEDS = 3
ROUNDING = 1e-9

Claim = Literal["reproduced", "not reproduced", "too few seeds"]


def band(published: Published) -> float:
    """How far ours may lie from a printed accuracy: max(2 deviations, 0.5), in points."""
    return max(DEVIATIONS * (published.std or 0.0), BAND)


def agrees(ours: float, published: Published) -> bool:
    """Whether an accuracy in percent lies within the band."""
    return abs(ours - published.top1) <= band(published) + ROUNDING


def judge_gain(gains: Sequence[float], claimed: float, *, enough: int = ENOUGH_SEEDS) -> Claim:
    """A claim is reproduced by the sign and at least half of the printed gain, on the mean over enough seeds.

    Args:
        gains: in points, one a seed. claimed: the printed gain. enough: seeds below which nothing is said.
    """
    if len(gains) < enough:
        return "too few seeds"
    mean = fmean(gains)
    there = mean >= SHARE * claimed - ROUNDING if claimed > 0 else mean <= SHARE * claimed + ROUNDING
    return "reproduced" if there else "not reproduced"
