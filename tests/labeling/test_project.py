"""The folder of labels, opened again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from semigpc.io.atomic import locked
from semigpc.io.errors import DataError
from semigpc.labeling import project as project_module
from semigpc.labeling.journal import NAME as REVIEWS
from semigpc.labeling.journal import Answer, Change, Entry, ReviewJournal, now, random_order
from semigpc.labeling.label import label_data
from semigpc.labeling.project import Project, ProjectSettings
from tests.labeling.samples import IDS, KINDS, LABELS, X, settings, table_of, write, write_labels


@pytest.fixture
def usual(labelled: Callable[[str], Path]) -> Path:
    return labelled("parquet")


def test_it_knows_ids_classes_and_given_labels(usual: Path) -> None:
    project = Project.open(usual)
    assert project.ids == IDS
    assert project.classes == ["ant", "bee", "cat"]
    assert {project.ids[row]: label for row, label in project.given.items()} == LABELS
    assert project.table.num_rows == 300
    assert project.images is project.image(0) is None


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_of_any_rows(
    labelled: Callable[[str], Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rows = labelled(kind), np.array([7, 299, 0, 7])
    np.testing.assert_array_equal(Project.open(out).embeddings(rows), X[rows])
    monkeypatch.setattr(project_module, "IN_MEMORY", 0)  # as for a large file
    np.testing.assert_array_equal(Project.open(out).embeddings(rows), X[rows])


@pytest.mark.parametrize("sample", [20_000, 50])  # all rows are fitted, or a sample of them
def test_the_model_says_what_the_table_says(
    sample: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("scan", "label"):
        monkeypatch.setattr(f"semigpc.labeling.{module}.SAMPLE", sample)
    label_data(settings(tmp_path))
    project = Project.open(tmp_path / "out")
    assert project.settings["sample"] == sample
    model = project.model()
    answers = model.answer(X)
    free = np.array([row for row in range(300) if row not in project.given])
    table = {
        name: project.table.column(name).to_numpy() for name in ("guess", "confidence", "variance")
    }
    np.testing.assert_allclose(answers.confidence[free], table["confidence"][free], atol=1e-5)
    assert answers.variance is not None
    np.testing.assert_allclose(answers.variance, table["variance"], atol=1e-5)
    assert (model.classes_[answers.codes][free] == table["guess"][free]).all()
    assert sorted(model.labeled_rows_) == sorted(project.given)


def test_answers_override_given_labels_and_count_as_drawn_while_the_random_order_has_no_gap(
    usual: Path,
) -> None:
    project = Project.open(usual)
    in_order = np.argsort(random_order(300)).tolist()
    first, skipped, third, _gap, late = [row for row in in_order if row not in project.given][:5]
    corrected = next(iter(project.given))
    labels = {late: "bee", first: "cat", skipped: None, third: "dog", corrected: "dog"}
    answers = {row: Answer(label, "ant", "pseudo") for row, label in labels.items()}
    known = project.known(answers)
    del labels[skipped]
    assert dict(zip(known.rows.tolist(), known.labels, strict=True)) == project.given | labels
    drawn = dict(zip(known.rows.tolist(), known.drawn.tolist(), strict=True))
    assert not drawn.pop(late)
    assert all(drawn.values())
    del answers[first]
    assert project.known(answers).drawn.sum() == len(project.given)


def test_a_taught_model_has_learned_the_answers(usual: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(usual, tmp_path / "copy")
    project = Project.open(folder)
    before = project.taught()
    assert sorted(before.labeled_rows_) == sorted(project.given)
    row = next(row for row in range(300) if row not in project.given)
    with locked(folder):
        project.claim(REVIEWS)
        journal = ReviewJournal(folder / REVIEWS)
        change = Change(project.ids[row], "ant", "dog", "pseudo", 0.5)
        journal.append(Entry(1, now(), "correct", (change,)))
        journal.close()
    after = Project.open(folder).taught()
    assert sorted(after.labeled_rows_) == sorted([*project.given, row])
    assert after.classes_.tolist() == ["ant", "bee", "cat", "dog"]


def test_rows_out_of_range_are_refused(usual: Path) -> None:
    with pytest.raises(IndexError, match="rows must be in 0 to 299; got -1 to 300"):
        Project.open(usual).embeddings(np.array([-1, 300]))


def test_what_is_not_there_is_said(usual: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no folder"):
        Project.open(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"has no project\.json"):
        Project.open(tmp_path)
    copy = shutil.copytree(usual, tmp_path / "copy")
    (copy / "project.json").unlink()
    words = r"is not complete: labelling was stopped\. Give the same semigpc label command again"
    with pytest.raises(DataError, match=words):
        Project.open(copy)
    (copy / "project.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        Project.open(copy)
    shutil.copy(usual / "project.json", copy)
    (copy / "labels.parquet").write_bytes(b"PAR1")
    words = r"labels\.parquet was changed since.*the same semigpc label command"
    with pytest.raises(DataError, match=words):
        Project.open(copy)
    (copy / "labels.parquet").unlink()
    with pytest.raises(DataError, match=r"labels\.parquet cannot be read"):
        Project.open(copy)


def test_data_that_are_gone_or_changed_are_named(usual: Path, tmp_path: Path) -> None:
    out = shutil.copytree(usual, tmp_path / "out")
    written = json.loads((out / "project.json").read_text())
    elsewhere = written | {"data": str(tmp_path / "data.parquet")}
    (out / "project.json").write_text(json.dumps(elsewhere))
    write(tmp_path, "parquet", X[:200], IDS[:200])
    with pytest.raises(DataError, match=r"data\.parquet has changed since it was labelled"):
        _ = Project.open(out).source
    write(tmp_path, "parquet", X[::-1], IDS)  # as many rows, in another order
    with pytest.raises(DataError, match=r"data\.parquet has changed since it was labelled"):
        Project.open(out).embeddings(np.array([0]))
    (tmp_path / "data.parquet").rename(tmp_path / "moved.parquet")
    with pytest.raises(DataError, match=r"do not exist: .*data\.parquet"):
        Project.open(out).embeddings(np.array([0]))


def test_images_are_found_below_their_folder_and_nowhere_else(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    (photos / "sub").mkdir(parents=True)
    image = Image.new("RGB", (4, 4))
    for path in (photos / "sub" / "a b.png", tmp_path / "secret.png"):
        image.save(path)
    (photos / "link.png").symlink_to(tmp_path / "secret.png")
    outside = ("../secret.png", str(tmp_path / "secret.png"), "link.png")
    none = ("gone.png", "sub", "\0", "x" * 5000)
    ids = ["sub/a b.png", *outside, *none, *IDS[8:]]
    table = table_of(X, ids).rename_columns(["file_name", "embedding"])
    parquet.write_table(table, tmp_path / "data.parquet")
    out = tmp_path / "out"
    wanted = settings(tmp_path, images=photos)
    known = {ids[IDS.index(name)]: label for name, label in LABELS.items()}
    write_labels(tmp_path / "labels.csv", known)
    label_data(wanted)
    project = Project.open(out)
    assert project.images == photos.resolve()
    expected = [photos.resolve() / "sub" / "a b.png", *[None] * 7]
    assert [project.image(row) for row in range(8)] == expected
    assert Project.open(out, images=photos / "sub").image(0) is None
    photos.rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"folder of images does not exist.*images="):
        Project.open(out)
    assert Project.open(out, images=tmp_path / "elsewhere").image(0) is not None


def test_settings_hold_what_it_takes_to_open_it_again(usual: Path) -> None:
    written = json.loads((usual / "project.json").read_text())
    assert written.keys() == ProjectSettings.__annotations__.keys()
    assert sum(written["counts"].values()) == written["rows"] == 300
