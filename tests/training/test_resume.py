"""Killed at any step and resumed, a run ends with the bits of one that was not."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from semigpc.algorithms import ALGORITHMS
from semigpc.io.errors import RunError
from semigpc.training import Experiment, Listener, RunFolder, train
from semigpc.training.run_folder import read_checkpoint
from tests.training.small_runs import STEPS, entries, small_run

VICTIM = """
import json, sys
from pathlib import Path
from semigpc.training import Experiment, Listener, train

class Teller(Listener):
    def step(self, step):
        print(step, flush=True)

if __name__ == "__main__":
    train(Experiment.from_plain(json.loads(sys.argv[1])), Path(sys.argv[2]), listener=Teller())
"""


def kill_at(step: int, experiment: Experiment, path: Path, tmp_path: Path) -> None:
    script = tmp_path / "victim.py"
    script.write_text(VICTIM)
    command = [sys.executable, str(script), json.dumps(experiment.to_plain()), str(path)]
    options: dict[str, Any] = {"text": True, "start_new_session": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as victim:
        assert victim.stdout is not None
        for line in victim.stdout:
            if int(line) == step:
                os.killpg(victim.pid, signal.SIGKILL)
                break
        assert victim.wait() == -signal.SIGKILL


def lines(path: Path) -> list[dict[str, Any]]:
    timing = ("steps_per_second", "data_wait_share")
    return [
        {key: value for key, value in entry.items() if key not in timing} for entry in entries(path)
    ]


def assert_same_end(one: Path, other: Path) -> None:
    ours, theirs = read_checkpoint(RunFolder(one).last), read_checkpoint(RunFolder(other).last)
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, value in ours.tensors.items():
        assert torch.equal(value, theirs.tensors[name]), name
    assert ours.state["step"] == theirs.state["step"] == STEPS
    assert lines(one) == lines(other)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("algorithm", "workers"), [("fixmatch", 1), *((algorithm, 0) for algorithm in ALGORITHMS)]
)
def test_a_killed_process_resumes_to_the_same_bits(
    algorithm: str, workers: int, tmp_path: Path
) -> None:
    """One run has a loader's worker: batches are the same with any number of them."""
    experiment = small_run(algorithm, "gp", f"train.workers={workers}")
    step = random.Random().randrange(8, STEPS - 2)  # a different one every time: it must not matter
    kill_at(step, experiment, tmp_path / "killed", tmp_path)
    assert read_checkpoint(RunFolder(tmp_path / "killed").last).state["step"] <= step + 1
    train(experiment, tmp_path / "killed", resume=True)
    train(experiment, tmp_path / "whole")
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


class Copier(Listener):
    """Copies a run to ``cutN``, as if it had been killed, in some steps."""

    def __init__(self, run: Path, *steps: int) -> None:
        self.run = run
        self.steps = steps

    def step(self, step: int) -> None:
        if step in self.steps:
            shutil.copytree(self.run, self.run.with_name(f"cut{step}"))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_interrupted_run_resumes_to_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    experiment = small_run(algorithm, "gp")
    whole = tmp_path / "whole"
    train(experiment, whole, listener=Copier(whole, 14))  # the step after its second checkpoint
    train(experiment, tmp_path / "cut14", resume=True)
    assert_same_end(tmp_path / "cut14", whole)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["exact", "ensemble"])
def test_a_run_whose_scales_change_on_both_sides_of_the_break_ends_the_same(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Scales are tuned at steps 4, 10, 16, 22 and 28.
    monkeypatch.setattr("semigpc.refiners.tuning.TUNING_STEPS", 6)
    experiment = small_run("fixmatch", "gp", f"refiner.engine={engine}")
    whole = tmp_path / "whole"
    killed = tmp_path / "cut14"
    train(experiment, whole, listener=Copier(whole, 14))
    scales = {
        entry["step"]: (entry["length_scale"], entry["logit_scale"])
        for entry in entries(whole, "train")
    }
    assert len({found for step, found in scales.items() if step <= 12}) > 1
    assert len({found for step, found in scales.items() if step > 12}) > 1
    assert read_checkpoint(RunFolder(killed).last).state["step"] == 14
    train(experiment, killed, resume=True)
    assert_same_end(killed, whole)


@pytest.mark.slow
def test_two_seeds_end_differently_and_the_callers_random_numbers_are_left_alone(
    finished: Path, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train(small_run(seed=1), tmp_path / "run")
    assert torch.equal(torch.rand(2), expected)
    ours, theirs = (
        read_checkpoint(RunFolder(path).last).part("model") for path in (finished, tmp_path / "run")
    )
    assert not torch.equal(ours["classifier.weight"], theirs["classifier.weight"])


def test_a_finished_run_is_not_overwritten(finished: Path) -> None:
    with pytest.raises(RunError, match="already holds a run"):
        train(small_run(), finished)


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        (small_run("fixmatch", "gp", "train.lr=1e-3"), r"train\.lr was 0\.002, now 0\.001"),
        # Another algorithm is named before the settings that follow from it.
        (small_run("simmatch"), r"settings: algorithm\.name was 'fixmatch', now 'simmatch'"),
    ],
)
def test_resuming_with_other_settings_is_refused_by_name(
    finished: Path, experiment: Experiment, message: str
) -> None:
    with pytest.raises(RunError, match=message):
        train(experiment, finished, resume=True)


def test_lines_that_are_gone_are_missed(finished_copy: Path) -> None:
    RunFolder(finished_copy).metrics.unlink()
    with pytest.raises(RunError, match="has lost lines since the checkpoint"):
        train(small_run(), finished_copy, resume=True)


def test_resuming_a_finished_run_trains_no_further(finished_copy: Path) -> None:
    folder = RunFolder(finished_copy)
    before = folder.last.read_bytes()
    summary = folder.read_summary()
    assert train(small_run(), finished_copy, resume=True)["results"] == summary["results"]
    assert folder.last.read_bytes() == before
