"""What the estimator says: probabilities, variance, reasons, abstention, corrections."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from semigpc import SemiGPClassifier
from semigpc.estimator import STATUSES, Status
from semigpc.estimator.fitting import FOLDS, assign_folds
from semigpc.gp.certainty import class_scales
from semigpc.gp.kernels import RBF
from tests.estimator.long_tail import CODES, FIXED, TRUTH, X, blobs


def by_hand(X: Any, codes: Any, queries: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Means, scores and variance in plain float64, with the class prior of section 3.7."""
    known = codes >= 0
    h, x = (
        torch.nn.functional.normalize(torch.from_numpy(rows).double(), dim=1)
        for rows in (X[known], queries)
    )
    kernel = RBF(length_scale=0.6)
    Y = torch.nn.functional.one_hot(torch.from_numpy(codes[known])).double()
    n_c = Y.sum(dim=0)
    K_inv = torch.linalg.inv(kernel(h, h) + 0.09 * torch.eye(len(h), dtype=torch.float64))
    k = kernel(x, h)
    mean = k @ K_inv @ (Y - n_c / n_c.sum())
    return mean, mean * (n_c.mean() / n_c).sqrt(), 1 - (k @ K_inv * k).sum(dim=1)


def one_posterior(model: SemiGPClassifier, mean: torch.Tensor, scores: torch.Tensor) -> Any:
    """The probabilities of the module's equation, from both scores (M, C)."""
    prior = torch.from_numpy(model.class_shares_).log() / 2
    given = torch.softmax(model.confidence_scale_ * mean + prior, dim=1)
    joined = torch.softmax(2 * model.logit_scale_ * scores + prior, dim=1)
    n_c = model.class_counts_ / model.class_counts_.sum()
    excess = entropy(model.class_shares_) - entropy(n_c)
    weight = 0.3 if excess > 0.15 * np.log(len(n_c)) else 0.6
    average = weight * given + (1 - weight) * joined
    counts = torch.from_numpy(model.class_counts_)[average.argmax(dim=1)]
    power = average ** (model.sharpness_ * counts / (counts + 0.5)).unsqueeze(1)
    return (power / power.sum(dim=1, keepdim=True)).numpy()


def test_probabilities_and_variance_are_those_of_the_equations() -> None:
    model = SemiGPClassifier(**FIXED).fit(X, CODES)
    mean, scores, variance = by_hand(X, CODES, X)
    proba = one_posterior(model, mean, scores)
    assert model.predict_proba(X) == pytest.approx(proba, abs=5e-5)
    assert model.predict_variance(X) == pytest.approx(variance.numpy(), abs=2e-5)
    answers = model.answer(X)
    own = scores.gather(1, torch.from_numpy(answers.codes).unsqueeze(1)).squeeze(1)
    assert answers.scores == pytest.approx(own.numpy(), abs=2e-5)
    assert answers.confidence == pytest.approx(proba.max(axis=1), abs=5e-5)


def test_weights_add_up_to_the_score_and_a_removed_reason_changes_it_by_its_difference() -> None:
    model = SemiGPClassifier(**FIXED).fit(X, CODES)
    queries = X[CODES < 0][::17]
    whole = model.explain(queries, top=int((CODES >= 0).sum()))
    assert whole.weights.sum(axis=1) == pytest.approx(whole.scores, abs=1e-5)
    assert whole.rest == pytest.approx(0, abs=1e-5)
    few = model.explain(queries, top=3)
    assert few.weights.sum(axis=1) + few.rest == pytest.approx(few.scores, abs=1e-5)
    assert (few.rows == whole.rows[:, :3]).all()

    counts = model._memory.counts()
    offset, scales = counts / counts.sum(), class_scales(counts)
    for query, row, code, score, difference in zip(
        queries, few.rows[:, 0], few.codes, few.scores, few.differences[:, 0], strict=True
    ):
        engine = SemiGPClassifier(**FIXED).fit(X, CODES)._memory.members[0].engine
        slot = int(np.flatnonzero(np.flatnonzero(CODES >= 0) == row)[0])
        engine.remove(torch.tensor([slot]))
        point = model._scaling(query[None]).double()
        without = (engine.mean(point, offset=offset) * scales)[0, code]
        assert score - float(without) == pytest.approx(float(difference), abs=1e-5)


