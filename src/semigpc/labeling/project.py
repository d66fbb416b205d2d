"""The folder that ``semigpc label`` writes, opened again: its labels, its data and its model.

    labels.parquet   one row for each row of the data, in their order: id, label, confidence, variance, status, reasons
    project.json     what was labelled, and how; written last, so that a folder which has it is complete

``label`` is the most probable class of every row, also where the status "abstained" or "outlier" says not to rely on it. Only a
row whose embedding is no number has none; those are listed as ``bad_rows`` in project.json.
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import parquet
from pydantic import StringConstraints, with_config
from typing_extensions import TypedDict

from semigpc.data.dataset import DataError
from semigpc.data.paths import checked
from semigpc.estimator import SemiGPClassifier
from semigpc.estimator.fitting import FitOptions
from semigpc.files import EXACT, RELAXED, Count, FileFacts, PathText, Positive, altered, read_json, replacing, shown
from semigpc.labeling.columns import ColumnOptions, Floats
from semigpc.labeling.outputs import BULK_LABELS, COMPLETE, PARTIAL
from semigpc.labeling.scan import sample_rows
from semigpc.labeling.source import TableSource, open_source
from semigpc.text import spreadsheet_cell

FILE, TABLE = "project.json", "labels.parquet"
VERSION = 1
HELD = (
    2**30
)  # bytes of embeddings that are kept in memory, so that any rows are at hand; of more only what is asked for is read
AGAIN = "Give the same semigpc label command again."
REMAKE = "Put it back as it was, or give the same semigpc label command again with --overwrite."
Rows = NDArray[np.int64]
Name = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


@with_config(EXACT)
class SavedColumns(TypedDict):
    """Those of the data that were read, as :class:`semigpc.labeling.columns.ColumnOptions` has them."""

    id: Name | None
    features: Annotated[str, StringConstraints(max_length=100_000)] | None  # may name many columns
    label: Name | None


@with_config(EXACT)
class SavedOutputs(TypedDict):
    """What the outputs depend on besides the labels."""

    images: PathText | None
    image_url: str | None
    report: bool


@with_config(RELAXED)
class ProjectSettings(TypedDict):
    """``project.json``: ``parameters`` make the estimator again, ``key`` is what the labels depend on."""

    version: int
    data: PathText
    labels: PathText | None
    columns: SavedColumns
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
    classes: list[str]
    written: SavedOutputs
    key: dict[str, Any]


class Project:
    """A labelled data set.

    Attributes:
        folder: where it is. id_name: what ids are called.
        images: the folder of the images, None for a table.
        ids: by row number. classes: names in the order to show them, numbers by value; ``model().classes_`` sorts them as text.
        table: labels.parquet. given: the label that was given, by row number. bad: rows that have no embedding.
        settings: project.json.
    """

    def __init__(self, folder: Path, settings: ProjectSettings, table: pyarrow.Table, images: Path | None) -> None:
        self.folder, self.settings, self.table, self.images = folder, settings, table, images
        self.id_name: str = settings["id_name"]
        self.classes: list[str] = list(settings["classes"])
        self.ids: list[str] = table.column(self.id_name).to_pylist()
        self.bad: frozenset[int] = frozenset(settings["bad_rows"])
        status = np.asarray(table.column("status").to_pylist(), dtype=object)
        labels = table.column("label").to_pylist()
        self.given: dict[int, str] = {row: labels[row] for row in np.flatnonzero(status == "labelled").tolist()}
        self._source: TableSource | None = None
        self._held: Floats | None = None

    @classmethod
    def open(cls, folder: Path, *, images: Path | None = None) -> "Project":
        """Read what ``semigpc label`` wrote.

        Args:
            folder: its --out. images: where the images are now, if they were moved or if the data were a table.

        Raises:
            DataError: it is no such folder or is not complete, or what it points to is gone.
        """
        settings = read_settings(folder)
        root = images or (Path(settings["images"]) if settings["images"] else None)
        if root is not None and not root.is_dir():
            raise DataError(f"The folder of the images is not there: {root}. Put it back, or say where it is now: --images.")
        if checked(folder / TABLE).exists() and altered(folder, {TABLE: settings["files"].get(TABLE, {})}):
            raise DataError(f"{folder / TABLE} is not as semigpc label wrote it. {AGAIN}")
        try:
            table = parquet.read_table(checked(folder / TABLE), partitioning=None)
            table.validate(full=True)
        except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
            raise DataError(f"{folder / TABLE} cannot be read: {error}. {AGAIN}") from error
        columns = {settings["id_name"], "label", "confidence", "variance", "status", "reasons"}
        if table.num_rows != settings["rows"] or not columns <= set(table.column_names):
            raise DataError(
                f"{folder / TABLE} is not what {folder / FILE} says: it has {table.num_rows} rows and the columns "
                f"{', '.join(table.column_names)}; rows is {settings['rows']} and id_name {settings['id_name']!r:.80}. {REMAKE}"
            )
        project = cls(folder, settings, table, root.resolve() if root else None)
        named = {label for row, label in project.given.items() if row not in project.bad}
        if named != set(project.classes):
            raise DataError(
                f"{folder / FILE} cannot be used: classes must be those of the given labels in {TABLE}; got "
                f"{shown(project.classes)}. {REMAKE}"
            )
        return project

    @property
    def follows_links(self) -> bool:
        """Whether links that lead out of the data were permitted when they were labelled."""
        return self.settings["follow_links"]

    @property
    def source(self) -> TableSource:
        """The data; opened when first asked for."""
        if self._source is None:
            path = self.folder / self.settings["data"]  # an absolute path stays itself
            if not path.exists():
                raise DataError(
                    f"The data that {self.folder} was made from are not there: {path}, by {FILE}. Put them back. Or: {AGAIN}"
                )
            try:
                self._source = open_source(path, ColumnOptions(**self.settings["columns"]), follow_links=self.follows_links)
            except DataError as error:
                raise DataError(f"The data of {self.folder / FILE} cannot be opened again: {error} {REMAKE}") from error
            if self._source.width != self.settings["width"] or self._source.rows not in (None, len(self.ids)):
                raise DataError(
                    f"{path} has changed since it was labelled: other rows or columns than {self.folder / FILE} says. {AGAIN}"
                )
        return self._source

    def embeddings(self, rows: Rows) -> Floats:
        """Embeddings (M, D) of rows in any order; zeros for rows that have none.

        Below 1 GB all of them are read once and kept; above, only the row groups that are asked for, each time.
        """
        wanted = np.asarray(rows, dtype=np.int64)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < len(self.ids)):
            raise IndexError(f"rows must be in 0 to {len(self.ids) - 1}; got {wanted.min()} to {wanted.max()}.")
        if self._held is None and 4 * len(self.ids) * self.settings["width"] <= HELD:
            self._held = self.source.take(np.arange(len(self.ids)))
        found = self.source.take(wanted) if self._held is None else self._held[wanted]
        found[~np.isfinite(found).all(axis=1)] = 0.0
        return found

    def model(self) -> SemiGPClassifier:
        """The estimator of the labels, fitted again on the given ones and the same sample of the others, without tuning."""
        good = np.ones(len(self.ids), dtype=bool)
        good[list(self.bad)] = False
        labelled = np.array([row for row in self.given if good[row]], dtype=np.int64)
        good[labelled] = False
        sample = sample_rows(good, self.settings["sample"], self.settings["seed"])
        rows = np.concatenate([labelled, sample])
        labels = np.array([*(self.given[row] for row in labelled.tolist()), *[None] * len(sample)], dtype=object)
        embeddings = self.embeddings(rows)
        try:
            return SemiGPClassifier(**self.settings["parameters"]).fit(embeddings, labels, rows=rows)
        except (ValueError, RuntimeError, OverflowError) as error:
            raise DataError(
                f"The model of {self.folder / FILE} cannot be fitted again with its parameters: {error} {REMAKE}"
            ) from error

    def image(self, row: int) -> Path | None:
        """The file of a row, if the data are images and it is there; one outside of ``images`` only by a permitted link."""
        if self.images is None:
            return None
        try:
            name = PurePosixPath(self.ids[row])
            path = (self.images / name).resolve()
            inside = path.is_relative_to(self.images) or (
                self.follows_links and not name.is_absolute() and ".." not in name.parts
            )
            return path if inside and path.is_file() else None
        except (OSError, ValueError):  # no name that a file could have
            return None


def read_settings(folder: Path) -> ProjectSettings:
    """project.json of a folder that is complete."""
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
        raise DataError(f"{folder} has no {FILE}, so it was not written by semigpc label. Check the path.")
    return read_json(file, ProjectSettings, error=DataError, remedy=REMAKE, check=_check)


def _check(settings: ProjectSettings) -> None:
    if settings["version"] != VERSION:
        raise ValueError(
            f"version must be {VERSION}, or it was written by another version of semigpc; got {settings['version']}"
        )
    outside = [row for row in settings["bad_rows"] if row >= settings["rows"]]
    if outside or len(set(settings["bad_rows"])) < len(settings["bad_rows"]):
        raise ValueError(
            f"bad_rows must be different and below {settings['rows']}, the rows; got {shown(settings['bad_rows'])}"
        )
    if not 0 < len(settings["classes"]) == len(set(settings["classes"])):
        raise ValueError(f"classes must be different names; got {shown(settings['classes'])}")
    known = SemiGPClassifier().get_params()
    if known.keys() != settings["parameters"].keys():
        odd = min(known.keys() ^ settings["parameters"].keys())
        raise ValueError(f"parameters.{odd} is {'missing' if odd in known else 'not a parameter'}")
    try:
        FitOptions.of(settings["parameters"])
    except (ValueError, OverflowError) as error:
        raise ValueError(f"parameters: {str(error).rstrip('.')}") from error


def write_hand_table(
    path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]], *, blank: str, overwrite: bool = False
) -> None:
    """Write a table that has its name only when it is complete.

    Args:
        path: of the .csv file. header, rows: what it holds.
        blank: the column that people fill in.
        overwrite: replace a table in which somebody has written.

    Raises:
        DataError: somebody has written into the file that is there. WriteError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is a folder or a pipe, and no table. Move it away.")
    written = 0 if overwrite or not path.exists() else _written(path, blank)
    if written:
        raise DataError(
            f"{path} is there already, and {written} rows of it have something in the column {blank!r}. Use them first, move "
            "the file away, or give --overwrite to replace it."
        )
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(map(_cells, [header, *rows]))  # its own line ends: with others it does not quote a bare CR


def _cells(row: Sequence[Any]) -> list[Any]:
    return [spreadsheet_cell(value) if isinstance(value, str) else value for value in row]


def own_names(names: Sequence[str], id_name: str) -> list[str]:
    """Names of columns, changed where the data call their ids the same."""
    return [f"semigpc_{name}" if name == id_name else name for name in names]


def _written(path: Path, blank: str) -> int:
    """Rows in which somebody has written; a file that cannot be told is all theirs."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if blank not in (reader.fieldnames or ()):
                return 1 + sum(1 for _ in reader)
            return sum(bool((row[blank] or "").strip()) for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error):
        return 1
