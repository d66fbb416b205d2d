"""Partitioned data: Parquet files below a folder or an address, all of one kind, read one by one and by anybody.

Partitions are in the order of their names, and rows are numbered from 0 over all of them, as in a folder of shards. Schemas are
checked before any row is read. A partition without rows may look as it likes.
"""

import copy
import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import parquet

from semigpc.data.dataset import DataError, listed
from semigpc.data.paths import refuse, unusable
from semigpc.labeling.columns import Reading, Usual, Wanted
from semigpc.labeling.source import CHUNK, Batch, TableSource, cut, joined
from semigpc.labeling.stores import Store
from semigpc.labeling.table_files import BUFFER, CHECKED, Numbered, complete, named, readable, sound
from semigpc.text import printable

SUFFIX = ".parquet"
FOOTERS = 32  # that are read at a time

Rows = NDArray[np.int64]


class StoredTable:
    """A Parquet file in a store. Of a local one pages are streamed; of a remote one a row group is fetched at once."""

    usual = Usual()
    _advice = "It may be truncated, or no Parquet file at all: write it again, or take it out of the folder."

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name, self.path = store, name, store.told(name)
        with readable(self.path, "Parquet", self._advice), store.open(name) as file, parquet.ParquetFile(file) as table:
            self.schema: pyarrow.Schema = named(table.schema_arrow)
            self.rows: int | None = table.metadata.num_rows

    def batches(self, reading: Reading, size: int, within: Rows | None = None) -> Numbered:  # noqa: ARG002
        """All rows in order, at most ``size`` at a time."""
        way = {"pre_buffer": True} if self.store.is_remote else {"pre_buffer": False, "buffer_size": BUFFER}
        first = 0
        with readable(self.path, "Parquet", self._advice), self.store.open(self.name) as file:
            for batch in parquet.ParquetFile(file, **CHECKED, **way).iter_batches(size, columns=reading.names):
                yield first, sound(batch, reading.names)
                first += batch.num_rows
            complete(first, self.rows or 0)


class Partitions:
    """The partitions of a place.

    Attributes:
        names: of all P, sorted. starts: (P + 1,) number of the first row of each, and of all rows.
        source: those with rows, as one. content: some letters that change when a file does.
        passed_over: names of files that are no partitions.
    """

    def __init__(self, store: Store, wanted: Wanted, *, follow_links: bool = False) -> None:
        store.check_folder()
        visible = {
            name: info
            for name, info in store.listed().items()
            if not any(part.startswith((".", "_")) for part in PurePosixPath(name).parts)
        }
        self.names = sorted((name for name in visible if name.endswith(SUFFIX)), key=lambda name: PurePosixPath(name).parts)
        self.passed_over = sorted(set(visible) - set(self.names))
        if not self.names:
            raise DataError(
                f"There are no {SUFFIX} files in {store.place}. Labelling on Ray takes a folder of them; check the path."
            )
        if not store.is_remote:
            reasons = [(name, unusable(store.place.resolve(), name, follow_links=follow_links)) for name in self.names]
            refuse([(printable(name), reason) for name, reason in reasons if reason is not None], store.place)
        facts = [(name, visible[name].size, visible[name].mtime_ns) for name in self.names]
        self.content = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        with ThreadPoolExecutor(FOOTERS) as pool:
            tables = list(pool.map(lambda name: StoredTable(store, name), self.names))
        self.starts = np.cumsum([0, *(table.rows or 0 for table in tables)])
        filled = [table for table in tables if table.rows]
        if not filled:
            raise DataError(f"The {len(tables)} partitions of {store.place} hold no rows. Nothing can be labelled.")
        self.source = TableSource(list(filled), wanted)
        self._check_types(filled)
        for table in filled:
            table.schema = filled[0].schema  # one copy of it goes to the workers, not one for each partition
        self._place = {table.name: position for position, table in enumerate(filled)}

    def __len__(self) -> int:
        """P."""
        return len(self.names)

    @property
    def rows(self) -> int:
        """Of all partitions."""
        return int(self.starts[-1])

    def rows_of(self, number: int) -> int:
        """Of one partition."""
        return int(self.starts[number + 1] - self.starts[number])

    def _check_types(self, tables: list[StoredTable]) -> None:
        """Numbers of another kind, or lists of another length, are those of another network."""
        first = tables[0]
        for table in tables[1:]:
            for name in self.source.columns.reading().features:
                expected, found = first.schema.field(name).type, table.schema.field(name).type
                if found != expected:
                    raise DataError(
                        f"All partitions must hold the same kind of features; the column {name!r} of {table.path} is {found}, "
                        f"and that of {first.path.name} is {expected}. Write it again as the others, or take it out."
                    )

    def part(self, number: int) -> TableSource:
        """One partition with rows as a source of its own, whose rows are numbered from 0."""
        position = self._place[self.names[number]]
        part = copy.copy(self.source)
        part.tables, part.files = [self.source.tables[position]], [self.source.files[position]]
        part.rows, part.starts = self.rows_of(number), np.array([0, self.rows_of(number)])
        return part

    def batches(self, number: int, ends: list[int]) -> Iterator[Batch]:
        """The rows of one partition, numbered as among all, in batches that end before the rows ``ends``, which are sorted."""
        first = int(self.starts[number])
        if not self.rows_of(number):
            return
        held: list[Batch] = []
        stops = iter(ends)
        stop = next(stops)
        for batch in self.part(number).batches(CHUNK):
            rest = batch._replace(first=first + batch.first)
            if not self.source.has_ids:
                rest = rest._replace(ids=[str(rest.first + row) for row in range(len(rest.ids))])
            while rest.first + len(rest.ids) >= stop:
                yield joined([*held, cut(rest, 0, stop - rest.first)], held[0].first if held else rest.first)
                held, rest = [], cut(rest, stop - rest.first, len(rest.ids))
                stop = next(stops, int(self.starts[-1]) + 1)
            held += [rest] if rest.ids else []


def passed_over_note(names: list[str]) -> list[str]:
    """A sentence about files that were not read, if there are any."""
    return [f"Files of the folder that do not end in {SUFFIX} were passed over: {listed(names, 3)}."] if names else []
