"""The study of learned kernels: what it judges by, and that it goes on where it was."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks import kernels
from benchmarks.kernels import (
    PAPER,
    VARIANTS,
    Points,
    draw_kernel_study,
    judge,
    points_of,
    posterior_means,
    study_on,
    summarise,
)
from benchmarks.problems import Pool, Problem, cut, load_digits_pool
from benchmarks.tables import run_study
from semigpc.gp import ExactGP
from tests.benchmarks.calls import bench, refused

SMALL = Problem("digits", "B", 5, 4, unlabeled=20)


@pytest.fixture(scope="module")
def points() -> Points:
    return points_of(cut(SMALL, load_digits_pool(), seed=0), seed=0)


def test_points_are_unit_vectors_and_judged_ones_are_not_labelled(points: Points) -> None:
    assert points.labelled.shape == (40, 64)
    assert len(points.judged) == len(points.truth) > 60
    for rows in (points.labelled, points.judged):
        torch.testing.assert_close(
            rows.norm(dim=1), torch.ones(len(rows), dtype=torch.float64), rtol=0, atol=1e-6
        )
    assert float(torch.cdist(points.judged, points.labelled).min()) > 0


def test_means_are_those_of_an_engine(points: Points) -> None:
    targets = F.one_hot(points.codes, 10).double()
    engine = ExactGP(40, 64, 10, kernel=PAPER[0], noise_std=PAPER[1])
    engine.replace(torch.arange(40), points.labelled, targets)
    mean, left_out = posterior_means(points, targets, *PAPER)
    torch.testing.assert_close(mean, engine.mean(points.judged), rtol=0, atol=1e-9)
    torch.testing.assert_close(left_out, engine.leave_one_out().mean, rtol=0, atol=1e-9)


def test_likelihood_and_accuracy_are_as_written_out(points: Points) -> None:
    targets = F.one_hot(points.codes, 10).double()
    found = judge(points, targets, *PAPER)
    mean, _ = posterior_means(points, targets, *PAPER)
    truth = torch.from_numpy(points.truth)
    expected = F.cross_entropy(found["logit_scale"] * mean, truth)
    assert found["nll"] == pytest.approx(float(expected))
    right = (mean.argmax(dim=1) == truth).double()
    assert found["balanced_accuracy"] == pytest.approx(
        float(np.mean([float(right[truth == c].mean()) for c in range(10)]))
    )


@pytest.mark.slow
def test_a_study_goes_on_where_it_was_and_counts_who_is_better(tmp_path: Path) -> None:
    out, loaded = tmp_path / "study.json", []

    def load() -> Pool:
        loaded.append("digits")
        return load_digits_pool()

    run_study(
        [SMALL],
        {"digits": load},
        range(1),
        out,
        measure=study_on,
        summarise=summarise,
        advance=lambda _: None,
    )
    records = run_study(
        [SMALL],
        {"digits": load},
        range(2),
        out,
        measure=study_on,
        summarise=summarise,
        advance=lambda _: None,
    )
    assert [record["seed"] for record in records] == [0, 1]
    assert json.loads(out.read_text())["records"] == records
    assert (
        run_study(
            [SMALL],
            {},
            range(2),
            out,
            measure=study_on,
            summarise=summarise,
            advance=lambda _: None,
        )
        == records
    )  # all is there, nothing is loaded
    assert len(loaded) == 2
    summary = summarise(records)
    nll = summary["problems"][SMALL.name]["nll"]
    assert list(nll) == list(VARIANTS)
    values = [record["variants"]["leave_one_out"]["nll"] for record in records]
    assert nll["leave_one_out"]["mean"] == pytest.approx(np.mean(values))
    assert nll["leave_one_out"]["std"] == pytest.approx(np.std(values))
    assert nll["default"]["gain"] == 0
    better = nll["leave_one_out"]["mean"] < nll["default"]["mean"]
    assert summary["lower_nll_than"]["leave_one_out"]["default"] == int(better)
    draw_kernel_study(summary, VARIANTS, tmp_path / "study.png")
    assert (tmp_path / "study.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_a_study_is_printed_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PROBLEMS", (SMALL,))
    call = ("kernels", "--data", "digits", "--seeds", "1", "--out", tmp_path / "k.json")
    done = bench(*call)
    assert done.exit_code == 0, done.output
    assert "Negative log-likelihood" in done.stdout
    assert "leave_one_out: lower than default on" in done.stdout
    again = bench(*call, "--json", "--plot", tmp_path / "k.png")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["of_problems"] == 1
    assert (tmp_path / "k.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "fashion"), "unknown data 'fashion'; known: cifar10, digits, letter"),
        (("--data", "cifar10"), "cifar10 needs --embeddings"),
        (("--plot", "nowhere/k.png"), "there is no folder nowhere"),
    ],
)
def test_what_cannot_be_studied_is_refused(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    refused("kernels", "--out", tmp_path / "k.json", *arguments, words=words)
    assert not (tmp_path / "k.json").exists()
