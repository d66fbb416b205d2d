"""Which columns of a table are the ids, the embeddings and the labels.

Embeddings are one column of lists, all of one length, or many columns of numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from semigpc.data.dataset import DataError, listed
from semigpc.data.tables import as_label
from semigpc.text import similar_names

SPECIAL = "*?["  # what makes a name of features a pattern
Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """What the user asked for; None where the usual names decide.

    Args:
        id: the column of ids.
        features: the column of lists, or names and patterns of columns of numbers, separated by commas.
        label: the column of labels.
    """

    id: str | None = None
    features: str | None = None
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class UsualColumns:
    """Names that are looked for if nothing was asked for, the first one there wins."""

    ids: tuple[str, ...] = ("file_name", "id")
    features: tuple[str, ...] = ("embedding",)
    labels: tuple[str, ...] = ("label",)


class ColumnsToRead(NamedTuple):
    """Columns to read: as text, whatever they look like, and as numbers."""

    text: tuple[str, ...]
    features: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """All of them."""
        return [*self.text, *self.features]


@dataclass(frozen=True)
class Columns:
    """The columns that are there: ``id`` and ``label`` may be missing; ``as_list`` if the features are one column of lists."""

    id: str | None
    features: tuple[str, ...]
    label: str | None
    as_list: bool

    def reading(self, *, ids: bool = True, features: bool = True, labels: bool = True) -> ColumnsToRead:
        """Those that are asked for."""
        text = [name for name, asked in ((self.id, ids), (self.label, labels)) if name is not None and asked]
        return ColumnsToRead(tuple(text), self.features if features else ())


def choose(schema: pyarrow.Schema, wanted: ColumnOptions, usual: UsualColumns, path: object) -> Columns:
    """The columns to read from a table of this schema.

    Raises:
        DataError: a name is not there, or is of a type that cannot be meant.
    """
    known = list(schema.names)
    twice = sorted({name for name in known if known.count(name) > 1})
    if twice:
        raise DataError(f"{path} has several columns of the same name: {listed(twice)}. Rename all but one of each.")
    chosen_id = _one("--id", wanted.id, usual.ids, known, path)
    label = _one("--label-column", wanted.label, usual.labels, known, path)
    if chosen_id is not None and chosen_id == label:
        raise DataError(f"The column {chosen_id!r} of {path} cannot be both the ids and the labels. Check --id.")
    if wanted.features is not None:
        features = _asked(wanted.features, known, path, taken=[chosen_id, label])
    else:
        features = _usual_features(schema, usual, path, taken=[chosen_id, label])
    lists = [name for name in features if is_list(schema.field(name).type)]
    if lists and len(features) > 1:
        raise DataError(
            f"Features must be one column of lists, or columns of numbers; {listed(features)} of {path} mix the two, or are "
            f"several lists. Name one column of lists by --features."
        )
    check_types(schema, features, path)
    return Columns(chosen_id, tuple(features), label, bool(lists))


def _one(option: str, asked: str | None, usual: Sequence[str], known: Sequence[str], path: object) -> str | None:
    if asked is None:
        return next((name for name in usual if name in known), None)
    if asked not in known:
        raise DataError(unknown_column(asked, known, path, option))
    return asked


def unknown_column(name: str, known: Sequence[str], path: object, option: str) -> str:
    """What to say of a column that is not there."""
    near = similar_names(name, known)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{path} has no column {name!r}, which {option} names.{hint} It has {listed(known, 8) or 'none'}."


def _asked(text: str, known: Sequence[str], path: object, taken: Sequence[str | None]) -> list[str]:
    """Names in the order they were asked for; what a pattern matches in the order of the table."""
    if text in known:  # also a name with a comma in it
        return [text]
    found: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        pattern = any(sign in part for sign in SPECIAL) and part not in known
        matched = [name for name in known if fnmatchcase(name, part) and name not in taken] if pattern else [part]
        if not matched or (not pattern and part not in known):
            raise DataError(unknown_column(part, known, path, "--features"))
        found += [name for name in matched if name not in found]
    return found


def _usual_features(schema: pyarrow.Schema, usual: UsualColumns, path: object, taken: Sequence[str | None]) -> list[str]:
    """The usual column of lists, or the only one, or all columns of numbers; text among those is not passed over in silence."""
    rest = [name for name in schema.names if name not in taken]
    lists = [name for name in rest if is_list(schema.field(name).type)]
    named = next((name for name in usual.features if name in lists), None)
    if named is not None or len(lists) == 1:
        return [named or lists[0]]
    if lists:
        raise DataError(
            f"{path} has several columns of lists: {listed(lists)}. Say which one holds the embeddings: --features."
        )
    numbers = [name for name in rest if is_number(schema.field(name).type)]
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
    """Refuse a feature that is not of numbers, by name."""
    for name in features:
        kind = schema.field(name).type
        if not is_number(inner(kind)):
            raise DataError(
                f"Features must be numbers; the column {name!r} of {path} is {kind}. Mend its values, or leave it out of "
                "the features (--features names those to use)."
            )


def is_list(kind: pyarrow.DataType) -> bool:
    """Whether a column of this type holds lists."""
    return inner(kind) is not kind


def inner(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The type of what a list holds, or the type itself."""
    kind = kind.storage_type if isinstance(kind, pyarrow.BaseExtensionType) else kind
    types = pyarrow.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return kind.value_type
    return kind