def test_reasons_in_bulk_are_those_of_explain() -> None:
    for rounds in (0, 2):
        model = SemiGPClassifier(self_training=rounds).fit(X, CODES)
        queries = X[CODES < 0]
        answers, reasons = model.answer(queries), model.explain(queries)
        assert (answers.codes == reasons.codes).all()
        assert answers.weights == pytest.approx(reasons.weights, abs=1e-4)
        assert set(answers.rows.flat) <= set(np.flatnonzero(CODES >= 0))


@pytest.mark.parametrize("prior", ["estimated", "balanced"])
@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("seed", range(5))
def test_everything_shown_comes_from_one_vector_of_probabilities(
    seed: int, rounds: int, prior: Any
) -> None:
    X, codes, _ = blobs(counts=(20, 6, 1), unlabeled=40, seed=seed)
    X = X + 4 * np.random.default_rng(seed).standard_normal(X.shape).astype(np.float32)
    model = SemiGPClassifier(self_training=rounds, class_prior=prior).fit(X, codes)
    probs, answers = model.predict_proba(X), model.answer(X)
    every = np.arange(len(X))
    assert probs.sum(axis=1) == pytest.approx(1, abs=1e-5)
    worth = probs / (np.sqrt(model.class_shares_) if prior == "balanced" else 1)
    assert worth[every, answers.codes] == pytest.approx(worth.max(axis=1), rel=1e-5)
    assert answers.confidence == pytest.approx(probs[every, answers.codes], abs=1e-6)
    assert (model.predict(X) == model.classes_[answers.codes]).all()
    assert (model.explain(X).codes == answers.codes).all()
    probs[every, answers.codes] = -1
    assert answers.second_confidence == pytest.approx(probs.max(axis=1), abs=1e-6)
    assert probs[every, answers.second] == pytest.approx(probs.max(axis=1), abs=1e-6)
    sure = answers.confidence > (1 + 1 / 3) / 2
    assert (answers.status[sure] != Status.OUTLIER).all()


def test_leave_one_out_is_what_a_fit_without_the_row_says() -> None:
    X, codes, _ = blobs(counts=(12, 5, 2), unlabeled=10)
    model = SemiGPClassifier(**FIXED).fit(X, codes)
    left_out = model.leave_one_out()
    assert (left_out.decided == left_out.proba.argmax(axis=1)).all()
    for row, proba, variance in zip(
        left_out.rows[::3], left_out.proba[::3], left_out.variance[::3], strict=True
    ):
        fewer = codes.copy()
        fewer[row] = -1
        without = SemiGPClassifier(**FIXED).fit(X, fewer)
        _, scores, _ = by_hand(X, fewer, X[row : row + 1])
        assert torch.softmax(6 * scores[0], dim=0).numpy() == pytest.approx(proba, abs=1e-5)
        assert without.predict_variance(X[row : row + 1])[0] == pytest.approx(variance, abs=1e-5)


def test_labels_are_held_out_without_what_joined_by_them() -> None:
    X, codes, _ = blobs(counts=(15, 8, 1), unlabeled=60)
    model = SemiGPClassifier(self_training=2, random_state=0).fit(X, codes)
    held = model.held_out_
    assert held is not None
    checked = np.flatnonzero((codes >= 0) & (codes < 2))  # the single label has to stay
    assert (held.rows == checked).all()
    assert (held.codes == codes[checked]).all()
    folds = assign_folds(codes[codes >= 0], np.arange((codes >= 0).sum()), FOLDS, seed=0)
    first = np.flatnonzero(codes >= 0)[folds == 0]
    fewer = codes.copy()
    fewer[first] = -1
    settings: dict[str, Any] = {
        "length_scale": model.length_scale_,
        "noise_std": model.noise_std_,
        "logit_scale": model.logit_scale_,
        "sharpness": model.sharpness_,
        "scaling": model.scaling_,
    }
    others = (codes < 0) | np.isin(np.arange(len(codes)), np.flatnonzero(fewer >= 0))
    without = SemiGPClassifier(self_training=2, **settings).fit(X[others], fewer[others])
    without.confidence_scale_ = model.confidence_scale_
    without.class_shares_ = model.class_shares_
    expected = without.predict_proba(X[first])
    found = held.proba[np.isin(held.rows, first)]
    assert found == pytest.approx(expected, abs=1e-4)


