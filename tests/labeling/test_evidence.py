"""Evidence comes from labels that the judging model did not see, and wrong labels are found among
the given ones.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from semigpc.estimator import LeftOutLabels, SemiGPClassifier
from semigpc.labeling import evidence as gathering
from semigpc.labeling.evidence import find_suspects, gather_evidence, suspicion, too_few
from semigpc.report.labeling_page import write_labeling_report

NAMES = np.array(["ant", "bee", "cat"], dtype=object)


class Problem(NamedTuple):
    x: NDArray[Any]
    labels: NDArray[Any]
    unlabeled: NDArray[Any]


def problem(
    counts: tuple[int, ...] = (24, 12, 6), *, apart: float = 6.0, unlabeled: int = 60, seed: int = 0
) -> Problem:
    """Groups of points; every unlabelled class is equally common, whatever the labels say."""
    rng = np.random.default_rng(seed)
    centres = apart * np.eye(3, 4)
    codes = np.repeat(np.arange(len(counts)), counts)
    others = np.arange(unlabeled) % len(counts)
    return Problem(
        (centres[codes] + rng.normal(size=(len(codes), 4))).astype(np.float32),
        NAMES[codes],
        (centres[others] + rng.normal(size=(unlabeled, 4)))
        .astype(np.float32)
        .reshape(unlabeled, 4),
    )


def fitted(given: Problem, *, first: int = 0, **parameters: Any) -> SemiGPClassifier:
    """A model of the problem, rows numbered from ``first``."""
    labels = np.concatenate([given.labels, np.full(len(given.unlabeled), None)])
    rows = first + np.arange(len(labels))
    model = SemiGPClassifier(self_training=0, random_state=0, **parameters)
    return model.fit(np.concatenate([given.x, given.unlabeled]), labels, rows=rows)


class Gathered(NamedTuple):
    found: dict[str, Any]
    steps: list[tuple[int, int]]


@pytest.fixture(scope="module")
def easy() -> Gathered:
    given, steps = problem(), []
    found = gather_evidence(
        fitted(given),
        given.x,
        given.labels,
        given.unlabeled,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert found is not None
    return Gathered(found, steps)


def test_classes_that_lie_apart_are_found_again(easy: Gathered) -> None:
    found = easy.found
    assert found["held_out"] == found["labels"] == found["used"] == 42
    assert found["folds"] == 5
    assert found["hyper_parameters"] == "of all labels"
    assert found["balanced_accuracy"]["value"] > 0.95
    assert (
        found["balanced_accuracy"]["low"]
        < found["balanced_accuracy"]["value"]
        <= found["balanced_accuracy"]["high"]
    )
    assert [row["class"] for row in found["per_class"]] == NAMES.tolist()
    assert [row["given"] for row in found["per_class"]] == [24, 12, 6]


@pytest.mark.slow
def test_evidence_is_plain_json_that_the_page_can_draw(easy: Gathered, tmp_path: Path) -> None:
    found = json.loads(json.dumps(easy.found, allow_nan=False))
    assert found == easy.found
    facts = {
        "title": "t",
        "data": "d.npz",
        "classes": NAMES.tolist(),
        "given": [24, 12, 6],
        "believed": [0.3, 0.3, 0.4],
        "pseudo": [20, 20, 20],
        "statuses": {"labelled": 42, "pseudo": 60, "abstained": 0, "outlier": 0},
        "threshold": 0.0,
        "evidence": found,
    }
    page = write_labeling_report(tmp_path / "report.html", facts).read_text(encoding="utf-8")
    assert "Coverage against precision" in page
    assert "42 of 42 given labels were held out in turn" in page


def test_the_model_and_every_peer_are_judged_on_the_same_labels(easy: Gathered) -> None:
    rows = easy.found["peers"]
    assert [row["name"] for row in rows] == ["semigpc", *gathering.COMPARED]
    assert all(row["failed"] is None for row in rows)
    assert easy.found["preparation"] == "standardised"


def test_progress_is_told_after_each_fold_of_each_peer(easy: Gathered) -> None:
    total = 5 * len(gathering.COMPARED)
    assert easy.steps == [(done, total) for done in range(1, total + 1)]


def test_the_chosen_threshold_is_the_models_own() -> None:
    given = problem(apart=2.0)
    found = gather_evidence(fitted(given, abstain=0.8), given.x, given.labels, given.unlabeled)
    assert found is not None
    chosen = found["chosen"]
    assert chosen["threshold"] == pytest.approx(0.8)
    assert chosen["coverage"] < found["curve"][0]["coverage"]
    assert chosen["low"] < chosen["precision"] <= chosen["high"]
    assert found["confusions"]
    assert sum(pair["count"] for pair in found["confusions"]) == round(
        (1 - found["accuracy"]["value"]) * found["held_out"]
    )


def test_labels_that_mean_nothing_have_evidence_that_says_so() -> None:
    given = problem((20, 20, 20))
    shuffled = given._replace(labels=np.random.default_rng(0).permutation(given.labels))
    found = gather_evidence(fitted(shuffled), shuffled.x, shuffled.labels, shuffled.unlabeled)
    assert found is not None
    assert found["balanced_accuracy"]["value"] < 0.6


def test_a_single_label_of_a_class_stays_in_training() -> None:
    given = problem((20, 12, 1))
    found = gather_evidence(fitted(given), given.x, given.labels, given.unlabeled)
    assert found is not None
    assert found["never_held_out"] == ["cat"]
    assert found["held_out"] == 32
    assert found["per_class"][2]["recall"] is None


def test_without_unlabelled_rows_labels_count_the_same() -> None:
    given = problem(unlabeled=0)
    found = gather_evidence(fitted(given), given.x, given.labels, given.unlabeled)
    assert found is not None
    assert found["weighted"] is False
    assert found["curve"][0]["coverage"] == pytest.approx(found["curve"][0]["accepted"] / 42)


def test_held_out_labels_are_predicted_as_by_a_model_that_never_had_them() -> None:
    given = problem(apart=2.0)
    model = fitted(given, scaling="standard", length_scale=3.0, noise_std=0.5, logit_scale=6.0)
    rows = np.concatenate([given.x, given.unlabeled])
    folds = np.arange(len(given.labels)) % 4
    left = model.leave_one_out(folds)
    for fold in range(4):
        kept = np.where(folds == fold, np.array(None), given.labels)
        other = SemiGPClassifier(**model.get_params()).fit(
            rows, np.concatenate([kept, [None] * len(given.unlabeled)])
        )
        out = given.x[folds == fold]
        assert (other.predict(out) == model.classes_[left.decided[folds == fold]]).all()
        assert other.predict_proba(out) == pytest.approx(left.proba[folds == fold], abs=1e-5)
        assert other.predict_variance(out) == pytest.approx(left.variance[folds == fold], abs=1e-5)


def test_peers_are_compared_on_a_share_of_very_many_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_LABELS", 21)
    given = problem()
    found = gather_evidence(fitted(given), given.x, given.labels, given.unlabeled)
    assert found is not None
    assert found["labels"] == 42
    assert found["used"] == 21
    assert found["held_out"] == 42, "the model itself is judged on all of them"


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a"] * 30, "All labels are of one class"),
        (
            ["a", "a", "b", "b", "c"],
            "Only 4 of the 5 given labels could be held out, as each class must keep one; it takes 10",
        ),
    ],
)
def test_too_few_labels_make_no_evidence_and_a_sentence_says_why(
    labels: list[str], words: str
) -> None:
    given = np.array(labels, dtype=object)
    assert too_few(given).startswith(words)
    x = np.zeros((len(labels), 2), dtype=np.float32)
    assert gather_evidence(SemiGPClassifier(), x, given, x[:0]) is None
    assert too_few(np.array(["a", "b"] * 5, dtype=object)) == ""


def test_wrong_labels_are_suspected_by_row_number_and_right_ones_are_not() -> None:
    given = problem((30, 20, 10), apart=10.0)
    labels = given.labels.copy()
    labels[[3, 35]] = "cat", "ant"
    model = fitted(given._replace(labels=labels), first=1000)
    found = find_suspects(model)
    assert {row["row"] for row in found} == {1003, 1035}
    by_row = {row["row"]: row for row in found}
    assert by_row[1003]["given"] == "cat"
    assert by_row[1003]["believed"] == "ant"
    assert by_row[1003]["p_believed"] > by_row[1003]["p_given"]
    odds = [row["p_believed"] / row["p_given"] for row in found]
    assert odds == sorted(odds, reverse=True)
    assert find_suspects(fitted(given)) == []


def left_out(codes: list[int], proba: list[float]) -> LeftOutLabels:
    """Labels that all get the same probabilities from the others."""
    n = len(codes)
    decided, zeros = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.float32)
    return LeftOutLabels(
        rows=np.arange(n),
        codes=np.array(codes),
        proba=np.tile(np.array(proba, dtype=np.float32), (n, 1)),
        decided=decided,
        confidence=zeros,
        likeliest=decided,
        variance=zeros,
    )


def test_a_label_of_a_small_class_is_suspected_before_one_of_a_large_class() -> None:
    assert suspicion(left_out([0] * 8 + [1] * 2, [0.5, 0.5])) == pytest.approx(
        np.repeat([0.2, 0.8], (8, 2))
    )


def test_suspicion_compares_the_given_class_with_the_most_probable_other_one() -> None:
    found = suspicion(left_out([0, 0, 1, 1, 2, 2, 3], [0.1, 0.3, 0.6, 0.0]))
    assert found[::2] == pytest.approx([6 / 7, 6 / 9, 3 / 9, -1])


def test_the_only_label_of_a_class_is_no_suspect() -> None:
    given = problem((20, 12, 1))
    assert find_suspects(fitted(given)) == []
