"""A labelling in the formats of other tools: tables, Label Studio, COCO, FiftyOne, CVAT, folders.

    csv, parquet   all rows; a table of labels for semigpc again, in which labels by people count
    label-studio   all rows: annotations by people, and predictions for the others
    coco           rows with a label; an annotation covers its whole image, and has a score if it is
                   not by people
    fiftyone       rows with a label, with confidence, status and grade, as the labels of a
                   FiftyOneImageClassificationDataset. FiftyOne's CSV holds text alone
    cvat           all rows as "CVAT for images 1.1"; labels are tags. CVAT has no CSV format
    folders        rows with a label as CLASS/NAME, links or copies, for ImageFolder of torchvision
                   and ``imagefolder`` of datasets. Other rows are left out: these take every folder
                   for a class

A row has a label if people gave it one (status "labelled") or if it was given out ("pseudo").

FiftyOne: ``Dataset.from_dir(labels_path="fiftyone.json",
dataset_type=fiftyone.types.FiftyOneImageClassificationDataset)``. In CVAT, create a task of the
folder of images with the labels in ``cvat_labels.json`` (tab "Raw"), then upload ``cvat.xml`` as
annotations: images are numbered by name, as CVAT sorts them.
"""

import csv
import json
import os
import re
import shutil
import unicodedata
import uuid
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import pyarrow
from PIL import ExifTags, Image
from pyarrow import parquet
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.estimator import Status
from semigpc.io.atomic import (
    DRAFT,
    EXACT,
    locked,
    push,
    read_json,
    replacing,
    write_json,
    write_text,
    writing,
)
from semigpc.io.errors import DataError, ImageError, SettingsError, WriteError
from semigpc.io.images import opened_image
from semigpc.io.paths import Bad, image_path
from semigpc.io.tables import CHOSEN, YES
from semigpc.io.text import listed, printable, spreadsheet_cell, unknown_name
from semigpc.labeling.columns import Floats
from semigpc.labeling.given import NO_CLASS
from semigpc.labeling.outputs import GIVEN_OUT, LabelStudio
from semigpc.labeling.project import FILE, own_names
from semigpc.labeling.scan import Mask

ANSWER = "answer"
TABLE_COLUMNS = ("label", "guess", "confidence", "variance", "status", "grade", ANSWER, CHOSEN)
HAS_LABEL = frozenset(status.text for status in GIVEN_OUT)
BY_PEOPLE = Status.LABELLED.text
OPEN = Status.ABSTAINED.text
SHOWN = 3  # names in a note or message
NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # not even as references
TURNED = frozenset((5, 6, 7, 8))  # orientations by EXIF that exchange width and height
MARKER = ".semigpc-export.json"  # in the class folders, by which they are known as ours
NOT_IN_FOLDER = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')  # in names of folders, on some system
DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)  # of Windows
LONGEST_NAME = 255  # bytes, of a file or folder
LONGEST_ENDING = 20  # bytes; a longer one is part of the name
# Names by which datasets divides a folder into parts, and then ignores all other files.
SPLIT_NAME = re.compile(
    r"(^|.*[-._ 0-9])(train|training|validation|valid|dev|val|test|testing|eval|evaluation)"
    r"([-._ 0-9].*|$)"
)


class Labels(NamedTuple):
    """All N rows of a labelling as they stand, in the order of the data.

    Attributes:
        id_name: name of the ids. ids: (N,), names of images below ``images`` if that is given.
        classes: in the order to show them.
        label: by people, or given out; None where open.
        guess, confidence, grade, variance, status: as in labels.csv; ``status`` is "labelled" where
            people gave the label. A grade of 0 or NaN is none.
        answer: what a person said on the page: accepted, corrected, skipped or none; or None.
        chosen: (N,) rows that semigpc chose to be labelled, which are no random sample.
        images: the folder of the images; None for a table of embeddings.
        image_url: for Label Studio: text to put before the name of an image.
        follow_links: whether links may lead out of the folder of the images.
    """

    id_name: str
    ids: Sequence[str]
    classes: Sequence[str]
    label: Sequence[str | None]
    guess: Sequence[str | None]
    confidence: Floats
    grade: Floats
    variance: Floats
    status: Sequence[str]
    answer: Sequence[str | None]
    chosen: Mask
    images: Path | None
    image_url: str | None = None
    follow_links: bool = False

    def labelled(self) -> list[tuple[int, str]]:
        """Return the rows that have a label, with it."""
        pairs = zip(self.label, self.status, strict=True)
        return [
            (row, label)
            for row, (label, status) in enumerate(pairs)
            if label is not None and status in HAS_LABEL
        ]


