"""The folder that ``semigpc label`` writes, opened again: its labels, its data and its model.

    labels.parquet   one row per row of the data, in their order: id, label, guess, confidence,
                     variance, status, reasons
    project.json     what was labelled, and how; written last, so a folder that has it is complete

``guess`` is the class that every row is predicted to have, or its given label. ``label`` is the
same where it was given out, and empty where the status is "abstained" or "outlier". Only rows whose
embedding contains NaN or infinity have no guess; project.json lists them as ``bad_rows``.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, parquet
from pydantic import StringConstraints, with_config
from typing_extensions import TypedDict

from semigpc.estimator import SemiGPClassifier, Status
from semigpc.estimator.fitting import FitOptions
from semigpc.io.atomic import (
    RELAXED,
    Count,
    FileFacts,
    JsonObject,
    PathText,
    Positive,
    altered,
    read_json,
    replacing,
    shown,
)
from semigpc.io.errors import DataError
from semigpc.io.paths import checked, image_path
from semigpc.io.text import spreadsheet_cell
from semigpc.labeling.columns import ColumnOptions, Floats
from semigpc.labeling.journal import NAME as REVIEWS
from semigpc.labeling.journal import Answer, History, ReviewJournal, first_open, random_order
from semigpc.labeling.outputs import (
    BULK_LABELS,
    COLUMNS,
    COMPLETE,
    DATA,
    PARTIAL,
    DerivedFiles,
    files_hash,
)
from semigpc.labeling.scan import sample_rows
from semigpc.labeling.source import Rows, TableSource, open_source

FILE = "project.json"
TABLE = "labels.parquet"
VERSION = 5  # of project.json
# What fit decides besides the parameters: one number per class, and plain numbers.
FITTED_BY_CLASS = ("class_shares", "threshold")
FITTED_NUMBERS = ("confidence_scale", "outlier_variance")
FITTED = (*FITTED_BY_CLASS, *FITTED_NUMBERS)
# Bytes of embeddings that are read once and kept; of larger data, rows are read when needed.
IN_MEMORY = 2**30
AGAIN = "Give the same semigpc label command again."
REMAKE = "Restore it, or give the same semigpc label command again, overwriting the folder."

Name = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


@with_config(RELAXED)
class Written(TypedDict):
    """Options that the outputs depend on, and the labels do not."""

    images: PathText | None
    image_url: str | None
    report: bool


@with_config(RELAXED)
class ProjectSettings(TypedDict):
    """``project.json``.

    ``options`` are parameters of the estimator that the user chose, for a fit to other labels;
    ``parameters`` are all of them as fitted, ``fitted`` is what the fit decided besides (see
    :func:`fitted_values`), and ``grades`` has the thresholds of each class by the precision that
    they guarantee: all three are empty before there are labels of two classes. ``chosen`` are rows
    with a given label that semigpc chose to be labelled, and ``key`` is all that the labels depend
    on.
    """

    version: int
    data: PathText
    labels: PathText | None
    columns: ColumnOptions
    files: dict[str, FileFacts]
    follow_links: bool
    id_name: Name
    images: PathText | None
    rows: Positive
    width: Positive
    bad_rows: list[Count]
    sample: Count
    seed: Count
    chosen: list[Count]
    options: JsonObject
    parameters: JsonObject
    fitted: dict[str, float | list[float]]
    grades: dict[str, list[float]]
    classes: list[str]
    counts: NotRequired[dict[str, Count]]
    written: Written
    key: JsonObject


@with_config(RELAXED)
class _PromiseNeeds(TypedDict):
    """The part of ``PromiseFacts`` that is read back."""

    needed: NotRequired[dict[str, Count]]


@with_config(RELAXED)
class _SummaryNeeds(TypedDict):
    """The part of ``LabelingSummary`` that is read back."""

    promise: NotRequired[_PromiseNeeds | None]


class KnownLabels(NamedTuple):
    """Labels by people, from tables and from the page.

    Attributes:
        rows: (n,) sorted. labels: (n,) objects.
        drawn: (n,) whether the row is one of a random sample of its class.
    """

    rows: Rows
    labels: NDArray[np.object_]
    drawn: NDArray[np.bool_]


class Project:
    """A labelled data set.

    Attributes:
        folder: where it is. id_name: name of the ids.
        images: the folder of the images, None for a table.
        ids: by row number. classes: names in the order to show them, numbers by value;
            ``model().classes_`` sorts them as text.
        table: labels.parquet. given: the given labels, by row number.
        bad: rows that have no embedding. settings: project.json.
        chosen: rows with a given label that semigpc chose to be labelled.
        notes: messages for the user.
    """

    def __init__(
        self, folder: Path, settings: ProjectSettings, table: pyarrow.Table, images: Path | None
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.table = table
        self.images = images
        self.id_name: str = settings["id_name"]
        self.classes: list[str] = list(settings["classes"])
        self.ids: list[str] = table.column(self.id_name).to_pylist()
        self.bad: frozenset[int] = frozenset(settings["bad_rows"])
        labels = table.column("label").to_pylist()
        is_given = compute.equal(table.column("status"), Status.LABELLED.text).fill_null(False)
        self.given: dict[int, str] = {
            row: labels[row] for row in np.flatnonzero(np.asarray(is_given)).tolist()
        }
        self.chosen: frozenset[int] = frozenset(settings["chosen"])
        self.notes: list[str] = []
        self._embeddings: Floats | None = None

    @classmethod
    def open(
        cls, folder: Path, *, images: Path | None = None, images_needed: bool = True
    ) -> "Project":
        """Read what ``semigpc label`` wrote.

        Args:
            folder: that it wrote.
            images: where the images are now, if they were moved or if the data were a table.
            images_needed: raise an error if their folder is gone.

        Raises:
            DataError: it is no such folder or is not complete, or what it points to is gone.
        """
        settings = read_settings(folder)
        root = images or (Path(settings["images"]) if settings["images"] else None)
        if root is not None and not root.is_dir() and not images_needed:
            root = None
        if root is not None and not root.is_dir():
            raise DataError(
                f"The folder of images does not exist: {root}. Restore it, or name its new place "
                "with images=..."
            )
        table = _read_table(folder, settings)
        project = cls(folder, settings, table, root.resolve() if root else None)
        usable = {label for row, label in project.given.items() if row not in project.bad}
        if usable != set(project.classes):
            raise DataError(
                f"{folder / FILE} cannot be used: classes must be those of the given labels in "
                f"{TABLE}; got {shown(project.classes)}. {REMAKE}"
            )
        return project

    @cached_property
    def source(self) -> TableSource:
        """Return the data, which are opened when first needed."""
        settings = self.settings
        path = self.folder / settings["data"]  # an absolute path stays itself
        if not path.exists():
            raise DataError(
                f"The data of {self.folder / FILE} do not exist: {path}. Restore them. Or: {AGAIN}"
            )
        try:
            source = open_source(path, settings["columns"], follow_links=settings["follow_links"])
        except DataError as error:
            raise DataError(
                f"The data of {self.folder / FILE} cannot be opened again: {error} {REMAKE}"
            ) from error
        if files_hash(source.files) != settings["key"].get(DATA):
            raise DataError(
                f"{path} has changed since it was labelled: its content differs from that of "
                f"{self.folder / FILE}. {AGAIN}"
            )
        return source

    @cached_property
    def needed(self) -> dict[str, int]:
        """Return how many more labels each class without new ones needs, by summary.json."""
        path = self.folder / "summary.json"
        try:
            summary = read_json(path, _SummaryNeeds, error=DataError, remedy=REMAKE)
        except FileNotFoundError:
            return {}
        return dict((summary.get("promise") or {}).get("needed") or {})

    def claim(self, *names: str) -> None:
        """Prepare to write files made from these labels; rename those made from earlier ones."""
        self.notes += DerivedFiles(self.folder, self.settings["key"]).claim(*names)

    def check_current(self, name: str, remedy: str) -> None:
        """Raise a DataError if a file was made from other labels than these."""
        if DerivedFiles(self.folder, self.settings["key"]).outdated([name]):
            raise DataError(
                f"{self.folder / name} was made from labels that have been replaced. {remedy}"
            )

    def embeddings(self, rows: Rows) -> Floats:
        """Return the embeddings (M, D) of rows in any order; zeros for bad rows.

        Up to IN_MEMORY bytes all of them are read once and kept; beyond, the row groups that are
        needed are read each time.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self.ids)):
            raise IndexError(
                f"rows must be in 0 to {len(self.ids) - 1}; got {rows.min()} to {rows.max()}."
            )
        if self._embeddings is None and 4 * len(self.ids) * self.settings["width"] <= IN_MEMORY:
            self._embeddings = self.source.take(np.arange(len(self.ids)))
        embeddings = self.source.take(rows) if self._embeddings is None else self._embeddings[rows]
        embeddings[~np.isfinite(embeddings).all(axis=1)] = 0.0
        return embeddings

    # Labels -------------------------------------------------------------------------------------

    def history(self) -> History:
        """Return the answers in ``reviews.jsonl``, which are none if there is no such file.

        Raises:
            DataError: it does not fit the data, or was written for labels that were replaced.
        """
        history = History({name: row for row, name in enumerate(self.ids)})
        if (self.folder / REVIEWS).exists():
            self.check_current(REVIEWS, "Move it away, or restore the folder that it belongs to.")
            for entry in ReviewJournal(self.folder / REVIEWS, read_only=True).entries:
                history.apply(entry)
        return history

    def known(self, answers: Mapping[int, Answer] | None = None) -> KnownLabels:
        """Return the labels that hold: those of the tables, and over them the answers on the page.

        An answer counts as drawn if every row that comes before its own in :func:`random_order` is
        answered or labelled too: the first rows of a random order are a random sample, whatever
        each of them was shown for.

        Args:
            answers: by row; those of :meth:`history` if left out.
        """
        answers = self.history().answers if answers is None else answers
        rank = random_order(len(self.ids))
        is_open = np.ones(len(self.ids), dtype=bool)
        is_open[[*answers, *self.given, *self.bad]] = False
        first = first_open(rank, is_open)
        labels = dict(self.given)
        drawn = {row: row not in self.chosen for row in labels}
        for row, answer in answers.items():
            if answer.label is not None:
                labels[row] = answer.label
                drawn[row] = drawn.get(row, False) or int(rank[row]) < first
        rows = sorted(row for row in labels if row not in self.bad)
        return KnownLabels(
            np.array(rows, np.int64),
            np.array([labels[row] for row in rows], dtype=object),
            np.array([drawn[row] for row in rows], dtype=bool),
        )

    # Models -------------------------------------------------------------------------------------

    def model(self) -> SemiGPClassifier:
        """Return the estimator, fitted again on the given labels and the sample.

        What the first fit decided is kept, if there was one.

        Raises:
            DataError: there are labels of fewer than two classes.
        """
        if not self.settings["fitted"]:
            return self.fit(self.known({}))
        try:
            model = self._fitted(self.settings["parameters"], self.known({}))
        except (ValueError, RuntimeError, OverflowError) as error:
            raise DataError(
                f"The parameters of {self.folder / FILE} cannot be fitted again: {error} {REMAKE}"
            ) from error
        for name, value in self.settings["fitted"].items():
            setattr(model, f"{name}_", np.array(value) if isinstance(value, list) else value)
        grades = {float(each): np.array(at) for each, at in self.settings["grades"].items()}
        model.promise_ = model.promise_._replace(thresholds=model.threshold_, grades=grades)
        return model

    def fit(self, known: KnownLabels) -> SemiGPClassifier:
        """Return a new estimator, fitted on these labels and the sample with the user's options.

        Raises:
            DataError: they are of fewer than two classes.
        """
        if len(set(known.labels.tolist())) < 2:
            raise DataError(
                f"{self.folder} has no labels of two classes yet. Label some rows on its page."
            )
        return self._fitted(self.settings["options"], known)

    def taught(self) -> SemiGPClassifier:
        """Return the estimator that has learned the given labels and all answers on the page."""
        answers = self.history().answers
        return self.fit(self.known(answers)) if answers else self.model()

    def _fitted(self, parameters: JsonObject, known: KnownLabels) -> SemiGPClassifier:
        unlabelled = np.ones(len(self.ids), dtype=bool)
        unlabelled[[*self.bad, *known.rows.tolist()]] = False
        sample = sample_rows(unlabelled, self.settings["sample"], self.settings["seed"])
        rows = np.concatenate([known.rows, sample])
        labels = np.concatenate([known.labels, np.full(len(sample), None, object)])
        drawn = np.ones(len(rows), dtype=bool)
        drawn[: len(known.rows)] = known.drawn
        model = SemiGPClassifier(**parameters)
        model.fit(self.embeddings(rows), labels, rows=rows, drawn=drawn, transduce=False)
        return model

    def image(self, row: int) -> Path | None:
        """Return the image file of a row; None if there is none, see ``image_path``."""
        if self.images is None:
            return None
        return image_path(self.images, self.ids[row], self.settings["follow_links"])


