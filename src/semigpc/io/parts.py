"""Resumable parts: long work is stored piece by piece, and after a stop the same call continues.

    key.json    the key: everything that the parts depend on, as JSON
    <part>      a finished part; it appears by a rename when it is complete, and holds checksums

Parts are used only with the key that they were made with. Unfinished drafts have hidden names and
are deleted by :meth:`Parts.begin`. Callers hold :func:`semigpc.io.atomic.locked` while they write.

Users: cached features (data.feature_views), embeddings of images (models.encoder), shards of
labels (labeling.outputs) and partitions in a folder or an object store (labeling.ray). The first
two are in the user's cache (:func:`cache_root`), so that all commands share them.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PosixPath
from typing import IO, Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import torch
from torch import Tensor

from semigpc.io.atomic import JsonObject, must_be_file, parse, replacing, validated
from semigpc.io.content import MARK_BYTES
from semigpc.io.errors import DataError, FileError
from semigpc.io.tensors import open_tensors, save_tensors

KEY_FILE = "key.json"
SCHEME = "://"  # in an address, and in no path
PART_ROWS = 512  # rows in a part of RowParts, which a stop loses at most: half a minute of work
VALUE_LENGTH = 80  # most characters of a value in a message
CACHE_VARIABLE = "SEMIGPC_CACHE"  # of the environment; names the folder of all caches

Key = JsonObject


def cache_root() -> Path:
    """Return the folder of all caches: the one named by SEMIGPC_CACHE, or ``~/.cache/semigpc``."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "semigpc").expanduser()


# Where files are stored ---------------------------------------------------------------------------


class Address(PosixPath):
    """An address in an object store, which is a path except for its first two slashes."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", SCHEME, 1)


def place_of(text: str) -> Path:
    """Return a path or an address as the user wrote it; file:// is a path of this machine."""
    if text.startswith(f"file{SCHEME}"):
        return Path(unquote(urlsplit(text).path))
    return Address(text) if SCHEME in text else Path(text).expanduser()


class FileInfo(NamedTuple):
    """The size in bytes and the time of the last change, in nanoseconds, of a file."""

    size: int
    mtime_ns: int


