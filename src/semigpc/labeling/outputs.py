"""The outputs of labelling: the table of labels, as CSV, for Label Studio, and their folder.

A folder belongs to a key: all that the labels depend on, by value or by a hash. While rows are
being labelled, the key is in ``parts/key.json`` and every finished shard in a Parquet file beside
it. The outputs are written there too, and replace earlier ones only when all are complete;
``project.json``, which then holds the key, is removed first and written last.

For Label Studio, set ``label_studio.xml`` as the labelling interface of a project, then import
``label_studio.json``: labels are predictions that people confirm or correct, and the given ones are
annotations. Images are referred to by an address, or as local files, which Label Studio serves if
it is started with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and
LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT, the parent of the folder of images.
"""

import csv
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, pairwise
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, parquet
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.estimator import STATUSES, Answers, SemiGPClassifier, Status
from semigpc.io.atomic import (
    RELAXED,
    FileFacts,
    altered,
    locked,
    push,
    read_json,
    replacing,
    write_json,
    writing,
)
from semigpc.io.content import file_mark, joined_mark
from semigpc.io.errors import DataError
from semigpc.io.parts import Folder, Key, Parts, key_difference, key_digest
from semigpc.io.text import spreadsheet_cell
from semigpc.labeling.scan import Scan
from semigpc.labeling.source import RowBatch, readable
from semigpc.report.labeling_summary import Outlier

MOST_REASONS = 3  # labelled rows that are listed as reasons of a row
COLUMNS = (  # after the ids
    "label",
    "guess",
    "confidence",
    "second",
    "second_confidence",
    "variance",
    "status",
    "grade",
    "reasons",
)
REASON = pyarrow.struct(
    [("id", pyarrow.string()), ("label", pyarrow.string()), ("weight", pyarrow.float32())]
)
GIVEN_OUT = (Status.LABELLED, Status.PSEUDO)  # rows of any other status have no label
LISTED_OUTLIERS = 100  # at most, in the summary and the report
LOCAL_FILES = "/data/local-files/?d="  # where Label Studio serves local files
CONTROL = "label"  # name of the choices in Label Studio
WRITTEN = (
    "project.json",  # a folder without it is not complete
    "labels.parquet",
    "labels.csv",
    "label_studio.json",
    "label_studio.xml",
    "summary.json",
    "report.html",
)
DATA = "data content"  # entry of the key that is known only when images are embedded
# Written by labelling on Ray instead.
PARTIAL = "_partial.json"
COMPLETE = "_complete.json"
BULK_LABELS = "labels"
# Made from the labels by other verbs.
DERIVED = (
    "audit.csv",
    "audit.json",
    "suggestions.csv",
    "reviews.jsonl",
    "exports",
)
DIGESTS = "derived.json"  # which labels each of these was made from
EARLIER = "earlier-labels"  # part of its new name if these labels are replaced
# Appended to the name of an output that was changed by hand, when it is made again.
CHANGED = ".changed"
ADVICE = "Choose another folder with out=..., or pass overwrite=True to make them again."


# Rows to a table of labels ------------------------------------------------------------------------


def schema_of(id_name: str) -> pyarrow.Schema:
    """Return the schema of the table of labels.

    Grades have 64 bits: with 32, a reader who asks for 0.9 or more misses those of 0.9.
    """
    text = pyarrow.string()
    number = pyarrow.float32()
    grade = pyarrow.float64()
    kinds = (text, text, number, text, number, number, text, grade, pyarrow.list_(REASON))
    return pyarrow.schema([(id_name, text), *zip(COLUMNS, kinds, strict=True)])


