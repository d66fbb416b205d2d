"""Small files of every kind of input, damaged at random, and a process that reads them.

``python -m tests.labeling.damaged FOLDER`` reads every file there and prints one line of JSON
before and after each.
"""

import io
import json
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import csv, feather, ipc, parquet

from semigpc.data.arrays import ArraysConfig
from semigpc.data.arrays import load as load_arrays
from semigpc.io.errors import DataError
from semigpc.io.tables import read_labels
from semigpc.labeling.columns import read_label_table
from semigpc.labeling.scan import LabelLookup, scan
from semigpc.labeling.source import open_source

ROWS, WIDTH = 90, 4
MEMORY = 8 * 2**30  # bytes of addresses: what a file of some kilobytes may make a process ask for

Numbers = np.random.Generator


def originals() -> dict[str, bytes]:
    """One good file of each kind, by a name whose first word says how it is read."""
    table = _table()
    wide = _wide()
    plain = {"compression": "none", "use_dictionary": False, "row_group_size": 40}
    packed = {"compression": "zstd", "data_page_size": 256, "write_page_checksum": True}
    return {
        "data-plain.parquet": _parquet(table, **plain),
        "data-packed.parquet": _parquet(table, **packed),
        "data-columns.parquet": _parquet(wide, data_page_version="2.0", row_group_size=25),
        "data-file.arrow": _arrow(ipc.new_file, table),
        "data-packed.arrow": _arrow(ipc.new_file, table, compression="lz4"),
        "data-stream.arrow": _arrow(ipc.new_stream, table),
        "data-columns.arrow": _arrow(ipc.new_stream, wide, compression="zstd"),
        "data-plain.feather": _feather(table, "uncompressed"),
        "data-packed.feather": _feather(table, "lz4"),
        "data-columns.feather": _feather(wide, "uncompressed"),
        "data-columns.csv": _csv(wide),
        "data-plain.npz": _npz(np.savez),
        "data-packed.npz": _npz(np.savez_compressed),
        "labels-plain.csv": _csv(_labels()),
        "labels-plain.parquet": _parquet(_labels()),
        "images-plain.npz": _images(np.savez),
        "images-packed.npz": _images(np.savez_compressed),
    }


def _values() -> Any:
    return np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)


def _names() -> list[str]:
    return [f"row-{i:03d}-ä" for i in range(ROWS)]


def _classes() -> list[str | None]:
    return [("ant", "bee", "cat")[i % 3] if i % 4 else None for i in range(ROWS)]


def _table() -> pyarrow.Table:
    """Ids, labels as a dictionary, embeddings as lists, and a column that is not read."""
    return pyarrow.table(
        {
            "id": _names(),
            "label": pyarrow.array(_classes()).dictionary_encode(),
            "embedding": pyarrow.array(_values().tolist(), pyarrow.list_(pyarrow.float32())),
            "taken": pyarrow.array(range(ROWS), pyarrow.timestamp("ns")),
        }
    )


def _wide() -> pyarrow.Table:
    columns = {f"f{i}": column for i, column in enumerate(_values().T)}
    return pyarrow.table({"id": np.arange(ROWS), **columns, "label": np.arange(ROWS) % 3})


def _labels() -> pyarrow.Table:
    return pyarrow.table({"file_name": _names(), "label": [label or "" for label in _classes()]})


