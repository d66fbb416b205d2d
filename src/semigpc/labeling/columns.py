"""Columns of ids, embeddings and labels: which ones a table has, and their values.

Embeddings are one column of lists, all of one length, or many columns of numbers. Numbers of any
type become float32, or float64 where they are to be centred first: an empty cell becomes NaN and a
value beyond the range becomes infinity, which the first pass over the data reports. Labels stand in
the data or in a table of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, types
from pydantic import ConfigDict, with_config

from semigpc.io.errors import DataError
from semigpc.io.paths import checked
from semigpc.io.tables import (
    SUFFIXES,
    LabelTable,
    as_label,
    is_table,
    path_below,
    plain_values,
    read_label_rows,
)
from semigpc.io.text import listed, similar_names

WILDCARDS = "*?["  # any of these makes a feature name a pattern
FILE_NAME = "file_name"  # column of the ids of images
LABEL = "label"  # usual column of labels
NAMES_IN_MESSAGE = 8  # columns that a message lists

Floats = NDArray[np.float32]
AnyFloats = NDArray[np.float32 | np.float64]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """Columns named by the user; None where the usual names decide.

    Args:
        id: the column of ids.
        features: the column of lists, or names and patterns of columns of numbers, separated by
            commas.
        label: the column of labels.
    """

    id: str | None = None
    features: str | None = None
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class UsualColumns:
    """Names to look for where the user named none; the first that exists is used."""

    ids: tuple[str, ...] = (FILE_NAME, "id")
    features: tuple[str, ...] = ("embedding",)
    labels: tuple[str, ...] = (LABEL,)


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are read.

    Attributes:
        id, label: None if there is no such column.
        features: one column of lists if ``as_list``, else columns of numbers.
    """

    id: str | None
    features: tuple[str, ...]
    label: str | None
    as_list: bool

    @property
    def names(self) -> list[str]:
        """Return the names of all of them, the features last."""
        return [*(name for name in (self.id, self.label) if name is not None), *self.features]


# Which columns to read ----------------------------------------------------------------------------


def choose(
    schema: pyarrow.Schema, options: ColumnOptions, usual: UsualColumns, path: object
) -> Columns:
    """Return the columns to read from a table of this schema.

    Raises:
        DataError: a named column does not exist, or its type cannot be used.
    """
    known = list(schema.names)
    repeated = sorted({name for name in known if known.count(name) > 1})
    if repeated:
        raise DataError(
            f"{path} has several columns of the same name: {listed(repeated)}. "
            "Rename all but one of each."
        )
    id_column = _choose_one("id", options.id, usual.ids, known, path)
    label = _choose_one("label_column", options.label, usual.labels, known, path)
    if id_column is not None and id_column == label:
        raise DataError(
            f"Column {id_column!r} of {path} cannot hold both the ids and the labels. "
            "Choose another column of ids with id=..."
        )
    if options.features is not None:
        features = _named_features(options.features, known, path, taken=(id_column, label))
    else:
        features = _usual_features(schema, usual, path, taken=(id_column, label))
    has_list = any(_is_list(schema.field(name).type) for name in features)
    if has_list and len(features) > 1:
        raise DataError(
            f"Features must be one column of lists, or columns of numbers; got {listed(features)} "
            f"of {path}. Name one column of lists with features=..."
        )
    check_types(schema, features, path)
    return Columns(id_column, tuple(features), label, has_list)


def _choose_one(
    parameter: str, name: str | None, usual: Sequence[str], known: Sequence[str], path: object
) -> str | None:
    if name is None:
        return next((name for name in usual if name in known), None)
    if name not in known:
        raise unknown_column(name, known, path, f"named by the parameter {parameter}")
    return name


