"""``semigpc train --devices``: what is refused, and what becomes of a run when a process is killed or Ctrl-C is pressed."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from semigpc.cli.failures import explain
from semigpc.data import DataError
from semigpc.training.processes import RankError
from semigpc.training.run_folder import read_checkpoint
from tests.cli.calls import check_paragraph, refused, start

COMMAND = (
    *("train", "digits", "--out", "run", "--algorithm", "fixmatch", "--refiner", "none", "--resume", "--steps", "4000"),
    *("--set", "train.checkpoint_steps=5", "--set", "train.eval_steps=4000", "--devices", "2"),
)
SECONDS = 90


def step_of(last: Path) -> int:
    return int(read_checkpoint(last).state["step"]) if last.exists() else 0


def wait_for(last: Path, step: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + SECONDS
    while step_of(last) < step and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert step_of(last) >= step


def ranks_of(process: "subprocess.Popen[str]") -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    named = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return sorted(child for child, command in named.items() if b"spawn_main" in command)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_killed_rank_ends_all_and_ctrl_c_saves_once(tmp_path: Path) -> None:
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"
    process = start(*COMMAND, cwd=tmp_path)
    try:
        wait_for(last, 5, process)
        ranks = ranks_of(process)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 1, stderr
        check_paragraph(stderr, "train", "rank 1 was killed by SIGKILL (signal 9)")
        assert not Path(f"/proc/{ranks[0]}").exists()

        before = step_of(last)
        process = start(*COMMAND, cwd=tmp_path)
        wait_for(last, before + 5, process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 130, stderr
        check_paragraph(stderr, "train", f"stopped after step {step_of(last)} of 4000; everything is saved in run.")
        assert f"Resuming after step {before} of 4000." in stdout
    finally:
        process.kill()


def test_the_error_of_one_rank_keeps_its_words_and_its_exit_code() -> None:
    assert explain(RankError(1, DataError("no such table."))) == ("rank 1: no such table.", 2)
    assert explain(RankError(3, RuntimeError("odd")))[0].startswith("rank 3: RuntimeError: odd This was not foreseen")


def test_what_cannot_be_started_is_refused(tmp_path: Path) -> None:
    run = ("train", "digits", "--out", tmp_path / "run")
    refused(*run, "--devices", "17", code=2, words="has no row for each of 17. Use at most 16, or a larger batch.")
    refused(*run, "--nodes", "2", code=2, words="several nodes need --rendezvous HOST:PORT")
    refused(*run, "--nodes", "2", "--rendezvous", "here", code=2, words="must be HOST:PORT, such as 10.0.0.1:29500; got 'here'")
    refused(*run, "--node-rank", "1", code=2, words="--node-rank must lie in [0, 1), counting nodes from 0; got 1.")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    refused(*run, "--devices", "2", code=1, words="already holds a run")
