"""The contract that scikit-learn checks, and its tools around an estimator."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from semigpc import SemiGPClassifier
from tests.estimator.long_tail import CODES, TRUTH, X

MINUS_ONE = {"check_classifiers_classes": "it names a class -1, which here means unlabelled"}
NAMES = np.array(["heron", "coot", "wren"])


@pytest.mark.slow
@parametrize_with_checks([SemiGPClassifier()], expected_failed_checks=lambda _: MINUS_ONE)  # type: ignore[untyped-decorator]
def test_scikit_learn_has_nothing_to_complain_about(estimator: Any, check: Any) -> None:
    check(estimator)


def named(codes: Any) -> Any:
    return np.where(codes < 0, None, NAMES[codes])


def test_text_labels_with_none_or_nan_are_the_same_as_numbers() -> None:
    in_order = np.array(["coot", "heron", "wren"])
    expected = in_order[SemiGPClassifier().fit(X, CODES).predict(X)]
    for missing in (None, float("nan"), pd.NA):
        y = in_order[CODES].astype(object)
        y[CODES < 0] = missing
        assert (SemiGPClassifier().fit(X, y).predict(X) == expected).all()


def test_pandas_and_polars_are_welcome() -> None:
    expected = SemiGPClassifier().fit(X, CODES).predict_proba(X)
    columns = [f"f{i}" for i in range(X.shape[1])]
    frame = pd.DataFrame(X, columns=columns)
    model = SemiGPClassifier().fit(frame, pd.Series(named(CODES)))
    assert list(model.feature_names_in_) == columns
    order = np.argsort(np.argsort(NAMES))
    assert model.predict_proba(frame)[:, order] == pytest.approx(expected, abs=1e-5)
    other = pl.DataFrame(X, schema=columns)
    polars = SemiGPClassifier().fit(other, pl.Series(named(CODES).tolist()))
    assert polars.predict_proba(other)[:, order] == pytest.approx(expected, abs=1e-5)


def test_columns_in_another_order_are_refused() -> None:
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    model = SemiGPClassifier().fit(frame, CODES)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("bacdefgh")])


def test_a_sparse_y_is_an_indicator_and_an_empty_row_is_unlabelled() -> None:
    known = np.flatnonzero(CODES >= 0)
    indicator = sparse.csr_matrix((np.ones(len(known)), (known, CODES[known])), shape=(len(X), 3))
    column = sparse.csr_matrix(np.where(CODES < 0, -1, CODES)[:, None])
    plain, *others = (SemiGPClassifier().fit(X, y) for y in (CODES, indicator, column))
    for other in others:
        assert other.predict_proba(X) == pytest.approx(plain.predict_proba(X), abs=1e-6)
    with pytest.raises(ValueError, match="one entry per row"):
        SemiGPClassifier().fit(X[:2], sparse.csr_matrix([[1, 1], [1, 0]]))


def test_pipeline_grid_search_clone_and_pickle() -> None:
    known = CODES >= 0
    pipeline = make_pipeline(StandardScaler(), SemiGPClassifier(self_training=0))
    grid = {"semigpclassifier__length_scale": [0.5, 4.0]}
    search = GridSearchCV(pipeline, grid, cv=2, scoring="balanced_accuracy")
    search.fit(X[known], CODES[known])
    assert search.score(X[~known], TRUTH[~known]) > 0.9
    copy = clone(search.best_estimator_[-1])
    assert copy.get_params() == search.best_estimator_[-1].get_params()
    fitted = SemiGPClassifier(target_precision=0.9, kernel="laplace").fit(X, named(CODES))
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict(X) == fitted.predict(X)).all()
    again.partial_fit(X[:1], ["wren"], rows=[0])
    assert again.class_counts_[2] == fitted.class_counts_[2] + 1


def test_a_fitted_model_can_be_fitted_again_from_what_it_learned() -> None:
    model = SemiGPClassifier(target_precision=0.9).fit(X, CODES)
    learned = ("length_scale", "noise_std", "logit_scale", "scaling", "self_training")
    parameters = {name: getattr(model, f"{name}_") for name in learned}
    again = SemiGPClassifier(**parameters, abstain=float(model.threshold_[0])).fit(X, CODES)
    assert again.predict_proba(X) == pytest.approx(model.predict_proba(X), abs=1e-6)
    assert (again.transduction_ == model.transduction_).all()
