"""A labelled folder before anything is fitted: the rows, and the labels that there are, if any.

    data      images, which are embedded, or a table
    labels    tables of labels; else those that the folder or the table has itself; else none
    project   labels.parquet, where rows without a label have no guess, and project.json

The page fits the model as soon as there are labels of two classes. ``semigpc label`` writes a
folder of the same kind, with a model in it.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
from pyarrow import parquet

from semigpc.estimator import Status
from semigpc.io.atomic import facts_of, locked, replacing, write_json
from semigpc.io.errors import DataError
from semigpc.io.parts import Key
from semigpc.io.text import listed, ordered
from semigpc.labeling import outputs
from semigpc.labeling.columns import ColumnOptions
from semigpc.labeling.given import given_labels
from semigpc.labeling.journal import NAME as REVIEWS
from semigpc.labeling.journal import ReviewJournal
from semigpc.labeling.label import (
    EMBEDDINGS,
    Inputs,
    LabelSettings,
    is_image_folder,
    options,
    read_all_labels,
    shard_rows,
    table_inputs,
)
from semigpc.labeling.project import FILE, TABLE, VERSION, ProjectSettings, Written, read_settings
from semigpc.labeling.scan import SAMPLE, LabelLookup, Progress, Scan, scan, silent
from semigpc.labeling.source import open_source
from semigpc.models.encoder import embed_folder

SUFFIX = "-labelled"  # of the folder beside the data, unless another one is named


class Started(NamedTuple):
    """The folder of a labelling, and notes for the user; ``continued`` if it existed before."""

    folder: Path
    notes: list[str]
    continued: bool


def folder_for(data: Path) -> Path:
    """Return the folder of the labels of some data: the data themselves if they are a labelling."""
    if (data / FILE).exists() or (data / "parts").is_dir():
        return data
    place = data if data.name not in ("", ".", "..") else data.resolve()
    name = place.name if data.is_dir() else place.stem
    return place.with_name(f"{name}{SUFFIX}")


def start(
    settings: LabelSettings, *, class_folders: bool = True, progress: Progress = silent
) -> Started:
    """Prepare a folder for the page, or return it as it was left.

    Images that have an embedding already are not embedded again, and those that cannot be read are
    left out. Where the data have changed since the last time, the answers of the page are kept, as
    they name their rows.

    Args:
        settings: the data, the folder and the labels; ``report`` is ignored.
        class_folders: whether images in a folder per class are labelled by it.

    Raises:
        DataError: the data cannot be used, or answered rows are gone. InUseError: another process
            uses that folder.
    """
    if settings.data.resolve() == settings.out.resolve():
        read_settings(settings.out)
        return Started(settings.out, [], continued=True)
    if settings.out.exists() and not settings.out.is_dir():
        raise DataError(f"The parameter out must be a folder; {settings.out} is a file.")
    with locked(settings.out):
        inputs = _open_inputs(settings, class_folders, progress)
        key = _key(settings, inputs)
        earlier = _earlier_key(settings.out)
        if earlier is not None and (earlier == key or "opened" not in earlier):
            _check_same_data(settings, earlier, key)
            return Started(settings.out, inputs.notes, continued=True)
        lookup = LabelLookup(inputs.labels, settings.labels)
        size = shard_rows(inputs.source, settings.shard)
        gathered = scan(
            inputs.source, lookup, size=size, seed=settings.seed, skip_bad=True, progress=progress
        )
        ids = _ids(inputs, size)
        _check_answers(settings.out, ids)
        _write(settings, inputs, gathered, ids, key)
    return Started(settings.out, inputs.notes, continued=earlier is not None)


def _open_inputs(settings: LabelSettings, class_folders: bool, progress: Progress) -> Inputs:
    """Open the data and the labels that there are."""
    if not settings.data.exists():
        raise DataError(f"There is no {settings.data}. Give a folder of images, or a table.")
    if not is_image_folder(settings.data, follow_links=settings.follow_links):
        source = open_source(
            settings.data, settings.data_columns, follow_links=settings.follow_links
        )
        if settings.labels is None and not source.has_labels:
            return Inputs(source, settings.data.resolve(), settings.data_columns, {}, None, [])
        return table_inputs(settings, source, settings.data.resolve())
    notes: list[str] = []
    root = settings.data.resolve()
    labels: dict[str, str] = {}
    chosen: frozenset[str] = frozenset()
    if settings.labels is not None:
        labels, chosen = read_all_labels(settings, "file_name", notes, images=True)
    else:
        own = given_labels(root, class_folders=class_folders, follow_links=settings.follow_links)
        if own is not None:
            labels = own.labels
            chosen = own.chosen
            notes += own.notes
    table = settings.out / EMBEDDINGS
    result = embed_folder(
        root,
        table,
        settings.embed,
        skip_bad=True,
        follow_links=settings.follow_links,
        progress=progress,
    )
    if result.bad:
        names = listed([name for name, _ in result.bad], 3)
        notes.append(
            f"Images that could not be read and were left out: {len(result.bad)}: {names}."
        )
    bad = {name for name, _ in result.bad}
    labels = {name: label for name, label in labels.items() if name not in bad}
    source = open_source(table)
    return Inputs(source, table.resolve(), ColumnOptions(), labels, root, notes, chosen)


def _key(settings: LabelSettings, inputs: Inputs) -> Key:
    """Return what the folder depends on: the data and the labels that came with them."""
    network = settings.embed.facts if inputs.images else None
    labels = sorted((inputs.labels or {}).items())
    return {
        "opened": str(settings.data.resolve()),
        outputs.DATA: outputs.files_hash(inputs.source.files),
        "network": network,
        "labels": [list(each) for each in labels],
        **{f"column of {name}": value for name, value in asdict(settings.columns).items()},
        **options(settings),
    }


def _earlier_key(folder: Path) -> Key | None:
    """Return the key of a labelling that is complete; None if there is none."""
    return read_settings(folder)["key"] if (folder / FILE).exists() else None


def _check_same_data(settings: LabelSettings, earlier: Key, key: Key) -> None:
    """Raise a DataError if a folder that semigpc label wrote is about other data."""
    if earlier.get(outputs.DATA) != key[outputs.DATA]:
        raise DataError(
            f"{settings.out} holds labels of other data than {settings.data}, or these have "
            "changed since. Choose another folder with out=..., or label the data again."
        )


def _ids(inputs: Inputs, size: int) -> list[str]:
    return [name for batch in inputs.source.batches(size) for name in batch.ids]


def _check_answers(folder: Path, ids: Sequence[str]) -> None:
    """Raise a DataError if rows that were answered on the page are not among ``ids`` any more."""
    path = folder / REVIEWS
    if not path.exists():
        return
    known = set(ids)
    entries = ReviewJournal(path, read_only=True).entries
    gone = {change.id for entry in entries for change in entry.changes} - known
    if gone:
        raise DataError(
            f"{len(gone)} rows with answers in {path} are gone from the data: "
            f"{listed(sorted(gone), 3)}. Restore them, or choose another folder with out=..."
        )


def _write(
    settings: LabelSettings, inputs: Inputs, gathered: Scan, ids: Sequence[str], key: Key
) -> None:
    """Write labels.parquet and project.json, the latter last."""
    folder = settings.out
    table = _unfitted_table(ids, gathered, inputs.source.id_name)
    (folder / FILE).unlink(missing_ok=True)
    with replacing(folder / TABLE) as draft:
        parquet.write_table(table, draft)
    path = inputs.path
    root = folder.resolve()
    columns: ColumnOptions = inputs.columns
    if inputs.labels is not None and not inputs.images:
        columns = replace(columns, label=None)
    chosen = [
        row
        for row, name in zip(gathered.labelled.tolist(), gathered.ids, strict=True)
        if name in inputs.chosen
    ]
    images = inputs.images or (settings.images.resolve() if settings.images else None)
    project = ProjectSettings(
        version=VERSION,
        data=str(path.relative_to(root) if path.is_relative_to(root) else path),
        labels=str(settings.labels.resolve()) if settings.labels else None,
        columns=columns,
        files=facts_of(folder, [TABLE]),
        follow_links=settings.follow_links,
        id_name=inputs.source.id_name,
        images=str(images) if images else None,
        rows=gathered.rows,
        width=inputs.source.width,
        bad_rows=gathered.bad.tolist(),
        sample=SAMPLE,
        seed=settings.seed,
        chosen=chosen,
        options=options(settings),
        parameters={},
        fitted={},
        grades={},
        classes=list(ordered(set(gathered.labels))),
        written=Written(images=str(images) if images else None, image_url=None, report=False),
        key=key,
    )
    write_json(folder / FILE, {**project, "columns": asdict(columns)})
    derived = outputs.DerivedFiles(folder, key)
    if (folder / REVIEWS).exists():
        derived.adopt(REVIEWS)


def _unfitted_table(ids: Sequence[str], gathered: Scan, id_name: str) -> pyarrow.Table:
    """Return the table of labels with the given ones alone."""
    rows = len(ids)
    labels: list[str | None] = [None] * rows
    for row, label in zip(gathered.labelled.tolist(), gathered.labels, strict=True):
        labels[row] = label
    for row, label in gathered.bad_labels.items():
        labels[row] = label
    has_label = np.array([label is not None for label in labels])
    status = np.where(has_label, Status.LABELLED.text, Status.ABSTAINED.text)
    confidence = has_label.astype(np.float32)
    empty = [None] * rows
    columns = [ids, labels, labels, confidence, empty, np.zeros(rows, np.float32)]
    columns += [1 - confidence, status.tolist(), empty, [[]] * rows]
    schema = outputs.schema_of(id_name)
    arrays = [
        pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)
    ]
    return pyarrow.Table.from_arrays(arrays, schema=schema)
