"""Configs to and from plain dictionaries, and ``key=value`` on top, with an answer to every misspelt key."""

import dataclasses
import difflib
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

LARGEST = 1e300  # of a number


class SettingError(ValueError):
    """A setting that does not exist or cannot have that value; the message names the way out."""


@contextmanager
def settings_of(room: str) -> Iterator[None]:
    """What a room refuses when it is built is a setting too."""
    try:
        yield
    except (KeyError, ValueError) as error:
        raise SettingError(f"{room}: {error.args[0]}") from error


def to_plain(config: Any) -> dict[str, Any]:
    """A config dataclass as dictionaries, lists, strings and numbers."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return plain


def from_plain(kind: type[Any], values: Mapping[str, Any], where: str = "") -> Any:
    """The config of class ``kind`` with these values; unknown keys and wrong types are refused by their dotted name."""
    hints = get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind)]
    for key in values:
        if key not in known:
            raise unknown_key(f"{where}{key}", [f"{where}{name}" for name in known])
    arguments = {key: _coerce(hints[key], value, f"{where}{key}") for key, value in values.items()}
    try:
        return kind(**arguments)
    except SettingError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise SettingError(f"{where.rstrip('.') or kind.__name__}: {error}") from error


def override(plain: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy of nested dictionaries with ``train.lr=3e-4`` and the like carried out. Values are JSON, or else text."""
    changed: dict[str, Any] = json.loads(json.dumps(plain))
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals or not key:
            raise SettingError(f"a setting is written key=value, as in train.lr=3e-4; got {assignment!r}.")
        *path, last = key.split(".")
        level: Any = changed
        for part in path:
            level = level.get(part) if isinstance(level, dict) else None
        if not isinstance(level, dict) or last not in level:
            raise unknown_key(key, list(dotted_keys(changed)))
        if isinstance(level[last], dict):
            raise SettingError(
                f"{key} is a group of settings; set them one by one, as in {key}.{next(iter(level[last]))}=value."
            )
        level[last] = _parse(text.strip())
    return changed


def dotted_keys(plain: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Every key of nested dictionaries, as ``train.lr``."""
    for key, value in plain.items():
        if isinstance(value, Mapping):
            yield from dotted_keys(value, f"{where}{key}.")
        else:
            yield f"{where}{key}"


def unknown_key(key: str, known: Sequence[str]) -> SettingError:
    """What to say of a key that does not exist."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    last = key.rsplit(".", maxsplit=1)[-1]
    near = near or [name for name in known if name.rsplit(".", maxsplit=1)[-1] == last][:1]
    hint = f" did you mean {near[0]!r}?" if near else ""
    return SettingError(f"unknown setting {key!r};{hint} Known: {', '.join(sorted(known))}.")


def nearest_name(what: str, name: str, known: Sequence[str]) -> str:
    """What to say of a name that is not on a list."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r};{hint} Known: {', '.join(sorted(known))}."


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _coerce(hint: Any, value: Any, where: str) -> Any:
    """``value`` as the annotation wants it, or an error that says what it wants."""
    origin, options = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Literal:
        if isinstance(value, str | int) and value in options:
            return value
        raise SettingError(f"{where} must be one of {', '.join(map(repr, options))}; got {value!r:.80}.")
    if origin in (Union, types.UnionType):
        return _coerce_union(options, value, where)
    if origin is tuple:
        kinds = [options[0]] * len(value) if options[-1] is Ellipsis and isinstance(value, list | tuple) else list(options)
        if not isinstance(value, list | tuple) or len(value) != len(kinds):
            raise SettingError(f"{where} must be a list of {len(kinds)} values, as in [0.1, 0.9]; got {value!r:.80}.")
        return tuple(_coerce(kind, item, where) for kind, item in zip(kinds, value, strict=True))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, Mapping):
            return from_plain(hint, value, f"{where}.")
        raise SettingError(f"{where} is a group of settings; set them one by one, as in {where}.name=value. Got {value!r:.80}.")
    return _coerce_scalar(hint, value, where)


def _coerce_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    errors = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _coerce(option, value, where)
        except SettingError as error:
            errors.append(error)
    raise errors[0]


def _coerce_scalar(hint: Any, value: Any, where: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST  # and no NaN
    if hint is float and is_number:
        return float(value)
    if hint is int and is_number and value == int(value):
        return int(value)
    if hint is str and is_number:
        return str(value)
    if hint in (bool, str) and isinstance(value, hint):
        return value
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    raise SettingError(f"{where} must be {names.get(hint, hint)}; got {value!r:.80}.")
