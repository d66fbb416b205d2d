"""``semigpc bench``: what it measures through its real entry point, what it refuses without starting a process for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calls import semigpc


def in_a_process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "semigpc", *arguments], capture_output=True, text=True, cwd=cwd)


def test_json_on_standard_output_and_curves_in_a_file(tmp_path: Path) -> None:
    done = in_a_process(
        "bench", "update", "--size", "100", "--size", "150", "--steps", "2", "--json", "--plot", "c.png", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert [record["size"] for record in json.loads(done.stdout)] == [100, 150]
    assert "One update, rows: stream, N = 100" in done.stderr
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_bad_options_are_refused_before_anything_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, message in (
        (["--size", "64", "--batch", "64"], "64 rows do not fit below the smallest size"),
        (["--plot", "nowhere/c.png"], "there is no folder nowhere"),
        (["--size", "1"], "greater than or equal to 64"),
    ):
        done = semigpc("bench", "update", *arguments)
        assert done.exit_code == 2
        assert message in " ".join(done.stderr.replace("│", " ").split())
        assert "Traceback" not in done.stderr


def test_help_teaches() -> None:
    done = semigpc("bench", "update", "--help")
    assert done.exit_code == 0
    for words in ("--size", "--json", "--plot", "floor"):
        assert words in done.stdout


def test_version(tmp_path: Path) -> None:
    assert in_a_process("--version", cwd=tmp_path).stdout.startswith("semigpc 0.")


def test_engines_are_compared_and_a_finished_part_is_not_run_again(tmp_path: Path) -> None:
    out, plot = tmp_path / "engines.json", tmp_path / "engines.png"
    options = ("--part", "sizes", "--size", "100", "--rank", "32", "--steps", "2", "--out", str(out))
    run = in_a_process("bench", "engines", *options, "--plot", str(plot), cwd=tmp_path)
    assert "N = 100, rank 32" in run.stdout
    assert all(name in run.stdout for name in ("exact", "lowrank", "ensemble", "matrix_free"))
    assert plot.stat().st_size > 10_000
    before = out.read_text()
    again = semigpc("bench", "engines", *options, "--json")
    assert json.loads(again.stdout) == json.loads(before)
    assert "engine of" not in again.stderr


@pytest.mark.slow
def test_processes_are_compared_with_one(tmp_path: Path) -> None:
    options = ("--algorithm", "fixmatch", "--steps", "3", "--set", "train.precision=64-true", "--json")
    run = in_a_process("bench", "processes", *options, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    (record,) = json.loads(run.stdout)
    assert record["weights"] < 1e-12
    assert record["gp_rows"] < 1e-6
    assert not list(tmp_path.iterdir()), "the runs are not kept"


def test_an_unknown_algorithm_is_answered_with_the_nearest() -> None:
    run = semigpc("bench", "processes", "--algorithm", "fixmach")
    assert run.exit_code == 2
    assert "fixmatch" in run.stderr
