"""Files that hold a table, read a few rows at a time: Parquet, Arrow, CSV, NPZ.

All answer the same: a schema, and record batches of chosen columns, each with the number of its first row. Of an NPZ file alone
all is held in memory.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import csv, ipc, parquet

from semigpc.data.arrays import read_npz
from semigpc.data.dataset import DataError
from semigpc.labeling.columns import Reading, Usual

BUFFER = 2**20  # bytes of a Parquet column read at a time, whatever the size of its row groups
BLOCK = 2**24  # bytes of a CSV file parsed at a time; no row may be longer
# OverflowError and LookupError: dates and time zones that Python does not know.
UNREADABLE = (pyarrow.ArrowException, OSError, ValueError, OverflowError, LookupError)
Numbered = Iterator[tuple[int, pyarrow.RecordBatch]]
Rows = NDArray[np.int64]


class TableFile(Protocol):
    """One file.

    ``rows`` is None where only reading all of it would tell. ``usual`` are the names that columns have in such files.
    """

    path: Path
    schema: pyarrow.Schema
    rows: int | None
    usual: Usual

    def batches(self, reading: Reading, size: int, within: Rows | None = None) -> Numbered:
        """At most ``size`` rows at a time, in order; batches that hold none of the rows ``within`` (sorted) may be left out."""
        ...


@contextmanager
def readable(path: Path, kind: str, advice: str, names: Sequence[str] = ()) -> Iterator[None]:
    """Say which file it was that could not be read, and which column, if its number in ``names`` is told."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"The table is not there: {path}. Check the path.") from error
    except UNREADABLE as error:
        if isinstance(error, DataError):
            raise
        text = " ".join(str(error).split())[:300].rstrip(".")
        numbered = re.search(r"CSV column #(\d+)", text)
        if numbered and int(numbered[1]) < len(names):
            text = text.replace(numbered[0], f"column {names[int(numbered[1])]!r}")
        raise DataError(f"{path} cannot be read as {kind}: {text}. {advice}") from error


def sound(batch: pyarrow.RecordBatch, names: Sequence[str]) -> pyarrow.RecordBatch:
    """The chosen columns, after every offset, index and text in them was checked; O(values).

    Nothing may touch a value before: in a damaged file offsets lead out of the memory that is held, and the process dies.
    """
    chosen = batch.select(names)
    chosen.validate(full=True)
    return chosen


def named(schema: pyarrow.Schema) -> pyarrow.Schema:
    """The schema itself, whose names were read once: damage may have left some that are not UTF-8."""
    assert len(schema.names) == len(schema)
    return schema


def complete(found: int, expected: int) -> None:
    """Raise an error if a Parquet file holds another number of rows than it says."""
    if found != expected:
        raise pyarrow.ArrowInvalid(f"it says that it holds {expected} rows and holds {found}")


CHECKED = {"page_checksum_verification": True}  # where a file has checksums


class ParquetTable:
    """A Parquet file; row groups are streamed, so that one of any size takes little memory."""

    usual = Usual()
    _advice = "It may be truncated, or no Parquet file at all: write it again."

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path, "Parquet", self._advice), parquet.ParquetFile(path) as file:
            self.schema: pyarrow.Schema = named(file.schema_arrow)
            groups = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
            complete(sum(groups), file.metadata.num_rows)
            if min(groups, default=0) < 0:
                raise pyarrow.ArrowInvalid(f"a row group says that it holds {min(groups)} rows")
        self.starts = np.cumsum([0, *groups]).astype(np.int64)
        self.rows: int | None = int(self.starts[-1])

    def batches(self, reading: Reading, size: int, within: Rows | None = None) -> Numbered:
        """Row group by row group; those without a row of ``within`` are not read."""
        groups = range(len(self.starts) - 1)
        if within is not None:
            within = within[within < self.starts[-1]]
            groups = np.unique(np.searchsorted(self.starts, within, side="right") - 1).tolist()
        streamed = CHECKED | {"buffer_size": BUFFER, "pre_buffer": False}  # else whole row groups would be read ahead
        with readable(self.path, "Parquet", self._advice), parquet.ParquetFile(self.path, **streamed) as file:
            for group in groups:
                first = int(self.starts[group])
                for batch in file.iter_batches(size, row_groups=[group], columns=reading.names):
                    yield first, sound(batch, reading.names)
                    first += batch.num_rows
                complete(first - int(self.starts[group]), int(self.starts[group + 1] - self.starts[group]))


