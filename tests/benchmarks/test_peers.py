"""What semigpc is compared with computes what it is said to, and clocks measure what they say."""

import mmap
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from sklearn.semi_supervised import LabelSpreading

from benchmarks.label import Floor, fitted
from benchmarks.peers import (
    GPYTORCH_INSTALLED,
    TUNED_PEERS,
    Budget,
    Codes,
    Diffusion,
    Learn,
    Points,
    Predict,
    Problem,
    Rows,
    TunedPeer,
    _answer,
    balanced_accuracy,
    fit_tuned,
    largest_size,
    peers,
    sizes,
)
from benchmarks.problems import Clusters
from benchmarks.references import posterior
from benchmarks.suspects import CLEANLAB, cleanlab_scores
from benchmarks.timing import (
    peak_extra_bytes,
    peak_resident_bytes,
    resident_bytes,
    time_in_turns,
)
from benchmarks.update import PEERS, bench_update, embedded_stream
from semigpc.gp import RBF
from tests.gp.streams import clusters

N_CLASSES = 3
CLUSTERS = Clusters(width=16, classes=4)
MEGABYTE = 1_000_000
needs_proc = pytest.mark.skipif(resident_bytes() is None, reason="memory is read from /proc")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning"
)


class Clouds(NamedTuple):
    """12, 5 and 2 labelled rows of a class, unlabelled rows, and rows to test on."""

    labeled: Rows
    codes: NDArray[np.int64]
    unlabeled: Rows
    test: Rows
    truth: NDArray[np.int64]


def clouds(seed: int = 0, width: int = 160) -> Clouds:
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(N_CLASSES, width))

    def draw(counts: list[int]) -> tuple[Rows, NDArray[np.int64]]:
        codes = np.repeat(np.arange(N_CLASSES), counts)
        return means[codes] + 0.9 * rng.normal(size=(len(codes), width)), codes

    labeled, codes = draw([12, 5, 2])
    unlabeled, _ = draw([30, 15, 6])
    return Clouds(labeled, codes, unlabeled, *draw([20, 20, 20]))


def slow_diffusion(data: Clouds, k: int) -> NDArray[np.int64]:
    """The equation of the docstring, entry by entry."""
    rows = np.concatenate([data.labeled, data.unlabeled])
    rows = rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    n = len(rows)
    one_way = np.zeros((n, n))
    for i in range(n):
        cosines = rows @ rows[i]
        cosines[i] = -2
        for j in np.argsort(-cosines)[:k]:
            one_way[i, j] = max(0, cosines[j]) ** 3
    W = one_way + one_way.T
    degrees = W.sum(axis=1)
    S = np.array([[W[i, j] / np.sqrt(degrees[i] * degrees[j]) for j in range(n)] for i in range(n)])
    Y = np.zeros((n, N_CLASSES))
    for i, c in enumerate(data.codes):
        Y[i, c] = 1 / (data.codes == c).sum()
    Z = np.linalg.inv(np.eye(n) - 0.99 * S) @ Y
    Z /= Z.sum(axis=1, keepdims=True)
    answers = []
    for row in data.test:
        cosines = rows @ (row / np.sqrt((row**2).sum()))
        nearest = np.argsort(-cosines)[:k]
        answers.append(int(sum(max(0, cosines[j]) ** 3 * Z[j] for j in nearest).argmax()))
    return np.array(answers)


@pytest.mark.parametrize(("seed", "dense"), [(0, 0), (0, 1000), (1, 0), (2, 1000)])
def test_diffusion_is_the_dense_solve(seed: int, dense: int) -> None:
    data = clouds(seed)
    rows = np.concatenate([data.labeled, data.unlabeled])
    predict = Diffusion(rows, neighbours=6, dense=dense).learn(data.codes)
    assert (predict(data.test) == slow_diffusion(data, 6)).all()


@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.TREES", 10)


@pytest.mark.slow
@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("name", TUNED_PEERS)
def test_a_tuned_peer_finds_classes_under_a_scaling_that_it_chose(name: str) -> None:
    data = clouds(width=12)
    rng = np.random.default_rng(9)
    labeled, unlabeled, test = (
        np.append(x, 1e4 * rng.normal(size=(len(x), 1)), axis=1)
        for x in (data.labeled, data.unlabeled, data.test)
    )
    predict, chosen = fit_tuned(TUNED_PEERS[name], labeled, data.codes, unlabeled, seed=0)
    if "standard" in TUNED_PEERS[name].scalings:
        assert chosen["scaling"] in ("standard", "rank"), "one column is loud noise"
    assert chosen["parameter"] in TUNED_PEERS[name].grid
    assert balanced_accuracy(data.truth, predict(test)) > 0.5


