"""Bulk labelling on Ray: one output partition for each input partition, on one machine or on many.

    footers   open every partition, and compare schemas, before anything is started
    pass 1    one task per partition: labelled rows, its share of the sample, bad rows; the driver merges them in order
    fit       once, on the driver, on the same rows as the local engine; the model goes to the object store once
    pass 2    one task per partition: read it, label it and write it under the same name; nothing is shuffled

Ray Data maps over the *names* of partitions and not over their rows, since its own readers and
writers cannot resume like this: they cut files into blocks, write one file per block, and know what
is finished only by the ids of all finished rows, held in memory. One task per file is what lets a
stopped run continue and a killed worker cost one partition; and embeddings never pass through the
object store. Tasks and not actors, so that a cluster may grow and shrink; a worker keeps the model
between them.

    labels/          one Parquet file for each partition of the data, under its name; its footer holds the digest of the key
    _partial.json    while some are missing: the key, and how many are done
    _gathered.npz    while some are missing: the result of pass 1, so that it is not made again
    summary.json, report.html
    _complete.json   written last: a folder without it is not complete

The key is all that labels depend on, by value or by a hash.
"""

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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from semigpc.io.atomic import facts_of, locked
from semigpc.io.errors import DataError
from semigpc.io.text import listed
from semigpc.labeling import bulk
from semigpc.labeling.bulk import Address, Partitions, Store
from semigpc.labeling.inputs import Inputs, LabelSettings, check_classes, table_inputs
from semigpc.labeling.label import fit, labels_key, shard_rows, summarise
from semigpc.labeling.outputs import (
    ADVICE,
    BULK_LABELS,
    COMPLETE,
    PARTIAL,
    WRITTEN,
    Key,
    Labeller,
    Tally,
    key_difference,
)
from semigpc.labeling.scan import SAMPLE, Gathered, LabelLookup, Progress, Scan, silent
from semigpc.report.labeling_page import write_labeling_report

OBJECT_STORE = (
    2**29
)  # bytes of shared memory for a Ray that this process starts: it holds the model and little else
RETRIES = 5  # of a task whose worker died
NOTE_SECONDS = 10.0  # between updates of _partial.json
GATHERED, SUMMARY, REPORT = "_gathered.npz", "summary.json", "report.html"
ARRAYS = (
    "labelled",
    "x",
    "sample",
    "sample_x",
    "bad",
)  # fields of a Scan that are arrays; the others go into JSON


