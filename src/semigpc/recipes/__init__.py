"""Recipes: plain functions that return an experiment.

Each takes ``imbalance_ratio``, ``algorithm``, ``refiner`` and ``seed`` by keyword. To add one, write the function and list it.
"""

from collections.abc import Callable

from semigpc.recipes.digits import digits, digits_balanced, mnist, mnist_balanced
from semigpc.training import Experiment

RECIPES: dict[str, Callable[..., Experiment]] = {
    "digits": digits,
    "digits_balanced": digits_balanced,
    "mnist": mnist,
    "mnist_balanced": mnist_balanced,
}

__all__ = ["RECIPES", "digits", "digits_balanced", "mnist", "mnist_balanced"]
