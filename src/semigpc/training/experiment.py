"""An experiment: everything that decides a result, in one frozen object.

Its settings are nested dataclasses. They are read and written as plain dictionaries, and changed by
``key=value`` with dotted keys such as ``train.lr``; errors name the key and the nearest known one.
"""

import dataclasses
import functools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from semigpc.addons import ADDONS, AddOnConfig
from semigpc.algorithms import ALGORITHMS, FixMatchConfig
from semigpc.data import DATASETS, AugmentConfig, DigitsConfig
from semigpc.io.atomic import JsonObject, problem, shown
from semigpc.io.errors import SettingsError
from semigpc.io.text import similar_names, unknown_name
from semigpc.models import ModelConfig
from semigpc.refiners import REFINERS, NoRefinerConfig
from semigpc.types import check_ranges

ROOMS: dict[str, Mapping[str, Any]] = {
    "data": DATASETS,
    "algorithm": ALGORITHMS,
    "addon": ADDONS,
    "refiner": REFINERS,
}  # the parts of an experiment that are chosen by name
CHOICES = "choices"  # in the metadata of a field that is chosen by name: the table of its choices
LARGEST_SETTING = 1e300  # in size; larger numbers overflow as soon as they are used
LARGEST_WHOLE = 2**63 - 1  # the same for whole numbers, which become 64-bit integers
MOST_THREADS = 1024  # more would take memory for their stacks and no machine has the cores

