"""Tables of embeddings, in one file or a folder of shards: streamed in batches, or read by row.

Ids are text everywhere; without a column of ids they are the row numbers. Rows are numbered from 0
over all shards in the order of their names; messages count them from 1 in the file that holds them.
Files are read a few rows at a time, except NPZ.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, csv, fs, ipc, parquet

from semigpc.data.arrays import read_npz
from semigpc.estimator.answers import Doubles, centre_of, rounded
from semigpc.io.errors import DataError
from semigpc.io.paths import checked, reject_bad, sorted_images, unusable
from semigpc.io.tables import NOT_IN_PYTHON
from semigpc.io.text import printable
from semigpc.labeling.columns import (
    AnyFloats,
    ColumnOptions,
    Columns,
    Floats,
    UsualColumns,
    check_types,
    choose,
    fits_float32,
    floats_of,
    ids_of,
    labels_of,
    matrix_of,
    unknown_column,
)

READ_ROWS = 8192  # read from a file at a time; batches are put together from these
# Read of a Parquet column at a time, so that a row group of any size takes little memory.
PARQUET_BUFFER_BYTES = 2**20
CSV_BLOCK_BYTES = 2**24  # parsed at a time; no row may be longer
REASON_LENGTH = 300  # characters of pyarrow's message that ours repeats
NPZ_KINDS = "biufUSmM"  # of NumPy types: booleans, numbers, text, dates and times
ROW_NUMBER = "id"  # name of the ids where there is no column of ids
UNREADABLE = (pyarrow.ArrowException, OSError, ValueError, *NOT_IN_PYTHON)

Rows = NDArray[np.int64]
NumberedBatches = Iterator[tuple[int, pyarrow.RecordBatch]]  # each with the number of its first row


# Files --------------------------------------------------------------------------------------------


class TableFile(ABC):
    """One file with a table; one subclass per kind of file.

    Attributes:
        path: of the file. schema: of the table.
        rows: how many; None where this takes reading the whole file (Arrow, CSV).
        usual: names that columns usually have in such files.
    """

    path: Path
    schema: pyarrow.Schema
    rows: int | None = None
    usual = UsualColumns()

    @abstractmethod
    def batches(self, columns: Columns, size: int, within: Rows | None = None) -> NumberedBatches:
        """Yield all rows in order, at most ``size`` at a time.

        Batches without a row of ``within`` (sorted) may be left out.
        """


@contextmanager
def readable(path: Path, kind: str, advice: str, names: Sequence[str] = ()) -> Iterator[None]:
    """Turn an error of reading into a DataError that names the file.

    Args:
        path, kind: of the file. advice: what to do, for the message.
        names: of the columns of a CSV file; pyarrow reports the number of a column.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"The table does not exist: {path}. Check the path.") from error
    except UNREADABLE as error:
        if isinstance(error, DataError):
            raise
        text = " ".join(str(error).split())[:REASON_LENGTH].rstrip(".")
        number = re.search(r"CSV column #(\d+)", text)
        if number and int(number[1]) < len(names):
            text = text.replace(number[0], f"column {names[int(number[1])]!r}")
        raise DataError(f"{path} cannot be read as {kind}: {text}. {advice}") from error


def _validated(batch: pyarrow.RecordBatch, names: Sequence[str]) -> pyarrow.RecordBatch:
    """Return the named columns after checking every offset, index and text in them; O(values).

    Values must not be used before: offsets of a damaged file may point outside the buffers, and the
    process would crash.
    """
    chosen = batch.select(names)
    chosen.validate(full=True)
    return chosen