class Labeller:
    """The second pass over the data: batches of rows to tables of labels.

    Rows with a given label keep it, with confidence 1. Every row has a guess, which is also its
    label if its status is one of GIVEN_OUT. A row without a usable embedding and without a given
    label has neither, no reasons, confidence 0, variance 1 and the status "abstained". ``second``
    is the most probable of the other classes. ``grade`` is the precision that is guaranteed for a
    new label, and empty where none is.

    Args:
        model: the fitted estimator.
        scan: result of the first pass.
        id_name: name of the first column.
    """

    def __init__(self, model: SemiGPClassifier, scan: Scan, id_name: str) -> None:
        self.model = model
        self.scan = scan
        self.schema = schema_of(id_name)
        self.names = np.array([str(name) for name in model.classes_], dtype=object)
        self._given = dict(zip(scan.labelled.tolist(), scan.labels, strict=True)) | scan.bad_labels
        self._order = np.argsort(scan.labelled)  # reasons are rows with a given label
        self._rows = scan.labelled[self._order]
        self._ids = pyarrow.array(scan.ids, pyarrow.string())
        self._labels = pyarrow.array(scan.labels, pyarrow.string())

    def table(self, batch: RowBatch) -> pyarrow.Table:
        """Return one row for each row of the batch, in its order."""
        numbers = range(batch.first, batch.first + len(batch.ids))
        bad = np.isin(numbers, self.scan.bad)
        x = batch.x.copy() if bad.any() else batch.x
        x[bad] = 0.0
        answers = self.model.answer(x, variance=True, top=MOST_REASONS)
        assert answers.variance is not None
        guesses = self.names[answers.codes]
        second = self.names[answers.second]
        confidence = answers.confidence.copy()
        second_confidence = answers.second_confidence.copy()
        variance = answers.variance.copy()
        status = answers.status.copy()
        grade = answers.grade.copy()
        guesses[bad] = None
        second[bad] = None
        confidence[bad] = 0.0
        second_confidence[bad] = 0.0
        variance[bad] = 1.0
        status[bad] = Status.ABSTAINED
        grade[bad] = 0.0
        for row, number in enumerate(numbers):
            if number in self._given:
                guesses[row] = self._given[number]
                confidence[row] = 1.0
                second[row] = None
                second_confidence[row] = 0.0
                status[row] = Status.LABELLED
                grade[row] = 0.0
        labels = guesses.copy()
        labels[~np.isin(status, GIVEN_OUT)] = None
        columns = [
            batch.ids,
            labels.tolist(),
            guesses.tolist(),
            confidence,
            second.tolist(),
            second_confidence,
            variance,
            [STATUSES[code] for code in status],
            [float(round(float(each), 6)) or None for each in grade],
        ]
        arrays = [
            pyarrow.array(column, field.type)
            for column, field in zip(columns, self.schema, strict=False)
        ]
        return pyarrow.Table.from_arrays([*arrays, self._reasons(answers, bad)], schema=self.schema)

    def _reasons(self, answers: Answers, is_bad: NDArray[np.bool_]) -> pyarrow.Array:
        """Return for each row a list of the labelled rows that weigh most."""
        exists = (answers.rows >= 0) & ~is_bad[:, None]
        offsets = np.concatenate([[0], np.cumsum(exists.sum(axis=1))]).astype(np.int32)
        places = pyarrow.array(self._order[np.searchsorted(self._rows, answers.rows[exists])])
        weights = pyarrow.array(answers.weights[exists], pyarrow.float32())
        structs = pyarrow.StructArray.from_arrays(
            [self._ids.take(places), self._labels.take(places), weights], fields=list(REASON)
        )
        return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), structs)


