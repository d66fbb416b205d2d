"""The scripts through their real entries: as files, as modules, and what they refuse before
anything is measured.
"""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.calls import ROOT, SCRIPTS, bench, refused, start


@pytest.mark.slow
def test_a_script_runs_as_a_file_from_anywhere(tmp_path: Path) -> None:
    options = ("--size", "100", "--size", "150", "--steps", "2", "--json", "--plot", "c.png")
    with start("update", *options, cwd=tmp_path) as process:
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert [record["size"] for record in json.loads(stdout)] == [100, 150]
    assert "One update, rows: stream, N = 100" in stderr
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_script_runs_as_a_module_from_a_checkout() -> None:
    small = (
        "--rows",
        "300",
        "--labels",
        "30",
        "--width",
        "8",
        "--classes",
        "3",
        "--correction-labels",
        "0",
        "--no-peers",
    )
    command = [sys.executable, "-m", "benchmarks.label", *small, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 300


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_has_a_help_with_its_options(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--help"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / f"{script}.py"), run_name="__main__")
    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_the_readme_has_a_line_for_every_script() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    assert all(f"`{script}.py`" in text for script in SCRIPTS)


def test_bad_options_are_refused_before_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(
        "update", "--size", 64, "--batch", 64, words="64 rows do not fit below the smallest size"
    )
    refused("update", "--plot", "nowhere/c.png", words="there is no folder nowhere")
    refused("update", "--size", 1, words="greater than or equal to 64")
    refused("update", "--rows", "nothing.parquet", words="there is no file nothing.parquet")
    refused("step", "--algorithm", "fixmach", words="fixmatch")
    refused("processes", "--algorithm", "fixmach", words="fixmatch")


@pytest.mark.slow
def test_engines_are_compared_and_a_finished_part_is_not_run_again(tmp_path: Path) -> None:
    out, plot = tmp_path / "engines.json", tmp_path / "engines.png"
    options = ("--part", "sizes", "--size", 100, "--rank", 32, "--steps", 2, "--out", out)
    run = bench("engines", *options, "--plot", plot)
    assert run.exit_code == 0, run.output
    assert "N = 100, rank 32" in run.stdout
    assert all(name in run.stdout for name in ("exact", "ensemble", "matrix_free"))
    assert plot.stat().st_size > 10_000
    before = out.read_text()
    again = bench("engines", *options, "--json")
    assert json.loads(again.stdout) == json.loads(before)
    assert "engine of" not in again.stderr


def test_a_step_is_measured_with_the_gp_and_without_and_so_is_the_wait() -> None:
    options = ("--model", "small_cnn", "--buffer", 64, "--repetitions", 2, "--workers", 0, "--json")
    done = bench("step", *options)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["ratio"] == pytest.approx(found["gp_s"] / found["base_s"])
    assert 0 <= found["data_wait_share"] < 1


@pytest.mark.nightly
def test_loaders_are_timed_for_training_and_evaluation() -> None:
    options = (
        "--images",
        64,
        "--batches",
        1,
        "--rounds",
        1,
        "--workers",
        1,
        "--image-size",
        32,
        "--image-size",
        48,
    )
    run = bench("loader", *options, "--json")
    assert run.exit_code == 0, run.output
    record = json.loads(run.stdout)
    assert len(record["rates"]) == 2 * 2 * 3
    assert all(entry["images_per_s"] > 0 and entry["ratio"] > 0 for entry in record["rates"])
    assert {entry["ratio"] for entry in record["rates"] if entry["loader"] == "torchvision"} == {1}


def test_embedding_is_timed_in_every_engine_and_from_files() -> None:
    options = (
        "--model",
        "test_resnet",
        "--pretrained",
        "none",
        "--image-size",
        32,
        "--batch",
        4,
        "--rounds",
        2,
    )
    run = bench("embed", *options, "--images", 10, "--side", 40, "--json")
    assert run.exit_code == 0, run.output
    record = json.loads(run.stdout)
    assert [entry["engine"] for entry in record["engines"]] == [
        "torch",
        "torch, channels last",
        "ONNX Runtime",
    ]
    assert all(
        entry["image_size"] == 32 and entry["images_per_s"] > 0 for entry in record["engines"]
    )
    assert record["engines"][0]["ratio"] == 1
    folder = record["folder"]
    assert (folder["images"], folder["side"]) == (10, 40)
    assert folder["line"].startswith("embedding 10 images at 32 px with test_resnet on torch")
    assert 0 < folder["prepare_s"] < folder["seconds"]


@pytest.mark.nightly
def test_processes_are_compared_with_one(tmp_path: Path) -> None:
    options = (
        "--algorithm",
        "fixmatch",
        "--steps",
        "3",
        "--set",
        "train.precision=64-true",
        "--json",
    )
    with start("processes", *options, cwd=tmp_path) as process:
        stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    (record,) = json.loads(stdout)
    assert record["weights"] < 1e-12
    assert record["gp_rows"] < 1e-6
    assert not list(tmp_path.iterdir()), "the runs are not kept"