def _parquet(table: pyarrow.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(table, file, **options)
    return file.getvalue()


def _arrow(kind: Callable[..., Any], table: pyarrow.Table, compression: str | None = None) -> bytes:
    file = io.BytesIO()
    options = ipc.IpcWriteOptions(compression=compression, unify_dictionaries=True)
    with kind(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=40)
    return file.getvalue()


def _feather(table: pyarrow.Table, compression: str) -> bytes:
    file = io.BytesIO()
    feather.write_feather(table, file, compression=compression, chunksize=50)
    return file.getvalue()


def _csv(table: pyarrow.Table) -> bytes:
    file = io.BytesIO()
    csv.write_csv(table, file)
    return file.getvalue()


def _npz(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, x=_values(), ids=np.array(_names()), y=np.arange(ROWS) % 3)
    return file.getvalue()


def _images(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 256, (12, 5, 5, 3), dtype=np.uint8)
    test = {"x_test": pixels[:3], "y_test": np.arange(3)}
    save(file, x_labeled=pixels, y_labeled=np.arange(12) % 3, x_unlabeled=pixels, **test)
    return file.getvalue()


# Damage -------------------------------------------------------------------------------------------


def _flip(content: bytearray, rng: Numbers) -> bytes:
    for place in rng.integers(len(content), size=rng.integers(1, 9)):
        content[place] ^= 1 << int(rng.integers(8))
    return bytes(content)


def _overwrite(content: bytearray, rng: Numbers) -> bytes:
    """Bytes that are the ends of the range of numbers."""
    for place in rng.integers(len(content), size=rng.integers(1, 5)):
        content[place] = int(rng.choice([0, 1, 127, 128, 255]))
    return bytes(content)


def _cut(content: bytearray, rng: Numbers) -> bytes:
    return bytes(content[: int(rng.integers(len(content)))])


def _insert(content: bytearray, rng: Numbers) -> bytes:
    place = int(rng.integers(len(content)))
    return bytes(content[:place]) + rng.bytes(int(rng.integers(1, 64))) + bytes(content[place:])


def _swap(content: bytearray, rng: Numbers) -> bytes:
    size = int(rng.integers(1, max(2, len(content) // 4)))
    first, second = (int(place) for place in rng.integers(len(content) - size, size=2))
    content[first : first + size] = content[second : second + size]
    content[second : second + size] = content[first : first + size]
    return bytes(content)


def _clear(content: bytearray, rng: Numbers) -> bytes:
    place, size = int(rng.integers(len(content))), int(rng.integers(1, 65))
    content[place : place + size] = bytes(len(content[place : place + size]))
    return bytes(content)


MISHAPS = (_flip, _flip, _overwrite, _overwrite, _cut, _insert, _swap, _clear)


def write_damaged(folder: Path, count: int, seed: int) -> None:
    """So many damaged files, as many of each kind."""
    kinds = originals()
    for number in range(count):
        name = list(kinds)[number % len(kinds)]
        role, rest = name.split("-")
        rng = np.random.default_rng([seed, number])
        mishap = MISHAPS[int(rng.integers(len(MISHAPS)))]
        content = mishap(bytearray(kinds[name]), rng)
        (folder / f"{role}-{number:05d}-{rest}").write_bytes(content)


# Reading ------------------------------------------------------------------------------------------


def read(path: Path) -> None:
    """All of a file, by the way that its role takes."""
    if path.name.startswith("images"):
        load_arrays(ArraysConfig(path=str(path)), 0)
    elif path.name.startswith("labels"):
        for reading in (read_labels, lambda table: read_label_table(table, "id")):
            reading(path)
    else:
        source = open_source(path)
        found = scan(source, LabelLookup(None), size=32, skip_bad=True)
        source.take(np.array([found.rows - 1, 0]))


def outcomes(folder: Path) -> Iterator[dict[str, str]]:
    """Of each file "begun", then "read", "refused" or the name of an unforeseen error."""
    for path in sorted(folder.iterdir()):
        yield {"file": path.name, "outcome": "begun"}
        try:
            read(path)
            yield {"file": path.name, "outcome": "read"}
        except DataError as error:
            yield {"file": path.name, "outcome": "refused", "message": str(error)}
        except BaseException as error:
            yield {"file": path.name, "outcome": type(error).__name__, "message": str(error)}
        path.unlink()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for outcome in outcomes(Path(sys.argv[1])):
        print(json.dumps(outcome), flush=True)