def label_on_ray(
    settings: LabelSettings, *, overwrite: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Label all partitions of a folder, write as many, and return the content of summary.json.

    An identical call that was stopped continues with the partitions that are missing; after one
    that has finished, the summary is read from the folder.

    Args:
        settings: ``data`` and ``out`` are folders or addresses (``bulk.place_of``); options about
            images are not used.
        overwrite: replace labels that were made otherwise. progress: called with (stage, partitions
            done, of how many).

    Raises:
        DataError: an input is missing or cannot be used, or other labels would be replaced.
        ImportError: Ray is not installed. OSError: a partition could not be written, or workers
            died again and again.
    """
    _check_apart(settings)
    with (
        nullcontext() if isinstance(settings.out, Address) else locked(settings.out)
    ):  # object stores have no locks
        return _label_on_ray(settings, overwrite, progress or silent)


def _label_on_ray(settings: LabelSettings, overwrite: bool, progress: Progress) -> dict[str, Any]:
    began = time.monotonic()
    partitions = Partitions(
        Store(settings.data), settings.data_columns, follow_links=settings.follow_links
    )
    inputs = table_inputs(settings, partitions.source, settings.data)
    if partitions.ignored:
        inputs.notes.append(
            f"Files of the folder that do not end in {bulk.SUFFIX} were ignored: {listed(partitions.ignored, 3)}."
        )
    if partitions.source.has_ids and partitions.rows > bulk.COMPARED_ROWS:
        inputs.notes.append(
            f"Only ids of one partition were compared, and those with a label: there are more than {bulk.COMPARED_ROWS:,} rows."
        )
    data = str(settings.data if bulk.SCHEME in str(settings.data) else settings.data.resolve())
    key = labels_key(settings, partitions.content) | {"engine": "ray", "data": data}
    out = BulkFolder(Store(settings.out), key)
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
        model, notes = fit(gathered, settings)
        inputs.notes.extend(notes)
        out.begin(len(partitions), afresh=overwrite)
        out.store.remove(*altered)  # they are made again
        if kept is None:
            out.save_scan(gathered)
        labeller = Labeller(model, gathered, inputs.source.id_name)
        model.answer(gathered.x[:1])  # computes what scoring needs once, and not in each worker
        nothing = np.empty((0, gathered.x.shape[1]), dtype=np.float32)
        labeller.scan = replace(gathered, x=nothing, sample_x=nothing)  # workers need no sample
        facts = engine.label(
            partitions, out, labeller, shard_rows(partitions.source, settings.shard)
        )
    summary = summarise(settings, inputs, gathered, model, Tally.joined(facts), progress)
    summary |= {
        "engine": "ray",
        "partitions": len(partitions),
        "seconds": round(time.monotonic() - began, 3),
    }
    out.complete(summary, _page(summary) if settings.report else None)
    return summary


class _Engine:
    """Runs a task for each of many partitions and reports progress."""

    def __init__(self, ray: Any, progress: Progress) -> None:
        self.ray, self.progress = ray, progress

    def gather(self, partitions: Partitions, inputs: Inputs, settings: LabelSettings) -> Scan:
        """Run the first pass."""
        below = bulk.sample_bound(partitions.rows, len(inputs.labels or ()))
        gathering = bulk.Gathering(partitions, inputs.labels, settings.seed, below)
        gathered = self._gather(gathering)
        if (
            len(gathered.sample) < SAMPLE and below < 1
        ):  # most rows have a label, or are bad: use no bound then
            gathered = self._gather(replace(gathering, below=1.0))
        gathering.check(gathered)
        lookup = LabelLookup(inputs.labels, settings.labels)
        lookup.of([name for _, name, *_ in (*gathered.labelled, *gathered.bad)], None)
        lookup.check(settings.data, gathered.some_ids)
        if not settings.skip_bad:
            gathered.check_finite(partitions.source)
        return gathered.result()

    def _gather(self, gathering: bulk.Gathering) -> Gathered:
        """Return what was gathered from all partitions, merged in their order, in which they need
        not arrive.
        """
        merged = Gathered(gathering.partitions.source.width, gathering.seed, below=gathering.below)
        waiting: dict[int, Gathered] = {}
        following, total = 0, len(gathering.partitions)
        for done, (number, gathered) in enumerate(self._run(gathering, range(total)), start=1):
            waiting[number] = gathered
            while following in waiting:
                merged.absorb(waiting.pop(following))
                following += 1
            self.progress("reading", done, total)
        return merged

    def label(
        self, partitions: Partitions, out: "BulkFolder", labeller: Labeller, size: int
    ) -> list[dict[str, Any]]:
        """Run the second pass for partitions that are not labelled yet; return the counts of all,
        in their order.
        """
        total = len(partitions)
        facts = out.finished(
            partitions.names, [partitions.rows_of(number) for number in range(total)]
        )
        missing = [number for number in range(total) if number not in facts]
        out.note(len(facts), total)
        noted = time.monotonic()
        try:
            for number, counts in self._run(
                bulk.Labelling(partitions, labeller, out.store, out.digest, size), missing
            ):
                facts[number] = counts
                self.progress("labelling", len(facts), total)
                if time.monotonic() - noted > NOTE_SECONDS:
                    out.note(len(facts), total)
                    noted = time.monotonic()
        finally:
            out.note(len(facts), total)
        return [facts[number] for number in range(total)]

    def _run(self, task: bulk.Task, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield numbers of partitions with the result of the task, as they are done."""
        if not numbers:
            return
        shared = [
            self.ray.put(task)
        ]  # in a list, so that each worker fetches it once and not each task
        items = self.ray.data.from_items(
            [{"number": number} for number in numbers], override_num_blocks=len(numbers)
        )
        done = items.map(
            bulk.work_on, fn_kwargs={"shared": shared}, num_cpus=1, max_retries=RETRIES
        )
        try:
            for row in done.iter_rows():
                if row["failed"]:
                    raise (DataError if row["is_data_error"] else OSError)(row["failed"])
                yield int(row["number"]), pickle.loads(row["result"])
        except self.ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:500]
            raise OSError(
                f"Ray gave up: {reason} Partitions that are finished are kept; the same command goes on."
            ) from error


