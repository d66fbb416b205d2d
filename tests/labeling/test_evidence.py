"""Evidence from labels that the model did not see, suspicious labels, and other methods."""

import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.semi_supervised import LabelSpreading

from semigpc.estimator import LeftOutLabels, SemiGPClassifier
from semigpc.estimator.answers import wilson
from semigpc.estimator.fitting import STAYS, assign_folds
from semigpc.labeling import evidence as module
from semigpc.labeling.evidence import (
    PEERS,
    CrossValidation,
    HeldOut,
    Peer,
    accepted,
    balanced_recall,
    compare_peers,
    confused_rows,
    confusions,
    cross_validate,
    find_suspects,
    fit_peer,
    per_class,
    preparation,
    score,
    suspicion,
    thresholds,
    too_few,
    weighted_share,
)
from semigpc.report.labeling_page import write_labeling_report
from semigpc.report.labeling_summary import Method
from tests.report.labeled import make_facts

NAMES = np.array(["ant", "bee", "cat"], dtype=object)


class Problem(NamedTuple):
    x: NDArray[Any]
    labels: NDArray[Any]
    unlabeled: NDArray[Any]

    def fit(self, *, first: int = 0, **parameters: Any) -> SemiGPClassifier:
        """A model of the problem, rows numbered from ``first``."""
        labels = np.concatenate([self.labels, np.full(len(self.unlabeled), None)])
        model = SemiGPClassifier(self_training=0, random_state=0, **parameters)
        rows = first + np.arange(len(labels))
        return model.fit(np.concatenate([self.x, self.unlabeled]), labels, rows=rows)

    def cross_validate(self, model: SemiGPClassifier | None = None) -> CrossValidation:
        return cross_validate(model or self.fit(), self.x, self.labels, self.unlabeled)


def problem(
    counts: tuple[int, ...] = (24, 12, 6), *, apart: float = 6.0, unlabeled: int = 60
) -> Problem:
    """Groups of points; every unlabelled class is equally common, whatever the labels say."""
    rng = np.random.default_rng(0)
    centres = apart * np.eye(3, 4)
    codes = np.repeat(np.arange(len(counts)), counts)
    others = np.arange(unlabeled) % len(counts)
    x = centres[codes] + rng.normal(size=(len(codes), 4))
    rest = (centres[others] + rng.normal(size=(unlabeled, 4))).reshape(unlabeled, 4)
    return Problem(x.astype(np.float32), NAMES[codes], rest.astype(np.float32))


# Cross-validation ---------------------------------------------------------------------------------


def test_classes_that_lie_apart_are_found_again_by_the_model_and_its_peers(tmp_path: Path) -> None:
    given = problem()
    steps: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        steps.append((done, total))

    evidence = cross_validate(given.fit(), *given, progress=progress).evidence
    total = 5 * len(module.COMPARED)
    assert steps == [(done, total) for done in range(1, total + 1)]
    assert evidence["held_out"] == evidence["labels"] == evidence["used"] == 42
    assert evidence["folds"] == 5
    balanced = cast("dict[str, float]", evidence["balanced_accuracy"])
    assert 0.95 < balanced["value"] <= balanced["high"]
    assert balanced["low"] < balanced["value"]
    assert [row["class"] for row in evidence["per_class"]] == NAMES.tolist()
    assert [row["given"] for row in evidence["per_class"]] == [24, 12, 6]
    assert [row["name"] for row in evidence["peers"]] == ["semigpc", *module.COMPARED]
    assert all(row["failed"] is None for row in evidence["peers"])
    assert evidence["preparation"] == "standardised"
    assert json.loads(json.dumps(evidence, allow_nan=False)) == evidence
    facts: Any = make_facts(names=NAMES.tolist(), evidence=evidence)
    page = write_labeling_report(tmp_path / "report.html", facts).read_text()
    assert "Coverage against precision" in page
    assert "42 of 42 given labels were held out in turn" in page


