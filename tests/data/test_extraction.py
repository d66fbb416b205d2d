"""Unpacking archives: it writes nowhere else and leaves nothing half done."""

import gzip
import shutil
import tarfile
from pathlib import Path

import pytest

from semigpc.data.cifar import Archive, extract
from semigpc.io.errors import DataError
from tests.data.tar_samples import CONTENT, GOOD, NOISE, entry, names, packed, written

SOURCE = Archive("http://127.0.0.1:9/x.tar.gz", "x.tar.gz", "", 0, "set")


def test_the_folder_that_is_wanted_is_unpacked_and_nothing_else(tmp_path: Path) -> None:
    archive, folder = written(tmp_path, CONTENT), tmp_path / "new"
    assert extract(SOURCE, archive, folder) == folder / "set"
    assert names(folder) == ["set"]
    assert names(folder / "set") == ["a.bin", "deep"]
    assert (folder / "set" / "a.bin").read_bytes() == NOISE
    assert (folder / "set" / "deep" / "b.txt").read_bytes() == b"b"


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    assert extract(SOURCE, tmp_path / "no archive is needed", tmp_path) == tmp_path / "set"
    assert names(tmp_path / "set") == []


@pytest.mark.parametrize(
    "evil",
    [
        entry("../x"),
        entry("set/../../x"),
        entry("set/link", tarfile.SYMTYPE, "/etc/passwd"),
        entry("set/link", tarfile.SYMTYPE, "../../x"),
        entry("set/pipe", tarfile.FIFOTYPE),
        entry("set/device", tarfile.CHRTYPE),
        entry("elsewhere/device", tarfile.BLKTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.linkname}",
)
def test_what_could_write_elsewhere_is_rejected_and_leaves_nothing_behind(
    tmp_path: Path, evil: tarfile.TarInfo
) -> None:
    archive = written(tmp_path, gzip.compress(packed(*GOOD, (evil, b""))))
    before = names(tmp_path.parent)
    with pytest.raises(DataError, match=r"x.tar.gz cannot be.*into .*delete it and fetch it again"):
        extract(SOURCE, archive, tmp_path / "folder")
    assert names(tmp_path / "folder") == []
    assert names(tmp_path.parent) == before


def test_names_with_a_root_stay_in_the_folder(tmp_path: Path) -> None:
    evil = [(entry(name), b"") for name in ("/abs", "/set/abs", "C:\\x", "set\\..\\..\\x")]
    before = names(tmp_path.parent)
    extract(SOURCE, written(tmp_path, gzip.compress(packed(*GOOD, *evil))), tmp_path / "folder")
    assert names(tmp_path / "folder") == ["set"]
    assert names(tmp_path.parent) == before
    assert not Path("/abs").exists()


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"no tar file" * 100), gzip.compress(packed(GOOD[3]))],
    ids=["no tar", "other tar"],
)
def test_another_archive_is_named_and_leaves_nothing_behind(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match=r"x.tar.gz cannot be unpacked into .*delete it"):
        extract(SOURCE, written(tmp_path, content), tmp_path / "folder")
    assert names(tmp_path / "folder") == []


def test_a_full_disk_leaves_no_half_unpacked_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = written(tmp_path, CONTENT)

    def fill(_tar: tarfile.TarFile, path: str, **_: object) -> None:
        Path(path, "set").mkdir()
        Path(path, "set", "a.bin").write_bytes(NOISE[:1000])
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extractall", fill)
        with pytest.raises(DataError, match=r"cannot be unpacked.*space left on device. Make room"):
            extract(SOURCE, archive, tmp_path)
    assert names(tmp_path) == ["x.tar.gz"]
    assert names(extract(SOURCE, archive, tmp_path)) == ["a.bin", "deep"]


def test_two_processes_may_unpack_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, unpack = written(tmp_path, CONTENT), tarfile.TarFile.extractall

    def overtaken(tar: tarfile.TarFile, path: str, **options: str) -> None:
        unpack(tar, path, **options)  # type: ignore[arg-type]
        shutil.copytree(Path(path, "set"), tmp_path / "set")  # the other process

    monkeypatch.setattr(tarfile.TarFile, "extractall", overtaken)
    assert extract(SOURCE, archive, tmp_path) == tmp_path / "set"
    assert names(tmp_path) == ["set", "x.tar.gz"]
