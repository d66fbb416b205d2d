"""Labels that a folder of images comes with: a table in it, or the names of its folders.

In this order; the first one with a label wins:

    metadata.csv, .jsonl, .parquet   as Hugging Face's imagefolder reads them: ``file_name``, which
                                     is relative to the folder, and ``label``, empty for none
    labels.csv                       ``file_name`` and ``label``
    class folders                    every image lies in one of at least two folders, whose names
                                     are the classes; ``unlabeled``, ``unlabelled`` and ``unsorted``
                                     are none

A folder's name may as well be a date or a camera, which cannot be known: a note says what was taken
for classes.
"""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from semigpc.io.errors import DataError
from semigpc.io.paths import checked, sorted_images
from semigpc.io.tables import (
    COLUMNS,
    LabelTable,
    as_label,
    label_text,
    path_below,
    read_columns,
    read_labels,
)
from semigpc.io.text import listed, ordered, printable

TABLES = ("metadata.csv", "metadata.jsonl", "metadata.parquet", "labels.csv")
NO_CLASS = frozenset(("unlabeled", "unlabelled", "unsorted"))  # names of folders, in any case
# Names of folders that divide data into parts; their own sub-folders may be classes.
PARTS = frozenset(("train", "training", "val", "valid", "validation", "dev", "test", "testing"))
SHOWN = 5  # classes in a note


class GivenLabels(NamedTuple):
    """Labels that a folder of images comes with.

    Attributes:
        labels: by the name of the image, relative to the folder with forward slashes; only of
            images that are there and have a label. May be empty, if there are notes.
        source: the table, or the folder itself for class folders.
        notes: for the user, on where the labels are from and what was not used.
        chosen: images with a label that semigpc chose to be labelled, by its own table.
    """

    labels: dict[str, str]
    source: Path
    notes: tuple[str, ...]
    chosen: frozenset[str] = frozenset()


def given_labels(
    folder: Path, *, class_folders: bool = True, follow_links: bool = False
) -> GivenLabels | None:
    """Return the labels that a folder of images comes with; None if there are none to report on.

    Args:
        folder: of the images.
        class_folders: take the names of its folders for classes, where every image is in one.
        follow_links: use images that links outside of the folder lead to.

    Raises:
        DataError: a table is damaged, has two labels for an image, or names only images that are
            not there.
    """
    images, _ = sorted_images(folder, follow_links=follow_links)
    tables = [folder / name for name in TABLES if (folder / name).is_file()]
    notes: list[str] = []
    for number, path in enumerate(tables):
        table = _read(path, notes)
        if table is None:
            continue
        given = _of_images(path, table, images)
        notes += given.notes
        if not given.labels:
            notes.append(f"{path.name} has no label.")
            continue
        unused = [other.name for other in tables[number + 1 :]]
        if class_folders and _by_folder(images) is not None:
            unused.append("the names of the folders")
        if unused:
            notes.append(f"Not used, since {path.name} has labels: {', '.join(unused)}.")
        return given._replace(notes=tuple(notes))
    by_folder = _by_folder(images) if class_folders else None
    if by_folder is not None:
        notes += _folder_notes(by_folder)
        labels = {name: label for name, label in by_folder.items() if label is not None}
        return GivenLabels(labels, folder, tuple(notes))
    return GivenLabels({}, folder, tuple(notes)) if notes else None


# Tables -------------------------------------------------------------------------------------------


class _NotLabelsError(Exception):
    """A table without the columns of labels; its argument lists the columns that it has."""


class _OnlyGuessesError(Exception):
    """A table in which nobody gave a label."""


def _read(path: Path, notes: list[str]) -> LabelTable | None:
    """Return the labels of a table; None, and a note, if it is about something else."""
    try:
        if path.suffix == ".jsonl":
            return _read_lines(path)
        return _read_table(path)
    except _NotLabelsError as error:
        notes.append(
            f"{path.name} was not used: it does not have the columns {' and '.join(COLUMNS)}; it "
            f"has {listed(error.args[0], SHOWN) or 'none'}. If it holds labels, rename its "
            "columns, and separate them by commas if it is CSV."
        )
    except _OnlyGuessesError:
        notes.append(f"{path.name} was not used: its labels are guesses of semigpc.")
    return None