# Files --------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Counts of rows by status and grade, pseudo-labels by class, and the farthest outliers.

    ``grades`` has, by the precision as text, how many rows of each class have that grade.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    grades: dict[str, Counter[str]] = field(default_factory=dict)
    pseudo: Counter[str] = field(default_factory=Counter)
    outliers: list[Outlier] = field(default_factory=list)

    def add(self, table: pyarrow.Table, id_name: str) -> None:
        """Count a part of the table of labels."""
        status = table.column("status")
        self.statuses.update(status.to_pylist())
        graded = table.filter(table.column("grade").is_valid())
        self._count_grades(Counter(_rows_of(graded, "grade", "guess")))
        pseudo = table.filter(compute.equal(status, Status.PSEUDO.text))
        self.pseudo.update(pseudo.column("label").to_pylist())
        outliers = table.filter(compute.equal(status, Status.OUTLIER.text))
        columns = outliers.select([id_name, "guess", "confidence", "variance"])
        self._list(columns.rename_columns(["id", "label", "confidence", "variance"]).to_pylist())

    def _count_grades(self, counts: Mapping[tuple[float, str], int]) -> None:
        for (grade, name), number in counts.items():
            self.grades.setdefault(f"{grade:.6g}", Counter())[name] += number

    def _list(self, outliers: Iterable[Outlier]) -> None:
        farthest = sorted([*self.outliers, *outliers], key=lambda entry: -entry["variance"])
        self.outliers = farthest[:LISTED_OUTLIERS]

    def plain(self) -> dict[str, Any]:
        """Return the counts as plain values for JSON."""
        return {
            "statuses": dict(self.statuses),
            "grades": {grade: dict(counts) for grade, counts in self.grades.items()},
            "pseudo": dict(self.pseudo),
            "outliers": self.outliers,
        }

    @classmethod
    def joined(cls, counts: Iterable[dict[str, Any]]) -> "Tally":
        """Return the sum of plain counts of partitions."""
        tally = cls()
        for part in counts:
            tally.statuses.update(part["statuses"])
            for grade, by_class in part["grades"].items():
                tally.grades.setdefault(grade, Counter()).update(by_class)
            tally.pseudo.update(part["pseudo"])
            tally._list(part["outliers"])
        return tally


def _rows_of(table: pyarrow.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(table.column(name).to_pylist() for name in names), strict=True)


def write_tables(
    parts: Iterable[pyarrow.Table], out: Path, id_name: str, studio: "LabelStudio"
) -> Tally:
    """Write labels.parquet, labels.csv and label_studio.json part by part; return the counts.

    Only one part is in memory at a time.
    """
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
        writer.writerow([spreadsheet_cell(id_name), *COLUMNS])
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


def write_predictions(tables: Iterable[pyarrow.Table], path: Path, id_name: str) -> None:
    """Write tables with the columns of labels.csv as one file: .csv, .parquet or .json."""
    with replacing(path) as draft:
        if path.suffix == ".parquet":
            with parquet.ParquetWriter(draft, schema_of(id_name)) as file:
                for table in tables:
                    file.write_table(table)
        elif path.suffix == ".json":
            rows = [row for table in tables for row in table.to_pylist()]
            draft.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", "utf-8")
        else:
            with draft.open("w", newline="", encoding="utf-8") as text:
                writer = csv.writer(text)
                writer.writerow([spreadsheet_cell(id_name), *COLUMNS])
                for table in tables:
                    writer.writerows(_csv_rows(table, id_name))


def _csv_rows(table: pyarrow.Table, id_name: str) -> Iterator[tuple[str, ...]]:
    texts = _reason_texts(table.column("reasons").combine_chunks())
    rows = _rows_of(table, id_name, *COLUMNS[:-1])
    for (name, *values), reasons in zip(rows, texts, strict=True):
        cells = (
            _decimal(value) if isinstance(value, float) else spreadsheet_cell(value or "")
            for value in values
        )
        yield spreadsheet_cell(name), *cells, reasons


def _decimal(value: float) -> str:
    """Return a number with a decimal point.

    Readers infer the type of a column from its first rows, and would take 1 for an integer.
    """
    text = f"{value:.6g}"
    return text if "." in text or "e" in text else f"{text}.0"


