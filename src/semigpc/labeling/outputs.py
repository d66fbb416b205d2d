"""From finished parts to the files that people use: labels.parquet, labels.csv, label_studio.json, and the counts."""

import csv
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import parquet
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.data.dataset import DataError
from semigpc.estimator import STATUSES, Answers, SemiGPClassifier
from semigpc.files import RELAXED, FileFacts, altered, push, read_json, remove_drafts, replacing, write_json, writing
from semigpc.labeling.scan import Scan
from semigpc.labeling.source import RowBatch
from semigpc.text import spreadsheet_cell

LISTED = 100  # outliers that are named in the report
LABELLED = "labelled"
ALL_STATUSES = (LABELLED, *STATUSES)
TOP = 3  # reasons for each row
OTHERS = ("label", "confidence", "variance", "status", "reasons")  # columns beside the ids
REASON = pyarrow.struct([("id", pyarrow.string()), ("label", pyarrow.string()), ("weight", pyarrow.float32())])
LOCAL_FILES = "/data/local-files/?d="
CONTROL = "label"  # what the choices are called
WRITTEN = (
    "project.json",  # a folder without it is not complete
    "labels.parquet",
    "labels.csv",
    "label_studio.json",
    "label_studio.xml",
    "summary.json",
    "report.html",
)
PARTIAL, COMPLETE, BULK_LABELS = "_partial.json", "_complete.json", "labels"  # what labelling on Ray writes instead
CHANGED = ".changed"  # after the name of an output that somebody changed, when it is made again
ADVICE = "Give another --out, or --overwrite to make them again."
Key = dict[str, Any]
T = TypeVar("T")


@dataclass
class Tally:
    """Counts over all rows: of each status, of pseudo-labels in each class; and the farthest outliers."""

    statuses: Counter[str] = field(default_factory=Counter)
    pseudo: Counter[str] = field(default_factory=Counter)
    outliers: list[dict[str, Any]] = field(default_factory=list)

    def add(self, table: pyarrow.Table, id_name: str) -> None:
        """Count a part."""
        names, labels, confidence, variance, status = (
            table.column(name).to_pylist() for name in (id_name, "label", "confidence", "variance", "status")
        )
        self.statuses.update(status)
        self.pseudo.update(label for label, what in zip(labels, status, strict=True) if what == "pseudo")
        found = [
            {"id": names[row], "label": labels[row], "confidence": confidence[row], "variance": variance[row]}
            for row, what in enumerate(status)
            if what == "outlier"
        ]
        self.outliers = sorted([*self.outliers, *found], key=lambda entry: -entry["variance"])[:LISTED]


class LabelStudio:
    """How rows become tasks.

    Args:
        images: the folder of the images; None for a table, whose rows are shown by their ids.
        image_url: what to put before the name of an image; None refers to local files.
        version: of the model, as shown beside predictions.
    """

    def __init__(self, images: Path | None, image_url: str | None, version: str) -> None:
        self.kind = "text" if images is None and image_url is None else "image"
        self.prefix = image_url if image_url is not None else f"{LOCAL_FILES}{quote(images.name)}/" if images else ""
        self.version = version

    def interface(self, classes: Sequence[str]) -> str:
        """The labelling interface that the tasks are made for."""
        shown = '<Image name="image" value="$image"/>' if self.kind == "image" else '<Text name="text" value="$text"/>'
        choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in classes)
        control = f'<Choices name="{CONTROL}" toName="{self.kind}" choice="single" showInline="true">'
        return f"<View>\n  {shown}\n  {control}\n{choices}\n  </Choices>\n</View>\n"

    def tasks(self, table: pyarrow.Table, id_name: str) -> Iterator[str]:
        """One task a row, as JSON: annotated if its label was given, else with a prediction scored by its confidence."""
        columns = (table.column(name).to_pylist() for name in (id_name, "label", "confidence", "status"))
        for name, label, confidence, status in zip(*columns, strict=True):
            shown = name if self.kind == "text" else self.prefix + quote(name)
            task: dict[str, object] = {"data": {self.kind: shown, "id": name, "status": status}}
            if label is not None:
                choice = {"from_name": CONTROL, "to_name": self.kind, "type": "choices", "value": {"choices": [label]}}
                if status == "labelled":
                    task["annotations"] = [{"result": [choice]}]
                else:
                    score = round(confidence, 6)
                    task["predictions"] = [{"model_version": self.version, "score": score, "result": [choice]}]
            yield json.dumps(task, ensure_ascii=False)