def test_the_chosen_threshold_is_the_models_own_and_confusions_add_up() -> None:
    given = problem(apart=2.0)
    evidence, confused = given.cross_validate(given.fit(abstain=0.8))
    chosen = cast("dict[str, float]", evidence["chosen"])
    assert chosen["threshold"] == pytest.approx(0.8)
    assert chosen["coverage"] < evidence["curve"][0]["coverage"]
    assert chosen["low"] < chosen["precision"] <= chosen["high"]
    accuracy = evidence["accuracy"]["value"]
    assert accuracy is not None
    wrong = round((1 - accuracy) * evidence["held_out"])
    assert sum(pair["count"] for pair in evidence["confusions"]) == wrong > 0
    pairs = {(pair["true"], pair["believed"]) for pair in evidence["confusions"]}
    assert confused.keys() == pairs
    assert all(given.labels[row] == true for (true, _), row in confused.items())


def test_labels_that_mean_nothing_have_evidence_that_says_so() -> None:
    given = problem((20, 20, 20))
    shuffled = given._replace(labels=np.random.default_rng(0).permutation(given.labels))
    value = shuffled.cross_validate().evidence["balanced_accuracy"]["value"]
    assert value is not None
    assert value < 0.6


def test_a_single_label_of_a_class_stays_in_training_and_is_no_suspect() -> None:
    given = problem((20, 12, 1))
    evidence = given.cross_validate().evidence
    assert evidence["never_held_out"] == ["cat"]
    assert evidence["held_out"] == 32
    assert evidence["per_class"][2]["recall"] is None
    assert evidence["suspects"] == []


def test_without_unlabelled_rows_labels_count_the_same() -> None:
    evidence = problem(unlabeled=0).cross_validate().evidence
    assert evidence["weighted"] is False
    first = evidence["curve"][0]
    assert first["coverage"] == pytest.approx(first["accepted"] / 42)


def test_held_out_labels_are_predicted_as_by_a_model_that_never_had_them() -> None:
    given = problem(apart=2.0)
    model = given.fit(scaling="standard", length_scale=3.0, noise_std=0.5, logit_scale=6.0)
    left = model.held_out_
    assert left is not None
    rows = np.concatenate([given.x, given.unlabeled])
    for row in (0, 11, 30, 41):
        kept = given.labels.copy()
        kept[row] = None
        labels = np.concatenate([kept, [None] * len(given.unlabeled)])
        other = SemiGPClassifier(**model.get_params()).fit(rows, labels)
        for name in ("confidence_scale_", "sharpness_", "class_shares_"):  # stay as chosen
            setattr(other, name, getattr(model, name))
        out = given.x[[row]]
        assert other.predict(out)[0] == model.classes_[left.decided[row]]
        assert other.predict_proba(out)[0] == pytest.approx(left.proba[row], abs=1e-5)
        assert other.predict_variance(out)[0] == pytest.approx(left.variance[row], abs=1e-5)


def test_peers_are_compared_on_a_share_of_very_many_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_COMPARED_LABELS", 21)
    evidence = problem().cross_validate().evidence
    assert (evidence["labels"], evidence["used"]) == (42, 21)
    assert evidence["held_out"] == 42, "the model itself is measured on all of them"


def test_a_sentence_says_why_there_are_too_few_labels() -> None:
    one_class, few, enough = (
        too_few(np.array(list(names))) for names in ("a" * 30, "aabbc", "ab" * 5)
    )
    assert one_class.startswith("All labels are of one class")
    assert few.startswith("Only 4 of the 5 given labels could be held out")
    assert enough == ""


# Folds and intervals ------------------------------------------------------------------------------


def test_every_class_is_spread_and_folds_are_equally_large() -> None:
    codes = np.repeat(np.arange(4), (50, 11, 3, 2))
    fold_of = assign_folds(codes, np.arange(len(codes)), 5, seed=1)
    assert np.ptp(np.bincount(fold_of)) <= 1
    for c in range(4):
        assert np.ptp(np.bincount(fold_of[codes == c], minlength=5)) <= 1
    assert (fold_of == assign_folds(codes, np.arange(len(codes)), 5, 1)).all()
    assert (fold_of != assign_folds(codes, np.arange(len(codes)), 5, 2)).any()