@pytest.mark.slow
@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("name", TUNED_PEERS)
def test_a_tuned_peer_is_fitted_to_classes_of_one_label(name: str) -> None:
    data = clouds(width=4)
    kept = [*range(6), 12, 17]  # of the first class six labels, of the others one each
    predict, _ = fit_tuned(
        TUNED_PEERS[name], data.labeled[kept], data.codes[kept], data.unlabeled, seed=0
    )
    assert set(predict(data.test)) <= {0, 1, 2}


def test_a_peer_is_left_out_where_it_takes_too_long() -> None:
    codes = np.arange(60) % 12
    sizes: dict[str, Any] = {"most_labels": 60, "most_classes": 12, "most_columns": 5}
    for name, most in sizes.items():
        for limit, suits in ((most, True), (most - 1, False)):
            peer = TunedPeer("some", TUNED_PEERS["knn"].prepare, **{name: limit})
            assert peer.suits(np.zeros((60, 5)), codes) == suits
    assert not TUNED_PEERS["random_forest"].suits(np.zeros((60, 128)), codes)


def test_a_parameter_is_chosen_by_labels_that_are_held_out() -> None:
    asked: list[tuple[float, int]] = []

    def prepare(_: Points, right: float) -> Learn:
        def learn(codes: Codes) -> Predict:
            asked.append((right, int((codes < 0).sum())))
            return lambda rows: np.where(
                np.arange(len(rows)) < right * len(rows), rows[:, 0] - 2, -1
            ).astype(np.int64)

        return learn

    codes = np.repeat([0, 1], 10)
    X = codes[:, None] + np.float32(2)
    peer = TunedPeer("by the first column", prepare, (0.0, 1.0, 0.5))
    _, chosen = fit_tuned(peer, X, codes, X[:0], seed=0)
    assert (chosen["parameter"], chosen["score"]) == (1.0, 1.0)
    assert chosen["scaling"] == "none", "the only scaling that keeps the column"
    assert {held_out for _, held_out in asked[:-1]} == {4}
    assert asked[-1] == (1.0, 0)


def test_label_spreading_without_a_width_is_scikit_learns_knn_kernel() -> None:
    data = clouds(width=6)
    points = Points(data.labeled, data.unlabeled)
    both = np.concatenate([data.codes, np.full(len(data.unlabeled), -1)])
    spreading = LabelSpreading(kernel="knn", n_neighbors=7, alpha=0.2, max_iter=100)
    theirs = spreading.fit(points.all, both).predict(data.test)
    ours = TUNED_PEERS["label_spreading"].prepare(points, (7, 0.0, 0.2))(data.codes)
    assert (ours(data.test) == theirs).mean() > 0.95


def test_cleanlab_suspects_a_label_that_probabilities_contradict() -> None:
    pytest.importorskip("cleanlab")
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1, 2], 20)
    probs = np.full((60, 3), 0.05) + 0.85 * np.eye(3)[codes] + 0.01 * rng.random((60, 1))
    codes[7] = 2
    scores = cleanlab_scores(codes, probs / probs.sum(axis=1, keepdims=True))
    assert list(scores) == list(CLEANLAB)
    assert all(score.argmax() == 7 for score in scores.values())


# Peers of one update


def test_every_peer_computes_the_same_gp(generator: torch.Generator) -> None:
    draw = clusters(generator, dtype=torch.float32)
    features, targets = draw(60)
    problem = Problem(features, targets, *draw(8), RBF(length_scale=0.5), 0.3)
    queries = problem.new_features
    now = torch.cat([features[8:], queries])
    both = torch.cat([features, queries])

    def slow_mean(rows: torch.Tensor, first: int) -> torch.Tensor:
        values = torch.cat([targets[first:], problem.new_targets])[: len(rows)]
        return posterior(queries, rows, values, problem.kernel, 0.3)[0]

    before = slow_mean(features, 0)
    old_weights = ("inverse_s", "cholesky_inverse_s", "cholesky_solve_s")
    timed = set()
    for name, step in peers(problem):
        timed.add(name)
        answer: Any = step()
        if name in old_weights:
            pair = (problem.kernel(queries, features) @ answer, before)
        elif name == "paper_rule_s":
            pair = (problem.kernel(queries, now) @ answer, slow_mean(now, 8))
        elif name == "sklearn_s":
            pair = (torch.from_numpy(answer.predict(queries.numpy())).float(), before)
        elif name == "gpytorch_refit_s":
            pair = (answer, before[:, 0])
        else:
            assert name == "gpytorch_fantasy_s"
            with torch.no_grad():
                pair = (answer(queries).mean, slow_mean(both, 0)[:, 0])
        torch.testing.assert_close(*pair, rtol=0, atol=1e-4)
    assert timed == {name for name in PEERS if GPYTORCH_INSTALLED or "gpytorch" not in name}