Precision = Literal["32-true", "64-true", "16-mixed", "bf16-mixed"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The loop's options; the defaults are the ViT recipe of USB (Wang et al., 2022).

    Args:
        steps: optimiser steps in all.
        epoch_steps: steps that make an "epoch", which is no pass over the data.
        labeled_batch: B. unlabeled_ratio: mu; a step has U = mu B unlabelled images.
        optimizer: AdamW, or SGD with Nesterov momentum 0.9.
        lr: of the heads. layer_decay: d in lr d^(depth - layer). weight_decay: of matrices; vectors
            and positions have none.
        warmup_steps: over which the rate rises from 0; then it follows cos(7/16 pi t).
        schedule: or stay constant after the warm-up.
        ema: momentum of the moving average that is evaluated; 0 for none.
        clip_norm: largest norm of a gradient; 0 for no limit.
        precision: of the network; the GP computes in float64 in any case. 16-mixed needs a GPU.
        tf32: let a GPU round the factors of the network's float32 products to 10 bits, which is
            faster and changes figures.
        compile: translate the network by torch.compile, which takes time at the start and needs a
            C++ compiler.
        eval_steps, checkpoint_steps, log_steps: how often to do each.
        eval_batch: images at a time in evaluation.
        workers: processes that load images; 0 loads in the loop. By default one for each core but
            one, at most 8, where loading takes long enough
            (:func:`~semigpc.data.loaders.worker_count`).
        threads: of torch on the CPU, on whose number the last bits depend; 0 for as many as torch
            is set to, but no more than there are cores granted to the process.
    """

    steps: int = 204_800
    epoch_steps: int = 1024
    labeled_batch: int = 8
    unlabeled_ratio: int = 1
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = 5e-4
    layer_decay: float = 0.5
    weight_decay: float = 5e-4
    warmup_steps: int = 5120
    schedule: Literal["cosine", "constant"] = "cosine"
    ema: float = 0.0
    clip_norm: float = 0.0
    precision: Precision = "32-true"
    tf32: bool = False
    compile: bool = False
    eval_steps: int = 2048
    checkpoint_steps: int = 2048
    log_steps: int = 128
    eval_batch: int = 256
    workers: int | None = None
    threads: int = 0

    def __post_init__(self) -> None:
        intervals = ("epoch_steps", "eval_steps", "checkpoint_steps", "log_steps")
        check_ranges(
            self,
            below_one=("ema",),
            positive=("lr",),
            not_negative=("weight_decay", "warmup_steps", "clip_norm", "workers", "threads"),
            at_least_one=("steps", *intervals, "labeled_batch", "unlabeled_ratio", "eval_batch"),
        )
        for name, count in (("workers", self.workers or 0), ("threads", self.threads)):
            if count > MOST_THREADS:
                raise SettingsError(f"{name} must be at most {MOST_THREADS}; got {count}.")
        if not 0 < self.layer_decay <= 1:
            raise SettingsError(f"layer_decay must lie in (0, 1]; got {self.layer_decay}.")

    @property
    def unlabeled_batch(self) -> int:
        """U."""
        return self.unlabeled_ratio * self.labeled_batch

    def precision_on(self, accelerator: str) -> Precision:
        """Return the precision to compute in: a CPU cannot do 16-mixed and takes float32."""
        return "32-true" if (self.precision, accelerator) == ("16-mixed", "cpu") else self.precision


@dataclass(frozen=True, kw_only=True)
class FrozenConfig:
    """The network keeps its weights; h = relu(W norm(f) + b) on its features f trains, and heads.

    Args:
        views: V, weak and strong views of each image to compute. More cost time once, and 2 (2 V +
            1) D bytes an image.
        width: of h.
        label_head: whether a GP on the frozen rows of all labelled and unlabelled images, as
            ``semigpc label`` fits it, is one more head of the run.
    """

    views: int = 3
    width: int = 256
    label_head: bool = False

    def __post_init__(self) -> None:
        if self.views < 1 or self.width < 1:
            raise SettingsError(
                f"views and width must be at least 1; got {self.views} and {self.width}."
            )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Data, augmentation, network, algorithm, add-on, refiner, loop and seed.

    ``data``, ``algorithm``, ``addon`` and ``refiner`` are configs out of ``DATASETS``,
    ``ALGORITHMS``, ``ADDONS`` and ``REFINERS``. With ``frozen`` the network keeps its weights and
    an adapter trains on its features. Combinations that make no sense raise an error here, before
    anything is loaded.

    Example::

        experiment = Experiment(algorithm=SimMatchConfig(), refiner=GPConfig(buffer_size=1024))
        train(experiment, Path("runs/first"))
    """

    data: Any = field(default_factory=DigitsConfig, metadata={CHOICES: DATASETS})
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig(image_size=8, flip=False))
    model: ModelConfig = field(default_factory=ModelConfig)
    algorithm: Any = field(default_factory=FixMatchConfig, metadata={CHOICES: ALGORITHMS})
    addon: AddOnConfig = field(default_factory=AddOnConfig, metadata={CHOICES: ADDONS})
    refiner: Any = field(default_factory=NoRefinerConfig, metadata={CHOICES: REFINERS})
    train: TrainConfig = field(default_factory=TrainConfig)
    frozen: FrozenConfig | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for room in ROOMS:
            name_of(room, getattr(self, room))
        if self.seed < 0:
            raise SettingsError(f"seed must not be negative; got {self.seed}.")
        if not isinstance(self.frozen, FrozenConfig | None):
            raise _not_frozen(self.frozen)
        sites = ALGORITHMS[self.algorithm_name].build.sites
        heads = self.algorithm.heads
        for message in (
            self.refiner.conflict(self.algorithm_name, sites=sites, heads=heads),
            self.algorithm.conflict(frozen=self.frozen is not None, average=self.train.ema > 0),
        ):
            if message is not None:
                raise SettingsError(message)
        if self.addon_name != "none":
            self._check_addon(self.addon)

    def _check_addon(self, addon: AddOnConfig) -> None:
        build = ALGORITHMS[self.algorithm_name].build
        if not build.takes_addons:
            raise SettingsError(
                f"{self.algorithm_name} does not use add-ons; leave {self.addon_name} out."
            )
        if addon.needs_unlabeled and not build.views:
            raise SettingsError(
                f"{self.addon_name} acts on unlabelled images, and {self.algorithm_name} learns "
                "from labels alone. Choose another algorithm, or an add-on for the labels, such as "
                "effective_number."
            )
        if addon.needs_average and not self.train.ema:
            raise SettingsError(
                f"{self.addon_name} needs a moving average of the network; set train.ema, such as "
                "0.999."
            )
        clash = sorted(set(addon.heads(2)) & set(self.algorithm.heads))
        if clash:
            raise SettingsError(
                f"{self.addon_name} and {self.algorithm_name} both have a head named "
                f"{', '.join(clash)}."
            )
        if addon.generations > self.train.steps:
            raise SettingsError(
                f"train.steps={self.train.steps} must be at least {addon.generations}, one for "
                "each generation. Train longer, or lower addon.generations."
            )

    @property
    def algorithm_name(self) -> str:
        """Its name in ``ALGORITHMS``."""
        return name_of("algorithm", self.algorithm)

    @property
    def addon_name(self) -> str:
        """Its name in ``ADDONS``."""
        return name_of("addon", self.addon)

    @property
    def refiner_name(self) -> str:
        """Its name in ``REFINERS``."""
        return name_of("refiner", self.refiner)

    @property
    def has_label_head(self) -> bool:
        """Whether a GP on the frozen rows is one more head: ``frozen.label_head``."""
        return self.frozen is not None and self.frozen.label_head

    @property
    def label(self) -> str:
        """The method's name in tables and on pages, as in "FixMatch + DARP + SemiGPC"."""
        algorithm = ALGORITHMS[self.algorithm_name].label
        addon = ADDONS[self.addon_name].label
        refiner = REFINERS[self.refiner_name].label
        return " + ".join(filter(None, (algorithm, addon, refiner)))

    def to_plain(self) -> JsonObject:
        """Return nested dictionaries; configs that are chosen by name have it as ``name``."""
        return to_plain(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Experiment":
        """Return the experiment of nested dictionaries: the inverse of :meth:`to_plain`."""
        frozen = plain.get("frozen")
        if not isinstance(frozen, Mapping | None):
            raise _not_frozen(frozen)
        experiment: Experiment = from_plain(cls, plain)
        return experiment

    def override(self, assignments: Sequence[str]) -> "Experiment":
        """Return a copy with settings such as ``train.lr=3e-4`` changed."""
        if not assignments:
            return self
        # The rooms themselves are not chosen by settings.
        by_name = set(groups_by_name(self)) - set(ROOMS)
        return self.from_plain(override(self.to_plain(), assignments, by_name))


def override_all(experiments: Sequence[Experiment], settings: Sequence[str]) -> list[Experiment]:
    """Return the experiments with settings changed, each with those that it has.

    A setting of an algorithm, add-on or refiner applies to the experiments with it alone.
    """
    unused = set(settings)
    changed = []
    for experiment in experiments:
        own = [setting for setting in settings if _applies(setting, experiment.to_plain())]
        unused -= set(own)
        changed.append(experiment.override(own))
    if unused:  # the last experiment raises the error for an unknown setting
        experiments[-1].override(sorted(unused))
    return changed


def _applies(setting: str, plain: Mapping[str, Any]) -> bool:
    room, _, key = setting.partition("=")[0].strip().partition(".")
    return room not in ("refiner", "algorithm", "addon") or key.partition(".")[0] in plain[room]


def name_of(room: str, config: Any) -> str:
    """Return the name under which a config's class is listed."""
    name = _name_among(ROOMS[room], config)
    if name is None:
        known = ", ".join(sorted(ROOMS[room]))
        raise SettingsError(f"{room} must be a config out of {known}; got {config!r}.")
    return name


def config_type(room: str, name: str) -> type[Any]:
    """Return the config class listed under a name."""
    if name not in ROOMS[room]:
        message = unknown_name(room, name, ROOMS[room])
        if room == "data":
            message += " One that is defined elsewhere is known once its module is imported."
        raise SettingsError(message)
    return _config_class(ROOMS[room], name)


def _not_frozen(value: object) -> SettingsError:
    return SettingsError(
        f"frozen must be a FrozenConfig or None; got {value!r:.80}. Set features=cached instead."
    )


@contextmanager
def settings_of(room: str) -> Iterator[None]:
    """Raise errors of building a part as errors of its settings."""
    try:
        yield
    except (KeyError, ValueError) as error:
        raise SettingsError(f"{room}: {error.args[0]}") from error


# Plain dictionaries -------------------------------------------------------------------------------


def to_plain(config: Any) -> JsonObject:
    """Return a config as dictionaries, lists, strings and numbers, with the ``name`` of choices."""
    plain: JsonObject = {}
    for each in dataclasses.fields(config):
        value = getattr(config, each.name)
        if not dataclasses.is_dataclass(value):
            plain[each.name] = json.loads(json.dumps(value))
            continue
        plain[each.name] = to_plain(value)
        if CHOICES in each.metadata:
            name = _name_among(each.metadata[CHOICES], value)
            plain[each.name] = {"name": name, **plain[each.name]}
    return plain


def from_plain(kind: type[Any], values: Mapping[str, Any], where: str = "") -> Any:
    """Return the config of class ``kind``; errors name unknown keys and wrong types in full."""
    hints = get_type_hints(kind)
    fields = {each.name: each for each in dataclasses.fields(kind)}
    choices = {
        name: each.metadata[CHOICES] for name, each in fields.items() if CHOICES in each.metadata
    }
    arguments = {}
    for key, value in values.items():
        full = f"{where}{key}"
        if key not in fields:
            owners = [name for name, entries in choices.items() if _owners(entries, key)]
            inside = [f"{where}{name}.{key}" for name in owners]
            raise unknown_key(full, [f"{where}{name}" for name in fields], inside)
        if key in choices:
            arguments[key] = _choose(choices[key], value, full)
        else:
            arguments[key] = _validated(hints[key], value, full)
    try:
        return kind(**arguments)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, SettingsError) and not where:
            raise
        raise SettingsError(f"{where.rstrip('.') or kind.__name__}: {error}") from error


