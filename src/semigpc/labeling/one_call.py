"""Labelling in one call from Python: a folder to a DataFrame, a Dataset to a Dataset.

Both do what ``semigpc label`` does and return the columns of labels.csv. pandas and datasets are no
dependencies of semigpc.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow
from pyarrow import parquet

from semigpc.io.errors import DataError, SettingsError
from semigpc.io.tables import LABELS_COLUMNS, data_frame, label_text
from semigpc.io.text import listed
from semigpc.labeling.columns import FILE_NAME, LABEL
from semigpc.labeling.label import EMBEDDINGS, LabelSettings, is_image_folder, label_data
from semigpc.labeling.outputs import COLUMNS
from semigpc.models.encoder import AUTO, EmbedConfig
from semigpc.models.networks import choose_network

if TYPE_CHECKING:
    import datasets
    import pandas

EMBEDDING = "embedding"  # usual column of embeddings
CLASSES = ("label", "guess", "second")  # columns of classes
NETWORK = "network"  # attribute of a DataFrame: which network embedded the images
NOTES = "notes"  # the same: sentences for the user


# A folder of images -------------------------------------------------------------------------------


def label_images(
    folder: str | Path,
    labels: "str | Path | Mapping[str, object] | pandas.DataFrame",
    *,
    out: str | Path | None = None,
    model: str = AUTO,
    target_precision: float | None = 0.95,
    trust_pseudo: bool = False,
    skip_bad: bool = False,
) -> "pandas.DataFrame":
    """Label all images of a folder from a few labels; one row for each, sorted by name.

    The columns are those of labels.csv: ``file_name``, ``label`` (None where none is given out),
    ``guess``, ``confidence``, ``second``, ``second_confidence``, ``variance``, ``status``,
    ``grade`` and ``reasons``. ``frame.attrs`` has "network" and "notes". Embeddings are cached.

    Args:
        folder: of images, at any depth.
        labels: a .csv or .parquet file with the columns ``file_name`` and ``label``, such a
            DataFrame, or labels by name. Names are relative to the folder.
        out: folder to keep, as of ``semigpc label``, for ``semigpc open`` and ``semigpc predict``.
        model: the network, as of :func:`semigpc.models.networks.choose_network`.
        target_precision: of the labels that are given out; None gives all out.
        trust_pseudo: take labels that semigpc itself gave out.
        skip_bad: leave out images that cannot be read.

    Raises:
        DataError: an input is missing or cannot be used. ImageError: an image cannot be read.
        ImportError: pandas is not installed.
    """
    data_frame({})  # it needs pandas: before images are embedded
    root = Path(folder).expanduser()
    if not is_image_folder(root):
        raise DataError(f"There are no images below {root}. Give a folder of images.")
    with _folder(out) as (place, drafts):
        settings = LabelSettings(
            data=root,
            labels=_label_file(labels, drafts),
            out=place,
            embed=EmbedConfig(model=model),
            target_precision=target_precision,
            trust_pseudo=trust_pseudo,
            skip_bad=skip_bad,
            report=False,
        )
        table, network, notes = _labelled(settings)
    frame: pandas.DataFrame = table.to_pandas()
    frame.attrs |= {NETWORK: network, NOTES: notes}
    return frame


@contextmanager
def _folder(out: str | Path | None) -> Iterator[tuple[Path, Path]]:
    """Yield the folder to write, and one for drafts, which is deleted."""
    with TemporaryDirectory(prefix="semigpc-") as drafts:
        place = Path(drafts, "out") if out is None else Path(out).expanduser()
        yield place, Path(drafts)


def _label_file(labels: Any, folder: Path) -> Path:
    """Return a table of labels as a file, written to ``folder`` if it is in memory."""
    if isinstance(labels, str | Path):
        return Path(labels).expanduser()
    path = folder / "given.parquet"
    if isinstance(labels, Mapping):
        texts = [label_text(label) for label in labels.values()]
        names = [str(name) for name in labels]
        table = pyarrow.table({FILE_NAME: names, LABEL: pyarrow.array(texts, pyarrow.string())})
    else:
        try:
            table = pyarrow.Table.from_pandas(labels, preserve_index=False)
        except (AttributeError, TypeError, pyarrow.ArrowException) as error:
            raise DataError(
                f"labels must be a file, a DataFrame or a dictionary of names and labels; got "
                f"{type(labels).__name__} ({error})."
            ) from error
    parquet.write_table(table, path)
    return path


def _labelled(settings: LabelSettings) -> tuple[pyarrow.Table, str, list[str]]:
    """Label, and return the table, a line on the network and notes."""
    chosen = choose_network(settings.embed, earlier=settings.out / EMBEDDINGS)
    summary = label_data(replace(settings, embed=chosen.config))
    table = parquet.read_table(settings.out / "labels.parquet")
    return table, chosen.line, list(summary["notes"])


# A Dataset ----------------------------------------------------------------------------------------


def label_dataset(
    dataset: "datasets.Dataset",
    *,
    column: str | None = None,
    label: str = LABEL,
    model: str = AUTO,
    target_precision: float | None = 0.95,
    trust_pseudo: bool = False,
    skip_bad: bool = False,
) -> "datasets.Dataset":
    """Label all rows of a Dataset of Hugging Face from a few labels; return it with more columns.

    These are the columns of labels.csv but its reasons, as of :func:`label_images`; they replace
    columns of these names. Classes are of the kind of the given labels. The result can be given
    again: of its labels, those that people gave count. Images that are no files on this disk are
    written to a temporary folder.

    Args:
        dataset: one split.
        column: of images, or of embeddings; by default the only column of images, or "embedding".
        label: the column of labels: a ClassLabel, text or numbers; -1 and None for no label.
        model, target_precision, trust_pseudo, skip_bad: as of :func:`label_images`; rows of images
            that are left out have None in the new columns.

    Raises:
        DataError: a column is missing or cannot be used. ImageError: an image cannot be read.
        ImportError: datasets is not installed.
    """
    features = _features(dataset)
    name = _data_column(features, column)
    if label not in features:
        raise DataError(f"The Dataset has no column {label!r}; it has {listed([*features])}.")
    given = _Classes(dataset, label)
    with TemporaryDirectory(prefix="semigpc-") as drafts:
        root = Path(drafts)
        ids = [f"{row:09d}.png" for row in range(len(dataset))]
        write_data = _write_images if _is_image(features[name]) else _write_rows
        settings = LabelSettings(
            data=write_data(dataset, name, ids, root),
            labels=_write_labels(dataset, given.texts, ids, root),
            out=root / "out",
            embed=EmbedConfig(model=model),
            target_precision=target_precision,
            trust_pseudo=trust_pseudo,
            skip_bad=skip_bad,
            report=False,
            follow_links=True,
        )
        table, _, _ = _labelled(settings)
    return _with_columns(dataset, table, ids, given)


class _Classes:
    """The given labels as text, and how text becomes a label of the same kind again.

    Attributes:
        texts: (n,) None where there is no label. feature: of the column.
    """

    def __init__(self, dataset: "datasets.Dataset", label: str) -> None:
        self.feature: Any = dataset.features[label]
        values = dataset.with_format(None)[label]
        names: list[str] | None = vars(self.feature).get("names")
        if names is None:
            self.texts = [label_text(value) for value in values]
            self._value_of = dict(zip(self.texts, values, strict=True))
        else:
            known = [value is not None and value >= 0 for value in values]
            pairs = zip(values, known, strict=True)
            self.texts = [names[value] if is_label else None for value, is_label in pairs]
            self._value_of = {name: number for number, name in enumerate(names)}

    def value(self, text: str | None) -> Any:
        """Return the class of a text, None for none."""
        return None if text is None else self._value_of[text]


def _features(dataset: Any) -> Mapping[str, Any]:
    try:
        from datasets import Dataset
    except ImportError as error:
        raise ImportError("A Dataset needs datasets: pip install datasets.") from error
    if not isinstance(dataset, Dataset):
        raise SettingsError(
            f"dataset must be one split of Hugging Face's datasets, such as dataset['train']; got "
            f"{type(dataset).__name__}."
        )
    features: Mapping[str, Any] = dataset.features
    return features


def _is_image(feature: object) -> bool:
    from datasets import Image

    return isinstance(feature, Image)


def _data_column(features: Mapping[str, Any], column: str | None) -> str:
    if column is not None:
        if column not in features:
            raise DataError(f"The Dataset has no column {column!r}; it has {listed([*features])}.")
        return column
    images = [name for name, feature in features.items() if _is_image(feature)]
    if len(images) == 1:
        return images[0]
    if not images and EMBEDDING in features:
        return EMBEDDING
    raise DataError(
        f"The Dataset must have one column of images, or a column {EMBEDDING!r}; it has "
        f"{listed(images or [*features])}. Choose one with column=..."
    )


def _write_images(dataset: "datasets.Dataset", name: str, ids: Sequence[str], root: Path) -> Path:
    """Return a folder with one image per row: a link to its file, or its bytes."""
    from datasets import Image

    folder = root / "images"
    folder.mkdir()
    encoded = dataset.select_columns([name]).cast_column(name, Image(decode=False))
    for own, row in zip(ids, encoded.with_format(None), strict=True):
        image = row[name]
        if image is None:
            raise DataError(f"Row {int(own[:-4])} of the Dataset has no image. Remove the row.")
        if image["bytes"] is not None:
            (folder / own).write_bytes(image["bytes"])
        else:
            (folder / own).symlink_to(Path(image["path"]).resolve())
    return folder


def _write_rows(dataset: "datasets.Dataset", name: str, ids: Sequence[str], root: Path) -> Path:
    """Return a table of the embeddings."""
    column = dataset.select_columns([name]).with_format("arrow")[:].column(name)
    path = root / "rows.parquet"
    parquet.write_table(pyarrow.table({FILE_NAME: list(ids), EMBEDDING: column}), path)
    return path


def _write_labels(
    dataset: "datasets.Dataset", texts: Sequence[str | None], ids: Sequence[str], root: Path
) -> Path:
    """Return a table of the labels, with the status of each if semigpc labelled the Dataset."""
    columns = {FILE_NAME: pyarrow.array(ids), LABEL: pyarrow.array(texts, pyarrow.string())}
    if set(dataset.column_names) >= LABELS_COLUMNS:
        kept = sorted(LABELS_COLUMNS - {LABEL})
        table = dataset.select_columns(kept).with_format("arrow")[:]
        columns |= {name: table.column(name) for name in kept}
    path = root / "labels.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    return path


def _with_columns(
    dataset: "datasets.Dataset",
    table: pyarrow.Table,
    ids: Sequence[str],
    given: _Classes,
) -> "datasets.Dataset":
    """Return the Dataset with the columns of a table of labels, in its own order."""
    from datasets import Dataset, Features, Value, concatenate_datasets

    place = {name: row for row, name in enumerate(table.column(FILE_NAME).to_pylist())}
    order = pyarrow.array([place.get(name) for name in ids], pyarrow.int64())
    columns: dict[str, list[Any]] = {}
    kinds = Features()
    for name in COLUMNS[:-1]:
        values = table.column(name).take(order).to_pylist()
        is_class = name in CLASSES
        columns[name] = [given.value(text) for text in values] if is_class else values
        kinds[name] = given.feature if is_class else Value(str(table.schema.field(name).type))
    added = Dataset.from_dict(columns, features=kinds)
    replaced = [name for name in dataset.column_names if name in columns]
    return concatenate_datasets([dataset.remove_columns(replaced), added], axis=1)
