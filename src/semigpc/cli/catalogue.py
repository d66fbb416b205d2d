"""``semigpc list``: what there is, one line each."""

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from semigpc.cli.failures import reported
from semigpc.cli.tables import AsJson, say


class What(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    addons = "addons"
    refiners = "refiners"
    models = "models"
    datasets = "datasets"
    recipes = "recipes"
    settings = "settings"


@reported("list")
def list_command(
    what: Annotated[What | None, typer.Argument(help="Which kind; everything but the settings without it.")] = None,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="settings: a recipe or your data, digits by default; models: part of a timm name."),
    ] = None,
    algorithm: Annotated[str, typer.Option("--algorithm", metavar="NAME", help="Whose settings to list.")] = "simmatch",
    addon: Annotated[str, typer.Option("--addon", metavar="NAME", help="Whose settings to list.")] = "none",
    refiner: Annotated[str, typer.Option("--refiner", metavar="NAME", help="Whose settings to list.")] = "gp",
    as_json: AsJson = False,
) -> None:
    """List what there is, one line each.

    For example:

      semigpc list algorithms
      semigpc list models resnet
      semigpc list settings digits --algorithm simmatch --refiner gp
    """
    if name is not None and what not in (What.settings, What.models):
        raise typer.BadParameter("only settings and models take one.", param_hint="NAME")
    found: dict[str, Any]
    if what is What.settings:
        found = _settings(name or "digits", algorithm, addon, refiner)
        lines = [f"{key}={json.dumps(value)}" for key, value in found.items()]
    elif what is What.models and name is not None:
        found = dict.fromkeys(_timm_models(name), "timm")
        lines = list(found)
    else:
        kinds = [what] if what else [kind for kind in What if kind is not What.settings]
        found = {kind.value: LISTS[kind]() for kind in kinds}
        lines = [line for kind, entries in found.items() for line in _block(kind, entries, titled=what is None)]
        found = found[what.value] if what else found
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        for line in lines:
            say(line)


def _block(title: str, entries: dict[str, str], *, titled: bool) -> list[str]:
    width = max(map(len, entries))
    lines = [f"{name:<{width}}  {line}" for name, line in entries.items()]
    return [f"{title}:", *(f"  {line}" for line in lines), ""] if titled else lines


def _algorithms() -> dict[str, str]:
    from semigpc.algorithms import ALGORITHMS

    return {name: _first_line(sys.modules[entry.config.__module__]) for name, entry in ALGORITHMS.items()}


def _addons() -> dict[str, str]:
    from semigpc.addons import ADDONS

    lines = {"none": "The algorithm as it is."}
    for name, entry in ADDONS.items():
        line = _first_line(sys.modules[entry.config.__module__])
        lines.setdefault(name, _first_line(entry.build) if line in lines.values() else line)  # a variant in the same file
    return lines


def _refiners() -> dict[str, str]:
    from semigpc.refiners import REFINERS

    return {name: _first_line(sys.modules[entry.config.__module__]) for name, entry in REFINERS.items()}


def _datasets() -> dict[str, str]:
    from semigpc.data import DATASETS

    return {name: _first_line(sys.modules[entry.config.__module__]) for name, entry in DATASETS.items()}


def _recipes() -> dict[str, str]:
    from semigpc.recipes import RECIPES

    return {name: _first_line(recipe) for name, recipe in RECIPES.items()}


def _models() -> dict[str, str]:
    from semigpc.models import MODELS
    from semigpc.models.backbones import VITS

    lines = {}
    for name, build in MODELS.items():
        if name in VITS:
            shape = VITS[name]
            lines[name] = (
                f"Vision transformer for {shape.image_size} x {shape.image_size}: patches of {shape.patch_size}, "
                f"width {shape.width}, {shape.depth} blocks."
            )
        else:
            lines[name] = _first_line(getattr(build, "func", build))
    return lines | {"...": "and every name timm knows; semigpc list models PART finds them."}


LISTS: dict[What, Callable[[], dict[str, str]]] = {
    What.algorithms: _algorithms,
    What.addons: _addons,
    What.refiners: _refiners,
    What.models: _models,
    What.datasets: _datasets,
    What.recipes: _recipes,
}


def _timm_models(part: str) -> list[str]:
    import timm

    from semigpc.models import MODELS
    from semigpc.training import SettingError

    ours = [name for name in MODELS if part in name]
    found: list[str] = ours + timm.list_models(f"*{part}*")
    if not found:
        raise SettingError(f"no model has {part!r} in its name, neither of ours nor of timm's.")
    return found


def _settings(data: str, algorithm: str, addon: str, refiner: str) -> dict[str, Any]:
    """Every key that --set knows, with its value. Names of rooms have options of their own; others are set as the group."""
    from semigpc.recipes.lookup import TrainOptions, resolve
    from semigpc.training.experiment import ROOMS
    from semigpc.training.settings import flattened, groups_by_name

    experiment, _ = resolve(data, TrainOptions(algorithm=algorithm, addon=addon, refiner=refiner))
    plain, by_name = experiment.to_plain(), {f"{group}.name": group for group in groups_by_name(experiment)}
    found: dict[str, Any] = {}
    for key in flattened(plain):
        if by_name.get(key) in ROOMS:
            continue
        value: Any = plain
        for part in key.split("."):
            value = value[part]
        found[by_name.get(key, key)] = value
    return found


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0].replace("``", "")
