"""The inputs of labelling: a table, or images that are embedded first, and the labels that were
given for some rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from semigpc.io.errors import DataError, ImageError
from semigpc.io.paths import checked, is_image_name, unusable, walk
from semigpc.io.tables import SUFFIXES, as_label, is_table, path_below, read_pairs
from semigpc.io.text import listed
from semigpc.labeling.columns import ColumnOptions, unknown_column
from semigpc.labeling.outputs import COLUMNS
from semigpc.labeling.scan import Progress, silent
from semigpc.labeling.source import TableSource, open_source
from semigpc.models.encoder import EmbedConfig, embed_folder

EMBEDDINGS = "embeddings.parquet"  # of images, inside the folder of the labels
FILE_NAME, LABEL = "file_name", "label"  # names of the ids of images, and of the column of labels
ID_NAMES = (FILE_NAME, "id")  # names of ids that a table of labels may use, whatever the data use


@dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """Options of ``semigpc label``.

    Args:
        data: a table, a folder of Parquet shards, or a folder of images. out: the folder to write.
        labels: a table of labels; None if the data have a column of labels. more_labels: further
            tables; a later one overrides the labels of earlier ones.
        columns: names of columns, where they are not the usual ones.
        images: folder of the images of a table, by the ids. image_url: text that Label Studio puts
            before the name of an image.
        target_precision, per_class, abstain, class_prior: those of
            :class:`semigpc.estimator.SemiGPClassifier`.
        seed: of the sample and the folds. skip_bad: leave out images and rows that cannot be used.
        report: cross-validate, and write the page. shard: rows labelled at a time; None chooses by
            memory.
        embed: the network for images. follow_links: use links that lead out of ``data``.
    """

    data: Path
    labels: Path | None
    out: Path
    more_labels: tuple[Path, ...] = ()
    columns: ColumnOptions = field(default_factory=ColumnOptions)
    images: Path | None = None
    image_url: str | None = None
    target_precision: float | None = 0.95
    per_class: bool = False
    abstain: float | None = None
    class_prior: Literal["balanced", "estimated"] = "balanced"
    seed: int = 0
    skip_bad: bool = False
    report: bool = True
    shard: int | None = None
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    follow_links: bool = False

    @property
    def data_columns(self) -> ColumnOptions:
        """Return the columns of the data; the name of the label column is left out if there is a
        table of labels.
        """
        return self.columns if self.labels is None else replace(self.columns, label=None)


class Inputs(NamedTuple):
    """Inputs that were opened.

    Attributes:
        source: the rows. path, columns: to open the same rows again.
        labels: by id; None if they are in the data. images: the folder of the images, or None.
        notes: messages for the user.
    """

    source: TableSource
    path: Path
    columns: ColumnOptions
    labels: dict[str, str] | None
    images: Path | None
    notes: list[str]


def is_image_folder(path: Path, *, follow_links: bool = False) -> bool:
    """Return whether a folder contains an image, at any depth."""
    return path.is_dir() and any(
        is_image_name(name) for name, _ in walk(path, follow_links=follow_links)
    )


def open_images(
    settings: LabelSettings, *, overwrite: bool = False, progress: Progress = silent
) -> Inputs:
    """Check the labels of a folder of images, then embed the images that have no embedding yet,
    which may take hours.

    Raises:
        DataError: an input is missing or cannot be used. ImageError: an image cannot be read.
    """
    if settings.labels is None:
        raise DataError(
            f"Images need a table of labels: --labels, with the columns {FILE_NAME} and {LABEL}."
        )
    if settings.columns.id or settings.columns.features:
        raise DataError("--id and --features name columns of a table; a folder of images has none.")
    root = settings.data.resolve()
    labels = _read_all_labels(settings, FILE_NAME, images=True)
    missing = [
        name
        for name in labels
        if not is_image_name(name) or unusable(root, name, follow_links=True) is not None
    ]
    if missing:
        raise DataError(
            f"{settings.labels} has labels for {len(missing)} images that are not in {settings.data}: {listed(missing, 3)}. "
            "Names must be relative to that folder; mend them, put the files there or delete the rows."
        )
    check_classes(list(labels.values()), settings.labels)
    table = settings.out / EMBEDDINGS
    options = {"skip_bad": settings.skip_bad, "follow_links": settings.follow_links}
    embed = partial(embed_folder, root, table, settings.embed, **options, progress=progress)
    try:
        result = embed()  # also to overwrite labels: embeddings that still fit are used again
    except DataError as error:
        if isinstance(error, ImageError) or not overwrite:
            raise
        result = embed(overwrite=True)
    bad = {name for name, _ in result.bad}
    notes = (
        [
            f"Images that could not be read and were left out: {len(bad)}; {EMBEDDINGS}.bad.txt names them."
        ]
        if bad
        else []
    )
    labels = {name: label for name, label in labels.items() if name not in bad}
    return Inputs(open_source(table), table.resolve(), ColumnOptions(), labels, root, notes)


def table_inputs(settings: LabelSettings, source: TableSource, path: Path) -> Inputs:
    """Return a table that was opened at ``path`` together with its labels.

    Raises:
        DataError: there are no labels, or a column cannot be used.
    """
    if source.has_ids and source.id_name in COLUMNS:
        raise DataError(
            f"Ids cannot be called {source.id_name!r}, which is a column of the labels. Rename the column."
        )
    if settings.images is not None and not settings.images.is_dir():
        raise DataError(
            f"The folder of the images is not there: {settings.images}. Check --images."
        )
    notes, labels = [], None
    if settings.labels is not None:
        labels = _read_all_labels(settings, source.id_name)
        if source.has_labels:
            notes.append(
                f"The labels are those of {settings.labels.name}; the column of labels in the data was not used."
            )
    elif not source.has_labels:
        raise DataError(
            f"There are no labels: {settings.data} has no column called 'label'. Give a table of them by --labels, or name the "
            "column by --label-column."
        )
    images = settings.images.resolve() if settings.images is not None else None
    return Inputs(source, path, settings.data_columns, labels, images, notes)


def _read_all_labels(
    settings: LabelSettings, id_name: str, *, images: bool = False
) -> dict[str, str]:
    """Return the labels of all tables; the last table that has a row decides."""
    labels: dict[str, str] = {}
    for path in (settings.labels, *settings.more_labels):
        if path is not None:
            labels |= read_label_table(
                path, id_name, label_column=settings.columns.label, images=images
            )
    return labels


def read_label_table(
    path: Path, id_name: str, *, label_column: str | None = None, images: bool = False
) -> dict[str, str]:
    """Return the label of each id that has one (``semigpc.io.tables.label_text`` defines what is
    none). Other columns are ignored.

    Args:
        path: a .csv or .parquet file. id_name: name of the ids in the data.
        label_column: name of the labels; "label" if left out.
        images: ids are names of files below a folder, and may not lead out of it.

    Raises:
        DataError: the file is missing, cannot be read, lacks a column, or gives an id two labels.
    """
    if path.is_dir():
        raise DataError(
            f"The table of labels must be a file; {path} is a folder. Check the path given by --labels."
        )
    if not checked(path).is_file():
        raise DataError(
            f"The table of labels is not there: {path}. Check the path given by --labels."
        )
    if not is_table(path):
        raise DataError(
            f"Labels must be in a file that ends in {' or '.join(SUFFIXES)}; got {path.name}."
        )

    def choose(names: Sequence[str], where: Path) -> tuple[str, str]:
        id_names = list(dict.fromkeys((id_name, *ID_NAMES)))
        ids = next((name for name in id_names if name in names), None)
        if ids is None:
            raise DataError(
                f"{where} must have a column of ids, called {' or '.join(repr(name) for name in id_names)}; it has "
                f"{listed(names, 8) or 'none'}. Rename one, and separate columns by commas if the file is CSV."
            )
        label = label_column or LABEL
        if label not in names:
            option = (
                "--label-column" if label_column else "a table of labels must have: --label-column"
            )
            raise DataError(unknown_column(label, names, where, option))
        return ids, label

    labels: dict[str, str | None] = {}
    conflicts: dict[str, set[str]] = {}
    for number, (value, cell) in enumerate(read_pairs(path, choose), start=1):
        name = (
            path_below(value, number, path)
            if images
            else ""
            if value is None
            else str(value).strip()
        )
        if not name:
            raise DataError(f"Row {number} of {path} has no id. Fill it in, or delete the row.")
        label = as_label(cell, path)
        if labels.setdefault(name, label) != label:
            conflicts.setdefault(name, {labels[name] or "no label"}).add(label or "no label")
    if conflicts:
        name, both = next(iter(conflicts.items()))
        raise DataError(
            f"{path} gives different labels to the same row for {len(conflicts)} of its ids: {name!r} has "
            f"{' and '.join(sorted(both))}. Keep one row for each id."
        )
    return {name: label for name, label in labels.items() if label is not None}


def check_classes(labels: Sequence[str], where: object) -> None:
    """Raise a DataError unless there are labels of two classes at least."""
    classes = sorted(set(labels))
    if not classes:
        raise DataError(f"{where} gives no row a label. Label a few rows of each class first.")
    if len(classes) == 1:
        raise DataError(
            f"All labels of {where} are {classes[0]!r}; at least two classes are needed. Label another."
        )