def test_the_only_label_of_a_class_is_never_held_out_and_no_class_is_held_out_whole() -> None:
    codes = np.array([0, 0, 1, 2, 2, 2])
    for seed in range(20):
        fold_of = assign_folds(codes, np.arange(len(codes)), 5, seed)
        assert ((fold_of == STAYS) == (codes == 1)).all()
        for fold in np.unique(fold_of[fold_of != STAYS]):
            assert set(codes[fold_of != fold]) == {0, 1, 2}


def test_the_interval_is_wilsons() -> None:
    assert wilson(8, 10) == pytest.approx((0.8, 0.4901625, 0.9433178), abs=1e-6)
    assert wilson(5, 5) == pytest.approx((1, 0.565518, 1), abs=1e-6)
    assert wilson(0, 5).low == pytest.approx(0)
    assert wilson(0, 0) == (None, None, None)


def test_unequal_weights_count_as_fewer_labels() -> None:
    right = np.array([True] * 80 + [False] * 20)
    plain = np.array(wilson(80, 100), dtype=np.float64)
    assert weighted_share(right, np.ones(100)) == pytest.approx(plain)
    weights = np.where(np.arange(100) % 2 == 0, 1.0, 9.0)
    value, low, high = np.array(weighted_share(right, weights), dtype=np.float64)
    assert value == pytest.approx(0.8)
    assert low < plain[1]
    assert high > plain[2]


def test_balanced_accuracy_counts_classes_and_not_labels() -> None:
    codes = np.array([0] * 8 + [1] * 2)
    scores = score(codes, np.zeros(10, dtype=np.int64), np.arange(10) % 2)
    assert (scores["accuracy"], scores["balanced_accuracy"]) == pytest.approx((0.8, 0.5))
    assert scores["accuracy_std"] == pytest.approx(0)


# Figures ------------------------------------------------------------------------------------------


def held(
    codes: list[int], predicted: list[int], confidence: list[float], **changes: Any
) -> HeldOut:
    rows = np.arange(len(codes))
    given = {"codes": codes, "predicted": predicted, "confidence": confidence}
    arrays: dict[str, Any] = {name: np.array(values) for name, values in given.items()}
    plain = {"open": rows < 0, "folds": rows % 2, "weights": np.ones(len(rows))}
    return HeldOut(rows=rows, **arrays | plain | changes)


def test_a_threshold_accepts_what_is_confident_and_no_outlier() -> None:
    is_open = np.array([False, False, False, True])
    some = held([0, 0, 1, 1], [0, 1, 1, 1], [0.9, 0.5, 0.7, 0.95], open=is_open)
    point = accepted(some, np.full(3, 0.6))
    assert point["accepted"] == 2
    assert (point["coverage"], point["precision"]) == pytest.approx((0.5, 1))
    assert accepted(some, np.full(3, 0.99))["precision"] is None


def test_precision_counts_classes_by_their_believed_share() -> None:
    some = held([0, 0, 0, 1], [0, 0, 0, 0], [0.8] * 4, weights=np.array([0.5, 0.5, 0.5, 2.5]))
    assert accepted(some, np.zeros(3))["precision"] == pytest.approx(1.5 / 4)


def test_the_curve_goes_from_everything_to_little() -> None:
    confidence = np.random.default_rng(0).random(400).tolist()
    some = held([0] * 400, [0] * 400, confidence)
    at = thresholds(some)
    coverage = [accepted(some, np.full(3, t))["coverage"] for t in at]
    assert 40 <= len(at) <= 50
    assert coverage[0] == pytest.approx(1)
    assert coverage[-1] < 0.05
    assert (np.diff(coverage) < 0).all()


