"""Which columns are read as what, and tables of labels."""

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from semigpc.io.errors import DataError
from semigpc.labeling.columns import ColumnOptions, Columns, UsualColumns, choose, read_label_table
from semigpc.labeling.project import write_hand_table
from semigpc.labeling.scan import LabelLookup

NUMBER, TEXT, LIST = pyarrow.float32(), pyarrow.string(), pyarrow.list_(pyarrow.float16(), 4)


def chosen(wanted: ColumnOptions | None = None, **columns: pyarrow.DataType) -> Columns:
    schema = pyarrow.schema(list(columns.items()))
    return choose(schema, wanted or ColumnOptions(), UsualColumns(), "data.parquet")


def test_the_usual_names() -> None:
    columns = chosen(id=TEXT, file_name=TEXT, embedding=LIST, label=TEXT, size=NUMBER)
    assert columns == Columns("file_name", ("embedding",), "label", True)
    columns = chosen(id=pyarrow.int64(), f0=NUMBER, f1=NUMBER)
    assert columns == Columns("id", ("f0", "f1"), None, False)
    assert chosen(vector=LIST, url=TEXT) == Columns(None, ("vector",), None, True)
    assert chosen(other=LIST, embedding=LIST).features == ("embedding",)


def test_names_that_are_asked_for() -> None:
    columns = {"key": TEXT, "a_1": NUMBER, "b": NUMBER, "a_2": NUMBER, "kind": TEXT}
    named = chosen(ColumnOptions(id="key", features="b,a_1", label="kind"), **columns)
    assert named == Columns("key", ("b", "a_1"), "kind", False)
    assert chosen(ColumnOptions(features="a_*, b"), **columns).features == ("a_1", "a_2", "b")
    assert chosen(ColumnOptions(features="a,b"), **{"a,b": LIST, "a": NUMBER}).features == ("a,b",)


@pytest.mark.parametrize(
    ("wanted", "columns", "words"),
    [
        ({"id": "nam"}, {"name": TEXT, "f": NUMBER}, "'nam' .*parameter id.*mean 'name'"),
        ({"label": "lable"}, {"label": TEXT, "f": NUMBER}, "label_column.*mean 'label'"),
        ({"features": "f0,f9"}, {"f0": NUMBER, "f1": NUMBER}, "'f9' .*parameter features"),
        ({"features": "g_*"}, {"f0": NUMBER}, r"no column 'g_\*'"),
        ({"features": "name"}, {"name": TEXT, "f": NUMBER}, "numbers; column 'name' .* string"),
        ({"features": "words"}, {"words": pyarrow.list_(TEXT)}, "column 'words' .* is list<"),
        ({"features": "f,v"}, {"f": NUMBER, "v": LIST}, "one column of lists.* 'f', 'v'"),
        ({}, {"v": LIST, "w": LIST}, r"several columns of lists: 'v', 'w'.* features="),
        ({}, {"id": TEXT, "label": TEXT}, "has no embeddings"),
        ({}, {"id": TEXT, "f": NUMBER, "url": TEXT}, r"'url \(string\)'.* features='f,"),
        ({"id": "x", "label": "x"}, {"x": TEXT, "f": NUMBER}, "both the ids and the labels"),
    ],
)
def test_columns_that_cannot_be_used_are_rejected(
    wanted: dict[str, str], columns: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        chosen(ColumnOptions(**wanted), **columns)


def test_two_columns_of_one_name_are_rejected() -> None:
    schema = pyarrow.schema([("f", NUMBER), ("f", NUMBER)])
    with pytest.raises(DataError, match="same name: 'f'"):
        choose(schema, ColumnOptions(), UsualColumns(), "data.csv")


# Tables of labels ---------------------------------------------------------------------------------


def csv_file(folder: Path, text: str) -> Path:
    (folder / "labels.csv").write_text(text, encoding="utf-8")
    return folder / "labels.csv"


def test_labels_by_id_and_what_counts_as_none(tmp_path: Path) -> None:
    text = "id,label,by\n007,cat,me\nb, dog ,\nc,,\nd,-1,\ne,nan,\nb,dog,you\nf,-1.0,\n"
    assert read_label_table(csv_file(tmp_path, text), "id").given == {"007": "cat", "b": "dog"}


def test_the_column_of_ids_may_have_the_name_of_the_data_or_a_usual_one(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "key,file_name,id,label\n1,2,3,cat\n")
    found = [list(read_label_table(path, name).given) for name in ("key", "id", "row")]
    assert found == [["1"], ["3"], ["2"]]


def test_parquet_labels_of_any_type(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    parquet.write_table(pyarrow.table({"id": [1, 2, 3], "kind": [3.0, None, 10.0]}), path)
    assert read_label_table(path, "id", label_column="kind").given == {"1": "3", "3": "10"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,label\na,cat\n", "'key' or 'file_name' or 'id'; it has 'name', 'label'"),
        ("id,lable\na,cat\n", r"no column 'label'.* Did you mean 'lable'\?"),
        ("id;label\na;cat\n", "separate columns by commas"),
        ("id,label\na,cat\na,dog\nb,cat\n", "1 of its ids: 'a' is cat and dog. Keep one row"),
        ("id,label\na,cat\na,\n", "cat and no label"),
        ("id,label\na,cat\n,dog\n", "Row 2 of .* has no id"),
    ],
)
def test_tables_of_labels_that_cannot_be_used_are_rejected(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        read_label_table(csv_file(tmp_path, text), "key")


def test_a_path_that_leaves_the_folder_of_images_is_rejected(tmp_path: Path) -> None:
    for name, words in (("../x.jpg", "leads out of"), ("/x.jpg", "absolute path")):
        path = csv_file(tmp_path, f"file_name,label\n{name},cat\n")
        with pytest.raises(DataError, match=words):
            read_label_table(path, "file_name", images=True)
    path = csv_file(tmp_path, "file_name,label\n./a/x.jpg,cat\n")
    assert read_label_table(path, "file_name", images=True).given == {"a/x.jpg": "cat"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nowhere.csv", None, "does not exist"),
        ("labels.xlsx", b"", r"\.csv or \.parquet; got labels\.xlsx"),
        ("latin.csv", "id,label\nä,cat\n".encode("latin-1"), r"cannot be read as CSV.*UTF-8"),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_label_table(tmp_path / name, "id")


def test_labels_without_a_row_are_an_error() -> None:
    lookup = LabelLookup({"b": "cat", "z": "dog", "y": "dog"}, Path("labels.csv"))
    assert lookup.of(["a", "b"], ["ignored", None]) == [None, "cat"]
    words = r"labels.csv .* 2 ids .* not in data.csv: 'z', 'y'.* look like 'a' and 'b'.* id="
    with pytest.raises(DataError, match=words):
        lookup.check("data.csv", ["a", "b"])
    assert LabelLookup(None).of(["a", "b"], [None, "dog"]) == [None, "dog"]


def test_a_table_for_people_holds_any_name_and_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    names = ["x\r=cmd", "a\nb", "=1+1", "'=1", 'quo"te', "plain"]
    rows = [(f"row {i}", name, "") for i, name in enumerate(names)]
    write_hand_table(path, ["id", "label", "truth"], rows, blank="truth")
    assert list(read_label_table(path, "id").given.values()) == names
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"table\.csv is a folder or a pipe"):
        write_hand_table(path, ["id"], [], blank="id")
    with pytest.raises(DataError, match=r"must be a file; .*table\.csv is a folder"):
        read_label_table(path, "id")
