"""Downloads of archives: whole and checked, resumed where they broke off, and nothing bad left
under the final name.
"""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from semigpc.data.cifar import ARCHIVES, Archive, download, fetch
from semigpc.io.errors import DataError
from tests.data.tar_samples import CONTENT, names


class Server(HTTPServer):
    """Serves ``content`` under every path, in whichever way a test asks for; ``asked`` has the
    Range of each request.
    """

    content = CONTENT
    status = 200
    ranges = True  # honour them
    cut_after: int | None = None  # close the connection after so many bytes
    announce = True  # the length

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        start = (
            int(asked.removeprefix("bytes=").removesuffix("-"))
            if asked and self.server.ranges
            else 0
        )
        self.send_response(206 if start else 200)
        body = self.server.content[start:]
        if self.server.announce:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut_after])

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
    assert {
        name: (archive.url, archive.md5, archive.size, archive.folder)
        for name, archive in ARCHIVES.items()
    } == {
        "cifar10": (
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            170052171,
            "cifar-10-batches-bin",
        ),
        "cifar100": (
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            168513733,
            "cifar-100-binary",
        ),
    }
    assert all(archive.url.endswith(f"/{archive.file_name}") for archive in ARCHIVES.values())


def test_a_download_arrives_whole_and_says_how_far_it_is(tmp_path: Path, source: Archive) -> None:
    told: list[tuple[int, int]] = []
    path = download(
        source, tmp_path / "new" / "folder", lambda have, size: told.append((have, size))
    )
    assert path == tmp_path / "new" / "folder" / "set.tar.gz"
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["set.tar.gz"]
    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_what_is_there_is_checked_and_not_fetched_again(
    tmp_path: Path, server: Server, source: Archive
) -> None:
    for _ in range(2):
        download(source, tmp_path, None)
    assert len(server.asked) == 1


def test_a_download_that_broke_off_goes_on_where_it_stopped(
    tmp_path: Path, server: Server, source: Archive
) -> None:
    server.cut_after = 300_000
    with pytest.raises(
        DataError,
        match=rf"broke off after 300000 of {source.size} bytes.*it goes on where it stopped",
    ):
        download(source, tmp_path)
    assert names(tmp_path) == ["set.tar.gz.part"]
    server.cut_after = None
    assert download(source, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]
    assert names(tmp_path) == ["set.tar.gz"]


def test_a_server_that_cannot_send_the_rest_alone_sends_everything(
    tmp_path: Path, server: Server, source: Archive
) -> None:
    (tmp_path / "set.tar.gz.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    assert download(source, tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_a_download_that_was_complete_needs_no_server(
    tmp_path: Path, server: Server, source: Archive
) -> None:
    (tmp_path / "set.tar.gz.part").write_bytes(CONTENT)
    assert download(source, tmp_path).read_bytes() == CONTENT
    assert server.asked == []


@pytest.mark.parametrize("begun", [0, 1000])
def test_a_wrong_checksum_leaves_nothing_behind(
    tmp_path: Path, server: Server, source: Archive, begun: int
) -> None:
    (tmp_path / "set.tar.gz.part").write_bytes(b"x" * begun)
    server.content = b"x" + CONTENT[1:]
    found = hashlib.md5(b"x" * (begun or 1) + CONTENT[begun or 1 :]).hexdigest()
    sums = f"md5 sum {source.md5} and has {found}"
    with pytest.raises(
        DataError, match=rf"set.tar.gz, fetched from http.*{sums}.* It was deleted; fetch it again"
    ):
        download(source, tmp_path)
    assert names(tmp_path) == []


def test_a_file_of_another_length_is_refused_before_it_is_fetched(
    tmp_path: Path, server: Server, source: Archive
) -> None:
    server.content = CONTENT[:-7]
    with pytest.raises(
        DataError,
        match=rf"should have {source.size} bytes and has {source.size - 7}.*find set.tar.gz elsewhere",
    ):
        download(source, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("change", [-7, 7])
def test_a_length_that_was_not_announced_is_found_out(
    tmp_path: Path, server: Server, source: Archive, change: int
) -> None:
    server.announce = False
    server.content = CONTENT[:change] if change < 0 else CONTENT + b"x" * change
    message = (
        "broke off after"
        if change < 0
        else rf"must have {source.size} bytes and has {source.size + change}"
    )
    with pytest.raises(DataError, match=message):
        download(source, tmp_path)
    assert names(tmp_path) == (["set.tar.gz.part"] if change < 0 else [])


def test_a_refusal_of_the_server_is_told_with_its_number(
    tmp_path: Path, server: Server, source: Archive
) -> None:
    (tmp_path / "set.tar.gz.part").write_bytes(CONTENT[:1000])
    server.status = 404
    with pytest.raises(
        DataError,
        match=rf"answered 404 \(Not Found\) instead of sending set.tar.gz.*must be {source.md5}",
    ):
        download(source, tmp_path)
    assert names(tmp_path) == ["set.tar.gz.part"]
    server.status = 416  # what was begun is longer than what the server has
    with pytest.raises(DataError, match="answered 416"):
        download(source, tmp_path)
    assert names(tmp_path) == []


def test_no_network_is_told_as_such(tmp_path: Path, server: Server, source: Archive) -> None:
    server.server_close()
    with pytest.raises(
        DataError,
        match=r"set.tar.gz cannot be reached: .*Check the connection and try again. Or find",
    ):
        download(source, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [(CONTENT[:-1], "bytes and has"), (CONTENT[:-1] + b"x", "md5 sum .* and has")],
)
def test_a_bad_archive_that_is_there_is_named_and_kept(
    tmp_path: Path, server: Server, source: Archive, content: bytes, message: str
) -> None:
    (tmp_path / "set.tar.gz").write_bytes(content)
    with pytest.raises(
        DataError,
        match=rf"{tmp_path}/set.tar.gz must have .*{message}.*Delete it and fetch it again",
    ):
        download(source, tmp_path)
    assert (tmp_path / "set.tar.gz").read_bytes() == content
    assert server.asked == []


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, source: Archive) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        DataError, match=r"set.tar.gz cannot be written to .*file: .*choose another folder"
    ):
        download(source, tmp_path / "file")


def test_fetching_is_downloading_and_unpacking(
    tmp_path: Path, server: Server, source: Archive
) -> None:
    for _ in range(2):
        assert fetch(source, tmp_path) == tmp_path / "set"
    assert names(tmp_path) == ["set", "set.tar.gz"]
    assert len(server.asked) == 1