def _reason_texts(column: pyarrow.ListArray) -> Iterator[str]:
    """Yield the reasons of each row as JSON.

    Flat lists of all rows are converted, which is several times faster than nested ones.
    """
    structs = column.values
    offsets = column.offsets.to_pylist()
    ids, labels, weights = (structs.field(name).to_pylist() for name in ("id", "label", "weight"))
    texts = [
        f'{{"id": {_quoted(name)}, "label": {_quoted(label)}, "weight": {weight:.6g}}}'
        for name, label, weight in zip(ids, labels, weights, strict=True)
    ]
    return (f"[{', '.join(texts[start:stop])}]" for start, stop in pairwise(offsets))


@lru_cache(maxsize=100_000)
def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class LabelStudio:
    """Rows as tasks of Label Studio.

    Args:
        images: the folder of the images; None for a table, whose rows are shown by their ids.
        image_url: text to put before the name of an image; None refers to local files.
        version: of the model, as shown beside predictions.
    """

    def __init__(self, images: Path | None, image_url: str | None, version: str) -> None:
        self.kind = "text" if images is None and image_url is None else "image"
        self.version = version
        self.prefix = image_url or ""
        if image_url is None and images is not None:
            self.prefix = f"{LOCAL_FILES}{quote(images.name)}/"

    def interface(self, classes: Sequence[str]) -> str:
        """Return the labelling interface for the tasks."""
        shown = '<Text name="text" value="$text"/>'
        if self.kind == "image":
            shown = '<Image name="image" value="$image"/>'
        choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in classes)
        control = (
            f'<Choices name="{CONTROL}" toName="{self.kind}" choice="single" showInline="true">'
        )
        return f"<View>\n  {shown}\n  {control}\n{choices}\n  </Choices>\n</View>\n"

    def tasks(self, table: pyarrow.Table, id_name: str) -> Iterator[str]:
        """Yield the task of each row of a table of labels."""
        for row in _rows_of(table, id_name, "guess", "confidence", "status"):
            yield self.task(*row)

    def task(self, name: str, guess: str | None, confidence: float, status: str) -> str:
        """Return a task as JSON: an annotation for a label by people, else a prediction.

        Args:
            name: id of the row. guess: its class, by people where the status is "labelled"; None
                gives a task without either.
            confidence: in the guess. status: as in labels.csv.
        """
        shown = name if self.kind == "text" else self.prefix + quote(name)
        task: dict[str, object] = {"data": {self.kind: shown, "id": name, "status": status}}
        if guess is not None:
            choice = {
                "from_name": CONTROL,
                "to_name": self.kind,
                "type": "choices",
                "value": {"choices": [guess]},
            }
            if status == Status.LABELLED.text:
                task["annotations"] = [{"result": [choice]}]
            else:
                score = round(confidence, 6)
                prediction = {"model_version": self.version, "score": score}
                task["predictions"] = [prediction | {"result": [choice]}]
        return json.dumps(task, ensure_ascii=False)


# Files made from the labels -----------------------------------------------------------------------


