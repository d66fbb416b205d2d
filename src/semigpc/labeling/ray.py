"""Bulk labelling on Ray: one output partition for each input partition, on one machine or on many.

    footers   open every partition, and compare schemas, before anything is started
    pass 1    one task per partition: labelled rows, its share of the sample, bad rows;
              the driver merges them in order
    fit       once, on the driver, on the same rows as the local engine; the model goes to the
              object store once
    pass 2    one task per partition: read it, label it and write it under the same name;
              nothing is shuffled

Partitions are Parquet files below a folder or an address of an object store, in the order of their
names; rows are numbered from 0 over all of them, as in a folder of shards. The work on a partition
depends on others only by the number of its first row, so any number of workers may do it in any
order, and again if one of them dies.

Ray Data maps over the *names* of partitions and not over their rows, since its own readers and
writers cannot resume like this: they cut files into blocks, write one file per block, and know what
is finished only by the ids of all finished rows, held in memory. One task per file is what lets a
stopped run continue and a killed worker cost one partition; and embeddings never pass through the
object store. Tasks and not actors, so that a cluster may grow and shrink; a worker keeps the model
between them.

    labels/          one Parquet file for each partition of the data, under its name;
                     its footer holds the digest of the key
    _partial.json    while some are missing: the key, and how many are done
    _gathered.npz    while some are missing: the result of pass 1, which is then not repeated
    summary.json, report.html
    _complete.json   written last: a folder without it is not complete

The key is everything that labels depend on, by value or by a hash. Partitions are parts in the
sense of :mod:`semigpc.io.parts`.
"""

import copy
import hashlib
import io
import json
import logging
import os
import pickle
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
import pyarrow
from pyarrow import parquet

from semigpc.io.atomic import facts_of, locked
from semigpc.io.errors import DataError
from semigpc.io.parts import (
    Address,
    FileInfo,
    Folder,
    Key,
    ObjectStore,
    Parts,
    key_difference,
    key_digest,
    open_folder,
)
from semigpc.io.paths import reject_bad, unusable
from semigpc.io.text import listed, printable
from semigpc.io.threads import hold
from semigpc.labeling.columns import ColumnOptions
from semigpc.labeling.label import (
    Inputs,
    LabelSettings,
    fit,
    labels_key,
    measure,
    shard_rows,
    summarise,
    table_inputs,
)
from semigpc.labeling.outputs import (
    ADVICE,
    BULK_LABELS,
    COMPLETE,
    PARTIAL,
    WRITTEN,
    Labeller,
    OutFolder,
    Tally,
)
from semigpc.labeling.scan import (
    SAMPLE,
    Gathered,
    LabelLookup,
    Progress,
    Scan,
    check_classes,
    check_unique_ids,
    silent,
)
from semigpc.labeling.source import READ_ROWS, ParquetTable, RowBatch, TableSource
from semigpc.report.labeling_page import write_labeling_report
from semigpc.report.labeling_summary import LabelingSummary

# Ids are compared over all partitions up to this many rows: 8 bytes each on the driver.
COMPARED_ROWS = 50_000_000
SAMPLE_SURPLUS = 2.0  # rows expected below the bound, as a multiple of the sample
FOOTER_THREADS = 32  # Parquet footers read at a time
SUFFIX = ".parquet"
# Bytes of shared memory for a Ray that this process starts; it holds the model and little else.
OBJECT_STORE_BYTES = 2**29
RETRIES = 5  # of a task whose worker died
NOTE_SECONDS = 10.0  # between updates of _partial.json
GATHERED = "_gathered.npz"
SUMMARY = "summary.json"
REPORT = "report.html"
# The fields of a Scan that are arrays; the others go into JSON.
ARRAYS = ("labelled", "x", "sample", "sample_x", "bad")

Task = Callable[[int], Any]  # from the number of a partition to a result