def _read_table(path: Path) -> LabelTable:
    if next(read_columns(path, _check_columns), None) is None:
        return LabelTable({}, ())
    try:
        return read_labels(path)
    except DataError as error:
        try:
            read_labels(path, trust_pseudo=True)
        except DataError:
            raise error from None
        raise _OnlyGuessesError from error


def _check_columns(names: Sequence[str], _: Path) -> tuple[str, ...]:
    if not set(COLUMNS) <= set(names):
        raise _NotLabelsError(list(names))
    return COLUMNS


def _read_lines(path: Path) -> LabelTable:
    """Read one JSON object per line."""
    labels: dict[str, str | None] = {}
    found: dict[str, None] = {}  # keys of some line
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"Line {number} of {path} is not JSON: {error}. Correct or delete it."
            ) from error
        if not isinstance(record, dict):
            raise DataError(
                f"Line {number} of {path} is not an object with the keys {' and '.join(COLUMNS)}: "
                f"{printable(line.strip()[:40])}. Correct or delete it."
            )
        found |= dict.fromkeys(record)
        if COLUMNS[0] not in record:
            continue
        name = path_below(record[COLUMNS[0]], number, path)
        label = as_label(record.get(COLUMNS[1]), path)
        if labels.setdefault(name, label) != label:
            raise DataError(
                f"{path} has different labels for {name!r}: {labels[name] or 'no label'} and "
                f"{label or 'no label'}. Keep one line for each image."
            )
    if not found.keys() >= {*COLUMNS}:
        raise _NotLabelsError(list(found))
    return LabelTable(labels, ())


def _lines(path: Path) -> list[str]:
    try:
        return checked(path).read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8: {error}. Save it as UTF-8.") from error


def _of_images(path: Path, table: LabelTable, images: Collection[str]) -> GivenLabels:
    """Return the labels of images that are there; a note counts the others."""
    known = set(images)
    missing = [name for name in table.given if name not in known]
    if missing and len(missing) == len(table.given):
        raise DataError(
            f"{path} has labels for {len(missing)} images, and none of them is below "
            f"{path.parent}: {listed(missing, 3)}. Names must be relative to that folder; correct "
            "them, or move the table away."
        )
    notes = [*table.notes]
    labels = {name: label for name, label in table.given.items() if name in known}
    if labels:
        notes.insert(0, f"Labels are taken from {path.name}: {len(labels)} of {len(known)} images.")
    if missing:
        notes.append(
            f"Labels of {path.name} for images that are not there: {len(missing)} "
            f"({listed(missing, 3)})."
        )
    return GivenLabels(labels, path, tuple(notes), table.chosen & labels.keys())


# Class folders ------------------------------------------------------------------------------------


def _by_folder(images: Sequence[str]) -> dict[str, str | None] | None:
    """Return the class of each image by its folder of the first level; None if these are none."""
    places = [name.partition("/") for name in images]
    if not all(slash for _, slash, _ in places):
        return None
    classes = {folder: _class_of(folder) for folder, _, _ in places}
    named = {folder for folder, label in classes.items() if label is not None}
    if len(classes) < 2 or not named or {folder.casefold() for folder in named} <= PARTS:
        return None
    return {name: classes[folder] for name, (folder, _, _) in zip(images, places, strict=True)}


def _class_of(folder: str) -> str | None:
    return None if folder.casefold() in NO_CLASS else label_text(folder)


def _folder_notes(labels: dict[str, str | None]) -> list[str]:
    counts = Counter(labels.values())
    unlabelled = counts.pop(None, 0)
    classes = ordered([name for name in counts if name is not None])
    shown = ", ".join(f"{printable(name)} ({counts[name]})" for name in classes[:SHOWN])
    more = f" and {len(classes) - SHOWN} more" if len(classes) > SHOWN else ""
    notes = [
        f"The names of {len(classes)} folders are taken for the classes of their images: {shown}"
        f"{more}. If they are something else, such as dates or cameras, pass class_folders=False."
    ]
    if not unlabelled:
        notes.append(
            f"All {len(labels)} images lie in class folders, so all have a label. Put images "
            "without one into a folder called unlabeled."
        )
    return notes
