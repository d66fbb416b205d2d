"""Two commands at once on one folder: one works, the other says why it does not."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyarrow import parquet

from semigpc.io.atomic import altered
from tests.cli.calls import check_paragraph, start
from tests.fuzzing import cases, seed
from tests.labeling.samples import IDS, LABELS, X, write, write_labels

Process = subprocess.Popen[str]


def both(first: str, second: str, folder: Path, delay: float) -> list[Process]:
    """Two commands, the second started a little later."""
    one = start(first, cwd=folder)
    time.sleep(delay)
    return [one, start(second, cwd=folder)]


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < deadline, "nothing happened for five minutes"
        time.sleep(0.05)


def any_ended(processes: list[Process]) -> bool:
    return any(process.poll() is not None for process in processes)


@pytest.mark.slow
def test_two_labellings_into_one_folder(tmp_path: Path) -> None:
    """With other settings: the second meets the lock, or finished labels of the first."""
    rng = random.Random(seed())
    write(tmp_path, "parquet", X, IDS)
    write_labels(tmp_path / "labels.csv", LABELS)
    base = "label data.parquet --labels labels.csv --no-report --out"
    for number in range(cases(1)):
        out = tmp_path / f"out{number}"
        first, second = (
            f"{base} {out.name} --seed {k} --target-precision {0.9 + 0.05 * k}" for k in (0, 1)
        )
        processes = both(first, second, tmp_path, rng.uniform(0.0, 0.3))
        complaints = [process.communicate(timeout=300)[1] for process in processes]
        codes = [process.returncode for process in processes]
        assert sorted(codes) == [0, 2], complaints
        winner, loser = codes.index(0), codes.index(2)
        met_lock = f"(process {processes[winner].pid} on " in complaints[loser]
        words = "Nothing was changed." if met_lock else "labels that were made differently"
        check_paragraph(complaints[loser], "label", words)
        project = json.loads((out / "project.json").read_text())
        assert project["seed"] == winner
        assert project["key"]["target precision"] == 0.9 + 0.05 * winner
        assert altered(out, project["files"]) == []
        assert parquet.read_table(out / "labels.parquet").num_rows == len(IDS)


@pytest.mark.nightly
def test_two_trainings_in_one_folder(tmp_path: Path) -> None:
    """One is refused at once; the other trains on until it is stopped, and loses nothing."""
    rng = random.Random(seed())
    train = "train digits --algorithm fixmatch --refiner none --steps 1000000 --resume"
    often = "--set train.log_steps=5 --set train.eval_steps=500000 --set train.checkpoint_steps=10"
    for number in range(cases(1)):
        out = tmp_path / f"run{number}"
        command = f"{train} {often} --out {out.name}"
        processes = both(command, command, tmp_path, rng.uniform(0.0, 0.3))
        wait_until(partial(any_ended, processes))
        loser = next(process for process in processes if process.poll() is not None)
        [winner] = [process for process in processes if process is not loser]
        complaint = loser.communicate()[1]
        assert loser.returncode == 2, complaint
        check_paragraph(complaint, "train", f"(process {winner.pid} on ")
        wait_until((out / "checkpoints" / "last.safetensors").exists)
        os.killpg(winner.pid, signal.SIGINT)
        complaint = winner.communicate(timeout=120)[1]
        assert winner.returncode == 130, complaint
        lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        steps = [entry["step"] for entry in lines if entry["kind"] == "train"]
        assert steps
        assert steps == sorted(set(steps))
        assert altered(out, json.loads((out / "summary.json").read_text())["files"]) == []
