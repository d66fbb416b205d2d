"""The first pass over the data: check ids, gather labelled rows and a sample, find bad rows.

Memory: the labelled rows, the sample and one batch, however many rows there are, and about 32 bytes
per row to compare ids, of which only hashes are kept.

The sample does not depend on how rows are divided into batches or partitions. Every row has a key,
a random number that depends on the seed and the row number alone, and the rows with the smallest
keys are kept. So samples of parts of the data merge into the sample of all, and the same rows can
be drawn again later.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semigpc.estimator.fitting import POOL_ROWS
from semigpc.io.errors import DataError
from semigpc.io.text import listed
from semigpc.labeling.columns import Floats
from semigpc.labeling.source import RowBatch, Rows, TableSource

SAMPLE = POOL_ROWS  # unlabelled rows that the estimator is fitted on: it uses no more
ROWS_IN_MESSAGE = 3
SPREAD_ROWS = 8192  # from which it is seen whether rows differ

Mask = NDArray[np.bool_]
# Called with the stage, how much of it is done, and of how much if that is known. With 0 done of 0,
# the stage is a message that should stay visible.
Progress = Callable[[str, int, int | None], None]


def silent(stage: str, done: int, total: int | None) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Scan:
    """The result of the first pass over N rows of width D.

    Attributes:
        rows: N.
        labelled: (n,) row numbers, sorted. ids, labels: n each. x: (n, D) embeddings, all finite.
        sample: (S,) row numbers, sorted; sample_x: (S, D), unlabelled.
        bad: (b,) numbers of the rows whose embedding is not finite, sorted; they are in none of the
            other lists.
        bad_labels: labels given for bad rows, by row number.
    """

    rows: int
    labelled: Rows
    ids: list[str]
    labels: list[str]
    x: Floats
    sample: Rows
    sample_x: Floats
    bad: Rows
    bad_labels: dict[int, str]


def scan(
    source: TableSource,
    lookup: "LabelLookup",
    *,
    size: int,
    seed: int = 0,
    skip_bad: bool = False,
    progress: Progress = silent,
) -> Scan:
    """Read all rows once, ``size`` at a time.

    Raises:
        DataError: no rows; an id twice; labels for unknown ids; embeddings that are not finite,
            unless ``skip_bad``.
    """
    gathered = Gathered(source.width, seed)
    for batch in source.batches(size):
        gathered.add(batch, lookup.of(batch.ids, batch.labels))
        progress("reading", gathered.rows, source.rows)
    if not gathered.rows:
        raise DataError(f"{source.files[0]} has no rows, so there is nothing to label.")
    if source.has_ids:
        check_unique_ids(source, np.concatenate(gathered.hashes), size)
    data = source.files[0] if len(source.files) == 1 else source.files[0].parent
    lookup.check(data, gathered.some_ids)
    if not skip_bad:
        gathered.check_finite(source)
    return gathered.result()


class LabelLookup:
    """The labels of rows by id, and which labels were used.

    Args:
        labels: by id; None takes them from the data. path: of their table, for messages.
    """

    def __init__(self, labels: dict[str, str] | None, path: Path | None = None) -> None:
        self.labels = labels
        self._path = path
        self._unused = set(labels or ())

    def of(self, ids: Sequence[str], own: Sequence[str | None] | None) -> list[str | None]:
        """Return the label of each row or None; ``own`` are the labels in the data, if any."""
        if self.labels is None:
            return list(own) if own is not None else [None] * len(ids)
        labels = [self.labels.get(name) for name in ids]
        self._unused.difference_update(
            name for name, label in zip(ids, labels, strict=True) if label is not None
        )
        return labels

    def check(self, data: object, some_ids: Sequence[str]) -> None:
        """Raise a DataError if some labels belong to no row."""
        unknown = [name for name in self.labels or () if name in self._unused]
        if unknown:
            raise DataError(
                f"{self._path} has labels for {len(unknown)} ids that are not in {data}: "
                f"{listed(unknown, ROWS_IN_MESSAGE)}. Ids in the data look like "
                f"{' and '.join(map(repr, some_ids[:2]))}. Correct the names, choose another "
                "column of ids with id=..., or delete the rows."
            )


def check_classes(labels: Sequence[str], where: object) -> None:
    """Raise a DataError unless there are labels of at least two classes."""
    classes = sorted(set(labels))
    if not classes:
        raise DataError(f"{where} has no labels. Label a few rows of each class first.")
    if len(classes) == 1:
        raise DataError(
            f"All labels of {where} are {classes[0]!r}; at least two classes are needed. "
            "Label a few rows of another class."
        )


def check_spread(x: Floats, where: object) -> None:
    """Raise a DataError if rows (n, D) do not differ by more than float32 resolves."""
    rows = x[:: -(-len(x) // SPREAD_ROWS)]
    mean = rows.mean(axis=0, dtype=np.float64)
    deviation = rows.std(axis=0, dtype=np.float64)
    if len(rows) < 2 or (deviation > np.finfo(np.float32).eps * np.abs(mean)).any():
        return
    widest = int(deviation.argmax())
    raise DataError(
        f"The embeddings of {where} are all the same, as far as float32 can tell: the column that "
        f"varies most has a mean of {mean[widest]:.6g} and a deviation of {deviation[widest]:.2g}. "
        "Check what computed them. If they share an offset, subtract it in float64 before saving."
    )


class Gathered:
    """What the first pass has gathered so far.

    Args:
        width: D. seed: of the sample. below: see ``Sample``.
    """

    def __init__(self, width: int, seed: int, *, below: float = np.inf) -> None:
        self.rows = 0
        self.some_ids: list[str] = []
        self.hashes: list[Rows] = []
        self.bad: list[tuple[int, str, str | None]] = []  # row number, id, label
        self.labelled: list[tuple[int, str, str]] = []  # row number, id, label
        self.sample = Sample(SAMPLE, width, seed, below)
        self._x: list[Floats] = [np.empty((0, width), dtype=np.float32)]

    def add(self, batch: RowBatch, labels: list[str | None]) -> None:
        """Add the next rows."""
        finite = np.isfinite(batch.x).all(axis=1)
        has_label = np.array([label is not None for label in labels], dtype=bool)
        self.sample.add(batch.first, finite & ~has_label, batch.x)
        chosen = np.flatnonzero(finite & has_label)
        self.labelled += [(batch.first + int(i), batch.ids[i], str(labels[i])) for i in chosen]
        self._x.append(batch.x[chosen])
        bad = np.flatnonzero(~finite).tolist()
        self.bad += [(batch.first + i, batch.ids[i], labels[i]) for i in bad]
        # Unlike hash(), blake2b gives the same value in every process.
        digests = (blake2b(name.encode(), digest_size=8).digest() for name in batch.ids)
        self.hashes.append(np.frombuffer(b"".join(digests), np.int64))
        self.some_ids = self.some_ids or batch.ids[:ROWS_IN_MESSAGE]
        self.rows += len(batch.ids)

    def absorb(self, other: "Gathered") -> None:
        """Add what was gathered from later rows."""
        self.sample.absorb(other.sample)
        self.labelled += other.labelled
        self._x += other._x
        self.bad += other.bad
        self.hashes += other.hashes
        self.some_ids = self.some_ids or other.some_ids
        self.rows += other.rows

    def check_finite(self, source: TableSource) -> None:
        """Raise a DataError if some embeddings contain NaN or infinity."""
        if not self.bad:
            return
        first = self.bad[:ROWS_IN_MESSAGE]
        shown = "; ".join(f"{source.place(row)} (id {name!r})" for row, name, _ in first)
        rest = len(self.bad) - len(first)
        more = f" and {rest} more" if rest else ""
        raise DataError(
            f"Embeddings must be finite in float32; {shown}{more} contain NaN or infinity. "
            "Correct or remove these rows, or leave them out with skip_bad=True."
        )

    def result(self) -> Scan:
        """Return the result of the pass."""
        return Scan(
            rows=self.rows,
            labelled=np.array([row for row, _, _ in self.labelled], dtype=np.int64),
            ids=[name for _, name, _ in self.labelled],
            labels=[label for _, _, label in self.labelled],
            x=np.concatenate(self._x),
            sample=self.sample.rows,
            sample_x=self.sample.x,
            bad=np.array([row for row, _, _ in self.bad], dtype=np.int64),
            bad_labels={row: label for row, _, label in self.bad if label is not None},
        )


def check_unique_ids(source: TableSource, hashes: Rows, size: int) -> None:
    """Raise a DataError for an id that occurs twice.

    Rows of equal hashes (N,) are read again, since two ids may share a hash.
    """
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    if not same.any():
        return
    suspects = np.sort(np.union1d(order[1:][same], order[:-1][same]))
    first_row: dict[str, int] = {}
    repeated: dict[str, int] = {}
    for batch in source.batches(size):
        low, high = np.searchsorted(suspects, (batch.first, batch.first + len(batch.ids)))
        for row in suspects[low:high].tolist():
            name = batch.ids[row - batch.first]
            if first_row.setdefault(name, row) != row:
                repeated.setdefault(name, row)
    if repeated:
        name, row = next(iter(repeated.items()))
        raise DataError(
            f"Ids must be unique; {len(repeated)} occur more than once, such as {name!r} in "
            f"{source.place(first_row[name])} and {source.place(row)}. Rename or remove them, or "
            "choose another column with id=..."
        )


def keys_of(first: int, count: int, seed: int) -> NDArray[np.float64]:
    """Return the keys of ``count`` rows from number ``first`` on, uniform in [0, 1)."""
    bits = np.random.PCG64(seed)
    bits.advance(first)  # one step for each row
    return np.random.Generator(bits).random(count)


def sample_rows(eligible: Mask, size: int, seed: int) -> Rows:
    """Return the numbers of the rows that a Sample keeps of those in ``eligible`` (N,), sorted."""
    rows = np.flatnonzero(eligible)
    keys = keys_of(0, len(eligible), seed)[rows]
    return np.sort(rows[np.argsort(keys, kind="stable")[:size]])


class Sample:
    """At most ``size`` rows: numbers ``rows`` (S,), sorted, and their embeddings ``x`` (S, D).

    Args:
        size: rows to keep. width: D. seed: decides which.
        below: rows with a larger key are left out; for callers that know that enough smaller ones
            exist.
    """

    def __init__(self, size: int, width: int, seed: int, below: float = np.inf) -> None:
        self.size = size
        self.seed = seed
        self.below = below
        self.rows = np.empty(0, dtype=np.int64)
        self.x = np.empty((0, width), dtype=np.float32)
        self._keys = np.empty(0)

    def __len__(self) -> int:
        """Return how many rows have been kept so far."""
        return len(self.rows)

    def add(self, first: int, eligible: Mask, x: Floats) -> None:
        """Offer rows (M, D), numbered from ``first``; only those ``eligible`` (M,) may be kept."""
        keys = keys_of(first, len(eligible), self.seed)
        bound = self._keys.max() if len(self) == self.size and self.size else self.below
        new = np.flatnonzero(eligible & (keys < bound))
        if len(new) and self.size:
            self._merge(keys[new], first + new, x[new])

    def absorb(self, other: "Sample") -> None:
        """Add the sample of later rows."""
        self._merge(other._keys, other.rows, other.x)

    def _merge(self, keys: NDArray[np.float64], rows: Rows, x: Floats) -> None:
        all_keys = np.concatenate([self._keys, keys])
        kept = np.sort(np.argsort(all_keys, kind="stable")[: self.size])
        old = kept[kept < len(self)]
        new = kept[kept >= len(self)] - len(self)
        self.x = np.concatenate([self.x[old], x[new]])
        self.rows = np.concatenate([self.rows[old], rows[new]])
        self._keys = all_keys[kept]
