"""Files that are written completely or not at all, folders that one process writes at a time,
outputs that can be verified.

Every file of this package is written by :func:`replacing`: a draft beside the target is written,
flushed to the disk and renamed, so neither a crash nor a full disk leaves half a file, and the old
file stays until the new one is complete. A process that writes several files that belong together
holds :func:`locked` meanwhile. JSON is read back by :func:`read_json`, which checks it against a
schema, a ``TypedDict`` or a pydantic dataclass; an error names the file, the key, the value and the
remedy.
"""

import errno
import functools
import glob
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import socket
import stat
import sys
import uuid
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from filelock import BaseFileLock, FileLock, Timeout
from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from semigpc.io.errors import FileError, InUseError, WriteError

JsonObject = dict[str, Any]  # as json.loads returns it; records have types of their own
DRAFT = ".semigpc-draft"  # part of a draft's name, by which drafts of killed processes are found
LOCK = ".semigpc.lock"  # in a folder that is being written
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # errors of file systems without locks
POLL_SECONDS = 0.2  # between two attempts to acquire a lock
VALUE_LENGTH = 80  # most characters of a value in a message

# Schemas are exact: no text for a number, no ``true`` for 1, no NaN. RELAXED allows unknown keys:
# later versions may add some.
EXACT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
RELAXED = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
Count = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
Positive = Annotated[int, Field(strict=True, ge=1, lt=2**53)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PathText = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]

T = TypeVar("T")


class FileFacts(TypedDict):
    """Size and hash of an output, as :func:`facts_of` returns them."""

    bytes: Count
    sha256: Sha256


# Writing ------------------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a draft, which replaces ``path`` when the block ends without an error.

    The folder is created if necessary. The draft has the suffix of ``path``, since some writers
    look at it.

    Raises:
        WriteError: the draft could not be written or moved: a full disk, a folder that is
            read-only. The old file stays.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        reason = "it is a folder" if path.is_dir() else "it is a pipe, a socket or a device"
        raise WriteError(
            f"{path} could not be written: {reason}. Move it away, or name another file."
        )
    draft = path.with_name(f".{_short(path.name)}.{uuid.uuid4().hex[:8]}{DRAFT}{path.suffix}")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.touch()
            mode = draft.stat().st_mode  # some writers make files that only the owner can read
            draft.unlink()
            yield draft
            draft.chmod(mode)
            push(draft)
            draft.replace(path)
            push(path.parent)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of writing ``path`` into a :class:`WriteError` with the remedy."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        named = None if error.filename is None else Path(os.fsdecode(error.filename))
        if named is None or named in path.parents or named.parent == path.parent:
            raise _unwritable(path, error) from error
        raise  # not about the file, its draft or the folders above, but about a file that was read


