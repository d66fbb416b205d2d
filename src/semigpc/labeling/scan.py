"""The first pass over the data: ids are checked, labelled rows and a sample of the others are gathered, bad rows are found.

Memory: the labelled rows, the sample and one batch, however many rows there are, and some 32 bytes a row to compare ids, of
which only hashes are kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semigpc.data.dataset import DataError, listed
from semigpc.labeling.source import RowBatch, Source

SAMPLE = 20_000  # unlabelled rows that the estimator sees when it is fitted
SHOWN = 3
Progress = Callable[[str, int, int | None], None]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Scan:
    """What the first pass found among N rows of width D.

    Attributes:
        rows: N.
        labelled: (n,) row numbers, sorted; ids, labels: n each; x: (n, D) their embeddings, all finite.
        sample: (S,) row numbers, sorted; sample_ids: S; sample_x: (S, D), unlabelled.
        bad: (b,) numbers of the rows with an embedding that is not finite, sorted; none of them is among the others.
        bad_labels: the labels that some of those have, by row number.
    """

    rows: int
    labelled: Rows
    ids: list[str]
    labels: list[str]
    x: Floats
    sample: Rows
    sample_ids: list[str]
    sample_x: Floats
    bad: Rows
    bad_labels: dict[int, str]


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


def scan(
    source: Source,
    matching: Matching,
    *,
    size: int,
    seed: int = 0,
    skip_bad: bool = False,
    labels_path: Path | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Go through all rows once, ``size`` at a time.

    Raises:
        DataError: no rows; an id twice; labels for ids that are not there; embeddings that are not finite, unless skipped.
    """
    gathered = Gathered(source.width, seed)
    for batch in source.batches(size):
        gathered.add(batch, matching.of(batch.ids, batch.labels))
        if progress is not None:
            progress("reading", gathered.rows, source.rows)
    if not gathered.rows:
        raise DataError(f"{source.files[0]} holds no rows. Nothing can be labelled.")
    if source.has_ids:
        refuse_twice(source, np.concatenate(gathered.hashes), size)
    where = source.files[0] if len(source.files) == 1 else source.files[0].parent
    matching.check(labels_path, where, gathered.some_ids)
    if gathered.bad and not skip_bad:
        raise DataError(told_bad(source, gathered.bad))
    return gathered.result()


def quick_hashes(ids: list[str]) -> Rows:
    """(M,) of ids, the same as long as this process lives."""
    return np.fromiter(map(hash, ids), np.int64, len(ids))


class Gathered:
    """What was found in the batches so far.

    Args:
        width: D. seed: of the sample. below: see ``Sample``. hashed: ids (M) to whole numbers (M,), by which they are compared.
    """

    def __init__(
        self, width: int, seed: int, *, below: float = np.inf, hashed: Callable[[list[str]], Rows] = quick_hashes
    ) -> None:
        self.rows = 0
        self._hashed = hashed
        self.some_ids: list[str] = []
        self.hashes: list[Rows] = []
        self.bad: list[tuple[int, str, str | None]] = []
        self.labelled: list[tuple[int, str, str]] = []
        self._parts: list[Floats] = [np.empty((0, width), dtype=np.float32)]
        self.sample = Sample(SAMPLE, width, seed, below)

    def add(self, batch: RowBatch, labels: list[str | None]) -> None:
        """Take in the next rows."""
        finite = np.isfinite(batch.x).all(axis=1)
        has_label = np.array([label is not None for label in labels], dtype=bool)
        self.sample.add(batch.first, finite & ~has_label, batch.ids, batch.x)
        chosen = np.flatnonzero(finite & has_label)
        self.labelled += [(batch.first + int(i), batch.ids[i], str(labels[i])) for i in chosen]
        self._parts.append(batch.x[chosen])
        self.bad += [(batch.first + int(i), batch.ids[i], labels[i]) for i in np.flatnonzero(~finite)]
        self.hashes.append(self._hashed(batch.ids))
        self.some_ids = self.some_ids or batch.ids[:SHOWN]
        self.rows += len(batch.ids)

    def absorb(self, other: "Gathered") -> None:
        """Take in what was found in later rows."""
        self.sample.absorb(other.sample)
        self.labelled += other.labelled
        self._parts += other._parts
        self.bad += other.bad
        self.hashes += other.hashes
        self.some_ids = self.some_ids or other.some_ids
        self.rows += other.rows

    def result(self) -> Scan:
        """All of it."""
        rows, ids, x = self.sample.result()
        return Scan(
            rows=self.rows,
            labelled=np.array([row for row, _, _ in self.labelled], dtype=np.int64),
            ids=[name for _, name, _ in self.labelled],
            labels=[label for _, _, label in self.labelled],
            x=np.concatenate(self._parts),
            sample=rows,
            sample_ids=ids,
            sample_x=x,
            bad=np.array([row for row, _, _ in self.bad], dtype=np.int64),
            bad_labels={row: label for row, _, label in self.bad if label is not None},
        )


