"""The product without the paper: a copy of the package whose room and verbs are deleted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import semigpc

PAPER_VERBS = ("reproduce", "toy", "data")
# One process, since each start imports torch. Arguments: a table of embeddings and one of labels.
SCRIPT = """
import sys
from typer.testing import CliRunner
from semigpc.cli import app
from semigpc.io.errors import SettingsError
from semigpc.training.experiment import config_type
import semigpc.estimator, semigpc.export.run, semigpc.integrations, semigpc.report, semigpc.review

def run(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout

shown = run("--help")
assert "train" in shown and "reproduce" not in shown and "toy" not in shown, shown
assert "fgvc" not in run("list", "datasets")
run("train", "digits", "--steps", "2", "--out", "run")
run("evaluate", "run")
run("label", sys.argv[1], "--labels", sys.argv[2], "--out", "labelled", "--no-report")
try:
    config_type("data", "fgvc")
except SettingsError as error:
    print(error)
assert not any(name.startswith("semigpc.paper") for name in sys.modules)
"""


@pytest.mark.slow
def test_the_product_works_without_the_paper(tmp_path: Path) -> None:
    package = tmp_path / "src" / "semigpc"
    ignored = shutil.ignore_patterns("__pycache__", "paper")
    shutil.copytree(Path(semigpc.__file__).parent, package, ignore=ignored)
    for verb in PAPER_VERBS:
        (package / "cli" / f"{verb}.py").unlink()
    rows = [f"{i},{(i % 2) + 0.01 * i},{1 - i % 2}" for i in range(40)]
    (tmp_path / "x.csv").write_text("\n".join(["id,f_0,f_1", *rows]))
    labels = [f"{i},{'odd' if i % 2 else 'even'}" for i in range(12)]
    (tmp_path / "labels.csv").write_text("\n".join(["id,label", *labels]))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "x.csv", "labels.csv"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "src")},
    )
    assert done.returncode == 0, done.stderr
    assert "unknown data 'fgvc'" in done.stdout
    assert (tmp_path / "labelled" / "labels.csv").exists()