class DerivedFiles:
    """Files that other verbs made from the labels of a folder: samples, suggestions, reviews.

    ``derived.json`` has the digest of the key of the labels that each was made from. One that was
    made from other labels than the current ones is renamed and never deleted, since people may have
    written answers into it.

    Args:
        folder: of the labels. key: all that the current labels depend on.
    """

    def __init__(self, folder: Path, key: Key) -> None:
        self.folder = folder
        self.digest = key_digest(key)

    def outdated(self, names: Iterable[str], *, unknown: str | None = None) -> list[str]:
        """Return the files that were made from other labels.

        Args:
            names: of the files. unknown: the digest to assume for a file that ``derived.json`` does
                not list, such as one that was renamed by hand; that of the current labels if left
                out.
        """
        digests = self._read()
        assumed = unknown or self.digest
        existing = [name for name in names if (self.folder / name).exists()]
        return [name for name in existing if digests.get(name, assumed) != self.digest]

    def free_names(self, names: Iterable[str]) -> dict[str, str]:
        """Return new names that say what files are, all with the same number."""
        number = next(number for number in count(1) if not self._is_taken(number))
        return {name: _earlier_name(name, number) for name in names}

    def _is_taken(self, number: int) -> bool:
        return any((self.folder / _earlier_name(name, number)).exists() for name in DERIVED)

    def rename(self, new_names: Mapping[str, str]) -> None:
        """Rename files and their entries; entries of files that do not exist are removed."""
        if not new_names and not (self.folder / DIGESTS).exists():
            return
        with self._changing() as digests, writing(self.folder):
            for name, new_name in new_names.items():
                (self.folder / name).rename(self.folder / new_name)
                if name in digests:
                    digests[new_name] = digests.pop(name)
            for name in [name for name in digests if not (self.folder / name).exists()]:
                del digests[name]

    def claim(self, *names: str) -> list[str]:
        """Prepare to write files of the current labels, and return notes on earlier ones.

        Files of these names that were made from other labels are renamed.
        """
        assert set(names) <= set(DERIVED)
        new_names = self.free_names(self.outdated(names))
        if new_names:
            self.rename(new_names)
        if any(self._read().get(name) != self.digest for name in names):
            with self._changing() as digests:
                digests.update(dict.fromkeys(names, self.digest))
        return renaming_notes(new_names)

    @contextmanager
    def _changing(self) -> Iterator[dict[str, str]]:
        """Yield the digests, and write what the caller made of them."""
        with locked(self.folder, DIGESTS, waiting=lambda _: None):
            digests = self._read()
            yield digests
            write_json(self.folder / DIGESTS, digests)

    def adopt(self, name: str) -> None:
        """Let a file belong to the current labels, whichever it was made from."""
        with self._changing() as digests:
            digests[name] = self.digest

    def _read(self) -> dict[str, str]:
        try:
            return read_json(
                self.folder / DIGESTS, dict[str, str], error=DataError, remedy="Delete that file."
            )
        except FileNotFoundError:
            return {}


def _earlier_name(name: str, number: int) -> str:
    path = PurePath(name)
    return f"{path.stem}.{EARLIER}-{number}{path.suffix}"


def renaming_notes(new_names: Mapping[str, str]) -> list[str]:
    """Return a note for each file that :class:`DerivedFiles` renames."""
    return [
        f"{name} was made from labels that have been replaced; it is kept as {new_name}."
        for name, new_name in new_names.items()
    ]


# Their folder -------------------------------------------------------------------------------------


@with_config(RELAXED)
class Finished(TypedDict):
    """The part of ``project.json`` that is read here: the key, and the files that were written."""

    key: Key
    files: dict[str, FileFacts]


def _check_files(finished: Finished) -> None:
    foreign = [name for name in finished["files"] if name not in WRITTEN]
    if foreign:
        raise ValueError(f"files must be what labelling writes; got {foreign[0]!r:.80}")


def files_hash(files: Sequence[Path]) -> str:
    """Return a hash of the names and contents of files, which are read."""
    return joined_mark([path.name for path in files], [file_mark(path) for path in files])


def content_hash(path: Path | None) -> str | None:
    """Return a hash of the content of a file; None if there is none."""
    if path is None or not path.is_file():
        return None
    return file_mark(path).hex()


