"""What the estimator refuses, and odd data that it must take."""

from typing import Any

import numpy as np
import pytest

from semigpc import SemiGPClassifier
from tests.estimator.long_tail import CODES, X, blobs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "rfb"}, "kernel must be one of 'rbf'"),
        ({"kernel": "ntk"}, "kernel must be one of .*'cosine'; got 'ntk'"),
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


TWO_KINDS = np.array(["a", 1, None], dtype=object)


@pytest.mark.parametrize(
    ("rows", "labels", "numbers", "message"),
    [
        (X, np.full(206, -1), None, "none of the 206 rows is labelled"),
        (np.eye(3), TWO_KINDS, None, "all text or all numbers"),
        (np.where(X[3, 2] == X, np.nan, X), CODES, None, "NaN"),
        (np.where(X[3, 2] == X, np.inf, X), CODES, None, "infinity"),
        (X, CODES, np.zeros(206, int), "rows must be distinct"),
        (X, CODES, np.arange(3), "rows must be 206 whole numbers"),
        (X, np.where(CODES == 1, 1, -1), None, "of one class, 1; .* at least two classes"),
    ],
)
def test_data_that_makes_no_sense_is_refused(
    rows: Any, labels: Any, numbers: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SemiGPClassifier().fit(rows, labels, rows=numbers)


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


def test_an_offset_takes_nothing_from_rows_of_float64() -> None:
    X, codes, truth = blobs()
    wide = X.astype(np.float64)
    far = wide + 1e8
    model = SemiGPClassifier(self_training=False).fit(far, codes)
    assert (model.predict(far) == truth).mean() > 0.9
    model.partial_fit(far[:3], truth[:3], rows=np.arange(3))
    assert (model.predict(far[:3]) == truth[:3]).all()
    with pytest.raises(ValueError, match=r"largest is .*e-299.* Multiply"):
        SemiGPClassifier().fit(wide * 1e-300, codes)
    with pytest.raises(ValueError, match="infinity or a value too large"):
        SemiGPClassifier().fit(wide * 1e60, codes)


@pytest.mark.parametrize("scaling", ["unit", "centered", "standard", "rank"])
@pytest.mark.parametrize("factor", [1e37, 1e-30])
def test_the_size_of_numbers_does_not_matter(scaling: str, factor: float) -> None:
    X, codes, truth = blobs()
    rows = X / np.abs(X).max() * np.float32(factor)
    model = SemiGPClassifier(scaling=scaling, self_training=False).fit(rows, codes)
    assert (model.predict(rows) == truth).mean() > 0.9
