"""Links that lead out of a folder: every verb refuses them, and ``--follow-links`` permits them."""

import json
import shutil
from pathlib import Path

import pytest

from semigpc.labeling.project import Project
from tests.cli.calls import SHORT, refused, worked
from tests.cli.conftest import Trained
from tests.cli.own_data import make_class_folders, write_table

TINY = "--model test_resnet --pretrained none"
WORDS = "far.png: a link that leads out of the folder, to"


@pytest.fixture
def linked(trained: Trained, tmp_path: Path) -> Path:
    """The practitioner's folder with one more image, which is a link; its tables lie beside it."""
    photos = tmp_path / "photos"
    shutil.copytree(trained.photos, photos)
    for name in ("labels.csv", "test.csv"):
        shutil.copy(trained.root / name, tmp_path / name)
    shutil.copy(photos / "ze_00.png", tmp_path / "outside.png")
    (photos / "far.png").symlink_to(tmp_path / "outside.png")
    return photos


@pytest.mark.slow
def test_train(linked: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    labels = ("--labels", tmp_path / "labels.csv")
    command = ("train", linked, *labels, "--steps 2 --out", run, SHORT)
    assert "--follow-links" in refused(*command, code=2, words=WORDS)
    assert not run.exists()
    worked(*command, "--follow-links")
    assert json.loads((run / "config.json").read_text())["data"]["follow_links"] is True
    refused("train digits --follow-links", code=2, words="apply to your own data")


def test_predict(trained: Trained, linked: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    command = ("predict", trained.run, linked, "--out", out)
    assert "--follow-links" in refused(*command, code=2, words=WORDS)
    skipping = worked(*command, "--skip-bad")
    assert "skipped: far.png: a link that leads out" in skipping.stderr
    assert "far.png" not in out.read_text()
    worked(*command, "--follow-links")
    assert "far.png" in out.read_text()


def test_evaluate(trained: Trained, tmp_path: Path) -> None:
    new = make_class_folders(tmp_path / "new", {"zero": 2, "one": 2, "two": 2}, skip=20)
    shutil.move(new / "two", tmp_path / "two")
    (new / "two").symlink_to(tmp_path / "two")
    command = ("evaluate", trained.run, "--data", new)
    refused(*command, code=2, words="two: a link that leads out of the folder, to")
    worked(*command, "--follow-links --json")


def test_embed(linked: Path, tmp_path: Path) -> None:
    command = ("embed", linked, "--out", tmp_path / "x.parquet", TINY, "--image-size 32")
    assert "--follow-links" in refused(*command, code=1, words=WORDS)
    done = worked(*command, "--follow-links --json")
    assert json.loads(done.stdout)["rows"] == len(list(linked.iterdir()))


def test_label_and_what_reads_its_folder(tmp_path: Path) -> None:
    photos, out = make_class_folders(tmp_path / "photos", {"zero": 4, "one": 4}), tmp_path / "out"
    shutil.copy(photos / "zero" / "zero00.png", tmp_path / "outside.png")
    (photos / "far.png").symlink_to(tmp_path / "outside.png")
    known = [(f"{name}/{name}{i:02d}.png", name) for name in ("zero", "one") for i in range(3)]
    write_table(tmp_path / "labels.csv", known)
    labels = ("--labels", tmp_path / "labels.csv")
    command = ("label", photos, *labels, "--no-report --out", out, TINY)
    assert "--follow-links" in refused(*command, code=1, words=WORDS)
    worked(*command, "--follow-links")
    project = Project.open(out)
    row = project.ids.index("far.png")
    assert project.image(row) == tmp_path / "outside.png"
    project.settings["follow_links"] = False
    assert project.image(row) is None
