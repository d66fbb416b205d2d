"""Rows whose kernel values are kept must be answered as the model answers them."""

from typing import Any

import numpy as np
import pytest

from semigpc import SemiGPClassifier
from semigpc.estimator.answers import Answers
from semigpc.estimator.watched import WatchedRows
from tests.estimator.long_tail import blobs


@pytest.fixture
def rows() -> tuple[Any, Any]:
    X, y, _ = blobs(seed=0)
    return X, y


def assert_alike(found: Answers, expected: Answers) -> None:
    np.testing.assert_allclose(found.confidence, expected.confidence, atol=2e-4)
    assert found.variance is not None
    assert expected.variance is not None
    np.testing.assert_allclose(found.variance, expected.variance, atol=2e-4)
    close = np.abs(expected.confidence - expected.second_confidence) < 1e-3
    assert (found.codes == expected.codes)[~close].all()


@pytest.mark.parametrize("self_training", [0, 3])
def test_answers_are_those_of_the_model_through_corrections_and_a_new_fit(
    rows: tuple[Any, Any], self_training: int
) -> None:
    X, y = rows
    watched = WatchedRows(X)
    model = SemiGPClassifier(self_training=self_training).fit(X, y, transduce=False)
    assert WatchedRows.suits(len(X), model)
    free = np.flatnonzero(y < 0)
    assert_alike(watched.answers(WatchedRows.snapshot(model)), model.answer(X, top=0))
    model.partial_fit(X[free[:3]], [0, 1, 7], rows=free[:3])  # 7 is a new class
    assert_alike(watched.answers(WatchedRows.snapshot(model)), model.answer(X, top=0))
    model.partial_fit(X[free[:1]], [-1], rows=free[:1])
    assert_alike(watched.answers(WatchedRows.snapshot(model)), model.answer(X, top=0))
    y = y.copy()
    y[free[:9]] = 1
    again = SemiGPClassifier(self_training=self_training).fit(X, y, transduce=False)
    assert_alike(watched.answers(WatchedRows.snapshot(again)), again.answer(X, top=0))


def test_a_snapshot_does_not_follow_the_model(rows: tuple[Any, Any]) -> None:
    X, y = rows
    watched = WatchedRows(X)
    model = SemiGPClassifier().fit(X, y, transduce=False)
    before = model.answer(X, top=0)
    now = WatchedRows.snapshot(model)
    free = np.flatnonzero(y < 0)[:20]
    model.partial_fit(X[free], np.full(20, 1), rows=free)
    assert_alike(watched.answers(now), before)
