"""The same small table of embeddings in every kind of file, and how it is labelled."""

import csv as plain_csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import csv, feather, ipc, parquet

from semigpc.labeling.label import LabelSettings, label_data

CLASSES = ("ant", "bee", "cat")
KINDS = ("parquet", "feather", "arrow", "csv", "npz", "shards")


def blobs(
    rows: int = 300, width: int = 6, *, seed: int = 0
) -> tuple[NDArray[np.float32], list[str], list[str]]:
    """Three clouds of unequal size: embeddings (rows, width), ids, and the class of each."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, width)) * 2.5
    codes = rng.choice(3, size=rows, p=(0.6, 0.3, 0.1))
    x = (centres[codes] + rng.normal(size=(rows, width))).astype(np.float32)
    return x, [f"row-{i:05d}" for i in range(rows)], [CLASSES[c] for c in codes]


def list_column(x: NDArray[Any]) -> pyarrow.Array:
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), x.shape[1])


def table_of(x: NDArray[Any], ids: list[str], **extra: Any) -> pyarrow.Table:
    return pyarrow.table({"id": ids, "embedding": list_column(x), **extra})


def write(folder: Path, kind: str, x: NDArray[Any], ids: list[str], *, group: int = 64) -> Path:
    """One of KINDS; what is cut into groups or shards is cut at odd places."""
    table, path = table_of(x, ids), folder / f"data.{kind}"
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=group)
    elif kind == "feather":
        feather.write_feather(table, path, chunksize=group + 7)
    elif kind == "arrow":
        with pyarrow.OSFile(str(path), "wb") as file, ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=group - 3)
    elif kind == "csv":
        columns = {f"f{i}": x[:, i] for i in range(x.shape[1])}
        csv.write_csv(pyarrow.table({"id": ids, **columns}), path)
    elif kind == "npz":
        np.savez(path, x=x, ids=np.array(ids))
    else:
        path = folder / "shards"
        path.mkdir()
        for number, start in enumerate(range(0, len(ids), 100)):
            shard = path / f"{number:03d}.parquet"
            parquet.write_table(table.slice(start, 100), shard, row_group_size=group)
    return path


def write_labels(path: Path, labels: dict[str, str], id_name: str = "id") -> Path:
    lines = [f"{id_name},label", *(f"{name},{label}" for name, label in labels.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(plain_csv.DictReader(file))


def write_rows(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = plain_csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def some_labels(ids: list[str], classes: list[str], each: int = 12) -> dict[str, str]:
    """The first few of every class."""
    chosen = {name: [i for i, c in enumerate(classes) if c == name][:each] for name in CLASSES}
    return {ids[i]: classes[i] for rows in chosen.values() for i in rows}


X, IDS, TRUTH = blobs()  # what most tests label ...
LABELS = some_labels(IDS, TRUTH)  # ... from these


def settings(folder: Path, **changes: Any) -> LabelSettings:
    """Of the usual table, written to ``folder`` if it is not there; ``changes`` may name others."""
    data = folder / "data.parquet"
    if "data" not in changes and not data.exists():
        write(folder, "parquet", X, IDS)
    labels = write_labels(folder / "labels.csv", LABELS)
    plain = LabelSettings(data=data, labels=labels, out=folder / "out", report=False)
    return replace(plain, **changes)


def labels_of(folder: Path) -> pyarrow.Table:
    return parquet.read_table(folder / "labels.parquet")


def labelled_table(folder: Path, x: NDArray[Any], ids: list[str], labels: dict[str, str]) -> Path:
    """Return the folder of labels of a table of its own, which is written to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table_of(x, ids), folder / "data.parquet")
    wanted = settings(folder)
    write_labels(folder / "labels.csv", labels)
    label_data(wanted)
    return wanted.out