@contextmanager
def _ray() -> Iterator[Any]:
    """Yield Ray as the caller started it, or at RAY_ADDRESS, or one of our own that ends with the
    work.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(
            "--engine ray needs Ray, which is not installed: pip install 'semigpc[ray]'"
        ) from error
    ours = not ray.is_initialized()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray warns about its own settings
        if ours:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault(
                "RAY_worker_niceness", "0"
            )  # workers do the work, and nothing else of ours needs the cores
            address = os.environ.get("RAY_ADDRESS")
            own: dict[str, Any] = (
                {} if address else {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
            )
            try:
                ray.init(
                    address=address or "local",
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    **own,
                )
            except Exception as error:  # Ray has no class of its own for this
                where = f"at {address}" if address else "on this machine"
                raise OSError(
                    f"Ray did not start {where}: {error}. Nothing was changed; the same command tries again."
                ) from error
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        try:
            yield ray
        finally:
            if ours:
                ray.shutdown()


def _page(summary: dict[str, Any]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_labeling_report(Path(folder) / REPORT, summary)
        return (Path(folder) / REPORT).read_bytes()


def _check_apart(settings: LabelSettings) -> None:
    """Raise an error if labels would be written among the data, where the next run would read them
    as data.
    """
    data, out = (
        place if bulk.SCHEME in str(place) else place.resolve()
        for place in (settings.data, settings.out)
    )
    if out.is_relative_to(data):
        raise DataError(
            f"--out must not be inside of the data, whose .parquet files are all read; {out} is in {data}."
        )
    if data.is_relative_to(out):
        raise DataError(
            f"--out must not hold the data, as it is cleared to make labels again; {data} is in {out}."
        )
    if bulk.SCHEME not in str(out) and out.exists() and not out.is_dir():
        raise DataError(f"--out must be a folder; {out} is a file.")


class BulkFolder:
    """The place to which partitions of labels of a key are written."""

    def __init__(self, store: Store, key: Key) -> None:
        self.store = store
        self.key: Key = json.loads(json.dumps(key))
        self.digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:16]

    def check(self) -> bool:
        """Return whether an identical run has finished.

        Raises:
            DataError: it holds labels of another key, or files that labelling did not write.
        """
        complete, partial = self.store.read_json(COMPLETE), self.store.read_json(PARTIAL)
        earlier = complete if complete is not None else partial
        if earlier is None:
            foreign = [name for name in WRITTEN if self.store.exists(name)] + list(
                self.store.listed(BULK_LABELS)
            )[:1]
            if foreign:
                raise DataError(
                    f"{self.store.place} holds {foreign[0]}, which labelling on Ray did not write. {ADVICE}"
                )
            return False
        difference = key_difference(
            earlier["key"] if isinstance(earlier.get("key"), dict) else {}, self.key
        )
        if difference is not None:
            raise DataError(
                f"{self.store.place} holds labels that were made otherwise: {difference}. {ADVICE}"
            )
        return complete is not None

    def check_ours(self) -> None:
        """Raise a DataError if there are partitions that labelling did not write, which must not be
        deleted.
        """
        for name in self.store.listed(BULK_LABELS):
            is_draft = name.rpartition("/")[2].startswith(".")  # left by a worker that died
            if not is_draft and bulk.facts_of(self.store, f"{BULK_LABELS}/{name}") is None:
                raise DataError(
                    f"{self.store.place} holds {BULK_LABELS}/{name}, which labelling on Ray did not write and will not delete. "
                    "Move it away, or give another --out."
                )

    def summary(self, *, report: bool) -> dict[str, Any] | None:
        """Return the summary of a finished folder that is not altered; None if a report is wanted
        and there is none.
        """
        return self.store.read_json(SUMMARY) if not report or self.store.exists(REPORT) else None

    def altered(self) -> list[str]:
        """Return the outputs of a finished folder that are missing or changed; in an object store,
        by their size alone.
        """
        files, current = (self.store.read_json(COMPLETE) or {}).get("files"), self._facts()
        return (
            [name for name in files if current.get(name) != files[name]]
            if isinstance(files, dict)
            else sorted(current)
        )

    def _facts(self) -> dict[str, dict[str, Any]]:
        """Return the size and, on a disk, the hash of every output."""
        outputs = (SUMMARY, REPORT, f"{BULK_LABELS}/")
        sizes = {
            name: info.size
            for name, info in self.store.listed().items()
            if name.startswith(outputs)
        }
        if self.store.is_remote:
            return {name: {"bytes": size} for name, size in sizes.items()}
        return facts_of(self.store.place, sizes)

    def begin(self, total: int, *, afresh: bool) -> None:
        """Mark the folder as not complete; existing partitions stay, unless all are to be made
        ``afresh``.
        """
        self.note(0, total)
        self.store.remove(COMPLETE)
        if afresh:
            self.store.remove(
                *WRITTEN,
                GATHERED,
                *(f"{BULK_LABELS}/{name}" for name in self.store.listed(BULK_LABELS)),
            )

    def note(self, done: int, total: int) -> None:
        """Write how many partitions are done."""
        self.store.write_json(
            PARTIAL, {"partitions_done": done, "partitions": total, "key": self.key}
        )

    def finished(self, names: Sequence[str], rows: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the labelled partitions of this key by number, with the facts of their footers,
        and delete drafts.
        """
        files = self.store.listed(BULK_LABELS)
        self.store.remove(
            *(f"{BULK_LABELS}/{name}" for name in files if name.rpartition("/")[2].startswith("."))
        )
        numbers = [number for number, name in enumerate(names) if name in files]
        with ThreadPoolExecutor(bulk.FOOTERS) as pool:
            footers = pool.map(
                lambda number: bulk.facts_of(self.store, f"{BULK_LABELS}/{names[number]}"), numbers
            )
            facts = dict(zip(numbers, footers, strict=True))
        return {
            number: fact
            for number, fact in facts.items()
            if fact is not None
            and fact.get("digest") == self.digest
            and fact["rows"] == rows[number]
        }

    def complete(self, summary: dict[str, Any], page: bytes | None) -> None:
        """Write the summary and the page and, last of all, mark the folder as complete."""
        self.store.write_json(SUMMARY, summary)
        if page is not None:
            self.store.write_bytes(REPORT, page)
        counts = {name: summary[name] for name in ("rows", "partitions", "statuses")}
        self.store.write_json(COMPLETE, counts | {"key": self.key, "files": self._facts()})
        self.store.remove(PARTIAL, GATHERED)

    def save_scan(self, gathered: Scan) -> None:
        """Write the result of pass 1."""
        facts = {name: value for name, value in vars(gathered).items() if name not in ARRAYS} | {
            "digest": self.digest
        }
        text, content = json.dumps(facts).encode(), io.BytesIO()
        np.savez(
            content,
            text=np.frombuffer(text, np.uint8),
            **{name: getattr(gathered, name) for name in ARRAYS},
        )
        self.store.write_bytes(GATHERED, content.getvalue())

    def load_scan(self) -> Scan | None:
        """Return what an identical run has saved; None if there is nothing of the kind."""
        if not self.store.exists(GATHERED):
            return None
        try:
            with (
                self.store.open(GATHERED) as file,
                np.load(io.BytesIO(file.readall()), allow_pickle=False) as arrays,
            ):
                facts, fields = (
                    json.loads(arrays["text"].tobytes()),
                    {name: arrays[name] for name in ARRAYS},
                )
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return None
        if facts.pop("digest", None) != self.digest:
            return None
        facts["bad_labels"] = {int(row): label for row, label in facts["bad_labels"].items()}
        return Scan(**facts, **fields)