def test_reasons_for_a_left_out_label_are_those_of_a_fit_without_it() -> None:
    X, codes, _ = blobs(counts=(12, 5, 2), unlabeled=10)
    model = SemiGPClassifier(**FIXED).fit(X, codes)
    rows = model.labeled_rows_[::3]
    for wanted in (0, 1):
        found, weights, scores = model.explain_left_out(rows, np.full(len(rows), wanted))
        for at, row in enumerate(rows):
            fewer = codes.copy()
            fewer[row] = -1
            why = SemiGPClassifier(**FIXED).fit(X, fewer).explain(X[row : row + 1], classes=wanted)
            assert (found[at] == why.rows[0]).all()
            assert weights[at] == pytest.approx(why.weights[0], abs=1e-5)
            assert scores[at] == pytest.approx(why.scores[0], abs=1e-5)
    unlabelled = np.flatnonzero(codes < 0)[:1]
    with pytest.raises(ValueError, match=f"must have a given label; row {unlabelled[0]} has none"):
        model.explain_left_out(unlabelled, [0])


def test_a_row_alone_in_its_class_is_given_to_another_when_left_out() -> None:
    X, codes, _ = blobs(counts=(12, 5, 1), unlabeled=10)
    left_out = SemiGPClassifier().fit(X, codes).leave_one_out()
    alone = left_out.codes == 2
    assert left_out.proba[alone, 2] == 0
    assert left_out.proba.sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_covariance_has_the_variance_on_its_diagonal_and_tells_what_a_new_label_will_do() -> None:
    model = SemiGPClassifier(**FIXED).fit(X, CODES)
    rows = np.flatnonzero(CODES < 0)[:30]
    before = model.predict_variance(X[rows])
    covariance = model.covariance(X[rows], X[rows])
    assert covariance.diagonal() == pytest.approx(before, abs=1e-5)
    model.partial_fit(X[rows[:1]], TRUTH[rows[:1]], rows=rows[:1])
    expected = before - covariance[:, 0] ** 2 / (before[0] + model.noise_std_**2)
    assert model.predict_variance(X[rows]) == pytest.approx(expected, abs=1e-5)


# Corrections --------------------------------------------------------------------------------------


def test_partial_fit_adds_replaces_and_withdraws_as_a_fresh_fit_would() -> None:
    model = SemiGPClassifier(**FIXED).fit(X, CODES)
    expected = CODES.copy()
    labelled, bare = np.flatnonzero(CODES >= 0), np.flatnonzero(CODES < 0)
    steps = [
        (bare[:5], TRUTH[bare[:5]]),
        (labelled[:2], [2, 1]),
        (labelled[2:4], [-1, -1]),
        (bare[:1], [-1]),
    ]
    for rows, labels in steps:
        model.partial_fit(X[rows], labels, rows=rows)
        expected[rows] = labels
        fresh = SemiGPClassifier(**FIXED).fit(X, expected)
        for name in ("confidence_scale_", "sharpness_", "class_shares_"):  # which a fit chooses
            setattr(fresh, name, getattr(model, name))
        expected_proba = fresh.predict_proba(X)
        assert model.predict_proba(X) == pytest.approx(expected_proba, abs=1e-4)  # float32
        assert (model.class_counts_ == fresh.class_counts_).all()
        assert set(model.labeled_rows_) == set(fresh.labeled_rows_)


def test_without_row_numbers_equal_rows_are_replaced_and_others_added() -> None:
    model = SemiGPClassifier(**FIXED).fit(X, CODES)
    labelled = np.flatnonzero(CODES >= 0)
    model.partial_fit(X[labelled[:1]], [2])
    assert len(model.labeled_rows_) == len(labelled)
    assert model.transduction_[labelled[0]] == 2
    model.partial_fit(X[labelled[:1]] + 1, [1])
    assert len(model.labeled_rows_) == len(labelled) + 1
    assert model.labeled_rows_.max() == len(X)


def test_corrections_reach_a_self_trained_model_too() -> None:
    model = SemiGPClassifier(self_training=2).fit(X, CODES)
    assert model._helped is not None
    joined = np.setdiff1d(model._helped.row_numbers(), model.labeled_rows_)
    assert len(joined)
    other = int((TRUTH[joined[0]] + 1) % 3)
    before = model.predict_proba(X[joined[:1]])[0, other]
    model.partial_fit(X[joined[:1]], [other], rows=joined[:1])
    assert model.predict_proba(X[joined[:1]])[0, other] > 2 * before
    assert len(model._helped) == len(model.labeled_rows_) + len(joined) - 1


