"""Labels are held out fairly, and shares come with the interval that their number deserves."""

import numpy as np
import pytest

from semigpc.labeling.evidence import STAYS, assign_folds, score, weighted_share, wilson


def test_every_class_is_spread_and_folds_are_equally_large() -> None:
    codes = np.repeat(np.arange(4), (50, 11, 3, 2))
    fold_of = assign_folds(codes, 5, seed=1)
    assert np.ptp(np.bincount(fold_of)) <= 1
    for c in range(4):
        assert np.ptp(np.bincount(fold_of[codes == c], minlength=5)) <= 1


def test_the_only_label_of_a_class_is_never_held_out_and_no_class_is_held_out_whole() -> None:
    codes = np.array([0, 0, 1, 2, 2, 2])
    for seed in range(20):
        fold_of = assign_folds(codes, 5, seed)
        assert fold_of[2] == STAYS
        assert (fold_of[codes != 1] != STAYS).all()
        for fold in np.unique(fold_of[fold_of != STAYS]):
            assert set(codes[fold_of != fold]) == {0, 1, 2}


def test_folds_follow_the_seed() -> None:
    codes = np.repeat(np.arange(3), 20)
    assert (assign_folds(codes, 5, 3) == assign_folds(codes, 5, 3)).all()
    assert (assign_folds(codes, 5, 3) != assign_folds(codes, 5, 4)).any()


def test_the_interval_is_wilsons() -> None:
    share, low, high = wilson(8, 10)
    assert share == pytest.approx(0.8)
    assert low == pytest.approx(0.4901625, abs=1e-6)
    assert high == pytest.approx(0.9433178, abs=1e-6)


def test_all_right_is_not_taken_for_certainty_and_nothing_counted_is_no_share() -> None:
    share, low, high = wilson(5, 5)
    assert share == 1
    assert high == pytest.approx(1)
    assert low is not None
    assert low < 0.6
    assert wilson(0, 5).low == pytest.approx(0)
    assert wilson(0, 0) == (None, None, None)


def test_the_interval_holds_the_truth_nineteen_times_in_twenty() -> None:
    hits = np.random.default_rng(0).binomial(30, 0.9, 2000)
    covered = [
        low <= 0.9 <= high
        for _, low, high in (wilson(int(h), 30) for h in hits)
        if low is not None and high is not None
    ]
    assert 0.92 < np.mean(covered) < 0.98


def test_unequal_weights_count_as_fewer_labels() -> None:
    right = np.array([True] * 80 + [False] * 20)
    assert weighted_share(right, np.ones(100)) == pytest.approx(wilson(80, 100))
    weights = np.where(np.arange(100) % 2 == 0, 1.0, 9.0)
    value, low, high = weighted_share(right, weights)
    plain = wilson(80, 100)
    assert value == pytest.approx(0.8)
    assert low is not None
    assert high is not None
    assert plain.low is not None
    assert plain.high is not None
    assert low < plain.low
    assert high > plain.high


def test_balanced_accuracy_counts_classes_and_not_labels() -> None:
    codes = np.array([0] * 8 + [1] * 2)
    found = score(codes, np.zeros(10, dtype=np.int64), np.arange(10) % 2)
    assert found["accuracy"] == pytest.approx(0.8)
    assert found["balanced_accuracy"] == pytest.approx(0.5)
    assert found["accuracy_std"] == pytest.approx(0)
