"""Unpacking archives: it writes nowhere else and leaves nothing half done."""

import gzip
import shutil
import tarfile
from pathlib import Path

import pytest

from semigpc.data import DataError
from semigpc.data.archives import extract
from tests.data.tar_samples import CONTENT, GOOD, NOISE, UNPACKED, entry, names, packed, written


def test_the_folder_that_is_wanted_is_unpacked_and_nothing_else(tmp_path: Path) -> None:
    archive, folder = written(tmp_path, CONTENT), tmp_path / "new"
    assert extract(archive, folder, "set", UNPACKED) == folder / "set"
    assert names(folder) == ["set"]
    assert names(folder / "set") == ["a.bin", "deep"]
    assert (folder / "set" / "a.bin").read_bytes() == NOISE
    assert extract(archive, folder, "set/deep", UNPACKED) == folder / "deep"
    assert (folder / "deep" / "b.txt").read_bytes() == b"b"


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    assert extract(tmp_path / "no archive is needed", tmp_path, "set", UNPACKED) == tmp_path / "set"
    assert names(tmp_path / "set") == []


@pytest.mark.parametrize(
    "evil",
    [
        entry("../x"),
        entry("set/../../x"),
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
    with pytest.raises(
        DataError,
        match=r"x.tar.gz has the entry '.*', which (could write elsewhere|is a link or a device).*nothing was unpacked",
    ):
        extract(archive, tmp_path / "folder", "set", UNPACKED)
    assert names(tmp_path) == ["x.tar.gz"]
    assert names(tmp_path.parent) == before


def test_names_with_a_root_stay_in_the_folder(tmp_path: Path) -> None:
    evil = [(entry(name), b"") for name in ("/abs", "/set/abs", "C:\\x", "set\\..\\..\\x")]
    before = names(tmp_path.parent)
    extract(written(tmp_path, gzip.compress(packed(*GOOD, *evil))), tmp_path / "folder", "set", UNPACKED)
    assert names(tmp_path / "folder" / "set") == ["a.bin", "deep"]
    assert names(tmp_path.parent) == before
    assert not Path("/abs").exists()


def test_more_than_the_data_set_has_is_refused_before_it_is_written(tmp_path: Path) -> None:
    bombs = {
        "a file": packed(*GOOD, (entry("set/zeros"), bytes(10**6))),
        "a file that is not wanted": packed(*GOOD, (entry("other/zeros"), bytes(10**6))),
        "what no entry accounts for": packed(*GOOD) + bytes(10**6),
        "the name of an entry": packed(*GOOD, (entry("x" * 10**6), b"")),
    }
    for bomb in bombs.values():
        archive = written(tmp_path, gzip.compress(bomb))
        with pytest.raises(DataError, match=r"x.tar.gz unpacks to more than 715000 bytes, and the data set has less"):
            extract(archive, tmp_path / "folder", "set", UNPACKED)
        assert names(tmp_path) == ["x.tar.gz"]


def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    archive = written(tmp_path, gzip.compress(packed(*((entry(f"set/{i}"), b"") for i in range(1001)))))
    with pytest.raises(
        DataError, match=r"has the entry 'set/1000', after 1000 others, which is the most; nothing was unpacked"
    ):
        extract(archive, tmp_path / "folder", "set", 10**7)
    assert names(tmp_path) == ["x.tar.gz"]


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
        extract(archive, tmp_path / "folder", "set", UNPACKED)
    assert names(tmp_path) == ["x.tar.gz"]


def test_an_archive_without_the_folder_is_another_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x.tar.gz has no files in a folder sets. It is another archive"):
        extract(written(tmp_path, CONTENT), tmp_path, "sets", UNPACKED)


def test_a_full_disk_leaves_no_half_unpacked_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = written(tmp_path, CONTENT)

    def fill(_tar: tarfile.TarFile, path: str, _members: object) -> None:
        Path(path, "set").mkdir()
        Path(path, "set", "a.bin").write_bytes(NOISE[:1000])
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extractall", fill)
        with pytest.raises(DataError, match=r"cannot be unpacked into .*No space left on device. Make room"):
            extract(archive, tmp_path, "set", UNPACKED)
    assert names(tmp_path) == ["x.tar.gz"]
    assert names(extract(archive, tmp_path, "set", UNPACKED)) == ["a.bin", "deep"]


def test_two_processes_may_unpack_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, unpack = written(tmp_path, CONTENT), tarfile.TarFile.extractall

    def overtaken(tar: tarfile.TarFile, path: str, members: list[tarfile.TarInfo]) -> None:
        unpack(tar, path, members)
        shutil.copytree(Path(path, "set"), tmp_path / "set")  # the other process

    monkeypatch.setattr(tarfile.TarFile, "extractall", overtaken)
    assert extract(archive, tmp_path, "set", UNPACKED) == tmp_path / "set"
    assert names(tmp_path) == ["set", "x.tar.gz"]
