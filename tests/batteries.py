"""Products of settings: all of them in ``make test``, each value once in ``make check``."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def combinations(*axes: Sequence[Any]) -> list[Any]:
    """Return every combination of the values of the axes; those off the diagonal, which walks all
    axes at once, are slow.
    """
    longest = max(len(axis) for axis in axes)
    diagonal = {tuple(axis[i % len(axis)] for axis in axes) for i in range(longest)}
    return [
        pytest.param(*one, marks=() if one in diagonal else pytest.mark.slow)
        for one in product(*axes)
    ]