def label_on_ray(
    settings: LabelSettings, *, overwrite: bool = False, progress: Progress | None = None
) -> LabelingSummary:
    """Label all partitions of a folder, write as many, and return the content of summary.json.

    An identical call that was stopped continues with the partitions that are missing; after one
    that has finished, the summary is read from the folder.

    Args:
        settings: ``data`` and ``out`` are folders or addresses (:func:`semigpc.io.parts.place_of`);
            options about images are not used.
        overwrite: replace labels that were made differently.
        progress: called with (stage, partitions done, partitions in all).

    Raises:
        DataError: an input is missing or cannot be used, or other labels would be replaced.
        ImportError: Ray is not installed.
        OSError: a partition could not be written, or workers died repeatedly.
    """
    _check_apart(settings)
    is_remote = isinstance(settings.out, Address)
    with nullcontext() if is_remote else locked(settings.out):  # object stores have no locks
        return _label_on_ray(settings, overwrite, progress or silent)


def _label_on_ray(settings: LabelSettings, overwrite: bool, progress: Progress) -> LabelingSummary:
    began = time.monotonic()
    partitions = Partitions(
        open_folder(settings.data), settings.data_columns, follow_links=settings.follow_links
    )
    inputs = table_inputs(settings, partitions.source, settings.data)
    inputs.notes.extend(partitions.notes())
    data = settings.data if isinstance(settings.data, Address) else settings.data.resolve()
    key = labels_key(settings, partitions.content) | {"engine": "ray", "data": str(data)}
    out = BulkFolder(open_folder(settings.out), key)
    if overwrite:
        out.check_ours()
    finished = not overwrite and out.check()
    altered = out.altered() if finished else []
    earlier = out.summary(report=settings.report) if finished and not altered else None
    if earlier is not None:
        return earlier
    with _ray() as ray:
        engine = _Engine(ray, progress)
        kept = None if overwrite else out.load_scan()
        gathered = engine.gather(partitions, inputs, settings) if kept is None else kept
        check_classes(gathered.labels, settings.labels or settings.data)
        engine.progress("fitting", 0, None)
        model, notes = fit(gathered, settings, inputs.chosen)
        inputs.notes.extend(notes)
        if not isinstance(settings.out, Address):
            inputs.notes.extend(OutFolder(settings.out, key).rename_outdated(settings.label_files))
        out.begin(len(partitions), afresh=overwrite)
        out.folder.remove(*altered)  # they are made again
        if kept is None:
            out.save_scan(gathered)
        labeller = Labeller(model, gathered, inputs.source.id_name)
        model.answer(gathered.x[:1])  # computes what scoring needs once, and not in each worker
        nothing = np.empty((0, gathered.x.shape[1]), dtype=np.float32)
        labeller.scan = replace(gathered, x=nothing, sample_x=nothing)  # workers need no sample
        size = shard_rows(partitions.source, settings.shard)
        facts = engine.label(partitions, out, labeller, size)
    measured = measure(model, gathered, settings, progress)
    summary = summarise(settings, inputs, gathered, model, Tally.joined(facts), measured)
    summary["engine"] = "ray"
    summary["partitions"] = len(partitions)
    summary["seconds"] = round(time.monotonic() - began, 3)
    out.complete(summary, _page(summary) if settings.report else None)
    return summary


def _check_apart(settings: LabelSettings) -> None:
    """Raise an error if data and labels are not apart: the next run would read labels as data."""
    data = settings.data if isinstance(settings.data, Address) else settings.data.resolve()
    out = settings.out if isinstance(settings.out, Address) else settings.out.resolve()
    if out.is_relative_to(data):
        raise DataError(
            "The parameter out must not be inside the data folder, where all .parquet files are "
            f"read; {out} is in {data}."
        )
    if data.is_relative_to(out):
        raise DataError(
            "The parameter out must not contain the data, since it is cleared before labelling "
            f"again; {data} is in {out}."
        )
    if not isinstance(out, Address) and out.exists() and not out.is_dir():
        raise DataError(f"The parameter out must be a folder; {out} is a file.")