def _choose(entries: Mapping[str, Any], value: Any, where: str) -> Any:
    """Return the config that a group of settings names, out of ``entries``."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise SettingsError(f"{where} must be a group of settings with a name; got {value!r:.80}.")
    name = value["name"]
    options = {key: option for key, option in value.items() if key != "name"}
    if f"{where}={name}" in REMOVED_SETTINGS:
        raise _removed(f"{where}={name}")
    if name not in entries:
        raise SettingsError(unknown_name(where, name, entries))
    for key in options:
        owners = _owners(entries, key)
        if owners and name not in owners:
            short = where.rsplit(".", maxsplit=1)[-1]
            raise SettingsError(
                f"{where}.{key} belongs to {short}={' or '.join(owners)}; the run has "
                f"{short}={name}."
            )
    return from_plain(_config_class(entries, name), options, f"{where}.")


def _validated(hint: Any, value: Any, where: str) -> Any:
    """Return ``value`` as the annotation of a field asks for."""
    kinds = (hint, *get_args(hint))
    group: Any = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
    if group is None or (value is None and type(None) in get_args(hint)):
        return _leaf(hint, value, where)
    if isinstance(value, Mapping):
        return from_plain(group, value, f"{where}.")
    raise SettingsError(
        f"{where} is a group of settings; set them one by one, as in {where}.name=value. Got "
        f"{value!r:.80}."
    )


def _leaf(hint: Any, value: Any, where: str) -> Any:
    """Validate one value strictly: no text for a number, no ``true`` for 1, no NaN.

    Two things are accepted, since values of a command line have no types: 1e3 is a whole number,
    and 2024 is also a text.
    """
    if f"{where}={value}" in REMOVED_SETTINGS:
        raise _removed(f"{where}={value}")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and not abs(value) <= LARGEST_SETTING:
        raise _too_large(where, f"{LARGEST_SETTING:g}", value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        leaf = _adapter(hint).validate_json(json.dumps(value))
    except ValidationError as error:
        if is_number:
            with suppress(ValidationError):
                return _adapter(hint).validate_json(json.dumps(str(value)))
        # For a union pydantic has one error per type, with the type in place of a key.
        rules = [
            each["msg"].removeprefix("Input should be ")
            for each in error.errors()
            if isinstance((*each["loc"], 0)[0], str)
        ]
        if len(rules) > 1:
            message = f"{where} must be {', or '.join(rules)}; got {shown(value)}."
            raise SettingsError(message) from error
        raise SettingsError(f"{problem(error, where)}.") from error
    if isinstance(leaf, int) and abs(leaf) > LARGEST_WHOLE:
        raise _too_large(where, "2**63 - 1", leaf)
    return leaf


def _too_large(where: str, most: str, value: float) -> SettingsError:
    return SettingsError(f"{where} must be a number of at most {most} in size; got {value!r:.80}.")


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))


def _name_among(entries: Mapping[str, Any], config: Any) -> str | None:
    """Return the name under which a config's class is listed, if it is."""
    return next((name for name in entries if type(config) is _config_class(entries, name)), None)


