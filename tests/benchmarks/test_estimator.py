"""The study of the estimator: its problems, and that it goes on where it was."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.estimator import OURS, balanced_accuracy, compare_on, summarise
from benchmarks.problems import Pool, Problem, cut, load_digits_pool, load_segments_pool
from benchmarks.tables import run_study
from semigpc.estimator.peers import PEERS

SMALL = Problem("digits", "B", 5, 4, unlabeled=20)


def test_a_long_tail_has_the_ratio_that_is_asked_for() -> None:
    pool = load_digits_pool()
    for setting in ("A", "B"):
        task = cut(Problem("digits", setting, 20, 30, unlabeled=80), pool, seed=3)
        labels, rest = (np.sort(np.bincount(task.truth[rows], minlength=10)) for rows in (task.codes >= 0, task.codes < 0))
        assert rest[-1] / rest[0] == pytest.approx(20, rel=0.05)
        assert (labels[0], labels[-1]) == ((1, 30) if setting == "A" else (30, 30))
        assert (task.codes[task.codes >= 0] == task.truth[task.codes >= 0]).all()


def test_nothing_that_is_judged_by_was_seen() -> None:
    pool = load_digits_pool()
    task = cut(SMALL, Pool(np.arange(len(pool.codes), dtype=np.float32)[:, None], pool.codes), seed=0)
    assert not set(task.X.ravel()) & set(task.X_test.ravel())
    assert np.bincount(task.truth_test).min() > 50


def test_seeds_differ_and_repeat() -> None:
    pool = load_digits_pool()
    first, again, other = (cut(SMALL, pool, seed).X for seed in (0, 0, 1))
    assert (first == again).all()
    assert not np.array_equal(first, other)


def test_segments_are_seven_classes_of_330_patches() -> None:
    pool = load_segments_pool()
    assert pool.X.shape == (2310, 18)
    assert (np.bincount(pool.codes) == 330).all()


def test_balanced_accuracy_counts_classes_and_not_rows() -> None:
    assert balanced_accuracy(np.array([0, 0, 0, 1]), np.array([0, 0, 0, 0])) == 0.5


@pytest.mark.slow
def test_a_study_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    loaded: list[str] = []

    def load() -> Pool:
        loaded.append("digits")
        return load_digits_pool()

    run_study([SMALL], {"digits": load}, 1, out, measure=compare_on, summarise=summarise, advance=lambda _: None)
    records = run_study([SMALL], {"digits": load}, 2, out, measure=compare_on, summarise=summarise, advance=lambda _: None)
    assert [record["seed"] for record in records] == [0, 1]
    assert json.loads(out.read_text())["records"] == records
    assert (
        run_study([SMALL], {}, 2, out, measure=compare_on, summarise=summarise, advance=lambda _: None) == records
    )  # all is there, nothing is loaded
    assert loaded == ["digits", "digits"]
    assert set(records[0]["methods"]) == {OURS, *PEERS}
    summary = summarise(records)
    best = max(value for name, value in summary["overall"].items() if name != OURS)
    assert summary["ahead_of_best_peer"] == pytest.approx(summary["overall"][OURS] - best)
    assert summary["problems"][SMALL.name]["seeds"] == 2