def _page(summary: LabelingSummary) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_labeling_report(Path(folder) / REPORT, summary)
        return (Path(folder) / REPORT).read_bytes()


# Ray ----------------------------------------------------------------------------------------------


class _Engine:
    """Runs a task for each of many partitions and reports progress."""

    def __init__(self, ray: Any, progress: Progress) -> None:
        self.ray = ray
        self.progress = progress

    def gather(self, partitions: "Partitions", inputs: Inputs, settings: LabelSettings) -> Scan:
        """Run the first pass."""
        below = sample_bound(partitions.rows, len(inputs.labels or ()))
        gathering = Gathering(partitions, inputs.labels, settings.seed, below)
        gathered = self._gather(gathering)
        if len(gathered.sample) < SAMPLE and below < 1:
            # Most rows have a label, or are bad: draw without a bound.
            gathered = self._gather(replace(gathering, below=1.0))
        gathering.check(gathered)
        lookup = LabelLookup(inputs.labels, settings.labels)
        lookup.of([name for _, name, *_ in (*gathered.labelled, *gathered.bad)], None)
        lookup.check(settings.data, gathered.some_ids)
        if not settings.skip_bad:
            gathered.check_finite(partitions.source)
        return gathered.result()

    def _gather(self, gathering: "Gathering") -> Gathered:
        """Return what was gathered from all partitions, merged in their order."""
        merged = Gathered(gathering.partitions.source.width, gathering.seed, below=gathering.below)
        waiting: dict[int, Gathered] = {}  # arrived before an earlier partition
        following = 0
        total = len(gathering.partitions)
        for done, (number, gathered) in enumerate(self._run(gathering, range(total)), start=1):
            waiting[number] = gathered
            while following in waiting:
                merged.absorb(waiting.pop(following))
                following += 1
            self.progress("reading", done, total)
        return merged

    def label(
        self, partitions: "Partitions", out: "BulkFolder", labeller: Labeller, size: int
    ) -> list[dict[str, Any]]:
        """Run the second pass for unlabelled partitions; return the counts of all, in order."""
        total = len(partitions)
        facts = out.finished(partitions)
        missing = [number for number in range(total) if number not in facts]
        out.note(len(facts), total)
        noted = time.monotonic()
        task = Labelling(partitions, labeller, out.parts, out.digest, size)
        try:
            for number, counts in self._run(task, missing):
                facts[number] = counts
                self.progress("labelling", len(facts), total)
                if time.monotonic() - noted > NOTE_SECONDS:
                    out.note(len(facts), total)
                    noted = time.monotonic()
        finally:
            out.note(len(facts), total)
        return [facts[number] for number in range(total)]

    def _run(self, task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each partition, as they are finished."""
        if not numbers:
            return
        shared = [self.ray.put(task)]  # in a list, so that it is fetched once per worker
        items = self.ray.data.from_items(
            [{"number": number} for number in numbers], override_num_blocks=len(numbers)
        )
        done = items.map(work_on, fn_kwargs={"shared": shared}, num_cpus=1, max_retries=RETRIES)
        try:
            for row in done.iter_rows():
                if row["failed"]:
                    raise (DataError if row["is_data_error"] else OSError)(row["failed"])
                yield int(row["number"]), pickle.loads(row["result"])
        except self.ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:500]
            raise OSError(
                f"Ray gave up: {reason} Finished partitions are kept; run the same command again "
                "to continue."
            ) from error


@contextmanager
def _ray() -> Iterator[Any]:
    """Yield Ray: as the caller started it, at RAY_ADDRESS, or on this machine until the end."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(
            "engine=ray needs Ray, which is not installed: pip install 'semigpc[ray]'"
        ) from error
    ours = not ray.is_initialized()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray warns about its own settings
        if ours:
            _start(ray)
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        try:
            yield ray
        finally:
            if ours:
                ray.shutdown()


