"""The interval of a stratified sample covers the truth as often as it says, also with few rows in a
stratum.
"""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from semigpc.labeling.audit import Stratum, agresti_coull, allocate, precision

Rates = Callable[[Generator, int], NDArray[np.float64]]


def strata_of(rows: dict[str, tuple[int, ...]]) -> list[Stratum]:
    return [
        Stratum(label, str(i), size, 0.9)
        for label, sizes in rows.items()
        for i, size in enumerate(sizes)
    ]


def counts(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def test_the_interval_is_that_of_agresti_and_coull_where_there_is_one_large_stratum() -> None:
    found = precision(strata_of({"a": (10**9,)}), counts(81), counts(100))
    assert found == pytest.approx(
        (0.81, 0.7214, 0.8757), abs=1e-4
    )  # by hand: (81 + 1.9207) / (100 + 3.8415) +- 0.0771
    assert agresti_coull(1.0, 1 / 20) == pytest.approx((0.8102, 1.0), abs=1e-4)
    assert agresti_coull(0.3, 0.0) == pytest.approx((0.3, 0.3))


def test_strata_count_by_their_size_and_not_by_how_often_they_were_drawn() -> None:
    strata = strata_of({"a": (9000,), "b": (1000,)})
    found = precision(strata, counts(10, 45), counts(10, 90))
    assert found.value == pytest.approx(0.95)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.95 < found.high


def test_rows_that_were_all_checked_leave_nothing_to_chance() -> None:
    found = precision(strata_of({"a": (10, 5), "b": (1,)}), counts(9, 5, 0), counts(10, 5, 1))
    assert found == pytest.approx((14 / 16, 14 / 16, 14 / 16))


def test_a_stratum_without_an_answer_is_taken_to_be_like_its_class() -> None:
    strata = strata_of({"a": (100, 300), "b": (600,)})
    assert precision(strata, counts(5, 0, 20), counts(10, 0, 20)) == pytest.approx(
        precision(strata_of({"a": (100,), "b": (150,)}), counts(5, 20), counts(10, 20)), abs=0.02
    )


def test_of_a_class_without_an_answer_nothing_is_known() -> None:
    strata = strata_of({"a": (900,), "b": (100,)})
    alone = precision(strata[:1], counts(27), counts(30))
    both = precision(strata, counts(27, 0), counts(30, 0))
    assert alone.low is not None
    assert alone.high is not None
    assert both == pytest.approx((0.9, 0.9 * alone.low, 0.9 * alone.high + 0.1))
    assert precision(strata, counts(0, 0), counts(0, 0)) == (None, None, None)


@pytest.mark.parametrize(
    ("classes", "sample", "rates"),
    [
        (10, 200, lambda _rng, h: np.tile([0.85, 0.95, 0.99], h // 3)),
        (10, 200, lambda _rng, h: np.tile([0.97, 0.99, 0.999], h // 3)),
        (10, 200, lambda _rng, h: np.tile([0.99, 0.9, 0.8], h // 3)),  # wrong where it is sure
        (40, 300, lambda rng, h: rng.beta(6, 1, h)),
        (3, 40, lambda _rng, h: np.tile([0.6, 0.8, 0.9], h // 3)),
    ],
    ids=["calibrated", "all but perfect", "overconfident", "classes differ", "small"],
)
def test_intervals_of_95_percent_cover_about_that(classes: int, sample: int, rates: Rates) -> None:
    rng = np.random.default_rng(0)
    sizes = np.maximum(2, 800 * 100 ** (-np.arange(classes) / max(classes - 1, 1))).astype(int)
    strata = [
        Stratum(str(c), str(b), size, (0.85, 0.95, 0.99)[b])
        for c, size in enumerate(sizes)
        for b in range(3)
    ]
    checked, rows = (
        np.array(allocate(strata, sample)),
        np.array([stratum.rows for stratum in strata]),
    )
    covered: list[bool] = []
    of_class: list[bool] = []
    first = slice(3 * (classes // 2), 3 * (classes // 2) + 3)
    for _ in range(500):
        all_right = rng.binomial(rows, rates(rng, len(rows)))
        right = rng.hypergeometric(all_right, rows - all_right, checked)
        for where, found in ((slice(None), covered), (first, of_class)):
            interval = precision(strata[where], right[where], checked[where])
            assert interval.low is not None
            assert interval.high is not None
            found.append(
                interval.low - 1e-9
                <= all_right[where].sum() / rows[where].sum()
                <= interval.high + 1e-9
            )
    assert 0.93 <= np.mean(covered) <= 0.995
    assert np.mean(of_class) >= 0.93
