"""The comparison of engines: what it measures is what it says, on sizes that take seconds."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.engines import (
    Study,
    draw_engines,
    exact_mean,
    generated_rows,
    matrix_free,
    sizes,
)
from semigpc.gp import RBF, ExactGP


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
        exact[:50], engine.mean(rows.queries[:50].double()), rtol=0, atol=1e-6
    )


def test_the_picked_length_scale_is_one_of_the_estimators_grid(study: Study) -> None:
    rows = generated_rows(200, 16, 4, seed=0)
    assert study.picked(rows) == study.picked(rows)
    assert 0.05 < study.picked(rows).kernel.length_scale < 10


@pytest.mark.slow
def test_every_engine_is_timed_and_compared_at_every_size(study: Study, tmp_path: Path) -> None:
    records = sizes(study, wanted=[100, 200], rank=50, steps=2)
    assert [record["size"] for record in records] == [100, 200]
    for record in records:
        assert set(record["engines"]) == {"exact", "ensemble", "matrix_free"}
        assert record["engines"]["exact"]["mean_difference"] < 1e-4
        assert record["engines"]["matrix_free"]["mean_difference"] < 1e-2
        assert all(figures["update_s"] > 0 for figures in record["engines"].values())
    json.dumps(records)
    draw_engines({"sizes": records}, tmp_path / "engines.png")
    assert (tmp_path / "engines.png").stat().st_size > 10_000


def test_a_warm_start_is_counted_beside_a_cold_one(study: Study) -> None:
    record = matrix_free(study, size=400, rank=50, steps=2, tolerance=1e-3)
    assert record["cold"]["iterations"] >= 1
    assert len(record["warm"]) == 2
    assert record["residual"] < 3e-3
    assert np.isfinite(record["warm_over_cold"])