class Exported(NamedTuple):
    """What was written.

    Attributes:
        files: the files, or the folder of class folders.
        rows: how many are in them. labels: how many of these have a label.
        notes: for the user, on what was left out or renamed.
    """

    files: tuple[Path, ...]
    rows: int
    labels: int
    notes: tuple[str, ...] = ()


class Export(NamedTuple):
    """What a format is to write: labels, the folder for its files, copies instead of links."""

    labels: Labels
    out: Path
    copy: bool


@dataclass(frozen=True)
class Format:
    """A format that labels can be written in.

    Args:
        name: as :func:`export_labels` takes it. title: for people.
        file: that it writes, or the folder.
        needs_images: whether rows must be images.
        write: writes it, completely or not at all.
        beside: other files that it writes.
    """

    name: str
    title: str
    file: str
    needs_images: bool
    write: Callable[[Export], Exported]
    beside: tuple[str, ...] = ()


def export_labels(
    labels: Labels,
    name: str,
    out: Path,
    *,
    copy: bool = False,
    overwrite: bool = False,
    grade: float | None = None,
) -> Exported:
    """Write labels in one of FORMATS.

    Args:
        labels: of all rows. name: of the format.
        out: the folder for its files, created if necessary; not that of a labelling itself.
        copy: for class folders, copy images instead of linking to them.
        overwrite: replace files of this format.
        grade: take labels that were given out only where this precision or a higher one is
            guaranteed; labels by people are always taken. Other rows count as open.

    Raises:
        DataError: it does not fit the labels, or something exists there. SettingsError: no such
            format or option. WriteError: it cannot be written.
    """
    if name not in FORMATS:
        raise SettingsError(unknown_name("format", name, FORMATS))
    form = FORMATS[name]
    if copy and name != "folders":
        raise SettingsError(f"copy=True is for the format 'folders'; got {name!r}. Leave it out.")
    if grade is not None:
        if not 0 <= grade <= 1:
            raise SettingsError(f"grade must be a precision from 0 to 1; got {grade}.")
        labels = _of_grade(labels, grade)
    _check(labels, form)
    if (out / FILE).exists():
        raise DataError(
            f"{out} is the folder of a labelling, whose own files must stay. Give another folder, "
            f"such as {out / 'exports'}."
        )
    with locked(out):
        existing = [file for file in (form.file, *form.beside) if os.path.lexists(out / file)]
        if existing and not overwrite:
            raise DataError(
                f"{out} has {listed(existing)} already. Pass overwrite=True to replace what is "
                "there, or give another folder."
            )
        return form.write(Export(labels, out, copy))


def _of_grade(labels: Labels, grade: float) -> Labels:
    """Return the labels with those given out below a grade as open rows."""
    below = ~(np.asarray(labels.grade, np.float64) >= grade - 1e-6)  # grades are float32, or NaN
    open_rows = [
        bool(low) and status != BY_PEOPLE for low, status in zip(below, labels.status, strict=True)
    ]
    label = [
        None if is_open else each for each, is_open in zip(labels.label, open_rows, strict=True)
    ]
    status = [
        OPEN if is_open and each in HAS_LABEL else each
        for each, is_open in zip(labels.status, open_rows, strict=True)
    ]
    return labels._replace(label=label, status=status)


def _check(labels: Labels, form: Format) -> None:
    """Raise a DataError if the labels cannot be written in a format."""
    if form.needs_images and labels.images is None:
        without = [each.name for each in FORMATS.values() if not each.needs_images]
        raise DataError(
            f"{form.title} is for images, and these rows are of a table of embeddings. Name the "
            f"folder of their images, or choose one of {', '.join(without)}."
        )
    for what, names in (("id", labels.ids), ("class", labels.classes)):
        bad = [name for name in names if not _is_utf8(name)]
        if bad:
            raise DataError(
                f"The name of {len(bad)} {'ids' if what == 'id' else 'classes'} is not text in "
                f"UTF-8, such as {printable(bad[0])}. Rename the files, and label them again."
            )
    unknown = {label for label in labels.label if label is not None} - {*labels.classes}
    if unknown:
        raise ValueError(f"labels must be of classes; got {listed(sorted(unknown), SHOWN)}.")


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _labelled(labels: Labels) -> list[tuple[int, str]]:
    rows = labels.labelled()
    if not rows:
        raise DataError(
            "No row has a label of this kind yet, so there is nothing to write. Label some rows, "
            "or lower grade if it was given."
        )
    return rows


