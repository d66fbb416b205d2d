"""Partitions for bulk labelling: where they are stored, how they are read, and the work on one of
them.

Partitions are Parquet files below a folder or an address of an object store, in the order of their
names; rows are numbered from 0 over all of them, as in a folder of shards. The work on a partition
depends on others only by the number of its first row, so any number of workers may do it in any
order, and again if one of them dies.
"""

import copy
import hashlib
import json
import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow
from pyarrow import fs, parquet

from semigpc.io.atomic import parse, replacing, validated
from semigpc.io.errors import DataError, FileError
from semigpc.io.paths import reject_bad, unusable
from semigpc.io.text import printable
from semigpc.io.threads import hold
from semigpc.labeling.columns import ColumnOptions
from semigpc.labeling.outputs import ADVICE, BULK_LABELS, Labeller, Tally
from semigpc.labeling.scan import SAMPLE, Gathered, LabelLookup, check_unique_ids
from semigpc.labeling.source import CHUNK, ParquetTable, RowBatch, TableSource

# up to so many rows ids are compared over all partitions: 8 bytes each on the driver
COMPARED_ROWS = 50_000_000
SPARE = 2.0  # times the rows of the sample whose keys are expected below the bound
FOOTERS = 32  # Parquet footers read at a time
SCHEME, SUFFIX = "://", ".parquet"

Task = Callable[[int], Any]  # from the number of a partition to a result


# Where partitions are stored ----------------------------------------------------------------------


class Address(PosixPath):
    """An address in an object store, which is a path except for its first two slashes."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", SCHEME, 1)


def place_of(text: str) -> Path:
    """Return a path or an address as the user wrote it; file:// is a path of this machine."""
    if text.startswith(f"file{SCHEME}"):
        return Path(unquote(urlsplit(text).path))
    return Address(text) if SCHEME in text else Path(text).expanduser()