def _read_table(folder: Path, settings: ProjectSettings) -> pyarrow.Table:
    """Return labels.parquet after checking that it is what project.json describes."""
    path = folder / TABLE
    recorded: Mapping[str, object] = settings["files"].get(TABLE, {})
    if checked(path).exists() and altered(folder, {TABLE: recorded}):
        raise DataError(f"{path} was changed since semigpc label wrote it. {AGAIN}")
    try:
        table = parquet.read_table(path, partitioning=None)
        table.validate(full=True)
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}. {AGAIN}") from error
    has_columns = {settings["id_name"], *COLUMNS} <= set(table.column_names)
    if table.num_rows != settings["rows"] or not has_columns:
        raise DataError(
            f"{path} has {table.num_rows} rows and the columns {', '.join(table.column_names)}, "
            f"but {folder / FILE} has rows {settings['rows']} and id_name "
            f"{settings['id_name']!r:.80}. {REMAKE}"
        )
    return table


def fitted_values(model: SemiGPClassifier) -> dict[str, float | list[float]]:
    """Return what ``fit`` decided and no parameter sets, as JSON holds it."""
    return {name: np.asarray(getattr(model, f"{name}_"), np.float64).tolist() for name in FITTED}


def read_settings(folder: Path) -> ProjectSettings:
    """Return project.json of a folder that is complete."""
    file = folder / FILE
    if (folder / COMPLETE).exists():
        raise DataError(
            f"{folder} was labelled on Ray: its labels are the partitions in "
            f"{folder / BULK_LABELS}, which are not opened as a whole. Label a part of the data "
            "without Ray to review, audit or extend it."
        )
    if (folder / PARTIAL).exists():
        raise DataError(f"{folder} is not complete: labelling on Ray was stopped. {AGAIN}")
    if not file.exists():
        if not folder.is_dir():
            raise DataError(f"There is no folder {folder}. Give the folder semigpc label wrote.")
        if (folder / "parts").is_dir() or (folder / TABLE).exists():
            raise DataError(f"{folder} is not complete: labelling was stopped. {AGAIN}")
        raise DataError(
            f"{folder} has no {FILE}, so semigpc label did not write it. Check the path."
        )
    return read_json(file, ProjectSettings, error=DataError, remedy=REMAKE, check=_check_settings)


