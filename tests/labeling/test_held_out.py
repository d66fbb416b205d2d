"""Answers to held-out labels are summed up as the definitions say."""

from typing import Any

import numpy as np
import pytest

from semigpc.labeling.evidence import (
    HeldOut,
    accepted,
    balanced_recall,
    confusions,
    per_class,
    thresholds,
)

NAMES = np.array(["ant", "bee", "cat"])


def held(
    codes: list[int], predicted: list[int], confidence: list[float], **changes: Any
) -> HeldOut:
    n = len(codes)
    known = {
        "open": np.zeros(n, dtype=bool),
        "folds": np.arange(n) % 2,
        "weights": np.ones(n),
    }
    return HeldOut(np.array(codes), np.array(predicted), np.array(confidence), **(known | changes))


def test_a_threshold_accepts_what_is_confident_and_no_outlier() -> None:
    some = held(
        [0, 0, 1, 1],
        [0, 1, 1, 1],
        [0.9, 0.5, 0.7, 0.95],
        open=np.array([False, False, False, True]),
    )
    found = accepted(some, np.full(3, 0.6))
    assert found["accepted"] == 2
    assert found["coverage"] == pytest.approx(0.5)
    assert found["precision"] == pytest.approx(1)
    assert accepted(some, np.full(3, 0.99))["precision"] is None


def test_precision_counts_classes_by_their_believed_share() -> None:
    some = held([0, 0, 0, 1], [0, 0, 0, 0], [0.8] * 4, weights=np.array([0.5, 0.5, 0.5, 2.5]))
    assert accepted(some, np.zeros(3))["precision"] == pytest.approx(1.5 / 4)


def test_the_curve_goes_from_everything_to_little() -> None:
    rng = np.random.default_rng(0)
    some = held([0] * 400, [0] * 400, rng.random(400).tolist())
    at = thresholds(some)
    coverage = [accepted(some, np.full(3, t))["coverage"] for t in at]
    assert 40 <= len(at) <= 50
    assert coverage[0] == pytest.approx(1)
    assert coverage[-1] is not None
    assert coverage[-1] < 0.05
    assert (np.diff(np.array(coverage, dtype=np.float64)) < 0).all()


def test_pairs_that_are_confused_come_with_their_share_of_the_class() -> None:
    some = held([0, 0, 0, 0, 1, 2], [1, 1, 0, 0, 0, 2], [0.5] * 6)
    assert confusions(some, NAMES) == [
        {"true": "ant", "believed": "bee", "count": 2, "share": 0.5},
        {"true": "bee", "believed": "ant", "count": 1, "share": 1.0},
    ]


def test_a_class_that_was_never_held_out_has_no_recall() -> None:
    rows = {
        row["class"]: row
        for row in per_class(held([0, 0, 1], [0, 1, 1], [0.5] * 3), np.array([0, 0, 1, 2]), NAMES)
    }
    assert rows["ant"]["recall"] == pytest.approx(0.5)
    assert rows["bee"]["precision"] == pytest.approx(0.5)
    assert rows["cat"]["recall"] is None
    assert rows["cat"]["given"] == 1


def test_the_interval_of_balanced_accuracy_is_wider_with_a_rare_class() -> None:
    even = balanced_recall(held([0] * 50 + [1] * 50, [0] * 50 + [1] * 50, [0.5] * 100))
    rare = balanced_recall(held([0] * 98 + [1] * 2, [0] * 98 + [1] * 2, [0.5] * 100))
    assert even.value == rare.value == 1
    assert even.low is not None
    assert rare.low is not None
    assert rare.low < even.low
