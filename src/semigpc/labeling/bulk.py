"""What is done to one partition, by whoever does it: gather what the estimator learns from, and label its rows.

Nothing here depends on other partitions but the number of the first row, so that any number of workers may do it in any
order, again if one of them dies, and the answer is the same.
"""

import copy
import hashlib
import json
import pickle
import time
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
from numpy.typing import NDArray
from pyarrow import fs, parquet

from semigpc.data.dataset import DataError, listed
from semigpc.data.paths import refuse, unusable
from semigpc.estimator.blocks import block_ends, frame, product_rows
from semigpc.files import FileError, parse, replacing, validated
from semigpc.labeling.columns import ColumnOptions, ColumnsToRead, UsualColumns
from semigpc.labeling.outputs import BULK_LABELS, LISTED, Labeller, Tally
from semigpc.labeling.scan import SAMPLE, Gathered, Matching, Rows, refuse_twice
from semigpc.labeling.source import (
    BUFFER,
    CHECKED,
    CHUNK,
    Numbered,
    RowBatch,
    TableSource,
    complete,
    cut,
    joined,
    named,
    readable,
    sound,
)
from semigpc.text import printable
from semigpc.threads import hold

COMPARED = 50_000_000  # rows up to which ids of different partitions are compared: 8 bytes each in one place
SPARE = 2.0  # times the rows of the sample that are expected to have a key below the bound
SCHEME = "://"
SUFFIX = ".parquet"
FOOTERS = 32  # that are read at a time
Task = Callable[[int], Any]  # from the number of a partition to what is to be known of it


