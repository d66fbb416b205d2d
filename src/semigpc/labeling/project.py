"""The folder that ``semigpc label`` writes, opened again: its labels, its data and its model.

    labels.parquet   one row for each row of the data, in their order: id, label, confidence, variance, status, reasons
    project.json     what was labelled, and how; written last, so that a folder which has it is complete

``label`` is the most probable class of every row, also where the status "abstained" or "outlier"
advises against it. Only rows whose embedding contains NaN or infinity have none; project.json lists
them as ``bad_rows``.
"""

import csv
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NotRequired

import numpy as np
import pyarrow
from pyarrow import parquet
from pydantic import StringConstraints, with_config
from typing_extensions import TypedDict

from semigpc.estimator import SemiGPClassifier, Status
from semigpc.estimator.fitting import FitOptions
from semigpc.io.atomic import (
    RELAXED,
    Count,
    FileFacts,
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
from semigpc.labeling.outputs import BULK_LABELS, COLUMNS, COMPLETE, PARTIAL
from semigpc.labeling.scan import sample_rows
from semigpc.labeling.source import Rows, TableSource, open_source

FILE, TABLE = "project.json", "labels.parquet"
VERSION = 2  # of project.json
FITTED = (
    "class_shares",
    "threshold",
    "confidence_scale",
    "outlier_variance",
)  # what fit decides besides the parameters
IN_MEMORY = (
    2**30
)  # bytes of embeddings that are read once and kept; of larger data, rows are read when they are needed
AGAIN = "Give the same semigpc label command again."
REMAKE = "Put it back as it was, or give the same semigpc label command again with --overwrite."

Name = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


@with_config(RELAXED)
class Written(TypedDict):
    """Options that the outputs depend on, and the labels do not."""

    images: PathText | None
    image_url: str | None
    report: bool


@with_config(RELAXED)
class ProjectSettings(TypedDict):
    """``project.json``: ``parameters`` are those of the estimator, ``key`` is all that the labels
    depend on.

    ``fitted`` holds what the fit decided besides, see :func:`fitted_values`. ``written`` holds the
    options that the outputs depend on, and the labels do not.
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
    parameters: dict[str, Any]
    fitted: dict[str, float | list[float]]
    classes: list[str]
    counts: NotRequired[dict[str, Count]]
    written: Written
    key: dict[str, Any]


@with_config(RELAXED)
class Promise(TypedDict):
    """The part of ``promise`` in ``summary.json`` that is used here: how many more labels each
    class without new ones needs.
    """

    needed: NotRequired[dict[str, Count]]


@with_config(RELAXED)
class Summary(TypedDict):
    """The part of ``summary.json`` that is used here."""

    promise: NotRequired[Promise | None]


class Project:
    """A labelled data set.

    Attributes:
        folder: where it is. id_name: name of the ids.
        images: the folder of the images, None for a table.
        ids: by row number. classes: names in the order to show them, numbers by value;
            ``model().classes_`` sorts them as text.
        table: labels.parquet. given: the given labels, by row number. bad: rows that have no
            embedding.
        settings: project.json.
    """

    def __init__(
        self, folder: Path, settings: ProjectSettings, table: pyarrow.Table, images: Path | None
    ) -> None:
        self.folder, self.settings, self.table, self.images = folder, settings, table, images
        self.id_name: str = settings["id_name"]
        self.classes: list[str] = list(settings["classes"])
        self.ids: list[str] = table.column(self.id_name).to_pylist()
        self.bad: frozenset[int] = frozenset(settings["bad_rows"])
        given = Status.LABELLED.text
        rows = enumerate(table.select(["label", "status"]).to_pylist())
        self.given: dict[int, str] = {
            number: row["label"] for number, row in rows if row["status"] == given
        }
        self._embeddings: Floats | None = None

    @classmethod
    def open(cls, folder: Path, *, images: Path | None = None) -> "Project":
        """Read what ``semigpc label`` wrote.

        Args:
            folder: its --out. images: where the images are now, if they were moved or if the data
                were a table.

        Raises:
            DataError: it is no such folder or is not complete, or what it points to is gone.
        """
        settings = read_settings(folder)
        root = images or (Path(settings["images"]) if settings["images"] else None)
        if root is not None and not root.is_dir():
            raise DataError(
                f"The folder of the images is not there: {root}. Put it back, or say where it is now: --images."
            )
        if checked(folder / TABLE).exists() and altered(
            folder, {TABLE: settings["files"].get(TABLE, {})}
        ):
            raise DataError(f"{folder / TABLE} is not as semigpc label wrote it. {AGAIN}")
        try:
            table = parquet.read_table(folder / TABLE, partitioning=None)
            table.validate(full=True)
        except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
            raise DataError(f"{folder / TABLE} cannot be read: {error}. {AGAIN}") from error
        if table.num_rows != settings["rows"] or not {settings["id_name"], *COLUMNS} <= set(
            table.column_names
        ):
            raise DataError(
                f"{folder / TABLE} is not what {folder / FILE} says: it has {table.num_rows} rows and the columns "
                f"{', '.join(table.column_names)}; rows is {settings['rows']} and id_name {settings['id_name']!r:.80}. {REMAKE}"
            )
        project = cls(folder, settings, table, root.resolve() if root else None)
        if {label for row, label in project.given.items() if row not in project.bad} != set(
            project.classes
        ):
            raise DataError(
                f"{folder / FILE} cannot be used: classes must be those of the given labels in {TABLE}; got "
                f"{shown(project.classes)}. {REMAKE}"
            )
        return project

    @cached_property
    def source(self) -> TableSource:
        """Return the data, which are opened when first needed."""
        path = self.folder / self.settings["data"]  # an absolute path stays itself
        if not path.exists():
            raise DataError(
                f"The data that {self.folder} was made from are not there: {path}, by {FILE}. Put them back. Or: {AGAIN}"
            )
        try:
            source = open_source(
                path, self.settings["columns"], follow_links=self.settings["follow_links"]
            )
        except DataError as error:
            raise DataError(
                f"The data of {self.folder / FILE} cannot be opened again: {error} {REMAKE}"
            ) from error
        if source.width != self.settings["width"] or source.rows not in (None, len(self.ids)):
            raise DataError(
                f"{path} has changed since it was labelled: other rows or columns than {self.folder / FILE} says. {AGAIN}"
            )
        return source

    @cached_property
    def needed(self) -> dict[str, int]:
        """Return how many more labels each class needed that got no new label, by summary.json;
        empty if it does not say.
        """
        try:
            summary = read_json(
                self.folder / "summary.json", Summary, error=DataError, remedy=REMAKE
            )
        except FileNotFoundError:
            return {}
        return dict((summary.get("promise") or {}).get("needed") or {})

    def embeddings(self, rows: Rows) -> Floats:
        """Return the embeddings (M, D) of rows in any order; zeros for rows that have none.

        Below IN_MEMORY bytes all of them are read once and kept; above, the row groups that are
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

    def model(self) -> SemiGPClassifier:
        """Return the estimator of the labels: fitted again on the given ones and the sample, with
        what was decided then.
        """
        unlabelled = np.ones(len(self.ids), dtype=bool)
        unlabelled[[*self.bad, *self.given]] = False
        labelled = np.array([row for row in self.given if row not in self.bad], dtype=np.int64)
        sample = sample_rows(unlabelled, self.settings["sample"], self.settings["seed"])
        rows = np.concatenate([labelled, sample])
        labels = np.array(
            [*(self.given[row] for row in labelled.tolist()), *[None] * len(sample)], dtype=object
        )
        embeddings = self.embeddings(rows)
        try:
            model = SemiGPClassifier(**self.settings["parameters"]).fit(
                embeddings, labels, rows=rows, transduce=False
            )
        except (ValueError, RuntimeError, OverflowError) as error:
            raise DataError(
                f"The model of {self.folder / FILE} cannot be fitted again with its parameters: {error} {REMAKE}"
            ) from error
        for name, value in self.settings["fitted"].items():
            setattr(model, f"{name}_", np.array(value) if isinstance(value, list) else value)
        return model

    def image(self, row: int) -> Path | None:
        """Return the file of a row, if the data are images and it exists; outside of ``images``
        only by an allowed link.
        """
        return (
            None
            if self.images is None
            else image_path(self.images, self.ids[row], self.settings["follow_links"])
        )


def fitted_values(model: SemiGPClassifier) -> dict[str, Any]:
    """Return what ``fit`` decided and no parameter sets, as JSON holds it: a session uses these and
    decides nothing anew.
    """
    return {
        name: np.asarray(getattr(model, f"{name}_"), dtype=np.float64).tolist() for name in FITTED
    }


def read_settings(folder: Path) -> ProjectSettings:
    """Return project.json of a folder that is complete."""
    file = folder / FILE
    if (folder / COMPLETE).exists():
        raise DataError(
            f"{folder} was labelled by --engine ray: its labels are the partitions in {folder / BULK_LABELS}, which are not "
            "opened as a whole. Label a part of the data without --engine ray to review, audit or extend it."
        )
    if (folder / PARTIAL).exists():
        raise DataError(f"{folder} is not complete: labelling on Ray was stopped. {AGAIN}")
    if not file.exists():
        if not folder.is_dir():
            raise DataError(f"There is no folder {folder}. It is what semigpc label writes: --out.")
        if (folder / "parts").is_dir() or (folder / TABLE).exists():
            raise DataError(f"{folder} is not complete: labelling was stopped. {AGAIN}")
        raise DataError(
            f"{folder} has no {FILE}, so it was not written by semigpc label. Check the path."
        )
    return read_json(file, ProjectSettings, error=DataError, remedy=REMAKE, check=_check_settings)


def _check_settings(settings: ProjectSettings) -> None:
    if settings["version"] != VERSION:
        raise ValueError(
            f"version must be {VERSION}, or it was written by another version of semigpc; got {settings['version']}"
        )
    bad = settings["bad_rows"]
    if any(row >= settings["rows"] for row in bad) or len(set(bad)) < len(bad):
        raise ValueError(
            f"bad_rows must be different and below {settings['rows']}, the rows; got {shown(bad)}"
        )
    if not 0 < len(settings["classes"]) == len(set(settings["classes"])):
        raise ValueError(f"classes must be different names; got {shown(settings['classes'])}")
    known = SemiGPClassifier().get_params()
    if known.keys() != settings["parameters"].keys():
        odd = min(known.keys() ^ settings["parameters"].keys())
        raise ValueError(f"parameters.{odd} is {'missing' if odd in known else 'not a parameter'}")
    fitted = settings["fitted"]
    if fitted.keys() != set(FITTED):
        raise ValueError(
            f"fitted must have the keys {', '.join(FITTED)}; got {shown(sorted(fitted))}"
        )
    for name in ("class_shares", "threshold"):
        values = fitted[name]
        if (
            not isinstance(values, list)
            or len(values) != len(settings["classes"])
            or min(values) < 0
        ):
            raise ValueError(
                f"fitted.{name} must be one number, 0 or more, for each class; got {shown(values)}"
            )
    if any(isinstance(fitted[name], list) for name in ("confidence_scale", "outlier_variance")):
        raise ValueError(
            "fitted.confidence_scale and fitted.outlier_variance must be numbers; got a list"
        )
    try:
        FitOptions.of(settings["parameters"])
    except (ValueError, OverflowError) as error:
        raise ValueError(f"parameters: {str(error).rstrip('.')}") from error


def write_hand_table(
    path: Path,
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    blank: str,
    overwrite: bool = False,
) -> None:
    """Write a CSV file with an empty column for people to fill in; it is not replaced once somebody
    has.

    Args:
        path: of the .csv file. header, rows: its content.
        blank: the column that people fill in. overwrite: replace a table that somebody has filled
            in.

    Raises:
        DataError: somebody has written into the existing file. WriteError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is a folder or a pipe, and no table. Move it away.")
    filled = 0 if overwrite or not path.exists() else _filled_rows(path, blank)
    if filled:
        raise DataError(
            f"{path} is there already, and {filled} rows of it have something in the column {blank!r}. Use them first, move "
            "the file away, or give --overwrite to replace it."
        )
    cells = (
        [spreadsheet_cell(value) if isinstance(value, str) else value for value in row]
        for row in [header, *rows]
    )
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            cells
        )  # with its own line ends: with others it does not quote a bare CR


def own_names(names: Sequence[str], id_name: str) -> list[str]:
    """Return names of columns, changed where the ids of the data have the same name."""
    return [f"semigpc_{name}" if name == id_name else name for name in names]


def _filled_rows(path: Path, blank: str) -> int:
    """Return how many rows somebody has filled in: all of them if the file cannot be read as the
    table that was written.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if blank not in (reader.fieldnames or ()):
                return 1 + sum(1 for _ in reader)
            return sum(bool((row[blank] or "").strip()) for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error):
        return 1
