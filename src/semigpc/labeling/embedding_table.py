"""A Parquet table of embeddings, and the parts that it is put together from."""

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import parquet

from semigpc.io.atomic import remove_drafts, replacing, trouble, writing
from semigpc.io.errors import DataError
from semigpc.io.paths import Bad
from semigpc.labeling.source import readable

PART = 512  # rows that a stop loses at most: half a minute or so of work
GROUP = 4096  # rows that are written to the table together
METADATA = b"semigpc"  # key of our facts in the metadata of a file
OPEN_PARTS = 16  # parts whose embeddings are in memory while the table is written
MADE_AGAIN = "Delete that file; its embeddings will be made again."
REMEDY = "Ask to overwrite it (--overwrite), or write to another file."
# Embeddings look like noise to a compressor; checksums make damage known when a file is read.
STORED: dict[str, Any] = {
    "compression": "none",
    "use_dictionary": False,
    "write_page_checksum": True,
}

Matrix = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class TableKey:
    """What embeddings depend on besides the images; in the metadata of every file, as JSON.

    Args:
        network: its name. weights: a hash of them.
        image_size: pixels a side. precision: float16 or float32. width: D.
    """

    network: str
    weights: str
    image_size: int
    precision: str
    width: int

    def schema(self, *extra: Any, **facts: Any) -> Any:
        """Return the columns ``file_name`` and ``embedding`` and extra ones, with this key and
        other facts as metadata.
        """
        kind = pyarrow.float16() if self.precision == "float16" else pyarrow.float32()
        fields = [
            ("file_name", pyarrow.string()),
            ("embedding", pyarrow.list_(kind, self.width)),
            *extra,
        ]
        return pyarrow.schema(fields, metadata={METADATA: json.dumps(asdict(self) | facts)})

    def difference(self, facts: Mapping[str, Any]) -> str | None:
        """Return how the facts of a file differ, for a message; None if they do not."""
        for name, value in asdict(self).items():
            if facts.get(name) != value:
                return f"its {name} is {_short(facts.get(name))} and not {_short(value)}"
        return None


def _short(value: Any) -> str:
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == 64 else repr(value)


class EmbeddingTable:
    """The finished file, which has its name only when it is complete."""

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() != ".parquet":
            raise DataError(
                f"The table of embeddings must be a .parquet file; got the name {path.name!r}."
            )
        if path.is_dir() or not path.parent.is_dir():
            what = (
                "is a folder"
                if path.is_dir()
                else f"cannot be written, since there is no folder {path.parent}"
            )
            raise DataError(f"{path} {what}. Give the name of a file, in a folder that is there.")
        if (reason := trouble(path)) is not None:
            raise DataError(f"{path} cannot be written: {reason}.")
        self.path, self.parts = path, path.with_name(path.name + ".parts")

    def finished(self, key: TableKey, images: str) -> tuple[int, list[Bad]] | None:
        """Return the number of rows and the images left out; None without a file, an error if it
        was made otherwise.
        """
        if not self.path.exists():
            return None
        facts, rows = _facts(self.path)
        if facts is None:
            raise DataError(
                f"{self.path} is there already and was not made by semigpc embed. {REMEDY}"
            )
        if (difference := key.difference(facts)) is not None:
            raise DataError(
                f"{self.path} is there already and was made otherwise: {difference}. {REMEDY}"
            )
        if facts.get("images") != images:
            raise DataError(
                f"{self.path} is there already, with {rows} rows, and was made of other images: some were added, "
                f"taken away or changed since. {REMEDY}"
            )
        with (
            readable(self.path, "Parquet", MADE_AGAIN),
            parquet.ParquetFile(self.path, page_checksum_verification=True) as file,
        ):
            for _ in file.iter_batches(GROUP):  # reading verifies the checksums
                pass
        return rows, [(name, reason) for name, reason in facts["bad"]]

    def write(
        self,
        groups: Iterator[tuple[list[str], Matrix]],
        key: TableKey,
        *,
        images: str,
        bad: list[Bad],
    ) -> None:
        """Write names and embeddings, a row group at a time."""
        schema = key.schema(images=images, bad=bad)
        with (
            replacing(self.path) as draft,
            parquet.ParquetWriter(draft, schema, **STORED) as writer,
        ):
            for names, embeddings in groups:
                writer.write_table(_table(schema, names, embeddings))

    def remove_parts(self) -> None:
        """Delete the parts, once the table is complete."""
        shutil.rmtree(self.parts, ignore_errors=True)


