"""Tables of one run: what came out, by choice of step, head and class group."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.table import Table

from semigpc.cli.tables import verbatim
from semigpc.report.wording import SCORE_NAMES
from semigpc.text import CLASS_GROUPS

HEADS = {"linear": "linear", "gp": "GP"}
CHOICES = {"best_on_validation": "best on validation", "best_on_test": "best on test*"}
OPTIMISTIC = "* chosen on the test set itself, so better than new images will be"


def result_table(results: Mapping[str, Any], last: Iterable[Mapping[str, Any]]) -> Table:
    """The choices of a summary; ``last`` holds what each head said at the last step."""
    table = _table()
    for entry in last:
        _add(table, "last", entry)
    for key, name in CHOICES.items():
        if results.get(key):
            _add(table, name, results[key])
    table.caption = OPTIMISTIC if results.get("best_on_test") else None
    return table


def heads_table(name: str, step: int, source: str, heads: Mapping[str, Mapping[str, Any]]) -> Table:
    """One evaluation, a row for each head."""
    table = _table()
    for head, figures in heads.items():
        _add(table, name, {**figures, "step": step, "head": head, "part": source})
    return table


def screening_table(entry: Mapping[str, Any]) -> Table:
    """How well unlabelled images of no class are told from the others, a row for each score."""
    table = Table(title="Images of no class told apart, AUROC", box=box.SIMPLE, padding=(0, 1, 0, 0), title_style="bold")
    table.title_justify = table.caption_justify = "left"
    table.add_column("by")
    table.add_column("AUROC", justify="right")
    for key, name in SCORE_NAMES.items():
        if key in entry:
            table.add_row(name, f"{entry[key]:.3f}")
    table.caption = f"{entry['n_in']} unlabelled images of the classes, {entry['n_out']} of none, step {entry['step']}"
    return table


def _table() -> Table:
    table = Table(title="Accuracy in percent", box=box.SIMPLE, padding=(0, 0), title_style="bold")
    table.title_justify = table.caption_justify = "left"
    table.add_column("")
    table.add_column("step", justify="right")
    for heading in ("images", "head"):
        table.add_column(heading)
    for heading in ("balanced", "top-1", *CLASS_GROUPS):
        table.add_column(heading, justify="right")
    return table


def _add(table: Table, name: str, entry: Mapping[str, Any]) -> None:
    figures = [entry["balanced_accuracy"], entry["top1"], *(entry["groups"].get(group) for group in CLASS_GROUPS)]
    shown = ["-" if figure is None else f"{100 * figure:.1f}" for figure in figures]
    table.add_row(name, str(entry["step"]), verbatim(entry["part"]), HEADS[entry["head"]], *shown)
