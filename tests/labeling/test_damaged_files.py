"""A damaged file is refused or read: no signal, no error but DataError, no hang."""

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from semigpc.io.errors import DataError
from semigpc.io.tables import read_labels
from semigpc.labeling.columns import read_label_table
from semigpc.labeling.source import open_source
from tests import fuzzing
from tests.labeling.damaged import ROWS, originals, write_damaged

SEED = fuzzing.seed()
CASES = fuzzing.cases(500)
FEW = 68
ROOT = Path(__file__).parents[2]
HANG = 300  # seconds for all files of a process, far beyond need


def read_all(folder: Path) -> list[dict[str, str]]:
    """The outcome of each file of a folder; a process that dies is named and replaced."""
    ended: list[dict[str, str]] = []
    while any(folder.iterdir()):
        command = [sys.executable, "-m", "tests.labeling.damaged", str(folder)]
        options: Any = {"capture_output": True, "text": True, "timeout": HANG, "check": False}
        child = subprocess.run(command, cwd=ROOT, **options)
        lines = [json.loads(line) for line in child.stdout.splitlines()]
        ended += [line for line in lines if line["outcome"] != "begun"]
        if child.returncode:
            assert lines, child.stderr
            how = {"outcome": f"ended by {child.returncode}", "message": child.stderr[-500:]}
            ended.append(lines[-1] | how)
            (folder / lines[-1]["file"]).unlink(missing_ok=True)
    return ended


def with_rows(content: bytes, rows: int, claimed: int) -> bytes:
    """A Parquet file whose footer says that all its parts have another number of rows."""
    size = int.from_bytes(content[-8:-4], "little")
    body, footer = content[: -8 - size], content[-8 - size : -8]
    # 0x16: the next field, 64 bits.
    changed = footer.replace(b"\x16" + varint(rows), b"\x16" + varint(claimed))
    assert changed != footer
    return body + changed + len(changed).to_bytes(4, "little") + b"PAR1"


def varint(number: int) -> bytes:
    """As Thrift writes it: seven bits at a time, doubled for the sign."""
    digits, rest = b"", 2 * number
    while rest > 127:
        digits, rest = digits + bytes([rest % 128 + 128]), rest // 128
    return digits + bytes([rest])


def with_shape(kind: str, shape: str, *, pretended: bool = False) -> bytes:
    """An NPZ file whose header claims a shape and, if ``pretended``, its directory 4 GB."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"{kind}.npy", start + header.encode() + bytes(1000))
    content = bytearray(file.getvalue())
    place = content.rindex(b"PK\x01\x02") + 24
    assert int.from_bytes(content[place : place + 4], "little") == 128 + 1000
    if pretended:
        content[place : place + 4] = (2**32 - 2).to_bytes(4, "little")
    return bytes(content)


def write_absurd(folder: Path) -> None:
    """Small files that claim to be huge."""
    good = originals()
    columns, labels = good["data-columns.parquet"], good["labels-plain.parquet"]
    absurd = {
        "data-absurd0.parquet": with_rows(columns, 25, 10**15),
        "data-absurd1.parquet": with_rows(columns, 25, 10**6),
        "data-absurd2.parquet": with_rows(columns, 25, 24),
        "labels-absurd.parquet": with_rows(labels, ROWS, 10**15),
        "data-absurd0.npz": with_shape("x", "(1000000000000000, 4)"),
        "data-absurd1.npz": with_shape("x", "(10000000000000000000000,)"),
        "data-absurd2.npz": with_shape("x", "(-1000, -1)"),
        "data-absurd3.npz": with_shape("x", "(-5,)"),
        "data-absurd4.npz": with_shape("x", f"({2**32 - 2 - 128},)", pretended=True),
        "images-absurd.npz": with_shape("x_labeled", "(1000000000, 1000, 1000, 3)"),
    }
    for name, content in absurd.items():
        (folder / name).write_bytes(content)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The outcome of good, damaged and absurd files, read in one process, which starts slowly."""
    folder = tmp_path_factory.mktemp("files")
    for name, content in originals().items():
        role, rest = name.split("-")
        (folder / f"{role}-good-{rest}").write_bytes(content)
    write_damaged(folder, FEW, SEED)
    write_absurd(folder)
    return read_all(folder)


def check(ended: list[dict[str, str]], count: int) -> None:
    """So many were read or refused, most refused by name, and nothing else happened."""
    bad = [line for line in ended if line["outcome"] not in ("read", "refused")]
    assert not bad, f"seed {SEED}: {bad}"
    assert len(ended) == count
    refused = [line for line in ended if line["outcome"] == "refused"]
    assert len(refused) >= count // 2
    named = [line for line in refused if not line["file"].startswith("images")]
    assert all(line["file"] in line["message"] for line in named)


@pytest.mark.slow
def test_good_files_are_read(ended: list[dict[str, str]]) -> None:
    good = [line["outcome"] for line in ended if "-good-" in line["file"]]
    assert good == ["read"] * len(originals())


@pytest.mark.slow
def test_damaged_files_are_refused_or_read(ended: list[dict[str, str]]) -> None:
    damaged = [line for line in ended if not re.search("-(good|absurd)", line["file"])]
    check(damaged, FEW)


@pytest.mark.nightly
def test_many_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    write_damaged(tmp_path, CASES, SEED + 1)
    check(read_all(tmp_path), CASES)


@pytest.mark.slow
def test_absurd_sizes_take_neither_memory_nor_time(ended: list[dict[str, str]]) -> None:
    absurd = {line["file"]: line for line in ended if "-absurd" in line["file"]}
    assert [line for line in absurd.values() if line["outcome"] != "refused"] == []
    assert len(absurd) == 10
    assert "claims 4000000000000000 bytes" in absurd["data-absurd0.npz"]["message"]


def test_arrays_beyond_the_memory_of_the_machine_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1000, 1000)))
    memory = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(os, "sysconf", memory.__getitem__)
    words = r"its arrays take 0.0 GB, more than the memory of this machine"
    with pytest.raises(DataError, match=words):
        open_source(tmp_path / "x.npz")


def test_dates_and_bytes_may_be_labels(tmp_path: Path) -> None:
    table = {"id": ["a", "b"], "f": [1.0, 2.0], "g": [3.0, 4.0]}
    moments = pyarrow.array([1, 2**62], pyarrow.timestamp("ns"))
    parquet.write_table(pyarrow.table(table | {"label": moments}), tmp_path / "x.parquet")
    (batch,) = open_source(tmp_path / "x.parquet").batches(10)
    assert batch.labels == ["1970-01-01 00:00:00.000000001", "2116-02-20 23:53:38.427387904"]
    parquet.write_table(pyarrow.table(table | {"label": [b"ant", b"-1"]}), tmp_path / "x.parquet")
    (batch,) = open_source(tmp_path / "x.parquet").batches(10)
    assert batch.labels == ["ant", None]


def test_a_name_of_megabytes_is_refused(tmp_path: Path) -> None:
    long = "x" * 2_000_000
    table = pyarrow.table({"id": ["a"], "f": [1.0], "label": [long]})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x.parquet has 2000000 characters, .* 1000"):
        list(open_source(tmp_path / "x.parquet").batches(10))
    table = pyarrow.table({"file_name": ["a.png"], "label": [long]})
    parquet.write_table(table, tmp_path / "l.parquet")
    for reading in (read_labels, lambda path: read_label_table(path, "file_name")):
        words = r"A label in .*l.parquet has 2000000 characters"
        with pytest.raises(DataError, match=words) as caught:
            reading(tmp_path / "l.parquet")
        assert len(str(caught.value)) < 1000
