"""CSV files with an empty column in which people write, and which are not replaced once somebody has."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from semigpc.data.dataset import DataError
from semigpc.files import replacing
from semigpc.text import spreadsheet_cell


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
