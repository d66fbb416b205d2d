"""Bulk labelling on Ray: partitions in, partitions out, on one machine or on many.

    footers   every partition is opened, and schemas are compared, before anything is started
    pass 1    one task a partition: labelled rows, its share of the sample, bad rows; the driver merges them in order
    fit       once, on the driver, on the same rows as the local engine; the model goes to the object store once
    pass 2    one task a partition, which reads it, labels it and writes it under the same name; nothing is shuffled

Ray Data maps over the *names* of partitions rather than over their rows: then one partition is one task and one file, which is
what makes a stopped run go on where it was and a killed worker cost one partition; and embeddings never pass through the object
store. Tasks rather than actors, so that a cluster may grow and shrink; a worker keeps the model between them.
"""

import hashlib
import json
import logging
import os
import pickle
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from semigpc.data.dataset import DataError
from semigpc.estimator import SemiGPClassifier
from semigpc.files import facts_of as facts_of_files
from semigpc.files import locked
from semigpc.labeling.bulk import (
    COMPARED,
    Address,
    Gathering,
    Labelling,
    Partitions,
    Store,
    Task,
    check_over_partitions,
    facts_of,
    joined_tally,
    passed_over_note,
    sample_bound,
    work_on,
)
from semigpc.labeling.inputs import Inputs, LabelSettings, asked_columns, check_classes, table_inputs
from semigpc.labeling.label import fit, shard_rows, summarise
from semigpc.labeling.outputs import ADVICE, BULK_LABELS, COMPLETE, PARTIAL, WRITTEN, Key, Labeller, content_hash
from semigpc.labeling.scan import SAMPLE, Gathered, Matching, Progress, Scan, told_bad
from semigpc.report.labeling_page import write_labeling_report

OBJECT_STORE = 2**29  # bytes of shared memory that a Ray of our own may take: it holds the model and little else
RETRIES = 5  # of a task whose worker died
NOTE_SECONDS = 10.0  # between notes of how far it is
GATHERED, SUMMARY, REPORT = "_gathered.parquet", "summary.json", "report.html"
READERS = 32  # footers read at a time
LABELLED, SAMPLED, BAD = range(3)  # kinds of rows in GATHERED


