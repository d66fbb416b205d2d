"""Every script through its real entry: its help, a small run, and what it rejects beforehand."""

import json
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.answers import Asking
from benchmarks.estimator import FirstContact
from benchmarks.peers import TUNED_PEERS
from benchmarks.problems import Pool, Problem, loaders
from benchmarks.screening import Screening
from benchmarks.suspects import Flips
from tests.benchmarks.calls import ROOT, bench, refused, start
from tests.cli.own_data import CLASSES, make_class_folders

LABEL = "--rows 300 --labels 30 --width 8 --classes 3 --correction-labels 0 --no-peers"
EMBED = "--model test_resnet --pretrained none --image-size 32 --batch 4 --rounds 2 --images 10"
PHOTOGRAPHS = "photos --labels 9 --seeds 1 --set train.steps=4 --set frozen.views=1"
FIELD = "--problem digits_b4 --method fixmatch --method fixmatch+gp --seed 0 --times 0.034"
SMALL_RUNS: dict[str, tuple[str, str]] = {  # options, and what is among the figures
    "update": ("--size 100 --steps 2", "ratio_paper_rule"),
    "step": ("--model small_cnn --buffer 64 --repetitions 2 --workers 0", "data_wait_share"),
    "loader": ("--images 64 --batches 1 --rounds 1 --workers 1 --image-size 32", "rates"),
    "label": (LABEL, "max_abs_error"),
    "embed": (f"{EMBED} --side 40", "engines"),
    "page": ("--rows 60 --width 8 --classes 2 --answers 3", "counts_s"),
    "engines": ("--part sizes --size 100 --rank 32 --steps 2 --out out.json", "sizes"),
    "estimator": ("--seeds 100:101 --out out.json --plot plot.png", "groups"),
    "label_counts": ("--data clouds --seeds 1 --out out.json --plot plot.png", "curves"),
    "kernels": ("--data digits --seeds 1 --out out.json --plot plot.png", "of_problems"),
    "screening": ("--seeds 1 --out out.json --plot plot.png", "auroc"),
    "suspects": ("--seeds 1 --out out.json", "at_or_above"),
    "answers": ("--seeds 1 --out out.json --plot plot.png", "met_of_random"),
    "field": (f"{FIELD} --out study --plot plot.png", "gain"),
    "photographs": (f"{PHOTOGRAPHS} --set augment.image_size=32 --out out.json", "summary"),
    "processes": ("--algorithm fixmatch --steps 3 --set train.precision=64-true", "weights"),
}
SLOW = {"answers", "embed", "engines", "field", "kernels", "photographs", "suspects"}
NIGHTLY = {"loader", "page", "processes"}  # they start processes and wait for them


