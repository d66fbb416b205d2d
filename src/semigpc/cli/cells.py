"""The cells of a comparison, from names on the command line."""

from typing import Any

from semigpc.algorithms import ALGORITHMS
from semigpc.recipes import RECIPES
from semigpc.training import SettingError
from semigpc.training.comparison import Cell
from semigpc.training.experiment import override_all
from semigpc.training.settings import nearest_name

REFINER_LABELS = {"none": "", "similarity": " + similarity", "gp": " + SemiGPC"}


def make_cells(recipe: str, algorithms: list[str], refiners: list[str], ratio: float, settings: list[str]) -> list[Cell]:
    """Labels only first, then every algorithm with every refiner."""
    if recipe not in RECIPES:
        raise SettingError(nearest_name("recipe", recipe, list(RECIPES)))
    chosen = [("supervised", "none")] + [
        (algorithm, refiner)
        for algorithm in (algorithms or list(ALGORITHMS))
        for refiner in refiners
        if algorithm != "supervised"
    ]
    made = [
        RECIPES[recipe](imbalance_ratio=ratio, algorithm=algorithm, refiner=refiner, seed=0) for algorithm, refiner in chosen
    ]
    return [
        Cell(experiment, ALGORITHMS[algorithm].label + REFINER_LABELS.get(refiner, f" + {refiner}"))
        for experiment, (algorithm, refiner) in zip(override_all(made, settings), chosen, strict=True)
    ]


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
