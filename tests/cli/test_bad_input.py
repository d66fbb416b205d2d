"""What users get wrong: one paragraph, the right exit code, and nothing is lost."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.calls import refused, semigpc, worked
from tests.cli.conftest import Trained
from tests.cli.own_data import CLASSES, make_class_folders, write_table


@pytest.mark.slow
def test_missing_folders_and_files(trained: Trained, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    table = trained.root / "labels.csv"
    for command, words in (
        (("train", nowhere), f"there is no folder or file {nowhere}"),
        (("train digts",), "Did you mean 'digits'?"),
        (("train", trained.photos, "--labels nowhere.csv"), "The table of labels does not exist"),
        (("train", table), "a folder of images or an .npz file"),
        (("predict", trained.run, tmp_path / "nowhere.png"), "no image and no folder"),
    ):
        refused(*command, code=2, words=words)
    refused("evaluate", trained.photos, code=2, words="neither a run nor a labelled folder")
    assert semigpc("evaluate", nowhere).exit_code == 2


@pytest.mark.slow
def test_a_class_absent_from_the_labels(trained: Trained, tmp_path: Path) -> None:
    rows = [line.split(",") for line in (trained.root / "labels.csv").read_text().split()[1:]]
    fewer = [(name, "" if label == "two" else label) for name, label in rows]
    write_table(tmp_path / "labels.csv", fewer)
    command = ("train", trained.photos, "--labels", tmp_path / "labels.csv", "--test")
    out = (trained.root / "test.csv", "--out", tmp_path / "run")
    words = "has images of 'two', which is not a class of the training labels"
    refused(*command, *out, code=2, words=words)
    assert not (tmp_path / "run").exists()


def test_more_classes_in_the_checkpoint_than_in_the_data(trained: Trained, tmp_path: Path) -> None:
    two = make_class_folders(tmp_path / "two", {"zero": 3, "one": 3})
    words = f"the run has 3 classes, and {two} has images of 2: none of 'two'"
    refused("evaluate", trained.run, "--data", two, code=2, words=words)
    done = worked("evaluate", trained.run, "--data", two, "--partial --json")
    assert json.loads(done.stdout)["heads"]["linear"]["per_class_recall"][1] is None


def test_more_classes_in_the_data_than_in_the_checkpoint(trained: Trained, tmp_path: Path) -> None:
    more = make_class_folders(tmp_path / "more", dict.fromkeys(CLASSES, 2))
    (more / "one").rename(more / "uno")
    words = "images of 'uno', and the run was trained on"
    refused("evaluate", trained.run, "--data", more, code=2, words=words)


def test_own_data_that_changed_since(trained: Trained, tmp_path: Path) -> None:
    run = shutil.copytree(trained.run, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    rows = (trained.root / "test.csv").read_text().splitlines()
    (tmp_path / "test.csv").write_text("\n".join(rows[:-1]))
    config["data"]["test"] = str(tmp_path / "test.csv")
    (run / "config.json").write_text(json.dumps(config))
    refused("evaluate", run, code=1, words="3 classes and 15 images then, 3 and 14 now")


def test_misspelt_options(trained: Trained) -> None:
    for command, words in (
        ("train digits --set train.lrr=1", "did you mean 'train.lr'?"),
        ("train digits --algorithm fixmach", "did you mean 'fixmatch'?"),
        ("list settings digits --algorithm fixmach", "did you mean 'fixmatch'?"),
    ):
        refused(command, code=2, words=words)
    tables = ("--labels", trained.root / "labels.csv")
    refused("train", trained.photos, *tables, "--refiner pg", code=2, words="'gp'?")
    for arguments, words in (
        (("train digits --algoritm fixmatch",), "--algorithm"),
        (("evaluate", trained.run, "--part tests"), "test"),
        (("trane digits",), "train"),
    ):
        done = semigpc(*arguments)
        assert done.exit_code == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_options_that_do_not_belong_together(trained: Trained, tmp_path: Path) -> None:
    refused("train digits --labels labels.csv", code=2, words="labels apply to your own data")
    refused("train", trained.photos, "--ratio 10", code=2, words="does not apply to your own data")
    for arguments in (("--partial",), ("--data", tmp_path, "--part test")):
        assert semigpc("evaluate", trained.run, *arguments).exit_code == 2
    for out in (Path("labels.txt"), tmp_path / "no" / "labels.csv"):
        assert semigpc("predict", trained.run, trained.photos, "--out", out).exit_code == 2


def test_what_cannot_train_leaves_no_folder_behind(tmp_path: Path) -> None:
    photos = make_class_folders(tmp_path / "photos", dict.fromkeys(CLASSES, 5))
    out = ("--out", tmp_path / "run")
    for command, words in (
        (("train", photos), "Add unlabelled images, or train with labels alone"),
        (("train", photos, "--algorithm supervised --model resnet81"), "unknown model 'resnet81'"),
        (("train digits --set refiner.buffer_size=0",), "refiner: "),
    ):
        refused(*command, *out, code=2, words=words)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_not_overwritten(trained: Trained, tmp_path: Path) -> None:
    refused("train digits --out", trained.run, code=1, words="already holds a run")
    (tmp_path / "file").write_text("")
    few = "train digits --algorithm fixmatch --refiner none --steps 1 --out"
    refused(few, tmp_path / "file" / "run", code=1, words="Not a directory")


def test_a_broken_checkpoint(trained: Trained, tmp_path: Path) -> None:
    run = shutil.copytree(trained.run, tmp_path / "run")
    last = run / "checkpoints" / "last.safetensors"
    last.write_bytes(last.read_bytes()[:1000])
    refused("evaluate", run, code=1, words="last.safetensors is damaged")
    refused("evaluate", run, "--checkpoint best", code=1, words="it had no validation images")


def test_debug_shows_the_traceback_before_the_verb_and_after_it() -> None:
    for command in ("--debug train digits --set x=1", "train digits --set x=1 --debug"):
        done = semigpc(command)
        assert done.exit_code == 2
        assert "Traceback (most recent call last)" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("semigpc train: unknown setting 'x'")