def _config_class(entries: Mapping[str, Any], name: str) -> type[Any]:
    """Return the config class listed under a name: the entry itself, or its ``config``."""
    entry = entries[name]
    kind: type[Any] = entry if isinstance(entry, type) else entry.config
    return kind


def _owners(entries: Mapping[str, Any], key: str) -> list[str]:
    """Return the names whose configs have this key."""
    return [
        name
        for name in entries
        if key in {each.name for each in dataclasses.fields(_config_class(entries, name))}
    ]


# key=value ----------------------------------------------------------------------------------------


def override(
    plain: Mapping[str, Any], assignments: Sequence[str], by_name: Collection[str] = ()
) -> JsonObject:
    """Return a copy of nested dictionaries with ``train.lr=3e-4`` and the like applied.

    Values are JSON, or else text. A key out of ``by_name``, as in ``refiner.engine=ensemble``, gets
    another config with its defaults. This comes first, so that ``refiner.engine.members=4`` may
    stand before it. Keys that a group does not have are left to :func:`from_plain`.
    """
    changed: JsonObject = json.loads(json.dumps(plain))
    settings = [_split(assignment, by_name) for assignment in assignments]
    for key, text in sorted(settings, key=lambda setting: setting[0] not in by_name):
        *path, last = key.split(".")
        level = _group(changed, path)
        if not level or (not path and last not in level):
            raise unknown_key(key, list(flattened(changed)))
        value = _parse(text)
        group = level.get(last)
        if not isinstance(group, dict):
            level[last] = value
        elif key not in by_name:
            first = next(iter(group))
            raise SettingsError(
                f"{key} is a group of settings; set them one by one, as in {key}.{first}=value."
            )
        else:
            name = value if isinstance(value, str) else text
            level[last] = group if group["name"] == name else {"name": name}
    return changed


