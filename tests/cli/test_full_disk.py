"""A full disk: old outputs stay, the message names path and remedy, and with room it works."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from semigpc.review.session import Session, open_session
from tests.cli.calls import SHORT, refused, worked
from tests.cli.conftest import Trained
from tests.data.samples import write_images
from tests.labeling.samples import IDS, LABELS, X, write, write_labels
from tests.review.shapes import make_labelled

TRAIN = ("train digits --algorithm fixmatch --steps 8 --resume", SHORT)
NOT_MODIFIED = "The previous file was not modified"


class Disk:
    """A file system of 8 MB in memory that can be filled up."""

    def __init__(self, path: Path) -> None:
        self.path, self._filler = path, path / "filler"

    def fill(self, leave: int) -> None:
        """Leave so many bytes, and less than a page."""
        self.free()
        with self._filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        os.truncate(self._filler, max(0, self._filler.stat().st_size - leave))

    def freeze(self) -> None:
        """Allow no more writing."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)

    def free(self) -> None:
        """Make room."""
        self._filler.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a small disk can be mounted by root alone")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def check_full(told: str, place: Path) -> None:
    for words in (str(place), "the disk is full", "MB free", "Make room"):
        assert words in told


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def label_in(folder: Path) -> tuple[str | Path, ...]:
    data = write(folder, "parquet", X, IDS)
    return ("label", data, "--labels", write_labels(folder / "labels.csv", LABELS))


@pytest.mark.slow
def test_train_before_and_after_the_first_checkpoint(disk: Disk) -> None:
    run = disk.path / "run"
    disk.fill(leave=0)
    check_full(refused(*TRAIN, "--out", run, code=1, words="with --resume to continue."), run)
    disk.fill(leave=80_000)  # enough to begin, not for a checkpoint
    told = refused(*TRAIN, "--out", run, code=1, words="with --resume to continue.")
    check_full(told, run / "checkpoints")
    disk.free()
    worked(*TRAIN, "--out", run)


@pytest.mark.slow
def test_label(disk: Disk, tmp_path: Path) -> None:
    command = (*label_in(tmp_path), "--no-report --out", disk.path / "out")
    disk.fill(leave=16_000)
    check_full(refused(*command, code=1, words="Run the same command again"), disk.path / "out")
    disk.free()
    worked(*command)
    before = contents(disk.path / "out")
    other = (*command, "--overwrite --seed 1")
    for leave in (0, 4_000, 30_000, 60_000):
        disk.fill(leave)
        check_full(refused(*other, code=1, words="Run the same command again"), disk.path / "out")
        now = contents(disk.path / "out").items()
        assert {name: content for name, content in now if "parts" not in name} == before
    disk.free()
    worked(*other)


def test_embed(disk: Disk, tmp_path: Path) -> None:
    write_images(tmp_path / "photos", {"a": 60}, size=(9, 9))
    network = "--model test_resnet --pretrained none --image-size 32 --out"
    table = disk.path / "x.parquet"
    command = ("embed", tmp_path / "photos", network, table)
    disk.fill(leave=8_000)
    check_full(refused(*command, code=1, words="Run the same command again"), table)
    disk.free()
    worked(*command)
    before = table.read_bytes()
    disk.fill(leave=0)
    refused(*command, "--precision float32 --overwrite", code=1, words="the disk is full")
    assert table.read_bytes() == before


@pytest.mark.parametrize("name", ["p.csv", "p.json", "p.parquet"])
def test_predict(disk: Disk, trained: Trained, name: str) -> None:
    command = ("predict", trained.run, trained.photos, "--out", disk.path / name)
    worked(*command)
    before = (disk.path / name).read_bytes()
    disk.fill(leave=0)
    check_full(refused(*command, code=1, words=NOT_MODIFIED), disk.path / name)
    assert (disk.path / name).read_bytes() == before
    assert sorted(path.name for path in disk.path.iterdir()) == ["filler", name]


@pytest.mark.slow
def test_export(disk: Disk, trained: Trained) -> None:
    pytest.importorskip("onnx", reason="the extra export is not installed")
    model = disk.path / "model.onnx"
    model.write_text("old")
    disk.fill(leave=8_000)
    command = ("export", trained.run, "--overwrite --out", model)
    check_full(refused(*command, code=1, words=NOT_MODIFIED), model)
    assert model.read_text() == "old"
    assert sorted(path.name for path in disk.path.iterdir()) == ["filler", "model.onnx"]


def _skip_all(session: Session) -> None:
    for row in range(1, 60):  # the first few may find room in a page that is not full
        session.skip(row)


@pytest.mark.slow
def test_review(disk: Disk) -> None:
    out = make_labelled(disk.path)
    session = open_session(out)
    session.skip(0)
    before = (out / "reviews.jsonl").read_bytes()
    disk.fill(leave=0)
    with pytest.raises(OSError, match="No space left"):
        _skip_all(session)
    kept = (out / "reviews.jsonl").read_bytes()
    assert kept.startswith(before)
    assert kept.endswith(b"\n")
    session.close()
    told = refused("review", out, "--export", code=1, words=NOT_MODIFIED)
    check_full(told, out / "exports" / "labels.")
    disk.free()
    again = open_session(out)
    assert len(again.journal.entries) == kept.count(b"\n")
    again.close()


def test_a_folder_that_is_read_only(disk: Disk, trained: Trained, tmp_path: Path) -> None:
    label = label_in(tmp_path)
    disk.freeze()
    for command, name in (
        ((*TRAIN, "--out"), "run"),
        ((*label, "--out"), "out"),
        (("predict", trained.run, trained.photos, "--out"), "p.csv"),
    ):
        told = refused(*command, disk.path / name, code=1, words="Read-only file system")
        assert str(disk.path / name) in told
        assert "Make the folder writable, or choose another place" in told
