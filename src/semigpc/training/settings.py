"""Configs to and from plain dictionaries, and ``key=value`` on top; errors name the dotted key and
the nearest known one.
"""

import dataclasses
import functools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from semigpc.io.atomic import problem, shown
from semigpc.io.errors import SettingsError
from semigpc.io.text import similar_names, unknown_name

LARGEST = 1e300  # in size, of a number; larger ones overflow as soon as they are used
# in the metadata of a field whose config is chosen by name: config classes, or entries that have
# one
CHOICES = "choices"
# Settings that earlier versions had, as a dotted key or key=value, and what to use instead.
REMOVED_SETTINGS: dict[str, str] = {
    "refiner.output_scale": "set refiner.noise_std: only noise_std^2 / output_scale mattered",
    "refiner.learn_per_class": "leave it out: one kernel for all classes was as accurate",
    "refiner.learn=marginal": "use refiner.learn=leave_one_out",
    "refiner.engine=lowrank": "use refiner.engine=ensemble, or matrix_free",
    "algorithm.compat_usb": "leave it out: SimMatch's bank has unit rows, of images seen already",
    "train.compat_usb_order": "leave it out: the order of images depends on the seed",
    "refiner.engine.landmark_steps": "leave it out: it belonged to the low-rank engine",
}


@contextmanager
def settings_of(room: str) -> Iterator[None]:
    """Raise errors of building a part as errors of its settings."""
    try:
        yield
    except (KeyError, ValueError) as error:
        raise SettingsError(f"{room}: {error.args[0]}") from error


def to_plain(config: Any) -> dict[str, Any]:
    """Return a config dataclass as dictionaries, lists, strings and numbers; configs chosen by name
    have it as ``name``.
    """
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        named = (
            {"name": name_among(field.metadata[CHOICES], value)}
            if CHOICES in field.metadata
            else {}
        )
        plain[field.name] = (
            named | to_plain(value)
            if dataclasses.is_dataclass(value)
            else json.loads(json.dumps(value))
        )
    return plain


def from_plain(kind: type[Any], values: Mapping[str, Any], where: str = "") -> Any:
    """Return the config of class ``kind`` with these values; errors name unknown keys and wrong
    types by their dotted key.
    """
    hints, fields = get_type_hints(kind), {field.name: field for field in dataclasses.fields(kind)}
    choices = {
        name: field.metadata[CHOICES] for name, field in fields.items() if CHOICES in field.metadata
    }
    for key in values:
        if key not in fields:
            inside = [
                f"{where}{name}.{key}" for name, entries in choices.items() if _owners(entries, key)
            ]
            raise unknown_key(f"{where}{key}", [f"{where}{name}" for name in fields], inside)
    arguments = {
        key: _choose(choices[key], value, f"{where}{key}")
        if key in choices
        else _validated(hints[key], value, f"{where}{key}")
        for key, value in values.items()
    }
    try:
        return kind(**arguments)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, SettingsError) and not where:
            raise
        raise SettingsError(f"{where.rstrip('.') or kind.__name__}: {error}") from error


def override(
    plain: Mapping[str, Any], assignments: Sequence[str], by_name: Collection[str] = ()
) -> dict[str, Any]:
    """Return a copy of nested dictionaries with ``train.lr=3e-4`` and the like applied. Values are
    JSON, or else text.

    A key out of ``by_name``, as in ``refiner.engine=ensemble``, gets another config with its
    defaults. This comes first, so that ``refiner.engine.members=8`` may stand before it. Keys that a
    group does not have are left to :func:`from_plain`.
    """
    changed: dict[str, Any] = json.loads(json.dumps(plain))
    settings = [_split(assignment, by_name) for assignment in assignments]
    for key, text in sorted(settings, key=lambda setting: setting[0] not in by_name):
        *path, last = key.split(".")
        level: Any = changed
        for part in path:
            level = level.get(part) if isinstance(level, dict) else None
        if not isinstance(level, dict) or (not path and last not in level):
            raise unknown_key(key, list(flattened(changed)))
        value, group = _parse(text), level.get(last)
        if key in by_name and isinstance(group, dict):
            name = value if isinstance(value, str) else text
            level[last] = group if group["name"] == name else {"name": name}
        elif isinstance(group, dict):
            raise SettingsError(
                f"{key} is a group of settings; set them one by one, as in {key}.{next(iter(group))}=value."
            )
        else:
            level[last] = value
    return changed


def _split(assignment: str, by_name: Collection[str]) -> tuple[str, str]:
    key, equals, text = (part.strip() for part in assignment.partition("="))
    if not equals or not key:
        raise SettingsError(
            f"a setting is written key=value, as in train.lr=3e-4; got {assignment!r}."
        )
    group = key.removesuffix(".name")
    return (group if group in by_name else key), text


