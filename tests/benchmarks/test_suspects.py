"""The study of wrong labels: what is flipped, how scores are judged, and that cleanlab gets what it
expects.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import suspects
from benchmarks.problems import Pool, load_digits_pool
from benchmarks.suspects import (
    CLEANLAB,
    FED,
    HEADS,
    OURS,
    PROBLEMS,
    Flips,
    cleanlab_scores,
    draw,
    judge,
    summarise,
)
from tests.benchmarks.calls import bench

SMALL = Flips("digits", 0.1)


def test_a_share_of_long_tailed_labels_is_flipped_to_other_classes() -> None:
    pool = load_digits_pool()
    marked = Pool(np.arange(len(pool.codes), dtype=np.float32)[:, None], pool.codes)
    task = draw(SMALL, marked, 5)
    truth = pool.codes[task.X[:, 0].astype(int)]
    assert task.wrong.sum() == round(0.1 * len(task.codes))
    assert ((task.codes != truth) == task.wrong).all()
    counts = np.sort(np.bincount(truth))
    assert (counts[0], counts[-1]) == (HEADS["digits"] // suspects.RATIO, min(HEADS["digits"], 87))
    assert not set(task.X[:, 0]) & set(task.unlabeled[:, 0])


def test_labels_are_200_to_600_and_ten_settings_need_no_files() -> None:
    assert sum(problem.data not in ("cifar10", "mnist") for problem in PROBLEMS) == 10
    assert 200 <= len(draw(SMALL, load_digits_pool(), 0).codes) <= 600


def test_scores_are_judged_by_their_order() -> None:
    wrong = np.array([True, False, True, False])
    assert judge(wrong, np.array([0.9, 0.1, 0.8, 0.3])) == {"auroc": 1.0, "precision_at_k": 1.0}
    assert judge(wrong, np.array([0.9, 0.95, 0.1, 0.3])) == {"auroc": 0.25, "precision_at_k": 0.5}


def test_cleanlab_suspects_a_label_that_probabilities_contradict() -> None:
    pytest.importorskip("cleanlab")
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1, 2], 20)
    probs = np.full((60, 3), 0.05) + 0.85 * np.eye(3)[codes] + 0.01 * rng.random((60, 1))
    codes[7] = 2
    scores = cleanlab_scores(codes, probs / probs.sum(axis=1, keepdims=True))
    assert list(scores) == list(CLEANLAB)
    assert all(score.argmax() == 7 for score in scores.values())


def test_a_study_counts_on_how_many_settings_semigpc_is_at_or_above() -> None:
    def record(problem: str, ours: float, theirs: float) -> dict[str, object]:
        figures = {
            f"{name}, {source}": {"auroc": theirs, "precision_at_k": theirs}
            for source in FED
            for name in CLEANLAB
        }
        return {
            "problem": problem,
            "seed": 0,
            "scores": {OURS: {"auroc": ours, "precision_at_k": 0.5}, **figures},
        }

    summary = summarise([record("a", 0.9, 0.8), record("b", 0.8, 0.8), record("c", 0.7, 0.8)])
    assert (summary["at_or_above"], summary["of"]) == ({"auroc": 2, "precision_at_k": 0}, 3)


@pytest.mark.slow
def test_flipped_digits_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cleanlab")
    monkeypatch.setattr(suspects, "PROBLEMS", (SMALL,))
    out = tmp_path / "s.json"
    done = bench("suspects", "--seeds", "1", "--out", out)
    assert done.exit_code == 0, done.output
    assert "most suspicious" in done.stdout
    (record,) = json.loads(out.read_text())["records"]
    assert record["scores"][OURS]["auroc"] > 0.9
    assert set(record["scores"]) == {
        OURS,
        *(f"{name}, {source}" for source in FED for name in CLEANLAB),
    }
