"""Runs that start over with labels of their own, and networks that an add-on answers for."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from semigpc.addons import ABCConfig, AddOn, CReST, CReSTConfig, Survey
from semigpc.data import DATASETS
from semigpc.training import Experiment, RunFolder, train
from semigpc.training.experiment import name_of
from semigpc.training.inference import load_run
from semigpc.training.run_folder import read_checkpoint
from tests.training.small_runs import STEPS, entries, small_run
from tests.training.test_resume import Copier, assert_same_end

GENERATIONS = 3
BOUNDARY = STEPS // GENERATIONS


def crest_run(algorithm: str = "simmatch", *settings: str) -> Experiment:
    experiment = replace(small_run(algorithm, "gp"), addon=CReSTConfig(generations=GENERATIONS))
    return experiment.override(["train.checkpoint_steps=5", *settings])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three generations of ten steps, copied in each and at the end of the first."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    train(crest_run(), path, listener=Copier(path, 7, BOUNDARY, 17, 27))
    return path


@pytest.mark.slow
def test_each_generation_begins_with_more_labels(whole: Path) -> None:
    original = json.loads(RunFolder(whole).split.read_text())["labeled_counts"]
    remarks = [line for line in entries(whole, "note") if line["message"].startswith("Generation")]
    assert [line["step"] for line in remarks] == [BOUNDARY, 2 * BOUNDARY]
    assert all("more images, labelled by the one before" in line["message"] for line in remarks)
    last = read_checkpoint(RunFolder(whole).last)
    given = last.part("generation")["labels"]
    assert last.state["generation"] == GENERATIONS - 1
    joined = np.bincount(given[given >= 0].numpy(), minlength=len(original))
    assert joined.sum() > 0
    assert last.state["labeled_counts"] == (np.array(original) + joined).tolist()
    slots = len(last.part("algorithm")["bank"])
    assert slots == sum(last.state["labeled_counts"]), "one for each label"


def test_each_generation_has_a_schedule_of_its_own(whole: Path) -> None:
    rates = {line["step"]: line["lr"] for line in entries(whole, "train")}
    assert rates[BOUNDARY] == rates[2 * BOUNDARY] == rates[STEPS], "it ends alike in each"
    assert rates[BOUNDARY + 5] > 1.5 * rates[BOUNDARY], "and rises again in the next"


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, BOUNDARY, 17, 27])
def test_cut_off_in_any_generation_it_resumes_to_the_same_bits(whole: Path, step: int) -> None:
    cut = whole.with_name(f"cut{step}")
    train(crest_run(), cut, resume=True)
    assert_same_end(whole, cut)


def test_a_finished_run_is_put_to_use_with_its_larger_memory(whole: Path) -> None:
    run = load_run(whole, "last")
    data = run.experiment.data
    test = DATASETS[name_of("data", data)].load(data, 0).test
    assert test is not None
    probs = run.predict(test).probs["linear"]
    assert np.isfinite(probs).all()
    evaluated = [line for line in entries(whole, "eval") if line["head"] == "linear"][-1]
    top1 = float((probs.argmax(axis=1) == test.labels).mean())
    assert top1 == pytest.approx(evaluated["top1"], abs=1e-6)


def test_a_generation_that_chooses_nobody_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CReST, "relabel", AddOn.relabel)
    summary = train(crest_run("fixmatch", "train.steps=9"), tmp_path / "run")
    assert summary["status"] == "finished"
    remarks = [line["message"] for line in entries(tmp_path / "run", "note")]
    assert sum("begins without further labels" in remark for remark in remarks) == 2


def test_the_survey_shows_every_image_in_order_by_the_evaluated_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Survey] = []

    def relabel(addon: CReST, survey: Survey) -> Tensor:
        seen.append(survey)
        return AddOn.relabel(addon, survey)

    monkeypatch.setattr(CReST, "relabel", relabel)
    experiment = crest_run("fixmatch", "train.steps=9")
    train(experiment, tmp_path / "run")
    splits = DATASETS["digits"].load(experiment.data, 0)
    assert len(seen) == GENERATIONS - 1
    assert seen[0].y.tolist() == splits.labeled.labels.tolist()
    assert len(seen[0].unlabeled.logits) == len(splits.unlabeled)
    assert not seen[0].unlabeled.logits.requires_grad


@pytest.mark.slow
def test_a_run_is_judged_and_used_by_the_head_that_answers(tmp_path: Path) -> None:
    experiment = replace(small_run("fixmatch", "none"), addon=ABCConfig())
    train(experiment, tmp_path / "run")
    run = load_run(tmp_path / "run", "last")
    images = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        output = run.network(images)
    assert torch.equal(output.logits, output.heads["abc"])
    test = DATASETS["digits"].load(experiment.data, 0).test
    assert test is not None
    accuracy = float((run.predict(test).probs["linear"].argmax(axis=1) == test.labels).mean())
    assert accuracy == pytest.approx(entries(tmp_path / "run", "eval")[-1]["top1"], abs=1e-6)