def _check_settings(settings: ProjectSettings) -> None:
    if settings["version"] != VERSION:
        raise ValueError(
            f"version must be {VERSION}, unless another version of semigpc wrote it; got "
            f"{settings['version']}"
        )
    bad = settings["bad_rows"]
    rows = settings["rows"]
    if any(row >= rows for row in bad) or len(set(bad)) < len(bad):
        raise ValueError(f"bad_rows must be different and below {rows}, the rows; got {shown(bad)}")
    classes = settings["classes"]
    if len(classes) != len(set(classes)):
        raise ValueError(f"classes must be different names; got {shown(classes)}")
    known = SemiGPClassifier().get_params()
    odd_options = settings["options"].keys() - known.keys()
    if odd_options:
        raise ValueError(f"options.{min(odd_options)} is not a parameter")
    if not settings["fitted"]:  # nothing was fitted yet
        if settings["parameters"] or settings["grades"]:
            raise ValueError("parameters and grades must be empty where fitted is")
        return
    if known.keys() != settings["parameters"].keys():
        odd = min(known.keys() ^ settings["parameters"].keys())
        raise ValueError(f"parameters.{odd} is {'missing' if odd in known else 'not a parameter'}")
    _check_fitted(settings["fitted"], len(classes))
    _check_grades(settings["grades"], len(classes))
    try:
        FitOptions.of(settings["parameters"])
    except (ValueError, OverflowError) as error:
        raise ValueError(f"parameters: {str(error).rstrip('.')}") from error


