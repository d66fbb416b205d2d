"""Unpacking archives: it writes nowhere else and leaves nothing half done."""

import gzip
import tarfile
from pathlib import Path

import pytest

from semigpc.data import DataError
from semigpc.data.archives import extract
from tests.data.tar_samples import CONTENT, GOOD, NOISE, entry, names, packed, written


def test_the_folder_that_is_wanted_is_unpacked_and_nothing_else(tmp_path: Path) -> None:
    archive, folder = written(tmp_path, CONTENT), tmp_path / "new"
    assert extract(archive, folder, "set") == folder / "set"
    assert names(folder) == ["set"]
    assert names(folder / "set") == ["a.bin", "deep"]
    assert (folder / "set" / "a.bin").read_bytes() == NOISE
    assert extract(archive, folder, "set/deep") == folder / "deep"
    assert (folder / "deep" / "b.txt").read_bytes() == b"b"


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    assert extract(tmp_path / "no archive is needed", tmp_path, "set") == tmp_path / "set"
    assert names(tmp_path / "set") == []


@pytest.mark.parametrize(
    "evil",
    [
        entry("/abs"),
        entry("../x"),
        entry("set/../../x"),
        entry("set\\..\\..\\x"),
        entry("C:\\x"),
        entry("set/link", tarfile.SYMTYPE, "a.bin"),
        entry("set/link", tarfile.SYMTYPE, "/etc/passwd"),
        entry("set/link", tarfile.LNKTYPE, "set/a.bin"),
        entry("set/pipe", tarfile.FIFOTYPE),
        entry("set/device", tarfile.CHRTYPE),
        entry("elsewhere/device", tarfile.BLKTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.linkname}",
)
def test_what_could_write_elsewhere_is_refused_before_anything_is_written(tmp_path: Path, evil: tarfile.TarInfo) -> None:
    archive = written(tmp_path, gzip.compress(packed(*GOOD, (evil, b""))))
    before = names(tmp_path.parent)
    with pytest.raises(DataError, match=r"x.tar.gz has the entry '.*', (a path that|a link or a device).*nothing was unpacked"):
        extract(archive, tmp_path / "folder", "set")
    assert names(tmp_path) == ["x.tar.gz"]
    assert names(tmp_path.parent) == before


@pytest.mark.parametrize(
    "content",
    [
        CONTENT[: len(CONTENT) // 2],
        CONTENT[:-1],
        CONTENT[:30],
        b"",
        b"no archive",
        CONTENT[:300_000] + b"damage" + CONTENT[300_006:],
        gzip.compress(packed(*GOOD)[:300_000]),
        gzip.compress(b"no tar file" * 100),
    ],
    ids=["half", "last byte", "header", "empty", "foreign", "damaged", "half inside", "foreign inside"],
)
def test_a_damaged_archive_is_named_and_leaves_nothing_behind(tmp_path: Path, content: bytes) -> None:
    archive = written(tmp_path, content)
    with pytest.raises(DataError, match=r"x.tar.gz cannot be unpacked: .*damaged; delete it and fetch it again"):
        extract(archive, tmp_path / "folder", "set")
    assert names(tmp_path) == ["x.tar.gz"]


def test_an_archive_without_the_folder_is_another_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x.tar.gz has no files in a folder sets. It is another archive"):
        extract(written(tmp_path, CONTENT), tmp_path, "sets")


def test_a_full_disk_leaves_no_half_unpacked_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = written(tmp_path, CONTENT)

    def fill(_tar: tarfile.TarFile, path: str, _members: object) -> None:
        Path(path, "set").mkdir()
        Path(path, "set", "a.bin").write_bytes(NOISE[:1000])
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extractall", fill)
        with pytest.raises(DataError, match=r"cannot be unpacked into .*No space left on device. Make room"):
            extract(archive, tmp_path, "set")
    assert names(tmp_path) == ["x.tar.gz"]
    assert names(extract(archive, tmp_path, "set")) == ["a.bin", "deep"]


def test_two_processes_may_unpack_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, unpack = written(tmp_path, CONTENT), tarfile.TarFile.extractall

    def overtaken(tar: tarfile.TarFile, path: str, members: list[tarfile.TarInfo]) -> None:
        unpack(tar, path, members)
        unpack(tar, tmp_path, members)  # the other process

    monkeypatch.setattr(tarfile.TarFile, "extractall", overtaken)
    assert extract(archive, tmp_path, "set") == tmp_path / "set"
    assert names(tmp_path) == ["set", "x.tar.gz"]