class ArrowTable:
    """An Arrow file, which is also what Feather is, or an Arrow stream; mapped into memory and not read before it is used."""

    usual = Usual()
    _advice = "It may be truncated, or no Arrow file at all: write it again."

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path, "Arrow", self._advice), pyarrow.memory_map(str(path)) as file:
            self._is_stream = file.read(6) != b"ARROW1"
            file.seek(0)
            opened = ipc.open_stream(file) if self._is_stream else ipc.open_file(file)
            self.schema: pyarrow.Schema = named(opened.schema)
        self.rows: int | None = None

    def batches(self, reading: Reading, size: int, within: Rows | None = None) -> Numbered:  # noqa: ARG002
        """Batches of the file, cut to size."""
        first = 0
        with readable(self.path, "Arrow", self._advice), pyarrow.memory_map(str(self.path)) as file:
            reader = ipc.open_stream(file) if self._is_stream else ipc.open_file(file)
            held = iter(reader) if self._is_stream else map(reader.get_batch, range(reader.num_record_batches))
            for batch in held:
                chosen = sound(batch, reading.names)
                yield from ((first + start, chosen.slice(start, size)) for start in range(0, len(chosen), size))
                first += len(chosen)


class CsvTable:
    """A CSV file in UTF-8 with a line of names. Columns of numbers are those that the first block shows to be."""

    usual = Usual()
    _advice = "Save it as comma-separated UTF-8 text with a line of names."

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: int | None = None
        with readable(path, "CSV", self._advice), self._open({}, None) as reader:
            self.schema: pyarrow.Schema = named(reader.schema)
        names = self.schema.names
        if len(names) == 1 and (";" in names[0] or "\t" in names[0]):
            raise DataError(f"{path} has a single column, {names[0]!r}. Separate columns by commas.")
        if all(pyarrow.types.is_null(field.type) for field in self.schema):
            raise DataError(f"{path} holds no rows. Nothing can be labelled.")

    def batches(self, reading: Reading, size: int, within: Rows | None = None) -> Numbered:  # noqa: ARG002
        """From the beginning each time; numbers as float32, and all else as text, so that an id of 007 stays one."""
        types = dict.fromkeys(reading.text, pyarrow.string())
        for name in reading.features:
            kind = self.schema.field(name).type
            types[name] = kind if pyarrow.types.is_boolean(kind) else pyarrow.float32()
        first = 0
        with readable(self.path, "CSV", self._advice, self.schema.names), self._open(types, list(types)) as reader:
            for batch in reader:
                yield from ((first + start, batch.slice(start, size)) for start in range(0, len(batch), size))
                first += len(batch)

    def _open(self, types: dict[str, pyarrow.DataType], columns: list[str] | None) -> csv.CSVStreamingReader:
        return csv.open_csv(
            self.path,
            csv.ReadOptions(block_size=BLOCK),
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(column_types=types, include_columns=columns, strings_can_be_null=False),
        )


class NpzTable:
    """Arrays in a file of ``numpy.savez``, equally long: the embeddings (N, D) and, if there, ids (N,) and labels (N,).

    All of it is read into memory; objects that would need unpickling are refused.
    """

    usual = Usual(
        ids=("file_name", "id", "ids"), features=("embedding", "embeddings", "x", "X"), labels=("label", "labels", "y")
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        arrays = read_npz(path)
        sizes = {name: len(values) for name, values in arrays.items() if values.ndim in (1, 2)}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            raise DataError(f"The arrays of {path} must be equally long, one row each; {told}. Take out what is no column.")
        columns = {name: _column(values) for name, values in arrays.items() if name in sizes}
        self.held = pyarrow.RecordBatch.from_pydict(columns)
        self.schema: pyarrow.Schema = self.held.schema
        self.rows: int | None = self.held.num_rows

    def batches(self, reading: Reading, size: int, within: Rows | None = None) -> Numbered:  # noqa: ARG002
        """Slices of what is held."""
        chosen = self.held.select(reading.names)
        yield from ((start, chosen.slice(start, size)) for start in range(0, len(chosen), size))


def _column(values: NDArray[Any]) -> pyarrow.Array:
    """A vector as a column; the rows of a matrix as one of lists, without a copy of numbers."""
    if values.ndim == 2:
        return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.ravel()), values.shape[1])
    if values.dtype.kind == "S":
        return pyarrow.array([value.decode("utf-8", "replace") for value in values.tolist()])
    return pyarrow.array(values)


KINDS: Mapping[str, type[ParquetTable] | type[ArrowTable] | type[CsvTable] | type[NpzTable]] = {
    ".parquet": ParquetTable,
    ".arrow": ArrowTable,
    ".feather": ArrowTable,
    ".csv": CsvTable,
    ".npz": NpzTable,
}
