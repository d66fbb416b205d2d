"""Calling ``semigpc`` as a user does, in this process or in one of its own."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from semigpc.cli import app
from semigpc.io.errors import CheckpointError
from semigpc.training.run_folder import read_checkpoint

runner = CliRunner(env={"COLUMNS": "100"})
SHORT = "--set refiner.buffer_size=64 --set train.eval_batch=64 --set train.threads=1"


def words_of(*arguments: str | Path) -> list[str]:
    """Return the words of a command line: text is split as a shell does, a path is one word."""
    words = []
    for argument in arguments:
        words += shlex.split(argument) if isinstance(argument, str) else [str(argument)]
    return words


def semigpc(*arguments: str | Path) -> Result:
    return runner.invoke(app, words_of(*arguments))


def worked(*arguments: str | Path) -> Result:
    """Call, and check that it succeeded."""
    done = semigpc(*arguments)
    assert done.exit_code == 0, done.output
    return done


def refused(*arguments: str | Path, code: int, words: str) -> str:
    """Call, and check for that exit code and one paragraph with these words, no traceback."""
    done = semigpc(*arguments)
    assert done.exit_code == code, done.output
    check_paragraph(done.stderr, words_of(*arguments)[0], words)
    return done.stderr


def check_paragraph(stderr: str, verb: str, words: str) -> None:
    last = stderr.strip().splitlines()[-1]
    assert last.startswith(f"semigpc {verb}: "), stderr
    assert words in last, stderr
    assert "Traceback" not in stderr


def start(
    *arguments: str | Path, cwd: Path, module: Sequence[str] = ("semigpc",), **options: Any
) -> "subprocess.Popen[str]":
    """Start the real entry point, in a process group of its own, as a terminal does."""
    # The background of a script ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", *module, *words_of(*arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            **options,
        )
    finally:
        signal.signal(signal.SIGINT, before)


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint that another process may be replacing; 0 without one."""
    while checkpoint.exists():
        try:
            return int(read_checkpoint(checkpoint).state["step"])
        except CheckpointError as error:
            if "was replaced while it was read" not in str(error):
                raise
    return 0
