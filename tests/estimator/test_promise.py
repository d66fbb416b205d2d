"""A guaranteed precision holds with its probability, and what cannot be is not given out."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from semigpc import SemiGPClassifier
from semigpc.estimator.answers import Decisions, LeftOutLabels, Status, highest_grade
from semigpc.estimator.promise import Promise, Reliability, make_promise
from tests.estimator.long_tail import blobs

EVEN = torch.full((4,), 0.25, dtype=torch.float64)


class Drawn(NamedTuple):
    """Decisions for some rows, and what they really are."""

    decisions: Decisions
    truth: NDArray[np.int64]

    @property
    def confidence(self) -> NDArray[np.float64]:
        return self.decisions.confidence.numpy()

    @property
    def codes(self) -> NDArray[np.int64]:
        return self.decisions.classes.numpy()

    def left_out(self) -> LeftOutLabels:
        rows = np.arange(len(self.truth))
        proba = self.decisions.probs.float().numpy()
        return LeftOutLabels(
            rows, self.truth, rows, proba, self.codes, np.zeros(len(rows), np.float32)
        )


def draw(n: int, seed: int, *, sharper: float = 1.0) -> Drawn:
    """Rows with a class drawn by a softmax; ``sharper`` than 1, probabilities are too sure."""
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, 4, generator=rng, dtype=torch.float64)
    truth = torch.multinomial(torch.softmax(logits, dim=1), 1, generator=rng).squeeze(1)
    probs = torch.softmax(sharper * logits, dim=1)
    return Drawn(Decisions(probs, probs.argmax(dim=1)), truth.numpy())


def doubted(shares: tuple[float, ...], labels: tuple[int, ...]) -> float:
    """Mean level for the same left-out labels, where shares and counts of labels are these."""
    left = draw(200, 0).left_out()
    counts = torch.tensor(labels, dtype=torch.float64)
    trust = Reliability(left, torch.tensor(shares, dtype=torch.float64), counts)
    return float(trust.levels.mean())


def test_unlabelled_rows_unlike_uneven_labels_are_doubted() -> None:
    even = (0.25, 0.25, 0.25, 0.25)
    tail = (0.7, 0.2, 0.07, 0.03)
    alike = doubted(tail, (140, 40, 14, 6))
    apart = doubted(even, (140, 40, 14, 6))
    assert apart < alike - 0.2, "few labels of some classes may hide rows of them"
    assert apart < doubted(tail, (50, 50, 50, 50)) - 0.1, "even labels hide no class"


def test_labels_that_were_chosen_add_doubt() -> None:
    left = draw(60, 0).left_out()
    pool = draw(3000, 1).decisions
    counts = torch.full((4,), 30, dtype=torch.float64)
    given_out = []
    for chosen in (0.0, 0.5, 1.0):
        made = make_promise(left, pool, EVEN, counts, 0.9, chosen=chosen)
        thresholds = made.grades[0.9][pool.classes.numpy()]
        given_out.append(int((pool.confidence.numpy() >= thresholds).sum()))
    assert given_out[0] > given_out[1] > given_out[2] > 0


@pytest.mark.parametrize(
    ("left_out", "labels", "promised"),
    [
        (26, (14, 6, 5, 3), False),
        (28, (14, 7, 6, 3), True),
        (16, (4, 4, 4, 4), True),
        (9, (4, 4, 4, 4), False),
        (40, (40, 0, 0, 0), False),
    ],
)
def test_few_labels_promise_nothing_unless_every_class_has_four(
    left_out: int, labels: tuple[int, ...], promised: bool
) -> None:
    left = draw(left_out, 0).left_out()
    pool = draw(3000, 1).decisions
    right = left._replace(codes=left.decided)  # all of them, so that nothing else speaks against it
    found = make_promise(right, pool, EVEN, torch.tensor(labels, dtype=torch.float64), 0.8)
    assert (found.grades[0.8] <= 1).any() == promised


def promise(left: Drawn, pool: Drawn, target: float, *, per_class: bool = False) -> Promise:
    counts = torch.bincount(torch.from_numpy(left.truth), minlength=4).double()
    return make_promise(left.left_out(), pool.decisions, EVEN, counts, target, per_class=per_class)


@pytest.mark.parametrize("sharper", [0.7, 1.0, 1.6])
@pytest.mark.parametrize(("labels", "target"), [(60, 0.8), (300, 0.9), (300, 0.95)])
def test_the_promise_is_kept_nine_times_out_of_ten(
    labels: int, target: float, sharper: float
) -> None:
    kept, given = [], []
    for seed in range(30):
        left, pool = draw(labels, seed, sharper=sharper), draw(2000, seed + 1000, sharper=sharper)
        found = promise(left, pool, target)
        out = pool.confidence >= found.thresholds[pool.codes]
        given.append(out.mean())
        if out.any():
            kept.append((pool.codes == pool.truth)[out].mean() >= target)
    assert sum(kept) >= len(kept) - 5, "at 90 % each, fewer have a probability of 7 %"
    assert np.mean(given) > 0.1


def test_what_is_expected_is_what_comes_true_on_average() -> None:
    gaps = []
    for seed in range(20):
        left, pool = draw(200, seed), draw(2000, seed + 1000)
        found = promise(left, pool, 0.9)
        out = pool.confidence >= found.thresholds[pool.codes]
        expected = found.expected[0.9]
        assert expected is not None
        assert expected > 0.9, "more is expected than is guaranteed"
        gaps.append(expected - (pool.codes == pool.truth)[out].mean())
        assert found.reach[0.9] > out.mean(), "a guarantee costs labels"
    assert np.mean(gaps) == pytest.approx(0, abs=0.03)


def test_left_out_labels_that_are_wrong_take_the_promise_back() -> None:
    pool = draw(2000, 1)
    counted = []
    for wrong in (0.0, 0.3, 0.6):
        left = draw(200, 0)
        swapped = np.random.default_rng(0).random(200) < wrong
        left.truth[swapped] = (left.codes[swapped] + 1) % 4
        found = promise(left, pool, 0.8)
        counted.append((pool.confidence >= found.thresholds[pool.codes]).sum())
    assert counted[0] > counted[1] >= counted[2] == 0


def test_too_few_labels_guarantee_nothing() -> None:
    pool = draw(500, 1)
    found = promise(draw(9, 0), pool, 0.8)
    assert (found.thresholds > 1).all()
    assert all((each > 1).all() for each in found.grades.values())
    assert set(found.expected.values()) == {None}
    more = promise(draw(60, 0), pool, 0.99)
    assert (more.thresholds > 1).all()
    assert (more.grades[0.8] <= 1).any()


@pytest.mark.parametrize("target", [0.95, 0.97])
def test_a_row_has_the_highest_precision_that_is_guaranteed_for_it(target: float) -> None:
    left, pool = draw(400, 0), draw(4000, 1)
    found = promise(left, pool, target)
    assert list(found.grades) == sorted({0.99, 0.95, 0.9, 0.8, target}, reverse=True)
    thresholds = np.stack(list(found.grades.values()))
    assert (np.diff(thresholds, axis=0) <= 0).all(), "a lower precision may not withhold more"
    confidence = pool.confidence.astype(np.float32)
    grade = highest_grade(found.grades, pool.codes, confidence)
    for precision, each in found.grades.items():
        assert ((grade >= precision) == (confidence >= each[pool.codes])).all()
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


@pytest.mark.parametrize("wrong", ["a half", "most"])
def test_a_class_whose_labels_are_wrong_is_promised_later_or_never(wrong: str) -> None:
    left, pool = draw(400, 0), draw(4000, 1)
    rows = np.flatnonzero(left.codes == 2)
    left.truth[rows[::2]] = 3
    if wrong == "most":
        left.truth[rows] = 3
        assert promise(left, pool, 0.8, per_class=True).thresholds[2] > 1
    else:
        found = promise(left, pool, 0.8, per_class=True).thresholds
        assert (found[[0, 1, 3]] < found[2] - 0.05).all()


def test_one_class_says_nothing_about_other_rows() -> None:
    drawn = draw(50, 0)
    one_class = drawn._replace(truth=np.zeros(50, np.int64))
    assert (promise(one_class, drawn, 0.8).thresholds > 1).all()


def test_a_label_is_given_out_where_the_confidence_is_high_enough() -> None:
    X, codes, _ = blobs(counts=(60, 6, 3), unlabeled=60)
    X = X + np.random.default_rng(0).normal(0, 3, X.shape).astype(np.float32)
    model = SemiGPClassifier(abstain=0.6).fit(X, codes)
    answers = model.answer(X[codes < 0])
    given = answers.status == Status.PSEUDO
    assert 0 < given.sum() < len(given)
    assert ((answers.confidence >= 0.6) == given).all()
    labels = model.label(X[codes < 0])
    assert (labels[given] == model.classes_[answers.codes[given]]).all()
    assert (labels[~given] == -1).all()


def test_every_row_is_answered_where_nothing_is_promised() -> None:
    X, codes, _ = blobs()
    model = SemiGPClassifier(target_precision=None).fit(X, codes)
    assert (model.transduction_ >= 0).all()
    assert model.promise_.target is None


def test_a_fit_with_every_choice_made_leaves_no_label_out() -> None:
    X, codes, _ = blobs()
    model = SemiGPClassifier(target_precision=None, sharpness=1.2).fit(X, codes)
    assert model.held_out_ is None
    assert model.sharpness_ == 1.2


def test_labels_that_were_not_drawn_teach_and_do_not_vouch() -> None:
    X, codes, truth = blobs(counts=(30, 20, 10), unlabeled=60)
    asked = np.flatnonzero(codes < 0)[::6]
    more = codes.copy()
    more[asked] = truth[asked]
    drawn = np.ones(len(X), dtype=bool)
    drawn[asked] = False
    model = SemiGPClassifier(random_state=0).fit(X, more, drawn=drawn)
    assert model.held_out_ is not None
    assert set(model.held_out_.rows) == set(np.flatnonzero(codes >= 0))
    assert set(model.labeled_rows_) > set(asked)
    nothing = SemiGPClassifier(random_state=0).fit(X, more, drawn=~(more >= 0))
    assert (nothing.threshold_ > 1).all(), "no label may vouch"
    with pytest.raises(ValueError, match=r"drawn must be .* truth values"):
        SemiGPClassifier().fit(X, codes, drawn=np.ones(3))
