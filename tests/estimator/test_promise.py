"""A promised precision holds with its probability, and what cannot be promised is not given out."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from semigpc import SemiGPClassifier
from semigpc.estimator.answers import Decisions, Status, highest_grade
from semigpc.estimator.promise import make_promise
from tests.estimator.long_tail import blobs

EVEN = torch.full((4,), 0.25, dtype=torch.float64)


def draw(n: int, seed: int, *, sharper: float = 1.0) -> tuple[Decisions, torch.Tensor]:
    """Rows with a class drawn by a softmax; ``sharper`` than 1, probabilities are too sure."""
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, 4, generator=rng, dtype=torch.float64)
    truth = torch.multinomial(torch.softmax(logits, dim=1), 1, generator=rng).squeeze(1)
    probs = torch.softmax(sharper * logits, dim=1)
    return Decisions(probs, probs.argmax(dim=1)), truth


@pytest.mark.parametrize("sharper", [0.7, 1.0, 1.6])
@pytest.mark.parametrize(("labels", "target"), [(60, 0.8), (300, 0.9), (300, 0.95)])
def test_the_promise_is_kept_nine_times_out_of_ten(
    labels: int, target: float, sharper: float
) -> None:
    kept, given = [], []
    for seed in range(30):
        left, truth = draw(labels, seed, sharper=sharper)
        pool, hidden = draw(2000, seed + 1000, sharper=sharper)
        found = make_promise(left, truth, pool, EVEN, target)
        out = pool.confidence.numpy() >= found.thresholds[pool.classes.numpy()]
        given.append(out.mean())
        if out.any():
            kept.append((pool.classes == hidden).numpy()[out].mean() >= target)
    assert sum(kept) >= len(kept) - 5, "at 90 % each, fewer have a probability of 7 %"
    assert np.mean(given) > 0.1


def test_what_the_labels_alone_support_is_the_bound_of_clopper_and_pearson() -> None:
    left, truth = draw(300, 0)
    truth[:4] = torch.arange(4)
    shares = torch.bincount(truth).double() / len(truth)  # so that every label has the same weight
    found = make_promise(left, truth, draw(2000, 1)[0], shares, 0.9)
    above = left.confidence.numpy() >= found.thresholds[left.classes.numpy()]
    errors = int((left.classes != truth).numpy()[above].sum())
    bound = binomtest(errors, int(above.sum()), alternative="less").proportion_ci(0.9).high
    assert found.supported == pytest.approx(min(0.9, 1 - bound), abs=1e-6)
    assert found.expected is not None
    assert found.expected > 0.9


@pytest.mark.parametrize(("labels", "possible"), [(60, 0.8), (200, 0.9)])
def test_too_few_labels_promise_less_and_say_how_much(labels: int, possible: float) -> None:
    left, truth = draw(labels, 0, sharper=0.5)
    pool, _ = draw(500, 1, sharper=0.5)
    found = make_promise(left, truth, pool, EVEN, 0.99)
    assert (found.thresholds > 1).all()
    assert found.supported is None
    assert max(grade for grade, each in found.grades.items() if (each <= 1).any()) == possible
    less = make_promise(left, truth, pool, EVEN, possible)
    assert (less.thresholds <= 1).any()
    assert less.supported == possible


def test_nothing_is_called_possible_that_left_out_labels_do_not_support() -> None:
    left, truth = draw(12, 0)
    assert list(make_promise(left, truth, draw(500, 1)[0], EVEN, 0.99).grades) == [0.99]


@pytest.mark.parametrize("target", [0.95, 0.97])
def test_a_row_has_the_highest_precision_that_is_promised_for_it(target: float) -> None:
    left, truth = draw(400, 0)
    pool, _ = draw(4000, 1)
    found = make_promise(left, truth, pool, EVEN, target)
    assert list(found.grades) == sorted(found.grades, reverse=True)
    assert set(found.grades) >= {0.99, target, 0.9, 0.8}
    thresholds = np.stack(list(found.grades.values()))
    assert (np.diff(thresholds, axis=0) <= 0).all(), "a lower precision may not withhold more"
    codes = pool.classes.numpy()
    confidence = pool.confidence.numpy().astype(np.float32)
    grade = highest_grade(found.grades, codes, confidence)
    for precision, each in found.grades.items():
        assert ((grade >= precision) == (confidence >= each[codes])).all()
    assert set(grade) >= {0.0, 0.8, 0.9}


def test_grades_agree_with_the_status_and_stay_when_a_class_is_added() -> None:
    X, codes, _ = blobs(counts=(60, 30, 20), unlabeled=60)
    model = SemiGPClassifier().fit(X, codes)
    answers = model.answer(X[codes < 0])
    given = answers.status == Status.PSEUDO
    assert given.any()
    assert ((answers.grade >= np.float32(0.95)) == given).all()
    assert (answers.grade[answers.status == Status.OUTLIER] == 0).all()
    model.partial_fit(X[codes < 0][:1], [7], rows=[0])
    assert all(len(each) == 4 for each in model.promise_.grades.values())
    assert len(model.answer(X[codes < 0]).grade) == (codes < 0).sum()


def test_without_a_promise_no_row_has_a_grade() -> None:
    X, codes, _ = blobs()
    for options in ({"abstain": 0.5}, {"target_precision": None}):
        model = SemiGPClassifier(**options).fit(X, codes)
        assert (model.answer(X).grade == 0).all()


def test_labels_of_a_class_that_is_mostly_wrong_are_not_promised() -> None:
    left, truth = draw(400, 0)
    pool, _ = draw(4000, 1)
    wrong = left.classes == 2
    truth[wrong] = torch.where(torch.arange(int(wrong.sum())) % 2 == 0, 3, 2)
    pool.probs[pool.classes == 2] = torch.tensor([0.0, 0.0, 0.55, 0.45], dtype=torch.float64)
    found = make_promise(left, truth, pool, EVEN, 0.8, per_class=True)
    assert found.thresholds[2] > 1
    assert (found.thresholds[[0, 1]] <= 1).all()


def test_one_class_says_nothing_about_other_rows() -> None:
    decisions, _ = draw(50, 0)
    one_class = torch.zeros(50, dtype=torch.int64)
    found = make_promise(decisions, one_class, decisions, EVEN, 0.8)
    assert (found.thresholds > 1).all()


def test_a_label_given_out_is_the_likeliest_class() -> None:
    X, codes, _ = blobs(counts=(60, 6, 3), unlabeled=60)
    X = X + np.random.default_rng(0).normal(0, 3, X.shape).astype(np.float32)
    model = SemiGPClassifier(abstain=0.01).fit(X, codes)
    answers = model.answer(X[codes < 0])
    differs = answers.codes != answers.likeliest
    assert differs.any()
    assert (answers.likeliest_confidence[differs] >= answers.confidence[differs]).all()
    assert (answers.status[differs] != Status.PSEUDO).all()
    assert (answers.likeliest_confidence[~differs] == answers.confidence[~differs]).all()
    labels = model.label(X[codes < 0])
    given = answers.status == Status.PSEUDO
    assert (labels[given] == model.classes_[answers.codes[given]]).all()
    assert (labels[~given] == -1).all()


def test_every_row_is_answered_where_nothing_is_promised() -> None:
    X, codes, _ = blobs()
    model = SemiGPClassifier(target_precision=None).fit(X, codes)
    assert (model.transduction_ >= 0).all()
    assert model.promise_.target is None
