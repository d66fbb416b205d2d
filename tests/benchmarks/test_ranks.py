"""Mean ranks against a table ranked by hand, and against scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.ranks import rank, sign_test

BY_HAND = {  # ranks: 1 2 3; 2 1 3; 1.5 1.5 3; 1 3 2
    "one": {"a": 0.9, "b": 0.8, "c": 0.1},
    "two": {"a": 0.5, "b": 0.6, "c": 0.4},
    "three": {"a": 0.7, "b": 0.7, "c": 0.2},
    "four": {"a": 0.3, "b": 0.1, "c": 0.2},
}


def test_ranks_are_those_counted_by_hand() -> None:
    found = rank(BY_HAND, ["c", "b", "a"])
    assert list(found.mean_ranks) == ["a", "b", "c"]
    assert list(found.mean_ranks.values()) == pytest.approx([5.5 / 4, 7.5 / 4, 11 / 4])
    assert (found.blocks, found.dropped) == (4, [])
    uncorrected = 12 * 4 / (3 * 4) * (sum((r / 4) ** 2 for r in (5.5, 7.5, 11)) - 3 * 4**2 / 4)
    ties = 1 - (2**3 - 2) / (4 * 3 * (3**2 - 1))
    assert found.statistic == pytest.approx(uncorrected / ties)
    assert found.statistic is not None
    assert found.p_value == pytest.approx(
        math.exp(-found.statistic / 2)
    )  # chi^2 with 2 degrees of freedom
    assert found.critical_difference == pytest.approx(
        2.343 * math.sqrt(3 * 4 / (6 * 4)), abs=1e-3
    )  # Demsar, table 5


def test_friedmans_statistic_is_scipys() -> None:
    table = np.random.default_rng(0).normal(size=(7, 5))
    scores = {
        str(block): dict(zip("abcde", map(float, row), strict=True))
        for block, row in enumerate(table)
    }
    found, expected = rank(scores, list("abcde")), stats.friedmanchisquare(*table.T)
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert sum(found.mean_ranks.values()) == pytest.approx(5 * 6 / 2)
    assert found.critical_difference == pytest.approx(2.728 * math.sqrt(5 * 6 / (6 * 7)), abs=1e-3)


def test_a_block_that_lacks_a_method_is_dropped_and_named() -> None:
    found = rank(BY_HAND | {"cut off": {"a": 0.1, "b": 0.9}}, ["a", "b", "c"])
    assert found.dropped == ["cut off"]
    assert found.mean_ranks == rank(BY_HAND, ["a", "b", "c"]).mean_ranks


def test_nothing_is_ranked_where_there_is_nothing_to_rank() -> None:
    assert rank({}, ["a", "b"]).mean_ranks == {}
    assert rank({"one": {"a": 0.1}}, ["a", "b"]).dropped == ["one"]
    assert rank({"one": {"a": 0.1}}, ["a"]).critical_difference is None
    alike = rank(
        {"one": {"a": 1, "b": 1, "c": 1}, "two": {"a": 2, "b": 2, "c": 2}}, ["a", "b", "c"]
    )
    assert (alike.statistic, set(alike.mean_ranks.values())) == (None, {2.0})


def test_pairs_are_counted_with_ties_apart() -> None:
    found = sign_test([0.02, -0.01, 0.0, 0.05, 0.1 + 0.2 - 0.3])
    assert (found["pairs"], found["wins"], found["losses"], found["ties"]) == (5, 2, 1, 2)
    assert found["mean_gain"] == pytest.approx(0.012)
    assert found["p_value"] == pytest.approx(1.0)
    assert sign_test([0.1] * 8)["p_value"] == pytest.approx(2 / 2**8)
    assert sign_test([])["mean_gain"] is None
    assert sign_test([0.0])["p_value"] is None
