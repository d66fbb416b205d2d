"""What the classifier returns, as tables with named columns."""

import sys

import numpy as np
import pandas
import pytest

from semigpc import SemiGPClassifier
from semigpc.labeling.outputs import COLUMNS
from tests.estimator.test_selection import blobs, targets


@pytest.fixture(scope="module")
def model() -> SemiGPClassifier:
    x, _, _ = blobs()
    return SemiGPClassifier(random_state=0).fit(x, targets("text and None"))


def test_answers_have_the_columns_of_labels_csv(model: SemiGPClassifier) -> None:
    x, _, _ = blobs()
    answers = model.answer(x)
    frame = answers.frame(model.classes_)
    assert [*frame.columns] == [name for name in COLUMNS if name != "reasons"]
    assert frame["guess"].tolist() == model.predict(x).tolist()
    labels = [None if pandas.isna(label) else label for label in frame["label"]]
    assert labels == model.label(x).tolist()
    assert set(frame["status"]) <= {"pseudo", "abstained", "outlier"}
    assert frame["grade"].fillna(0).to_numpy() == pytest.approx(answers.grade, abs=1e-6)
    assert "variance" not in model.answer(x, variance=False).frame(model.classes_)


def test_reasons_add_up_to_the_score(model: SemiGPClassifier) -> None:
    x, _, labelled = blobs()
    explanation = model.explain(x[:6], top=int(labelled.sum()))
    frame = explanation.frame(model.classes_)
    assert [*frame.columns] == ["row", "guess", "score", "because_of", "weight", "difference"]
    assert frame["guess"].tolist() == model.predict(x[:6])[frame["row"]].tolist()
    assert set(frame["because_of"]) == set(model.labeled_rows_.tolist())
    sums = frame.groupby("row")["weight"].sum()
    assert sums.to_numpy() == pytest.approx(explanation.scores, abs=1e-4)


def test_reasons_that_do_not_exist_have_no_row(model: SemiGPClassifier) -> None:
    x, _, labelled = blobs()
    few = SemiGPClassifier(random_state=0, self_training=0)
    rows = [*np.flatnonzero(labelled)[:12]]
    y = np.asarray(targets("text and None"))[rows]
    frame = few.fit(x[rows], y).explain(x[:2], top=20).frame(few.classes_)
    assert frame.groupby("row").size().tolist() == [12, 12]


def test_left_out_labels_by_name(model: SemiGPClassifier) -> None:
    left_out = model.leave_one_out()
    frame = left_out.frame(model.classes_)
    y = np.asarray(targets("text and None"))
    assert frame["label"].tolist() == y[frame["row"]].tolist()
    agrees = frame["label"] == frame["guess"]
    assert agrees.mean() > 0.8
    same = frame[agrees]
    assert same["confidence"].to_numpy() == pytest.approx(same["label_confidence"].to_numpy())
    assert (frame["label_confidence"] <= frame["confidence"] + 1e-6).all()
    assert model.held_out_ is not None
    assert [*model.held_out_.frame(model.classes_).columns] == [*frame.columns]


def test_without_pandas_the_message_says_what_to_install(
    model: SemiGPClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        model.leave_one_out().frame(model.classes_)
