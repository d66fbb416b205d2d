"""Labels that were given: a CSV or Parquet file with a column of ids and one of labels, or a column of the data themselves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semigpc.data.dataset import DataError, listed
from semigpc.data.paths import checked
from semigpc.data.tables import SUFFIXES, as_label, is_table, path_below, read_pairs
from semigpc.labeling.columns import unknown_column

LABEL = "label"
ID_NAMES = ("file_name", "id")  # that a file of labels may use, whatever the data call their ids


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


class Matching:
    """Given labels as rows go by; at the end, those that belong to no row.

    Args:
        labels: by id; None takes them from the data themselves.
    """

    def __init__(self, labels: dict[str, str] | None) -> None:
        self.labels = labels
        self.left = set(labels or ())

    def of(self, ids: Sequence[str], own: Sequence[str | None] | None) -> list[str | None]:
        """The label of each of these rows, or None."""
        if self.labels is None:
            return list(own) if own is not None else [None] * len(ids)
        found = [self.labels.get(name) for name in ids]
        self.left.difference_update(name for name, label in zip(ids, found, strict=True) if label is not None)
        return found

    def check(self, path: Path | None, data: object, some_ids: Sequence[str]) -> None:
        """Refuse labels of rows that are not there."""
        if self.left and self.labels is not None:
            unknown = [name for name in self.labels if name in self.left]
            raise DataError(
                f"{path} has labels for rows that are not in {data}, {len(unknown)} in all: {listed(unknown, 3)}. Ids there "
                f"look like {' and '.join(map(repr, some_ids[:2]))}. Mend the names, name the right column of ids (--id), or "
                "delete the rows."
            )
