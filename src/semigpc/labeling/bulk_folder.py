"""Where partitions of labels are written to, which of them are finished, and whether all are.

    labels/            one Parquet file for each partition of the data, under its name; its footer says what it depends on
    _partial.json      while some are missing: the key, and how many are done
    _gathered.parquet  while some are missing: what the first pass found, so that it is not made again
    summary.json, report.html
    _complete.json     written last: only a folder that has it is complete

The key is all that labels depend on, by value or by a hash.
"""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from semigpc.data.dataset import DataError
from semigpc.files import facts_of as facts_of_files
from semigpc.labeling.out_folder import ADVICE, BULK_LABELS, COMPLETE, PARTIAL, WRITTEN, Key
from semigpc.labeling.scan import Scan
from semigpc.labeling.stores import Store, facts_of

GATHERED, SUMMARY, REPORT = "_gathered.parquet", "summary.json", "report.html"
READERS = 32  # footers read at a time
LABELLED, SAMPLED, BAD = range(3)  # kinds of rows in GATHERED


class BulkFolder:
    """A place for labels of this key."""

    def __init__(self, store: Store, key: Key) -> None:
        self.store = store
        self.key: Key = json.loads(json.dumps(key))
        self.digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:16]

    def check(self) -> bool:
        """Whether all was finished before, by an identical run.

        Raises:
            DataError: it holds labels that were made otherwise, or files that are not ours to replace.
        """
        complete, partial = self.store.read_json(COMPLETE), self.store.read_json(PARTIAL)
        held = complete if complete is not None else partial
        if held is None:
            foreign = [name for name in WRITTEN if self.store.exists(name)] + list(self.store.listed(BULK_LABELS))[:1]
            if foreign:
                raise DataError(f"{self.store.place} holds {foreign[0]}, which labelling on Ray did not write. {ADVICE}")
            return False
        key: Key = held["key"] if isinstance(held.get("key"), dict) else {}
        other = [name for name in sorted({*key, *self.key}) if key.get(name) != self.key.get(name)]
        if other:
            name, before, now = other[0], key.get(other[0]), self.key.get(other[0])
            told = (
                f"the {name} has changed since" if name.endswith("content") else f"{name} is {before!r} there and {now!r} here"
            )
            raise DataError(f"{self.store.place} holds labels that were made otherwise: {told}. {ADVICE}")
        return complete is not None

    def check_ours(self) -> None:
        """Refuse to replace partitions that labelling did not write; its own may go."""
        for name in self.store.listed(BULK_LABELS):
            hidden = name.rpartition("/")[2].startswith(".")  # left by a worker that died
            if not hidden and facts_of(self.store, f"{BULK_LABELS}/{name}") is None:
                raise DataError(
                    f"{self.store.place} holds {BULK_LABELS}/{name}, which labelling on Ray did not write and will not delete. "
                    "Move it away, or give another --out."
                )

    def summary(self, names: Sequence[str], *, report: bool) -> dict[str, Any] | None:
        """What a finished folder says; None if anything of it is missing."""
        wanted = [SUMMARY, *([REPORT] if report else []), *(f"{BULK_LABELS}/{name}" for name in names)]
        return self.store.read_json(SUMMARY) if set(wanted) <= set(self.store.listed()) else None

    def altered(self) -> list[str]:
        """Outputs of a finished folder that are gone or are not what was written; in an object store, by their size alone."""
        files = (self.store.read_json(COMPLETE) or {}).get("files")
        now = self._facts()
        return sorted(now) if not isinstance(files, dict) else [name for name in files if now.get(name) != files[name]]

    def _facts(self) -> dict[str, dict[str, Any]]:
        """Size and, on a disk, hash of every output."""
        outputs = (SUMMARY, REPORT, f"{BULK_LABELS}/")
        there = {name: info.size for name, info in self.store.listed().items() if name.startswith(outputs)}
        if self.store.is_remote:
            return {name: {"bytes": size} for name, size in there.items()}
        return facts_of_files(self.store.place, there)

    def begin(self, total: int, *, afresh: bool) -> None:
        """Mark it as not complete, and make it ready; partitions that are there stay, unless all is to be done ``afresh``."""
        self.tell(0, total)
        self.store.remove(COMPLETE)
        if afresh:
            self.store.remove(*WRITTEN, GATHERED, *(f"{BULK_LABELS}/{name}" for name in self.store.listed(BULK_LABELS)))

    def tell(self, done: int, total: int) -> None:
        """Note how far it is."""
        self.store.write_json(PARTIAL, {"partitions_done": done, "partitions": total, "key": self.key})

    def finished(self, names: Sequence[str], rows: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Partitions of this key that are labelled, by number, with the facts of their footers; what is left of others goes."""
        there = self.store.listed(BULK_LABELS)
        self.store.remove(*(f"{BULK_LABELS}/{name}" for name in there if name.rpartition("/")[2].startswith(".")))
        numbers = [number for number, name in enumerate(names) if name in there]
        with ThreadPoolExecutor(READERS) as pool:
            found = pool.map(lambda number: facts_of(self.store, f"{BULK_LABELS}/{names[number]}"), numbers)
            facts = dict(zip(numbers, found, strict=True))
        return {
            number: held
            for number, held in facts.items()
            if held is not None and held.get("digest") == self.digest and held["rows"] == rows[number]
        }

    def complete(self, summary: dict[str, Any], page: bytes | None) -> None:
        """All is there: say so, last of all."""
        self.store.write_json(SUMMARY, summary)
        if page is not None:
            self.store.write_bytes(REPORT, page)
        counts = {name: summary[name] for name in ("rows", "partitions", "statuses")}
        self.store.write_json(COMPLETE, counts | {"key": self.key, "files": self._facts()})
        self.store.remove(PARTIAL, GATHERED)

    # What the first pass found ------------------------------------------------------------------------------------------

    def save_scan(self, found: Scan, core_seconds: float) -> None:
        """Keep it beside the partitions, with the time that workers took for it."""
        sizes = (len(found.labelled), len(found.sample), len(found.bad))
        x = np.concatenate([found.x, found.sample_x, np.zeros((sizes[BAD], found.x.shape[1]), dtype=np.float32)])
        bad_labels = [found.bad_labels.get(row) for row in found.bad.tolist()]
        table = pyarrow.table(
            {
                "kind": np.repeat(np.array([LABELLED, SAMPLED, BAD], dtype=np.uint8), sizes),
                "row": np.concatenate([found.labelled, found.sample, found.bad]),
                "id": pyarrow.array([*found.ids, *found.sample_ids, *[""] * sizes[BAD]], pyarrow.string()),
                "label": pyarrow.array([*found.labels, *[None] * sizes[SAMPLED], *bad_labels], pyarrow.string()),
                "embedding": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), x.shape[1]),
            }
        )
        facts = {"digest": self.digest, "all_rows": found.rows, "core_seconds": core_seconds}
        self.store.write_table(GATHERED, table.schema, [table], lambda: facts)

    def load_scan(self) -> tuple[Scan, float] | None:
        """What was kept by an identical run, if it was, and the time that it took."""
        facts = facts_of(self.store, GATHERED)
        if facts is None or facts.get("digest") != self.digest:
            return None
        with self.store.open(GATHERED) as file:
            table = parquet.read_table(file)
        kind, rows = table["kind"].to_numpy(), table["row"].to_numpy()
        ids, labels = table["id"].to_pylist(), table["label"].to_pylist()
        width = table.schema.field("embedding").type.list_size
        x = table["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, width)
        first, second = np.searchsorted(kind, (SAMPLED, BAD))
        bad_labels = zip(rows[second:].tolist(), labels[second:], strict=True)
        found = Scan(
            rows=facts["all_rows"],
            labelled=rows[:first],
            ids=ids[:first],
            labels=labels[:first],
            x=x[:first].copy(),
            sample=rows[first:second],
            sample_ids=ids[first:second],
            sample_x=x[first:second].copy(),
            bad=rows[second:],
            bad_labels={row: label for row, label in bad_labels if label is not None},
        )
        return found, facts["core_seconds"]
