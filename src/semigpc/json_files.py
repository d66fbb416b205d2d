"""JSON files of ours, read back: text, then JSON, then a schema. An error names the file, the key, the value and the remedy.

A schema is a ``TypedDict``, or a pydantic dataclass, of exact types: no text for a number, no ``true`` for 1, no NaN. Keys that
it does not name are let through where ``RELAXED`` says so, since later versions may write more.
"""

import functools
import json
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from semigpc.files import trouble

EXACT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
RELAXED = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
SHOWN = 80  # characters of a value that a message shows

Count = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
Positive = Annotated[int, Field(strict=True, ge=1, lt=2**53)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PathText = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]

T = TypeVar("T")


class FileFacts(TypedDict):
    """Size and hash of an output, as :func:`semigpc.files.facts_of` notes them."""

    bytes: Count
    sha256: Sha256


class FileError(ValueError):
    """A file of ours that cannot be used; the message names it and says what is wrong."""


def read_json(
    path: Path,
    schema: type[T],
    *,
    error: Callable[[str], Exception],
    remedy: str,
    check: Callable[[T], None] | None = None,
) -> T:
    """Read a file as its schema says.

    Args:
        path: of the file. schema: what it must hold. error: what to raise. remedy: what to do then, in full sentences.
        check: raises a ValueError for values that do not go together; its message begins with the key.

    Raises:
        FileNotFoundError: it is not there, which every caller has words of its own for.
    """
    try:
        must_be_file(path)
        return validated(parse(path.read_bytes(), path), schema, path, check)
    except FileNotFoundError:
        raise
    except (OSError, FileError) as problem:
        told = problem if isinstance(problem, FileError) else f"{path} cannot be read: {problem.strerror or problem}"
        raise error(f"{told}. {remedy}") from problem


def must_be_file(path: Path) -> None:
    """Refuse a folder, a pipe or a device in a file's place."""
    reason = "it is a folder; give a file" if path.is_dir() else trouble(path)
    if reason is not None:
        raise FileError(f"{path} cannot be read: {reason}")


def parse(content: bytes, where: Path | str) -> Any:
    """JSON with each key once; a byte order mark, as some editors leave, is passed over."""
    try:
        text = content.decode("utf-8-sig")
        if not text.strip():
            raise FileError(f"{where} cannot be read: it is empty")
        return json.loads(text, object_pairs_hook=functools.partial(_unique, where=where))
    except UnicodeDecodeError as error:
        raise FileError(f"{where} cannot be read: it is no text in UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise FileError(f"{where} cannot be read: it is nested too deeply") from error
    except FileError:
        raise
    except ValueError as error:  # also whole numbers of thousands of digits
        raise FileError(f"{where} cannot be read: it is no JSON ({error})") from error


def validated(value: Any, schema: type[T], where: Path | str, check: Callable[[T], None] | None = None) -> T:
    """Plain values as a schema has them."""
    try:
        typed = cast("T", _adapter(cast("Hashable", schema)).validate_python(value))
        if check is not None:
            check(typed)
        return typed
    except ValidationError as error:
        raise FileError(f"{where} cannot be used: {_problem(error)}") from error
    except ValueError as error:
        raise FileError(f"{where} cannot be used: {error}") from error


@functools.cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def _problem(error: ValidationError) -> str:
    """The first thing that is wrong: key, rule and value."""
    first = error.errors(include_url=False)[0]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")[-SHOWN:]
    key = key or "the content"
    if first["type"] == "missing":
        return f"{key} is missing"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{key} is not a key of it"
    told = first["ctx"]["error"] if first["type"] == "value_error" else first["msg"]
    rule = re.sub(r"^(Input|String|List|Dictionary|Value|Tuple) should ", "must ", str(told))
    return f"{key} {rule}; got {shown(first['input'])}"


def shown(value: Any) -> str:
    """A value as a message shows it."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):  # digits without end, or nested too deeply
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _unique(pairs: list[tuple[str, Any]], where: Path | str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise FileError(f"{where} cannot be used: it has the key {twice!r} more than once")
    return found
