"""A labelling before anything is fitted: what is found, what is kept, what is rejected."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet, table

from semigpc.io.errors import DataError
from semigpc.labeling.label import LabelSettings
from semigpc.labeling.project import Project
from semigpc.labeling.start import folder_for, start
from semigpc.models.encoder import EmbedConfig
from semigpc.review.session import Session, open_session

TINY = EmbedConfig(model="test_resnet", pretrained="none", image_size=32)


def write_table(path: Path, rows: int = 40, **columns: Any) -> Path:
    rng = np.random.default_rng(0)
    centres = 4 * rng.standard_normal((2, 6))
    x = (centres[np.arange(rows) % 2] + rng.standard_normal((rows, 6))).astype(np.float32)
    parquet.write_table(
        table({"file_name": [f"r{i}" for i in range(rows)], "x": x.tolist(), **columns}), path
    )
    return path


def settings(data: Path, **options: Any) -> LabelSettings:
    return LabelSettings(**{"data": data, "labels": None, "out": folder_for(data), **options})


def write_images(folder: Path, names: list[str]) -> None:
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(folder / name)


def answer(session: Session, count: int) -> None:
    for _ in range(count):
        card = session.next(count=1)["cards"][0]
        session.correct(card["row"], "even" if card["row"] % 2 == 0 else "odd")
        while session.catch_up():
            pass


def test_a_table_without_labels_becomes_a_labelling_that_is_taught_on_the_page(
    tmp_path: Path,
) -> None:
    data = write_table(tmp_path / "rows.parquet")
    started = start(settings(data))
    assert (started.folder, started.continued) == (tmp_path / "rows-labelled", False)
    project = Project.open(started.folder)
    assert (project.classes, project.given) == ([], {})
    with pytest.raises(DataError, match="two classes"):
        project.model()
    session = open_session(started.folder)
    assert session.refresh_progress()["state"] == "cold"
    answer(session, 12)
    progress = session.refresh_progress()
    assert progress["state"] == "ready"
    assert progress["drawn"]["answered"] == 0  # random cards come later
    labels = [session.model.label(row) for row in range(40)]
    assert labels == ["even" if row % 2 == 0 else "odd" for row in range(40)]
    session.close()
    again = start(settings(data))
    assert again.continued
    taught = Project.open(again.folder).taught()
    assert set(taught.classes_) == {"even", "odd"}


def test_answers_are_kept_where_rows_are_added_and_missed_where_they_are_gone(
    tmp_path: Path,
) -> None:
    data = write_table(tmp_path / "rows.parquet")
    folder = start(settings(data)).folder
    session = open_session(folder)
    answer(session, 6)
    answered = {session.project.ids[row]: a.label for row, a in session.history.answers.items()}
    session.close()
    write_table(data, rows=50)
    assert start(settings(data)).continued
    session = open_session(folder)
    assert len(session) == 50
    found = {session.project.ids[row]: a.label for row, a in session.history.answers.items()}
    assert found == answered
    session.close()
    write_table(data, rows=2)
    with pytest.raises(DataError, match="gone from the data"):
        start(settings(data))


def test_labels_of_the_table_itself_are_given_labels(tmp_path: Path) -> None:
    labels = ["even", "odd", *[None] * 38]
    data = write_table(tmp_path / "rows.parquet", label=labels)
    project = Project.open(start(settings(data)).folder)
    assert project.given == {0: "even", 1: "odd"}
    assert project.known({}).drawn.all()
    session = open_session(project.folder)
    assert session.refresh_progress()["state"] == "ready"
    session.close()


def test_images_bring_their_labels_and_a_broken_one_is_left_out(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    names = [f"{c}/{i}.png" for c in ("cat", "dog", "unlabeled") for i in range(4)]
    write_images(photos, names)
    (photos / "unlabeled" / "broken.png").write_bytes(b"not an image")
    started = start(settings(photos, embed=TINY))
    assert any("broken.png" in note for note in started.notes)
    project = Project.open(started.folder)
    assert sorted(project.given.values()) == ["cat"] * 4 + ["dog"] * 4
    assert len(project.ids) == 12
    without = start(settings(photos, embed=TINY, out=tmp_path / "b"), class_folders=False)
    assert Project.open(without.folder).given == {}
    assert not any("class" in note for note in without.notes)


def test_a_metadata_table_in_the_folder_wins(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    write_images(photos, ["cat/0.png", "cat/1.png", "dog/0.png"])
    (photos / "metadata.csv").write_text("file_name,label\ncat/0.png,tiger\ndog/0.png,\n")
    project = Project.open(start(settings(photos, embed=TINY)).folder)
    assert {project.ids[row]: label for row, label in project.given.items()} == {
        "cat/0.png": "tiger"
    }


def test_a_finished_labelling_of_other_data_is_not_replaced(tmp_path: Path) -> None:
    data = write_table(tmp_path / "rows.parquet")
    folder = start(settings(data)).folder
    other = write_table(tmp_path / "other.parquet", rows=30)
    file = folder / "project.json"
    facts = json.loads(file.read_text())
    del facts["key"]["opened"]  # as if semigpc label had written it
    file.write_text(json.dumps(facts))
    with pytest.raises(DataError, match="other data"):
        start(settings(other, out=folder))


def test_data_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        start(settings(tmp_path / "nowhere"))


def test_answers_count_before_a_new_model_is_fitted(tmp_path: Path) -> None:
    session = open_session(start(settings(write_table(tmp_path / "rows.parquet", 200))).folder)
    answer(session, 60)
    first = session.model.classifier
    assert first.held_out_ is not None
    before = session.refresh_progress()
    assert before["drawn"]["answered"] >= 10
    for card in session.next("audit", count=3)["cards"]:
        session.accept([card["row"]])
    assert session.refresh_progress()["state"] == "fitting"
    while session.keep_current() or session.refit(idle=False):
        pass
    assert session.model.classifier is first, "too few answers for a new fit"
    after = session.refresh_progress()
    assert after["state"] == "ready"
    assert after["drawn"]["answered"] >= before["drawn"]["answered"] + 3
    assert len(session.model.came_since) == 3
    while session.catch_up():
        pass
    assert session.model.classifier is not first
    assert session.model.came_since == []
    session.close()
