"""The second pass over the data: every row gets its label, how sure that is, and why; one shard after the other."""

import numpy as np
import pyarrow
from numpy.typing import NDArray

from semigpc.estimator import STATUSES, Answers, SemiGPClassifier
from semigpc.labeling.scan import Scan
from semigpc.labeling.source import Batch

LABELLED = "labelled"
ALL_STATUSES = (LABELLED, *STATUSES)
TOP = 3  # reasons for each row
OTHERS = ("label", "confidence", "variance", "status", "reasons")  # columns beside the ids
REASON = pyarrow.struct([("id", pyarrow.string()), ("label", pyarrow.string()), ("weight", pyarrow.float32())])


def schema_of(id_name: str) -> pyarrow.Schema:
    """Of the table of labels."""
    kinds = (pyarrow.string(), pyarrow.float32(), pyarrow.float32(), pyarrow.string(), pyarrow.list_(REASON))
    return pyarrow.schema([(id_name, pyarrow.string()), *zip(OTHERS, kinds, strict=True)])


class Labeller:
    """Turns batches of rows into tables of labels.

    Rows that were given a label keep it, with confidence 1. A row without a usable embedding has no label but a given one,
    confidence 0, variance 1 and no reasons, and is abstained from.

    Args:
        model: fitted. scan: what the first pass found. id_name: of the first column.
    """

    def __init__(self, model: SemiGPClassifier, scan: Scan, id_name: str) -> None:
        self.model, self.scan, self.schema = model, scan, schema_of(id_name)
        self.names = np.array([str(name) for name in model.classes_], dtype=object)
        # Rows of the sample may have joined the labelled ones by self-training, and be reasons too.
        codes = model.answer(scan.sample_x, variance=False, top=0).codes if len(scan.sample) else np.empty(0, dtype=np.int64)
        rows = np.concatenate([scan.labelled, scan.sample])
        self._order = np.argsort(rows)
        self._rows = rows[self._order]
        self._ids = pyarrow.array([*scan.ids, *scan.sample_ids], pyarrow.string())
        self._labels = pyarrow.array([*scan.labels, *self.names[codes]], pyarrow.string())

    def table(self, batch: Batch) -> pyarrow.Table:
        """One row for each row of the batch, in its order."""
        size = len(batch.ids)
        bad = self._within(self.scan.bad, batch)
        x = batch.x.copy() if len(bad) else batch.x
        x[bad] = 0.0
        answers = self.model.answer(x, variance=True, top=TOP)
        assert answers.variance is not None
        labels = self.names[answers.codes]
        confidence, variance = answers.confidence.copy(), answers.variance.copy()
        status = np.array(STATUSES, dtype=object)[answers.status]
        labels[bad], confidence[bad], variance[bad], status[bad] = None, 0.0, 1.0, "abstained"
        for row, label in self._given(batch):
            labels[row], confidence[row], status[row] = label, 1.0, LABELLED
        reasons = self._reasons(answers, np.isin(np.arange(size), bad))
        columns = [batch.ids, labels.tolist(), confidence, variance, status.tolist(), reasons]
        arrays = [pyarrow.array(column, field.type) for column, field in zip(columns[:-1], self.schema, strict=False)]
        return pyarrow.Table.from_arrays([*arrays, reasons], schema=self.schema)

    def _given(self, batch: Batch) -> list[tuple[int, str]]:
        """Rows of the batch that have a label, counted from its first one."""
        low, high = np.searchsorted(self.scan.labelled, (batch.first, batch.first + len(batch.ids)))
        rows = (self.scan.labelled[low:high] - batch.first).tolist()
        good = list(zip(rows, self.scan.labels[low:high], strict=True))
        bad = [(row - batch.first, label) for row, label in self.scan.bad_labels.items()]
        return good + [(row, label) for row, label in bad if 0 <= row < len(batch.ids)]

    def _within(self, rows: NDArray[np.int64], batch: Batch) -> NDArray[np.int64]:
        low, high = np.searchsorted(rows, (batch.first, batch.first + len(batch.ids)))
        return rows[low:high] - batch.first

    def _reasons(self, answers: Answers, without: NDArray[np.bool_]) -> pyarrow.Array:
        """The labelled rows that weigh most, (M, top), as lists of structs; none where there are none."""
        there = (answers.rows >= 0) & ~without[:, None]
        offsets = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int32)
        places = pyarrow.array(self._order[np.searchsorted(self._rows, answers.rows[there])])
        weights = pyarrow.array(answers.weights[there], pyarrow.float32())
        structs = pyarrow.StructArray.from_arrays(
            [self._ids.take(places), self._labels.take(places), weights], fields=list(REASON)
        )
        return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), structs)
