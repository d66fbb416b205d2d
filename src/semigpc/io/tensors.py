"""Tensors in safetensors files with a checksum over every byte.

The header of such a file begins with the checksum. It is the sha256 of the whole file (length,
header, padding and tensors) with zeros in place of its own digits.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from semigpc.io.atomic import JsonObject, must_be_file, parse
from semigpc.io.errors import FileError

DIGITS = 64  # of a sha256 in hexadecimal
ZEROS = b"0" * DIGITS
# A single key: the library writes several in any order, and equal tensors would give different
# files.
KEY = "semigpc"
# 8 bytes of length come first, then the header, which the library begins with the metadata.
OPENING = b'{"__metadata__":{"' + KEY.encode() + rb'":"{\"sha256\": \"'
PLACE = 8 + len(OPENING)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], **facts: Any) -> None:
    """Write a file with a checksum.

    Args:
        path: of the file; :func:`semigpc.io.atomic.replacing` puts it in place.
        tensors: by name, on the CPU and contiguous. facts: what JSON holds, kept in the header.

    Raises:
        OSError: the disk is full, for example.
    """
    try:
        header = json.dumps({"sha256": ZEROS.decode(), **facts})
        save_file(dict(tensors), path, metadata={KEY: header})
    except SafetensorError as error:  # such as a full disk
        raise OSError(str(error)) from error
    with path.open("rb+") as file:
        digest = _digest(file)
        file.seek(PLACE)
        assert file.read(DIGITS) == ZEROS, "this version of safetensors writes another header"
        file.seek(PLACE)
        file.write(digest.encode())


def remove_unfinished_tensors(folder: Path) -> None:
    """Delete the files ``.tmp??????`` that the library leaves if a process is killed."""
    for file in folder.glob(".tmp??????"):
        file.unlink(missing_ok=True)


@contextmanager
def open_tensors(path: Path, *, verify: bool = True) -> Iterator[tuple[Any, JsonObject]]:
    """Verify a file, unless that was done; yield a handle of safetensors, and the facts.

    Raises:
        FileError: it is damaged, or of another kind. FileNotFoundError: it does not exist.
    """
    must_be_file(path)
    with path.open("rb") as file:
        if verify:
            file.seek(8)
            if file.read(len(OPENING)) != OPENING:
                reason = "it has no checksum, so it is damaged or from an older version"
                raise FileError(f"{path} cannot be read: {reason}")
            if file.read(DIGITS) != _digest(file).encode():
                raise FileError(f"{path} is damaged: its content does not match its checksum")
        try:
            with safe_open(path, framework="pt") as tensors:
                if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    raise FileError(f"{path} was replaced while it was read; try again")
                facts = parse(tensors.metadata()[KEY].encode(), path)
                yield tensors, {name: value for name, value in facts.items() if name != "sha256"}
        except SafetensorError as error:
            raise FileError(f"{path} cannot be read: {error}") from error


def _digest(file: BufferedReader | BufferedRandom) -> str:
    """Return the sha256 of the file with zeros in place of the checksum."""
    file.seek(0)
    digest = hashlib.sha256(file.read(PLACE))
    digest.update(ZEROS[: len(file.read(DIGITS))])
    return hashlib.file_digest(file, lambda: digest).hexdigest()
