"""``semigpc train`` in several processes: what is rejected, and how a run ends when one is killed
or Ctrl-C is pressed.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from semigpc.cli.failures import explain
from semigpc.io.errors import DataError
from semigpc.training.processes import RankError
from tests.cli.calls import check_paragraph, refused, start, step_of
from tests.training.together import WITHOUT_BATCH_NORM, finish, start_all

STEPS = 4000  # far more than any of these tests waits for
SECONDS = 240  # for the start of two processes on a busy machine
ENDED = 60  # seconds in which all processes must have ended


def command() -> list[str]:
    """A run that saves every five steps."""
    settings = ("train.checkpoint_steps=5", f"train.eval_steps={STEPS}", *WITHOUT_BATCH_NORM)
    options = [word for setting in settings for word in ("--set", setting)]
    run = [
        "train",
        "digits",
        "--out",
        "run",
        "--algorithm",
        "fixmatch",
        "--refiner",
        "none",
        "--resume",
    ]
    return [*run, "--steps", str(STEPS), *options]


def wait_for(last: Path, step: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + SECONDS
    while step_of(last) < step and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert step_of(last) >= step


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_killed_process_ends_all_and_ctrl_c_saves_once(tmp_path: Path) -> None:
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"
    process = start(*command(), "--devices", "2", cwd=tmp_path)
    try:
        wait_for(last, 5, process)
        (rank_1,) = map(
            int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        )
        os.kill(rank_1, signal.SIGKILL)
        _, stderr = process.communicate(timeout=ENDED)
        if process.returncode == 1:
            check_paragraph(
                stderr,
                "train",
                "rank 1 was killed by SIGKILL, as the system does when memory runs out.",
            )
        else:  # Fabric noticed it before this process was about to communicate with the other
            assert process.returncode == -signal.SIGKILL, stderr
            assert "[rank: 1] Child process with PID" in stderr
            assert "terminated with code -9" in stderr

        before = step_of(last)
        process = start(*command(), "--devices", "2", cwd=tmp_path)
        wait_for(last, before + 5, process)
        os.killpg(process.pid, signal.SIGINT)  # to all processes, as a terminal does
        stdout, stderr = process.communicate(timeout=ENDED)
        assert process.returncode == 130, stderr
        check_paragraph(
            stderr,
            "train",
            f"stopped after step {step_of(last)} of {STEPS}; everything is saved in run.",
        )
        assert stderr.count("semigpc train: ") == 1
        assert f"Resuming after step {before} of {STEPS}." in stdout

        before = step_of(last)
        process = start(*command(), cwd=tmp_path)  # resumed by one process, which stops as well
        wait_for(last, before + 5, process)
        os.kill(process.pid, signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=ENDED)
        assert process.returncode == 130, stderr
        assert f"Resuming after step {before} of {STEPS}." in stdout

        before = step_of(last)
        process = start(*command(), "--devices", "2", cwd=tmp_path)
        wait_for(last, before + 5, process)
        process.kill()  # rank 0, which started the other
        _, stderr = process.communicate(timeout=ENDED)  # returns when both have ended
        check_paragraph(
            stderr,
            "train",
            "rank 1 lost the connection to another process, which has ended or does not respond",
        )
    finally:
        process.kill()


@pytest.mark.nightly
def test_ctrl_c_saves_under_torchrun(tmp_path: Path) -> None:
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "semigpc")
    process = start(*command(), cwd=tmp_path, module=torchrun)
    try:
        wait_for(last, 5, process)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=ENDED)
    finally:
        process.kill()
    assert process.returncode != 0
    assert (
        f"semigpc train: stopped after step {step_of(last)} of {STEPS}; everything is saved in run."
        in stderr
    )


@pytest.mark.nightly
def test_processes_with_different_settings_are_rejected_by_name(tmp_path: Path) -> None:
    processes = start_all(
        "semigpc", *command(), "--out", str(tmp_path / "run"), only_last=("--seed", "1")
    )
    first, second = finish(processes)
    assert [process.returncode for process in processes] == [1, 1], first + second
    check_paragraph(
        first, "train", "rank 1 was started differently from rank 0: hash of the split is "
    )
    assert "seed is 1, not 0" in first
    assert "semigpc" not in second  # one message is enough
    assert not (tmp_path / "run").exists()


def test_the_error_of_one_process_keeps_its_words_and_its_exit_code() -> None:
    assert explain(RankError(1, DataError("no such table."))) == ("rank 1: no such table.", 2)
    assert explain(RankError(3, RuntimeError("odd")))[0].startswith(
        "rank 3: RuntimeError: odd. Unexpected error"
    )


def test_what_cannot_be_started_is_rejected(tmp_path: Path) -> None:
    run = ("train", "digits", "--out", tmp_path / "run")
    refused(
        *run,
        "--devices",
        "17",
        code=2,
        words="has no row for each of 17. Use at most 16",
    )
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    refused(*run, "--devices", "2", code=1, words="already holds a run")
