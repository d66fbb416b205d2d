"""Tables of one run: what came out, by choice of step, head and class group."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.table import Table

GROUPS = ("many", "medium", "few")
HEADS = {"linear": "linear", "gp": "GP"}
CHOICES = {
    "last": "last step",
    "best_on_validation": "best on validation",
    "best_on_test": "best on test, chosen on the test set",
}


def result_table(results: Mapping[str, Any], last: Iterable[Mapping[str, Any]]) -> Table:
    """The choices of a summary; ``last`` holds what each head said at the last step."""
    table = _table("Accuracy in percent", "step")
    for entry in last:
        _add(table, f"{CHOICES['last']} ({entry['step']})", entry)
    for key in ("best_on_validation", "best_on_test"):
        if results.get(key):
            _add(table, f"{CHOICES[key]} ({results[key]['step']})", results[key])
    return table


def heads_table(step: str, source: str, heads: Mapping[str, Mapping[str, Any]]) -> Table:
    """One evaluation, a row for each head."""
    table = _table("Accuracy in percent", "step")
    for head, figures in heads.items():
        _add(table, step, {**figures, "head": head, "part": source})
    return table


def _table(title: str, first: str) -> Table:
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1), title_style="bold", title_justify="left")
    table.add_column(first)
    for heading in ("pictures", "head"):
        table.add_column(heading)
    for heading in ("balanced", "top-1", *GROUPS):
        table.add_column(heading, justify="right")
    return table


def _add(table: Table, name: str, entry: Mapping[str, Any]) -> None:
    figures = [entry["balanced_accuracy"], entry["top1"], *(entry["groups"].get(group) for group in GROUPS)]
    shown = ["-" if figure is None else f"{100 * figure:.1f}" for figure in figures]
    table.add_row(name, str(entry["part"]), HEADS[entry["head"]], *shown)
