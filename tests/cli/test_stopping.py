"""Ctrl-C with a loader worker; test_train_processes.py stops several processes, and by SIGTERM."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.cli.calls import check_paragraph, start, step_of

COMMAND = (
    "train digits --out run --algorithm fixmatch --refiner none --resume --steps 120",
    "--set train.checkpoint_steps=20 --set train.eval_steps=120 --set train.workers=1",
)


@pytest.mark.slow
def test_ctrl_c_saves_and_stops_while_workers_are_starting(tmp_path: Path) -> None:
    """One step is made, and saved; every process of the group gets the signal, as in a terminal."""
    run = tmp_path / "run"
    process = start(*COMMAND, cwd=tmp_path)
    deadline = time.monotonic() + 90
    while not (run / "config.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    saved = "everything is saved in run. Run the same command with --resume to continue."
    check_paragraph(stderr, "train", saved)
    assert "Error" not in stderr  # nor from a worker
    assert "stopped after step 1 of 120" in stderr
    assert step_of(run / "checkpoints" / "last.safetensors") == 1
