"""Products of settings: each value once in the quickest target, the rest in a longer one."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def combinations(*axes: Sequence[Any], costly: bool = False) -> list[Any]:
    """Return every combination of the values of the axes, marked by when it runs.

    The diagonal, which goes through all axes at once, runs in ``make check`` and the rest in
    ``make test``; where a combination is costly, in ``make test`` and ``make test-all``.
    """
    longest = max(len(axis) for axis in axes)
    diagonal = {tuple(axis[i % len(axis)] for axis in axes) for i in range(longest)}
    marks = [pytest.mark.slow] if costly else []
    rest = pytest.mark.nightly if costly else pytest.mark.slow
    return [
        pytest.param(*values, marks=marks if values in diagonal else rest)
        for values in product(*axes)
    ]
