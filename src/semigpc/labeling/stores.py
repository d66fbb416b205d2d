"""Where partitions are kept: a folder, or an address in an object store such as s3://bucket/folder, both by pyarrow."""

import json
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow
from pyarrow import fs, parquet

from semigpc.data.dataset import DataError
from semigpc.files import FileError, parse, replacing, validated

SCHEME = "://"


class Address(PosixPath):
    """A place in an object store, which is a path in all but its first two slashes."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", SCHEME, 1)


def place_of(text: str) -> Path:
    """What the user wrote as a path: of this machine, also where it was written as file://, or of an object store."""
    if text.startswith(f"file{SCHEME}"):
        return Path(unquote(urlsplit(text).path))
    return Address(text) if SCHEME in text else Path(text).expanduser()


class Store:
    """Files below one place; names are relative to it, with slashes.

    A file appears under its name when it is complete: it is written beside it, under a name that starts with a dot, and moved.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.is_remote = isinstance(place, Address)
        try:
            self.files, self.root = fs.FileSystem.from_uri(str(place if self.is_remote else place.resolve()))
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            told = " ".join(str(error).split()).rstrip(".")
            raise DataError(f"{place} cannot be opened: {told}. Give a folder, or an address that pyarrow knows.") from error

    def path(self, name: str) -> str:
        """As the file system knows it."""
        return f"{self.root.rstrip('/')}/{name}"

    def told(self, name: str) -> Path:
        """As a message shows it."""
        return Address(str(self.place).split("?")[0]) / name if self.is_remote else self.place / name

    def listed(self, folder: str = "") -> dict[str, fs.FileInfo]:
        """All files below, by name; none if there is no such folder."""
        base = self.path(folder).rstrip("/")
        found = self.files.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
        return {info.path[len(base) + 1 :]: info for info in found if info.type == fs.FileType.File}

    def check_folder(self) -> None:
        """Refuse a place that is not there, or is a file."""
        try:
            kind = self.files.get_file_info(self.root).type
        except OSError as error:
            raise DataError(f"{self.place} cannot be opened: {' '.join(str(error).split())}") from error
        if kind == fs.FileType.NotFound:
            raise DataError(f"There is no folder {self.place}. Check the path.")
        if kind == fs.FileType.File:
            raise DataError(
                f"Labelling on Ray takes a folder of .parquet files; {self.place} is a file. Leave out --engine ray."
            )

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return bool(self.files.get_file_info(self.path(name)).type == fs.FileType.File)

    def open(self, name: str) -> pyarrow.NativeFile:
        """For reading anywhere in it."""
        return self.files.open_input_file(self.path(name))

    def remove(self, *names: str) -> None:
        """Files that need not be there."""
        for name in names:
            with suppress(FileNotFoundError):
                self.files.delete_file(self.path(name))

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Plain values; None if there is no such file.

        Raises:
            DataError: it is something else.
        """
        if not self.exists(name):
            return None
        try:
            with self.open(name) as file:
                return validated(parse(file.readall(), self.told(name)), dict[str, Any], self.told(name))
        except FileError as error:
            raise DataError(f"{error}. Give another --out, or --overwrite.") from error
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{self.told(name)} cannot be read: {error}. Give another --out, or --overwrite.") from error

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """A file of plain values, all at once."""
        self.write_bytes(name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """A file, all at once."""

        def write(sink: pyarrow.NativeFile) -> None:
            sink.write(content)

        self._write(name, write)

    def write_table(
        self, name: str, schema: pyarrow.Schema, parts: Iterable[pyarrow.Table], facts: Callable[[], dict[str, Any]]
    ) -> None:
        """A Parquet file, part by part; ``facts`` are asked for at the end and kept in its footer."""

        def write(sink: pyarrow.NativeFile) -> None:
            with parquet.ParquetWriter(sink, schema, write_page_checksum=True) as writer:
                for part in parts:
                    writer.write_table(part)
                writer.add_key_value_metadata({"semigpc": json.dumps(facts())})

        self._write(name, write)

    def _write(self, name: str, write: Callable[[pyarrow.NativeFile], None]) -> None:
        """Under a name of its own for every attempt: a worker that was given up may still be writing."""
        if not self.is_remote:
            with replacing(Path(self.path(name))) as file, self.files.open_output_stream(str(file)) as sink:
                write(sink)
            return
        folder, _, last = name.rpartition("/")
        draft = self.path(f"{folder}/" * bool(folder) + f".{last}.{uuid.uuid4().hex[:8]}.part")
        self.files.create_dir(self.path(folder).rstrip("/"), recursive=True)
        try:
            with self.files.open_output_stream(draft) as sink:
                write(sink)
            self.files.move(draft, self.path(name))
        except BaseException:
            with suppress(OSError):
                self.files.delete_file(draft)
            raise


def facts_of(store: Store, name: str) -> dict[str, Any] | None:
    """What ``write_table`` put into the footer; None if there is nothing of the kind."""
    try:
        with store.open(name) as file, parquet.ParquetFile(file) as table:
            held = json.loads((table.metadata.metadata or {}).get(b"semigpc", b"null"))
            return held | {"rows": table.metadata.num_rows} if isinstance(held, dict) else None
    except (OSError, ValueError, pyarrow.ArrowException):
        return None