def write_tables(parts: Iterable[pyarrow.Table], out: Path, id_name: str, studio: LabelStudio) -> Tally:
    """Write the tables part by part, so that only one is in memory; each file appears when it is complete."""
    tally = Tally()
    with (
        replacing(out / "labels.parquet") as table_draft,
        replacing(out / "labels.csv") as csv_draft,
        replacing(out / "label_studio.json") as studio_draft,
        parquet.ParquetWriter(table_draft, schema_of(id_name)) as table_file,
        csv_draft.open("w", newline="", encoding="utf-8") as csv_file,
        studio_draft.open("w", encoding="utf-8") as studio_file,
    ):
        writer = csv.writer(csv_file)
        writer.writerow([spreadsheet_cell(id_name), *OTHERS])
        separator = "[\n"
        for table in parts:
            table_file.write_table(table)
            writer.writerows(_csv_rows(table, id_name))
            for task in studio.tasks(table, id_name):
                studio_file.write(separator + task)
                separator = ",\n"
            tally.add(table, id_name)
        studio_file.write("\n]\n")
    return tally


def _decimal(value: float) -> str:
    """With a point, since readers guess a column's kind from its first rows."""
    text = f"{value:.6g}"
    return text if "." in text or "e" in text else f"{text}.0"


def _csv_rows(table: pyarrow.Table, id_name: str) -> Iterator[tuple[str, ...]]:
    names, labels, confidence, variance, status = (
        table.column(name).to_pylist() for name in (id_name, "label", "confidence", "variance", "status")
    )
    for row, reasons in enumerate(_reason_texts(table.column("reasons").combine_chunks())):
        name, label = spreadsheet_cell(names[row]), spreadsheet_cell(labels[row] or "")
        yield name, label, _decimal(confidence[row]), _decimal(variance[row]), status[row], reasons


def _reason_texts(column: pyarrow.ListArray) -> Iterator[str]:
    """Each row's reasons as JSON; flat lists are several times as quick to go through as nested ones."""
    structs, offsets = column.values, column.offsets.to_pylist()
    ids, labels, weights = (structs.field(name).to_pylist() for name in ("id", "label", "weight"))
    texts = [
        f'{{"id": {_quoted(name)}, "label": {_quoted(label)}, "weight": {weight:.6g}}}'
        for name, label, weight in zip(ids, labels, weights, strict=True)
    ]
    return (f"[{', '.join(texts[start:stop])}]" for start, stop in pairwise(offsets))


@lru_cache(maxsize=100_000)
def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def schema_of(id_name: str) -> pyarrow.Schema:
    """Of the table of labels."""
    kinds = (pyarrow.string(), pyarrow.float32(), pyarrow.float32(), pyarrow.string(), pyarrow.list_(REASON))
    return pyarrow.schema([(id_name, pyarrow.string()), *zip(OTHERS, kinds, strict=True)])