def clouds() -> Pool:
    """Four clouds of thirty rows, well apart."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(4), 30)
    rows = 6 * np.eye(4, 5)[codes] + rng.standard_normal((120, 5))
    return Pool(rows.astype(np.float32), codes, names=tuple("abcd"))


@pytest.fixture
def small_problems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One small problem for each study, and two quick peers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))
    make_class_folders(tmp_path / "photos", dict.fromkeys(CLASSES, 8))
    digits = Problem("digits", "B", 5, 4, unlabeled=20)
    monkeypatch.setattr("benchmarks.estimator.PROBLEMS", (digits,))
    monkeypatch.setattr("benchmarks.kernels.PROBLEMS", (digits,))
    few = (FirstContact("clouds", 120, 30), FirstContact("clouds", 120, 60))
    monkeypatch.setattr("benchmarks.label_counts.PROBLEMS", few)
    monkeypatch.setattr("benchmarks.answers.PROBLEMS", (Asking("digits", 3, 30, 5),))
    monkeypatch.setattr("benchmarks.answers.ANSWERS", 40)
    monkeypatch.setattr("benchmarks.suspects.PROBLEMS", (Flips("digits", 0.1),))
    monkeypatch.setattr("benchmarks.screening.PROBLEMS", (Screening("clouds", 3),))
    quick = {name: TUNED_PEERS[name] for name in ("knn", "class_mean")}
    monkeypatch.setattr("benchmarks.estimator.TUNED_PEERS", quick)
    monkeypatch.setattr(
        "benchmarks.tables.loaders", lambda *paths: {**loaders(*paths), "clouds": clouds}
    )


def marked(script: str) -> Any:
    marks = [pytest.mark.slow] if script in SLOW else []
    return pytest.param(script, marks=[pytest.mark.nightly] if script in NIGHTLY else marks)


@pytest.mark.parametrize("script", [marked(script) for script in SMALL_RUNS])
@pytest.mark.usefixtures("small_problems")
def test_a_small_run_prints_json_and_a_table(script: str) -> None:
    options, figure = SMALL_RUNS[script]
    done = bench(script, *options.split(), "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert figure in (record[0] if isinstance(record, list) else record)
    if "--plot" in options:
        assert Path("plot.png").stat().st_size > 10_000
    if "--out" in options:  # what is finished is not run again
        again = bench(script, *options.split())
        assert again.exit_code == 0, again.output
        assert not again.stdout.startswith("{")


@pytest.mark.nightly
def test_scripts_run_as_a_file_from_anywhere_and_as_a_module(tmp_path: Path) -> None:
    with start("update", "--size", "100", "--steps", "2", "--json", cwd=tmp_path) as process:
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert [record["size"] for record in json.loads(stdout)] == [100]
    command = [sys.executable, "-m", "benchmarks.label", *LABEL.split(), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 300


@pytest.mark.parametrize("script", SMALL_RUNS)
def test_every_script_has_a_help_and_a_line_in_the_readme(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--help"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / f"{script}.py"), run_name="__main__")
    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out
    assert f"`{script}.py`" in (ROOT / "benchmarks" / "README.md").read_text()


def test_no_script_is_forgotten_here() -> None:
    modules = [path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")]
    assert {name for name in modules if hasattr(import_module(f"benchmarks.{name}"), "app")} == set(
        SMALL_RUNS
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("update --size 64 --batch 64", "64 rows do not fit below the smallest size"),
        ("update --plot nowhere/c.png", "there is no folder nowhere"),
        ("update --size 1", "greater than or equal to 64"),
        ("update --rows nothing.parquet", "there is no file nothing.parquet"),
        ("step --algorithm fixmach", "fixmatch"),
        ("processes --algorithm fixmach", "fixmatch"),
        ("label --labels 5 --classes 6", "6 classes need a labelled row each"),
        ("estimator --out e.json --data cifar10", "cifar10 needs --embeddings cifar10=FILE"),
        ("estimator --out e.json --first-contact", "waste needs --embeddings waste=FILE"),
        ("estimator --out e.json --embeddings w.parquet", "is not NAME=FILE, with one of waste"),
        ("kernels --out e.json --embeddings birds=b.parquet", "is not NAME=FILE"),
        ("screening --out s.json --embeddings cifar10=c.parquet", "there is no file c.parquet"),
        ("estimator --out e.json --data mnist", "mnist needs --mnist"),
        ("estimator --out e.json --seeds 20:10", "is not FROM:TO"),
        ("answers --out a.json --data waste", "waste needs --embeddings waste=FILE"),
        ("answers --from-nothing --out a.json --data digits", "unknown data 'digits'"),
        ("kernels --out e.json --data fashion", "unknown data 'fashion'"),
        ("screening --out nowhere/s.json", "there is no folder nowhere"),
        ("field --out out --problem cifar10_a50", "give the path of their data by --cifar"),
        ("field --out out --problem digits", "unknown problem 'digits'"),
        ("field --out out --method fixmach", "did you mean 'fixmatch'?"),
    ],
)
def test_bad_options_are_rejected_before_anything_is_measured(
    command: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(*command.split(), words=words)
    assert not list(tmp_path.iterdir())
