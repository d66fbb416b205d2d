"""Screening of unlabelled images that belong to no class."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from semigpc.cli.train import screening_table
from semigpc.data import ArraysConfig
from semigpc.report.run_page import write_run_report
from semigpc.training import Experiment, train
from semigpc.training.evaluate import SAMPLE_IMAGES, _sample, in_class_auroc
from semigpc.training.inference import load_run
from semigpc.training.run_folder import read_run
from tests.training.small_runs import entries, small_run


def digits_with_strangers(
    folder: Path, *settings: str, refiner: str = "gp", marked: bool = True
) -> Experiment:
    """Zeros to fours, of which twelve are labelled each, among unlabelled digits of all kinds."""
    digits = load_digits()
    pixels, labels = np.rint(digits.images * (255 / 16)).astype(np.uint8), digits.target
    labelled = np.concatenate([np.flatnonzero(labels == c)[:12] for c in range(5)])
    judged = np.concatenate([np.flatnonzero(labels == c)[12:32] for c in range(5)])
    rest = np.setdiff1d(np.arange(600, 900), np.concatenate([labelled, judged]))
    outside = labels[rest] >= 5
    extra = {"unlabeled_out": outside} if marked else {}
    path = folder / "strangers.npz"
    parts = {"labeled": labelled, "test": judged}
    arrays = {f"x_{name}": pixels[rows] for name, rows in (parts | {"unlabeled": rest}).items()}
    arrays |= {f"y_{name}": labels[rows] for name, rows in parts.items()}
    truth = np.where(outside, -1, labels[rest])
    np.savez(path, allow_pickle=False, y_unlabeled_truth=truth, **arrays, **extra)
    return replace(small_run("fixmatch", refiner, *settings), data=ArraysConfig(path=str(path)))


def slow_auroc(folder: Path, data: Any) -> float:
    """Of the variance by the last checkpoint's network and GP, pair by pair."""
    run = load_run(folder, "last")
    assert run.gp is not None
    grey = (torch.from_numpy(data["x_unlabeled"]).float() / 255 - 0.5) / 0.5
    pixels = grey.unsqueeze(1).expand(-1, 3, -1, -1)
    with torch.no_grad():
        variance = run.gp.engine.variance(run.gp.placement.features(run.network(pixels)))
    pairs = variance[~data["unlabeled_out"]].unsqueeze(1) < variance[data["unlabeled_out"]]
    return float(pairs.double().mean())


@pytest.mark.slow
def test_every_evaluation_says_how_well_strangers_are_told_apart(tmp_path: Path) -> None:
    settings = ("train.eval_batch=64", "refiner.confidence=variance")
    train(digits_with_strangers(tmp_path, *settings), tmp_path / "run")
    found = entries(tmp_path / "run", "screening")
    assert [entry["step"] for entry in found] == [10, 20, 30]
    last = found[-1]
    scores = {key.removeprefix("auroc_") for key in last if key.startswith("auroc_")}
    assert scores == {"linear", "max_softmax", "variance", "expected"}
    data = np.load(tmp_path / "strangers.npz")
    outside = data["unlabeled_out"]
    assert (last["n_in"], last["n_out"]) == ((~outside).sum(), outside.sum())
    assert last["auroc_variance"] == pytest.approx(slow_auroc(tmp_path / "run", data), abs=1e-3)
    run = read_run(tmp_path / "run")
    assert run.screening[-1] == last
    page = write_run_report(tmp_path / "run").read_text()
    assert "Images of no class" in page
    assert f"{last['auroc_variance']:.3f}" in page
    table = screening_table(last)
    assert [len(column._cells) for column in table.columns] == [4, 4]
    caption = f"{last['n_in']} unlabelled images of the classes, {last['n_out']} of none, step 30"
    assert table.caption == caption


def test_without_a_gp_only_the_network_is_asked(tmp_path: Path) -> None:
    train(digits_with_strangers(tmp_path, "train.steps=10", refiner="none"), tmp_path / "run")
    (entry,) = entries(tmp_path / "run", "screening")
    assert {key for key in entry if key.startswith("auroc_")} == {"auroc_linear"}


@pytest.mark.slow
def test_where_nobody_knows_who_is_a_stranger_nothing_is_said(tmp_path: Path) -> None:
    train(digits_with_strangers(tmp_path, "train.steps=10", marked=False), tmp_path / "run")
    assert not entries(tmp_path / "run", "screening")
    assert "Images of no class" not in write_run_report(tmp_path / "run").read_text()


@pytest.mark.slow
def test_screening_draws_nothing_that_training_would(tmp_path: Path) -> None:
    """The same losses with it and without."""
    losses: list[list[Any]] = []
    for marked in (True, False):
        steps = ("train.steps=12", "train.eval_steps=4")
        experiment = digits_with_strangers(tmp_path, *steps, marked=marked)
        before = torch.get_rng_state()
        train(experiment, tmp_path / f"run_{marked}")
        assert torch.equal(torch.get_rng_state(), before)
        losses.append([entry["loss"] for entry in entries(tmp_path / f"run_{marked}", "train")])
    assert losses[0] == losses[1]


def test_the_auroc_is_the_chance_that_one_of_the_classes_scores_higher() -> None:
    outside = np.array([True, False, False, True])
    good, half = np.array([0.1, 0.5, 0.9, 0.2]), np.array([0.3, 0.5, 0.1, 0.3])
    scores = {"good": good, "none": np.ones(4), "half": half}
    assert in_class_auroc(scores, outside) == {"good": 1.0, "none": 0.5, "half": 0.5}


def test_a_large_set_is_sampled_by_the_seed() -> None:
    assert _sample(SAMPLE_IMAGES, 0).tolist() == list(range(SAMPLE_IMAGES))
    first, again, other = (_sample(SAMPLE_IMAGES * 5, seed) for seed in (0, 0, 1))
    assert len(set(first.tolist())) == SAMPLE_IMAGES
    assert (first == again).all()
    assert (first != other).any()
    assert first.max() > SAMPLE_IMAGES
