"""The benchmark times what it says it times."""

import math
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.peers import GPYTORCH_INSTALLED, Problem, peers
from benchmarks.references import posterior
from benchmarks.timing import peak_extra_bytes, time_in_turns
from benchmarks.update import PEERS, bench_update, embedded_stream, generated_stream
from semigpc.gp import RBF
from tests.gp.streams import clusters

KEYS = [
    "size",
    "batch",
    "classes",
    "ours_s",
    "floor_s",
    "inverse_s",
    "cholesky_solve_s",
    "paper_rule_s",
    "sklearn_s",
    "gpytorch_refit_s",
    "gpytorch_fantasy_s",
    "ratio_floor",
    "ratio_inverse",
    "ratio_cholesky_solve",
    "ratio_paper_rule",
    "ratio_sklearn",
    "ratio_gpytorch_refit",
    "ratio_gpytorch_fantasy",
    "peak_bytes",
    "max_abs_error",
]
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning"
)


def test_a_record_holds_every_key_with_consistent_figures() -> None:
    record = bench_update(200, generated_stream(400, width=16), steps=3)
    assert set(KEYS) <= set(record)
    assert all(math.isfinite(value) for value in record.values() if isinstance(value, float))
    assert (record["size"], record["batch"], record["classes"]) == (200, 8, 10)
    for name in PEERS:
        if record[name] is not None:
            ratio = record[name] / record["ours_s"]  # type: ignore[operator]
            assert record[f"ratio_{name.removesuffix('_s')}"] == pytest.approx(ratio)
    assert record["max_abs_error"] < 1e-9  # type: ignore[operator]
    assert (record["gpytorch_refit_s"] is not None) == GPYTORCH_INSTALLED


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
    assert stream.features.mean(dim=0).abs().max() < 0.2  # centred before
    record = bench_update(80, stream, steps=3, peers_too=False)
    assert (record["rows"], record["size"], record["inverse_s"]) == ("rows", 80, None)
    assert record["ratio_fill"] > 0  # type: ignore[operator]
    assert record["max_abs_error"] < 1e-9  # type: ignore[operator]


def test_every_peer_computes_the_same_gp(generator: torch.Generator) -> None:
    draw = clusters(generator, dtype=torch.float32)
    features, targets = draw(60)
    problem = Problem(features, targets, *draw(8), RBF(length_scale=0.5), 0.3)
    queries = problem.new_features
    k, now = problem.kernel(queries, features), torch.cat([features[8:], queries])
    before, _ = posterior(queries, features, targets, problem.kernel, 0.3)
    after, _ = posterior(
        queries, now, torch.cat([targets[8:], problem.new_targets]), problem.kernel, 0.3
    )
    timed = set()
    for name, step in peers(problem):
        timed.add(name)
        answer = step()
        if name in ("inverse_s", "cholesky_inverse_s", "cholesky_solve_s"):
            assert isinstance(answer, torch.Tensor)
            torch.testing.assert_close(k @ answer, before, rtol=0, atol=1e-4)
        elif name == "paper_rule_s":
            assert isinstance(answer, torch.Tensor)
            torch.testing.assert_close(
                problem.kernel(queries, now) @ answer, after, rtol=0, atol=1e-4
            )
        elif name == "sklearn_s":
            predicted = torch.from_numpy(answer.predict(queries.numpy()))  # type: ignore[attr-defined]
            torch.testing.assert_close(predicted.float(), before, rtol=0, atol=1e-4)
        elif name == "gpytorch_refit_s":
            assert isinstance(answer, torch.Tensor)
            torch.testing.assert_close(answer, before[:, 0], rtol=0, atol=1e-4)
        else:
            assert name == "gpytorch_fantasy_s"
            with torch.no_grad():
                grown = answer(queries).mean  # type: ignore[operator]
            both, both_y = torch.cat([features, queries]), torch.cat([targets, problem.new_targets])
            torch.testing.assert_close(
                grown,
                posterior(queries, both, both_y, problem.kernel, 0.3)[0][:, 0],
                rtol=0,
                atol=1e-4,
            )
    assert (
        timed == set(PEERS)
        if GPYTORCH_INSTALLED
        else {name for name in PEERS if "gpytorch" not in name}
    )


def test_contenders_take_turns_and_a_slow_one_is_repeated_less() -> None:
    order: list[str] = []

    def slow() -> None:
        order.append("slow")
        time.sleep(0.05)

    seconds = time_in_turns(
        {"slow": slow, "fast": lambda: order.append("fast")}, repetitions=4, budget_s=0.08
    )
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

    assert 8e6 <= peak_extra_bytes(step) < 8.1e6
