"""The study of screening: its problems, its risks, and that it goes on where it was."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import screening, tables
from benchmarks.problems import Pool, load_digits_pool
from benchmarks.screening import (
    CONFIDENCES,
    EACH,
    PROBLEMS,
    SCORES,
    Screening,
    draw,
    draw_screening,
    risk,
    screen,
    summarise,
)
from benchmarks.tables import run_study
from tests.benchmarks.calls import bench, refused

SMALL = Screening("clouds", 3)


def clouds() -> Pool:
    """Four clouds of thirty rows, well apart."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(4), 30)
    return Pool((6 * np.eye(4, 5)[codes] + rng.standard_normal((120, 5))).astype(np.float32), codes)


def test_half_of_the_classes_are_known_and_the_rest_has_no_truth() -> None:
    for seed in range(3):
        task = draw(Screening("digits", 4), load_digits_pool(), seed)
        assert np.bincount(task.codes[task.codes >= 0]).tolist() == [4] * 5
        assert (task.codes[task.codes >= 0] == task.truth[task.codes >= 0]).all()
        assert set(task.truth[task.codes < 0]) == {-1, 0, 1, 2, 3, 4}
        assert len(np.unique(task.X, axis=0)) == len(task.X)
        assert (np.bincount(task.truth[task.codes < 0] + 1)[1:] <= EACH).all()
    first, again, other = (
        draw(Screening("digits", 4), load_digits_pool(), seed).X for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_risk_is_that_of_the_surest_rows() -> None:
    confidence = np.array([0.9, 0.1, 0.8, 0.3])
    found = risk(confidence, np.array([True, False, True, False]))
    assert found["half"] == 0
    assert found["area"] == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)
    assert risk(-confidence, np.array([True, False, True, False]))["half"] == 1
    ties = risk(np.ones(4), np.array([True, False, True, False]))
    assert ties == {"half": pytest.approx(0.5), "area": pytest.approx(0.5)}, "whatever their order"


def test_a_screening_goes_on_where_it_was_and_finds_far_clouds(tmp_path: Path) -> None:
    out = tmp_path / "screening.json"
    loaded: list[str] = []

    def load() -> Pool:
        loaded.append("clouds")
        return clouds()

    seen: list[str] = []
    run_study(
        [SMALL],
        {"clouds": load},
        range(1),
        out,
        measure=screen,
        summarise=summarise,
        advance=seen.append,
    )
    records = run_study(
        [SMALL],
        {"clouds": load},
        range(2),
        out,
        measure=screen,
        summarise=summarise,
        advance=seen.append,
    )
    assert [record["seed"] for record in records] == [0, 1]
    assert json.loads(out.read_text())["records"] == records
    assert (
        run_study(
            [SMALL], {}, range(2), out, measure=screen, summarise=summarise, advance=seen.append
        )
        == records
    )  # all is there, nothing is loaded
    assert loaded == ["clouds"] * 2
    assert seen == [SMALL.name] * 5
    summary = summarise(records)
    assert set(summary["auroc"]) == set(SCORES)
    assert set(summary["risk"]) == set(CONFIDENCES)
    assert summary["auroc"]["variance"] > 0.9
    assert summary["auroc"]["nearest"] > 0.9
    assert summary["problems"][SMALL.name]["seeds"] == 2
    assert records[0]["rows"] == {"known": 54, "unknown": 60}
    draw_screening(summary, SCORES, tmp_path / "screening.png")
    assert (tmp_path / "screening.png").stat().st_size > 10_000
    assert {problem.data for problem in PROBLEMS} == {"cifar10", "digits", "segments"}


def test_a_study_is_told_as_tables_and_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screening, "PROBLEMS", (SMALL,))
    monkeypatch.setattr(tables, "loaders", lambda *_: {"clouds": clouds})
    out, plot = tmp_path / "s.json", tmp_path / "s.png"
    done = bench("screening", "--seeds", "1", "--out", out, "--plot", plot)
    assert done.exit_code == 0, done.output
    for word in ("AUROC", "clouds, 3 each", "variance", "nearest", "lof", "prob.", "Wrong labels"):
        assert word in done.stdout
    assert plot.exists()
    again = bench("screening", "--seeds", "1", "--out", out, "--json")
    assert json.loads(again.stdout) == json.loads(out.read_text())["summary"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--out", "nowhere/s.json"), "there is no folder nowhere"),
        (("--out", "s.json", "--plot", "nowhere/s.png"), "there is no folder nowhere"),
        (
            ("--out", "s.json", "--data", "digit"),
            "unknown data 'digit'; known: cifar10, digits, segments",
        ),
        (("--out", "s.json", "--data", "cifar10"), "cifar10 needs --embeddings"),
    ],
)
def test_what_cannot_work_is_refused(arguments: tuple[str, ...], words: str) -> None:
    refused("screening", *arguments, words=words)