def unknown_column(name: str, known: Sequence[str], path: object, reason: str) -> DataError:
    """Return the error for a column that does not exist; ``reason`` is why it is needed."""
    similar = similar_names(name, known)
    hint = f" Did you mean {similar[0]!r}?" if similar else ""
    existing = listed(known, NAMES_IN_MESSAGE) or "no columns"
    return DataError(f"{path} has no column {name!r} ({reason}).{hint} It has {existing}.")


def _named_features(
    text: str, known: Sequence[str], path: object, taken: Sequence[str | None]
) -> list[str]:
    """Return names in the order of ``text``, and matches of a pattern in that of the table."""
    if text in known:  # also a name that contains a comma
        return [text]
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        matches = [part] if part in known else []
        if not matches and any(sign in part for sign in WILDCARDS):
            matches = [name for name in known if fnmatchcase(name, part) and name not in taken]
        if not matches:
            raise unknown_column(part, known, path, "named by the parameter features")
        names += [name for name in matches if name not in names]
    return names


def _usual_features(
    schema: pyarrow.Schema, usual: UsualColumns, path: object, taken: Sequence[str | None]
) -> list[str]:
    """Return the usual column of lists, else the only one, else all columns, if all are numbers."""
    rest = [name for name in schema.names if name not in taken]
    lists = [name for name in rest if _is_list(schema.field(name).type)]
    named = next((name for name in usual.features if name in lists), None)
    if named is not None or len(lists) == 1:
        return [named or lists[0]]
    if lists:
        raise DataError(
            f"{path} has several columns of lists: {listed(lists)}. Choose one with features=..."
        )
    numbers = [name for name in rest if _is_number(schema.field(name).type)]
    if not numbers:
        raise DataError(
            f"{path} has no embeddings: neither a column of lists nor columns of numbers besides "
            f"ids and labels. It has {listed(schema.names, NAMES_IN_MESSAGE) or 'no columns'}; "
            "commas must separate the columns of a CSV file."
        )
    other = [f"{name} ({schema.field(name).type})" for name in rest if name not in numbers]
    if other:
        raise DataError(
            f"All columns of {path} except ids and labels are read as features, but {len(other)} "
            f"do not hold numbers: {listed(other)}. Name the features by columns or a pattern, "
            f"such as features='{numbers[0]},f_*'."
        )
    return numbers


def check_types(schema: pyarrow.Schema, features: Sequence[str], path: object) -> None:
    """Raise a DataError that names the first feature which does not hold numbers."""
    for name in features:
        kind = schema.field(name).type
        if not _is_number(_value_type(kind)):
            raise DataError(
                f"Features must be numbers; column {name!r} of {path} is {kind}. "
                "Convert it, or name the columns to use with features=..."
            )


def _is_list(kind: pyarrow.DataType) -> bool:
    return _value_type(kind) is not kind


def _value_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    kind = kind.storage_type if isinstance(kind, pyarrow.BaseExtensionType) else kind
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return kind.value_type
    return kind


def _is_number(kind: pyarrow.DataType) -> bool:
    checks = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return any(check(kind) for check in checks)


def fits_float32(kind: pyarrow.DataType) -> bool:
    """Return whether float32 holds every number of a column of numbers or lists exactly."""
    short = (types.is_boolean, types.is_int8, types.is_int16, types.is_uint8, types.is_uint16)
    return any(check(_value_type(kind)) for check in (*short, types.is_float16, types.is_float32))


# Values -------------------------------------------------------------------------------------------


def ids_of(column: pyarrow.Array) -> list[str | None]:
    """Return ids as text without surrounding spaces, None where there is none."""
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if not (is_text or types.is_primitive(kind) or types.is_decimal(kind)):
        raise DataError(
            f"Ids must be text or numbers; the column of ids holds {column.type}. "
            "Choose another one with id=..."
        )
    text = compute.cast(column, pyarrow.string())
    return [value or None for value in compute.utf8_trim_whitespace(text).to_pylist()]