class EmbeddingParts:
    """Finished rows: Parquet files of some hundred rows in a folder beside the table, each complete
    when it has its name.

    A row is identified by the image's name and mark, which changes when the image does.

    Args:
        folder: of the parts. key: what rows must depend on.
        overwrite: delete parts of another key, instead of raising an error.
    """

    def __init__(self, folder: Path, key: TableKey, *, overwrite: bool = False) -> None:
        self.key, self.folder = key, folder
        self._schema = key.schema(("mark", pyarrow.string()))
        self._waiting: list[tuple[list[str], list[str], Matrix]] = []
        with writing(folder):
            self.folder.mkdir(exist_ok=True)
        remove_drafts(folder)
        for file in self._files():
            if (difference := key.difference(_facts(file)[0] or {})) is None:
                continue
            if not overwrite:
                raise DataError(
                    f"{self.folder} holds parts of a table that was made otherwise: {difference}. Give the settings of then to "
                    "go on with it, or delete that folder or ask to overwrite it (--overwrite) to begin again."
                )
            file.unlink()

    def missing(self, marks: Mapping[str, str]) -> list[str]:
        """Return the names of images that no part has as they are now, in the order of ``marks``."""
        index = self._index(marks)
        return [name for name in marks if name not in index]

    def add(self, names: Sequence[str], marks: Sequence[str], embeddings: Matrix) -> None:
        """Add rows (n,), (n,) and (n, D), which are written when there are enough of them."""
        self._waiting.append((list(names), list(marks), embeddings))
        if sum(len(names) for names, _, _ in self._waiting) >= PART:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are waiting."""
        if not self._waiting:
            return
        names, marks = ([value for rows in self._waiting for value in rows[i]] for i in (0, 1))
        embeddings = np.concatenate([rows for _, _, rows in self._waiting])
        with replacing(self.folder / f"part-{uuid.uuid4().hex[:12]}.parquet") as draft:
            parquet.write_table(_table(self._schema, names, embeddings, marks), draft, **STORED)
        self._waiting = []

    def groups(
        self, names: Sequence[str], marks: Mapping[str, str]
    ) -> Iterator[tuple[list[str], Matrix]]:
        """Yield the rows of these names in this order, some thousand at a time. Memory: that many,
        and a few parts.
        """
        index = self._index(marks)
        read = lru_cache(OPEN_PARTS)(self._embeddings)
        for first in range(0, len(names), GROUP):
            group = list(names[first : first + GROUP])
            yield (
                group,
                np.stack([read(file)[row] for file, row in (index[name] for name in group)]),
            )

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.parquet"))

    def _index(self, marks: Mapping[str, str]) -> dict[str, tuple[Path, int]]:
        """Return the part, and the row in it, of each image that has not changed since."""
        return {
            entry["file_name"]: (file, row)
            for file in self._files()
            for row, entry in enumerate(_read(file, ["file_name", "mark"]).to_pylist())
            if marks.get(entry["file_name"]) == entry["mark"]
        }

    def _embeddings(self, file: Path) -> Matrix:
        values: Matrix = (
            _read(file, ["embedding"])
            .column("embedding")
            .combine_chunks()
            .flatten()
            .to_numpy(zero_copy_only=False)
        )
        return values.reshape(-1, self.key.width)


def _table(schema: Any, names: list[str], embeddings: Matrix, *extra: list[str]) -> Any:
    column = pyarrow.FixedSizeListArray.from_arrays(
        pyarrow.array(embeddings.ravel()), embeddings.shape[1]
    )
    return pyarrow.Table.from_arrays(
        [pyarrow.array(names, pyarrow.string()), column, *map(pyarrow.array, extra)], schema=schema
    )


def _facts(path: Path) -> tuple[dict[str, Any] | None, int]:
    """Return the facts in the metadata of a file, None if it has none, and its number of rows."""
    with readable(path, "Parquet", MADE_AGAIN), parquet.ParquetFile(path) as file:
        facts = json.loads((file.schema_arrow.metadata or {}).get(METADATA, b"null"))
        return (facts if isinstance(facts, dict) else None), file.metadata.num_rows


def _read(path: Path, columns: list[str]) -> Any:
    with readable(path, "Parquet", MADE_AGAIN):
        return parquet.read_table(
            path, columns=columns, partitioning=None, page_checksum_verification=True
        )