def _check_fitted(fitted: dict[str, float | list[float]], classes: int) -> None:
    if fitted.keys() != set(FITTED):
        keys = ", ".join(FITTED)
        raise ValueError(f"fitted must have the keys {keys}; got {shown(sorted(fitted))}")
    for name in FITTED_BY_CLASS:
        values = fitted[name]
        if not isinstance(values, list) or len(values) != classes or min(values) < 0:
            raise ValueError(
                f"fitted.{name} must be one number, 0 or more, for each class; got {shown(values)}"
            )
    if any(isinstance(fitted[name], list) for name in FITTED_NUMBERS):
        names = " and ".join(f"fitted.{name}" for name in FITTED_NUMBERS)
        raise ValueError(f"{names} must be numbers; got a list")


def _check_grades(grades: dict[str, list[float]], classes: int) -> None:
    for precision, thresholds in grades.items():
        if not is_share(precision) or len(thresholds) != classes or min(thresholds) < 0:
            raise ValueError(
                "grades must have one number, 0 or more, for each class by precisions from 0 to 1; "
                f"got {shown({precision: thresholds})}"
            )


def is_share(text: str) -> bool:
    """Return whether a text is a number from 0 to 1."""
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


# Tables for people --------------------------------------------------------------------------------


def write_hand_table(
    path: Path,
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    blank: str,
    overwrite: bool = False,
) -> None:
    """Write a CSV file with an empty column for people to fill in.

    Args:
        path: of the .csv file. header, rows: its content.
        blank: the column that people fill in. overwrite: replace a table that was filled in.

    Raises:
        DataError: the existing file was filled in. WriteError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is a folder or a pipe, not a table. Move it away.")
    filled = 0 if overwrite or not path.exists() else _filled_rows(path, blank)
    if filled:
        raise DataError(
            f"{path} exists, and {filled} of its rows are filled in (column {blank!r}). Use them "
            "first, move the file away, or replace it with overwrite=True."
        )
    cells = (
        [spreadsheet_cell(value) if isinstance(value, str) else value for value in row]
        for row in [header, *rows]
    )
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        # With the default line ends: with others, csv does not quote a bare CR.
        csv.writer(file).writerows(cells)


def own_names(names: Sequence[str], id_name: str) -> list[str]:
    """Return names of columns, changed where the ids of the data have the same name."""
    return [f"semigpc_{name}" if name == id_name else name for name in names]


def _filled_rows(path: Path, blank: str) -> int:
    """Return how many rows were filled in; all of them if the file has lost that column."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if blank not in (reader.fieldnames or ()):
                return 1 + sum(1 for _ in reader)
            return sum(bool((row[blank] or "").strip()) for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error):
        return 1
