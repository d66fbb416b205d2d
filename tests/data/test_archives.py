"""Downloads of archives: whole and checked, or nothing under the final name."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from semigpc.data.cifar import ARCHIVES, Archive, download, fetch
from semigpc.io.errors import DataError, WriteError
from tests.data.tar_samples import CONTENT, names


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
