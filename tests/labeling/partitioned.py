"""Partitions of the usual rows, cut at odd places, one of them empty, and how labels compare."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import parquet

from semigpc.labeling.label import LabelSettings
from semigpc.labeling.project import Project
from tests.labeling.samples import blobs, some_labels, table_of, write_labels

ROUNDING = 1e-5  # by which numbers may differ if rows are scored among others
CUTS = (0, 700, 701, 701, 2600, 3000)
X, IDS, TRUTH = blobs(CUTS[-1])
LABELS = some_labels(IDS, TRUTH)


def write_partitions(folder: Path, x: NDArray[Any] = X, ids: list[str] = IDS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    table = table_of(x, ids)
    for number, (start, stop) in enumerate(pairwise(CUTS)):
        path = folder / f"part-{number:02d}.parquet"
        parquet.write_table(table.slice(start, stop - start), path, row_group_size=300)
    return folder


def write_uneven(folder: Path) -> Path:
    """Two partitions; the second embedding of the second is shorter."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, lists in enumerate([[[1.0, 2.0]] * 3, [[1.0, 2.0], [1.0]]]):
        ids = [f"{number}-{row}" for row in range(len(lists))]
        table = pyarrow.table({"id": ids, "embedding": lists})
        parquet.write_table(table, folder / f"{number}.parquet")
    return folder


def partitioned(folder: Path, **changes: Any) -> LabelSettings:
    data = folder / "data"
    if not data.exists():
        write_partitions(data)
    labels = write_labels(folder / "labels.csv", LABELS)
    plain = LabelSettings(data=data, labels=labels, out=folder / "out", report=False)
    return replace(plain, **changes)


def read_labels(out: Path) -> pyarrow.Table:
    parts = sorted((out / "labels").glob("*.parquet"))
    return pyarrow.concat_tables([parquet.read_table(part) for part in parts])


def assert_same_labels(ours: pyarrow.Table, local: pyarrow.Table, project: Project) -> None:
    """Numbers agree to rounding, and all else does unless rounding could decide it."""
    assert ours.schema == local.schema
    assert ours.column("id").equals(local.column("id"))
    for name in ("confidence", "variance"):
        found, expected = (table.column(name).to_numpy() for table in (ours, local))
        np.testing.assert_allclose(found, expected, atol=ROUNDING, rtol=0)
    model = project.model()
    probs = np.sort(model.predict_proba(project.embeddings(np.arange(local.num_rows))), axis=1)
    confidence = local.column("confidence").to_numpy()
    at_threshold = np.abs(confidence - model.threshold_[0]) <= ROUNDING
    tied = (probs[:, -1] - probs[:, -2] <= ROUNDING) | at_threshold
    assert tied.sum() < 0.01 * len(tied)  # else little would be compared
    clear = pyarrow.array(~tied)
    for name in ("label", "guess", "status"):
        assert ours.column(name).filter(clear).equals(local.column(name).filter(clear)), name
    both = (table.column("reasons").filter(clear) for table in (ours, local))
    for one, other in zip(*both, strict=True):
        weights = [[reason["weight"] for reason in reasons.as_py()] for reasons in (one, other)]
        np.testing.assert_allclose(weights[0], weights[1], atol=ROUNDING, rtol=ROUNDING)
        gaps = np.abs(np.diff(weights[0])) > ROUNDING  # reasons of equal weight may change places
        names = [[reason["id"] for reason in reasons.as_py()] for reasons in (one, other)]
        assert not gaps.all() or names[0][:-1] == names[1][:-1]
