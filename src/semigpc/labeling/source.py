"""Where embeddings come from: one table, or a folder of shards, streamed in batches of one size and read at random.

Ids are text everywhere; without a column of ids they are the row numbers. Rows are numbered from 0 over all shards in the order
of their names; in messages they are counted from 1 in the file that holds them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import csv, ipc, parquet

from semigpc.data.arrays import read_npz
from semigpc.data.dataset import DataError
from semigpc.data.paths import checked, refuse, sorted_images, unusable
from semigpc.labeling.columns import (
    ColumnOptions,
    Columns,
    ColumnsToRead,
    Floats,
    LengthError,
    UsualColumns,
    check_types,
    choose,
    floats_of,
    ids_of,
    labels_of,
    matrix_of,
    unknown_column,
)
from semigpc.text import printable

Rows = NDArray[np.int64]
CHUNK = 8192  # rows read at a time, of which batches are made
NO_IDS = "id"  # what the column of row numbers is called, where there is no column of ids
BUFFER = 2**20  # bytes of a Parquet column read at a time, whatever the size of its row groups
BLOCK = 2**24  # bytes of a CSV file parsed at a time; no row may be longer
# OverflowError and LookupError: dates and time zones that Python does not know.
UNREADABLE = (pyarrow.ArrowException, OSError, ValueError, OverflowError, LookupError)
Numbered = Iterator[tuple[int, pyarrow.RecordBatch]]
CHECKED = {"page_checksum_verification": True}  # where a file has checksums


class RowBatch(NamedTuple):
    """M rows, numbered from ``first``: ids, embeddings (M, D) and, if there is a column of them, labels (None for none)."""

    first: int
    ids: list[str]
    x: Floats
    labels: list[str | None] | None


class Source(Protocol):
    """Rows of embeddings.

    Args:
        id_name: what the ids are called. width: D.
        rows: how many; None where only reading all of them would tell (Arrow, CSV).
        has_ids, has_labels: whether there is such a column.
        files: what is read.
    """

    id_name: str
    width: int
    rows: int | None
    has_ids: bool
    has_labels: bool
    files: list[Path]

    def batches(self, size: int) -> Iterator[RowBatch]:
        """All rows in order, ``size`` at a time and the rest at the end, whatever the file is cut into."""
        ...

    def take(self, rows: Rows) -> Floats:
        """Embeddings (M, D) of these rows, in any order, also repeated."""
        ...

    def place(self, row: int) -> str:
        """Where a row is, for a message."""
        ...


def open_source(path: Path, wanted: ColumnOptions | None = None, *, follow_links: bool = False) -> "TableSource":
    """The table in a file, or in the Parquet shards of a folder, sorted by name; links out of it are followed if permitted.

    Raises:
        DataError: there is no such file, it cannot be read, or columns are not what they must be.
    """
    if path.is_dir():
        shards = sorted(shard for shard in path.glob("*.parquet") if not shard.name.startswith("."))
        reasons = {shard.name: unusable(path.resolve(), shard.name, follow_links=follow_links) for shard in shards}
        refuse([(printable(name), reason) for name, reason in reasons.items() if reason is not None], path)
        if not shards:
            refuse(sorted_images(path, follow_links=follow_links)[1], path)
            raise DataError(f"There are no images and no .parquet files in {path}. Check the path.")
        return TableSource([ParquetTable(shard) for shard in shards], wanted or ColumnOptions())
    if not checked(path).exists():
        raise DataError(f"There is no table and no folder {path}. Check the path.")
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise DataError(
            f"Embeddings must be in a file that ends in {', '.join(KINDS)}, or in a folder of .parquet files or of images; "
            f"got {path.name}."
        )
    return TableSource([kind(path)], wanted or ColumnOptions())


class TableFile(Protocol):
    """One file.

    ``rows`` is None where only reading all of it would tell. ``usual`` are the names that columns have in such files.
    """

    path: Path
    schema: pyarrow.Schema
    rows: int | None
    usual: UsualColumns

    def batches(self, reading: ColumnsToRead, size: int, within: Rows | None = None) -> Numbered:
        """At most ``size`` rows at a time, in order; batches that hold none of the rows ``within`` (sorted) may be left out."""
        ...


class TableSource:
    """Tables one after the other, with the same columns in each."""

    def __init__(self, tables: list[TableFile], wanted: ColumnOptions) -> None:
        self.tables = tables
        self.files = [table.path for table in tables]
        first = tables[0]
        self.columns: Columns = choose(first.schema, wanted, first.usual, first.path)
        for table in tables[1:]:
            self._check_shard(table)
        self.has_ids, self.has_labels = self.columns.id is not None, self.columns.label is not None
        self.id_name = self.columns.id or NO_IDS
        known = [table.rows for table in tables if table.rows is not None]
        self.rows = sum(known) if len(known) == len(tables) else None
        self.starts = np.cumsum([0, *known])  # by which rows are found again; without them there is one table
        self.width = self._find_width()

    def _check_shard(self, table: TableFile) -> None:
        for name in self.columns.reading().names:
            if name not in table.schema.names:
                raise DataError(unknown_column(name, table.schema.names, table.path, f"the first shard {self.files[0].name}"))
        check_types(table.schema, self.columns.features, table.path)

    def _find_width(self) -> int:
        if not self.columns.as_list:
            return len(self.columns.features)
        for table in self.tables:
            for _, batch in table.batches(self.columns.reading(ids=False, labels=False), 1):
                width: int = matrix_of(batch.column(0), None).shape[1]
                if width:
                    return width
        raise DataError(f"{self.files[0]} holds no rows with an embedding. Nothing can be labelled.")

    def batches(self, size: int) -> Iterator[RowBatch]:
        """All rows in order, ``size`` at a time."""
        reading, first = self.columns.reading(), 0
        held: list[RowBatch] = []
        for number, table in enumerate(self.tables):
            for start, record in table.batches(reading, min(size, CHUNK)):
                batch = self._batch(number, start, record)
                while sum(len(part.ids) for part in held) + len(batch.ids) >= size:
                    room = size - sum(len(part.ids) for part in held)
                    yield joined([*held, cut(batch, 0, room)], first)
                    first, held, batch = first + size, [], cut(batch, room, len(batch.ids))
                held += [batch] if batch.ids else []
        if held:
            yield joined(held, first)

    def take(self, rows: Rows) -> Floats:
        """Embeddings (M, D); of Parquet only the row groups that hold them are read."""
        taken = np.empty((len(rows), self.width), dtype=np.float32)
        order = np.argsort(rows, kind="stable")
        ordered = np.asarray(rows, dtype=np.int64)[order]
        reading, found = self.columns.reading(ids=False, labels=False), 0
        for number, table in enumerate(self.tables):
            base = int(self.starts[number]) if len(self.tables) > 1 else 0
            end = np.searchsorted(ordered, self.starts[number + 1]) if len(self.tables) > 1 else len(ordered)
            within = ordered[found:end] - base
            if not len(within):
                continue
            for start, record in table.batches(reading, CHUNK, within):
                low, high = np.searchsorted(within, (start, start + len(record)))
                if high > low:
                    values = self._values(number, start, record)
                    taken[order[found + low : found + high]] = values[within[low:high] - start]
                if high == len(within) and start + len(record) > within[-1]:
                    found += len(within)
                    break
        if found < len(ordered):
            raise DataError(f"{self.files[-1]} has no row {ordered[-1] + 1}. Was it changed since it was labelled?")
        return taken

    def place(self, row: int) -> str:
        """The row, counted from 1, of the file that holds it."""
        if len(self.tables) == 1:
            return f"row {row + 1} of {self.files[0]}"
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"row {row - int(self.starts[number]) + 1} of {self.files[number]}"

    def _batch(self, number: int, start: int, record: pyarrow.RecordBatch) -> RowBatch:
        """What a record batch of a table holds; ``start`` is its first row there."""
        first = start + (int(self.starts[number]) if len(self.tables) > 1 else 0)
        if self.columns.id is None:
            ids = [str(row) for row in range(first, first + len(record))]
        else:
            with self._converted(number, self.columns.id):
                found = ids_of(record.column(self.columns.id))
            ids = [value for value in found if value is not None]
            if len(ids) < len(found):
                place = self.place(first + found.index(None))
                raise DataError(f"Every row needs an id; there is none in {place}, column {self.id_name!r}. Fill it in.")
        labels = None
        if self.columns.label is not None:
            with self._converted(number, self.columns.label):
                labels = labels_of(record.column(self.columns.label), self.files[number])
        return RowBatch(first, ids, self._values(number, start, record), labels)

    def _converted(self, number: int, column: str) -> AbstractContextManager[None]:
        """What goes wrong within is an error about that column."""
        return readable(self.files[number], "a table", f"Mend the column {column!r}, or name another.")

    def _values(self, number: int, start: int, record: pyarrow.RecordBatch) -> Floats:
        if not self.columns.as_list:
            return np.stack([floats_of(record.column(name)) for name in self.columns.features], axis=1)
        try:
            return matrix_of(record.column(self.columns.features[0]), self.width)
        except LengthError as error:
            raise DataError(
                f"All embeddings must be equally long; row {start + error.row + 1} of {self.files[number]} has {error.length} "
                f"values, and the first has {error.width}. Mend it, or take it out."
            ) from error


def cut(batch: RowBatch, start: int, stop: int) -> RowBatch:
    """Some rows of a batch."""
    labels = None if batch.labels is None else batch.labels[start:stop]
    return RowBatch(batch.first + start, batch.ids[start:stop], batch.x[start:stop], labels)


def joined(parts: list[RowBatch], first: int) -> RowBatch:
    """Batches one after the other as one, numbered from ``first``."""
    ids = [name for part in parts for name in part.ids]
    labels = [label for part in parts for label in part.labels or ()] if parts[0].labels is not None else None
    return RowBatch(first, ids, np.concatenate([part.x for part in parts]), labels)


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


class ParquetTable:
    """A Parquet file; row groups are streamed, so that one of any size takes little memory."""

    usual = UsualColumns()
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

    def batches(self, reading: ColumnsToRead, size: int, within: Rows | None = None) -> Numbered:
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

    usual = UsualColumns()
    _advice = "It may be truncated, or no Arrow file at all: write it again."

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path, "Arrow", self._advice), pyarrow.memory_map(str(path)) as file:
            self._is_stream = file.read(6) != b"ARROW1"
            file.seek(0)
            opened = ipc.open_stream(file) if self._is_stream else ipc.open_file(file)
            self.schema: pyarrow.Schema = named(opened.schema)
        self.rows: int | None = None

    def batches(self, reading: ColumnsToRead, size: int, within: Rows | None = None) -> Numbered:  # noqa: ARG002
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

    usual = UsualColumns()
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

    def batches(self, reading: ColumnsToRead, size: int, within: Rows | None = None) -> Numbered:  # noqa: ARG002
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

    usual = UsualColumns(
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

    def batches(self, reading: ColumnsToRead, size: int, within: Rows | None = None) -> Numbered:  # noqa: ARG002
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
