"""Calling a benchmark script as a user does, in this process or in one of its own."""

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from typer.testing import CliRunner, Result

ROOT = Path(__file__).parents[2]
runner = CliRunner(env={"COLUMNS": "100"})


def bench(script: str, *arguments: str | Path) -> Result:
    """Call the command line of a script in this process."""
    app = import_module(f"benchmarks.{script}").app
    return runner.invoke(app, [str(argument) for argument in arguments])


def refused(script: str, *arguments: str | Path, words: str) -> None:
    """Call, and check that it ends with exit code 2, these words and no traceback."""
    done = bench(script, *arguments)
    assert done.exit_code == 2, done.output
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def start(script: str, *arguments: str | Path, cwd: Path) -> "subprocess.Popen[str]":
    """Start a script as a file, in a process group of its own, as a terminal would."""
    # Processes that a script starts in the background ignore SIGINT otherwise.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    finally:
        signal.signal(signal.SIGINT, before)
