"""What is to be labelled, and by what labels: a table as it is, or images that are embedded first."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from semigpc.data.dataset import DataError, listed
from semigpc.data.images import ImageError
from semigpc.data.paths import checked, is_image_name, unusable, walk
from semigpc.data.tables import SUFFIXES, as_label, is_table, path_below, read_pairs
from semigpc.labeling.columns import ColumnOptions, unknown_column
from semigpc.labeling.embed import EmbedConfig, embed_folder
from semigpc.labeling.outputs import OTHERS
from semigpc.labeling.scan import Progress
from semigpc.labeling.source import TableSource, open_source

EMBEDDINGS = "embeddings.parquet"  # of images, inside the folder of the labels
FILE_NAME = "file_name"  # what ids of images are called
LABEL = "label"
ID_NAMES = ("file_name", "id")  # that a file of labels may use, whatever the data call their ids


@dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """What ``semigpc label`` is asked for.

    Args:
        data: a table, a folder of Parquet shards, or a folder of images. out: the folder to write.
        labels: a table of them; None if the data have a column of labels. more_labels: further tables, of which a later one
            overrules what earlier ones say of a row.
        columns: names of columns, where they are not the usual ones.
        images: where the images of a table are, by the ids. image_url: what Label Studio finds before the name of an image.
        target_precision: fraction of pseudo-labels that should be right; None for no such aim.
        abstain: confidence below which a row gets no label; instead of ``target_precision``.
        self_training: let rows that are sure help to decide; the decision may then not be the class of most confidence.
        class_prior: decide as frequent as classes seem to be among the unlabelled rows, "estimated", or as if all were equally
            frequent, "balanced".
        seed: of the sample and the folds. skip_bad: go on without images and rows that are no good.
        report: cross-validate, and write the page. shard: rows labelled at a time; None fits memory.
        embed: which network sees the images. follow_links: use links that lead out of ``data``.
    """

    data: Path
    labels: Path | None
    out: Path
    more_labels: tuple[Path, ...] = ()
    columns: ColumnOptions = field(default_factory=ColumnOptions)
    images: Path | None = None
    image_url: str | None = None
    target_precision: float | None = 0.95
    abstain: float | None = None
    class_prior: Literal["estimated", "balanced"] = "estimated"
    self_training: bool = False
    seed: int = 0
    skip_bad: bool = False
    report: bool = True
    shard: int | None = None
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    follow_links: bool = False


class Inputs(NamedTuple):
    """Ready to be read.

    Attributes:
        source: the rows. path, columns: by which the same rows are opened again.
        given: labels by id, or None if they are in the data. images: the folder of the images, or None.
        notes: for the user.
    """

    source: TableSource
    path: Path
    columns: ColumnOptions
    given: dict[str, str] | None
    images: Path | None
    notes: list[str]


def is_image_folder(path: Path, *, follow_links: bool = False) -> bool:
    """Whether a folder holds an image, however deep."""
    return path.is_dir() and any(is_image_name(name) for name, _ in walk(path, follow_links=follow_links))


def open_inputs(settings: LabelSettings, *, overwrite: bool = False, progress: Progress | None = None) -> Inputs:
    """Open the data and read the given labels; images are embedded, as far as that is not done yet.

    Raises:
        DataError: something is not there or cannot be meant. ImageError: an image cannot be read.
    """
    if is_image_folder(settings.data, follow_links=settings.follow_links):
        return _images(settings, overwrite, progress)
    asked = asked_columns(settings)
    source = open_source(settings.data, asked, follow_links=settings.follow_links)
    return table_inputs(settings, source, settings.data.resolve())


def asked_columns(settings: LabelSettings) -> ColumnOptions:
    """Of the data; the column of labels is not wanted from them if there is a table of labels."""
    return settings.columns if settings.labels is None else replace(settings.columns, label=None)


def table_inputs(settings: LabelSettings, source: TableSource, path: Path) -> Inputs:
    """A table that was opened at ``path``, with the labels that were given for it.

    Raises:
        DataError: there are no labels, or a column cannot be meant.
    """
    if source.has_ids and source.id_name in OTHERS:
        raise DataError(f"Ids cannot be called {source.id_name!r}, which is a column of the labels. Rename the column.")
    notes = []
    given = None
    if settings.labels is not None:
        given = _read_labels(settings, source.id_name)
        if source.has_labels:
            notes.append(f"The labels are those of {settings.labels.name}; the column of labels in the data was not used.")
    elif not source.has_labels:
        raise DataError(
            f"There are no labels: {settings.data} has no column called 'label'. Give a table of them by --labels, or name the "
            "column by --label-column."
        )
    return Inputs(source, path, asked_columns(settings), given, _folder(settings.images), notes)


def _images(settings: LabelSettings, overwrite: bool, progress: Progress | None) -> Inputs:
    """Labels are checked before the network is put to work, which may take hours."""
    if settings.labels is None:
        raise DataError(f"Images need a table of labels: --labels, with the columns {FILE_NAME} and label.")
    if settings.columns.id or settings.columns.features:
        raise DataError("--id and --features name columns of a table; a folder of images has none.")
    root = settings.data.resolve()
    given = _read_labels(settings, FILE_NAME, images=True)
    missing = [name for name in given if not is_image_name(name) or unusable(root, name, follow_links=True) is not None]
    if missing:
        raise DataError(
            f"{settings.labels} has labels for {len(missing)} images that are not in {settings.data}: {listed(missing, 3)}. "
            "Names must be relative to that folder; mend them, put the files there or delete the rows."
        )
    check_classes(list(given.values()), settings.labels)
    table = settings.out / EMBEDDINGS
    settings.out.mkdir(parents=True, exist_ok=True)

    def told(done: int, total: int) -> None:
        if progress is not None:
            progress("embedding", done, total)

    way = {"skip_bad": settings.skip_bad, "follow_links": settings.follow_links}
    try:
        made = embed_folder(root, table, settings.embed, **way, progress=told)
    except ImageError:
        raise
    except DataError:
        if not overwrite:
            raise
        made = embed_folder(root, table, settings.embed, **way, overwrite=True, progress=told)
    bad = {name for name, _ in made.bad}
    notes = [f"Images that could not be read and were left out: {len(bad)}; {EMBEDDINGS}.bad.txt names them."] if bad else []
    kept = {name: label for name, label in given.items() if name not in bad}
    return Inputs(open_source(table), table.resolve(), ColumnOptions(), kept, root, notes)


def _read_labels(settings: LabelSettings, id_name: str, *, images: bool = False) -> dict[str, str]:
    """The labels of all tables, the last word counting."""
    given: dict[str, str] = {}
    for path in (settings.labels, *settings.more_labels):
        if path is not None:
            given |= read_given(path, id_name, label_column=settings.columns.label, images=images)
    return given


def _folder(path: Path | None) -> Path | None:
    if path is not None and not path.is_dir():
        raise DataError(f"The folder of the images is not there: {path}. Check --images.")
    return path.resolve() if path is not None else None


def check_classes(labels: Sequence[str], where: object) -> None:
    """Refuse labels that there is nothing to learn from."""
    classes = sorted(set(labels))
    if not classes:
        raise DataError(f"{where} gives no row a label. Label a few rows of each class first.")
    if len(classes) == 1:
        raise DataError(
            f"All labels of {where} are {classes[0]!r}; at least two classes are needed. Label rows of another one."
        )


def read_given(path: Path, id_name: str, *, label_column: str | None = None, images: bool = False) -> dict[str, str]:
    """The label of each id that has one (what is none: ``semigpc.text.label_text``). Further columns are passed over.

    Args:
        path: a .csv or .parquet file. id_name: what the data call their ids.
        label_column: "label" if left out.
        images: ids are names of files below a folder, and may not lead out of it.

    Raises:
        DataError: it is not there, cannot be read, lacks a column, or gives an id two labels.
    """
    if path.is_dir():
        raise DataError(f"The table of labels must be a file; {path} is a folder. Check the path given by --labels.")
    if not checked(path).is_file():
        raise DataError(f"The table of labels is not there: {path}. Check the path given by --labels.")
    if not is_table(path):
        raise DataError(f"Labels must be in a file that ends in {' or '.join(SUFFIXES)}; got {path.name}.")

    def choose(found: Sequence[str], where: Path) -> tuple[str, str]:
        return _columns(found, where, id_name, label_column)

    labels: dict[str, str | None] = {}
    conflicts: dict[str, set[str]] = {}
    for number, (value, given) in enumerate(read_pairs(path, choose), start=1):
        name = path_below(value, number, path) if images else _id(value, number, path)
        label = as_label(given, path)
        if labels.setdefault(name, label) != label:
            conflicts.setdefault(name, {labels[name] or "no label"}).add(label or "no label")
    if conflicts:
        first, both = next(iter(conflicts.items()))
        raise DataError(
            f"{path} gives different labels to the same row for {len(conflicts)} of its ids: {first!r} has "
            f"{' and '.join(sorted(both))}. Keep one row for each id."
        )
    return {name: label for name, label in labels.items() if label is not None}


def _columns(found: Sequence[str], path: Path, id_name: str, label_column: str | None) -> tuple[str, str]:
    """The column of ids, by the data's own name or a usual one, and that of labels."""
    wanted = list(dict.fromkeys((id_name, *ID_NAMES)))
    ids = next((name for name in wanted if name in found), None)
    if ids is None:
        raise DataError(
            f"{path} must have a column of ids, called {' or '.join(repr(name) for name in wanted)}; it has "
            f"{listed(found, 8) or 'none'}. Rename one, and separate columns by commas if the file is CSV."
        )
    label = label_column or LABEL
    if label not in found:
        option = "--label-column" if label_column else "a table of labels must have: --label-column"
        raise DataError(unknown_column(label, found, path, option))
    return ids, label


def _id(value: Any, number: int, path: Path) -> str:
    text = "" if value is None else str(value).strip()
    if not text:
        raise DataError(f"Row {number} of {path} has no id. Fill it in, or delete the row.")
    return text