# Tables -------------------------------------------------------------------------------------------


def _table(labels: Labels) -> pyarrow.Table:
    """Return all rows as a table that semigpc knows as its own, by its columns."""
    number = pyarrow.float32()
    text = pyarrow.string()
    grades = np.asarray(labels.grade, np.float64).round(6)
    is_open = ~(grades > 0)
    given_out: list[str | None] = [None] * len(labels.ids)
    for row, label in labels.labelled():
        given_out[row] = label
    columns = [
        pyarrow.array(labels.ids, text),
        pyarrow.array(given_out, text),
        pyarrow.array(labels.guess, text),
        pyarrow.array(labels.confidence, number),
        pyarrow.array(labels.variance, number),
        pyarrow.array(labels.status, text),
        pyarrow.array(grades, pyarrow.float64(), mask=is_open),
        pyarrow.array(labels.answer, text),
        pyarrow.array([YES if each else None for each in labels.chosen], text),
    ]
    return pyarrow.table(columns, names=[labels.id_name, *own_names(TABLE_COLUMNS, labels.id_name)])


def _write_csv(export: Export) -> Exported:
    table = _table(export.labels)
    path = export.out / "labels.csv"
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        # With the default line ends: with others, csv does not quote a bare CR.
        writer = csv.writer(file)
        writer.writerow([spreadsheet_cell(name) for name in table.column_names])
        for batch in table.to_batches(max_chunksize=10_000):
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            writer.writerows([_cell(value) for value in row] for row in rows)
    return Exported((path,), len(table), len(export.labels.labelled()))


def _cell(value: str | float | None) -> str:
    if isinstance(value, str):
        return spreadsheet_cell(value)
    if value is None:
        return ""
    text = f"{value:.6g}"
    # Readers infer the type of a column from its first rows, and would take 1 for an integer.
    return text if "." in text or "e" in text else f"{text}.0"


def _write_parquet(export: Export) -> Exported:
    table = _table(export.labels)
    path = export.out / "labels.parquet"
    with replacing(path) as draft:
        parquet.write_table(table, draft, write_page_checksum=True)
    return Exported((path,), len(table), len(export.labels.labelled()))


# Label Studio -------------------------------------------------------------------------------------


def _write_label_studio(export: Export) -> Exported:
    labels = export.labels
    _check_xml(labels.classes, "Label Studio")
    studio = LabelStudio(labels.images, labels.image_url, f"semigpc-{version('semigpc')}")
    tasks = export.out / "label_studio.json"
    interface = tasks.with_suffix(".xml")
    write_text(interface, studio.interface(labels.classes))
    rows = zip(
        labels.ids, labels.label, labels.guess, labels.confidence, labels.status, strict=True
    )
    with replacing(tasks) as draft, draft.open("w", encoding="utf-8") as file:
        separator = "[\n"
        for name, label, guess, confidence, status in rows:
            shown = label if status == BY_PEOPLE else guess
            file.write(separator + studio.task(name, shown, float(confidence), status))
            separator = ",\n"
        file.write("\n]\n")
    return Exported((tasks, interface), len(labels.ids), len(labels.labelled()))


def _check_xml(names: Iterable[str], tool: str) -> None:
    bad = [name for name in names if NOT_IN_XML.search(name)]
    if bad:
        raise DataError(
            f"{tool} reads XML, which cannot hold the control characters in {len(bad)} names, such "
            f"as {printable(bad[0])}. Rename them, or choose another format."
        )


# Sizes and files of images ------------------------------------------------------------------------