def _decoded(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Return the schema after decoding its names, which raises if some are not UTF-8."""
    assert len(schema.names) == len(schema)
    return schema


def _check_count(rows: int, expected: int) -> None:
    if rows != expected:
        raise pyarrow.ArrowInvalid(f"its header promises {expected} rows, but it has {rows}")


class ParquetTable(TableFile):
    """A Parquet file, streamed page by page, or by row group from an object store.

    Args:
        path: of the file, for messages.
        store: the file system that holds it; None for this machine's.
        location: its path in ``store``.
    """

    _advice = "It may be truncated, or not a Parquet file: write it again, or remove it."

    def __init__(self, path: Path, store: fs.FileSystem | None = None, location: str = "") -> None:
        self.path = path
        self._store = store
        self._location = location or str(path)
        with readable(path, "Parquet", self._advice), self._open() as file:
            self.schema = _decoded(file.schema_arrow)
            facts = file.metadata
            groups = [facts.row_group(g).num_rows for g in range(facts.num_row_groups)]
            _check_count(sum(groups), facts.num_rows)
            if min(groups, default=0) < 0:
                raise pyarrow.ArrowInvalid(f"a row group claims to have {min(groups)} rows")
        self.starts = np.cumsum([0, *groups]).astype(np.int64)
        self.rows = int(self.starts[-1])

    def _open(self, **options: Any) -> parquet.ParquetFile:
        return parquet.ParquetFile(self._location, filesystem=self._store, **options)

    def batches(self, columns: Columns, size: int, within: Rows | None = None) -> NumberedBatches:
        groups = range(len(self.starts) - 1)
        if within is not None:
            within = within[within < self.starts[-1]]
            groups = np.unique(np.searchsorted(self.starts, within, side="right") - 1).tolist()
        is_local = self._store is None or isinstance(self._store, fs.LocalFileSystem)
        reading = {
            "page_checksum_verification": True,
            "pre_buffer": not is_local,
            "buffer_size": PARQUET_BUFFER_BYTES if is_local else 0,
        }
        with readable(self.path, "Parquet", self._advice), self._open(**reading) as file:
            for group in groups:
                start, end = self.starts[group : group + 2].tolist()
                first = start
                for batch in file.iter_batches(size, row_groups=[group], columns=columns.names):
                    yield first, _validated(batch, columns.names)
                    first += batch.num_rows
                _check_count(first - start, end - start)


class ArrowTable(TableFile):
    """An Arrow file, also called Feather, or an Arrow stream, mapped into memory."""

    _advice = "It may be truncated, or not an Arrow file: write it again."

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path, "Arrow", self._advice), pyarrow.memory_map(str(path)) as file:
            self._is_stream = file.read(6) != b"ARROW1"
            file.seek(0)
            reader = ipc.open_stream(file) if self._is_stream else ipc.open_file(file)
            self.schema = _decoded(reader.schema)

    def batches(self, columns: Columns, size: int, within: Rows | None = None) -> NumberedBatches:  # noqa: ARG002
        first = 0
        with readable(self.path, "Arrow", self._advice), pyarrow.memory_map(str(self.path)) as file:
            if self._is_stream:
                batches = iter(ipc.open_stream(file))
            else:
                reader = ipc.open_file(file)
                batches = map(reader.get_batch, range(reader.num_record_batches))
            for batch in batches:
                yield from _slices(_validated(batch, columns.names), size, first)
                first += len(batch)


def _slices(batch: pyarrow.RecordBatch, size: int, first: int = 0) -> NumberedBatches:
    return ((first + start, batch.slice(start, size)) for start in range(0, len(batch), size))


class CsvTable(TableFile):
    """A CSV file in UTF-8 with a header; the first block decides which columns hold numbers."""

    _advice = "Save it as comma-separated UTF-8 text with a header line."

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path, "CSV", self._advice), self._open({}, None) as reader:
            self.schema = _decoded(reader.schema)
        names = self.schema.names
        if len(names) == 1 and (";" in names[0] or "\t" in names[0]):
            raise DataError(
                f"{path} has a single column, {names[0]!r}. Separate columns by commas."
            )
        if all(pyarrow.types.is_null(field.type) for field in self.schema):
            raise DataError(f"{path} has no rows, so there is nothing to label.")

    def batches(self, columns: Columns, size: int, within: Rows | None = None) -> NumberedBatches:  # noqa: ARG002
        types = dict.fromkeys(columns.names, pyarrow.string())  # so that an id of 007 stays one
        for name in columns.features:
            kind = self.schema.field(name).type
            types[name] = kind if pyarrow.types.is_boolean(kind) else pyarrow.float64()
        first = 0
        errors = readable(self.path, "CSV", self._advice, self.schema.names)
        with errors, self._open(types, list(types)) as reader:
            for batch in reader:
                yield from _slices(batch, size, first)
                first += len(batch)

    def _open(
        self, types: dict[str, pyarrow.DataType], columns: list[str] | None
    ) -> csv.CSVStreamingReader:
        reading = csv.ReadOptions(block_size=CSV_BLOCK_BYTES)
        parsing = csv.ParseOptions(newlines_in_values=True)
        conversion = csv.ConvertOptions(
            column_types=types, include_columns=columns, strings_can_be_null=False
        )
        return csv.open_csv(self.path, reading, parsing, conversion)


class NpzTable(TableFile):
    """A file of ``numpy.savez``: embeddings (N, D) and, optionally, ids (N,) and labels (N,).

    All of it is read into memory; arrays that need unpickling are an error.
    """

    usual = UsualColumns(
        ids=("file_name", "id", "ids"),
        features=("embedding", "embeddings", "x", "X"),
        labels=("label", "labels", "y"),
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        arrays = {name: values for name, values in read_npz(path).items() if values.ndim in (1, 2)}
        if len({len(values) for values in arrays.values()}) > 1:
            lengths = ", ".join(f"{name} has {len(values)}" for name, values in arrays.items())
            raise DataError(
                f"The arrays of {path} must be equally long; {lengths}. Remove the others."
            )
        columns = {}
        for name, values in arrays.items():
            with readable(path, "NPZ", f"Correct or remove the array {name!r}."):
                columns[name] = _npz_column(values)
        self._batch = pyarrow.RecordBatch.from_pydict(columns)
        self.schema = self._batch.schema
        self.rows = self._batch.num_rows

    def batches(self, columns: Columns, size: int, within: Rows | None = None) -> NumberedBatches:  # noqa: ARG002
        return _slices(self._batch.select(columns.names), size)


def _npz_column(values: NDArray[Any]) -> pyarrow.Array:
    """Return a vector as a column, and a matrix as a column of lists; numbers are not copied.

    Numbers longer than float64 are rounded to it. Dates and times become NumPy's text, since Arrow
    has fewer units of them.

    Raises:
        ValueError: they are neither numbers nor text, or there are no columns.
    """
    kind = values.dtype.kind
    if kind not in NPZ_KINDS:
        raise ValueError(f"{values.dtype} is neither real numbers nor text")
    if values.ndim == 2:
        if not values.shape[1]:
            raise ValueError(f"an array of shape {values.shape} has no columns")
        return pyarrow.FixedSizeListArray.from_arrays(_npz_column(values.ravel()), values.shape[1])
    if kind == "S":
        text = [value.decode("utf-8", "replace") for value in values.tolist()]
        return pyarrow.array(text, pyarrow.string())
    if kind in "mM":
        return pyarrow.array(values.astype(np.str_), pyarrow.string(), mask=np.isnat(values))
    if kind == "f" and values.dtype.itemsize > np.dtype(np.float64).itemsize:
        with np.errstate(over="ignore"):  # infinity is reported with its row
            values = values.astype(np.float64)
    return pyarrow.array(values)


OneFile = type[ParquetTable] | type[ArrowTable] | type[CsvTable] | type[NpzTable]
FILE_TYPES: Mapping[str, OneFile] = {
    ".parquet": ParquetTable,
    ".arrow": ArrowTable,
    ".feather": ArrowTable,
    ".csv": CsvTable,
    ".npz": NpzTable,
}


# Rows ---------------------------------------------------------------------------------------------


class RowBatch(NamedTuple):
    """M rows, numbered from ``first``.

    Attributes:
        ids: M. x: (M, D) embeddings.
        labels: M, each None for no label; None if there is no column of labels.
    """

    first: int
    ids: list[str]
    x: Floats
    labels: list[str | None] | None

    def rows(self, start: int, stop: int) -> "RowBatch":
        """Return some of the rows."""
        labels = None if self.labels is None else self.labels[start:stop]
        return RowBatch(self.first + start, self.ids[start:stop], self.x[start:stop], labels)


def _joined(batches: list[RowBatch]) -> RowBatch:
    ids = [name for batch in batches for name in batch.ids]
    x = np.concatenate([batch.x for batch in batches])
    labels = None
    if batches[0].labels is not None:
        labels = [label for batch in batches for label in batch.labels or ()]
    return RowBatch(batches[0].first, ids, x, labels)


def open_source(
    path: Path, options: ColumnOptions | None = None, *, follow_links: bool = False
) -> "TableSource":
    """Open a file with a table, or the Parquet shards of a folder, sorted by name.

    Args:
        path: of the file or folder. options: columns that the user named.
        follow_links: allow links out of the folder.

    Raises:
        DataError: there is no such file, it cannot be read, or its columns cannot be used.
    """
    options = options or ColumnOptions()
    if path.is_dir():
        shards = _shards(path, follow_links=follow_links)
        return TableSource([ParquetTable(shard) for shard in shards], options)
    if not checked(path).exists():
        raise DataError(f"There is no table and no folder {path}. Check the path.")
    file_type = FILE_TYPES.get(path.suffix.lower())
    if file_type is None:
        raise DataError(
            f"Embeddings must be in a file that ends in {', '.join(FILE_TYPES)}, or in a folder of "
            f".parquet files or images; got {path.name}."
        )
    return TableSource([file_type(path)], options)


def _shards(folder: Path, *, follow_links: bool) -> list[Path]:
    """Return the Parquet files of a folder, sorted by name."""
    shards = sorted(file for file in folder.glob("*.parquet") if not file.name.startswith("."))
    root = folder.resolve()
    reasons = {file.name: unusable(root, file.name, follow_links=follow_links) for file in shards}
    bad = [(printable(name), reason) for name, reason in reasons.items() if reason is not None]
    reject_bad(bad, folder)
    if not shards:
        reject_bad(sorted_images(folder, follow_links=follow_links)[1], folder)
        raise DataError(f"There are no images and no .parquet files in {folder}. Check the path.")
    return shards


class TableSource:
    """The rows of one or more tables with the same columns, one table after the other.

    Embeddings are float32. Where a column of longer numbers has a large offset, it is subtracted
    first: :func:`semigpc.estimator.answers.centre_of` the first rows, so that it is the same every
    time that the data are opened.

    Attributes:
        tables, files: the tables and their paths. columns: those that are read. width: D.
        centre: what is subtracted from the numbers (D,), None for nothing.
        id_name: name of the ids. has_ids, has_labels: whether there is such a column.
        rows: how many; None where this takes reading all of them (Arrow, CSV).
        starts: number of the first row of each table, and of all rows if that is known.
    """

    def __init__(self, tables: Sequence[TableFile], options: ColumnOptions) -> None:
        self.tables = list(tables)
        self.files = [table.path for table in tables]
        first = tables[0]
        self.columns = choose(first.schema, options, first.usual, first.path)
        self._features = replace(self.columns, id=None, label=None)
        for table in tables[1:]:
            self._check_shard(table)
        self.has_ids = self.columns.id is not None
        self.has_labels = self.columns.label is not None
        self.id_name = self.columns.id or ROW_NUMBER
        known = [table.rows for table in tables if table.rows is not None]
        self.rows = sum(known) if len(known) == len(tables) else None
        self.starts = np.cumsum([0, *known])
        self.width = self._find_width()
        self.centre = self._find_centre()

    def _check_shard(self, table: TableFile) -> None:
        """Raise a DataError if a further table lacks a column of the first, or has other types."""
        existing = table.schema.names
        for name in self.columns.names:
            if name not in existing:
                reason = f"a column of the first shard, {self.files[0].name}"
                raise unknown_column(name, existing, table.path, reason)
        check_types(table.schema, self.columns.features, table.path)

    def _find_width(self) -> int:
        if not self.columns.as_list:
            return len(self.columns.features)
        for table in self.tables:
            for _, batch in table.batches(self._features, 1):
                column = batch.column(0)
                lists = column.storage if isinstance(column, pyarrow.ExtensionArray) else column
                length = compute.list_value_length(lists)[0].as_py()
                if length:
                    return int(length)
        raise DataError(f"{self.files[0]} has no rows with an embedding: nothing to label.")

    def _find_centre(self) -> Doubles | None:
        first = self.tables[0]
        if all(fits_float32(first.schema.field(name).type) for name in self.columns.features):
            return None
        for start, record in first.batches(self._features, READ_ROWS):
            try:
                return centre_of(self._numbers(0, start, record, np.dtype(np.float64)))
            except DataError as error:
                raise DataError(f"{first.path}: {error}") from error
        return None

    def read_as(self, other: "TableSource") -> None:
        """Read rows as another source does, whose model they are for: with its offset.

        Raises:
            DataError: the features are not the same.
        """
        if self.width != other.width:
            raise DataError(
                f"{self.files[0]} has {self.width} features, and the labelled rows of "
                f"{other.files[0]} have {other.width}. Give rows of the same features."
            )
        names = self.columns.features
        if not (self.columns.as_list or other.columns.as_list) and names != other.columns.features:
            odd = next(a for a, b in zip(names, other.columns.features, strict=True) if a != b)
            raise DataError(
                f"{self.files[0]} has other features than {other.files[0]}, such as {odd!r}. Give "
                "the same columns in the same order."
            )
        self.centre = other.centre

    def batches(self, size: int) -> Iterator[RowBatch]:
        """Yield all rows in order, ``size`` at a time, however the files are divided."""
        waiting: list[RowBatch] = []
        for number, table in enumerate(self.tables):
            for start, record in table.batches(self.columns, min(size, READ_ROWS)):
                batch = self._batch(number, start, record)
                while (room := size - sum(len(part.ids) for part in waiting)) <= len(batch.ids):
                    yield _joined([*waiting, batch.rows(0, room)])
                    waiting = []
                    batch = batch.rows(room, len(batch.ids))
                if batch.ids:
                    waiting.append(batch)
        if waiting:
            yield _joined(waiting)

    def take(self, rows: Rows) -> Floats:
        """Return the embeddings (M, D) of rows, in any order and also repeated.

        Only the row groups of a Parquet file that hold some of the rows are read.
        """
        taken = np.empty((len(rows), self.width), dtype=np.float32)
        order = np.argsort(rows, kind="stable")
        ordered = np.asarray(rows, dtype=np.int64)[order]
        done = 0
        for number, table in enumerate(self.tables):
            end = len(ordered)
            if len(self.tables) > 1:
                end = int(np.searchsorted(ordered, self.starts[number + 1]))
            within = ordered[done:end] - self.starts[number]
            if not len(within):
                continue
            for start, record in table.batches(self._features, READ_ROWS, within):
                low, high = np.searchsorted(within, (start, start + len(record)))
                if high > low:
                    values = self._values(number, start, record)
                    taken[order[done + low : done + high]] = values[within[low:high] - start]
                if high == len(within) and start + len(record) > within[-1]:
                    done += len(within)
                    break
        if done < len(ordered):
            raise DataError(
                f"{self.files[-1]} has no row {ordered[-1] + 1}. Has it changed since labelling?"
            )
        return taken

    def place(self, row: int) -> str:
        """Return where a row is, for a message: its number in its file, counted from 1."""
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"row {row - self.starts[number] + 1} of {self.files[number]}"

    def _batch(self, number: int, start: int, record: pyarrow.RecordBatch) -> RowBatch:
        """Return a record batch that begins at row ``start`` of a table."""
        first = int(self.starts[number]) + start
        path = self.files[number]
        labels = None
        if self.columns.id is None:
            ids = [str(row) for row in range(first, first + len(record))]
        else:
            with readable(path, "a table", f"Correct the column {self.columns.id!r}."):
                values = ids_of(record.column(self.columns.id))
            ids = [value for value in values if value is not None]
            if len(ids) < len(values):
                place = self.place(first + values.index(None))
                raise DataError(f"Column {self.id_name!r} has no id in {place}. Fill it in.")
        if self.columns.label is not None:
            with readable(path, "a table", f"Correct the column {self.columns.label!r}."):
                labels = labels_of(record.column(self.columns.label), path)
        return RowBatch(first, ids, self._values(number, start, record), labels)

    def _values(self, number: int, start: int, record: pyarrow.RecordBatch) -> Floats:
        precision = np.dtype(np.float32 if self.centre is None else np.float64)
        return rounded(self._numbers(number, start, record, precision), self.centre)

    def _numbers(
        self, number: int, start: int, record: pyarrow.RecordBatch, precision: np.dtype[Any]
    ) -> AnyFloats:
        if not self.columns.as_list:
            values = [floats_of(record.column(name), precision) for name in self.columns.features]
            return np.stack(values, axis=1)
        first = int(self.starts[number]) + start
        column = record.column(self.columns.features[0])
        return matrix_of(column, self.width, precision, lambda row: self.place(first + row))
