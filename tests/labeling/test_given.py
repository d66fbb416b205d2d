"""Tables of labels for rows."""

from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from semigpc.io.errors import DataError
from semigpc.labeling.inputs import read_label_table
from semigpc.labeling.project import write_hand_table
from semigpc.labeling.scan import LabelLookup


def csv_file(folder: Path, text: str) -> Path:
    (folder / "labels.csv").write_text(text, encoding="utf-8")
    return folder / "labels.csv"


def test_labels_by_id_and_what_counts_as_none(tmp_path: Path) -> None:
    path = csv_file(
        tmp_path, "id,label,by\n007,cat,me\nb, dog ,\nc,,\nd,-1,\ne,nan,\nb,dog,you\nf,-1.0,\n"
    )
    assert read_label_table(path, "id") == {"007": "cat", "b": "dog"}


def test_the_column_of_ids_may_have_the_name_of_the_data_or_a_usual_one(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "key,file_name,id,label\n1,2,3,cat\n")
    assert [list(read_label_table(path, name)) for name in ("key", "id", "row")] == [
        ["1"],
        ["3"],
        ["2"],
    ]


def test_parquet_labels_of_any_type(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    parquet.write_table(pyarrow.table({"id": [1, 2, 3], "kind": [3.0, None, 10.0]}), path)
    assert read_label_table(path, "id", label_column="kind") == {"1": "3", "3": "10"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "name,label\na,cat\n",
            "must have a column of ids, called 'key' or 'file_name' or 'id'; it has 'name', 'label'",
        ),
        ("id,lable\na,cat\n", r"no column 'label'.* Did you mean 'lable'\?"),
        ("id;label\na;cat\n", "separate columns by commas"),
        ("id,label\na,cat\na,dog\nb,cat\n", "for 1 of its ids: 'a' has cat and dog. Keep one row"),
        ("id,label\na,cat\na,\n", "cat and no label"),
        ("id,label\na,cat\n,dog\n", "Row 2 of .* has no id"),
    ],
)
def test_tables_that_cannot_be_meant_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_label_table(csv_file(tmp_path, text), "key")


def test_a_path_that_leaves_the_folder_of_images_is_refused(tmp_path: Path) -> None:
    for name, words in (("../x.jpg", "leads out of the root"), ("/x.jpg", "absolute path")):
        with pytest.raises(DataError, match=words):
            read_label_table(
                csv_file(tmp_path, f"file_name,label\n{name},cat\n"), "file_name", images=True
            )
    assert read_label_table(
        csv_file(tmp_path, "file_name,label\n./a/x.jpg,cat\n"), "file_name", images=True
    ) == {"a/x.jpg": "cat"}


def test_files_that_are_not_there_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="The table of labels is not there"):
        read_label_table(tmp_path / "nowhere.csv", "id")
    (tmp_path / "labels.xlsx").write_bytes(b"")
    with pytest.raises(DataError, match=r"ends in \.csv or \.parquet; got labels\.xlsx"):
        read_label_table(tmp_path / "labels.xlsx", "id")
    (tmp_path / "latin.csv").write_bytes("id,label\nä,cat\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"cannot be read as CSV.*UTF-8"):
        read_label_table(tmp_path / "latin.csv", "id")


def test_labels_are_matched_as_rows_go_by_and_the_rest_is_told() -> None:
    lookup = LabelLookup({"b": "cat", "z": "dog", "y": "dog"}, Path("labels.csv"))
    assert lookup.of(["a", "b"], ["ignored", None]) == [None, "cat"]
    with pytest.raises(
        DataError,
        match=r"labels.csv has labels for rows that are not in data.csv, 2 in all: 'z', 'y'\. Ids there look like 'a' and 'b'",
    ):
        lookup.check("data.csv", ["a", "b"])
    assert LabelLookup(None).of(["a", "b"], [None, "dog"]) == [None, "dog"]


def test_a_table_for_people_holds_any_name_and_is_read_back(tmp_path: Path) -> None:
    path, names = tmp_path / "table.csv", ["x\r=cmd", "a\nb", "=1+1", "'=1", 'quo"te', "plain"]
    write_hand_table(
        path,
        ["id", "label", "truth"],
        [(f"row {i}", name, "") for i, name in enumerate(names)],
        blank="truth",
    )
    assert list(read_label_table(path, "id").values()) == names
    path.unlink()
    path.mkdir()
    with pytest.raises(
        DataError, match=r"table\.csv is a folder or a pipe, and no table\. Move it away"
    ):
        write_hand_table(path, ["id"], [], blank="id")
    with pytest.raises(DataError, match=r"must be a file; .*table\.csv is a folder"):
        read_label_table(path, "id")