class _Images:
    """The files of rows; ``bad`` has those that cannot be used, which are left out."""

    def __init__(self, labels: Labels) -> None:
        assert labels.images is not None
        self.labels = labels
        self.folder = labels.images.resolve()
        self.bad: list[Bad] = []

    def path(self, row: int) -> Path | None:
        """Return the file of a row; None if there is none, or a link to it leads out."""
        name = self.labels.ids[row]
        path = image_path(self.folder, name, self.labels.follow_links)
        if path is None:
            self.bad.append((printable(name), "it does not exist, or lies outside of the folder"))
        return path

    def size(self, row: int) -> tuple[int, int] | None:
        """Return width and height of the upright image, from its header."""
        path = self.path(row)
        if path is None:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow warns about odd images that it can read
                with opened_image(path) as opened:
                    # Image's own method: that of PNG would decode the image.
                    turn = Image.Image.getexif(opened).get(ExifTags.Base.Orientation)
                    width, height = opened.size
        except ImageError as error:
            self.bad.append((printable(self.labels.ids[row]), str(error)))
            return None
        return (height, width) if turn in TURNED else (width, height)

    def notes(self) -> tuple[str, ...]:
        """Return a note on the images that were left out, if there are any."""
        if not self.bad:
            return ()
        first = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in self.bad[:SHOWN])
        return (
            f"Images that were left out, since they cannot be read: {len(self.bad)} ({first}).",
        )

    def check_some(self, written: int) -> None:
        """Raise a DataError if no image could be read."""
        if not written:
            raise DataError(f"{self.folder} has none of the images. {' '.join(self.notes())}")


# COCO ---------------------------------------------------------------------------------------------


def _write_coco(export: Export) -> Exported:
    """Write categories of whole images as annotations whose box and polygon cover the image.

    COCO knows no category of an image: pycocotools requires ``area`` and ``iscrowd``, and a
    segmentation to make a mask. Ids begin at 1; that of an image is its row in the data.
    """
    labels = export.labels
    numbers = {name: number for number, name in enumerate(labels.classes, start=1)}
    files = _Images(labels)
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for row, label in _labelled(labels):
        size = files.size(row)
        if size is None:
            continue
        width, height = size
        number = row + 1
        images.append(
            {"id": number, "file_name": labels.ids[row], "width": width, "height": height}
        )
        annotation: dict[str, object] = {
            "id": len(annotations) + 1,
            "image_id": number,
            "category_id": numbers[label],
            "bbox": [0, 0, width, height],
            "area": width * height,
            "segmentation": [[0, 0, width, 0, width, height, 0, height]],
            "iscrowd": 0,
        }
        if labels.status[row] != BY_PEOPLE:
            annotation["score"] = round(float(labels.confidence[row]), 6)
        annotations.append(annotation)
    files.check_some(len(images))
    about = f"Labels of whole images, by semigpc {version('semigpc')}. An annotation covers its "
    about += "image; those with a score are not by people."
    content = {
        "info": {"description": about, "version": "1.0"},
        "licenses": [],
        "images": images,
        "categories": [
            {"id": number, "name": name, "supercategory": ""} for name, number in numbers.items()
        ],
        "annotations": annotations,
    }
    path = export.out / "coco.json"
    write_text(path, json.dumps(content, ensure_ascii=False) + "\n")
    return Exported((path,), len(images), len(annotations), files.notes())


# FiftyOne -----------------------------------------------------------------------------------------


def _write_fiftyone(export: Export) -> Exported:
    """Write labels by the absolute paths of the images.

    FiftyOne drops the endings of relative names, so that two images which differ in their endings,
    or an image and a text beside it, would be one.
    """
    labels = export.labels
    numbers = {name: number for number, name in enumerate(labels.classes)}
    files = _Images(labels)
    targets: dict[str, object] = {}
    for row, label in _labelled(labels):
        path = files.path(row)
        if path is None:
            continue
        attributes: dict[str, object] = {"status": labels.status[row]}
        if labels.grade[row] > 0:
            attributes["grade"] = round(float(labels.grade[row]), 6)
        targets[str(path)] = {
            "label": numbers[label],
            "confidence": round(float(labels.confidence[row]), 6),
            "attributes": attributes,
        }
    files.check_some(len(targets))
    path = export.out / "fiftyone.json"
    content = {"classes": list(labels.classes), "labels": targets}
    write_text(path, json.dumps(content, ensure_ascii=False) + "\n")
    return Exported((path,), len(targets), len(targets), files.notes())


# CVAT ---------------------------------------------------------------------------------------------