def labels_of(column: pyarrow.Array, path: object) -> list[str | None]:
    """Return labels as text, None where there is none; an array (n, 1) is read as (n,)."""
    if types.is_fixed_size_list(column.type) and column.type.list_size == 1:
        column = column.flatten()
    return [as_label(value, path) for value in plain_values(column)]


def floats_of(column: pyarrow.Array, precision: np.dtype[Any]) -> AnyFloats:
    """Return numbers (n,) as float32 or float64, NaN where there are none."""
    numbers = compute.cast(column, pyarrow.from_numpy_dtype(precision), safe=False)
    values: NDArray[Any] = numbers.to_numpy(zero_copy_only=False)
    return values.astype(precision, copy=False)


def matrix_of(
    column: pyarrow.Array, width: int, precision: np.dtype[Any], place: Callable[[int], str]
) -> AnyFloats:
    """Return lists as rows (n, ``width``), NaN where there is none.

    Raises:
        DataError: a list has another length; ``place`` returns where a row of the column is, for
            the message.
    """
    column = column.storage if isinstance(column, pyarrow.ExtensionArray) else column
    missing = np.asarray(column.is_null(), dtype=bool)
    lengths = compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(~missing & (lengths != width))
    if len(wrong):
        raise DataError(
            f"All embeddings must be equally long; {place(int(wrong[0]))} has {lengths[wrong[0]]} "
            f"values, and the first has {width}. Correct or remove it."
        )
    rows = np.full((len(column), width), np.nan, dtype=precision)
    values = column.flatten()  # without what null lists may hold
    rows[~missing] = floats_of(values, precision).reshape(-1, width)
    return rows


# Tables of labels ---------------------------------------------------------------------------------


def read_label_table(
    path: Path,
    id_name: str,
    *,
    label_column: str | None = None,
    images: bool = False,
    trust_pseudo: bool = False,
) -> LabelTable:
    """Return the labels of ids; see :func:`semigpc.io.tables.read_label_rows`.

    Args:
        path: a .csv or .parquet file. id_name: name of the ids in the data.
        label_column: name of the labels; "label" if left out.
        images: ids are names of files below a folder, and may not lead out of it.
        trust_pseudo: take labels that semigpc gave out, too.

    Raises:
        DataError: the file is missing, cannot be read, lacks a column, or gives an id two labels.
    """
    if path.is_dir():
        raise DataError(f"The table of labels must be a file; {path} is a folder.")
    if not checked(path).is_file():
        raise DataError(f"The table of labels does not exist: {path}. Check the parameter labels.")
    if not is_table(path):
        endings = " or ".join(SUFFIXES)
        raise DataError(f"Labels must be in a file that ends in {endings}; got {path.name}.")

    def columns(names: Sequence[str], where: Path) -> tuple[str, str]:
        return _label_columns(names, where, id_name, label_column)

    name_of = path_below if images else _id_of
    return read_label_rows(path, columns, name_of, trust_pseudo=trust_pseudo)


def _id_of(value: Any, number: int, path: Path) -> str:
    name = "" if value is None else str(value).strip()
    if not name:
        raise DataError(f"Row {number} of {path} has no id. Fill it in, or delete the row.")
    return name


def _label_columns(
    names: Sequence[str], path: Path, id_name: str, label_column: str | None
) -> tuple[str, str]:
    """Return the columns of ids and labels in a table of labels."""
    id_names = list(dict.fromkeys((id_name, *UsualColumns().ids)))
    ids = next((name for name in id_names if name in names), None)
    if ids is None:
        raise DataError(
            f"{path} must have a column of ids, named {' or '.join(map(repr, id_names))}; it has "
            f"{listed(names, NAMES_IN_MESSAGE) or 'no columns'}. Rename one, and separate columns "
            "by commas if the file is CSV."
        )
    label = label_column or LABEL
    if label not in names:
        reason = "named by the parameter label_column"
        usual = "the usual name; choose another with label_column=..."
        raise unknown_column(label, names, path, reason if label_column else usual)
    return ids, label
