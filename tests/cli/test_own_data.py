"""A folder of images with few labels: the commands of the README and docs/train.md."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from tests.cli.calls import SHORT, refused, semigpc, worked
from tests.cli.conftest import Trained
from tests.cli.own_data import CLASSES, make_class_folders, make_folder, pixels
from tests.labeling.samples import read_rows


def settings(run: Path) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads((run / "config.json").read_text())
    return found


def test_training_says_what_it_found_and_what_came_out(trained: Trained) -> None:
    for words in (
        "Found 3 classes, 14 labelled images (one 5, two 3, zero 6), 36 unlabelled, 15 for test.",
        "Note: No validation images",
        "last            30 test   GP",
        "best on test*   30 test   linear",
        "predict, evaluate and export use the linear head of step 30, the last.",
        "* chosen on the test set itself",
        f"report: {trained.run / 'report.html'}",
    ):
        assert words in trained.printed
    assert "step 30 of 30: loss" in trained.lines  # no terminal, so a line at every evaluation
    assert (trained.run / "report.html").stat().st_size > 10_000


def test_tiny_images_are_used_as_they_are(trained: Trained) -> None:
    config = settings(trained.run)
    assert (config["augment"]["image_size"], config["augment"]["style"]) == (16, "pad")
    assert config["model"]["name"] == "small_cnn"
    assert config["refiner"]["class_prior"] == "frequency"


def test_evaluation_repeats_the_figures_of_the_run(trained: Trained) -> None:
    done = worked("evaluate", trained.run, "--json")
    told = json.loads(done.stdout)
    assert (told["checkpoint"], told["step"], told["images"]) == ("last", 30, "test")
    last = json.loads((trained.run / "summary.json").read_text())["results"]["last"]
    assert told["heads"][told["head"]].items() <= last.items()
    assert set(told["heads"]) == {"linear", "gp"}
    assert "balanced" in done.stderr


def test_a_run_needs_its_training_data_no_more(trained: Trained, tmp_path: Path) -> None:
    run = shutil.copytree(trained.run, tmp_path / "run")
    config = settings(run)
    config["data"]["root"] = str(tmp_path / "gone")
    (run / "config.json").write_text(json.dumps(config))
    new = make_class_folders(tmp_path / "new", dict.fromkeys(CLASSES, 4), skip=60)
    other = worked("evaluate", run, "--data", new, "--json")
    assert json.loads(other.stdout)["heads"]["linear"]["n"] == 12
    worked("predict", run, new)


@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_predictions_are_written(trained: Trained, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"labels.{ending}"
    done = worked("predict", trained.run, trained.photos, "--out", out)
    assert f"wrote {out}: 65 images" in done.stdout
    if ending == "csv":
        rows = read_rows(out)
    elif ending == "json":
        rows = json.loads(out.read_text())
    else:
        rows = parquet.read_table(out).to_pylist()
    assert len(rows) == 65
    for row in rows:
        assert row["label"] in CLASSES
        assert row["second"] in CLASSES
        assert row["second"] != row["label"]
        assert 0 <= float(row["second_confidence"]) <= float(row["confidence"]) <= 1


def test_guesses_of_semigpc_are_no_labels_for_any_verb(trained: Trained, tmp_path: Path) -> None:
    predicted = tmp_path / "predicted.parquet"
    assert semigpc("predict", trained.run, trained.photos, "--out", predicted).exit_code == 0
    of_photos = (trained.photos, "--labels", predicted)
    for verb in (("evaluate", trained.run, "--data"), ("train",), ("compare",)):
        refused(*verb, *of_photos, code=2, words="guesses: no person gave them")
    own = tmp_path / "own.csv"
    rows = [f"{name[:2]}_00.png,{name},1,0,labelled" for name in CLASSES]
    rows += [f"{name[:2]}_01.png,{name},0.9,0.1,pseudo" for name in CLASSES]
    own.write_text("\n".join(["file_name,label,confidence,variance,status", *rows]) + "\n")
    call = ("evaluate", trained.run, "--data", trained.photos, "--labels", own, "--json")
    done = semigpc(*call)
    assert json.loads(done.stdout)["heads"]["gp"]["n"] == 3
    assert "guesses of semigpc: 3." in " ".join(done.stderr.split())
    assert json.loads(semigpc(*call, "--trust-pseudo").stdout)["heads"]["gp"]["n"] == 6


def test_few_predictions_are_shown_and_heads_differ(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = trained.photos / "on_00.png"
    monkeypatch.chdir(trained.photos)  # a long path would be folded
    assert "on_00.png" in semigpc("predict", trained.run, image.name).stdout
    linear, gp = (
        json.loads(semigpc("predict", trained.run, image, "--json --head", head).stdout)[0]
        for head in ("linear", "gp")
    )
    assert linear["confidence"] != gp["confidence"]


def test_images_that_cannot_be_read_stop_or_are_skipped(trained: Trained, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    whole = (trained.photos / "on_00.png").read_bytes()
    good.write_bytes(whole)
    bad.write_bytes(whole[: len(whole) // 2])
    refused("predict", trained.run, tmp_path, code=1, words=str(bad))
    done = worked("predict", trained.run, tmp_path, "--skip-bad --json")
    assert [row["file_name"] for row in json.loads(done.stdout)] == [good.name]
    assert "skipped: The image" in done.stderr
    refused("predict", trained.run, bad, "--skip-bad", code=2, words="none of the 1 images")


@pytest.mark.slow
def test_class_folders_with_a_validation_part(tmp_path: Path) -> None:
    photos = make_class_folders(tmp_path / "photos", {"zero": 8, "one": 6, "two": 5}, unlabeled=4)
    judged = make_class_folders(tmp_path / "judged", dict.fromkeys(CLASSES, 3), skip=40)
    run = tmp_path / "run"
    command = ("train", photos, "--test", judged, "--steps 2 --algorithm fixmatch --refiner none")
    done = worked(*command, "--out", run, "--set train.eval_steps=1 --json")
    summary = json.loads(done.stdout)
    assert summary["status"] == "finished"
    assert summary["results"]["best_on_validation"]["part"] == "test"
    assert settings(run)["data"]["validation"] == 0.2  # every class has five labels
    assert "best on validation" in done.stderr
    assert json.loads(semigpc("evaluate", run, "--json").stdout)["checkpoint"] == "best"
    own = json.loads(semigpc("evaluate", run, "--part validation --json").stdout)
    assert own["heads"]["linear"]["n"] == 3
    refused("predict", run, photos, "--head gp", code=2, words="trained without a GP")
    # The sub-folder that holds no class is left out here too.
    worked("evaluate", run, "--data", photos)


@pytest.mark.slow
def test_arrays(tmp_path: Path) -> None:
    file, run = tmp_path / "a.npz", tmp_path / "run"
    x = np.concatenate([pixels(name, 12) for name in CLASSES])
    y = np.repeat(np.arange(3), 12)
    known = np.arange(len(y)) % 12 < 4
    judged: Any = {"x_test": x, "y_test": y}
    np.savez(file, x_labeled=x[known], y_labeled=y[known], x_unlabeled=x[~known], **judged)
    worked("train", file, "--steps 1 --out", run, SHORT)
    told = [worked("evaluate", run, "--json"), worked("evaluate", run, "--data", file, "--json")]
    own, other = (json.loads(done.stdout)["heads"] for done in told)
    assert own == other
    done = worked("predict", run, file, "--out", tmp_path / "a.csv")
    assert "not calibrated" not in done.output
    names = [row["file_name"] for row in read_rows(tmp_path / "a.csv")]
    assert names == [f"x_unlabeled/{i}" for i in range(24)]
    np.savez(tmp_path / "test.npz", **judged)
    words = "has no unlabelled images, in x_unlabeled or with -1"
    refused("predict", run, tmp_path / "test.npz", code=2, words=words)


@pytest.mark.slow
def test_one_label_a_class_is_too_few_to_calibrate_by_or_to_hold_out(tmp_path: Path) -> None:
    file, run = tmp_path / "a.npz", tmp_path / "run"
    x, y = np.concatenate([pixels(name, 6) for name in CLASSES]), np.repeat(np.arange(3), 6)
    y[np.arange(len(y)) % 6 > 0] = -1
    np.savez(file, x_labeled=x, y_labeled=y, x_unlabeled=x[:0])
    done = worked("train", file, "--steps 2 --validation 0.2 --resume --out", run, SHORT)
    for words in (
        f"There is no run in {run} to resume",
        "A fraction of 0.2 is less than one label of any class",
        "No test images",
        "There were no images to evaluate on.",
        "Note at step 2: The confidence is not calibrated",
    ):
        assert words in done.output
    done = semigpc("predict", run, file, "--json")
    assert "Note: The confidence is not calibrated" in done.stderr
    names = [row["file_name"] for row in json.loads(done.stdout)]
    assert names[:6] == [f"x_labeled/{i}" for i in (1, 2, 3, 4, 5, 7)]


@pytest.mark.nightly
def test_the_three_commands_through_the_installed_script(tmp_path: Path) -> None:
    make_folder(tmp_path)
    script = Path(sys.executable).with_name("semigpc")
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    for command in (
        "train photos --labels labels.csv --test test.csv --steps 30",
        "evaluate runs/photos-simmatch-gp-seed0",
        "predict runs/photos-simmatch-gp-seed0 photos --out predicted.csv",
    ):
        words = [str(script), *command.split()]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
    assert len((tmp_path / "predicted.csv").read_text().splitlines()) == 66
    assert (tmp_path / "runs/photos-simmatch-gp-seed0/report.html").exists()
