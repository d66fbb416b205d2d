"""Official archives: downloaded so that a broken download can be resumed, checked against the published hash, and unpacked."""

import hashlib
import http.client
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from semigpc.data.dataset import DataError

Progress = Callable[[int, int], None]  # bytes received so far, bytes in all

BLOCK = 2**18  # bytes read at a time, between two reports of progress
TIMEOUT = 30.0  # seconds without a response


@dataclass(frozen=True)
class Archive:
    """A ``.tar.gz`` that its owners publish.

    Args:
        url: where.
        file_name: its name on disk.
        md5: of the file, as published.
        size: of the file, in bytes.
        folder: the folder inside that is wanted.
    """

    url: str
    file_name: str
    md5: str
    size: int
    folder: str


_HOST = "https://www.cs.toronto.edu/~kriz"
_CIFAR10, _CIFAR100 = "cifar-10-binary.tar.gz", "cifar-100-binary.tar.gz"
ARCHIVES: dict[str, Archive] = {
    "cifar10": Archive(
        f"{_HOST}/{_CIFAR10}", _CIFAR10, "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171, "cifar-10-batches-bin"
    ),
    "cifar100": Archive(f"{_HOST}/{_CIFAR100}", _CIFAR100, "03b5dce01913d631647c71ecec9e9cb8", 168_513_733, "cifar-100-binary"),
}


def fetch(source: Archive, folder: Path, progress: Progress | None = None) -> Path:
    """Download an archive into ``folder`` unless it is there, unpack it beside, and return the unpacked folder."""
    return extract(source, download(source, folder, progress), folder)


def download(source: Archive, folder: Path, progress: Progress | None = None) -> Path:
    """Return the path of the archive in ``folder``, complete and with the right checksum.

    It is written as ``<file_name>.part``, from which a later call resumes, and renamed once size and checksum are right. A
    file that is there already is checked and not downloaded again. One process at a time.

    Args:
        source: the archive.
        folder: where to put it; created if necessary.
        progress: called after each block.
    """
    target = folder / source.file_name
    if target.exists():
        check(source, target)
        return target
    part = folder / f"{source.file_name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        received = part.stat().st_size if part.exists() else 0
        if received < source.size:
            _receive(source, part, received, progress)
        if problem := _difference(source, part):
            part.unlink()  # resuming from it would never mend it
            raise DataError(f"{target}, fetched from {source.url}, {problem}. It was deleted; fetch it again.")
        part.replace(target)
    except OSError as error:
        raise DataError(
            f"{source.file_name} cannot be written to {folder}: {error}. Make room or choose another folder; "
            "a download that was begun goes on where it stopped."
        ) from error
    return target


def check(source: Archive, path: Path) -> None:
    """Raise a DataError if a file is not the archive, byte for byte."""
    if problem := _difference(source, path):
        raise DataError(f"{path} {problem}. Delete it and fetch it again.")


def _difference(source: Archive, path: Path) -> str:
    """Return what is wrong with a file, or nothing."""
    size = path.stat().st_size
    if size != source.size:
        return f"must have {source.size} bytes and has {size}: it is cut short, or another file"
    md5 = md5_of(path)
    return "" if md5 == source.md5 else f"must have the md5 sum {source.md5} and has {md5}: it is not what was published"


def md5_of(path: Path) -> str:
    """Return the md5 sum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _receive(source: Archive, part: Path, received: int, progress: Progress | None) -> None:
    """Append to ``part`` until it is complete; a server that cannot send the rest alone sends everything again."""
    elsewhere = f"Or find {source.file_name} elsewhere and put it into {part.parent}; its md5 sum must be {source.md5}."
    with _request(source, part, received, elsewhere) as response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            received = 0
        announced = received + int(response.headers.get("Content-Length", source.size - received))
        if announced != source.size:
            raise DataError(
                f"{source.url} should have {source.size} bytes and has {announced}: it is not the archive that is known. "
                f"{elsewhere}"
            )
        problem = "no more was sent"
        with part.open("ab" if received else "wb") as file:
            while received <= source.size:
                try:
                    block = response.read(BLOCK)
                except (OSError, http.client.HTTPException) as error:
                    block, problem = b"", str(error)
                if not block:
                    break
                received += file.write(block)
                if progress is not None:
                    progress(received, source.size)
    if received < source.size:
        raise DataError(
            f"The download of {source.url} broke off after {received} of {source.size} bytes: {problem}. "
            "Start it again; it goes on where it stopped."
        )


def _request(source: Archive, part: Path, received: int, elsewhere: str) -> http.client.HTTPResponse:
    """Ask for the bytes that are missing, and return the response with its headers read."""
    request = urllib.request.Request(source.url, headers={"Range": f"bytes={received}-"} if received else {})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink()  # longer than the file there is, so nothing could ever be added to it
            raise DataError(
                f"{source.url} answered {error.code} ({error.reason}) instead of sending {source.file_name}. "
                f"Try again later. {elsewhere}"
            ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"{source.url} cannot be reached: {reason}. Check the connection and try again. {elsewhere}") from error
    return response


def extract(source: Archive, path: Path, folder: Path) -> Path:
    """Unpack the wanted folder of an archive, whose checksum was checked, into ``folder`` and return where it is.

    The standard library's ``data`` filter rejects entries that could write elsewhere, links that lead out, and devices. A
    hidden folder is filled first and then renamed, so a folder that is there is complete and is not unpacked again.
    """
    target = folder / source.folder
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{source.folder}-", dir=folder) as draft:
            with tarfile.open(path, "r:gz") as tar:
                tar.extractall(draft, filter="data")
            Path(draft, source.folder).rename(target)
    except (OSError, tarfile.TarError) as error:
        if not target.is_dir():  # another process may have been faster
            raise DataError(
                f"{path} cannot be unpacked into {folder}: {error}. Make room or choose another folder; if it is another "
                "archive or damaged, delete it and fetch it again."
            ) from error
    return target