class Labeller:
    """Turns batches of rows into tables of labels.

    Rows that were given a label keep it, with confidence 1. A row without a usable embedding has no label but a given one,
    confidence 0, variance 1 and no reasons, and is abstained from.

    Args:
        model: fitted. scan: what the first pass found. id_name: of the first column.
    """

    def __init__(self, model: SemiGPClassifier, scan: Scan, id_name: str) -> None:
        self.model, self.scan, self.schema = model, scan, schema_of(id_name)
        self.names = np.array([str(name) for name in model.classes_], dtype=object)
        # Rows of the sample may have joined the labelled ones by self-training, and be reasons too.
        codes = model.answer(scan.sample_x, variance=False, top=0).codes if len(scan.sample) else np.empty(0, dtype=np.int64)
        rows = np.concatenate([scan.labelled, scan.sample])
        self._order = np.argsort(rows)
        self._rows = rows[self._order]
        self._ids = pyarrow.array([*scan.ids, *scan.sample_ids], pyarrow.string())
        self._labels = pyarrow.array([*scan.labels, *self.names[codes]], pyarrow.string())

    def table(self, batch: RowBatch) -> pyarrow.Table:
        """One row for each row of the batch, in its order."""
        size = len(batch.ids)
        bad = self._within(self.scan.bad, batch)
        x = batch.x.copy() if len(bad) else batch.x
        x[bad] = 0.0
        answers = self.model.answer(x, variance=True, top=TOP)
        assert answers.variance is not None
        labels = self.names[answers.codes]
        confidence, variance = answers.confidence.copy(), answers.variance.copy()
        status = np.array(STATUSES, dtype=object)[answers.status]
        labels[bad], confidence[bad], variance[bad], status[bad] = None, 0.0, 1.0, "abstained"
        for row, label in self._given(batch):
            labels[row], confidence[row], status[row] = label, 1.0, LABELLED
        reasons = self._reasons(answers, np.isin(np.arange(size), bad))
        columns = [batch.ids, labels.tolist(), confidence, variance, status.tolist(), reasons]
        arrays = [pyarrow.array(column, field.type) for column, field in zip(columns[:-1], self.schema, strict=False)]
        return pyarrow.Table.from_arrays([*arrays, reasons], schema=self.schema)

    def _given(self, batch: RowBatch) -> list[tuple[int, str]]:
        """Rows of the batch that have a label, counted from its first one."""
        low, high = np.searchsorted(self.scan.labelled, (batch.first, batch.first + len(batch.ids)))
        rows = (self.scan.labelled[low:high] - batch.first).tolist()
        good = list(zip(rows, self.scan.labels[low:high], strict=True))
        bad = [(row - batch.first, label) for row, label in self.scan.bad_labels.items()]
        return good + [(row, label) for row, label in bad if 0 <= row < len(batch.ids)]

    def _within(self, rows: NDArray[np.int64], batch: RowBatch) -> NDArray[np.int64]:
        low, high = np.searchsorted(rows, (batch.first, batch.first + len(batch.ids)))
        return rows[low:high] - batch.first

    def _reasons(self, answers: Answers, without: NDArray[np.bool_]) -> pyarrow.Array:
        """The labelled rows that weigh most, (M, top), as lists of structs; none where there are none."""
        there = (answers.rows >= 0) & ~without[:, None]
        offsets = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int32)
        places = pyarrow.array(self._order[np.searchsorted(self._rows, answers.rows[there])])
        weights = pyarrow.array(answers.weights[there], pyarrow.float32())
        structs = pyarrow.StructArray.from_arrays(
            [self._ids.take(places), self._labels.take(places), weights], fields=list(REASON)
        )
        return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), structs)


@with_config(RELAXED)
class Finished(TypedDict):
    """``project.json``, as far as it matters here: what the labels depend on, and the files that were written."""

    key: Key
    files: dict[str, FileFacts]


def _check(finished: Finished) -> None:
    foreign = [name for name in finished["files"] if name not in WRITTEN]
    if foreign:
        raise ValueError(f"files must be what labelling writes; got {foreign[0]!r:.80}")


