"""The folder that labels are written to: what it may hold already, and the parts that are finished.

A folder belongs to a key: all that the labels depend on, by value or by a hash. While rows are being labelled, the key is in
``parts/key.json`` and every finished shard in a Parquet file beside it. The outputs are written there too, and take the place
of earlier ones only when all are complete; ``project.json``, which has the key then, is the first to go and the last to come.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
from pyarrow import parquet
from pydantic import with_config
from typing_extensions import TypedDict

from semigpc.data.dataset import DataError
from semigpc.files import RELAXED, FileFacts, altered, push, read_json, remove_drafts, replacing, write_json, writing

WRITTEN = (
    "project.json",  # a folder without it is not complete
    "labels.parquet",
    "labels.csv",
    "label_studio.json",
    "label_studio.xml",
    "summary.json",
    "report.html",
)
PARTIAL, COMPLETE, BULK_LABELS = "_partial.json", "_complete.json", "labels"  # what labelling on Ray writes instead
CHANGED = ".changed"  # after the name of an output that somebody changed, when it is made again
ADVICE = "Give another --out, or --overwrite to make them again."

Key = dict[str, Any]
T = TypeVar("T")


@with_config(RELAXED)
class Finished(TypedDict):
    """``project.json``, as far as it matters here: what the labels depend on, and the files that were written."""

    key: Key
    files: dict[str, FileFacts]


def _check(finished: Finished) -> None:
    foreign = [name for name in finished["files"] if name not in WRITTEN]
    if foreign:
        raise ValueError(f"files must be what labelling writes; got {foreign[0]!r:.80}")


def files_hash(files: Sequence[Path]) -> str:
    """A few letters that change when files do: their names, sizes and times, without reading them."""
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def content_hash(path: Path | None) -> str | None:
    """A few letters that change when the content of a file does; None if there is none."""
    return None if path is None or not path.is_file() else hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class OutFolder:
    """Where labels of this key are written.

    Args:
        path: the folder; made if it is not there.
        key: what they depend on, as JSON holds it.
    """

    def __init__(self, path: Path, key: Key) -> None:
        self.path = path
        self.key: Key = json.loads(json.dumps(key))
        self.parts = path / "parts"

    def check(self, *, ignoring: str = "") -> bool:
        """Whether all was finished before, by an identical run; ``ignoring`` leaves out a part of the key not known yet.

        Raises:
            DataError: the folder holds labels that were made otherwise, or files that are not ours to replace.
        """
        if any((self.path / name).exists() for name in (PARTIAL, COMPLETE)):
            raise DataError(f"{self.path} holds labels that were made by --engine ray. {ADVICE}")
        finished = self._finished()
        begun = _read(self.parts / "key.json", dict[str, Any]) if any(self.parts.glob("*.parquet")) else None
        held = begun if finished is None else finished["key"]
        if held is None:
            foreign = [name for name in WRITTEN if (self.path / name).exists()]
            if foreign:
                raise DataError(f"{self.path} holds {foreign[0]}, which no finished labelling says to have written. {ADVICE}")
            return False
        other = [name for name in sorted({*held, *self.key}) if held.get(name) != self.key.get(name) and name != ignoring]
        if other:
            file = "parts/key.json" if finished is None else "project.json"
            difference = self._difference(held, other[0])
            raise DataError(f"{self.path} holds labels that were made otherwise: by {file}, {difference}. {ADVICE}")
        return finished is not None

    def begin(self, *, afresh: bool = False) -> None:
        """Make it ready for parts; those that are there already stay, unless all is to be done ``afresh``."""
        if afresh:
            self.remove_parts()
        remove_drafts(self.parts)
        write_json(self.parts / "key.json", self.key)

    def altered(self) -> list[str]:
        """Files of a finished folder that are gone or are not what was written, by the sizes and hashes in project.json."""
        finished = self._finished()
        return altered(self.path, finished["files"]) if finished else []

    def _finished(self) -> Finished | None:
        return _read(self.path / "project.json", Finished, _check)

    def publish(self, kept: Sequence[str] = ()) -> None:
        """Put the outputs in ``parts`` in the place of earlier ones, of which ``kept`` are renamed; nothing else is touched."""
        with writing(self.path):
            for path in (self.path / name for name in kept if (self.path / name).exists()):
                path.replace(path.with_name(path.name + CHANGED))
            for name in WRITTEN:
                (self.path / name).unlink(missing_ok=True)
            if any((self.path / name).exists() for name in (PARTIAL, COMPLETE)):  # of labelling on Ray
                shutil.rmtree(self.path / BULK_LABELS, ignore_errors=True)
                for name in (COMPLETE, PARTIAL):
                    (self.path / name).unlink(missing_ok=True)
            for name in reversed(WRITTEN):
                if (self.parts / name).exists():
                    (self.parts / name).replace(self.path / name)
            push(self.path)
        self.remove_parts()

    def _difference(self, held: Key, name: str) -> str:
        if name.endswith("content"):
            return f"the {name} has changed since"
        return f"{name} is {held.get(name)!r:.80} there and {self.key.get(name)!r} here"

    # Parts ------------------------------------------------------------------------------------------------------------

    def part(self, number: int) -> Path:
        """Where a shard goes."""
        return self.parts / f"{number:05d}.parquet"

    def write_part(self, number: int, table: pyarrow.Table) -> None:
        """One shard, which appears under its name when it is complete."""
        with replacing(self.part(number)) as draft:
            parquet.write_table(table, draft, write_page_checksum=True)

    def read_part(self, number: int) -> pyarrow.Table:
        """A finished shard.

        Raises:
            DataError: it was damaged since.
        """
        try:
            return parquet.read_table(self.part(number), partitioning=None, page_checksum_verification=True)
        except (OSError, pyarrow.ArrowException) as error:
            told = " ".join(str(error).split())
            raise DataError(
                f"{self.part(number)} is damaged: {told}. Delete that file; the same command makes it again."
            ) from error

    def remove_parts(self) -> None:
        """They are in the tables now."""
        shutil.rmtree(self.parts, ignore_errors=True)


def _read(path: Path, schema: type[T], check: Callable[[T], None] | None = None) -> T | None:
    try:
        return read_json(path, schema, error=DataError, remedy=ADVICE, check=check)
    except FileNotFoundError:
        return None