def test_a_class_nobody_had_heard_of_can_be_added() -> None:
    names = np.where(CODES < 0, None, np.array(["heron", "coot", "wren"])[CODES])
    model = SemiGPClassifier().fit(X, names)
    far = np.full((3, X.shape[1]), -30, np.float32) + np.eye(X.shape[1], dtype=np.float32)[:3]
    model.partial_fit(far, ["dodo"] * 3)
    assert list(model.classes_) == ["coot", "dodo", "heron", "wren"]
    assert (model.predict(far) == "dodo").all()
    assert model.class_shares_.sum() == pytest.approx(1)
    assert (model.predict(X[CODES >= 0]) == names[CODES >= 0]).mean() > 0.95


# Abstaining ---------------------------------------------------------------------------------------


def test_a_row_far_from_everything_is_an_outlier_and_gets_no_label() -> None:
    model = SemiGPClassifier(abstain=0.8, scaling="standard").fit(X, CODES)
    far = np.full((1, X.shape[1]), 60, np.float32)
    assert STATUSES[int(model.answer(far).status[0])] == "outlier"
    assert model.predict_variance(far)[0] > 0.99
    assert model.label(far)[0] == -1
    assert (np.argsort(model.predict_proba(far)[0]) == np.argsort(model.class_shares_)).all()


@pytest.mark.slow
def test_a_target_precision_is_kept_where_classes_overlap() -> None:
    kept, covered, all_right = [], [], []
    for seed in range(10):
        X, codes, truth = blobs(counts=(40, 20, 10), unlabeled=200, seed=seed)
        X = X + 3.5 * np.random.default_rng(seed).standard_normal(X.shape).astype(np.float32)
        model = SemiGPClassifier(target_precision=0.95).fit(X, codes)
        bare = codes < 0
        labels = model.label(X[bare])
        given = labels >= 0
        covered.append(given.mean())
        kept.append((labels == truth[bare])[given].mean() if given.any() else 1.0)
        everything = SemiGPClassifier().fit(X, codes).predict(X[bare])
        all_right.append((everything == truth[bare]).mean())
    assert np.mean(all_right) < 0.93  # otherwise there would be little to promise
    assert np.mean(kept) >= 0.93
    assert np.mean(covered) > 0.2


def test_what_stands_for_no_label_fits_the_labels() -> None:
    numbers = SemiGPClassifier(abstain=1.0).fit(X, CODES).transduction_
    assert numbers.dtype.kind == "i"
    assert (numbers[CODES >= 0] == CODES[CODES >= 0]).all()
    assert (numbers == -1).any()
    floats = SemiGPClassifier(abstain=1.0).fit(X, CODES.astype(float)).transduction_
    assert np.isnan(floats).any()
    names = np.where(CODES < 0, None, CODES.astype(str))
    text = SemiGPClassifier(abstain=1.0).fit(X, names).transduction_
    assert any(label is None for label in text)


def test_never_nan_where_label_spreading_gives_nan() -> None:
    X = np.array([[0.0, 0], [0, 1], [1000, 1000], [5, 5]], np.float32)
    model = SemiGPClassifier(scaling="none", length_scale=0.5).fit(X, [0, 1, -1, -1])
    proba = model.predict_proba(X)
    assert np.isfinite(proba).all()
    assert proba.sum(axis=1) == pytest.approx(1)
    assert proba[2] == pytest.approx(0.5)


# The long tail ------------------------------------------------------------------------------------


def test_the_class_prior_decides_whether_rare_classes_are_favoured() -> None:
    X, codes, truth = blobs(counts=(60, 8), unlabeled=300, seed=5)
    X = X + 7 * np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)
    rare = np.flatnonzero((codes < 0) & (truth == 1))[20:]
    X, codes, truth = (np.delete(array, rare, axis=0) for array in (X, codes, truth))
    bare = codes < 0
    models = {
        prior: SemiGPClassifier(class_prior=prior, self_training=0).fit(X, codes)
        for prior in ("balanced", "estimated")
    }
    found = {prior: model.predict(X[bare]) for prior, model in models.items()}
    recall = {prior: (labels[truth[bare] == 1] == 1).mean() for prior, labels in found.items()}
    accuracy = {prior: (labels == truth[bare]).mean() for prior, labels in found.items()}
    assert recall["balanced"] > recall["estimated"]  # by 3 of 20
    assert accuracy["estimated"] > accuracy["balanced"] + 0.03  # by 0.09
    assert models["balanced"].class_shares_[1] < 0.2  # 20 of 320


