"""Tables of labels, as CSV and as Parquet."""

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from semigpc.io.errors import DataError
from semigpc.io.tables import read_labels


def write_csv(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def write_parquet(path: Path, **columns: list[Any]) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_csv_labels_are_text_and_may_be_empty(tmp_path: Path) -> None:
    lines = ["a.jpg,cat,me", "./b/c d.jpg, dog ,", "e.jpg,,", "f.jpg,-1,me", "a.jpg,cat,you"]
    text = "\n".join(["\ufefffile_name,label,by", *lines, ""])
    assert read_labels(write_csv(tmp_path / "a.csv", text)).labels == {
        "a.jpg": "cat",
        "b/c d.jpg": "dog",
        "e.jpg": None,
        "f.jpg": None,
    }


def test_quotes_commas_and_capitals_in_names_survive(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "a.csv", 'label,file_name\n"crow, carrion","Ä/B,1.JPG"\n')
    assert read_labels(table).labels == {"Ä/B,1.JPG": "crow, carrion"}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["cat", None, ""], ["cat", None, None]),
        ([3, None, 10], ["3", None, "10"]),
        ([3.0, float("nan"), 2.5], ["3", None, "2.5"]),
        ([-1, 0, 1], [None, "0", "1"]),
        (["-1", "-1.0", "NAN"], [None, None, None]),
        (["none", "null", "-1x"], ["none", "null", "-1x"]),
        ([-1.0, 1.0, -1.5], [None, "1", "-1.5"]),
        (["1.0", "1", "01"], ["1", "1", "01"]),
        (["0.0", "-3.00", "v1.0"], ["0", "-3", "v1.0"]),
    ],
)
def test_parquet_labels_of_any_type(
    tmp_path: Path, labels: list[Any], expected: list[str | None]
) -> None:
    names = ["x.png", "y.png", "z.png"]
    table = write_parquet(tmp_path / "a.parquet", file_name=names, label=labels, extra=[1, 2, 3])
    assert list(read_labels(table).labels.values()) == expected


def test_dictionary_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    label = pyarrow.array(["cat", None, "cat"]).dictionary_encode()
    parquet.write_table(pyarrow.table({"file_name": ["x", "y", "z"], "label": label}), path)
    assert read_labels(path).labels == {"x": "cat", "y": None, "z": "cat"}


DAYS_OF_YEAR_30000 = 10_237_829


def write_dates(path: Path, days: int, kind: pyarrow.DataType) -> Path:
    label = pyarrow.array([days, None], pyarrow.int64()).cast(kind)
    parquet.write_table(pyarrow.table({"file_name": ["x", "y"], "label": label}), path)
    return path


