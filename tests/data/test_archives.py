"""Archives: downloaded whole and checked or not at all, and unpacked with nothing half done."""

import gzip
import hashlib
import io
import shutil
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semigpc.data.cifar import ARCHIVES, Archive, download, extract, fetch
from semigpc.io.errors import DataError, WriteError


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


def packed(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A tar file, not yet compressed."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for member, content in entries:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


NOISE = np.random.default_rng(0).bytes(600_000)  # more than two blocks, and it does not compress
GOOD = (
    (entry("set", tarfile.DIRTYPE), b""),
    (entry("set/a.bin"), NOISE),
    (entry("set/deep/b.txt"), b"b"),
    (entry("other/c.txt"), b"c"),
)
CONTENT = gzip.compress(packed(*GOOD), mtime=0)


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def written(folder: Path, content: bytes) -> Path:
    """An archive with that content."""
    path = folder / "x.tar.gz"
    path.write_bytes(content)
    return path


class Server(HTTPServer):
    """Serves ``content`` under every path."""

    content = CONTENT
    status = 200
    cut_after: int | None = None  # close the connection after so many bytes
    requests = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content[: self.server.cut_after])

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def source(server: Server) -> Archive:
    url = f"http://127.0.0.1:{server.server_port}/set.tar.gz"
    return Archive(url, "set.tar.gz", hashlib.md5(CONTENT).hexdigest(), len(CONTENT), "set")


def test_the_official_archives_are_the_published_ones() -> None:
    published = {
        "cifar10": ("c32a1d4ab5d03f1284b67883e8d87530", 170052171, "cifar-10-batches-bin"),
        "cifar100": ("03b5dce01913d631647c71ecec9e9cb8", 168513733, "cifar-100-binary"),
    }
    found = {name: (one.md5, one.size, one.folder) for name, one in ARCHIVES.items()}
    assert found == published
    for name, archive in ARCHIVES.items():
        assert archive.file_name == name.replace("cifar", "cifar-") + "-binary.tar.gz"
        assert archive.url == f"https://www.cs.toronto.edu/~kriz/{archive.file_name}"


def test_a_download_arrives_whole_and_says_how_far_it_is(tmp_path: Path, source: Archive) -> None:
    told: list[tuple[int, int]] = []
    folder = tmp_path / "new" / "folder"
    path = download(source, folder, lambda have, size: told.append((have, size)))
    assert path == folder / "set.tar.gz"
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["set.tar.gz"]
    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] == (len(CONTENT), len(CONTENT))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"content": b"x" + CONTENT[1:]}, "md5"),
        ({"content": CONTENT[:-7]}, "md5"),
        ({"cut_after": 300_000}, "sent 300000 bytes"),
        ({"status": 404}, "404.*try again"),
    ],
)
def test_a_download_that_fails_leaves_nothing(
    tmp_path: Path, server: Server, source: Archive, change: dict[str, Any], words: str
) -> None:
    for name, value in change.items():
        setattr(server, name, value)
    with pytest.raises(DataError, match=rf"{source.url} .*{words}.* md5 is {source.md5}"):
        download(source, tmp_path)
    assert names(tmp_path) == []


def test_no_network_is_an_error_with_the_address(
    tmp_path: Path, server: Server, source: Archive
) -> None:
    server.server_close()
    with pytest.raises(DataError, match=r"set.tar.gz could not be downloaded: .*connection"):
        download(source, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"x"])
def test_a_bad_archive_that_is_there_is_named_and_kept(
    tmp_path: Path, server: Server, source: Archive, content: bytes
) -> None:
    (tmp_path / "set.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=rf"{tmp_path}/set.tar.gz must have .*md5.*Delete it"):
        download(source, tmp_path)
    assert (tmp_path / "set.tar.gz").read_bytes() == content
    assert server.requests == 0


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, source: Archive) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match=r"file/set.tar.gz could not be written: .*another place"):
        download(source, tmp_path / "file")


def test_fetching_is_downloading_and_unpacking(
    tmp_path: Path, server: Server, source: Archive
) -> None:
    for _ in range(2):
        assert fetch(source, tmp_path) == tmp_path / "set"
    assert names(tmp_path) == ["set", "set.tar.gz"]
    assert server.requests == 1


# Unpacking ----------------------------------------------------------------------------------------


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
