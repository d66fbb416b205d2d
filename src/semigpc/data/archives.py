"""Official archives: fetched so that a broken download goes on where it stopped, checked, and unpacked safely."""

import gzip
import hashlib
import http.client
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from semigpc.data.dataset import DataError
from semigpc.data.paths import checked

Progress = Callable[[int, int], None]  # bytes that are there, bytes in all

BLOCK = 2**18  # bytes
TIMEOUT = 30.0  # seconds without an answer
CORRUPT = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, OverflowError)
MARGIN = 1.1  # of what an archive may unpack to, over what its data set is known to have
MOST_ENTRIES = 1000  # in an archive; the largest has nine


@dataclass(frozen=True)
class Archive:
    """A ``.tar.gz`` that its owners publish.

    Args:
        url: where.
        file_name: what it is called on disk.
        md5: of the file, as published.
        size: of the file, in bytes.
        folder: the folder inside that is wanted.
        unpacked: bytes of all files inside.
    """

    url: str
    file_name: str
    md5: str
    size: int
    folder: str
    unpacked: int


_HOST = "https://www.cs.toronto.edu/~kriz"
_CIFAR10, _CIFAR100 = "cifar-10-binary.tar.gz", "cifar-100-binary.tar.gz"
ARCHIVES: dict[str, Archive] = {
    "cifar10": Archive(
        f"{_HOST}/{_CIFAR10}",
        _CIFAR10,
        "c32a1d4ab5d03f1284b67883e8d87530",
        170_052_171,
        "cifar-10-batches-bin",
        60_000 * 3073,
    ),
    "cifar100": Archive(
        f"{_HOST}/{_CIFAR100}",
        _CIFAR100,
        "03b5dce01913d631647c71ecec9e9cb8",
        168_513_733,
        "cifar-100-binary",
        60_000 * 3074,
    ),
}


def fetch(source: Archive, folder: Path, progress: Progress | None = None) -> Path:
    """Download an archive into ``folder`` unless it is there, unpack it beside, and answer with the folder unpacked."""
    return extract(download(source, folder, progress), folder, source.folder, source.unpacked)


def download(source: Archive, folder: Path, progress: Progress | None = None) -> Path:
    """Have the archive in ``folder``, whole and with the right checksum.

    It grows as ``<file_name>.part``, from which a later call goes on, and gets its name once size and checksum are right. A
    file that is there already is checked and not fetched again. One process at a time.

    Args:
        source: what to fetch.
        folder: where to; made if it is not there.
        progress: told now and then how many bytes there are, and how many there will be.
    """
    target = folder / source.file_name
    if target.exists():
        check(source, target)
        return target
    part = folder / f"{source.file_name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        have = part.stat().st_size if part.exists() else 0
        if have < source.size:
            _receive(source, part, have, progress)
        if problem := _difference(source, part):
            part.unlink()  # going on from it would never mend it
            raise DataError(f"{target}, fetched from {source.url}, {problem}. It was deleted; fetch it again.")
        part.replace(target)
    except OSError as error:
        raise DataError(
            f"{source.file_name} cannot be written to {folder}: {error}. Make room or choose another folder; "
            "a download that was begun goes on where it stopped."
        ) from error
    return target


def check(source: Archive, path: Path) -> None:
    """Refuse a file that is not the archive, byte for byte."""
    if problem := _difference(source, path):
        raise DataError(f"{path} {problem}. Delete it and fetch it again.")


def _difference(source: Archive, path: Path) -> str:
    """What is wrong with a file, if anything."""
    size = path.stat().st_size
    if size != source.size:
        return f"must have {source.size} bytes and has {size}: it is cut short, or another file"
    found = md5_of(path)
    return "" if found == source.md5 else f"must have the md5 sum {source.md5} and has {found}: it is not what was published"


