"""The cells of a comparison, from the names of methods, and its figures."""

from typing import Any

from semigpc.addons import ADDONS
from semigpc.algorithms import ALGORITHMS
from semigpc.recipes.lookup import TrainOptions, experiments_on
from semigpc.training.comparison import Cell
from semigpc.training.experiment import override_all

REFINER_LABELS = {"none": "", "similarity": " + similarity", "gp": " + SemiGPC"}


def make_cells(
    data: str, options: TrainOptions, *, algorithms: list[str], addons: list[str], refiners: list[str], settings: list[str]
) -> tuple[list[Cell], str]:
    """Return the cells of a comparison, and a short name for the data.

    Labels only comes first, then every algorithm with every add-on and every refiner.

    Args:
        data: a recipe's name, a folder of images, or an ``.npz`` file. options: all but the names of the method.
        algorithms: by name; all without any. addons, refiners: by name.
        settings: ``key=value``, for every cell that has the key.
    """
    make, name = experiments_on(data, options, judged=True)
    methods = [("supervised", "none", "none")] + [
        (algorithm, addon, refiner)
        for algorithm in (algorithms or list(ALGORITHMS))
        for addon in addons
        for refiner in refiners
        if algorithm != "supervised"
    ]
    experiments = override_all([make(*method) for method in methods], settings)
    return [Cell(one, cell_label(*method)) for one, method in zip(experiments, methods, strict=True)], name


def cell_label(algorithm: str, addon: str, refiner: str) -> str:
    """Return a name for people, as in "FixMatch + DARP + SemiGPC"."""
    with_it = f" + {ADDONS[addon].label}" if addon != "none" else ""
    return ALGORITHMS[algorithm].label + with_it + REFINER_LABELS.get(refiner, f" + {refiner}")


def figures_of(comparison: dict[str, Any]) -> dict[str, Any]:
    """Return a comparison without its figures class by class: one number per seed, in percent."""
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
    """Return the mean of all paired differences."""
    gains = [pair["mean_difference"] for comparison in comparisons for pair in comparison["pairs"]]
    return sum(gains) / len(gains) if gains else None
