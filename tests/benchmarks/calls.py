"""Calling a benchmark script as a user does, in this process or in one of its own."""

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from typer.testing import CliRunner, Result

ROOT = Path(__file__).parents[2]
SCRIPTS = (
    "update",
    "step",
    "loader",
    "label",
    "embed",
    "engines",
    "estimator",
    "kernels",
    "screening",
    "suspects",
    "field",
    "processes",
)
runner = CliRunner(env={"COLUMNS": "100"})


def bench(script: str, *arguments: str | Path | int) -> Result:
    """Call the command line of a script in this process."""
    return runner.invoke(
        import_module(f"benchmarks.{script}").app, [str(argument) for argument in arguments]
    )


def refused(script: str, *arguments: str | Path | int, words: str) -> None:
    """Call, and check that it ends with exit code 2, these words and no traceback."""
    done = bench(script, *arguments)
    assert done.exit_code == 2, done.output
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def start(script: str, *arguments: str | Path, cwd: Path) -> "subprocess.Popen[str]":
    """Start a script as a file, in a process group of its own, as a terminal would."""
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # processes in the background ignore it otherwise
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