def _write_cvat(export: Export) -> Exported:
    """Write all images in the order of their names, in which CVAT numbers those of a task.

    CVAT reads labels that the task has, and rejects attributes that it does not have; so there is
    no confidence.
    """
    labels = export.labels
    _check_xml([*labels.classes, *labels.ids], "CVAT")
    by_row = dict(labels.labelled())
    files = _Images(labels)
    lines: list[str] = []
    number = 0
    for row in sorted(range(len(labels.ids)), key=lambda row: labels.ids[row]):
        size = files.size(row)
        if size is None:
            by_row.pop(row, None)
            continue
        name = quoteattr(labels.ids[row])
        width, height = size
        lines.append(f'  <image id="{number}" name={name} width="{width}" height="{height}">')
        if row in by_row:
            source = "manual" if labels.status[row] == BY_PEOPLE else "auto"
            lines.append(f'    <tag label={quoteattr(by_row[row])} source="{source}"></tag>')
        lines.append("  </image>")
        number += 1
    files.check_some(number)
    header = _cvat_header(labels.classes, number)
    path = export.out / "cvat.xml"
    task = export.out / "cvat_labels.json"
    tags = [{"name": name, "type": "tag", "attributes": []} for name in labels.classes]
    write_json(task, tags)
    write_text(path, "\n".join([*header, *lines, "</annotations>", ""]))
    return Exported((path, task), number, len(by_row), files.notes())


def _cvat_header(classes: Sequence[str], images: int) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="utf-8"?>'
    yield "<annotations>"
    yield "  <version>1.1</version>"
    yield f"  <meta><task><name>semigpc</name><size>{images}</size><mode>annotation</mode><labels>"
    for name in classes:
        text = escape(name, {"\r": "&#13;"})
        yield f"    <label><name>{text}</name><type>tag</type><attributes></attributes></label>"
    yield "  </labels></task></meta>"


# Class folders ------------------------------------------------------------------------------------


@with_config(EXACT)
class _Marker(TypedDict):
    """The marker: the class of each folder, and the files below it."""

    classes: dict[str, str]
    files: list[str]


def _write_folders(export: Export) -> Exported:
    """Write CLASS/NAME for every row with a label, in a draft that is then renamed."""
    labels = export.labels
    rows = _labelled(labels)
    files = _Images(labels)
    paths = {row: path for row, _ in rows if (path := files.path(row)) is not None}
    files.check_some(len(paths))
    used = {label for row, label in rows if row in paths}
    folders = _folder_names([name for name in labels.classes if name in used])
    by_class: defaultdict[str, list[int]] = defaultdict(list)
    for row, label in rows:
        if row in paths:
            by_class[label].append(row)
    names = {
        row: f"{folders[label]}/{name}"
        for label, members in by_class.items()
        for row, name in _file_names([labels.ids[row] for row in members], members).items()
    }
    target = export.out / "classes"
    with _new_folder(target) as draft:
        for folder in folders.values():
            (draft / folder).mkdir()
        for row, name in names.items():
            _place(paths[row], draft / name, copy=export.copy)
        classes = {folder: label for label, folder in folders.items()}
        marker: _Marker = {"classes": classes, "files": sorted(names.values())}
        write_json(draft / MARKER, marker)
        for folder in folders.values():
            push(draft / folder)
    notes = (*files.notes(), *_renamed(folders), *_split_note(names.values()))
    return Exported((target,), len(names), len(names), notes)


