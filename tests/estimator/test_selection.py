"""Grid searches over rows of which some have no label, with scikit-learn's own tools."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from semigpc import SemiGPClassifier
from semigpc.estimator import LabeledKFold, LabeledScorer
from semigpc.estimator.selection import balanced_accuracy

NAMES = np.array(["ant", "bee", "fly"])


def blobs(seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    """120 rows, their classes, and which 40 of them are labelled; one class is rare."""
    rng = np.random.default_rng(seed)
    codes = np.repeat([0, 1, 2], [70, 40, 10])
    x = rng.normal(size=(120, 5)) + 2.5 * np.eye(5)[codes]
    labelled = np.zeros(120, dtype=bool)
    for c, count in enumerate((22, 14, 4)):
        labelled[rng.choice(np.flatnonzero(codes == c), count, replace=False)] = True
    order = rng.permutation(120)
    return x[order].astype(np.float32), codes[order], labelled[order]


def targets(kind: str) -> Any:
    """The labels in every form that the classifier takes."""
    import pandas

    _, codes, labelled = blobs()
    text = [str(NAMES[c]) if known else None for c, known in zip(codes, labelled, strict=True)]
    forms: dict[str, Any] = {
        "minus one": np.where(labelled, codes, -1),
        "nan": np.where(labelled, codes, np.nan),
        "text and None": np.array(text, dtype=object),
        "list": text,
        "series": pandas.Series(text),
        "numbers and None": np.array(
            [int(c) if known else None for c, known in zip(codes, labelled, strict=True)],
            dtype=object,
        ),
    }
    return forms[kind]


KINDS = ("minus one", "nan", "text and None", "list", "series", "numbers and None")


@pytest.mark.parametrize("kind", KINDS)
def test_folds_test_each_labelled_row_once_and_fit_all_unlabelled_ones(kind: str) -> None:
    x, codes, labelled = blobs()
    folds = list(LabeledKFold(4).split(x, targets(kind)))
    assert len(folds) == LabeledKFold(4).get_n_splits() == 4
    tested = np.concatenate([test for _, test in folds])
    assert sorted(tested) == np.flatnonzero(labelled).tolist()
    for fitted, test in folds:
        assert sorted([*fitted, *test]) == list(range(len(x)))
        assert np.bincount(codes[test], minlength=3)[2] == 1  # the rare class: one in each


def test_folds_depend_on_their_seed_alone() -> None:
    x, _, _ = blobs()
    y = targets("minus one")

    def tested(seed: int | None) -> list[list[int]]:
        return [test.tolist() for _, test in LabeledKFold(3, seed).split(x, y)]

    assert tested(1) == tested(1) != tested(2)


def test_groups_stay_together() -> None:
    x, _, labelled = blobs()
    groups = np.arange(len(x)) // 4
    for fitted, test in LabeledKFold(3).split(x, targets("nan"), groups):
        assert not set(groups[test]) & set(groups[fitted[labelled[fitted]]])


def test_too_many_folds_are_an_error() -> None:
    x, _, _ = blobs()
    with pytest.raises(ValueError, match="n_splits=30"):
        list(LabeledKFold(30).split(x, targets("nan")))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["minus one", "text and None", "numbers and None"])
def test_a_grid_search_judges_labels_alone_and_learns_from_all_rows(kind: str) -> None:
    x, codes, labelled = blobs()
    y = targets(kind)
    grid = {"class_prior": ["balanced", "estimated"]}
    base = SemiGPClassifier(random_state=0, scaling="standard", target_precision=None)
    search = GridSearchCV(base, grid, cv=LabeledKFold(3), scoring=LabeledScorer())
    search.fit(x, y)
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert search.best_score_ > 0.8
    expected = []
    for fitted, test in LabeledKFold(3).split(x, y):
        model = clone(base).set_params(**search.best_params_)
        model.fit(x[fitted], np.asarray(y)[fitted])
        named = model.classes_[codes[test]] if kind != "minus one" else codes[test]
        guesses = model.predict(x[test])
        expected.append(balanced_accuracy(named.astype(str), guesses.astype(str)))
    assert search.best_score_ == pytest.approx(np.mean(expected))
    assert len(search.best_estimator_.labeled_rows_) == labelled.sum()
    assert len(search.best_estimator_.transduction_) == len(x)


def test_unlabelled_rows_change_what_is_fitted() -> None:
    seen: list[int] = []

    class Counting(LogisticRegression):  # type: ignore[misc]
        def fit(self, X: Any, y: Any) -> "Counting":
            seen.append(len(X))
            known = y >= 0
            return super().fit(X[known], y[known])  # type: ignore[no-any-return]

    x, _, labelled = blobs()
    scores = cross_val_score(
        make_pipeline(StandardScaler(), Counting()),
        x,
        targets("minus one"),
        cv=LabeledKFold(4),
        scoring=LabeledScorer(accuracy_score),
    )
    assert scores.mean() > 0.8
    assert min(seen) >= len(x) - labelled.sum() / 4 - 1


def test_the_scorer_leaves_unlabelled_rows_out_of_any_fold() -> None:
    x, codes, labelled = blobs()
    y = targets("minus one")
    model = SemiGPClassifier(random_state=0).fit(x, y)
    expected = accuracy_score(codes[labelled], model.predict(x[labelled]))
    assert LabeledScorer(accuracy_score)(model, x, y) == pytest.approx(expected)
    assert model.score(x, y) < 0.5  # scikit-learn's own counts -1 as a class
    scores = cross_val_score(
        clone(model), x, y, cv=KFold(3, shuffle=True, random_state=0), scoring=LabeledScorer()
    )
    assert scores.mean() > 0.7
    with pytest.raises(ValueError, match="none of the rows to score is labelled"):
        LabeledScorer()(model, x[~labelled], y[~labelled])


def test_balanced_accuracy_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 50)
    predicted = np.where(rng.random(50) < 0.6, truth, rng.integers(0, 4, 50))
    expected = balanced_accuracy_score(truth, predicted)
    assert balanced_accuracy(truth, predicted) == pytest.approx(expected)