def told_bad(source: Source, bad: list[tuple[int, str, str | None]]) -> str:
    """What to say of rows, with their numbers, ids and labels, that are no good."""
    shown = "; ".join(f"{source.place(row)} (id {name!r})" for row, name, _ in bad[:SHOWN])
    more = f" and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    return (
        f"Embeddings must be finite numbers within the range of float32; they are not in {shown}{more}. "
        "Mend or remove such rows, or go on without them: --skip-bad."
    )


def refuse_twice(source: Source, hashes: Rows, size: int) -> None:
    """Refuse an id that occurs twice; equal hashes (N,) are looked at again, as two ids may merely share one."""
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    if not same.any():
        return
    suspects = np.sort(np.union1d(order[1:][same], order[:-1][same]))
    seen: dict[str, int] = {}
    twice: dict[str, int] = {}
    for batch in source.batches(size):
        low, high = np.searchsorted(suspects, (batch.first, batch.first + len(batch.ids)))
        for row in suspects[low:high].tolist():
            name = batch.ids[row - batch.first]
            if seen.setdefault(name, row) != row:
                twice.setdefault(name, row)
    if twice:
        name, row = next(iter(twice.items()))
        raise DataError(
            f"Every row needs an id of its own; {len(twice)} ids occur more than once, such as {name!r} in "
            f"{source.place(seen[name])} and {source.place(row)}. Rename or remove them, or choose another column by --id."
        )


def keys_of(first: int, count: int, seed: int) -> NDArray[np.float64]:
    """Keys of ``count`` rows from number ``first`` on, uniform in [0, 1). A key takes one step of the generator. O(count)."""
    bits = np.random.PCG64(seed)
    bits.advance(first)
    return np.random.Generator(bits).random(count)


def sample_rows(eligible: Mask, size: int, seed: int) -> Rows:
    """Numbers of at most ``size`` of the rows marked in ``eligible`` (N,), sorted: those that :class:`Sample` keeps."""
    rows = np.flatnonzero(eligible)
    keys = keys_of(0, len(eligible), seed)[rows]
    return np.sort(rows[np.argsort(keys, kind="stable")[:size]])


class Sample:
    """At most ``size`` rows with their ids and embeddings.

    Args:
        size: how many are kept, each (D,) float32. width: D. seed: decides which.
        below: rows with a larger key are passed over, where it is known that there are enough of smaller ones.
    """

    def __init__(self, size: int, width: int, seed: int, below: float = np.inf) -> None:
        self.size, self.seed, self.below = size, seed, below
        self._keys = np.empty(0)
        self._rows = np.empty(0, dtype=np.int64)
        self._x = np.empty((0, width), dtype=np.float32)
        self._ids: list[str] = []

    def __len__(self) -> int:
        """Rows kept so far."""
        return len(self._rows)

    def add(self, first: int, eligible: Mask, ids: Sequence[str], x: Floats) -> None:
        """Show rows, M ids and (M, D), numbered from ``first``; only those ``eligible`` (M,) may be kept."""
        keys = keys_of(first, len(eligible), self.seed)
        bound = self._keys.max() if len(self) == self.size and self.size else self.below
        new = np.flatnonzero(eligible & (keys < bound))
        if len(new) and self.size:
            self._merge(keys[new], first + new, [ids[i] for i in new.tolist()], x[new])

    def absorb(self, other: "Sample") -> None:
        """Take in the sample of later rows."""
        self._merge(other._keys, other._rows, other._ids, other._x)

    def _merge(self, keys: NDArray[np.float64], rows: Rows, ids: Sequence[str], x: Floats) -> None:
        all_keys = np.concatenate([self._keys, keys])
        kept = np.sort(np.argsort(all_keys, kind="stable")[: self.size])
        old, new = kept[kept < len(self)], kept[kept >= len(self)] - len(self)
        self._x = np.concatenate([self._x[old], x[new]])
        self._ids = [*(self._ids[i] for i in old), *(ids[i] for i in new)]
        self._rows = np.concatenate([self._rows[old], rows[new]])
        self._keys = all_keys[kept]

    def result(self) -> tuple[Rows, list[str], Floats]:
        """Row numbers (S,), sorted, their S ids and embeddings (S, D)."""
        return self._rows, self._ids, self._x
