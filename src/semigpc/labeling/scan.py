"""The first pass over the data: ids are checked, labelled rows and a sample of the others are gathered, bad rows are found.

Memory: the labelled rows, the sample and one batch, however many rows there are, and some 32 bytes a row to compare ids, of
which only hashes are kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from semigpc.data.dataset import DataError
from semigpc.labeling.given import Matching
from semigpc.labeling.sample import Floats, Rows, Sample
from semigpc.labeling.source import Batch, Source

SAMPLE = 20_000  # unlabelled rows that the estimator sees when it is fitted
SHOWN = 3
Progress = Callable[[str, int, int | None], None]


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

    def add(self, batch: Batch, labels: list[str | None]) -> None:
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
