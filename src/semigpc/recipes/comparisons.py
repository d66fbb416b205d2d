"""The cells of a comparison, from names on the command line."""

from typing import Any

from semigpc.addons import ADDONS
from semigpc.algorithms import ALGORITHMS
from semigpc.recipes import RECIPES
from semigpc.recipes.lookup import with_addon
from semigpc.text import unknown_name
from semigpc.training import SettingError
from semigpc.training.comparison import Cell
from semigpc.training.experiment import override_all

REFINER_LABELS = {"none": "", "similarity": " + similarity", "gp": " + SemiGPC"}


def make_cells(
    recipe: str, algorithms: list[str], addons: list[str], refiners: list[str], ratio: float, settings: list[str]
) -> list[Cell]:
    """Labels only first, then every algorithm with every add-on and every refiner."""
    if recipe not in RECIPES:
        raise SettingError(unknown_name("recipe", recipe, RECIPES))
    chosen = [("supervised", "none", "none")] + [
        (algorithm, addon, refiner)
        for algorithm in (algorithms or list(ALGORITHMS))
        for addon in addons
        for refiner in refiners
        if algorithm != "supervised"
    ]
    made = [
        with_addon(RECIPES[recipe](imbalance_ratio=ratio, algorithm=algorithm, refiner=refiner, seed=0), addon)
        for algorithm, addon, refiner in chosen
    ]
    return [
        Cell(experiment, cell_label(*names)) for experiment, names in zip(override_all(made, settings), chosen, strict=True)
    ]


def cell_label(algorithm: str, addon: str, refiner: str) -> str:
    """As in "FixMatch + DARP + SemiGPC"."""
    with_it = f" + {ADDONS[addon].label}" if addon != "none" else ""
    return ALGORITHMS[algorithm].label + with_it + REFINER_LABELS.get(refiner, f" + {refiner}")


def figures_of(comparison: dict[str, Any]) -> dict[str, Any]:
    """A comparison without what is said class by class: one number a seed, in percent."""
    cells = {
        cell["name"]: {
            "label": cell["label"],
            "balanced_accuracy": [round(100 * run["result"]["balanced_accuracy"], 2) for run in cell["runs"]],
            "groups": {name: round(100 * cell["mean"][name], 2) for name in ("many", "medium", "few")},
            "seconds": round(sum(run["seconds"] for run in cell["runs"]) / len(cell["runs"]), 1),
        }
        for cell in comparison["cells"]
    }
    return {"title": comparison["title"], "seeds": comparison["seeds"], "cells": cells, "pairs": comparison["pairs"]}


def mean_gain(comparisons: list[dict[str, Any]]) -> float | None:
    """The mean of all paired differences."""
    gains = [pair["mean_difference"] for comparison in comparisons for pair in comparison["pairs"]]
    return sum(gains) / len(gains) if gains else None
