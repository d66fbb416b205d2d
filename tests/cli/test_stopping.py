"""Ctrl-C and SIGTERM, through the real entry point and with a loader worker: nothing is lost,
nothing is noisy.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.calls import check_paragraph, start, step_of

COMMAND = (
    *(
        "train",
        "digits",
        "--out",
        "run",
        "--algorithm",
        "fixmatch",
        "--refiner",
        "none",
        "--resume",
        "--steps",
        "120",
    ),
    *(
        "--set",
        "train.checkpoint_steps=20",
        "--set",
        "train.eval_steps=120",
        "--set",
        "train.workers=1",
    ),
)


def stop_group(process: "subprocess.Popen[str]", number: int, ready: Callable[[], bool]) -> str:
    """Signal every process of the group, as a terminal and a batch system do, as soon as it is
    time.
    """
    deadline = time.monotonic() + 90
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    check_paragraph(
        stderr,
        "train",
        "everything is saved in run. Run the same command with --resume to continue.",
    )
    assert "Error" not in stderr  # nor from a worker
    return stderr


@pytest.mark.slow
def test_ctrl_c_saves_and_stops_while_workers_are_starting(tmp_path: Path) -> None:
    """One step is made, and saved."""
    run = tmp_path / "run"
    message = stop_group(start(*COMMAND, cwd=tmp_path), signal.SIGINT, (run / "config.json").exists)
    assert "stopped after step 1 of 120" in message
    assert step_of(run / "checkpoints" / "last.safetensors") == 1


@pytest.mark.nightly
def test_sigterm_saves_and_stops(tmp_path: Path) -> None:
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"
    process = start(*COMMAND, cwd=tmp_path)
    message = stop_group(process, signal.SIGTERM, lambda: step_of(last) > 1)
    assert f"stopped after step {step_of(last)} of 120" in message