def test_rows_may_come_from_a_table_of_embeddings(
    tmp_path: Path, generator: torch.Generator
) -> None:
    path = tmp_path / "rows.parquet"
    names = [f"{'cat' if row % 3 else 'dog'}/{row}.jpg" for row in range(90)]
    embeddings = (5 + torch.randn(90, 8, generator=generator)).tolist()
    pq.write_table(pa.table({"file_name": names, "embedding": embeddings}), path)
    stream = embedded_stream(path)
    assert stream.targets.sum(dim=0).tolist() == [60, 30]
    assert (stream.features.norm(dim=1) - 1).abs().max() < 1e-6
    assert stream.features.mean(dim=0).abs().max() < 0.2, "centred before"
    record: dict[str, Any] = dict(bench_update(80, stream, steps=3, peers_too=False))
    assert (record["rows"], record["size"], record["inverse_s"]) == ("rows", 80, None)
    assert record["max_abs_error"] < 1e-9


# Peers of labelling


def test_our_answers_are_the_numbers_of_the_bare_products() -> None:
    model = fitted(CLUSTERS, 150)
    floor = Floor(model)
    rows, _ = CLUSTERS.draw(500)
    answers = model.answer(rows)
    assert floor.difference(rows, answers) < 1e-5
    assert answers.variance is not None
    assert floor.difference(rows, answers._replace(variance=answers.variance + 0.1)) > 0.09
    assert floor.difference(rows, answers._replace(scores=answers.scores + 0.1)) > 0.09


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
        pytest.param(["began"], Budget(bytes=2**20), "memory", marks=needs_proc),
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


@pytest.mark.nightly
def test_a_real_peer_labels_all_rows_in_a_process_of_its_own() -> None:
    before = set(multiprocessing.active_children())  # of other tests
    budget = Budget(seconds=120)
    record = largest_size("label_spreading", CLUSTERS, labels=100, rows=400, budget=budget)
    assert (record["rows"], record["stopped"], record["stopped_at"]) == (400, None, None)
    assert record["rows_per_s"] == pytest.approx(400 / record["seconds"])
    assert set(multiprocessing.active_children()) <= before


# Clocks


def test_contenders_take_turns_and_a_slow_one_is_repeated_less() -> None:
    order: list[str] = []

    def slow() -> None:
        order.append("slow")
        time.sleep(0.05)

    contenders = {"slow": slow, "fast": lambda: order.append("fast")}
    seconds = time_in_turns(contenders, repetitions=4, budget_s=0.08)
    assert order[:4] == ["slow", "fast", "slow", "fast"]
    assert len(seconds["fast"]) == 4
    assert len(seconds["slow"]) == 2
    assert min(seconds["slow"]) >= 0.05


def test_memory_counts_what_is_held_at_once() -> None:
    x = torch.zeros(1000, 1000)

    def step() -> None:
        y = x + 1  # 4 MB
        z = y * 2  # 4 MB more
        del y, z
        (x + 2).sum()  # 4 MB again

    assert 8 * MEGABYTE <= peak_extra_bytes(step) < 8.1 * MEGABYTE


@needs_proc
def test_memory_is_what_the_process_holds_more_at_its_peak() -> None:
    def step() -> None:
        # Pages of its own: an array may get some that are there already.
        with mmap.mmap(-1, 64 * MEGABYTE) as pages:
            pages[::4096] = bytes([1]) * len(range(0, 64 * MEGABYTE, 4096))
            time.sleep(0.05)

    # The system may take other pages of this process away meanwhile.
    peaks = [peak_resident_bytes(step) for _ in range(5)]
    assert any(peak is not None and 60 < peak / MEGABYTE < 80 for peak in peaks), peaks
