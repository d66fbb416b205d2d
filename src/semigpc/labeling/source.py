"""Where embeddings come from: one table, or a folder of shards, streamed in batches of one size and read at random.

Ids are text everywhere; without a column of ids they are the row numbers. Rows are numbered from 0 over all shards in the order
of their names; in messages they are counted from 1 in the file that holds them.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow
from numpy.typing import NDArray

from semigpc.data.dataset import DataError
from semigpc.data.paths import checked, refuse, sorted_images, unusable
from semigpc.labeling.cells import Floats, LengthError, floats_of, ids_of, labels_of, matrix_of
from semigpc.labeling.columns import Columns, Wanted, check_types, choose, unknown_column
from semigpc.labeling.table_files import KINDS, ParquetTable, TableFile, readable
from semigpc.text import printable

Rows = NDArray[np.int64]
CHUNK = 8192  # rows read at a time, of which batches are made
NO_IDS = "id"  # what the column of row numbers is called, where there is no column of ids


class Batch(NamedTuple):
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

    def batches(self, size: int) -> Iterator[Batch]:
        """All rows in order, ``size`` at a time and the rest at the end, whatever the file is cut into."""
        ...

    def take(self, rows: Rows) -> Floats:
        """Embeddings (M, D) of these rows, in any order, also repeated."""
        ...

    def place(self, row: int) -> str:
        """Where a row is, for a message."""
        ...


def open_source(path: Path, wanted: Wanted | None = None, *, follow_links: bool = False) -> "TableSource":
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
        return TableSource([ParquetTable(shard) for shard in shards], wanted or Wanted())
    if not checked(path).exists():
        raise DataError(f"There is no table and no folder {path}. Check the path.")
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise DataError(
            f"Embeddings must be in a file that ends in {', '.join(KINDS)}, or in a folder of .parquet files or of images; "
            f"got {path.name}."
        )
    return TableSource([kind(path)], wanted or Wanted())


class TableSource:
    """Tables one after the other, with the same columns in each."""

    def __init__(self, tables: list[TableFile], wanted: Wanted) -> None:
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

    def batches(self, size: int) -> Iterator[Batch]:
        """All rows in order, ``size`` at a time."""
        reading, first = self.columns.reading(), 0
        held: list[Batch] = []
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

    def _batch(self, number: int, start: int, record: pyarrow.RecordBatch) -> Batch:
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
        return Batch(first, ids, self._values(number, start, record), labels)

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


def cut(batch: Batch, start: int, stop: int) -> Batch:
    """Some rows of a batch."""
    labels = None if batch.labels is None else batch.labels[start:stop]
    return Batch(batch.first + start, batch.ids[start:stop], batch.x[start:stop], labels)


def joined(parts: list[Batch], first: int) -> Batch:
    """Batches one after the other as one, numbered from ``first``."""
    ids = [name for part in parts for name in part.ids]
    labels = [label for part in parts for label in part.labels or ()] if parts[0].labels is not None else None
    return Batch(first, ids, np.concatenate([part.x for part in parts]), labels)