def test_dates_that_python_cannot_represent_are_text(tmp_path: Path) -> None:
    far = write_dates(tmp_path / "a.parquet", 10**15, pyarrow.timestamp("us"))
    assert read_labels(far).labels == {"x": "2001-09-09 01:46:40.000000", "y": None}
    days = pyarrow.array([DAYS_OF_YEAR_30000, None], pyarrow.date32())
    parquet.write_table(pyarrow.table({"file_name": ["x", "y"], "label": days}), far)
    assert str(read_labels(far).labels["x"]).startswith("30000-")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (10**18, pyarrow.timestamp("ms")),
        (-(10**18), pyarrow.timestamp("ms")),
        (10**18, pyarrow.timestamp("ms", "UTC")),
        (0, pyarrow.timestamp("s", "Nowhere/City")),
    ],
)
def test_dates_that_cannot_be_written_are_refused(
    tmp_path: Path, value: int, kind: pyarrow.DataType
) -> None:
    with pytest.raises(DataError, match=r"out of range|timezone .*Nowhere"):
        read_labels(write_dates(tmp_path / "a.parquet", value, kind))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\na.jpg,cat\n", "it has 'file', 'label', not 'file_name'"),
        ("file_name;label\na.jpg;cat\n", "separate them by commas"),
        ("", "it has none"),
        ("file_name,label\n", "lists no images"),
        ("file_name,label\na.jpg,cat\na.jpg,dog\nb.jpg,x\n", "1 .*a.jpg. is cat and dog"),
        ("file_name,label\na.jpg,cat\na.jpg,\n", "cat and no label"),
        ("file_name,label\na.jpg,cat\n,dog\n", "Row 2 of .* has no file_name"),
        ("file_name,label\n/data/a.jpg,cat\n", "/data/a.jpg; a file_name must be relative"),
        ("file_name,label\n../a.jpg,cat\n", "leads out of the root"),
    ],
)
def test_csv_files_that_cannot_be_meant_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_labels(write_csv(tmp_path / "a.csv", text))


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    latin = tmp_path / "a.csv"
    latin.write_bytes("file_name,label\nä.jpg,cat\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"cannot be read as CSV.*UTF-8"):
        read_labels(latin)
    no_parquet = write_csv(tmp_path / "a.parquet", "file_name,label\na.jpg,cat\n")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_labels(no_parquet)
    with pytest.raises(DataError, match="not 'label'"):
        read_labels(write_parquet(tmp_path / "b.parquet", file_name=["x"], lable=["cat"]))


OWN = (
    "file_name,label,guess,confidence,variance,status\na,cat,cat,1,0,labelled\n"
    "b,dog,dog,1,0,reviewed\nc,cat,cat,0.97,0.1,pseudo\nd,,dog,0.5,0.2,abstained\n"
)


def test_guesses_of_semigpc_are_no_labels_unless_they_are_trusted(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "labels.csv", OWN)
    found = read_labels(table)
    assert found.labels == {"a": "cat", "b": "dog", "c": None, "d": None}
    (note,) = found.notes
    assert note.startswith("Labels of labels.csv")
    assert note.endswith("guesses of semigpc: 1.")
    trusted = read_labels(table, trust_pseudo=True)
    assert trusted.given == {"a": "cat", "b": "dog", "c": "cat"}
    assert trusted.notes == ()
    other = write_csv(tmp_path / "other.csv", OWN.replace("variance", "remark"))
    assert read_labels(other).given == trusted.given, "not a table of semigpc"


@pytest.mark.parametrize(
    "text",
    [
        "file_name,label,guess,confidence,variance,status\nc,cat,cat,0.97,0.1,pseudo\n",
        "file,label,confidence,second,second_confidence\nc,cat,0.7,dog,0.2\n",
        "file_name,label,confidence,second,second_confidence\nc,cat,0.7,dog,0.2\n",
        "file_name,label,confidence,stratum,inclusion,truth\nc,cat,0.97,cat,0.5,\n",
    ],
)
def test_a_table_with_nothing_but_guesses_is_refused(tmp_path: Path, text: str) -> None:
    table = write_csv(tmp_path / "labels.csv", text)
    with pytest.raises(DataError, match=r"labels\.csv .* guesses.* trust_pseudo=True"):
        read_labels(table)
    table = write_csv(table, text.replace("file,", "file_name,"))
    assert read_labels(table, trust_pseudo=True).given == {"c": "cat"}


def test_answers_of_an_audit_are_labels(tmp_path: Path) -> None:
    answers = {"a": "y", "b": "dog", "c": "", "d": "no", "e": "Right", "f": "cat"}
    rows = [f"{name},cat,0.97,cat,0.5,{truth}\n" for name, truth in answers.items()]
    header = "file_name,label,confidence,stratum,inclusion,truth\n"
    found = read_labels(write_csv(tmp_path / "audit.csv", header + "".join(rows)))
    assert found.given == {"a": "cat", "b": "dog", "e": "cat", "f": "cat"}
    assert found.chosen == frozenset(), "a sample of an audit is drawn at random"


def test_rows_that_semigpc_chose_are_known_by_a_column(tmp_path: Path) -> None:
    text = "file_name,label,chosen\na,cat,yes\nb,dog,\nc,,yes\nd,dog,no\n"
    found = read_labels(write_csv(tmp_path / "labels.csv", text))
    assert found.given == {"a": "cat", "b": "dog", "d": "dog"}
    assert found.chosen == {"a", "c"}