def _place(path: Path, place: Path, *, copy: bool) -> None:
    """Copy an image, or link to it, by a relative path where there is one."""
    if copy:
        shutil.copyfile(path, place)
        push(place)
        return
    try:
        aim = os.path.relpath(path, place.parent.resolve())
    except ValueError:  # another drive
        aim = str(path)
    try:
        place.symlink_to(aim)
    except (OSError, NotImplementedError) as error:
        raise WriteError(
            f"{place.parent.parent.parent} cannot hold links: {error}. Pass copy=True to copy the "
            "images."
        ) from error


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Yield the path of a draft that replaces ``target`` when the block ends without an error.

    Raises:
        DataError: what is there was not written by this module, or has other files too.
    """
    if os.path.lexists(target):
        _check_ours(target)
    name = f".{target.name}.{uuid.uuid4().hex[:8]}{DRAFT}"
    draft = target.with_name(name)
    earlier = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}{DRAFT}")
    for remains in target.parent.glob(f".{target.name}.????????{DRAFT}"):  # of killed processes
        shutil.rmtree(remains, ignore_errors=True)
    try:
        with writing(target):
            draft.mkdir()
            yield draft
            if target.exists():
                target.rename(earlier)
            try:
                draft.rename(target)
            except OSError:
                if earlier.exists():
                    earlier.rename(target)
                raise
            push(target.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(earlier, ignore_errors=True)


def _check_ours(target: Path) -> None:
    remedy = "Move it away, or give another folder."
    try:
        marker = read_json(target / MARKER, _Marker, error=DataError, remedy=remedy)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{target} was not written by semigpc. {remedy}") from None
    if target.is_symlink():
        raise DataError(f"{target} is a link. {remedy}")
    known = {MARKER, *marker["files"]}
    found = [
        (Path(place) / file).relative_to(target).as_posix()
        for place, _, files in os.walk(target)
        for file in files
    ]
    foreign = sorted({*found} - known)
    if foreign:
        raise DataError(
            f"{target} has {len(foreign)} files that semigpc did not write, such as "
            f"{printable(foreign[0])}. {remedy}"
        )


def _folder_names(classes: Sequence[str]) -> dict[str, str]:
    """Return a name for the folder of each class, that every file system and reader takes.

    It is the class itself wherever possible. Names that differ only in case are one on some
    systems; hidden folders, and those that begin with two underscores, are skipped by readers.
    """
    taken: set[str] = set()
    # Classes that keep their names come first, so that no other one takes them.
    order = sorted(classes, key=lambda name: _folder_name(name) != name)
    names = {name: _unique(_folder_name(name), taken) for name in order}
    return {name: names[name] for name in classes}


def _folder_name(name: str) -> str:
    text = NOT_IN_FOLDER.sub("_", name).rstrip(". ")
    if not text or text.startswith((".", "__")) or text.strip() != text:
        text = f"class {text.strip()}".rstrip()
    if DEVICES.fullmatch(text) or text.casefold() in NO_CLASS:
        text += "_"
    return text


def _file_names(ids: Sequence[str], rows: Sequence[int]) -> dict[int, str]:
    """Return a file name for each row of a class: that of its image, or with sub-folders in front.

    Sub-folders are added where images in several of them have the same name.
    """
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for name in ids:
        by_name[_key(PurePosixPath(name).name)].append(name)
    taken: set[str] = set()
    names: dict[int, str] = {}
    # Single names first, so that none of the others takes them.
    order = sorted(
        zip(rows, ids, strict=True), key=lambda pair: len(by_name[_key(_last(pair[1]))]) > 1
    )
    for row, name in order:
        single = len(by_name[_key(_last(name))]) == 1
        names[row] = _unique(_last(name) if single else name.replace("/", "-"), taken)
    return {row: names[row] for row in rows}


def _last(name: str) -> str:
    return PurePosixPath(name).name


def _key(name: str) -> str:
    """Return what is equal for names that some file system takes for the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _unique(name: str, taken: set[str]) -> str:
    """Return the name, cut where it is too long, numbered where it is taken; it is taken then."""
    ending = PurePosixPath(name).suffix
    if len(ending.encode()) > LONGEST_ENDING:
        ending = ""
    stem = name.removesuffix(ending).encode()
    for mark in chain([""], (f"-{number}" for number in count(2))):
        room = LONGEST_NAME - len((mark + ending).encode())
        candidate = f"{stem[:room].decode('utf-8', 'ignore')}{mark}{ending}"
        if _key(candidate) not in taken:
            break
    taken.add(_key(candidate))
    return candidate


def _renamed(folders: Mapping[str, str]) -> tuple[str, ...]:
    changed = [f"{label!r} is {folder!r}" for label, folder in folders.items() if label != folder]
    if not changed:
        return ()
    first = ", ".join(printable(each) for each in changed[:SHOWN])
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return (f"Classes whose names no folder can have, or that differ only in case: {first}{more}.",)


def _split_note(names: Iterable[str]) -> tuple[str, ...]:
    """Return a note on names that datasets takes for parts of a data set, if there are any."""
    parts = [name for name in names if any(map(SPLIT_NAME.fullmatch, name.split("/")))]
    if not parts:
        return ()
    return (
        f"Hugging Face datasets would take names such as {printable(parts[0])} for parts of the "
        "data, and ignore the rest: load it with data_files={'train': 'classes/**'}.",
    )


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        each.name: each
        for each in (
            Format("csv", "CSV", "labels.csv", False, _write_csv),
            Format("parquet", "Parquet", "labels.parquet", False, _write_parquet),
            Format(
                "label-studio",
                "Label Studio",
                "label_studio.json",
                False,
                _write_label_studio,
                ("label_studio.xml",),
            ),
            Format("coco", "COCO", "coco.json", True, _write_coco),
            Format("fiftyone", "FiftyOne", "fiftyone.json", True, _write_fiftyone),
            Format("cvat", "CVAT", "cvat.xml", True, _write_cvat, ("cvat_labels.json",)),
            Format("folders", "Class folders", "classes", True, _write_folders),
        )
    }
)