class Folder:
    """The files below a folder on disk; names are relative to it, with forward slashes.

    A file has its name only when it is complete: a hidden draft beside it is written and renamed.
    """

    file_system: Any = None  # of pyarrow; None for this machine's

    def __init__(self, place: Path) -> None:
        self.place = place

    def shown(self, name: str) -> Path:
        """Return the path of a file for messages."""
        return self.place / name

    def location(self, name: str) -> str:
        """Return the path of a file in its file system."""
        return str(self.place / name)

    def kind(self) -> Literal["folder", "file", "nothing"]:
        """Return what is at the place."""
        if self.place.is_dir():
            return "folder"
        return "file" if self.place.exists() else "nothing"

    def listed(self, below: str = "") -> dict[str, FileInfo]:
        """Return all files below a sub-folder, by their names in it; none if it does not exist."""
        base = self.place / below
        found = {}
        for folder, _, names in os.walk(base, followlinks=True):
            for path in (Path(folder, name) for name in names):
                with suppress(FileNotFoundError):  # deleted meanwhile, or a broken link
                    facts = path.stat()
                    info = FileInfo(facts.st_size, facts.st_mtime_ns)
                    found[path.relative_to(base).as_posix()] = info
        return found

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        return (self.place / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading anywhere in it."""
        must_be_file(self.place / name)
        return (self.place / name).open("rb")

    def remove(self, *names: str) -> None:
        """Delete files, as far as they exist."""
        for name in names:
            (self.place / name).unlink(missing_ok=True)

    @contextmanager
    def draft(self, name: str) -> Iterator[Any]:
        """Yield where to write a file: a path, or a stream in an object store."""
        with replacing(self.place / name) as path:
            yield path

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file."""
        with self.draft(name) as path:
            path.write_bytes(content)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write plain values as JSON."""
        self.write_bytes(name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def read_json(self, name: str, remedy: str) -> Key | None:
        """Return the content of a JSON file; None if there is no such file.

        Raises:
            DataError: it cannot be read, or holds something else; ``remedy`` ends the message.
        """
        where = self.shown(name)
        try:
            with self.open(name) as file:
                return validated(parse(file.read(), where), JsonObject, where)
        except FileNotFoundError:
            return None
        except (OSError, FileError) as error:  # errors of pyarrow's files are OSErrors too
            message = error if isinstance(error, FileError) else f"{where} cannot be read: {error}"
            raise DataError(f"{message}. {remedy}") from error


class ObjectStore(Folder):
    """The files below an address that pyarrow knows, such as s3://bucket/folder."""

    def __init__(self, place: Path) -> None:
        from pyarrow import fs

        super().__init__(place)
        try:
            self.file_system, root = fs.FileSystem.from_uri(str(place))
        except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
            reason = " ".join(str(error).split()).rstrip(".")
            advice = "Give a folder, or an address that pyarrow knows."
            raise DataError(f"{place} cannot be opened: {reason}. {advice}") from error
        self._root: str = root.rstrip("/")

    def shown(self, name: str) -> Path:
        """Return the address for messages, without what follows a question mark."""
        return Address(str(self.place).split("?")[0]) / name

    def location(self, name: str) -> str:
        return f"{self._root}/{name}"

    def kind(self) -> Literal["folder", "file", "nothing"]:
        from pyarrow import fs

        found = self.file_system.get_file_info(self._root).type
        if found == fs.FileType.NotFound:
            return "nothing"
        return "file" if found == fs.FileType.File else "folder"

    def listed(self, below: str = "") -> dict[str, FileInfo]:
        from pyarrow import fs

        base = self.location(below).rstrip("/")
        selector = fs.FileSelector(base, recursive=True, allow_not_found=True)
        return {
            entry.path[len(base) + 1 :]: FileInfo(entry.size, entry.mtime_ns)
            for entry in self.file_system.get_file_info(selector)
            if entry.is_file
        }

    def exists(self, name: str) -> bool:
        return bool(self.file_system.get_file_info(self.location(name)).is_file)

    def open(self, name: str) -> IO[bytes]:
        stream: IO[bytes] = self.file_system.open_input_file(self.location(name))
        return stream

    def remove(self, *names: str) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self.file_system.delete_file(self.location(name))

    @contextmanager
    def draft(self, name: str) -> Iterator[Any]:
        # A new name each time: a worker that was given up may still be writing its own draft.
        folder, _, last = name.rpartition("/")
        below = f"{folder}/" if folder else ""
        draft = self.location(f"{below}.{last}.{uuid.uuid4().hex[:8]}.part")
        self.file_system.create_dir(self.location(folder).rstrip("/"), recursive=True)
        try:
            with self.file_system.open_output_stream(draft) as stream:
                yield stream
            self.file_system.move(draft, self.location(name))
        except BaseException:
            with suppress(OSError):
                self.file_system.delete_file(draft)
            raise

    def write_bytes(self, name: str, content: bytes) -> None:
        with self.draft(name) as stream:
            stream.write(content)


def open_folder(place: Path) -> Folder:
    """Return the files below a path or an address."""
    return ObjectStore(place) if isinstance(place, Address) else Folder(place)


# Parts and their key ------------------------------------------------------------------------------


def plain(key: Mapping[str, Any]) -> Key:
    """Return a key as it is after writing it to JSON and reading it again."""
    values: Key = json.loads(json.dumps(key))
    return values


def key_digest(key: Mapping[str, Any]) -> str:
    """Return the sha256 of a key, in hexadecimal."""
    return hashlib.sha256(json.dumps(plain(key), sort_keys=True).encode()).hexdigest()


def key_difference(earlier: Key, current: Key, ignoring: str = "") -> str | None:
    """Return the first difference between two keys, as a clause; None if there is none.

    Of an entry whose name ends with "content", which is a hash, the values are not shown. The
    entry ``ignoring`` may differ.
    """
    for name in sorted({*earlier, *current} - {ignoring}):
        if earlier.get(name) != current.get(name):
            if name.endswith("content"):
                return f"the {name} has changed since"
            old = repr(earlier.get(name))[:VALUE_LENGTH]
            return f"{name} is {old} there and {current.get(name)!r} here"
    return None


class Parts:
    """The finished parts of one key.

    Args:
        folder: that holds the parts and, unless the caller stores it elsewhere, the key.
        key: what the parts depend on. below: the sub-folder of the parts.
        suffix: how their names end. remedy: the end of a message about damage, in full sentences.
    """

    def __init__(
        self,
        folder: Folder,
        key: Mapping[str, Any],
        *,
        below: str = "",
        suffix: str = ".parquet",
        remedy: str,
    ) -> None:
        self.folder = folder
        self.key = plain(key)
        self.suffix = suffix
        self.remedy = remedy
        self._prefix = f"{below}/" if below else ""

    def path(self, name: str) -> Path:
        """Return the path of a part on disk."""
        return self.folder.place / f"{self._prefix}{name}"

    def names(self) -> list[str]:
        """Return the names of all finished parts, sorted."""
        names = self.folder.listed(self._prefix.rstrip("/"))
        return sorted(name for name in names if name.endswith(self.suffix) and not _hidden(name))

    def __contains__(self, name: str) -> bool:
        return self.folder.exists(f"{self._prefix}{name}")

    @contextmanager
    def draft(self, name: str) -> Iterator[Any]:
        """Yield where to write a part, which is finished when the block ends without an error."""
        with self.folder.draft(f"{self._prefix}{name}") as place:
            yield place

    def remove(self, names: Iterable[str]) -> None:
        """Delete parts, as far as they exist."""
        self.folder.remove(*(f"{self._prefix}{name}" for name in names))

    def stored_key(self) -> Key | None:
        """Return the key that the finished parts were made with; None if there are no parts.

        Raises:
            DataError: there are parts, and their key is missing or cannot be read.
        """
        if not self.names():
            return None
        key = self.folder.read_json(KEY_FILE, self.remedy)
        if key is None:
            where = self.folder.shown(KEY_FILE)
            raise DataError(
                f"{where} is missing, and parts without a key are not used. {self.remedy}"
            )
        return key

    def difference(self, ignoring: str = "") -> str | None:
        """Return how the finished parts were made differently; None if this key may use them."""
        earlier = self.stored_key()
        return None if earlier is None else key_difference(earlier, self.key, ignoring)

    def begin(self, *, afresh: bool = False) -> None:
        """Delete drafts and, if ``afresh``, all parts; then write the key unless it is there."""
        self.remove_drafts()
        if afresh:
            self.remove(self.names())
        if afresh or not self.folder.exists(KEY_FILE) or not self.names():
            self.folder.write_json(KEY_FILE, self.key)

    def remove_drafts(self) -> None:
        """Delete the drafts of processes that were killed."""
        names = self.folder.listed(self._prefix.rstrip("/"))
        self.remove(name for name in names if _hidden(name) and not name.endswith(".lock"))

    def remove_all(self) -> None:
        """Delete the folder on disk with everything in it."""
        shutil.rmtree(self.folder.place, ignore_errors=True)


def _hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")


# Rows ---------------------------------------------------------------------------------------------


Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]


