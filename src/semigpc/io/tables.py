"""Tables of labels: CSV or Parquet files with the columns ``file_name`` and ``label``."""

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from semigpc.io.errors import DataError
from semigpc.io.paths import checked
from semigpc.io.text import from_spreadsheet_cell, label_text, listed, printable

COLUMNS = ("file_name", "label")
SUFFIXES = (".csv", ".parquet")
LONGEST_LABEL = 1000  # characters; a longer text is not a name but another column

Choose = Callable[
    [Sequence[str], Path], tuple[str, str]
]  # selects the two columns to read, given those of a file


def is_table(path: Path) -> bool:
    """Return whether a path ends like a table."""
    return path.suffix.lower() in SUFFIXES


def read_labels(path: Path) -> dict[str, str | None]:
    """Return the class of each file in a table, or None where it has no label, in the order of the
    table.

    :func:`semigpc.io.text.label_text` defines what counts as no label. A row may be repeated, but
    not with another label.
    """
    labels: dict[str, str | None] = {}
    conflicts: dict[str, set[str]] = {}
    for number, (file_name, value) in enumerate(read_pairs(path, _check_columns), start=1):
        name, label = path_below(file_name, number, path), as_label(value, path)
        if labels.setdefault(name, label) != label:
            conflicts.setdefault(name, {labels[name] or "no label"}).add(label or "no label")
    if conflicts:
        first, different = next(iter(conflicts.items()))
        raise DataError(
            f"{path} gives different labels to the same image for {len(conflicts)} of its images: {first} has "
            f"{' and '.join(sorted(different))}. Keep one row for each image."
        )
    if not labels:
        raise DataError(
            f"{path} lists no images. It needs one row for each, with the columns {' and '.join(COLUMNS)}."
        )
    return labels


def read_pairs(path: Path, choose: Choose) -> Iterator[tuple[Any, Any]]:
    """Yield two columns of a CSV or Parquet file, row by row, as they are written there."""
    checked(path)
    return (
        _parquet_rows(path, choose)
        if path.suffix.lower() == ".parquet"
        else _csv_rows(path, choose)
    )


def _csv_rows(path: Path, choose: Choose) -> Iterator[tuple[Any, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = [from_spreadsheet_cell(name) for name in reader.fieldnames or []]
            first, second = choose(reader.fieldnames, path)
            for row in reader:
                name, label = (
                    value and from_spreadsheet_cell(value) for value in (row[first], row[second])
                )
                yield name, label
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read as CSV: {error}. Save it as comma-separated UTF-8 text."
        ) from error


def _parquet_rows(path: Path, choose: Choose) -> Iterator[tuple[Any, Any]]:
    # Imported here since it takes a third of a second, and most data have no Parquet file.
    import pyarrow
    from pyarrow import parquet

    try:
        columns = choose(parquet.read_schema(path).names, path)
        table = parquet.read_table(
            path, columns=list(columns), partitioning=None, page_checksum_verification=True
        )
        table.validate(
            full=True
        )  # before any value is read: damaged offsets point outside of the buffers
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise DataError(
            f"{path} cannot be read as Parquet: {reason}. Write it again, or save it as CSV."
        ) from error
    yield from zip(*(table.column(name).to_pylist() for name in columns), strict=True)


def _check_columns(columns: Sequence[str], path: Path) -> tuple[str, str]:
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise DataError(
            f"{path} must have the columns {' and '.join(COLUMNS)}; it has {listed(columns) or 'none'}, not {listed(missing)}. "
            "Rename the columns, and separate them by commas if the file is CSV."
        )
    return COLUMNS


def path_below(value: Any, number: int, path: Path) -> str:
    """Return the file's path below the root, always with forward slashes."""
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"Row {number} of {path} has no file_name. Fill it in, or delete the row.")
    name = PurePosixPath(value.strip())
    if name.is_absolute():
        raise DataError(
            f"Row {number} of {path} has the absolute path {value}; a file_name must be relative to the root of the images, "
            "so that the data mean the same on another machine."
        )
    if ".." in name.parts:
        raise DataError(
            f"Row {number} of {path} has the path {value}, which leads out of the root of the images. Move the file into it."
        )
    return str(name)


def as_label(value: Any, where: object = "a table of labels") -> str | None:
    """Return the class in a cell, or None; see :func:`semigpc.io.text.label_text`.

    Raises:
        DataError: the name is too long for a class.
    """
    label = label_text(value)
    if label is not None and len(label) > LONGEST_LABEL:
        raise DataError(
            f"A label in {where} has {len(label)} characters, and {LONGEST_LABEL} is the most: it begins with "
            f"{printable(label[:40])!r}. Shorten it, or name the right column of labels."
        )
    return label