def files_hash(files: Sequence[Path]) -> str:
    """A few letters that change when files do: their names, sizes and times, without reading them."""
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def content_hash(path: Path | None) -> str | None:
    """A few letters that change when the content of a file does; None if there is none."""
    return None if path is None or not path.is_file() else hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class OutFolder:
    """Where labels of this key are written.

    Args:
        path: the folder; made if it is not there.
        key: what they depend on, as JSON holds it.
    """

    def __init__(self, path: Path, key: Key) -> None:
        self.path = path
        self.key: Key = json.loads(json.dumps(key))
        self.parts = path / "parts"

    def check(self, *, ignoring: str = "") -> bool:
        """Whether all was finished before, by an identical run; ``ignoring`` leaves out a part of the key not known yet.

        Raises:
            DataError: the folder holds labels that were made otherwise, or files that are not ours to replace.
        """
        if any((self.path / name).exists() for name in (PARTIAL, COMPLETE)):
            raise DataError(f"{self.path} holds labels that were made by --engine ray. {ADVICE}")
        finished = self._finished()
        begun = _read(self.parts / "key.json", dict[str, Any]) if any(self.parts.glob("*.parquet")) else None
        held = begun if finished is None else finished["key"]
        if held is None:
            foreign = [name for name in WRITTEN if (self.path / name).exists()]
            if foreign:
                raise DataError(f"{self.path} holds {foreign[0]}, which no finished labelling says to have written. {ADVICE}")
            return False
        other = [name for name in sorted({*held, *self.key}) if held.get(name) != self.key.get(name) and name != ignoring]
        if other:
            file = "parts/key.json" if finished is None else "project.json"
            difference = self._difference(held, other[0])
            raise DataError(f"{self.path} holds labels that were made otherwise: by {file}, {difference}. {ADVICE}")
        return finished is not None

    def begin(self, *, afresh: bool = False) -> None:
        """Make it ready for parts; those that are there already stay, unless all is to be done ``afresh``."""
        if afresh:
            self.remove_parts()
        remove_drafts(self.parts)
        write_json(self.parts / "key.json", self.key)

    def altered(self) -> list[str]:
        """Files of a finished folder that are gone or are not what was written, by the sizes and hashes in project.json."""
        finished = self._finished()
        return altered(self.path, finished["files"]) if finished else []

    def _finished(self) -> Finished | None:
        return _read(self.path / "project.json", Finished, _check)

    def publish(self, kept: Sequence[str] = ()) -> None:
        """Put the outputs in ``parts`` in the place of earlier ones, of which ``kept`` are renamed; nothing else is touched."""
        with writing(self.path):
            for path in (self.path / name for name in kept if (self.path / name).exists()):
                path.replace(path.with_name(path.name + CHANGED))
            for name in WRITTEN:
                (self.path / name).unlink(missing_ok=True)
            if any((self.path / name).exists() for name in (PARTIAL, COMPLETE)):  # of labelling on Ray
                shutil.rmtree(self.path / BULK_LABELS, ignore_errors=True)
                for name in (COMPLETE, PARTIAL):
                    (self.path / name).unlink(missing_ok=True)
            for name in reversed(WRITTEN):
                if (self.parts / name).exists():
                    (self.parts / name).replace(self.path / name)
            push(self.path)
        self.remove_parts()

    def _difference(self, held: Key, name: str) -> str:
        if name.endswith("content"):
            return f"the {name} has changed since"
        return f"{name} is {held.get(name)!r:.80} there and {self.key.get(name)!r} here"

    # Parts ------------------------------------------------------------------------------------------------------------

    def part(self, number: int) -> Path:
        """Where a shard goes."""
        return self.parts / f"{number:05d}.parquet"

    def write_part(self, number: int, table: pyarrow.Table) -> None:
        """One shard, which appears under its name when it is complete."""
        with replacing(self.part(number)) as draft:
            parquet.write_table(table, draft, write_page_checksum=True)

    def read_part(self, number: int) -> pyarrow.Table:
        """A finished shard.

        Raises:
            DataError: it was damaged since.
        """
        try:
            return parquet.read_table(self.part(number), partitioning=None, page_checksum_verification=True)
        except (OSError, pyarrow.ArrowException) as error:
            told = " ".join(str(error).split())
            raise DataError(
                f"{self.part(number)} is damaged: {told}. Delete that file; the same command makes it again."
            ) from error

    def remove_parts(self) -> None:
        """They are in the tables now."""
        shutil.rmtree(self.parts, ignore_errors=True)


def _read(path: Path, schema: type[T], check: Callable[[T], None] | None = None) -> T | None:
    try:
        return read_json(path, schema, error=DataError, remedy=ADVICE, check=check)
    except FileNotFoundError:
        return None
