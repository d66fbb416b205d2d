"""A damaged file is refused or read, and never kills the process: no signal, no error but DataError, no hang."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.labeling.damaged import originals, write_damaged

SEED = int(os.environ.get("SEMIGPC_FUZZ_SEED", "0"))
CASES = int(os.environ.get("SEMIGPC_FUZZ_CASES", "500"))
FEW = 68
ROOT = Path(__file__).parents[2]
HANG = 300  # seconds for all files of a process, far beyond need


def read_all(folder: Path) -> list[dict[str, str]]:
    """The outcome of each file of a folder, which is emptied; a process that dies is named by its signal and replaced."""
    ended: list[dict[str, str]] = []
    while any(folder.iterdir()):
        command = [sys.executable, "-m", "tests.labeling.damaged", str(folder)]
        child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=False)
        lines = [json.loads(line) for line in child.stdout.splitlines()]
        ended += [line for line in lines if line["outcome"] != "begun"]
        if child.returncode:
            assert lines, child.stderr
            ended.append(lines[-1] | {"outcome": f"ended by {child.returncode}", "message": child.stderr[-500:]})
            (folder / lines[-1]["file"]).unlink(missing_ok=True)
    return ended


def check(folder: Path, count: int, seed: int) -> None:
    write_damaged(folder, count, seed)
    ended = read_all(folder)
    bad = [line for line in ended if line["outcome"] not in ("read", "refused")]
    assert not bad, f"seed {seed}: {bad}"
    assert len(ended) == count
    assert Counter(line["outcome"] for line in ended)["refused"] >= count // 2
    assert all(line["file"] in line["message"] for line in ended if line["outcome"] == "refused" and line["file"][0] != "i")


def test_good_files_are_read(tmp_path: Path) -> None:
    for name, content in originals().items():
        (tmp_path / name).write_bytes(content)
    ended = read_all(tmp_path)
    assert [line for line in ended if line["outcome"] != "read"] == []
    assert len(ended) == len(originals())


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    check(tmp_path, FEW, SEED)


@pytest.mark.slow
def test_many_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    check(tmp_path, CASES, SEED + 1)
