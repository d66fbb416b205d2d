"""Resumable parts: their key, drafts, damage, and rows that are found by a mark."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor

from semigpc.io import parts, tensors
from semigpc.io.atomic import DRAFT, locked
from semigpc.io.content import MARK_BYTES
from semigpc.io.errors import DataError
from semigpc.io.parts import Folder, Parts, RowParts, Shapes, key_difference, key_digest
from tests.fuzzing import seed

KEY = {"network": "a", "views": 2, "data content": "xyz"}
SHAPES: Shapes = {"views": {"weak": (2, 3), "plain": (3,)}, "plain": {"plain": (3,)}}


def opened(folder: Path, **changes: object) -> RowParts:
    options: Any = {"shapes": SHAPES, "dtype": torch.float32, "remedy": "Delete that."}
    return RowParts(Folder(folder), KEY | changes, **options)


def mark(number: int) -> bytes:
    return number.to_bytes(MARK_BYTES, "big")


def row(number: int) -> Tensor:
    return torch.arange(6.0).reshape(2, 3) + 10 * number


def fill(rows: RowParts, numbers: Sequence[int], kind: str = "views") -> None:
    for number in numbers:
        values = {"weak": row(number)[None], "plain": row(number)[None, 0]}
        rows.add(kind, [mark(number)], values)


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three parts: rows 0 to 3 and 4 to 5 with views, and 6 to 8 without."""
    monkeypatch.setattr(parts, "PART_ROWS", 4)
    rows = opened(tmp_path)
    rows.begin()
    fill(rows, range(6))
    fill(rows, range(6, 9), "plain")
    rows.flush()
    return tmp_path


def part_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


# Rows ---------------------------------------------------------------------------------------------


def test_rows_are_found_by_their_marks_in_any_order(filled: Path) -> None:
    assert [path.name[:5] for path in part_files(filled)] == ["plain", "views", "views"]
    rows = opened(filled)
    assert set(rows.index("views")) == {mark(number) for number in range(6)}
    assert set(rows.index("plain")) == {mark(number) for number in range(6, 9)}
    numbers = [5, 0, 3, 3]
    expected = torch.stack([row(number) for number in numbers])
    assert torch.equal(rows.rows("weak", [mark(number) for number in numbers]), expected)
    numbers = [7, 2, 8]
    expected = torch.stack([row(number)[0] for number in numbers])
    assert torch.equal(rows.rows("plain", [mark(number) for number in numbers]), expected)
    assert rows.rows("weak", []).shape == (0, 2, 3)


def test_rows_are_written_when_there_are_enough(filled: Path) -> None:
    rows = opened(filled)
    fill(rows, range(20, 23))
    assert len(part_files(filled)) == 3
    fill(rows, [23])
    assert len(part_files(filled)) == 4
    assert mark(23) in rows.index("views")


def test_a_part_with_rows_of_another_shape_is_an_error(filled: Path) -> None:
    wide: Shapes = {"views": {"weak": (2, 4), "plain": (4,)}, "plain": {"plain": (4,)}}
    rows = RowParts(Folder(filled), KEY, shapes=wide, dtype=torch.float32, remedy="Delete that.")
    with pytest.raises(DataError, match=r"weak must have the shape \(n, 2, 4\); got \(4, 2, 3\)"):
        rows.rows("weak", [mark(0)])


# The key ------------------------------------------------------------------------------------------


def test_parts_are_used_with_their_key_alone(filled: Path) -> None:
    assert opened(filled).difference() is None
    assert opened(filled, views=3).difference() == "views is 2 there and 3 here"
    assert opened(filled, network=None).difference() == "network is 'a' there and None here"
    other = opened(filled, **{"data content": "abc"})
    assert other.difference() == "the data content has changed since"
    assert other.difference(ignoring="data content") is None
    other.begin(afresh=True)
    assert part_files(filled) == []
    assert other.difference() is None
    assert json.loads((filled / "key.json").read_text()) == other.key


def test_without_parts_any_key_may_begin(tmp_path: Path) -> None:
    opened(tmp_path).begin()
    other = opened(tmp_path, views=5)
    assert other.difference() is None
    other.begin()
    assert json.loads((tmp_path / "key.json").read_text())["views"] == 5