class OutFolder:
    """The folder to which labels of a key are written.

    Args:
        path: of the folder, which is created if necessary.
        key: everything that the labels depend on, as plain values for JSON.
    """

    def __init__(self, path: Path, key: Key) -> None:
        self.path = path
        self.parts = path / "parts"
        self._shards = Parts(Folder(self.parts), key, remedy=ADVICE)
        self.key = self._shards.key
        self.derived = DerivedFiles(path, self.key)

    def check(self, *, ignoring: str = "") -> bool:
        """Return whether an identical run has finished.

        Args:
            ignoring: an entry of the key that is not known yet, and not compared.

        Raises:
            DataError: the folder holds labels of another key, or files that labelling did not
                write.
        """
        if any((self.path / name).exists() for name in (PARTIAL, COMPLETE)):
            raise DataError(f"{self.path} holds labels that were made with engine=ray. {ADVICE}")
        finished = self._finished()
        key = self._shards.stored_key() if finished is None else finished["key"]
        if key is None:
            foreign = [name for name in WRITTEN if (self.path / name).exists()]
            if foreign:
                raise DataError(
                    f"{self.path} holds {foreign[0]}, which is not listed in the project.json of a "
                    f"finished labelling. {ADVICE}"
                )
            return False
        difference = key_difference(key, self.key, ignoring)
        if difference is not None:
            file = "parts/key.json" if finished is None else "project.json"
            raise DataError(
                f"{self.path} holds labels that were made differently: by {file}, {difference}. "
                f"{ADVICE}"
            )
        return finished is not None

    def begin(self, *, afresh: bool = False) -> None:
        """Prepare for parts; existing ones stay, unless all are to be made ``afresh``."""
        if afresh:
            self.remove_parts()
        self._shards.begin()

    def altered(self) -> list[str]:
        """Return the files that are missing or differ from size and hash in project.json."""
        finished = self._finished()
        return altered(self.path, finished["files"]) if finished else []

    def _finished(self) -> Finished | None:
        path = self.path / "project.json"
        try:
            return read_json(path, Finished, error=DataError, remedy=ADVICE, check=_check_files)
        except FileNotFoundError:
            return None

    def outdated(self, inputs: Iterable[Path]) -> dict[str, str]:
        """Return files that were made from other labels, with new names for them.

        ``inputs``, which these labels were read from, keep their names.
        """
        try:
            finished = self._finished()
            earlier = None if finished is None else key_digest(finished["key"])
        except DataError:  # damaged, and made again
            earlier = "unknown"
        read = {path.resolve() for path in inputs}
        names = [name for name in DERIVED if (self.path / name).resolve() not in read]
        return self.derived.free_names(self.derived.outdated(names, unknown=earlier))

    def rename_outdated(self, inputs: Iterable[Path]) -> list[str]:
        """Rename the files of :meth:`outdated`, and return notes on them."""
        new_names = self.outdated(inputs)
        self.derived.rename(new_names)
        return renaming_notes(new_names)

    def publish(self, kept: Sequence[str] = (), new_names: Mapping[str, str] | None = None) -> None:
        """Replace earlier outputs by those in ``parts``.

        Those in ``kept`` are renamed, and so are files made from earlier labels, to ``new_names``.
        Other files stay.
        """
        self.derived.rename(new_names or {})
        with writing(self.path):
            for path in (self.path / name for name in kept if (self.path / name).exists()):
                path.replace(path.with_name(path.name + CHANGED))
            for name in WRITTEN:
                (self.path / name).unlink(missing_ok=True)
            if any((self.path / name).exists() for name in (PARTIAL, COMPLETE)):  # made on Ray
                shutil.rmtree(self.path / BULK_LABELS, ignore_errors=True)
                for name in (COMPLETE, PARTIAL):
                    (self.path / name).unlink(missing_ok=True)
            for name in reversed(WRITTEN):
                if (self.parts / name).exists():
                    (self.parts / name).replace(self.path / name)
            push(self.path)
        self.remove_parts()

    def has_part(self, number: int) -> bool:
        """Return whether a shard is finished."""
        return _shard(number) in self._shards

    def write_part(self, number: int, table: pyarrow.Table) -> None:
        """Write a shard, which appears under its name only when it is complete."""
        with self._shards.draft(_shard(number)) as draft:
            parquet.write_table(table, draft, write_page_checksum=True)

    def read_part(self, number: int) -> pyarrow.Table:
        """Return a finished shard; raise a DataError if the file is damaged."""
        path = self._shards.path(_shard(number))
        with readable(path, "Parquet", "Delete that file; the same command makes it again."):
            return parquet.read_table(path, partitioning=None, page_checksum_verification=True)

    def remove_parts(self) -> None:
        """Delete all shards."""
        self._shards.remove_all()


def _shard(number: int) -> str:
    return f"{number:05d}.parquet"