class RowParts(Parts):
    """Parts of some hundred rows each; a row is found by the mark of what it was made from.

    Each part is a safetensors file with the marks (n, 16) and tensors (n, ...). A mark is that of
    the input's content (:mod:`semigpc.io.content`), so an input that changed is computed again.

    Args:
        shapes: for each kind of part, its tensors by name and the shape of one row of each.
        dtype: of all tensors. The others are those of :class:`Parts`.
    """

    def __init__(
        self,
        folder: Folder,
        key: Mapping[str, Any],
        *,
        shapes: Shapes,
        dtype: torch.dtype,
        remedy: str,
    ) -> None:
        super().__init__(folder, key, suffix=".safetensors", remedy=remedy)
        self.shapes = shapes
        self.dtype = dtype
        self._waiting: list[tuple[Sequence[bytes], Mapping[str, Tensor]]] = []
        self._waiting_kind = ""
        self._indexed: set[str] = set()  # parts whose checksum was verified and marks were read
        self._places: dict[str, dict[bytes, tuple[str, int]]] = {kind: {} for kind in shapes}

    def add(self, kind: str, marks: Sequence[bytes], tensors: Mapping[str, Tensor]) -> None:
        """Add n rows: their marks and tensors (n, ...). A part is written when it has enough."""
        if kind != self._waiting_kind:
            self.flush()
            self._waiting_kind = kind
        self._waiting.append((marks, tensors))
        if sum(len(marks) for marks, _ in self._waiting) >= PART_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are waiting."""
        if not self._waiting:
            return
        joined = b"".join(mark for marks, _ in self._waiting for mark in marks)
        marks = np.frombuffer(joined, np.uint8).reshape(-1, MARK_BYTES)
        tensors = {
            name: torch.cat([rows[name] for _, rows in self._waiting]).contiguous()
            for name in self.shapes[self._waiting_kind]
        }
        with self.draft(f"{self._waiting_kind}-{uuid.uuid4().hex[:12]}{self.suffix}") as path:
            save_tensors(path, tensors | {"marks": torch.from_numpy(marks.copy())})
        self._waiting = []

    def index(
        self, kind: str, *, damaged: Callable[[str], None] | None = None
    ) -> dict[bytes, tuple[str, int]]:
        """Return the part of each mark, and the row in it.

        Args:
            kind: of the parts.
            damaged: called with the message about a damaged part, which is deleted then, so that
                its rows are missing. Without it, a damaged part is an error.
        """
        places = self._places[kind]
        for name in self.names():
            if not name.startswith(f"{kind}-") or name in self._indexed:
                continue
            try:
                marks = self._read(name, "marks", (MARK_BYTES,)).numpy()
            except DataError as error:
                if damaged is None or not isinstance(error.__cause__, FileError):
                    raise
                self.remove([name])
                damaged(str(error.__cause__))
                continue
            self._indexed.add(name)
            places |= {mark.tobytes(): (name, row) for row, mark in enumerate(marks)}
        return places

    def rows(self, tensor: str, marks: Sequence[bytes]) -> Tensor:
        """Return the rows (n, ...) of a tensor for these marks, from any kind of part with it."""
        kinds = [kind for kind, shapes in self.shapes.items() if tensor in shapes]
        shape = self.shapes[kinds[0]][tensor]
        index = ChainMap(*map(self.index, kinds))
        places: dict[str, list[tuple[int, int]]] = {}
        for number, mark in enumerate(marks):
            name, row = index[mark]
            places.setdefault(name, []).append((number, row))
        gathered = torch.empty((len(marks), *shape), dtype=self.dtype)
        for name, pairs in places.items():
            here, there = torch.tensor(pairs).unbind(1)
            gathered[here] = self._read(name, tensor, shape)[there]
        return gathered

    def _read(self, name: str, tensor: str, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor of a part; the first time, every byte of the part is verified."""
        path = self.path(name)
        try:
            with open_tensors(path, verify=name not in self._indexed) as (file, _):
                values: Tensor = file.get_tensor(tensor)
        except FileError as error:
            raise DataError(f"{error}. {self.remedy}") from error
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"{path} cannot be read: {reason}. {self.remedy}") from error
        if values.shape[1:] != shape:
            expected = ", ".join(map(str, ("n", *shape)))
            raise DataError(
                f"{path}: {tensor} must have the shape ({expected}); got {tuple(values.shape)}. "
                f"{self.remedy}"
            )
        return values