class Store:
    """Files below a folder or an address, by pyarrow; names are relative to it, with slashes.

    A file has its name only when it is complete: a draft beside it, whose name starts with a dot,
    is written and renamed.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.is_remote = isinstance(place, Address)
        try:
            self.files, self.root = fs.FileSystem.from_uri(
                str(place if self.is_remote else place.resolve())
            )
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise DataError(
                f"{place} cannot be opened: {reason}. Give a folder, or an address that pyarrow knows."
            ) from error

    def path(self, name: str) -> str:
        """Return the path in the file system."""
        return f"{self.root.rstrip('/')}/{name}"

    def shown(self, name: str) -> Path:
        """Return the path for messages, without what follows a question mark in an address."""
        return (
            Address(str(self.place).split("?")[0]) / name if self.is_remote else self.place / name
        )

    def listed(self, folder: str = "") -> dict[str, fs.FileInfo]:
        """Return all files below a folder by name; none if it does not exist."""
        base = self.path(folder).rstrip("/")
        entries = self.files.get_file_info(
            fs.FileSelector(base, recursive=True, allow_not_found=True)
        )
        return {
            entry.path[len(base) + 1 :]: entry
            for entry in entries
            if entry.type == fs.FileType.File
        }

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        return bool(self.files.get_file_info(self.path(name)).type == fs.FileType.File)

    def open(self, name: str) -> pyarrow.NativeFile:
        """Open a file for reading anywhere in it."""
        return self.files.open_input_file(self.path(name))

    def remove(self, *names: str) -> None:
        """Delete files, as far as they exist."""
        for name in names:
            with suppress(FileNotFoundError):
                self.files.delete_file(self.path(name))

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the content of a JSON file; None if there is no such file.

        Raises:
            DataError: it holds something else.
        """
        if not self.exists(name):
            return None
        try:
            with self.open(name) as file:
                return validated(
                    parse(file.readall(), self.shown(name)), dict[str, Any], self.shown(name)
                )
        except (OSError, pyarrow.ArrowException, FileError) as error:
            message = (
                error
                if isinstance(error, FileError)
                else f"{self.shown(name)} cannot be read: {error}"
            )
            raise DataError(f"{message}. {ADVICE}") from error

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON file."""
        self.write_bytes(name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file."""
        self._write(name, lambda sink: sink.write(content))

    def write_table(
        self,
        name: str,
        schema: pyarrow.Schema,
        parts: Iterable[pyarrow.Table],
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        """Write a Parquet file part by part; ``facts`` is called at the end, and its result is
        stored in the footer.
        """

        def write(sink: pyarrow.NativeFile) -> None:
            with parquet.ParquetWriter(sink, schema, write_page_checksum=True) as writer:
                for part in parts:
                    writer.write_table(part)
                writer.add_key_value_metadata({"semigpc": json.dumps(facts())})

        self._write(name, write)

    def _write(self, name: str, write: Callable[[pyarrow.NativeFile], object]) -> None:
        """Write a draft of a new name each time, since a worker that was given up may still be
        writing its own.
        """
        if not self.is_remote:
            with (
                replacing(Path(self.path(name))) as file,
                self.files.open_output_stream(str(file)) as sink,
            ):
                write(sink)
            return
        folder, _, last = name.rpartition("/")
        draft = self.path(f"{folder}/" * bool(folder) + f".{last}.{uuid.uuid4().hex[:8]}.part")
        self.files.create_dir(self.path(folder).rstrip("/"), recursive=True)
        try:
            with self.files.open_output_stream(draft) as sink:
                write(sink)
            self.files.move(draft, self.path(name))
        except BaseException:
            with suppress(OSError):
                self.files.delete_file(draft)
            raise


def facts_of(store: Store, name: str) -> dict[str, Any] | None:
    """Return what ``Store.write_table`` stored in the footer, and the number of rows; None for
    other files.
    """
    try:
        with store.open(name) as file, parquet.ParquetFile(file) as table:
            facts = json.loads((table.metadata.metadata or {}).get(b"semigpc", b"null"))
            return facts | {"rows": table.metadata.num_rows} if isinstance(facts, dict) else None
    except (OSError, ValueError, pyarrow.ArrowException):
        return None


# Reading them -------------------------------------------------------------------------------------


class Partitions:
    """The partitions of a store. Schemas are compared before any row is read; a partition without
    rows may have any.

    Attributes:
        names: of all P partitions, sorted. starts: (P + 1,) number of the first row of each, and
            ``rows``, the number of all.
        source: the partitions that have rows, as one table. content: a hash that changes when a
            file does.
        ignored: names of files that are not partitions.
    """

    def __init__(self, store: Store, options: ColumnOptions, *, follow_links: bool = False) -> None:
        visible = self._visible(store)
        self.names = sorted(
            (name for name in visible if name.endswith(SUFFIX)),
            key=lambda name: PurePosixPath(name).parts,
        )
        self.ignored = sorted(set(visible) - set(self.names))
        if not self.names:
            raise DataError(
                f"There are no {SUFFIX} files in {store.place}. Labelling on Ray takes a folder of them; check the path."
            )
        if not store.is_remote:
            reasons = [
                (name, unusable(store.place.resolve(), name, follow_links=follow_links))
                for name in self.names
            ]
            reject_bad(
                [(printable(name), reason) for name, reason in reasons if reason is not None],
                store.place,
            )
        facts = [(name, visible[name].size, visible[name].mtime_ns) for name in self.names]
        self.content = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        with ThreadPoolExecutor(FOOTERS) as pool:
            tables = list(
                pool.map(
                    lambda n: ParquetTable(store.shown(n), store.files, store.path(n)), self.names
                )
            )
        self.starts = np.cumsum([0, *(table.rows or 0 for table in tables)])
        self.rows = int(self.starts[-1])
        filled = {name: table for name, table in zip(self.names, tables, strict=True) if table.rows}
        if not filled:
            raise DataError(
                f"The {len(tables)} partitions of {store.place} hold no rows. Nothing can be labelled."
            )
        self.source = TableSource(list(filled.values()), options)
        self._check_types(list(filled.values()))
        for table in filled.values():
            table.schema = self.source.tables[
                0
            ].schema  # workers receive one copy of it, not one for each partition
        self._position = {name: position for position, name in enumerate(filled)}

    @staticmethod
    def _visible(store: Store) -> dict[str, fs.FileInfo]:
        """Return the files of a folder that are not hidden, nor in a hidden folder."""
        try:
            kind = store.files.get_file_info(store.root).type
        except OSError as error:
            raise DataError(
                f"{store.place} cannot be opened: {' '.join(str(error).split())}"
            ) from error
        if kind == fs.FileType.NotFound:
            raise DataError(f"There is no folder {store.place}. Check the path.")
        if kind == fs.FileType.File:
            raise DataError(
                f"Labelling on Ray takes a folder of .parquet files; {store.place} is a file. Leave out --engine ray."
            )
        files = store.listed().items()
        return {
            name: info
            for name, info in files
            if not any(part[0] in "._" for part in PurePosixPath(name).parts)
        }

    def __len__(self) -> int:
        """Return P."""
        return len(self.names)

    def rows_of(self, number: int) -> int:
        """Return the rows of one partition."""
        return int(self.starts[number + 1] - self.starts[number])

    def _check_types(self, tables: list[ParquetTable]) -> None:
        """Raise an error for numbers of another type or lists of another length, which another
        network made.
        """
        first = tables[0]
        for table in tables[1:]:
            for name in self.source.columns.features:
                expected, kind = first.schema.field(name).type, table.schema.field(name).type
                if kind != expected:
                    raise DataError(
                        f"All partitions must hold the same kind of features; the column {name!r} of {table.path} is {kind}, "
                        f"and that of {first.path.name} is {expected}. Write it again as the others, or take it out."
                    )

    def part(self, number: int) -> TableSource:
        """Return one partition that has rows as a table, with its rows numbered from 0."""
        position = self._position[self.names[number]]
        part = copy.copy(self.source)
        part.tables, part.files = [self.source.tables[position]], [self.source.files[position]]
        part.rows, part.starts = self.rows_of(number), np.array([0, self.rows_of(number)])
        return part

    def batches(self, number: int, size: int) -> Iterator[RowBatch]:
        """Yield the rows of one partition, ``size`` at a time, numbered as among the rows of all."""
        if not self.rows_of(number):
            return
        for batch in self.part(number).batches(size):
            first = int(self.starts[number]) + batch.first
            ids = (
                batch.ids
                if self.source.has_ids
                else [str(first + row) for row in range(len(batch.ids))]
            )
            yield batch._replace(first=first, ids=ids)


# The work on one partition ------------------------------------------------------------------------


@dataclass(frozen=True)
class Gathering:
    """The first pass: gather from a partition what the estimator is fitted on.

    Args:
        partitions: the data. labels: by id; None if they are in the data. seed: of the sample.
            below: see ``Sample``.
    """

    partitions: Partitions
    labels: dict[str, str] | None
    seed: int
    below: float

    @property
    def compares(self) -> bool:
        """Return whether ids are compared over all partitions."""
        return self.partitions.source.has_ids and self.partitions.rows <= COMPARED_ROWS

    def __call__(self, number: int) -> Gathered:
        """Return what was gathered from one partition.

        Raises:
            DataError: an id occurs twice, a list has another length, or the file cannot be read.
        """
        partitions, source, lookup = (
            self.partitions,
            self.partitions.source,
            LabelLookup(self.labels),
        )
        gathered = Gathered(source.width, self.seed, below=self.below)
        for batch in partitions.batches(number, CHUNK):
            gathered.add(batch, lookup.of(batch.ids, batch.labels))
        if source.has_ids and gathered.rows:
            check_unique_ids(partitions.part(number), np.concatenate(gathered.hashes), CHUNK)
        if not self.compares:
            gathered.hashes = []
        return gathered

    def check(self, gathered: Gathered) -> None:
        """Raise a DataError for an id that several partitions have: any id up to COMPARED_ROWS,
        else one that has a label.
        """
        source = self.partitions.source
        if self.compares:
            check_unique_ids(source, np.concatenate(gathered.hashes), CHUNK)
        counts = Counter(name for _, name, _ in gathered.labelled)
        repeated = next((name for name, count in counts.items() if count > 1), None)
        if source.has_ids and repeated is not None:
            places = [source.place(row) for row, name, _ in gathered.labelled if name == repeated]
            raise DataError(
                f"Every row needs an id of its own; {repeated!r}, which has a label, is in {places[0]} and {places[1]}. Rename "
                "or remove one, or choose another column by --id."
            )


def sample_bound(rows: int, labels: int) -> float:
    """Return a key below which there are almost surely SAMPLE rows without a label, if there are so
    many at all.

    Twice as many are expected, and half of them would be 140 standard deviations away. So the rows
    that partitions send stay few, however many rows there are.
    """
    return float(min(1.0, (SPARE * SAMPLE + labels) / max(rows, 1)))


@dataclass(frozen=True)
class Labelling:
    """The second pass: label a partition.

    Args:
        partitions: the data. labeller: with the fitted model. out: where labels go. digest: of what
            they depend on.
        size: rows labelled at a time, which become a row group.
    """

    partitions: Partitions
    labeller: Labeller
    out: Store
    digest: str
    size: int

    def __call__(self, number: int) -> dict[str, Any]:
        """Label one partition, write it under the same name, and return its counts, which its
        footer holds too.
        """
        tally, facts = Tally(), {"digest": self.digest}

        def tables() -> Iterator[pyarrow.Table]:
            for batch in self.partitions.batches(number, self.size):
                table = self.labeller.table(batch)
                tally.add(table, self.labeller.schema.names[0])
                yield table

        name = f"{BULK_LABELS}/{self.partitions.names[number]}"
        self.out.write_table(name, self.labeller.schema, tables(), lambda: facts | tally.plain())
        return facts | tally.plain()


def work_on(item: dict[str, Any], shared: list[Any]) -> dict[str, Any]:
    """Do a task for one partition in a worker of Ray.

    An error that the user can mend is returned and not raised, so that its message arrives
    unchanged.

    Args:
        item: the ``number`` of the partition. shared: the reference of the task.

    Returns:
        ``number``; ``result``, pickled; ``failed``, a message; and ``is_data_error``.
    """
    number, result, failed, is_data_error = int(item["number"]), None, "", False
    try:
        result = _fetch(shared[0])(number)
    except DataError as error:
        failed, is_data_error = str(error), True
    except OSError as error:
        failed = f"Partition {number + 1} could not be read or written: {error}. Mend that; the same command goes on."
    return {
        "number": number,
        "result": pickle.dumps(result),
        "failed": failed,
        "is_data_error": is_data_error,
    }


@lru_cache(maxsize=1)
def _fetch(reference: Any) -> Task:
    """Return the task with all that it needs, such as the model, fetched once by each worker; it
    then uses one core.
    """
    import ray

    hold(1)
    task: Task = ray.get(reference)
    return task