def test_keys_compare_and_hash_as_json() -> None:
    stored = Parts(Folder(Path()), {"a": (1, 2)}, remedy="").key
    assert key_difference({"a": [1, 2]}, stored) is None
    assert key_digest({"a": (1, 2), "b": 3}) == key_digest({"b": 3, "a": [1, 2]})
    long = key_difference({"a": "x" * 1000}, {"a": 1})
    assert long is not None
    assert len(long) < 120


@pytest.mark.parametrize("content", [b"no JSON", b"[1]", b"\xff\xfe", None, "folder"])
def test_parts_without_a_readable_key_are_an_error(filled: Path, content: object) -> None:
    file = filled / "key.json"
    file.unlink()
    if content == "folder":
        file.mkdir()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    with pytest.raises(DataError, match=rf"{file} .*Delete that\.$"):
        opened(filled).difference()


# Stops and damage ---------------------------------------------------------------------------------


def die_while_writing(folder: str) -> None:
    """Write parts until the second is half written, and be killed."""
    before = iter(range(1))

    def write_half(values: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        if next(before, None) is None:
            whole = save(values)
            path.write_bytes(whole[: len(whole) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        save_file(values, path, metadata=metadata)

    patch = pytest.MonkeyPatch()
    patch.setattr(parts, "PART_ROWS", 4)
    patch.setattr(tensors, "save_file", write_half)
    rows = opened(Path(folder))
    rows.begin()
    fill(rows, range(10))


@pytest.mark.slow
def test_a_killed_process_leaves_whole_parts_and_a_draft_that_is_deleted(tmp_path: Path) -> None:
    code = f"import sys; from {__name__} import die_while_writing; die_while_writing(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path)]
    killed = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert len(list(tmp_path.glob(f".*{DRAFT}*"))) == 1
    rows = opened(tmp_path)
    assert set(rows.index("views")) == {mark(number) for number in range(4)}
    rows.begin()
    assert not list(tmp_path.glob(f".*{DRAFT}*"))
    assert len(part_files(tmp_path)) == 1


def test_drafts_are_never_read_and_locks_are_not_deleted(filled: Path) -> None:
    for path in part_files(filled):
        path.rename(path.with_name(f".{path.name}"))
    (filled / ".tmpabcdef").write_bytes(b"of safetensors")
    rows = opened(filled)
    assert not rows.index("views")
    with locked(filled):
        rows.begin()
        assert [path.name for path in filled.glob(".*")] == [".semigpc.lock"]


def test_a_part_that_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    store = Parts(Folder(tmp_path), KEY, below="labels", remedy="")

    def stop_half_way() -> None:
        with store.draft("a/b.parquet") as path:
            path.write_text("half")
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        stop_half_way()
    assert store.names() == []
    assert not list(tmp_path.glob("labels/a/*"))
    with store.draft("a/b.parquet") as path:
        path.write_text("whole")
    assert store.names() == ["a/b.parquet"]
    assert "a/b.parquet" in store
    store.remove(["a/b.parquet", "nothing.parquet"])
    assert "a/b.parquet" not in store


@pytest.mark.parametrize("share", [0.0, 0.02, 0.6, 0.999])
def test_a_part_that_was_cut_short_is_named(filled: Path, share: float) -> None:
    broken = part_files(filled)[1]
    content = broken.read_bytes()
    broken.write_bytes(content[: int(share * len(content))])
    message = rf"^{broken} (cannot be read|is damaged): .*Delete that\.$"
    with pytest.raises(DataError, match=message):
        opened(filled).index("views")
    broken.unlink()
    assert len(opened(filled).index("views")) in (2, 4)


def test_flipped_bits_are_detected_in_any_place(filled: Path) -> None:
    rng = random.Random(seed())
    for path in part_files(filled):
        whole = path.read_bytes()
        for position in [0, *rng.sample(range(len(whole)), 5)]:
            content = bytearray(whole)
            content[position] ^= 1 << rng.randrange(8)
            path.write_bytes(content)
            with pytest.raises(DataError, match=rf"^{path} .*Delete that\.$"):
                opened(filled).index(path.name[:5])
        path.write_bytes(whole)