def is_number(kind: pyarrow.DataType) -> bool:
    """Whether values of this type can be a feature."""
    types = pyarrow.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def ids_of(column: pyarrow.Array) -> list[str | None]:
    """Ids as text, None where there is none; spaces around them do not count, here as in a table of labels."""
    kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind) or not _plain(kind):
        raise DataError(f"Ids must be text or numbers; the column of ids holds {column.type}. Choose another one by --id.")
    values: list[str | None] = compute.utf8_trim_whitespace(compute.cast(column, pyarrow.string())).to_pylist()
    return [value or None for value in values]


def _plain(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_primitive(kind) or types.is_decimal(kind))


def labels_of(column: pyarrow.Array, where: object = "a table") -> list[str | None]:
    """Labels as text; None where there is none."""
    if pyarrow.types.is_temporal(column.type):  # Python's dates know neither nanoseconds nor the year 10000
        column = compute.cast(column, pyarrow.string())
    return [as_label(value, where) for value in column.to_pylist()]


def floats_of(column: pyarrow.Array) -> Floats:
    """Numbers (n,) as float32, NaN where there are none."""
    values: NDArray[Any] = compute.cast(column, pyarrow.float32(), safe=False).to_numpy(zero_copy_only=False)
    return values.astype(np.float32, copy=False)


def matrix_of(column: pyarrow.Array, width: int | None) -> Floats:
    """Lists as rows (n, D), NaN where there is none.

    Raises:
        LengthError: a row is not ``width`` long; all must be as long as the first if that is None.
    """
    column = column.storage if isinstance(column, pyarrow.ExtensionArray) else column
    missing = np.asarray(column.is_null(), dtype=bool)
    lengths = compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    if width is None:
        width = int(lengths[~missing][0]) if not missing.all() else 0
    wrong = np.flatnonzero(~missing & (lengths != width))
    if len(wrong):
        raise LengthError(int(wrong[0]), int(lengths[wrong[0]]), width)
    values = floats_of(column.flatten())  # without what null lists may hold
    rows = np.full((len(column), width), np.nan, dtype=np.float32)
    rows[~missing] = values.reshape(len(column) - int(missing.sum()), width)
    return rows


class LengthError(Exception):
    """A list of another length: in which row of the column, how long, and how long it should be."""

    def __init__(self, row: int, length: int, width: int) -> None:
        super().__init__(f"row {row} has {length} values, not {width}")
        self.row, self.length, self.width = row, length, width