def groups_by_name(config: Any, where: str = "") -> Iterator[str]:
    """Yield the dotted keys of all configs inside that are chosen by name, as ``refiner`` and
    ``refiner.engine``.
    """
    for field in dataclasses.fields(config):
        value, key = getattr(config, field.name), f"{where}{field.name}"
        if CHOICES in field.metadata:
            yield key
        if dataclasses.is_dataclass(value):
            yield from groups_by_name(value, f"{key}.")


def name_among(entries: Mapping[str, Any], config: Any) -> str | None:
    """Return the name under which a config's class is listed, if it is."""
    return next((name for name in entries if type(config) is config_class(entries, name)), None)


def config_class(entries: Mapping[str, Any], name: str) -> type[Any]:
    """Return the config class listed under a name: the entry itself, or its ``config``."""
    kind: type[Any] = getattr(entries[name], "config", entries[name])
    return kind


def _owners(entries: Mapping[str, Any], key: str) -> list[str]:
    """Return the names whose configs have this key."""
    return [
        name
        for name in entries
        if key in {field.name for field in dataclasses.fields(config_class(entries, name))}
    ]


def _choose(entries: Mapping[str, Any], value: Any, where: str) -> Any:
    """Return the config that a group of settings names, out of ``entries``."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise SettingsError(
            f"{where} must be a group of settings, of which one is its name; got {value!r:.80}."
        )
    name, options = value["name"], {key: option for key, option in value.items() if key != "name"}
    if f"{where}={name}" in REMOVED_SETTINGS:
        raise _removed(f"{where}={name}")
    if name not in entries:
        raise SettingsError(unknown_name(where, name, entries))
    for key in options:
        owners = _owners(entries, key)
        if owners and name not in owners:
            short = where.rsplit(".", maxsplit=1)[-1]
            raise SettingsError(
                f"{where}.{key} belongs to {short}={' or '.join(owners)}; the run has {short}={name}."
            )
    return from_plain(config_class(entries, name), options, f"{where}.")


def flattened(plain: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return the values of nested dictionaries by dotted keys such as ``train.lr``."""
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        flat |= (
            flattened(value, f"{where}{key}.")
            if isinstance(value, Mapping)
            else {f"{where}{key}": value}
        )
    return flat


def unknown_key(key: str, known: Sequence[str], inside: Sequence[str] = ()) -> SettingsError:
    """Return the error for a key that does not exist; ``inside`` are keys of the same name one
    group further down.
    """
    if key in REMOVED_SETTINGS:
        return _removed(key)
    last = key.rsplit(".", maxsplit=1)[-1]
    near = [*inside, *similar_names(key, known, cutoff=0.4)]
    near = near or [name for name in known if name.rsplit(".", maxsplit=1)[-1] == last]
    hint = f" did you mean {near[0]!r}?" if near else ""
    return SettingsError(f"unknown setting {key!r};{hint} Known: {', '.join(sorted(known))}.")


def _removed(key: str) -> SettingsError:
    """Return the error for a setting out of :data:`REMOVED_SETTINGS`."""
    return SettingsError(f"{key} was removed; {REMOVED_SETTINGS[key]}.")


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _validated(hint: Any, value: Any, where: str) -> Any:
    """Return ``value`` as the annotation of a field wants it; the error says what that is."""
    group: Any = next(
        (kind for kind in (hint, *get_args(hint)) if dataclasses.is_dataclass(kind)), None
    )
    if group is None or (value is None and type(None) in get_args(hint)):
        return _leaf(hint, value, where)
    if isinstance(value, Mapping):
        return from_plain(group, value, f"{where}.")
    raise SettingsError(
        f"{where} is a group of settings; set them one by one, as in {where}.name=value. Got {value!r:.80}."
    )


def _leaf(hint: Any, value: Any, where: str) -> Any:
    """Validate one value strictly: no text for a number, no ``true`` for 1, no NaN.

    Two things are let through, since values of a command line have no types: 1e3 is a whole number,
    and 2024 is also a text.
    """
    if f"{where}={value}" in REMOVED_SETTINGS:
        raise _removed(f"{where}={value}")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and not abs(value) <= LARGEST:
        raise SettingsError(
            f"{where} must be a number of at most {LARGEST:g} in size; got {value!r:.80}."
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        return _adapter(hint).validate_json(json.dumps(value))
    except ValidationError as error:
        if is_number:
            with suppress(ValidationError):
                return _adapter(hint).validate_json(json.dumps(str(value)))
        rules = [
            each["msg"].removeprefix("Input should be ")
            for each in error.errors()
            if isinstance((*each["loc"], 0)[0], str)
        ]
        if (
            len(rules) > 1
        ):  # one for each type of a union, where pydantic has the type in place of a key
            raise SettingsError(
                f"{where} must be {', or '.join(rules)}; got {shown(value)}."
            ) from error
        raise SettingsError(f"{problem(error, where)}.") from error


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
