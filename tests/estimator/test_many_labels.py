"""More labelled rows than one exact GP may hold: an ensemble, here with the limit lowered."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from semigpc import SemiGPClassifier
from semigpc.gp import deal_rows
from tests.estimator.long_tail import FIXED, blobs

COUNTS = (300, 80, 12, 2)


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """394 rows and 256 spare slots are too many for one engine; a member has 225 at most."""
    monkeypatch.setattr("semigpc.gp.exact.EXACT_ROWS", 600)


def noisy(seed: int = 0) -> tuple[Any, Any, Any]:
    X, codes, truth = blobs(counts=COUNTS, unlabeled=60, seed=seed)
    noise = np.random.default_rng(seed).standard_normal(X.shape).astype(np.float32)
    return X + 2 * noise, codes, truth


def by_hand(
    model: SemiGPClassifier, queries: Any, without: int | None = None, *, counted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and variance as the average of dense GPs in float64 over the rows that members hold,
    one of them left out.

    A row that is left out may still be ``counted`` in the class prior.
    """
    memory = model._memory
    x = model._scaling(queries).double()
    counts, means, variances = [], [], []
    for member in memory.members:
        slots = member.slots[torch.from_numpy(memory.row_numbers()[member.places] != without)]
        h, Y = member.engine.features[slots], member.engine.targets[slots]
        K_inv = torch.linalg.inv(memory.kernel(h, h) + memory.noise_std**2 * torch.eye(len(h)))
        k = memory.kernel(x, h)
        counts.append(Y.sum(dim=0))
        means.append(torch.cat([k @ K_inv @ Y, k @ K_inv.sum(dim=1, keepdim=True)], dim=1))
        variances.append(1 - (k @ K_inv * k).sum(dim=1))
    n_c = memory.counts() if counted else torch.stack(counts).mean(dim=0)
    mean = torch.stack(means).mean(dim=0)
    scores = (mean[:, :-1] - mean[:, -1:] * n_c / n_c.sum()) * (n_c.mean() / n_c).sqrt()
    return scores, torch.stack(variances).mean(dim=0)


def test_all_rows_are_dealt_out_and_small_classes_go_to_every_member() -> None:
    codes = np.repeat(np.arange(4), COUNTS)
    parts = deal_rows(codes, 225, np.random.default_rng(0))
    assert len(parts) == 3
    assert max(map(len, parts)) <= 225
    assert (np.unique(np.concatenate(parts)) == np.arange(len(codes))).all()
    for part in parts:
        assert len(np.unique(part)) == len(part)
        counts = np.bincount(codes[part])
        assert (counts[2:] == COUNTS[2:]).all()
        assert counts[0] == 100


def test_one_row_of_each_class_is_the_least_that_a_member_holds() -> None:
    parts = deal_rows(np.arange(50), 10, np.random.default_rng(0))
    assert all(set(part) == set(range(50)) for part in parts)


@pytest.mark.usefixtures("low_limit")
def test_the_switch_happens_at_the_limit_and_is_said() -> None:
    X, codes, _ = noisy()
    few = np.where(np.arange(len(codes)) % 2, codes, -1)
    assert SemiGPClassifier(**FIXED).fit(X, few).engine_ == "exact"
    model = SemiGPClassifier(**FIXED).fit(X, codes)
    assert model.engine_ == "ensemble"
    assert "3 exact GPs of up to 194 rows share the 394 labelled rows" in model.engine_reason_
    assert "650 rows are more than 600" in model.engine_reason_
    assert (model.class_counts_ == COUNTS).all()
    assert (model.labeled_rows_ == np.flatnonzero(codes >= 0)).all()


@pytest.mark.usefixtures("low_limit")
def test_scores_and_variance_are_the_average_of_the_members() -> None:
    X, codes, _ = noisy()
    model = SemiGPClassifier(**FIXED).fit(X, codes)
    queries = X[codes < 0]
    scores, variance = by_hand(model, queries)
    few = model.predict_variance(queries[:5])  # in another way
    for found, expected in (
        (model._memory.score(model._scaling(queries)).mean.numpy(), scores),
        (model.predict_variance(queries), variance),
        (few, variance[:5]),
        (model.answer(queries).scores, scores[np.arange(len(scores)), model.answer(queries).codes]),
        (model.covariance(queries, queries).diagonal(), variance),
    ):
        assert found == pytest.approx(expected.numpy(), abs=2e-5)


