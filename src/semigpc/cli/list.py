"""``semigpc list``: algorithms, add-ons, refiners, models, weights, data sets and settings."""

import json
import sys
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, get_args

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semigpc.cli.failures import reported
from semigpc.cli.options import AsJson, register_data_sets
from semigpc.cli.tables import say, table
from semigpc.io.errors import SettingsError

Kind = Literal[
    "algorithms",
    "addons",
    "refiners",
    "models",
    "networks",
    "weights",
    "datasets",
    "recipes",
    "settings",
]


@reported("list")
def list_command(
    kind: Annotated[
        Kind | None, typer.Argument(metavar="KIND", help="All kinds but settings by default.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="settings: a recipe or your data; models: part of a timm name."
        ),
    ] = None,
    algorithm: Annotated[
        str, typer.Option("--algorithm", metavar="NAME", help="List the settings of this one.")
    ] = "simmatch",
    addon: Annotated[
        str, typer.Option("--addon", metavar="NAME", help="List the settings of this one.")
    ] = "none",
    refiner: Annotated[
        str, typer.Option("--refiner", metavar="NAME", help="List the settings of this one.")
    ] = "gp",
    as_json: AsJson = False,
) -> None:
    """List what is available, one line each.

    For example:

      semigpc list algorithms
      semigpc list networks
      semigpc list models resnet
      semigpc list weights
      semigpc list settings digits --algorithm simmatch --refiner gp
    """
    if name is not None and kind not in ("settings", "models"):
        raise typer.BadParameter("only settings and models take one.", param_hint="NAME")
    entries: Mapping[str, Any]
    if kind == "settings":
        entries = _settings(name or "digits", algorithm, addon, refiner)
        lines = [f"{key}={json.dumps(value)}" for key, value in entries.items()]
    elif kind == "models" and name is not None:
        entries = dict.fromkeys(_models_named(name), "timm")
        lines = [*entries]
    elif kind is not None:
        entries = _entries(kind)
        lines = _aligned(entries)
    else:
        entries = {one: _entries(one) for one in get_args(Kind) if one != "settings"}
        lines = []
        for one, named in entries.items():
            lines += [f"{one}:", *(f"  {line}" for line in _aligned(named)), ""]
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
        return
    if kind == "networks":
        Console().print(_networks_table())
        return
    for line in lines:
        say(line)


def _aligned(entries: Mapping[str, str]) -> list[str]:
    width = max(map(len, entries))
    return [f"{name:<{width}}  {line}" for name, line in entries.items()]


def _entries(kind: str) -> dict[str, str]:
    """Return the names of a kind, each with the first line of its docstring.

    That is the module's if it is named after the entry, as algorithms/simmatch.py is, and otherwise
    the config's: several entries may share a module.
    """
    from semigpc.addons import ADDONS
    from semigpc.algorithms import ALGORITHMS
    from semigpc.data import DATASETS
    from semigpc.models.pretrained import WEIGHTS
    from semigpc.refiners import REFINERS
    from semigpc.training.presets import RECIPES

    if kind == "models":
        return _models()
    if kind == "networks":
        return _networks()
    if kind == "weights":
        return {
            one.file: f"{one.backbone}, {one.pretraining}, {one.licence}: {one.url}"
            for one in WEIGHTS
        }
    if kind == "recipes":
        return {name: _first_line(recipe) for name, recipe in RECIPES.items()}
    register_data_sets()
    registries: dict[str, Mapping[str, Any]] = {
        "algorithms": ALGORITHMS,
        "addons": ADDONS,
        "refiners": REFINERS,
        "datasets": DATASETS,
    }
    lines = {}
    for name, entry in registries[kind].items():
        module = entry.config.__module__
        own_module = module.endswith(f".{name}")
        lines[name] = _first_line(sys.modules[module] if own_module else entry.config)
    if kind == "addons":
        lines["none"] = "The algorithm as it is."
    return lines


def _networks() -> dict[str, str]:
    from semigpc.models.networks import NETWORKS

    lines = {}
    for one in NETWORKS:
        there = ", on this disk" if one.is_on_disk else ""
        lines[one.name] = f"{one.timm}, {one.megabytes} MB{there}: {one.good_for}."
    return lines


def _networks_table() -> Table:
    """Networks for photographs, in the order in which --model auto prefers them."""
    from semigpc.models.networks import NETWORKS

    headings = ("network, timm model, known for", ">width", ">px", ">MB", "on disk", ">time")
    caption = (
        "--model auto takes the first that is on this disk. Time: for an image, in ONNX Runtime on "
        "two cores."
    )
    made = table("", *headings, caption=caption)
    for one in NETWORKS:
        numbers = map(str, (one.width, one.image_size, one.megabytes))
        on_disk = "yes" if one.is_on_disk else "no"
        time = f"{one.milliseconds:g} ms" if one.milliseconds else "not\nmeasured"
        names = Text(one.name, style="bold").append(f"\n{one.timm}\n{one.good_for}\n", "not bold")
        made.add_row(names, *numbers, on_disk, time)
    return made


def _models() -> dict[str, str]:
    from semigpc.models import MODELS
    from semigpc.models.backbones import VITS

    lines = {}
    for name, build in MODELS.items():
        lines[name] = _first_line(build.func if isinstance(build, partial) else build)
    for name, vit in VITS.items():
        shape = f"patches of {vit.patch_size}, width {vit.width}, {vit.depth} blocks"
        size = f"{vit.image_size} x {vit.image_size}"
        lines[name] = f"Vision transformer for {size}: {shape}."
    return lines | {"...": "and every model of timm; semigpc list models PART finds them."}


def _models_named(part: str) -> list[str]:
    import timm

    from semigpc.models import MODELS

    names: list[str] = [name for name in MODELS if part in name] + timm.list_models(f"*{part}*")
    if not names:
        raise SettingsError(f"no model, of semigpc or timm, has {part!r} in its name.")
    return names


def _settings(data: str, algorithm: str, addon: str, refiner: str) -> dict[str, object]:
    """Return every key that --set takes, with its value.

    What has an option of its own, such as algorithm.name, is left out; other parts chosen by name
    are set as a group.
    """
    from semigpc.training.experiment import ROOMS, flattened, groups_by_name
    from semigpc.training.presets import TrainOptions, resolve

    experiment, _ = resolve(data, TrainOptions(algorithm=algorithm, addon=addon, refiner=refiner))
    group_of = {f"{group}.name": group for group in groups_by_name(experiment)}
    values = flattened(experiment.to_plain())
    return {
        group_of.get(key, key): value
        for key, value in values.items()
        if group_of.get(key) not in ROOMS
    }


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0].replace("``", "")
