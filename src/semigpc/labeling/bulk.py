"""What is done to one partition, by whoever does it: gather what the estimator learns from, and label its rows.

Nothing here depends on other partitions but the number of the first row, so that any number of workers may do it in any
order, again if one of them dies, and the answer is the same.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from semigpc.data.dataset import DataError
from semigpc.estimator.blocks import block_ends, frame, product_rows
from semigpc.labeling.given import Matching
from semigpc.labeling.out_folder import BULK_LABELS
from semigpc.labeling.outputs import LISTED, Tally
from semigpc.labeling.partitions import Partitions
from semigpc.labeling.parts import Labeller
from semigpc.labeling.sample import Rows
from semigpc.labeling.scan import SAMPLE, Gathered, refuse_twice
from semigpc.labeling.source import CHUNK, Batch
from semigpc.labeling.stores import Store

COMPARED = 50_000_000  # rows up to which ids of different partitions are compared: 8 bytes each in one place
SPARE = 2.0  # times the rows of the sample that are expected to have a key below the bound


@dataclass(frozen=True)
class Gathering:
    """All that the first pass needs: the partitions, the given labels by id if they are not in the data, the seed."""

    partitions: Partitions
    given: dict[str, str] | None
    seed: int
    below: float

    @property
    def compares(self) -> bool:
        """Whether ids are compared over all partitions."""
        return self.partitions.source.has_ids and self.partitions.rows <= COMPARED

    def __call__(self, number: int) -> Gathered:
        """What the estimator learns from, of one partition.

        Raises:
            DataError: an id twice, a list of another length, a file that cannot be read.
        """
        partitions, source = self.partitions, self.partitions.source
        gathered, matching = Gathered(source.width, self.seed, below=self.below, hashed=lasting_hashes), Matching(self.given)
        first, stop = (int(row) for row in partitions.starts[number : number + 2])
        for batch in partitions.batches(number, [*range(first + CHUNK, stop, CHUNK), stop]):
            gathered.add(batch, matching.of(batch.ids, batch.labels))
        if source.has_ids and gathered.rows:
            refuse_twice(partitions.part(number), np.concatenate(gathered.hashes), CHUNK)
        if not self.compares:
            gathered.hashes = []
        return gathered


def sample_bound(rows: int, labels: int) -> float:
    """A key below which there are surely SAMPLE rows without a label, if there are so many at all.

    Twice as many are expected: half of them would be 140 standard deviations away. So what partitions send stays small, however
    many there are.
    """
    return float(min(1.0, (SPARE * SAMPLE + labels) / max(rows, 1)))


def lasting_hashes(ids: list[str]) -> Rows:
    """(M,) of ids, the same in every process."""
    from pandas.util import hash_array

    found: NDArray[np.uint64] = hash_array(np.array(ids, dtype=object), categorize=False)
    return found.view(np.int64)


def check_over_partitions(gathering: Gathering, gathered: Gathered) -> None:
    """Refuse an id that several partitions have: any id up to COMPARED rows, and always one that has a label.

    Raises:
        DataError: there is one.
    """
    source = gathering.partitions.source
    if gathering.compares:
        refuse_twice(source, np.concatenate(gathered.hashes), CHUNK)
    counts = Counter(name for _, name, _ in gathered.labelled)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        places = [source.place(row) for row, name, _ in gathered.labelled if name == twice]
        raise DataError(
            f"Every row needs an id of its own; {twice!r}, which has a label, is in {places[0]} and {places[1]}. Rename or "
            "remove one, or choose another column by --id."
        )


@dataclass(frozen=True)
class Labelling:
    """All that the second pass needs.

    Args:
        partitions: the data. labeller: with the model. out: where labels go. digest: of what they depend on.
        call: rows that the local engine labels at a time, whose places in products are kept.
    """

    partitions: Partitions
    labeller: Labeller
    out: Store
    digest: str
    call: int

    def __call__(self, number: int) -> dict[str, Any]:
        """Label one partition, write it under its name, and answer with its counts, as its footer has them."""
        tally, name, facts, began = Tally(), self.partitions.names[number], {}, time.process_time()

        def told() -> dict[str, Any]:
            facts.update({"digest": self.digest, "core_seconds": time.process_time() - began} | plain_tally(tally))
            return facts

        self.out.write_table(f"{BULK_LABELS}/{name}", self.labeller.schema, self._tables(number, tally), told)
        return facts

    def _tables(self, number: int, tally: Tally) -> Iterator[pyarrow.Table]:
        """As large as what the local engine labels at a time, which become row groups."""
        first, stop = (int(row) for row in self.partitions.starts[number : number + 2])
        held: list[pyarrow.Table] = []
        for batch in self.partitions.batches(number, block_ends(first, stop, call=self.call)):
            held.append(self._table(batch))
            tally.add(held[-1], self.labeller.schema.names[0])
            if sum(table.num_rows for table in held) >= self.call:
                yield pyarrow.concat_tables(held)
                held = []
        if held:
            yield pyarrow.concat_tables(held)

    def _table(self, batch: Batch) -> pyarrow.Table:
        """Rows that are missing from a product, since other partitions have them, are made up: numbers come out the same."""
        end = batch.first + len(batch.ids)
        product = product_rows(self.labeller.model)
        low, high = frame(batch.first, end, call=self.call, product=product, rows=self.partitions.rows)
        sound = np.flatnonzero(np.isfinite(batch.x).all(axis=1))
        like = batch.x[sound[0]] if len(sound) else np.zeros(batch.x.shape[1], dtype=np.float32)
        before, after = (np.tile(like, (count, 1)) for count in (batch.first - low, high - end))
        ids = [""] * len(before) + batch.ids + [""] * len(after)
        table = self.labeller.table(Batch(low, ids, np.concatenate([before, batch.x, after]), None))
        return table.slice(len(before), len(batch.ids))


def plain_tally(tally: Tally) -> dict[str, Any]:
    """As JSON holds it."""
    return {"statuses": dict(tally.statuses), "pseudo": dict(tally.pseudo), "outliers": tally.outliers}


def joined_tally(facts: list[dict[str, Any]]) -> Tally:
    """Of partitions in their order."""
    tally = Tally()
    for held in facts:
        tally.statuses.update(held["statuses"])
        tally.pseudo.update(held["pseudo"])
        tally.outliers = sorted([*tally.outliers, *held["outliers"]], key=lambda entry: -entry["variance"])[:LISTED]
    return tally