def test_confused_pairs_have_their_share_of_the_class_and_a_most_confident_row() -> None:
    some = held([0, 0, 0, 0, 1, 2], [1, 1, 0, 0, 0, 2], [0.5, 0.4, 0.9, 0.9, 0.3, 0.9])
    names = NAMES.astype(str)
    assert confusions(some, names) == [
        {"true": "ant", "believed": "bee", "count": 2, "share": 0.5},
        {"true": "bee", "believed": "ant", "count": 1, "share": 1.0},
    ]
    assert confused_rows(some, names) == {("ant", "bee"): 0, ("bee", "ant"): 4}


def test_a_class_that_was_never_held_out_has_no_recall() -> None:
    some = held([0, 0, 1], [0, 1, 1], [0.5] * 3)
    ant, bee, cat = per_class(some, np.array([0, 0, 1, 2]), NAMES.astype(str))
    assert (ant["recall"], bee["precision"]) == pytest.approx((0.5, 0.5))
    assert (cat["recall"], cat["given"]) == (None, 1)


def test_the_interval_of_balanced_accuracy_is_wider_with_a_rare_class() -> None:
    even = balanced_recall(held([0] * 50 + [1] * 50, [0] * 50 + [1] * 50, [0.5] * 100))
    rare = balanced_recall(held([0] * 98 + [1] * 2, [0] * 98 + [1] * 2, [0.5] * 100))
    assert even.value == rare.value == 1
    assert cast("float", rare.low) < cast("float", even.low)


# Suspicious labels --------------------------------------------------------------------------------


def test_wrong_labels_are_suspected_by_row_number_and_right_ones_are_not() -> None:
    given = problem((30, 20, 10), apart=10.0)
    labels = given.labels.copy()
    labels[[3, 35]] = "cat", "ant"
    suspects = find_suspects(given._replace(labels=labels).fit(first=1000))
    by_row = {suspect["row"]: suspect for suspect in suspects}
    assert by_row.keys() == {1003, 1035}
    assert (by_row[1003]["given"], by_row[1003]["believed"]) == ("cat", "ant")
    odds = [suspect["p_believed"] / suspect["p_given"] for suspect in suspects]
    assert odds == sorted(odds, reverse=True)
    assert min(odds) > 1
    assert find_suspects(given.fit()) == []


@pytest.mark.parametrize(
    ("codes", "proba", "expected"),
    [
        ([0] * 8 + [1] * 2, [0.5, 0.5], [0.2] * 8 + [0.8] * 2),  # small classes first
        ([0, 0, 1, 1, 2, 2, 3], [0.1, 0.3, 0.6, 0], [6 / 7] * 2 + [6 / 9] * 2 + [1 / 3] * 2 + [-1]),
    ],
)
def test_suspicion_compares_the_given_class_with_the_most_probable_other_one(
    codes: list[int], proba: list[float], expected: list[float]
) -> None:
    n = len(codes)
    rows = np.tile(np.array(proba, dtype=np.float32), (n, 1))
    alone: Any = {"rows": np.arange(n), "groups": np.arange(n)}
    unused: Any = dict.fromkeys(("decided", "variance"), np.zeros(n))
    left = LeftOutLabels(codes=np.array(codes), proba=rows, **alone, **unused)
    assert suspicion(left) == pytest.approx(np.array(expected))


# Other methods ------------------------------------------------------------------------------------


def compared(given: Problem, *, folds: int) -> list[Method]:
    codes = np.searchsorted(NAMES, given.labels)
    rows = np.arange(len(codes))
    fold_of = assign_folds(codes, rows, folds, 0)
    return compare_peers(given.x, codes, given.unlabeled, fold_of, counted=rows >= 0)


