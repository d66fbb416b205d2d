"""Which columns are taken for what."""

from typing import Any

import pyarrow
import pytest

from semigpc.io.errors import DataError
from semigpc.labeling.columns import ColumnOptions, Columns, UsualColumns, choose

NUMBER, TEXT, LIST = pyarrow.float32(), pyarrow.string(), pyarrow.list_(pyarrow.float16(), 4)


def chosen(wanted: ColumnOptions | None = None, **columns: pyarrow.DataType) -> Columns:
    return choose(
        pyarrow.schema(list(columns.items())),
        wanted or ColumnOptions(),
        UsualColumns(),
        "data.parquet",
    )


def test_the_usual_names() -> None:
    assert chosen(id=TEXT, file_name=TEXT, embedding=LIST, label=TEXT, size=NUMBER) == Columns(
        "file_name", ("embedding",), "label", True
    )
    assert chosen(id=pyarrow.int64(), f0=NUMBER, f1=NUMBER) == Columns(
        "id", ("f0", "f1"), None, False
    )
    assert chosen(vector=LIST, url=TEXT) == Columns(None, ("vector",), None, True)
    assert chosen(other=LIST, embedding=LIST).features == ("embedding",)


def test_names_that_are_asked_for() -> None:
    columns: dict[str, pyarrow.DataType] = {
        "key": TEXT,
        "a_1": NUMBER,
        "b": NUMBER,
        "a_2": NUMBER,
        "kind": TEXT,
    }
    assert chosen(ColumnOptions(id="key", features="b,a_1", label="kind"), **columns) == Columns(
        "key", ("b", "a_1"), "kind", False
    )
    assert chosen(ColumnOptions(features="a_*, b"), **columns).features == ("a_1", "a_2", "b")
    assert chosen(ColumnOptions(features="a,b"), **{"a,b": LIST, "a": NUMBER}).features == ("a,b",)


@pytest.mark.parametrize(
    ("wanted", "columns", "words"),
    [
        (
            ColumnOptions(id="nam"),
            {"name": TEXT, "f": NUMBER},
            r"no column 'nam', which --id names\. Did you mean 'name'\?",
        ),
        (
            ColumnOptions(label="lable"),
            {"label": TEXT, "f": NUMBER},
            "--label-column names. Did you mean 'label'",
        ),
        (
            ColumnOptions(features="f0,f9"),
            {"f0": NUMBER, "f1": NUMBER},
            "no column 'f9', which --features names",
        ),
        (ColumnOptions(features="g_*"), {"f0": NUMBER}, r"no column 'g_\*'"),
        (
            ColumnOptions(features="name"),
            {"name": TEXT, "f": NUMBER},
            "Features must be numbers; the column 'name' .* is string",
        ),
        (
            ColumnOptions(features="words"),
            {"words": pyarrow.list_(TEXT)},
            "the column 'words' .* is list<",
        ),
        (
            ColumnOptions(features="f,v"),
            {"f": NUMBER, "v": LIST},
            "'f', 'v' of data.parquet mix the two",
        ),
        (
            ColumnOptions(),
            {"v": LIST, "w": LIST},
            r"several columns of lists: 'v', 'w'\. Say which",
        ),
        (ColumnOptions(), {"id": TEXT, "label": TEXT}, "has no embeddings"),
        (
            ColumnOptions(),
            {"id": TEXT, "f": NUMBER, "url": TEXT},
            r"1 are no numbers: 'url \(string\)'.* --features 'f,...'",
        ),
        (
            ColumnOptions(id="x", label="x"),
            {"x": TEXT, "f": NUMBER},
            "cannot be both the ids and the labels",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(
    wanted: ColumnOptions, columns: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        chosen(wanted, **columns)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(DataError, match="several columns of the same name: 'f'"):
        choose(
            pyarrow.schema([("f", NUMBER), ("f", NUMBER)]),
            ColumnOptions(),
            UsualColumns(),
            "data.csv",
        )
