"""Every example runs, prints its result and nothing else."""

import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from semigpc.algorithms import ALGORITHMS

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(ALGORITHMS):  # one adds its own
        runpy.run_path(str(path), run_name="__main__")
    printed = capfd.readouterr()
    assert printed.out
    assert printed.err == ""
    assert len(path.read_text().splitlines()) < 100


@pytest.mark.nightly
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_in_a_process_of_its_own(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
