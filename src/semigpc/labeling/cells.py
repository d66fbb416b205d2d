"""What the columns of a table hold: ids and labels as text, embeddings as rows of float32.

Whatever the type of numbers (float16 to float64, whole, boolean), they become float32. An empty cell becomes NaN, a value
beyond the range of float32 becomes infinite; both are told of where rows are checked.
"""

from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from semigpc.data.dataset import DataError
from semigpc.data.tables import as_label

Floats = NDArray[np.float32]


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
