"""What ``train`` says of a run is what every other command and every page uses of it."""

import json
import re
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from semigpc.export import run as export_module
from semigpc.training import loop
from semigpc.training.evaluate import Evaluation, evaluate_run
from semigpc.training.inference import images_at, load_run
from semigpc.training.metrics import METRIC, Head
from semigpc.training.run_folder import Standing
from tests.cli.calls import SHORT, semigpc, worked

STOP = 17  # steps; between two evaluations, and no checkpoint is due
SETTINGS = " ".join(
    [
        SHORT,
        "--steps 30",
        "--set train.eval_steps=10",
        "--set train.checkpoint_steps=7",
        "--set data.test_per_class=12",
        "--set data.validation_per_class=4",
        "--set data.split.unlabeled_head=60",
        "--set refiner.warmup_steps=4",
    ]
)
METHODS = (
    "--algorithm simmatch --refiner gp",
    "--algorithm fixmatch --refiner gp --addon crest --set addon.generations=2",
    "--algorithm fixmatch --refiner gp --set data.validation_per_class=0",
    "--algorithm fixmatch --refiner gp --addon cossl --set addon.start_steps=20",
    "--algorithm fixmatch --refiner gp --set refiner.role=classifier",
    "--algorithm fixmatch --refiner gp",
    "--algorithm freematch --refiner gp",
    "--algorithm comatch --refiner gp --set algorithm.queue_batches=2",
    "--algorithm remixmatch --refiner gp",
    "--algorithm simmatch --refiner similarity",
)
IN_TEST = {(METHODS[0], True, True), (METHODS[2], False, True)}  # the others run every night
CASES = [
    pytest.param(*case, marks=pytest.mark.slow if case in IN_TEST else pytest.mark.nightly)
    for case in product(METHODS, (True, False), (True, False))
]


def let_the_first_evaluation_be_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is perfect on validation images and chooses the GP, where there is one; later ones choose
    the linear head.
    """
    calls = count()

    def changed(*args: Any, **options: Any) -> Evaluation:
        evaluation = evaluate_run(*args, **options)
        first = next(calls) == 0
        heads = {line["head"] for line in evaluation.results}
        head: Head = "gp" if first and "gp" in heads else "linear"
        best = {METRIC: 1.0} if first else {}
        lines: Any = [
            {
                **line,
                "judged": line["head"] == head,
                **(best if line["part"] == "validation" else {}),
            }
            for line in evaluation.results
        ]
        return evaluation._replace(results=lines, head=head)

    monkeypatch.setattr(loop, "evaluate_run", changed)


def named(text: str) -> Standing:
    """What a sentence on the screen or on a page says."""
    (found,) = re.findall(r"use the (linear|GP) head of step (\d+), the (best|last)", text)
    head, step, checkpoint = found
    return Standing(checkpoint, int(step), head.lower())


def check_uses(run: Path, said: Standing, folder: Path) -> None:
    """Every command and every file has to agree with what was said."""
    summary = json.loads((run / "summary.json").read_text())
    best = summary["results"]["best_on_validation"]
    step = summary["step"] if best is None else best["step"]
    assert (summary["checkpoint"], step, summary["head"]) == said
    evaluated = semigpc("evaluate", run, "--json")
    facts = json.loads(evaluated.stdout)
    assert (facts["checkpoint"], facts["step"], facts["head"]) == named(evaluated.stderr) == said
    exported = export_module.export_run(run, kind="torch", overwrite=True).facts
    head = exported["outputs"]["probabilities"]["head"]
    assert (exported["checkpoint"], exported["step"], head) == said

    digits = np.rint(load_digits().images[:60] * 255 / 16).astype(np.uint8)
    np.savez(folder / "new.npz", x_unlabeled=digits)
    predicted = json.loads(semigpc("predict", run, folder / "new.npz", "--json").stdout)
    loaded = load_run(run, said.checkpoint)
    probs = loaded.predict(images_at([folder / "new.npz"])).probs[said.head]
    assert [row["label"] for row in predicted] == [str(c) for c in probs.argmax(axis=1)]
    assert summary["temperatures"] == loaded.temperatures


@pytest.mark.parametrize(("method", "early", "resumed"), CASES)
def test_what_train_says_is_what_every_command_uses(
    method: str, early: bool, resumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "CHECK_IMAGES", 16)
    if early:
        let_the_first_evaluation_be_best(monkeypatch)
    run = tmp_path / "run"
    command = ("train digits --out", run, SETTINGS, method)
    if resumed:
        with monkeypatch.context() as stopping:
            steps = count(1)
            stopping.setattr(loop, "_any_process", lambda *_: next(steps) == STOP)
            assert semigpc(*command).exit_code == 130
        stopped = load_run(run)
        check_uses(run, Standing(stopped.checkpoint, stopped.step, stopped.head), tmp_path)
    done = worked(*command, "--resume")
    said = named(done.stdout)
    assert named((run / "report.html").read_text()) == said
    check_uses(run, said, tmp_path)
    if early and "validation_per_class=0" not in method:
        assert said == ("best", 10, "gp" if "--refiner gp" in method else "linear")


@pytest.mark.slow
def test_a_comparison_counts_a_run_as_it_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_the_first_evaluation_be_best(monkeypatch)
    method = "--algorithm fixmatch --refiner gp --seeds 1"
    worked("compare digits --out", tmp_path, SETTINGS, method)
    cells = json.loads((tmp_path / "comparison.json").read_text())["cells"]
    results = {
        cell["name"]: (cell["runs"][0]["folder"], cell["runs"][0]["result"]) for cell in cells
    }
    for folder, result in results.values():
        loaded = load_run(tmp_path / folder)
        assert (result["step"], result["head"]) == (loaded.step, loaded.head)
    assert results["supervised+none"][1]["step"] == 10


@pytest.mark.slow
def test_train_says_so_if_the_checkpoint_that_it_names_is_gone(tmp_path: Path) -> None:
    command = ("train digits", METHODS[0], SETTINGS, "--out", tmp_path / "run")
    assert "is missing" not in worked(*command).stdout
    (tmp_path / "run" / "checkpoints" / "best.safetensors").unlink()
    again = worked(*command, "--resume").stdout
    assert "best.safetensors" in again
    assert "--checkpoint last" in again
