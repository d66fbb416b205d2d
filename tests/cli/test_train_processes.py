"""``semigpc train`` in several processes: what is rejected, and how a run ends by a signal."""

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
from tests.training.together import WITHOUT_BATCH_NORM

STEPS = 4000  # far more than any of these tests waits for
SECONDS = 240  # for the start of two processes on a busy machine
ENDED = 60  # seconds in which all processes must have ended


COMMAND = (
    f"train digits --out run --algorithm fixmatch --refiner none --resume --steps {STEPS}",
    f"--set train.checkpoint_steps=5 --set train.eval_steps={STEPS}",  # saved every five steps
    *(f"--set {setting}" for setting in WITHOUT_BATCH_NORM),
)


def stopped_after(step: int) -> str:
    return f"stopped after step {step} of {STEPS}; everything is saved in run."


def wait_for(last: Path, step: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + SECONDS
    while step_of(last) < step and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert step_of(last) >= step


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_killed_process_ends_all_and_ctrl_c_saves_once(tmp_path: Path) -> None:
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"
    process = start(*COMMAND, "--devices 2", cwd=tmp_path)
    try:
        wait_for(last, 5, process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        (rank_1,) = children.read_text().split()
        os.kill(int(rank_1), signal.SIGKILL)
        _, stderr = process.communicate(timeout=ENDED)
        if process.returncode == 1:
            check_paragraph(stderr, "train", "rank 1 was killed by SIGKILL, as the system does")
        else:  # Fabric noticed it before this process was about to communicate with the other
            assert process.returncode == -signal.SIGKILL, stderr
            assert "[rank: 1] Child process with PID" in stderr
            assert "terminated with code -9" in stderr

        before = step_of(last)
        process = start(*COMMAND, "--devices 2", cwd=tmp_path)
        wait_for(last, before + 5, process)
        os.killpg(process.pid, signal.SIGINT)  # to all processes, as a terminal does
        stdout, stderr = process.communicate(timeout=ENDED)
        assert process.returncode == 130, stderr
        check_paragraph(stderr, "train", stopped_after(step_of(last)))
        assert stderr.count("semigpc train: ") == 1
        assert f"Resuming after step {before} of {STEPS}." in stdout

        before = step_of(last)
        process = start(*COMMAND, cwd=tmp_path)  # resumed by one process, which stops as well
        wait_for(last, before + 5, process)
        os.kill(process.pid, signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=ENDED)
        assert process.returncode == 130, stderr
        assert f"Resuming after step {before} of {STEPS}." in stdout

        before = step_of(last)
        process = start(*COMMAND, "--devices 2", cwd=tmp_path)
        wait_for(last, before + 5, process)
        process.kill()  # rank 0, which started the other
        _, stderr = process.communicate(timeout=ENDED)  # returns when both have ended
        words = "rank 1 lost the connection to another process, which has ended or does not respond"
        check_paragraph(stderr, "train", words)
    finally:
        process.kill()


@pytest.mark.nightly
def test_ctrl_c_saves_under_torchrun(tmp_path: Path) -> None:
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"
    torchrun = "torch.distributed.run --standalone --nproc-per-node 2 -m semigpc"
    process = start(*COMMAND, cwd=tmp_path, module=torchrun.split())
    try:
        wait_for(last, 5, process)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=ENDED)
    finally:
        process.kill()
    assert process.returncode != 0
    assert f"semigpc train: {stopped_after(step_of(last))}" in stderr


def test_the_error_of_one_process_keeps_its_words_and_its_exit_code() -> None:
    assert explain(RankError(1, DataError("no such table."))) == ("rank 1: no such table.", 2)
    message = explain(RankError(3, RuntimeError("odd")))[0]
    assert message.startswith("rank 3: RuntimeError: odd. Unexpected error")


def test_what_cannot_be_started_is_rejected(tmp_path: Path) -> None:
    run = ("train digits --out", tmp_path / "run")
    refused(*run, "--devices 17", code=2, words="has no row for each of 17. Use at most 16")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    refused(*run, "--devices 2", code=1, words="already holds a run")
