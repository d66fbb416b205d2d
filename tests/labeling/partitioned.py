"""Partitions of the usual rows, cut at odd places, with an empty one among them."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
from numpy.typing import NDArray
from pyarrow import parquet

from semigpc.labeling.inputs import LabelSettings
from tests.labeling.samples import blobs, some_labels, table_of, write_labels

CUTS = (0, 700, 701, 701, 2600, 3000)
X, IDS, TRUTH = blobs(CUTS[-1])
LABELS = some_labels(IDS, TRUTH)


def write_partitions(folder: Path, x: NDArray[Any] = X, ids: list[str] = IDS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    table = table_of(x, ids)
    for number, (start, stop) in enumerate(pairwise(CUTS)):
        parquet.write_table(table.slice(start, stop - start), folder / f"part-{number:02d}.parquet", row_group_size=300)
    return folder


def partitioned(folder: Path, **changes: Any) -> LabelSettings:
    data = folder / "data"
    if not data.exists():
        write_partitions(data)
    labels = write_labels(folder / "labels.csv", LABELS)
    return replace(LabelSettings(data=data, labels=labels, out=folder / "out", report=False), **changes)


def read_labels(out: Path) -> pyarrow.Table:
    return pyarrow.concat_tables([parquet.read_table(part) for part in sorted((out / "labels").glob("*.parquet"))])
