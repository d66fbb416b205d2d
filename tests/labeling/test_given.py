"""Labels that a folder of images comes with."""

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from semigpc.io.errors import DataError
from semigpc.labeling.given import GivenLabels, given_labels


def photos(folder: Path, *names: str) -> Path:
    """A folder of files with the names of images: they are not decoded."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"image")
    return folder


def given(folder: Path, **options: bool) -> GivenLabels:
    labels = given_labels(folder, **options)
    assert labels is not None
    return labels


def write_metadata(folder: Path, kind: str, rows: list[dict[str, object]]) -> Path:
    path = folder / f"metadata.{kind}"
    if kind == "csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_a_folder_of_images_alone_has_none(tmp_path: Path) -> None:
    assert given_labels(tmp_path) is None
    assert given_labels(photos(tmp_path, "a.png", "b.jpg")) is None
    (tmp_path / "notes.csv").write_text("file_name,label\na.png,cat\n")
    assert given_labels(tmp_path) is None


# Tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_metadata_of_hugging_face(tmp_path: Path, kind: str) -> None:
    photos(tmp_path, "a.png", "sub/b.png", "c.png")
    rows: list[dict[str, object]] = [
        {"file_name": "a.png", "text": "one", "label": "cat"},
        {"file_name": "sub/b.png", "text": "two", "label": "dog "},
        {"file_name": "c.png", "text": "three", "label": ""},
    ]
    path = write_metadata(tmp_path, kind, rows)
    labels = given(tmp_path)
    assert labels.labels == {"a.png": "cat", "sub/b.png": "dog"}
    assert labels.source == path
    assert labels.chosen == frozenset()
    (note,) = labels.notes
    assert path.name in note
    assert "2 of 3" in note


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_numbers_and_missing_labels(tmp_path: Path, kind: str) -> None:
    photos(tmp_path, "a.png", "b.png", "c.png")
    rows: list[dict[str, object]] = [
        {"file_name": "a.png", "label": 0},
        {"file_name": "b.png", "label": 1},
        {"file_name": "c.png", "label": None},
    ]
    write_metadata(tmp_path, kind, rows)
    assert given(tmp_path).labels == {"a.png": "0", "b.png": "1"}


def test_metadata_about_something_else_is_noted_and_the_next_source_is_used(tmp_path: Path) -> None:
    photos(tmp_path, "a.png", "b.png")
    (tmp_path / "metadata.csv").write_text("file_name,text\na.png,a cat\n")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "a.png", "objects": [1]}\n')
    labels = given(tmp_path)
    assert labels.labels == {}
    assert [note.split()[0] for note in labels.notes] == ["metadata.csv", "metadata.jsonl"]
    assert "it has 'file_name', 'objects'" in labels.notes[1], "a misspelt name is seen"
    (tmp_path / "labels.csv").write_text("label,file_name\ncat,a.png\n,b.png\n")
    labels = given(tmp_path)
    assert labels.labels == {"a.png": "cat"}
    assert labels.source == tmp_path / "labels.csv"
    assert len(labels.notes) == 3


def test_tables_win_over_folders_and_one_without_a_label_does_not(tmp_path: Path) -> None:
    photos(tmp_path, "cat/a.png", "dog/b.png")
    (tmp_path / "metadata.csv").write_text("file_name,label\ncat/a.png,lion\n")
    (tmp_path / "labels.csv").write_text("file_name,label\ncat/a.png,tiger\n")
    labels = given(tmp_path)
    assert labels.labels == {"cat/a.png": "lion"}
    assert "labels.csv, the names of the folders" in labels.notes[-1]
    assert "folders" not in given(tmp_path, class_folders=False).notes[-1]
    (tmp_path / "metadata.csv").write_text("file_name,label\ncat/a.png,\n")
    (tmp_path / "labels.csv").write_text("file_name,label\n")
    labels = given(tmp_path)
    assert labels.labels == {"cat/a.png": "cat", "dog/b.png": "dog"}
    assert sum("has no label" in note for note in labels.notes) == 2


def test_labels_by_semigpc_count_where_people_gave_them(tmp_path: Path) -> None:
    photos(tmp_path, "a.png", "b.png", "c.png")
    header = "file_name,label,confidence,variance,status,chosen\n"
    rows = "a.png,cat,1.0,0.1,labelled,yes\nb.png,dog,0.9,0.1,pseudo,\n"
    (tmp_path / "labels.csv").write_text(header + rows)
    labels = given(tmp_path)
    assert labels.labels == {"a.png": "cat"}
    assert labels.chosen == {"a.png"}
    (tmp_path / "labels.csv").write_text(header + "b.png,dog,0.9,0.1,pseudo,\n")
    labels = given(tmp_path)
    assert labels.labels == {}
    assert "guesses" in labels.notes[0]


def test_images_that_are_not_there_are_noted_and_if_it_is_all_of_them_an_error(
    tmp_path: Path,
) -> None:
    photos(tmp_path, "a.png", ".hidden.png")
    path = tmp_path / "labels.csv"
    path.write_text("file_name,label\na.png,cat\ngone.png,dog\n.hidden.png,cat\n")
    labels = given(tmp_path)
    assert labels.labels == {"a.png": "cat"}
    assert "2 ('gone.png', '.hidden.png')" in labels.notes[-1]
    path.write_text("file_name,label\nphotos/a.png,cat\n")
    with pytest.raises(DataError, match="relative"):
        given_labels(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("metadata.csv", b"file_name,label\na.png,cat\na.png,dog\n", "different labels"),
        ("metadata.csv", b"file_name,label\n/a.png,cat\n", "relative"),
        ("labels.csv", b"file_name,label\n../a.png,cat\n", "leads out"),
        ("labels.csv", b"file_name,label\n\xff.png,cat\n", "UTF-8"),
        ("metadata.parquet", b"PAR1", "Parquet"),
        ("metadata.jsonl", b'{"file_name": "a.png", "label": "cat"}\n{"file', "Line 2"),
        ("metadata.jsonl", b"[1]\n", "Line 1"),
        ("metadata.jsonl", b"\xff\n", "UTF-8"),
        ("metadata.jsonl", b'{"file_name": 1, "label": "cat"}\n', "file_name"),
        ("metadata.jsonl", b'{"file_name": "a.png", "label": ["cat"]}\n', "list"),
        (
            "metadata.jsonl",
            b'{"file_name": "a.png", "label": "c"}\n{"file_name": "a.png", "label": "d"}\n',
            "different labels",
        ),
    ],
)
def test_damaged_tables_are_errors_that_name_them(
    tmp_path: Path, name: str, content: bytes, word: str
) -> None:
    photos(tmp_path, "a.png")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=word) as error:
        given_labels(tmp_path)
    assert name in str(error.value)


# Class folders ------------------------------------------------------------------------------------


def test_class_folders_with_unlabelled_images(tmp_path: Path) -> None:
    photos(
        tmp_path, "cat/a.png", "cat/deep/b.png", "dog/a.png", "Unlabeled/c.png", "unsorted/d.png"
    )
    (tmp_path / "empty").mkdir()
    labels = given(tmp_path)
    assert labels.labels == {"cat/a.png": "cat", "cat/deep/b.png": "cat", "dog/a.png": "dog"}
    assert labels.source == tmp_path
    (note,) = labels.notes
    assert "cat (2), dog (1)" in note
    assert "class_folders=False" in note
    assert given_labels(tmp_path, class_folders=False) is None


def test_images_that_all_lie_in_class_folders_all_have_a_label(tmp_path: Path) -> None:
    labels = given(photos(tmp_path, "10/a.png", "9/a.png", "9/b.png"))
    assert labels.labels == {"10/a.png": "10", "9/a.png": "9", "9/b.png": "9"}
    assert "9 (2), 10 (1)" in labels.notes[0]
    assert "All 3 images" in labels.notes[1]


def test_one_class_beside_unlabelled_images_is_a_beginning(tmp_path: Path) -> None:
    labels = given(photos(tmp_path, "cat/a.png", "unlabelled/b.png"))
    assert labels.labels == {"cat/a.png": "cat"}


@pytest.mark.parametrize(
    "names",
    [
        ("cat/a.png", "dog/b.png", "c.png"),  # an image in no folder
        ("cat/a.png", "cat/b.png"),  # one folder
        ("unlabeled/a.png", "unsorted/b.png"),  # no class
        ("train/cat/a.png", "test/cat/b.png"),  # parts of data
        (".cache/a.png", "cat/b.png"),  # hidden
    ],
)
def test_other_folders_are_no_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert given_labels(photos(tmp_path, *names)) is None


def test_links_that_lead_out_count_only_if_followed(tmp_path: Path) -> None:
    photos(tmp_path / "elsewhere", "x.png")
    folder = photos(tmp_path / "photos", "cat/a.png", "dog/b.png")
    (folder / "cat/x.png").symlink_to("../../elsewhere/x.png")
    assert set(given(folder).labels) == {"cat/a.png", "dog/b.png"}
    assert given(folder, follow_links=True).labels["cat/x.png"] == "cat"