def label_on_ray(settings: LabelSettings, *, overwrite: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Label all partitions of a folder, write as many, and answer with what summary.json holds.

    An identical call that was stopped goes on with the partitions that are missing; one that was finished is answered from
    the folder.

    Args:
        settings: ``data`` and ``out`` are folders or addresses (``stores.place_of``); those about images do not apply.
        overwrite: replace labels that were made otherwise. progress: told (stage, partitions done, of how many).

    Raises:
        DataError: something is not there, cannot be meant, or would replace other labels.
        ImportError: there is no Ray. OSError: a partition could not be written, or workers died again and again.
    """
    _check_apart(settings)
    with nullcontext() if isinstance(settings.out, Address) else locked(settings.out):  # object stores have no locks
        return _label_on_ray(settings, overwrite, progress)


def _label_on_ray(settings: LabelSettings, overwrite: bool, progress: Progress | None) -> dict[str, Any]:
    began = time.monotonic()
    partitions = Partitions(Store(settings.data), asked_columns(settings), follow_links=settings.follow_links)
    inputs = table_inputs(settings, partitions.source, settings.data)
    inputs.notes.extend(passed_over_note(partitions.passed_over))
    if partitions.source.has_ids and partitions.rows > COMPARED:
        inputs.notes.append(
            f"Only ids of one partition were compared, and those with a label: there are more than {COMPARED:,} rows."
        )
    call = shard_rows(partitions.source, settings.shard)
    out = BulkFolder(Store(settings.out), _key(settings, partitions.content))
    if overwrite:
        out.check_ours()
    finished = not overwrite and out.check()
    altered = out.altered() if finished else []
    held = out.summary(partitions.names, report=settings.report) if finished and not altered else None
    if held is not None:
        return held
    with _ray() as ray:
        engine = _Engine(ray, progress or (lambda *_: None))
        kept = None if overwrite else out.load_scan()
        found = engine.gather(partitions, inputs, settings) if kept is None else kept[0]
        read_s = engine.core_seconds if kept is None else kept[1]
        check_classes(found.labels, settings.labels or settings.data)
        engine.progress("fitting", 0, None)
        model, notes = fit(found, settings)
        inputs.notes.extend(notes)
        out.begin(len(partitions), afresh=overwrite)
        out.store.remove(*altered)  # they are made again
        if kept is None:
            out.save_scan(found, read_s)
        facts = engine.label(partitions, out, _labeller(model, found, inputs), call)
    summary = summarise(settings, inputs, found, model, joined_tally(facts), progress)
    core_seconds = {"reading": read_s, "labelling": sum(held["core_seconds"] for held in facts)}
    summary |= {"engine": "ray", "partitions": len(partitions), "core_seconds": core_seconds}
    summary["seconds"] = round(time.monotonic() - began, 3)
    out.complete(summary, _page(summary) if settings.report else None)
    return summary


class BulkFolder:
    """A place for labels of this key."""

    def __init__(self, store: Store, key: Key) -> None:
        self.store = store
        self.key: Key = json.loads(json.dumps(key))
        self.digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:16]

    def check(self) -> bool:
        """Whether all was finished before, by an identical run.

        Raises:
            DataError: it holds labels that were made otherwise, or files that are not ours to replace.
        """
        complete, partial = self.store.read_json(COMPLETE), self.store.read_json(PARTIAL)
        held = complete if complete is not None else partial
        if held is None:
            foreign = [name for name in WRITTEN if self.store.exists(name)] + list(self.store.listed(BULK_LABELS))[:1]
            if foreign:
                raise DataError(f"{self.store.place} holds {foreign[0]}, which labelling on Ray did not write. {ADVICE}")
            return False
        key: Key = held["key"] if isinstance(held.get("key"), dict) else {}
        other = [name for name in sorted({*key, *self.key}) if key.get(name) != self.key.get(name)]
        if other:
            name, before, now = other[0], key.get(other[0]), self.key.get(other[0])
            told = (
                f"the {name} has changed since" if name.endswith("content") else f"{name} is {before!r} there and {now!r} here"
            )
            raise DataError(f"{self.store.place} holds labels that were made otherwise: {told}. {ADVICE}")
        return complete is not None

    def check_ours(self) -> None:
        """Refuse to replace partitions that labelling did not write; its own may go."""
        for name in self.store.listed(BULK_LABELS):
            hidden = name.rpartition("/")[2].startswith(".")  # left by a worker that died
            if not hidden and facts_of(self.store, f"{BULK_LABELS}/{name}") is None:
                raise DataError(
                    f"{self.store.place} holds {BULK_LABELS}/{name}, which labelling on Ray did not write and will not delete. "
                    "Move it away, or give another --out."
                )

    def summary(self, names: Sequence[str], *, report: bool) -> dict[str, Any] | None:
        """What a finished folder says; None if anything of it is missing."""
        wanted = [SUMMARY, *([REPORT] if report else []), *(f"{BULK_LABELS}/{name}" for name in names)]
        return self.store.read_json(SUMMARY) if set(wanted) <= set(self.store.listed()) else None

    def altered(self) -> list[str]:
        """Outputs of a finished folder that are gone or are not what was written; in an object store, by their size alone."""
        files = (self.store.read_json(COMPLETE) or {}).get("files")
        now = self._facts()
        return sorted(now) if not isinstance(files, dict) else [name for name in files if now.get(name) != files[name]]

    def _facts(self) -> dict[str, dict[str, Any]]:
        """Size and, on a disk, hash of every output."""
        outputs = (SUMMARY, REPORT, f"{BULK_LABELS}/")
        there = {name: info.size for name, info in self.store.listed().items() if name.startswith(outputs)}
        if self.store.is_remote:
            return {name: {"bytes": size} for name, size in there.items()}
        return facts_of_files(self.store.place, there)

    def begin(self, total: int, *, afresh: bool) -> None:
        """Mark it as not complete, and make it ready; partitions that are there stay, unless all is to be done ``afresh``."""
        self.tell(0, total)
        self.store.remove(COMPLETE)
        if afresh:
            self.store.remove(*WRITTEN, GATHERED, *(f"{BULK_LABELS}/{name}" for name in self.store.listed(BULK_LABELS)))

    def tell(self, done: int, total: int) -> None:
        """Note how far it is."""
        self.store.write_json(PARTIAL, {"partitions_done": done, "partitions": total, "key": self.key})

    def finished(self, names: Sequence[str], rows: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Partitions of this key that are labelled, by number, with the facts of their footers; what is left of others goes."""
        there = self.store.listed(BULK_LABELS)
        self.store.remove(*(f"{BULK_LABELS}/{name}" for name in there if name.rpartition("/")[2].startswith(".")))
        numbers = [number for number, name in enumerate(names) if name in there]
        with ThreadPoolExecutor(READERS) as pool:
            found = pool.map(lambda number: facts_of(self.store, f"{BULK_LABELS}/{names[number]}"), numbers)
            facts = dict(zip(numbers, found, strict=True))
        return {
            number: held
            for number, held in facts.items()
            if held is not None and held.get("digest") == self.digest and held["rows"] == rows[number]
        }

    def complete(self, summary: dict[str, Any], page: bytes | None) -> None:
        """All is there: say so, last of all."""
        self.store.write_json(SUMMARY, summary)
        if page is not None:
            self.store.write_bytes(REPORT, page)
        counts = {name: summary[name] for name in ("rows", "partitions", "statuses")}
        self.store.write_json(COMPLETE, counts | {"key": self.key, "files": self._facts()})
        self.store.remove(PARTIAL, GATHERED)

    # What the first pass found ------------------------------------------------------------------------------------------

    def save_scan(self, found: Scan, core_seconds: float) -> None:
        """Keep it beside the partitions, with the time that workers took for it."""
        sizes = (len(found.labelled), len(found.sample), len(found.bad))
        x = np.concatenate([found.x, found.sample_x, np.zeros((sizes[BAD], found.x.shape[1]), dtype=np.float32)])
        bad_labels = [found.bad_labels.get(row) for row in found.bad.tolist()]
        table = pyarrow.table(
            {
                "kind": np.repeat(np.array([LABELLED, SAMPLED, BAD], dtype=np.uint8), sizes),
                "row": np.concatenate([found.labelled, found.sample, found.bad]),
                "id": pyarrow.array([*found.ids, *found.sample_ids, *[""] * sizes[BAD]], pyarrow.string()),
                "label": pyarrow.array([*found.labels, *[None] * sizes[SAMPLED], *bad_labels], pyarrow.string()),
                "embedding": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), x.shape[1]),
            }
        )
        facts = {"digest": self.digest, "all_rows": found.rows, "core_seconds": core_seconds}
        self.store.write_table(GATHERED, table.schema, [table], lambda: facts)

    def load_scan(self) -> tuple[Scan, float] | None:
        """What was kept by an identical run, if it was, and the time that it took."""
        facts = facts_of(self.store, GATHERED)
        if facts is None or facts.get("digest") != self.digest:
            return None
        with self.store.open(GATHERED) as file:
            table = parquet.read_table(file)
        kind, rows = table["kind"].to_numpy(), table["row"].to_numpy()
        ids, labels = table["id"].to_pylist(), table["label"].to_pylist()
        width = table.schema.field("embedding").type.list_size
        x = table["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, width)
        first, second = np.searchsorted(kind, (SAMPLED, BAD))
        bad_labels = zip(rows[second:].tolist(), labels[second:], strict=True)
        found = Scan(
            rows=facts["all_rows"],
            labelled=rows[:first],
            ids=ids[:first],
            labels=labels[:first],
            x=x[:first].copy(),
            sample=rows[first:second],
            sample_ids=ids[first:second],
            sample_x=x[first:second].copy(),
            bad=rows[second:],
            bad_labels={row: label for row, label in bad_labels if label is not None},
        )
        return found, facts["core_seconds"]


class _Engine:
    """Runs a task for each of many partitions, tells how many are done, and counts what workers took for them."""

    def __init__(self, ray: Any, progress: Progress) -> None:
        self.ray, self.progress, self.core_seconds = ray, progress, 0.0

    def gather(self, partitions: Partitions, inputs: Inputs, settings: LabelSettings) -> Scan:
        """The first pass."""
        below = sample_bound(partitions.rows, len(inputs.given or ()))
        gathering = Gathering(partitions, inputs.given, settings.seed, below)
        gathered = self._gathered(gathering)
        if len(gathered.sample) < SAMPLE and below < 1:  # most rows have a label, or are bad: no bound then
            gathered = self._gathered(replace(gathering, below=1.0))
        if partitions.source.has_ids:
            check_over_partitions(gathering, gathered)
        matching = Matching(inputs.given)
        matching.of([name for _, name, *_ in (*gathered.labelled, *gathered.bad)], None)
        matching.check(settings.labels, settings.data, gathered.some_ids)
        if gathered.bad and not settings.skip_bad:
            raise DataError(told_bad(partitions.source, gathered.bad))
        return gathered.result()

    def _gathered(self, gathering: Gathering) -> Gathered:
        """What all partitions hold, merged in their order, in which they need not arrive."""
        merged, early = Gathered(gathering.partitions.source.width, gathering.seed, below=gathering.below), {}
        following, total = 0, len(gathering.partitions)
        for done, (number, found) in enumerate(self._run(gathering, range(total)), start=1):
            early[number] = found
            while following in early:
                merged.absorb(early.pop(following))
                following += 1
            self.progress("reading", done, total)
        return merged

    def label(self, partitions: Partitions, out: BulkFolder, labeller: Labeller, call: int) -> list[dict[str, Any]]:
        """The second pass, for partitions that are not labelled yet; answers with the counts of all, in their order."""
        total = len(partitions)
        facts = out.finished(partitions.names, [partitions.rows_of(number) for number in range(total)])
        missing = [number for number in range(total) if number not in facts]
        out.tell(len(facts), total)
        noted = time.monotonic()
        try:
            for number, found in self._run(Labelling(partitions, labeller, out.store, out.digest, call), missing):
                facts[number] = found
                self.progress("labelling", len(facts), total)
                if time.monotonic() - noted > NOTE_SECONDS:
                    out.tell(len(facts), total)
                    noted = time.monotonic()
        finally:
            out.tell(len(facts), total)
        return [facts[number] for number in range(total)]

    def _run(self, task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Numbers with what the task says of each, as they are done."""
        if not numbers:
            return
        shared = [self.ray.put(task)]  # in a list: each worker fetches it once, not each task
        items = self.ray.data.from_items([{"number": number} for number in numbers], override_num_blocks=len(numbers))
        done = items.map(work_on, fn_kwargs={"shared": shared}, num_cpus=1, max_retries=RETRIES)
        try:
            for row in done.iter_rows():
                if row["failed"]:
                    raise (DataError if row["refused"] else OSError)(row["failed"])
                self.core_seconds += row["core_seconds"]
                yield int(row["number"]), pickle.loads(row["answer"])
        except self.ray.exceptions.RayError as error:
            told = " ".join(str(error).split())[:500]
            raise OSError(f"Ray gave up: {told} Partitions that are finished are kept; the same command goes on.") from error


@contextmanager
def _ray() -> Iterator[Any]:
    """Ray as it was started by the caller, or at RAY_ADDRESS, or one of our own that ends with the work."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError("--engine ray needs Ray, which is not installed: pip install 'semigpc[ray]'") from error
    ours = not ray.is_initialized()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, about its own settings
        if ours:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_worker_niceness", "0")  # they do the work, and nothing else of ours waits for the cores
            address = os.environ.get("RAY_ADDRESS")
            own: dict[str, Any] = {} if address else {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
            try:
                ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **own)
            except Exception as error:  # it has no class of its own for this
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


def _labeller(model: SemiGPClassifier, found: Scan, inputs: Inputs) -> Labeller:
    """Ready to be sent: what scoring needs is made once, and the sample stays behind."""
    labeller = Labeller(model, found, inputs.source.id_name)
    model.answer(found.x[:1])
    nothing = np.empty((0, found.x.shape[1]), dtype=np.float32)
    labeller.scan = replace(found, x=nothing, sample_x=nothing)
    return labeller


def _page(summary: dict[str, Any]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_labeling_report(Path(folder) / "report.html", summary)
        return (Path(folder) / "report.html").read_bytes()


def _check_apart(settings: LabelSettings) -> None:
    """Labels inside of the data would be read as data the next time."""
    data, out = (place if "://" in str(place) else place.resolve() for place in (settings.data, settings.out))
    if out.is_relative_to(data):
        raise DataError(f"--out must not be inside of the data, whose .parquet files are all read; {out} is in {data}.")
    if data.is_relative_to(out):
        raise DataError(f"--out must not hold the data, as it is cleared to make labels again; {data} is in {out}.")
    if "://" not in str(out) and out.exists() and not out.is_dir():
        raise DataError(f"--out must be a folder; {out} is a file.")


def _key(settings: LabelSettings, content: str) -> Key:
    """What the labels depend on, besides the code."""
    return {
        "engine": "ray",
        "data": str(settings.data if "://" in str(settings.data) else settings.data.resolve()),
        "data content": content,
        "labels content": [content_hash(path) for path in (settings.labels, *settings.more_labels)],
        **{f"column of {name}": value for name, value in asdict(settings.columns).items()},
        "target precision": settings.target_precision,
        "abstain": settings.abstain,
        "class prior": settings.class_prior,
        "self-training": settings.self_training,
        "seed": settings.seed,
        "skip_bad": settings.skip_bad,
        "shard": settings.shard,
        "semigpc": version("semigpc"),
    }