def md5_of(path: Path) -> str:
    """The md5 sum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _receive(source: Archive, part: Path, have: int, progress: Progress | None) -> None:
    """Append to ``part`` until it is complete; a server that cannot send the rest alone sends everything again."""
    with _ask(source, part, have) as answer:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        announced = have + int(answer.headers.get("Content-Length", source.size - have))
        if announced != source.size:
            raise DataError(
                f"{source.url} should have {source.size} bytes and has {announced}: it is not the archive that is known. "
                f"{_elsewhere(source, part)}"
            )
        with part.open("ab" if have else "wb") as file:
            while have <= source.size and (block := _next_block(answer, source, have)):
                have += file.write(block)
                if progress is not None:
                    progress(have, source.size)
    if have < source.size:
        raise _broken_off(source, have, "no more was sent")


def _ask(source: Archive, part: Path, have: int) -> http.client.HTTPResponse:
    """The answer to a request for what is missing, with its headers read."""
    request = urllib.request.Request(source.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink()  # longer than the file there is, so nothing could ever be added to it
            raise DataError(
                f"{source.url} answered {error.code} ({error.reason}) instead of sending {source.file_name}. "
                f"Try again later. {_elsewhere(source, part)}"
            ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DataError(
            f"{source.url} cannot be reached: {reason}. Check the connection and try again. {_elsewhere(source, part)}"
        ) from error
    return answer


def _elsewhere(source: Archive, part: Path) -> str:
    return f"Or find {source.file_name} elsewhere and put it into {part.parent}; its md5 sum must be {source.md5}."


def _next_block(answer: http.client.HTTPResponse, source: Archive, have: int) -> bytes:
    try:
        return answer.read(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _broken_off(source, have, str(error)) from error


def _broken_off(source: Archive, have: int, why: str) -> DataError:
    return DataError(
        f"The download of {source.url} broke off after {have} of {source.size} bytes: {why}. "
        "Start it again; it goes on where it stopped."
    )


def extract(archive: Path, folder: Path, wanted: str, unpacked: int) -> Path:
    """Unpack one folder of a ``.tar.gz`` into ``folder`` and answer with where it is.

    An archive with a way out of the folder, a link or a device anywhere, too many entries, or more bytes than the data
    set is known to have is refused before anything is written. What is unpacked grows in a hidden folder beside and is moved
    into place whole, so a folder that is there is complete. If it is there already, nothing happens.

    Args:
        archive: the file, which is read twice: once to check it, to its last byte, and once to unpack it.
        folder: where to; made if it is not there.
        wanted: a path in the archive; it arrives under its last name.
        unpacked: bytes that all files inside should have; a tenth more is the most.
    """
    inside = PurePosixPath(wanted)
    target = folder / inside.name
    if target.exists():
        return target
    most = int(MARGIN * unpacked)
    try:
        _check_members(archive, inside, most)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{inside.name}-", dir=folder) as growing:
            with gzip.open(archive) as stream, _Limited(archive, stream, most).tar() as tar:
                tar.extraction_filter = tarfile.data_filter
                tar.extractall(growing, (member for member in tar if _is_below(member, inside)))
            _move(Path(growing, inside), target)
    except CORRUPT as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{archive} cannot be unpacked: {error}. It is cut short or damaged; delete it and fetch it again."
        ) from error
    except OSError as error:
        raise DataError(f"{archive} cannot be unpacked into {folder}: {error}. Make room or choose another folder.") from error
    return target


class _Limited:
    """What comes out of an archive, up to a number of bytes; also what no entry accounts for counts."""

    def __init__(self, archive: Path, stream: gzip.GzipFile, most: int) -> None:
        self.archive, self.stream, self.most, self.left = archive, stream, most, most

    def read(self, size: int) -> bytes:
        """The next bytes."""
        block = self.stream.read(size)
        self.left -= len(block)
        if self.left < 0:
            raise DataError(
                f"{self.archive} unpacks to more than {self.most} bytes, and the data set has less; nothing was kept. Delete "
                "it and fetch it from its official place."
            )
        return block

    def tar(self) -> tarfile.TarFile:
        """Its entries, read one after the other and never backwards."""
        return tarfile.open(fileobj=cast("IO[bytes]", self), mode="r|")


def _check_members(archive: Path, inside: PurePosixPath, most: int) -> None:
    """Read the whole archive; refuse what could write elsewhere or too much, and one without the folder that is wanted."""
    if not hasattr(tarfile, "data_filter"):
        raise DataError("This Python cannot unpack archives safely: 3.11.4 is the first that can. Use a newer one.")
    files = 0
    with gzip.open(checked(archive)) as stream:
        limited = _Limited(archive, stream, most)
        with limited.tar() as tar:
            for number, member in enumerate(tar):
                _check_member(archive, member, number)
                files += member.isfile() and _is_below(member, inside)
        while limited.read(BLOCK):  # to the end, where the checksum is: tarfile takes a damaged header for the end
            pass
    if not files:
        raise DataError(
            f"{archive} has no files in a folder {inside}. It is another archive; delete it and fetch the right one."
        )


def _check_member(archive: Path, member: tarfile.TarInfo, number: int) -> None:
    try:
        tarfile.data_filter(member, str(archive.parent))
        problem = "" if member.isfile() or member.isdir() else "which is a link or a device and not a file or a folder"
    except tarfile.FilterError as error:
        problem = f"which could write elsewhere: {error}"
    if number >= MOST_ENTRIES:
        problem = f"after {MOST_ENTRIES} others, which is the most"
    if problem:
        raise DataError(
            f"{archive} has the entry {member.name!r}, {problem}; nothing was unpacked. No official archive has one: "
            "delete it and fetch it from its official place."
        )


def _is_below(member: tarfile.TarInfo, inside: PurePosixPath) -> bool:
    return PurePosixPath(member.name).is_relative_to(inside)


def _move(source: Path, target: Path) -> None:
    """Give a folder its name, unless another process has been faster."""
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():
            raise
