"""Which columns of a table are the ids, the embeddings and the labels, and their values as text and
as float32 numbers.

Embeddings are one column of lists, all of one length, or many columns of numbers. Numbers of any
type become float32: an empty cell becomes NaN and a value beyond the range becomes infinity, which
the first pass reports.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, types
from pydantic import ConfigDict, with_config

from semigpc.io.errors import DataError
from semigpc.io.tables import as_label
from semigpc.io.text import listed, similar_names

WILDCARDS = "*?["  # any of these makes a feature name a pattern

Floats = NDArray[np.float32]


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

    ids: tuple[str, ...] = ("file_name", "id")
    features: tuple[str, ...] = ("embedding",)
    labels: tuple[str, ...] = ("label",)


@dataclass(frozen=True)
class Columns:
    """The columns of a table; ``id`` and ``label`` may be missing. ``as_list``: the features are
    one column of lists.
    """

    id: str | None
    features: tuple[str, ...]
    label: str | None
    as_list: bool

    @property
    def names(self) -> list[str]:
        """Return the names of all of them, the features last."""
        return [*(name for name in (self.id, self.label) if name is not None), *self.features]


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
            f"{path} has several columns of the same name: {listed(repeated)}. Rename all but one of each."
        )
    id_column = _choose_one("--id", options.id, usual.ids, known, path)
    label = _choose_one("--label-column", options.label, usual.labels, known, path)
    if id_column is not None and id_column == label:
        raise DataError(
            f"The column {id_column!r} of {path} cannot be both the ids and the labels. Check --id."
        )
    if options.features is not None:
        features = _named_features(options.features, known, path, taken=(id_column, label))
    else:
        features = _usual_features(schema, usual, path, taken=(id_column, label))
    has_list = any(_is_list(schema.field(name).type) for name in features)
    if has_list and len(features) > 1:
        raise DataError(
            f"Features must be one column of lists, or columns of numbers; {listed(features)} of {path} mix the two, or are "
            "several lists. Name one column of lists by --features."
        )
    check_types(schema, features, path)
    return Columns(id_column, tuple(features), label, has_list)


def _choose_one(
    option: str, name: str | None, usual: Sequence[str], known: Sequence[str], path: object
) -> str | None:
    if name is None:
        return next((name for name in usual if name in known), None)
    if name not in known:
        raise DataError(unknown_column(name, known, path, option))
    return name


def unknown_column(name: str, known: Sequence[str], path: object, option: str) -> str:
    """Return the message for a column that does not exist."""
    similar = similar_names(name, known)
    hint = f" Did you mean {similar[0]!r}?" if similar else ""
    return f"{path} has no column {name!r}, which {option} names.{hint} It has {listed(known, 8) or 'none'}."


def _named_features(
    text: str, known: Sequence[str], path: object, taken: Sequence[str | None]
) -> list[str]:
    """Return the names in the order of ``text``; the matches of a pattern are in the order of the
    table.
    """
    if text in known:  # also a name that contains a comma
        return [text]
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        is_pattern = any(sign in part for sign in WILDCARDS) and part not in known
        matches = (
            [name for name in known if fnmatchcase(name, part) and name not in taken]
            if is_pattern
            else [part]
        )
        if not matches or (not is_pattern and part not in known):
            raise DataError(unknown_column(part, known, path, "--features"))
        names += [name for name in matches if name not in names]
    return names


def _usual_features(
    schema: pyarrow.Schema, usual: UsualColumns, path: object, taken: Sequence[str | None]
) -> list[str]:
    """Return the usual column of lists, else the only one, else all columns of numbers; other
    columns are then an error.
    """
    rest = [name for name in schema.names if name not in taken]
    lists = [name for name in rest if _is_list(schema.field(name).type)]
    named = next((name for name in usual.features if name in lists), None)
    if named is not None or len(lists) == 1:
        return [named or lists[0]]
    if lists:
        raise DataError(
            f"{path} has several columns of lists: {listed(lists)}. Say which one to use: --features."
        )
    numbers = [name for name in rest if _is_number(schema.field(name).type)]
    if not numbers:
        raise DataError(
            f"{path} has no embeddings: neither a column of lists nor columns of numbers beside the ids and the labels. "
            f"It has {listed(schema.names, 8) or 'no columns'}; commas must separate them if the file is CSV."
        )
    other = [f"{name} ({schema.field(name).type})" for name in rest if name not in numbers]
    if other:
        raise DataError(
            f"All columns of {path} but the ids and the labels are taken as features, and {len(other)} are no numbers: "
            f"{listed(other)}. Mend them, or name the features, such as --features '{numbers[0]},...' or a pattern ('f_*')."
        )
    return numbers


def check_types(schema: pyarrow.Schema, features: Sequence[str], path: object) -> None:
    """Raise a DataError that names the first feature which does not hold numbers."""
    for name in features:
        kind = schema.field(name).type
        if not _is_number(_value_type(kind)):
            raise DataError(
                f"Features must be numbers; the column {name!r} of {path} is {kind}. Mend its values, or leave it out of "
                "the features (--features names those to use)."
            )


def _is_list(kind: pyarrow.DataType) -> bool:
    return _value_type(kind) is not kind


def _value_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    kind = kind.storage_type if isinstance(kind, pyarrow.BaseExtensionType) else kind
    return (
        kind.value_type
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        else kind
    )


def _is_number(kind: pyarrow.DataType) -> bool:
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
    )


def ids_of(column: pyarrow.Array) -> list[str | None]:
    """Return ids as text, None where there is none; spaces around them do not count, here as in a
    table of labels.
    """
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if not (is_text or types.is_primitive(kind) or types.is_decimal(kind)):
        raise DataError(
            f"Ids must be text or numbers; the column of ids holds {column.type}. Choose another one by --id."
        )
    values: list[str | None] = compute.utf8_trim_whitespace(
        compute.cast(column, pyarrow.string())
    ).to_pylist()
    return [value or None for value in values]


def labels_of(column: pyarrow.Array, path: object) -> list[str | None]:
    """Return labels as text, None where there is none."""
    if types.is_temporal(column.type):  # Python's dates have neither nanoseconds nor the year 10000
        column = compute.cast(column, pyarrow.string())
    return [as_label(value, path) for value in column.to_pylist()]


def floats_of(column: pyarrow.Array) -> Floats:
    """Return numbers (n,) as float32, NaN where there are none."""
    values: NDArray[Any] = compute.cast(column, pyarrow.float32(), safe=False).to_numpy(
        zero_copy_only=False
    )
    return values.astype(np.float32, copy=False)


def matrix_of(column: pyarrow.Array, width: int, place: Callable[[int], str]) -> Floats:
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
            f"All embeddings must be equally long; {place(int(wrong[0]))} has {lengths[wrong[0]]} values, and the first has "
            f"{width}. Mend it, or take it out."
        )
    rows = np.full((len(column), width), np.nan, dtype=np.float32)
    rows[~missing] = floats_of(column.flatten()).reshape(
        -1, width
    )  # flatten leaves out what null lists may hold
    return rows