def _start(ray: Any) -> None:
    """Start Ray on this machine, or connect to RAY_ADDRESS."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Workers run at normal priority, since the driver only waits for them.
    os.environ.setdefault("RAY_worker_niceness", "0")
    address = os.environ.get("RAY_ADDRESS")
    local = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        ray.init(
            address=address or "local",
            logging_level=logging.ERROR,
            log_to_driver=False,
            **({} if address else local),
        )
    except Exception as error:  # Ray has no class of its own for this
        where = f"at {address}" if address else "on this machine"
        raise OSError(
            f"Ray did not start {where}: {error}. Nothing was changed; run the same command again."
        ) from error


def work_on(item: dict[str, Any], shared: list[Any]) -> dict[str, Any]:
    """Run a task for one partition in a worker of Ray.

    An error that the user can fix is returned, not raised, so that Ray does not wrap its message.

    Args:
        item: the ``number`` of the partition.
        shared: a list with the reference of the task.

    Returns:
        ``number``; ``result``, pickled; ``failed``, a message; and ``is_data_error``.
    """
    number = int(item["number"])
    result = None
    failed = ""
    is_data_error = False
    try:
        result = _fetch(shared[0])(number)
    except DataError as error:
        failed = str(error)
        is_data_error = True
    except OSError as error:
        failed = (
            f"Partition {number + 1} could not be read or written: {error}. "
            "Fix that and run the same command again to continue."
        )
    return {
        "number": number,
        "result": pickle.dumps(result),
        "failed": failed,
        "is_data_error": is_data_error,
    }


@lru_cache(maxsize=1)
def _fetch(reference: Any) -> Task:
    """Return the task with its model, fetched once per worker, which then uses one core."""
    import ray

    hold(1)
    task: Task = ray.get(reference)
    return task


# The folder of labels -----------------------------------------------------------------------------


class BulkFolder:
    """The place to which partitions of labels of a key are written."""

    def __init__(self, folder: Folder, key: Key) -> None:
        self.folder = folder
        self.parts = Parts(folder, key, below=BULK_LABELS, remedy=ADVICE)
        self.key = self.parts.key
        self.digest = key_digest(key)[:16]

    def check(self) -> bool:
        """Return whether an identical run has finished.

        Raises:
            DataError: it holds labels of another key, or files that labelling did not write.
        """
        place = self.folder.place
        complete = self.folder.read_json(COMPLETE, ADVICE)
        earlier = complete or self.folder.read_json(PARTIAL, ADVICE)
        if earlier is None:
            foreign = [name for name in WRITTEN if self.folder.exists(name)]
            foreign += list(self.folder.listed(BULK_LABELS))[:1]
            if foreign:
                raise DataError(
                    f"{place} holds {foreign[0]}, which labelling on Ray did not write. {ADVICE}"
                )
            return False
        key = earlier.get("key")
        difference = key_difference(key if isinstance(key, dict) else {}, self.key)
        if difference is not None:
            raise DataError(
                f"{place} holds labels that were made differently: {difference}. {ADVICE}"
            )
        return complete is not None

    def check_ours(self) -> None:
        """Raise a DataError for partitions that labelling did not write: they are not deleted."""
        for name in self.parts.names():
            if self._footer(name) is None:
                raise DataError(
                    f"{self.folder.place} holds {BULK_LABELS}/{name}, which labelling on Ray did "
                    "not write and will not delete. Move it away, or choose another folder with "
                    "out=..."
                )

    def summary(self, *, report: bool) -> LabelingSummary | None:
        """Return the summary of a finished folder; None if a report is requested and missing."""
        if report and not self.folder.exists(REPORT):
            return None
        return cast("LabelingSummary | None", self.folder.read_json(SUMMARY, ADVICE))

    def altered(self) -> list[str]:
        """Return the outputs of a finished folder that are missing or changed.

        On a disk hashes are compared, in an object store only sizes.
        """
        files = (self.folder.read_json(COMPLETE, ADVICE) or {}).get("files")
        current = self._facts()
        if not isinstance(files, dict):
            return sorted(current)
        return [name for name in files if current.get(name) != files[name]]

    def _facts(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the size and, on a disk, the hash of every output."""
        outputs = (SUMMARY, REPORT, f"{BULK_LABELS}/")
        files = self.folder.listed().items()
        sizes = {name: info.size for name, info in files if name.startswith(outputs)}
        if isinstance(self.folder, ObjectStore):
            return {name: {"bytes": size} for name, size in sizes.items()}
        return facts_of(self.folder.place, sizes)

    def begin(self, total: int, *, afresh: bool) -> None:
        """Mark the folder as not complete; existing partitions stay unless ``afresh``."""
        self.note(0, total)
        self.folder.remove(COMPLETE)
        if afresh:
            self.folder.remove(*WRITTEN, GATHERED)
            self.parts.remove(self.folder.listed(BULK_LABELS))

    def note(self, done: int, total: int) -> None:
        """Write how many partitions are done."""
        facts = {"partitions_done": done, "partitions": total, "key": self.key}
        self.folder.write_json(PARTIAL, facts)

    def finished(self, partitions: "Partitions") -> dict[int, dict[str, Any]]:
        """Return the footers of labelled partitions of this key by number, and delete drafts."""
        self.parts.remove_drafts()
        there = set(self.parts.names())
        numbers = [number for number, name in enumerate(partitions.names) if name in there]
        with ThreadPoolExecutor(FOOTER_THREADS) as pool:
            footers = pool.map(self._footer, (partitions.names[number] for number in numbers))
            facts = dict(zip(numbers, footers, strict=True))
        return {
            number: fact
            for number, fact in facts.items()
            if fact is not None
            and fact.get("digest") == self.digest
            and fact["rows"] == partitions.rows_of(number)
        }

    def _footer(self, name: str) -> dict[str, Any] | None:
        """Return what :class:`Labelling` stored in a footer, and the rows; None for other files."""
        try:
            with (
                self.folder.open(f"{BULK_LABELS}/{name}") as file,
                parquet.ParquetFile(file) as table,
            ):
                facts = json.loads((table.metadata.metadata or {}).get(b"semigpc", b"null"))
                rows = table.metadata.num_rows
        except (OSError, ValueError, pyarrow.ArrowException):
            return None
        return facts | {"rows": rows} if isinstance(facts, dict) else None

    def complete(self, summary: LabelingSummary, page: bytes | None) -> None:
        """Write the summary and the page and, last of all, mark the folder as complete."""
        self.folder.write_json(SUMMARY, summary)
        if page is not None:
            self.folder.write_bytes(REPORT, page)
        facts = {
            "rows": summary["rows"],
            "partitions": summary["partitions"],
            "statuses": summary["statuses"],
            "key": self.key,
            "files": self._facts(),
        }
        self.folder.write_json(COMPLETE, facts)
        self.folder.remove(PARTIAL, GATHERED)

    def save_scan(self, gathered: Scan) -> None:
        """Write the result of pass 1."""
        fields = vars(gathered)
        facts = {name: value for name, value in fields.items() if name not in ARRAYS}
        text = json.dumps(facts | {"digest": self.digest}).encode()
        content = io.BytesIO()
        arrays = {name: fields[name] for name in ARRAYS}
        np.savez(content, text=np.frombuffer(text, np.uint8), **arrays)
        self.folder.write_bytes(GATHERED, content.getvalue())

    def load_scan(self) -> Scan | None:
        """Return the result of pass 1 that an identical run saved; None if there is none."""
        try:
            with (
                self.folder.open(GATHERED) as file,
                np.load(io.BytesIO(file.read()), allow_pickle=False) as arrays,
            ):
                facts = json.loads(arrays["text"].tobytes())
                fields = {name: arrays[name] for name in ARRAYS}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return None
        if facts.pop("digest", None) != self.digest:
            return None
        facts["bad_labels"] = {int(row): label for row, label in facts["bad_labels"].items()}
        return Scan(**facts, **fields)