def write_text(path: Path, text: str) -> None:
    r"""Replace a file by UTF-8 text; lone surrogates, as in file names, become \udcff and so on."""
    with replacing(path) as draft:
        draft.write_bytes(text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Replace a file by plain values, as JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _short(name: str) -> str:
    """At most 150 bytes of a name: file systems allow 255, of which a draft needs some."""
    return os.fsdecode(os.fsencode(name)[:150])


def push(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name != "posix":
        return  # other systems cannot open folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritable(path: Path, error: OSError) -> WriteError:
    reason = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
    passing = True
    advice = "Make the folder writable, or choose another place"
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        folder = next(parent for parent in path.absolute().parents if parent.is_dir())
        free = shutil.disk_usage(folder).free / 1e6
        reason = f"the disk is full ({free:.1f} MB free in {folder})"
        advice = "Make room, or choose another place"
    elif error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
        passing = False
        advice = "Choose another place, or another name"
    unchanged = "The previous file was not modified."
    return WriteError(
        f"{path} could not be written: {reason}. {unchanged} {advice}.", passing=passing
    )


# Reading ------------------------------------------------------------------------------------------


def trouble(path: Path) -> str | None:
    """Return why a path may not be opened; None for a file, a folder and a missing path."""
    try:
        str(path).encode()
        mode = path.stat().st_mode
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        if encoding != "utf-8":  # the name may well be right
            return f"names of files are read as {encoding} here; set PYTHONUTF8=1"
        return "its name is not UTF-8; rename it"
    except (OSError, ValueError):  # opening it gives the error; ValueError: a NUL in the name
        return None
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    kind = "a device"
    if stat.S_ISFIFO(mode):
        kind = "a named pipe"
    elif stat.S_ISSOCK(mode):
        kind = "a socket"
    return f"it is {kind}, and reading it may never end; give a regular file"


# Locking ------------------------------------------------------------------------------------------


@contextmanager
def locked(
    folder: Path, file: str = "", *, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Be the only process that writes a folder, or one file of it.

    The operating system releases the lock when the process ends. The lock is a hidden file in the
    folder that names the process for others. The folder is created if necessary, and removed again
    if nothing was written to it.

    Args:
        folder: what is written. file: a file in it, if the rest of the folder is not concerned.
        waiting: called once with a message that names the other process; then wait for it.

    Raises:
        InUseError: another process writes there, and ``waiting`` is None. WriteError: the folder
            cannot be written.
        RuntimeError: this is a worker process that runs its parent's script again, and would wait
            for it for ever.
    """
    # Set while a new process imports the main script.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "Worker processes import the script that started them. Put what it does below: "
            "if __name__ == '__main__':"
        )
    target = folder / file
    path = folder / (f".{file}.lock" if file else LOCK)
    if folder.exists() and not folder.is_dir():
        raise WriteError(f"{folder} must be a folder; it is a file. Choose another place.")
    with writing(target):
        folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, thread_local=False, fallback_to_soft=False, poll_interval=POLL_SECONDS)
    if not _acquire(lock, path, target, waiting):
        yield
        return
    try:
        yield
    finally:
        # While it is held: a process that opened it before finds it unlinked and starts over.
        with suppress(OSError):
            path.unlink()
        lock.release()
        with suppress(OSError):
            folder.rmdir()  # only if it is empty


def _acquire(
    lock: BaseFileLock, path: Path, target: Path, waiting: Callable[[str], None] | None
) -> bool:
    """Acquire the lock and return True; False where the file system has no locks."""
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            message = f"{target} is in use by {_holder(path)}."
            if waiting is None:
                advice = "Wait until it ends, stop it, or choose another place."
                raise InUseError(f"{message} {advice} Nothing was changed.") from None
            waiting(message)
            lock.acquire()
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        program = Path(sys.argv[0]).name.replace("__main__.py", "semigpc")
        command = " ".join([program, *sys.argv[1:2]])
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        with suppress(OSError):  # on a full disk the lock holds all the same
            path.write_text(json.dumps(holder | {"command": command}))
    except OSError as error:
        if error.errno in NO_LOCKS:
            message = f"{target} is on a file system without locks: a second process may write it."
            warnings.warn(message, stacklevel=4)
            return False
        raise _unwritable(target, error) from error
    return True


def _holder(file: Path) -> str:
    try:
        holder = json.loads(file.read_text())
        where = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        return f"{holder['command']} ({where})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process that has just started"


def remove_drafts(folder: Path, file: str = "") -> None:
    """Delete drafts of killed processes in a folder, or of one file; call it under the lock."""
    for draft in folder.glob(f".{glob.escape(_short(file)) or '*'}.????????{DRAFT}*"):
        with suppress(OSError):
            draft.unlink()


# Verifying ----------------------------------------------------------------------------------------


def facts_of(folder: Path, names: Iterable[str]) -> dict[str, FileFacts]:
    """Return size and sha256 of those files of a folder that exist, by name."""
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
        for name in names
        if (folder / name).is_file()
    }


def altered(folder: Path, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of the files that are gone or differ from what ``facts_of`` returned."""
    return [name for name, old in facts.items() if not _same(folder / name, old)]


def _same(path: Path, old: Mapping[str, Any]) -> bool:
    try:
        return bool(path.stat().st_size == old["bytes"] and sha256(path) == old["sha256"])
    except (OSError, KeyError, TypeError):
        return False


def sha256(path: Path) -> str:
    """Return the sha256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(values: Mapping[str, Any]) -> JsonObject:
    """Return plain values with their hash under ``sha256``, for :func:`is_sealed`."""
    return {**values, "sha256": _digest(values)}


def is_sealed(values: Mapping[str, Any]) -> bool:
    """Return whether values, read from JSON, are those that were sealed."""
    bare = {name: value for name, value in values.items() if name != "sha256"}
    return values.get("sha256") == _digest(bare)


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


# JSON ---------------------------------------------------------------------------------------------


def read_json(
    path: Path,
    schema: type[T],
    *,
    error: Callable[[str], Exception],
    remedy: str,
    check: Callable[[T], None] | None = None,
) -> T:
    """Read a JSON file and check it against a schema.

    Args:
        path: of the file. schema: its type. error: the exception to raise. remedy: the end of the
            message, in full sentences.
        check: raises a ValueError for values that do not go together; its message begins with the
            key.

    Raises:
        FileNotFoundError: there is no such file; callers have messages of their own for this.
    """
    try:
        must_be_file(path)
        return validated(parse(path.read_bytes(), path), schema, path, check)
    except FileNotFoundError:
        raise
    except FileError as problem:
        raise error(f"{problem}. {remedy}") from problem
    except OSError as problem:
        reason = problem.strerror or problem
        raise error(f"{path} cannot be read: {reason}. {remedy}") from problem


def must_be_file(path: Path) -> None:
    """Raise a FileError for a folder, a pipe or a device in a file's place."""
    reason = "it is a folder; give a file" if path.is_dir() else trouble(path)
    if reason is not None:
        raise FileError(f"{path} cannot be read: {reason}")


def parse(content: bytes, where: Path | str) -> Any:
    """Parse JSON in which each key occurs once; a byte order mark is skipped."""
    try:
        text = content.decode("utf-8-sig")
        if not text.strip():
            raise FileError(f"{where} cannot be read: it is empty")
        return json.loads(text, object_pairs_hook=functools.partial(_unique, where=where))
    except UnicodeDecodeError as error:
        message = f"{where} cannot be read: it is not text in UTF-8 (byte {error.start})"
        raise FileError(message) from error
    except RecursionError as error:
        raise FileError(f"{where} cannot be read: it is nested too deeply") from error
    except FileError:
        raise
    except ValueError as error:  # also whole numbers of thousands of digits
        raise FileError(f"{where} cannot be read: it is not JSON ({error})") from error


def validated(
    value: Any, schema: type[T], where: Path | str, check: Callable[[T], None] | None = None
) -> T:
    """Return plain values checked against a schema."""
    try:
        typed = cast("T", _adapter(cast("Hashable", schema)).validate_python(value))
        if check is not None:
            check(typed)
        return typed
    except ValueError as error:
        reason = problem(error) if isinstance(error, ValidationError) else error
        raise FileError(f"{where} cannot be used: {reason}") from error


@functools.cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def problem(error: ValidationError, where: str = "") -> str:
    """Describe the first error: key (below ``where``), rule and value."""
    first = error.errors(include_url=False)[0]
    path = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    key = where + "".join(path)
    key = key.lstrip(".")[-VALUE_LENGTH:] or "the content"
    if first["type"] == "missing":
        return f"{key} is missing"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{key} is not a key of it"
    message = first["ctx"]["error"] if first["type"] == "value_error" else first["msg"]
    rule = re.sub(r"^(Input|String|List|Dictionary|Value|Tuple) should ", "must ", str(message))
    return f"{key} {rule}; got {shown(first['input'])}"


def shown(value: Any) -> str:
    """Return a value as text for a message."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):  # digits without end, or nested too deeply
        text = f"a {type(value).__name__}"
    return text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}..."


def _unique(pairs: list[tuple[str, Any]], where: Path | str) -> JsonObject:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise FileError(f"{where} cannot be used: it has the key {repeated!r} more than once")
    return values
