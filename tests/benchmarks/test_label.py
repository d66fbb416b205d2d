"""The benchmark of labelling times what it says it times."""

import json
import math
import mmap
import multiprocessing
import os
import time
from typing import Any

import numpy as np
import pytest

from benchmarks import label as module
from benchmarks.label import Floor, bench_label, fitted
from benchmarks.peers import Budget, _answer, largest_size, sizes
from benchmarks.problems import IMBALANCE, Clusters
from benchmarks.timing import peak_resident_bytes, resident_bytes
from tests.benchmarks.calls import bench, refused

CLUSTERS = Clusters(width=16, classes=4)
needs_proc = pytest.mark.skipif(resident_bytes() is None, reason="memory is read from /proc")


def test_a_record_holds_every_key_with_consistent_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN", 1000)
    stages: list[str] = []
    record = bench_label(
        2500,
        labels=100,
        width=16,
        classes=4,
        peers=False,
        correction_labels=120,
        corrections=2,
        report=stages.append,
    )
    assert {"rows", "rows_per_s", "floor_rows_per_s", "ratio", "peak_bytes"} <= set(record)
    assert (record["rows"], record["labels"], record["width"], record["classes"]) == (
        2500,
        100,
        16,
        4,
    )
    for figures in (record, record["without_variance"]):
        assert figures["ratio"] == pytest.approx(
            figures["floor_rows_per_s"] / figures["rows_per_s"]
        )
        assert math.isfinite(figures["ratio"])
    assert record["max_abs_error"] < 1e-5
    assert record["peers"] is None
    assert record["correction"]["labels"] == 120
    assert 0 < record["correction"]["seconds"] <= record["correction"]["slowest_s"]
    turns = [
        stage.removeprefix("in turns with the bare products: ")
        for stage in stages
        if stage.startswith("in turns")
    ]
    assert turns == ["1,000 of 2,500 rows", "2,000 of 2,500 rows", "2,500 of 2,500 rows"]
    json.dumps(record)


def test_our_answers_are_the_numbers_of_the_bare_products() -> None:
    model = fitted(CLUSTERS, 150)
    floor, rows = Floor(model), CLUSTERS.draw(500)[0]
    answers = model.answer(rows)
    assert floor.difference(rows, answers) < 1e-5
    assert (floor.products(rows, variance=False)[0].argmax(dim=1).numpy() == answers.codes).all()
    assert answers.variance is not None
    assert floor.difference(rows, answers._replace(variance=answers.variance + 0.1)) > 0.09
    assert floor.difference(rows, answers._replace(scores=answers.scores + 0.1)) > 0.09


def test_clusters_are_unit_vectors_with_a_long_tail_and_a_seed() -> None:
    X, codes = CLUSTERS.draw(20_000)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1, atol=1e-5)
    counts = np.bincount(codes)
    assert (np.diff(counts) < 0).all()
    assert 0.5 * IMBALANCE < counts[0] / counts[-1] < 2 * IMBALANCE
    np.testing.assert_array_equal(X, Clusters(width=16, classes=4).draw(20_000)[0])
    assert not np.array_equal(X[:9], CLUSTERS.draw(9, stream=1)[0])
    assert CLUSTERS.draw(3)[1].tolist() == [0, 1, 2]


def test_sizes_double_from_twice_the_labels_and_end_with_all_rows() -> None:
    assert list(sizes(100, 1000)) == [200, 400, 800, 1000]
    assert list(sizes(100, 800)) == [200, 400, 800]
    assert list(sizes(100, 150)) == [150]


@pytest.mark.parametrize(
    ("messages", "budget", "outcome"),
    [
        (["began", 1.5], Budget(), 1.5),
        (["began", "nan"], Budget(), "nan"),
        (["began"], Budget(seconds=0.01), "time"),
        ([], Budget(), "killed"),
    ],
)
def test_a_peer_is_timed_or_stopped(
    messages: list[Any], budget: Budget, outcome: float | str
) -> None:
    ours, theirs = multiprocessing.Pipe()
    for message in messages:
        theirs.send(message)
    if outcome == "killed":
        theirs.close()
    assert _answer(ours, os.getpid(), budget) == outcome


@needs_proc
def test_a_peer_that_holds_too_much_is_stopped() -> None:
    ours, theirs = multiprocessing.Pipe()
    theirs.send("began")
    assert _answer(ours, os.getpid(), Budget(bytes=2**20)) == "memory"


@pytest.mark.slow
def test_a_real_peer_labels_all_rows_in_a_process_of_its_own() -> None:
    before = set(multiprocessing.active_children())  # of other tests
    record = largest_size(
        "label_spreading", CLUSTERS, labels=100, rows=400, budget=Budget(seconds=120)
    )
    assert (record["rows"], record["stopped"], record["stopped_at"]) == (400, None, None)
    assert record["rows_per_s"] == pytest.approx(400 / record["seconds"])
    assert set(multiprocessing.active_children()) <= before


@needs_proc
def test_memory_is_what_the_process_holds_more_at_its_peak() -> None:
    def step() -> None:
        with mmap.mmap(
            -1, 64_000_000
        ) as held:  # pages of its own: an array may get some that are there already
            held[::4096] = bytes([1]) * len(range(0, 64_000_000, 4096))
            time.sleep(0.05)

    peaks = [
        peak_resident_bytes(step) for _ in range(5)
    ]  # the system may take other pages of this process away meanwhile
    assert any(peak is not None and 60e6 < peak < 80e6 for peak in peaks), peaks


def test_the_verb_prints_a_table_or_json() -> None:
    small = (
        "--rows",
        300,
        "--labels",
        30,
        "--width",
        8,
        "--classes",
        3,
        "--correction-labels",
        0,
        "--no-peers",
    )
    done = bench("label", *map(str, small))
    assert done.exit_code == 0, done.output
    assert "300 rows of 8, 30 labels, 3 classes" in done.stdout
    assert "beyond the input" in done.stdout
    done = bench("label", *map(str, small), "--json")
    record = json.loads(done.stdout)
    assert record["rows"] == 300
    assert record["correction"] is None


def test_the_verb_shows_how_the_peers_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: Any, **__: Any) -> dict[str, Any]:
        return {
            "rows": 64,
            "seconds": 1.0,
            "rows_per_s": 64.0,
            "stopped": "memory",
            "stopped_at": 128,
        }

    monkeypatch.setattr(module, "largest_size", ended)
    done = bench(
        "label",
        "--rows",
        "300",
        "--labels",
        "30",
        "--width",
        "8",
        "--classes",
        "3",
        "--correction-labels",
        "40",
    )
    assert done.exit_code == 0, done.output
    assert "label_spreading, 64 rows" in done.stdout
    assert "memory at 128" in done.stdout
    assert "a correction among 40 labels" in " ".join(done.stdout.split())


def test_fewer_labels_than_classes_are_refused() -> None:
    refused("label", "--labels", 5, "--classes", 6, words="6 classes need a labelled row each")
