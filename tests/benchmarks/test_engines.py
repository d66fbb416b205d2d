"""The comparison of engines: what it measures is what it says, on sizes that take seconds."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.engines import (
    Study,
    compare,
    draw_engines,
    exact_mean,
    generated_rows,
    lowrank_mean,
    matrix_free,
    nystroem_peer,
    ranks,
    run_buffer,
    sizes,
)
from semigpc.gp import RBF, ExactGP, LandmarkFeatures
from semigpc.io.errors import RunError
from semigpc.training import train
from semigpc.training.inference import load_run
from tests.training.small_runs import small_run


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setattr("benchmarks.engines.QUERIES", 100)
    monkeypatch.setattr("benchmarks.engines.TUNED", 150)
    return Study(None, 0, lambda _text: None)


def test_the_truth_is_that_of_the_exact_engine() -> None:
    rows = generated_rows(300, 16, 4, seed=0)
    engine = ExactGP(300, 16, 4, kernel=RBF(length_scale=0.5), noise_std=0.3)
    engine.replace(torch.arange(300), rows.features, rows.targets)
    exact = exact_mean(rows, RBF(length_scale=0.5), 0.3)
    torch.testing.assert_close(
        exact.mean[:50], engine.mean(rows.queries[:50].double()), rtol=0, atol=1e-6
    )
    K = RBF(length_scale=0.5)(rows.features.double(), rows.features.double())
    dimension = float(torch.linalg.solve(K + 0.09 * torch.eye(300), K).trace())
    assert exact.dimension == pytest.approx(dimension, rel=0.2)


def test_all_rows_as_landmarks_are_no_distance_from_exact() -> None:
    rows = generated_rows(120, 16, 4, seed=0)
    exact = exact_mean(rows, RBF(length_scale=0.5), 0.3)
    mean = lowrank_mean(rows, LandmarkFeatures(rows.features, RBF(length_scale=0.5)), 0.3)
    found = compare(mean, exact.mean, rows.classes)
    assert found["mean_difference"] < 1e-3
    assert found["same_class"] > 0.99
    assert found["accuracy"] == pytest.approx(found["exact_accuracy"], abs=0.01)


def test_the_picked_length_scale_is_one_of_the_estimators_grid(study: Study) -> None:
    rows = generated_rows(200, 16, 4, seed=0)
    assert study.picked(rows) == study.picked(rows)
    assert 0.05 < study.picked(rows).kernel.length_scale < 10


@pytest.mark.slow
def test_error_falls_with_the_rank_at_every_length_scale(study: Study) -> None:
    record = ranks(study, size=400, wanted=[8, 64, 256])
    assert [curve["factor"] for curve in record["curves"]] == [1, 2, 4]
    for curve in record["curves"]:
        differences = [point["mean_difference"] for point in curve["points"]]
        assert differences[0] > differences[-1]
        assert 0 < curve["effective_dimension"] < 400


@pytest.mark.slow
def test_every_engine_is_timed_and_compared_at_every_size(study: Study, tmp_path: Path) -> None:
    records = sizes(study, wanted=[100, 200], rank=50, steps=2)
    assert [record["size"] for record in records] == [100, 200]
    for record in records:
        assert set(record["engines"]) == {"exact", "lowrank", "ensemble", "matrix_free"}
        assert record["engines"]["exact"]["mean_difference"] < 1e-4
        assert record["engines"]["matrix_free"]["mean_difference"] < 1e-2
        assert all(figures["update_s"] > 0 for figures in record["engines"].values())
    json.dumps(records)
    draw_engines(
        {"sizes": records, "ranks": ranks(study, size=200, wanted=[8, 32])},
        tmp_path / "engines.png",
    )
    assert (tmp_path / "engines.png").stat().st_size > 10_000


def test_the_peer_with_the_same_landmarks_gives_the_same_answers(study: Study) -> None:
    record = nystroem_peer(study, size=400, rank=100, repetitions=1)
    assert record["rank"] == 100
    assert record["ours"]["mean_difference"] == pytest.approx(
        record["peer"]["mean_difference"], abs=1e-3
    )
    assert all(seconds > 0 for kind in ("fit_s", "answer_s") for seconds in record[kind].values())


def test_a_warm_start_is_counted_beside_a_cold_one(study: Study) -> None:
    record = matrix_free(study, size=400, rank=50, steps=2, tolerance=1e-3)
    assert record["cold"]["iterations"] >= 1
    assert len(record["warm"]) == 2
    assert record["residual"] < 3e-3
    assert np.isfinite(record["warm_over_cold"])


@pytest.mark.slow
def test_the_buffer_of_a_run_is_looked_at_as_it_stands(tmp_path: Path) -> None:
    train(small_run(), tmp_path / "run")
    record = run_buffer(tmp_path / "run", wanted=[8, 64, 512], seed=0)
    gp = load_run(tmp_path / "run", "last").gp
    assert gp is not None
    assert record["rows"] == len(gp.engine)
    assert [point["rank"] for point in record["points"]] == [8, 64]
    assert record["points"][0]["mean"] > record["points"][-1]["mean"]
    assert 0 < record["effective_dimension"] < record["rows"]


@pytest.mark.slow
def test_a_run_without_a_gp_has_no_buffer(tmp_path: Path) -> None:
    train(small_run(refiner="none"), tmp_path / "run")
    with pytest.raises(
        RunError, match="has no GP with rows in its buffer; train one with --refiner gp"
    ):
        run_buffer(tmp_path / "run", wanted=[8], seed=0)