@pytest.mark.slow
def test_labels_are_those_of_one_exact_gp_in_nine_of_ten_rows_and_as_often_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, codes, truth = noisy()
    queries = codes < 0
    exact = SemiGPClassifier(self_training=0).fit(X, codes)
    monkeypatch.setattr("semigpc.gp.exact.EXACT_ROWS", 600)
    several = SemiGPClassifier(self_training=0).fit(X, codes)
    assert (exact.engine_, several.engine_) == ("exact", "ensemble")
    labels = exact.predict(X[queries]), several.predict(X[queries])
    assert (labels[0] == labels[1]).mean() >= 0.9
    recalls = [balanced_accuracy_score(truth[queries], label) for label in labels]
    assert recalls[1] >= recalls[0]


@pytest.mark.usefixtures("low_limit")
def test_reasons_add_up_and_differ_by_what_a_row_adds() -> None:
    X, codes, _ = noisy()
    model = SemiGPClassifier(**FIXED).fit(X, codes)
    queries = X[codes < 0][::40]
    whole = model.explain(queries, top=394)
    assert whole.weights.sum(axis=1) == pytest.approx(whole.scores, abs=1e-5)
    # A row that several members hold is one reason.
    assert all(len(set(rows)) == 394 for rows in whole.rows)
    few, answers = model.explain(queries), model.answer(queries)
    assert (few.rows == answers.rows).all()
    assert few.weights == pytest.approx(answers.weights, abs=1e-5)
    for at, row in enumerate(few.rows[:, 0]):
        lower = by_hand(model, queries[at : at + 1], without=int(row))[0][0, few.codes[at]]
        assert few.differences[at, 0] == pytest.approx(few.scores[at] - float(lower), abs=1e-5)


@pytest.mark.usefixtures("low_limit")
def test_leave_one_out_is_what_the_members_say_without_the_row() -> None:
    X, codes, _ = noisy()
    model = SemiGPClassifier(**FIXED).fit(X, codes)
    left_out = model.leave_one_out()
    assert (left_out.rows == np.flatnonzero(codes >= 0)).all()
    for at in (0, 150, 310, 385, 393):  # of the classes of 300, 300, 80, 12 and 2 rows
        row = int(left_out.rows[at])
        scores, variance = by_hand(model, X[row : row + 1], without=row, counted=False)
        proba = torch.softmax(6 * scores, dim=1)[0].numpy()
        assert left_out.proba[at] == pytest.approx(proba, abs=2e-4)
        atol = 0.2 if at < 310 else 1e-4
        assert left_out.variance[at] == pytest.approx(float(variance), abs=atol)
        of_each = [model.explain_left_out([row], [c])[2][0] for c in range(len(model.classes_))]
        assert of_each == pytest.approx(scores[0].numpy(), abs=1e-4)


@pytest.mark.usefixtures("low_limit")
def test_partial_fit_reaches_every_member_and_a_pickle_goes_on() -> None:
    X, codes, truth = noisy()
    model = SemiGPClassifier(**FIXED).fit(X, codes)
    rare = np.flatnonzero((truth == 3) & (codes < 0))[:3]
    model.partial_fit(X[rare], truth[rare], rows=rare)
    assert model.class_counts_[3] == 5
    assert (model.predict(X[rare]) == 3).all()
    model.partial_fit(X[rare], np.full(3, -1), rows=rare)
    fresh = SemiGPClassifier(**FIXED).fit(X, codes)
    for name in ("confidence_scale_", "sharpness_", "class_shares_"):  # which a fit chooses
        setattr(fresh, name, getattr(model, name))
    assert model.predict_proba(X) == pytest.approx(fresh.predict_proba(X), abs=1e-4)
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict_proba(X) == model.predict_proba(X)).all()
    model.partial_fit(X[rare], [9, 9, 9], rows=rare)
    assert list(model.classes_) == [0, 1, 2, 3, 9]
    assert (model.predict(X[rare]) == 9).all()


def test_a_model_that_grows_past_the_limit_becomes_an_ensemble(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, codes, _ = noisy()
    known = np.flatnonzero(codes >= 0)
    start = np.full(len(codes), -1)
    start[known[::4]] = codes[known[::4]]
    monkeypatch.setattr("semigpc.gp.exact.EXACT_ROWS", 600)
    model = SemiGPClassifier(**FIXED).fit(X, start)
    before = model.engine_
    model.partial_fit(X[known], codes[known], rows=known)
    assert (before, model.engine_) == ("exact", "ensemble")
    fresh = SemiGPClassifier(**FIXED).fit(X, codes)
    for name in ("confidence_scale_", "sharpness_", "class_shares_"):  # which a fit chooses
        setattr(fresh, name, getattr(model, name))
    assert model.predict_proba(X) == pytest.approx(fresh.predict_proba(X), abs=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("low_limit")
def test_self_training_is_left_out_with_a_warning() -> None:
    X, codes, _ = noisy()
    with pytest.warns(UserWarning, match="self-training is left out, since 3 exact GPs"):
        model = SemiGPClassifier(self_training=2).fit(X, codes)
    assert model.self_training_ == 0