# The partitions of the data -----------------------------------------------------------------------


class Partitions:
    """The partitions below a folder.

    Schemas are compared before any row is read; a partition without rows may have any schema.

    Attributes:
        names: of all P partitions, sorted.
        starts: (P + 1,) number of the first row of each, and last ``rows``, the number of all.
        source: the partitions that have rows, as one table.
        content: a hash that changes when a file does.
        ignored: names of files that are not partitions.
    """

    def __init__(
        self, folder: Folder, options: ColumnOptions, *, follow_links: bool = False
    ) -> None:
        visible = _visible(folder)
        names = [name for name in visible if name.endswith(SUFFIX)]
        self.names = sorted(names, key=lambda name: PurePosixPath(name).parts)
        self.ignored = sorted(set(visible) - set(self.names))
        if not self.names:
            raise DataError(
                f"There are no {SUFFIX} files in {folder.place}. Labelling on Ray takes a folder "
                "of them; check the path."
            )
        if not isinstance(folder, ObjectStore):
            root = folder.place.resolve()
            reasons = [
                (name, unusable(root, name, follow_links=follow_links)) for name in self.names
            ]
            bad = [(printable(name), reason) for name, reason in reasons if reason is not None]
            reject_bad(bad, folder.place)
        facts = [(name, visible[name].size, visible[name].mtime_ns) for name in self.names]
        self.content = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

        def opened(name: str) -> ParquetTable:
            return ParquetTable(folder.shown(name), folder.file_system, folder.location(name))

        with ThreadPoolExecutor(FOOTER_THREADS) as pool:
            tables = list(pool.map(opened, self.names))
        self.starts = np.cumsum([0, *(table.rows or 0 for table in tables)])
        self.rows = int(self.starts[-1])
        filled = {name: table for name, table in zip(self.names, tables, strict=True) if table.rows}
        if not filled:
            raise DataError(
                f"The {len(tables)} partitions of {folder.place} hold no rows. "
                "Nothing can be labelled."
            )
        self.source = TableSource(list(filled.values()), options)
        self._check_types(list(filled.values()))
        for table in filled.values():
            # Workers receive one copy of the schema, not one for each partition.
            table.schema = self.source.tables[0].schema
        self._position = {name: position for position, name in enumerate(filled)}

    def __len__(self) -> int:
        """Return P."""
        return len(self.names)

    def notes(self) -> Iterator[str]:
        """Yield what the user should know about the partitions."""
        if self.ignored:
            names = listed(self.ignored, 3)
            yield f"Files of the folder that do not end in {SUFFIX} were ignored: {names}."
        if self.source.has_ids and self.rows > COMPARED_ROWS:
            yield (
                "Ids were compared within each partition, and those with a label over all of "
                f"them: there are more than {COMPARED_ROWS:,} rows."
            )

    def rows_of(self, number: int) -> int:
        """Return the rows of one partition."""
        return int(self.starts[number + 1] - self.starts[number])

    def _check_types(self, tables: list[ParquetTable]) -> None:
        """Raise an error for features of another type or length, as of another network."""
        first = tables[0]
        for table in tables[1:]:
            for name in self.source.columns.features:
                expected = first.schema.field(name).type
                kind = table.schema.field(name).type
                if kind != expected:
                    raise DataError(
                        "All partitions must hold the same kind of features; the column "
                        f"{name!r} of {table.path} is {kind}, and that of {first.path.name} is "
                        f"{expected}. Write it again like the others, or remove it."
                    )

    def part(self, number: int) -> TableSource:
        """Return one partition that has rows as a table, with its rows numbered from 0."""
        position = self._position[self.names[number]]
        part = copy.copy(self.source)
        part.tables = [self.source.tables[position]]
        part.files = [self.source.files[position]]
        part.rows = self.rows_of(number)
        part.starts = np.array([0, part.rows])
        return part

    def batches(self, number: int, size: int) -> Iterator[RowBatch]:
        """Yield the rows of a partition, ``size`` at a time, numbered over all partitions."""
        if not self.rows_of(number):
            return
        for batch in self.part(number).batches(size):
            first = int(self.starts[number]) + batch.first
            ids = batch.ids
            if not self.source.has_ids:
                ids = [str(first + row) for row in range(len(batch.ids))]
            yield batch._replace(first=first, ids=ids)