def _split(assignment: str, by_name: Collection[str]) -> tuple[str, str]:
    key, equals, text = (part.strip() for part in assignment.partition("="))
    if not equals or not key:
        raise SettingsError(
            f"a setting must be written key=value, as in train.lr=3e-4; got {assignment!r}."
        )
    group = key.removesuffix(".name")
    return (group if group in by_name else key), text


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def groups_by_name(config: Any, where: str = "") -> Iterator[str]:
    """Yield the dotted keys of all configs chosen by name, as ``refiner``, ``refiner.engine``."""
    for each in dataclasses.fields(config):
        value = getattr(config, each.name)
        key = f"{where}{each.name}"
        if CHOICES in each.metadata:
            yield key
        if dataclasses.is_dataclass(value):
            yield from groups_by_name(value, f"{key}.")


def flattened(plain: Mapping[str, Any], where: str = "") -> JsonObject:
    """Return the values of nested dictionaries by dotted keys such as ``train.lr``."""
    flat: JsonObject = {}
    for key, value in plain.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{where}{key}.")
        else:
            flat[f"{where}{key}"] = value
    return flat


def unknown_key(key: str, known: Sequence[str], inside: Sequence[str] = ()) -> SettingsError:
    """Return the error for a key that does not exist.

    ``inside`` are keys of the same name one group further down.
    """
    if key in REMOVED_SETTINGS:
        return _removed(key)
    last = key.rsplit(".", maxsplit=1)[-1]
    near = [*inside, *similar_names(key, known, cutoff=0.4)]
    near = near or [name for name in known if name.rsplit(".", maxsplit=1)[-1] == last]
    hint = f" did you mean {near[0]!r}?" if near else ""
    return SettingsError(f"unknown setting {key!r};{hint} Known: {', '.join(sorted(known))}.")


# Settings of earlier versions ---------------------------------------------------------------------


class Removed(NamedTuple):
    """What to use ``instead`` of a setting, and its values in old runs that ``changed_nothing``."""

    instead: str
    changed_nothing: tuple[object, ...] = ()


REMOVED_SETTINGS: dict[str, Removed] = {
    "refiner.output_scale": Removed(
        "set refiner.noise_std: only noise_std^2 / output_scale mattered", (1.0,)
    ),
    "refiner.learn_per_class": Removed(
        "leave it out: one kernel for all classes was as accurate", (False,)
    ),
    "refiner.learn=marginal": Removed("use refiner.learn=leave_one_out"),
    "refiner.engine=lowrank": Removed("use refiner.engine=ensemble, or matrix_free"),
    "refiner.engine.landmark_steps": Removed(
        "leave it out: it belonged to the low-rank engine", (0,)
    ),
    "algorithm.compat_usb": Removed(
        "leave it out: SimMatch's bank has unit rows, of images seen already", (False,)
    ),
    "train.compat_usb_order": Removed(
        "leave it out: the order of images depends on the seed", (False,)
    ),
    "train.tensorboard": Removed("leave it out: metrics.jsonl has every figure", (False, True)),
}  # by dotted key, or by key=value


def _removed(key: str) -> SettingsError:
    return SettingsError(f"{key} was removed; {REMOVED_SETTINGS[key].instead}.")


def upgraded(plain: Mapping[str, Any]) -> JsonObject:
    """Return the settings of an old run without removed ones that changed nothing in it."""
    settings: JsonObject = json.loads(json.dumps(plain))
    for key, removed in REMOVED_SETTINGS.items():
        *path, last = key.split(".")
        _drop(_group(settings, path), last, removed.changed_nothing)
    engine = _group(settings, ["refiner", "engine"])
    if engine.get("name") == "auto":  # had options of the low-rank engine, which is gone
        _drop(engine, "rank", (None,))
        _drop(engine, "dtype", ("float32",))
    return settings


def _drop(group: JsonObject, key: str, values: Collection[object]) -> None:
    if key in group and group[key] in values:
        del group[key]


def _group(plain: JsonObject, path: Sequence[str]) -> JsonObject:
    """Return a nested dictionary; an empty one where there is none."""
    level: Any = plain
    for part in path:
        level = level.get(part) if isinstance(level, dict) else None
    return level if isinstance(level, dict) else {}