def test_a_peer_that_fails_is_reported_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("out of\n luck")

    peers = {"bad": Peer("bad", "Bad", broken), "knn1": PEERS["knn1"]}
    monkeypatch.setattr(module, "COMPARED", ("bad", "knn1"))
    monkeypatch.setattr(module, "PEERS", peers)
    bad, good = compared(problem(), folds=4)
    assert bad["failed"] == "RuntimeError: out of luck"
    assert bad["accuracy"] is bad["balanced_accuracy_std"] is None
    assert good["failed"] is None


def test_too_few_rows_for_a_peer_are_its_failure_and_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "COMPARED", tuple(PEERS))
    methods = compared(problem((3, 3), unlabeled=0), folds=3)
    by_name = {method["name"]: method for method in methods}
    assert "n_neighbors" in (by_name["label_spreading"]["failed"] or "")
    assert by_name["knn5"]["failed"] is None
    assert by_name["self_training"]["remarks"] == ["y contains no unlabeled samples"]


@pytest.mark.parametrize("name", ["knn5", "class_mean", "logistic_balanced"])
def test_rotating_wide_rows_changes_no_answer(name: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 200))
    queries = rng.normal(size=(50, 200))
    codes = np.arange(30) % 3
    scaled, asked = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, queries))
    plain = PEERS[name].build(len(x), True).fit(scaled, codes)
    assert (fit_peer(PEERS[name], x, codes, queries).predict(queries) == plain.predict(asked)).all()


def test_wide_rows_are_taken_for_embeddings() -> None:
    assert preparation(64) == "standardised"
    assert preparation(384) == "unit"


def two_groups(
    width: int, *, scale: float = 1.0
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]:
    rng = np.random.default_rng(0)
    codes = np.repeat([2, 5], 12)
    x = rng.normal(size=(24, width)) + 3.0 * (codes == 5)[:, None]
    unlabeled = rng.normal(size=(40, width)) + 3.0 * (np.arange(40) % 2)[:, None]
    x[:, 0], unlabeled[:, 0] = x[:, 0] * scale, unlabeled[:, 0] * scale
    return x, codes, unlabeled


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
@pytest.mark.parametrize("width", [4, 130])
def test_a_peer_tells_two_groups_apart_with_codes_of_its_own(peer: Peer, width: int) -> None:
    x, codes, unlabeled = two_groups(width)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = fit_peer(peer, x, codes, unlabeled)
        predicted = fitted.predict(x)
    assert predicted.dtype == np.int64
    assert (predicted == codes).mean() > 0.9


def test_columns_of_a_table_count_the_same_whatever_their_units() -> None:
    x, codes, unlabeled = two_groups(4)
    rng = np.random.default_rng(1)
    tried = rng.normal(size=(50, 4)) + 1.5
    noises = [rng.normal(size=(len(rows), 1)) for rows in (x, unlabeled, tried)]
    answers = []
    for unit in (1, 1000):
        columns = zip((x, unlabeled, tried), noises, strict=True)
        given, others, asked = (np.hstack([rows, unit * noise]) for rows, noise in columns)
        answers.append(fit_peer(PEERS["knn5"], given, codes, others).predict(asked))
    assert (answers[0] == answers[1]).all()


def test_the_length_of_an_embedding_does_not_matter() -> None:
    x, codes, unlabeled = two_groups(130)
    fitted = fit_peer(PEERS["class_mean"], x, codes, unlabeled)
    assert (fitted.predict(x) == fitted.predict(50 * x)).all()
    assert PEERS["logistic"].build(24, True).C == 10
    assert PEERS["logistic"].build(24, False).C == 1


def test_rows_that_no_label_reaches_are_counted() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(8, 2)), 5 + rng.normal(size=(8, 2))])
    codes = np.repeat([0, 1], 8)
    far = 500 + rng.normal(size=(30, 2))
    fitted = fit_peer(PEERS["label_spreading"], x, codes, far)
    assert isinstance(fitted.classifier, LabelSpreading)
    assert fitted.predict(500 + rng.normal(size=(4, 2))).tolist() == [0] * 4
    assert "no label reaches 4 of 4 rows: they get the first class" in fitted.remarks
