"""What a review leaves behind: tables of all rows, and the labels by humans for the next round of labelling."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import csv, parquet

from semigpc.files import replacing
from semigpc.labeling.project import Project
from semigpc.review.beliefs import STATUSES, Beliefs
from semigpc.review.history import Answer
from semigpc.text import spreadsheet_cell

TABLES = ("reviewed.parquet", "reviewed.csv")
LABELS = "reviewed_labels.csv"


def write_reviewed(project: Project, beliefs: Beliefs, answers: dict[int, Answer]) -> dict[str, Any]:
    """Write three files into the folder of the project, each in one move.

    ``reviewed.parquet`` and ``reviewed.csv`` hold all rows: id, label, confidence, variance, status, reviewed (whether a human
    vouches for the label) and answer (accepted, corrected, skipped or nothing). ``reviewed_labels.csv`` holds the rows that a
    human labelled, in the table of labels or on the page, and is what ``semigpc label --labels`` takes.
    """
    labels = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(beliefs.codes, mask=beliefs.codes < 0), pyarrow.array(beliefs.names, pyarrow.string())
    ).cast(pyarrow.string())
    kinds: list[str | None] = [None] * len(beliefs)
    for row, answer in answers.items():
        kinds[row] = answer.kind
    vouched = np.array([kind in ("accepted", "corrected") for kind in kinds])
    table = pyarrow.table(
        {
            project.id_name: pyarrow.array(project.ids, pyarrow.string()),
            "label": labels,
            "confidence": beliefs.confidence,
            "variance": beliefs.variance,
            "status": pyarrow.array([STATUSES[code] for code in beliefs.status]),
            "reviewed": vouched,
            "answer": pyarrow.array(kinds, pyarrow.string()),
        }
    )
    known = table.select([project.id_name, "label"]).filter(pyarrow.array(beliefs.taught >= 0))
    _write(project.folder / TABLES[0], lambda path: parquet.write_table(table, path))
    _write(project.folder / TABLES[1], lambda path: csv.write_csv(_for_spreadsheets(table), path))
    _write(project.folder / LABELS, lambda path: csv.write_csv(_for_spreadsheets(known), path))
    files = [str(project.folder / name) for name in (*TABLES, LABELS)]
    return {"files": files, "rows": len(table), "labels": len(known), "reviewed": int(vouched.sum())}


def _for_spreadsheets(table: pyarrow.Table) -> pyarrow.Table:
    """The table with names and texts as CSV files for people hold them."""
    columns = [
        pyarrow.array([value and spreadsheet_cell(value) for value in column.to_pylist()], pyarrow.string())
        if pyarrow.types.is_string(column.type)
        else column
        for column in table.columns
    ]
    return pyarrow.table(columns, names=[spreadsheet_cell(name) for name in table.column_names])


def _write(path: Path, write: Callable[[Path], None]) -> None:
    with replacing(path) as draft:
        write(draft)