def test_shares_of_the_unlabelled_rows_are_found_though_labels_say_otherwise() -> None:
    X, codes, truth = blobs(counts=(10, 10, 10), unlabeled=200)
    second, third = (np.flatnonzero((codes < 0) & (truth == c)) for c in (1, 2))
    drop = np.concatenate([second[50:], third[10:]])
    X, codes = np.delete(X, drop, axis=0), np.delete(codes, drop)
    model = SemiGPClassifier().fit(X, codes)
    assert model.class_shares_ == pytest.approx(np.array([200, 50, 10]) / 260, abs=0.05)


def test_rows_that_joined_help_others_and_do_not_confirm_themselves() -> None:
    X, codes, _ = blobs(counts=(4, 4, 4), unlabeled=100)
    alone, helped = (SemiGPClassifier(self_training=rounds).fit(X, codes) for rounds in (0, 3))
    memory = helped._helped
    assert memory is not None
    assert (helped.predict_variance(X) == alone.predict_variance(X)).all()
    assert set(helped.answer(X).rows.flat) <= set(np.flatnonzero(codes >= 0))
    joined = np.setdiff1d(memory.row_numbers(), helped.labeled_rows_)
    points = helped._scaling(X)
    scores = memory.score_unjoined(points)
    assert torch.equal(
        scores[helped.labeled_rows_], memory.score(points).mean[helped.labeled_rows_]
    )
    for row in joined[:3]:
        without = deepcopy(memory)
        without.forget(np.array([row]))
        scales = class_scales(memory.counts()) / class_scales(without.counts())
        counts = memory.counts() - without.counts()
        assert counts.sum() == pytest.approx(1)
        # Only the centring and the scales count the row, which is one of many.
        expected = without.score(points[[row]]).mean[0] * scales
        assert scores[row].numpy() == pytest.approx(expected.numpy(), abs=0.02)
    own = memory.score(points).mean[joined]
    assert not torch.allclose(scores[joined], own, atol=1e-4)


def test_a_withdrawn_correction_leaves_no_trace() -> None:
    model = SemiGPClassifier(**FIXED).fit(X, CODES)
    before = model.transduction_.copy()
    row = np.flatnonzero(CODES < 0)[:1]
    model.partial_fit(X[row], [(before[row[0]] + 1) % 3], rows=row)
    assert model.transduction_[row[0]] != before[row[0]]
    model.partial_fit(X[row], [-1], rows=row)
    assert (model.transduction_ == before).all()


def test_labels_of_another_kind_are_refused_later_on() -> None:
    model = SemiGPClassifier().fit(X, np.where(CODES < 0, None, CODES.astype(str).astype(object)))
    with pytest.raises(ValueError, match="of the kind of the classes, such as '0'; got 3"):
        model.partial_fit(X[:1], [3])


def test_a_fit_labels_its_own_rows_only_if_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SemiGPClassifier().fit(X, CODES)
    assert (model.transduction_[CODES >= 0] == CODES[CODES >= 0]).all()
    monkeypatch.setattr(SemiGPClassifier, "_answer", None)
    model.fit(X, CODES, transduce=False)
    assert not hasattr(model, "transduction_")
    unlabelled = np.flatnonzero(CODES < 0)[:2]
    model.partial_fit(X[unlabelled], TRUTH[unlabelled] + 3, rows=unlabelled)
    assert not hasattr(model, "transduction_")
    assert set(model.classes_) > {0, 1, 2}


def test_many_classes_for_few_labels_are_no_reason_to_warn() -> None:
    """scikit-learn takes more classes than half of the labels for a regression problem."""
    y = np.full(60, None, dtype=object)
    y[:30] = [f"class {number % 17}" for number in range(30)]
    model = SemiGPClassifier().fit(np.random.default_rng(0).standard_normal((60, 4)), y)
    assert len(model.classes_) == 17
