"""From finished parts to the files that people use: labels.parquet, labels.csv, label_studio.json, and the counts."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from semigpc.files import replacing
from semigpc.labeling.label_studio import LabelStudio
from semigpc.labeling.parts import OTHERS, schema_of
from semigpc.text import spreadsheet_cell

LISTED = 100  # outliers that are named in the report


@dataclass
class Tally:
    """Counts over all rows: of each status, of pseudo-labels in each class; and the farthest outliers."""

    statuses: Counter[str] = field(default_factory=Counter)
    pseudo: Counter[str] = field(default_factory=Counter)
    outliers: list[dict[str, Any]] = field(default_factory=list)

    def add(self, table: pyarrow.Table, id_name: str) -> None:
        """Count a part."""
        names, labels, confidence, variance, status = (
            table.column(name).to_pylist() for name in (id_name, "label", "confidence", "variance", "status")
        )
        self.statuses.update(status)
        self.pseudo.update(label for label, what in zip(labels, status, strict=True) if what == "pseudo")
        found = [
            {"id": names[row], "label": labels[row], "confidence": confidence[row], "variance": variance[row]}
            for row, what in enumerate(status)
            if what == "outlier"
        ]
        self.outliers = sorted([*self.outliers, *found], key=lambda entry: -entry["variance"])[:LISTED]


def write_tables(parts: Iterable[pyarrow.Table], out: Path, id_name: str, studio: LabelStudio) -> Tally:
    """Write the tables part by part, so that only one is in memory; each file appears when it is complete."""
    tally = Tally()
    with (
        replacing(out / "labels.parquet") as table_draft,
        replacing(out / "labels.csv") as csv_draft,
        replacing(out / "label_studio.json") as studio_draft,
        parquet.ParquetWriter(table_draft, schema_of(id_name)) as table_file,
        csv_draft.open("w", newline="", encoding="utf-8") as csv_file,
        studio_draft.open("w", encoding="utf-8") as studio_file,
    ):
        writer = csv.writer(csv_file)
        writer.writerow([spreadsheet_cell(id_name), *OTHERS])
        separator = "[\n"
        for table in parts:
            table_file.write_table(table)
            writer.writerows(_csv_rows(table, id_name))
            for task in studio.tasks(table, id_name):
                studio_file.write(separator + task)
                separator = ",\n"
            tally.add(table, id_name)
        studio_file.write("\n]\n")
    return tally


def _decimal(value: float) -> str:
    """With a point, since readers guess a column's kind from its first rows."""
    text = f"{value:.6g}"
    return text if "." in text or "e" in text else f"{text}.0"


def _csv_rows(table: pyarrow.Table, id_name: str) -> Iterator[tuple[str, ...]]:
    names, labels, confidence, variance, status = (
        table.column(name).to_pylist() for name in (id_name, "label", "confidence", "variance", "status")
    )
    for row, reasons in enumerate(_reason_texts(table.column("reasons").combine_chunks())):
        name, label = spreadsheet_cell(names[row]), spreadsheet_cell(labels[row] or "")
        yield name, label, _decimal(confidence[row]), _decimal(variance[row]), status[row], reasons


def _reason_texts(column: pyarrow.ListArray) -> Iterator[str]:
    """Each row's reasons as JSON; flat lists are several times as quick to go through as nested ones."""
    structs, offsets = column.values, column.offsets.to_pylist()
    ids, labels, weights = (structs.field(name).to_pylist() for name in ("id", "label", "weight"))
    texts = [
        f'{{"id": {_quoted(name)}, "label": {_quoted(label)}, "weight": {weight:.6g}}}'
        for name, label, weight in zip(ids, labels, weights, strict=True)
    ]
    return (f"[{', '.join(texts[start:stop])}]" for start, stop in pairwise(offsets))


@lru_cache(maxsize=100_000)
def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