def _visible(folder: Folder) -> dict[str, FileInfo]:
    """Return the files of a folder that are not hidden, nor in a hidden folder."""
    try:
        kind = folder.kind()
    except OSError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{folder.place} cannot be opened: {reason}") from error
    if kind == "nothing":
        raise DataError(f"There is no folder {folder.place}. Check the path.")
    if kind == "file":
        raise DataError(
            f"Labelling on Ray takes a folder of .parquet files; {folder.place} is a file. "
            "Use engine=local."
        )
    return {
        name: info
        for name, info in folder.listed().items()
        if not any(part[0] in "._" for part in PurePosixPath(name).parts)
    }


# The work on one partition ------------------------------------------------------------------------


@dataclass(frozen=True)
class Gathering:
    """The first pass: gather from a partition what the estimator is fitted on.

    Args:
        partitions: the data.
        labels: by id; None if they are in the data.
        seed: of the sample.
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
        source = self.partitions.source
        lookup = LabelLookup(self.labels)
        gathered = Gathered(source.width, self.seed, below=self.below)
        for batch in self.partitions.batches(number, READ_ROWS):
            gathered.add(batch, lookup.of(batch.ids, batch.labels))
        if source.has_ids and gathered.rows:
            check_unique_ids(
                self.partitions.part(number), np.concatenate(gathered.hashes), READ_ROWS
            )
        if not self.compares:
            gathered.hashes = []
        return gathered

    def check(self, gathered: Gathered) -> None:
        """Raise a DataError for an id that occurs in several partitions.

        All ids are compared up to COMPARED_ROWS rows, beyond that those with a label.
        """
        source = self.partitions.source
        if self.compares:
            check_unique_ids(source, np.concatenate(gathered.hashes), READ_ROWS)
        counts = Counter(name for _, name, _ in gathered.labelled)
        repeated = next((name for name, count in counts.items() if count > 1), None)
        if source.has_ids and repeated is not None:
            places = [source.place(row) for row, name, _ in gathered.labelled if name == repeated]
            raise DataError(
                f"Every row needs an id of its own; {repeated!r}, which has a label, is in "
                f"{places[0]} and {places[1]}. Rename or remove one, or choose another column with "
                "id=..."
            )


def sample_bound(rows: int, labels: int) -> float:
    """Return a key below which there are almost surely SAMPLE rows without a label.

    Twice as many are expected; fewer than SAMPLE would be 140 standard deviations away. The number
    of rows that partitions send is thus bounded, however many rows there are.
    """
    return float(min(1.0, (SAMPLE_SURPLUS * SAMPLE + labels) / max(rows, 1)))


@dataclass(frozen=True)
class Labelling:
    """The second pass: label a partition.

    Args:
        partitions: the data.
        labeller: with the fitted model.
        out: the folder of labels.
        digest: of the key.
        size: rows labelled at a time, which become a row group.
    """

    partitions: Partitions
    labeller: Labeller
    out: Parts
    digest: str
    size: int

    def __call__(self, number: int) -> dict[str, Any]:
        """Label one partition, write it under the same name, and return its counts."""
        tally = Tally()
        schema = self.labeller.schema
        with (
            self.out.draft(self.partitions.names[number]) as place,
            parquet.ParquetWriter(place, schema, write_page_checksum=True) as writer,
        ):
            for batch in self.partitions.batches(number, self.size):
                table = self.labeller.table(batch)
                tally.add(table, schema.names[0])
                writer.write_table(table)
            facts = {"digest": self.digest} | tally.plain()
            writer.add_key_value_metadata({"semigpc": json.dumps(facts)})
        return facts
