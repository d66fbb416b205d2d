"""What the estimator refuses, and odd data that it must take."""

from typing import Any

import numpy as np
import pytest

from semigpc import SemiGPClassifier
from tests.estimator.long_tail import blobs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "rfb"}, "kernel must be one of 'rbf'"),
        ({"scaling": "log"}, "scaling must be one of 'auto'"),
        ({"class_prior": "uniform"}, "class_prior must be one of"),
        ({"length_scale": -1}, "length_scale must be 'auto' or a positive number"),
        ({"noise_std": "none"}, "noise_std must be 'auto' or a positive number"),
        ({"logit_scale": float("inf")}, "logit_scale must be"),
        ({"abstain": -0.5}, r"abstain must lie in \[0, 1\]"),
        ({"target_precision": "high"}, r"target_precision must lie in \[0, 1\]"),
        ({"per_class": "yes"}, "per_class must be True or False; got 'yes'"),
        ({"self_training": -1}, "self_training must be a whole number, from 0 to 100"),
        ({"outlier_quantile": None}, r"outlier_quantile must lie in \[0, 1\]"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused_at_fit(
    options: dict[str, Any], message: str
) -> None:
    X, codes, _ = blobs(unlabeled=3)
    with pytest.raises(ValueError, match=message):
        SemiGPClassifier(**options).fit(X, codes)


def test_nothing_labelled_is_refused() -> None:
    X, codes, _ = blobs()
    with pytest.raises(ValueError, match="none of the 206 rows is labelled"):
        SemiGPClassifier().fit(X, np.full(len(codes), -1))


def test_labels_of_two_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="all text or all numbers"):
        SemiGPClassifier().fit(np.eye(3), np.array(["a", 1, None], dtype=object))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused(value: float) -> None:
    X, codes, _ = blobs()
    X[3, 2] = value
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        SemiGPClassifier().fit(X, codes)


def test_row_numbers_must_be_distinct_and_as_many_as_rows() -> None:
    X, codes, _ = blobs()
    with pytest.raises(ValueError, match="rows must be distinct"):
        SemiGPClassifier().fit(X, codes, rows=np.zeros(len(X), int))
    with pytest.raises(ValueError, match="rows must be 206 whole numbers"):
        SemiGPClassifier().fit(X, codes, rows=np.arange(3))


def test_labels_of_one_class_are_refused() -> None:
    X, codes, _ = blobs()
    with pytest.raises(
        ValueError, match="all labels are of one class, 1; label rows of at least two classes"
    ):
        SemiGPClassifier().fit(X, np.where(codes == 1, 1, -1))


def test_all_labelled_leaves_nothing_to_learn_from_unlabelled_rows() -> None:
    X, _, truth = blobs()
    model = SemiGPClassifier(target_precision=0.9).fit(X, truth)
    assert model.self_training_ == 0
    assert (model.transduction_ == truth).all()
    assert model.class_shares_ == pytest.approx(np.bincount(truth) / len(truth))


@pytest.mark.parametrize("scaling", ["auto", "unit", "centered", "standard", "rank", "none"])
def test_constant_features_and_repeated_rows_do_no_harm(scaling: str) -> None:
    X, codes, truth = blobs()
    X = np.concatenate([X, np.full((len(X), 2), 3e4, np.float32)], axis=1)
    X, codes, truth = (np.concatenate([array, array[:20]]) for array in (X, codes, truth))
    model = SemiGPClassifier(scaling=scaling).fit(X, codes)
    proba = model.predict_proba(X)
    assert np.isfinite(proba).all()
    if scaling in ("auto", "standard", "rank"):
        assert (model.predict(X) == truth).mean() > 0.9


def test_all_rows_equal_give_equal_answers() -> None:
    model = SemiGPClassifier().fit(np.ones((6, 4)), [0, 1, 1, -1, -1, -1])
    proba = model.predict_proba(np.ones((2, 4)))
    assert np.isfinite(proba).all()
    assert (proba[0] == proba[1]).all()


def test_classes_to_explain_must_be_known() -> None:
    X, codes, _ = blobs()
    model = SemiGPClassifier().fit(X, codes)
    with pytest.raises(ValueError, match="classes must be among classes_; 9 is not"):
        model.explain(X[:2], classes=[0, 9])
    assert (model.explain(X[:2], classes=2).codes == 2).all()