class Store:
    """Files below one place; names are relative to it, with slashes.

    A file appears under its name when it is complete: it is written beside it, under a name that starts with a dot, and moved.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.is_remote = isinstance(place, Address)
        try:
            self.files, self.root = fs.FileSystem.from_uri(str(place if self.is_remote else place.resolve()))
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            told = " ".join(str(error).split()).rstrip(".")
            raise DataError(f"{place} cannot be opened: {told}. Give a folder, or an address that pyarrow knows.") from error

    def path(self, name: str) -> str:
        """As the file system knows it."""
        return f"{self.root.rstrip('/')}/{name}"

    def told(self, name: str) -> Path:
        """As a message shows it."""
        return Address(str(self.place).split("?")[0]) / name if self.is_remote else self.place / name

    def listed(self, folder: str = "") -> dict[str, fs.FileInfo]:
        """All files below, by name; none if there is no such folder."""
        base = self.path(folder).rstrip("/")
        found = self.files.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
        return {info.path[len(base) + 1 :]: info for info in found if info.type == fs.FileType.File}

    def check_folder(self) -> None:
        """Refuse a place that is not there, or is a file."""
        try:
            kind = self.files.get_file_info(self.root).type
        except OSError as error:
            raise DataError(f"{self.place} cannot be opened: {' '.join(str(error).split())}") from error
        if kind == fs.FileType.NotFound:
            raise DataError(f"There is no folder {self.place}. Check the path.")
        if kind == fs.FileType.File:
            raise DataError(
                f"Labelling on Ray takes a folder of .parquet files; {self.place} is a file. Leave out --engine ray."
            )

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return bool(self.files.get_file_info(self.path(name)).type == fs.FileType.File)

    def open(self, name: str) -> pyarrow.NativeFile:
        """For reading anywhere in it."""
        return self.files.open_input_file(self.path(name))

    def remove(self, *names: str) -> None:
        """Files that need not be there."""
        for name in names:
            with suppress(FileNotFoundError):
                self.files.delete_file(self.path(name))

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Plain values; None if there is no such file.

        Raises:
            DataError: it is something else.
        """
        if not self.exists(name):
            return None
        try:
            with self.open(name) as file:
                return validated(parse(file.readall(), self.told(name)), dict[str, Any], self.told(name))
        except FileError as error:
            raise DataError(f"{error}. Give another --out, or --overwrite.") from error
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{self.told(name)} cannot be read: {error}. Give another --out, or --overwrite.") from error

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """A file of plain values, all at once."""
        self.write_bytes(name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """A file, all at once."""

        def write(sink: pyarrow.NativeFile) -> None:
            sink.write(content)

        self._write(name, write)

    def write_table(
        self, name: str, schema: pyarrow.Schema, parts: Iterable[pyarrow.Table], facts: Callable[[], dict[str, Any]]
    ) -> None:
        """A Parquet file, part by part; ``facts`` are asked for at the end and kept in its footer."""

        def write(sink: pyarrow.NativeFile) -> None:
            with parquet.ParquetWriter(sink, schema, write_page_checksum=True) as writer:
                for part in parts:
                    writer.write_table(part)
                writer.add_key_value_metadata({"semigpc": json.dumps(facts())})

        self._write(name, write)

    def _write(self, name: str, write: Callable[[pyarrow.NativeFile], None]) -> None:
        """Under a name of its own for every attempt: a worker that was given up may still be writing."""
        if not self.is_remote:
            with replacing(Path(self.path(name))) as file, self.files.open_output_stream(str(file)) as sink:
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


class StoredTable:
    """A Parquet file in a store. Of a local one pages are streamed; of a remote one a row group is fetched at once."""

    usual = UsualColumns()
    _advice = "It may be truncated, or no Parquet file at all: write it again, or take it out of the folder."

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name, self.path = store, name, store.told(name)
        with readable(self.path, "Parquet", self._advice), store.open(name) as file, parquet.ParquetFile(file) as table:
            self.schema: pyarrow.Schema = named(table.schema_arrow)
            self.rows: int | None = table.metadata.num_rows

    def batches(self, reading: ColumnsToRead, size: int, within: Rows | None = None) -> Numbered:  # noqa: ARG002
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

    def __init__(self, store: Store, wanted: ColumnOptions, *, follow_links: bool = False) -> None:
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

    def batches(self, number: int, ends: list[int]) -> Iterator[RowBatch]:
        """The rows of one partition, numbered as among all, in batches that end before the rows ``ends``, which are sorted."""
        first = int(self.starts[number])
        if not self.rows_of(number):
            return
        held: list[RowBatch] = []
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


@dataclass(frozen=True)
class Gathering:
    """All that the first pass needs: the partitions, the given labels by id if they are not in the data, the seed."""

    partitions: Partitions
    given: dict[str, str] | None
    seed: int
    below: float

    @property
    def compares(self) -> bool:
        """Whether ids are compared over all partitions."""
        return self.partitions.source.has_ids and self.partitions.rows <= COMPARED

    def __call__(self, number: int) -> Gathered:
        """What the estimator learns from, of one partition.

        Raises:
            DataError: an id twice, a list of another length, a file that cannot be read.
        """
        partitions, source = self.partitions, self.partitions.source
        gathered, matching = Gathered(source.width, self.seed, below=self.below, hashed=lasting_hashes), Matching(self.given)
        first, stop = (int(row) for row in partitions.starts[number : number + 2])
        for batch in partitions.batches(number, [*range(first + CHUNK, stop, CHUNK), stop]):
            gathered.add(batch, matching.of(batch.ids, batch.labels))
        if source.has_ids and gathered.rows:
            refuse_twice(partitions.part(number), np.concatenate(gathered.hashes), CHUNK)
        if not self.compares:
            gathered.hashes = []
        return gathered


def sample_bound(rows: int, labels: int) -> float:
    """A key below which there are surely SAMPLE rows without a label, if there are so many at all.

    Twice as many are expected: half of them would be 140 standard deviations away. So what partitions send stays small, however
    many there are.
    """
    return float(min(1.0, (SPARE * SAMPLE + labels) / max(rows, 1)))


def lasting_hashes(ids: list[str]) -> Rows:
    """(M,) of ids, the same in every process."""
    from pandas.util import hash_array

    found: NDArray[np.uint64] = hash_array(np.array(ids, dtype=object), categorize=False)
    return found.view(np.int64)


def check_over_partitions(gathering: Gathering, gathered: Gathered) -> None:
    """Refuse an id that several partitions have: any id up to COMPARED rows, and always one that has a label.

    Raises:
        DataError: there is one.
    """
    source = gathering.partitions.source
    if gathering.compares:
        refuse_twice(source, np.concatenate(gathered.hashes), CHUNK)
    counts = Counter(name for _, name, _ in gathered.labelled)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        places = [source.place(row) for row, name, _ in gathered.labelled if name == twice]
        raise DataError(
            f"Every row needs an id of its own; {twice!r}, which has a label, is in {places[0]} and {places[1]}. Rename or "
            "remove one, or choose another column by --id."
        )


@dataclass(frozen=True)
class Labelling:
    """All that the second pass needs.

    Args:
        partitions: the data. labeller: with the model. out: where labels go. digest: of what they depend on.
        call: rows that the local engine labels at a time, whose places in products are kept.
    """

    partitions: Partitions
    labeller: Labeller
    out: Store
    digest: str
    call: int

    def __call__(self, number: int) -> dict[str, Any]:
        """Label one partition, write it under its name, and answer with its counts, as its footer has them."""
        tally, name, facts, began = Tally(), self.partitions.names[number], {}, time.process_time()

        def told() -> dict[str, Any]:
            facts.update({"digest": self.digest, "core_seconds": time.process_time() - began} | plain_tally(tally))
            return facts

        self.out.write_table(f"{BULK_LABELS}/{name}", self.labeller.schema, self._tables(number, tally), told)
        return facts

    def _tables(self, number: int, tally: Tally) -> Iterator[pyarrow.Table]:
        """As large as what the local engine labels at a time, which become row groups."""
        first, stop = (int(row) for row in self.partitions.starts[number : number + 2])
        held: list[pyarrow.Table] = []
        for batch in self.partitions.batches(number, block_ends(first, stop, call=self.call)):
            held.append(self._table(batch))
            tally.add(held[-1], self.labeller.schema.names[0])
            if sum(table.num_rows for table in held) >= self.call:
                yield pyarrow.concat_tables(held)
                held = []
        if held:
            yield pyarrow.concat_tables(held)

    def _table(self, batch: RowBatch) -> pyarrow.Table:
        """Rows that are missing from a product, since other partitions have them, are made up: numbers come out the same."""
        end = batch.first + len(batch.ids)
        product = product_rows(self.labeller.model)
        low, high = frame(batch.first, end, call=self.call, product=product, rows=self.partitions.rows)
        sound = np.flatnonzero(np.isfinite(batch.x).all(axis=1))
        like = batch.x[sound[0]] if len(sound) else np.zeros(batch.x.shape[1], dtype=np.float32)
        before, after = (np.tile(like, (count, 1)) for count in (batch.first - low, high - end))
        ids = [""] * len(before) + batch.ids + [""] * len(after)
        table = self.labeller.table(RowBatch(low, ids, np.concatenate([before, batch.x, after]), None))
        return table.slice(len(before), len(batch.ids))


def plain_tally(tally: Tally) -> dict[str, Any]:
    """As JSON holds it."""
    return {"statuses": dict(tally.statuses), "pseudo": dict(tally.pseudo), "outliers": tally.outliers}


def joined_tally(facts: list[dict[str, Any]]) -> Tally:
    """Of partitions in their order."""
    tally = Tally()
    for held in facts:
        tally.statuses.update(held["statuses"])
        tally.pseudo.update(held["pseudo"])
        tally.outliers = sorted([*tally.outliers, *held["outliers"]], key=lambda entry: -entry["variance"])[:LISTED]
    return tally


class Address(PosixPath):
    """A place in an object store, which is a path in all but its first two slashes."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", SCHEME, 1)


def place_of(text: str) -> Path:
    """What the user wrote as a path: of this machine, also where it was written as file://, or of an object store."""
    if text.startswith(f"file{SCHEME}"):
        return Path(unquote(urlsplit(text).path))
    return Address(text) if SCHEME in text else Path(text).expanduser()


def facts_of(store: Store, name: str) -> dict[str, Any] | None:
    """What ``write_table`` put into the footer; None if there is nothing of the kind."""
    try:
        with store.open(name) as file, parquet.ParquetFile(file) as table:
            held = json.loads((table.metadata.metadata or {}).get(b"semigpc", b"null"))
            return held | {"rows": table.metadata.num_rows} if isinstance(held, dict) else None
    except (OSError, ValueError, pyarrow.ArrowException):
        return None


def passed_over_note(names: list[str]) -> list[str]:
    """A sentence about files that were not read, if there are any."""
    return [f"Files of the folder that do not end in {SUFFIX} were passed over: {listed(names, 3)}."] if names else []


def work_on(item: dict[str, Any], shared: list[Any]) -> dict[str, Any]:
    """Do a task for one partition. What the user can mend is answered, not raised, so that it arrives as it was said.

    Args:
        item: the ``number`` of the partition. shared: the reference of the task.

    Returns:
        The number, what the task said (pickled), what went wrong, whether that was the data's fault, and the time it took.
    """
    number, answer, failed, refused = int(item["number"]), None, "", False
    task, began = _held(shared[0]), time.process_time()
    try:
        answer = task(number)
    except DataError as error:
        failed, refused = str(error), True
    except OSError as error:
        failed = f"Partition {number + 1} could not be read or written: {error}. Mend that; the same command goes on."
    spent = time.process_time() - began
    return {"number": number, "answer": pickle.dumps(answer), "failed": failed, "refused": refused, "core_seconds": spent}


@lru_cache(maxsize=1)
def _held(reference: Any) -> Task:
    """The task with all it needs, the model among it, fetched once; on one core, whatever the machine has."""
    import ray

    hold(1)
    task: Task = ray.get(reference)
    return task
