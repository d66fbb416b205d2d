"""What several verbs print: lines, text from outside, and tables.

Names of classes, files and columns may hold anything. They reach the terminal through :func:`say` or :func:`verbatim` alone.
"""

from typing import Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from semigpc.text import CLASS_GROUPS, printable


def say(line: str, *, err: bool = False) -> None:
    """Print one line; what could steer the terminal is shown as its escape code."""
    typer.echo(printable(line), err=err)


def verbatim(text: object) -> Text:
    """Text from outside for a Rich console, a table or its title, letter by letter: neither markup nor emoji codes count."""
    return Text(printable(text))


def comparison_table(comparison: dict[str, Any]) -> Table:
    """One row a cell: balanced accuracy with its spread, and the class groups."""
    many_seeds = len(comparison["seeds"]) > 1
    spread = ", mean and standard deviation" if many_seeds else ""
    part = comparison["cells"][0]["runs"][0]["result"]["part"]  # validation, where there are no test images
    table = _table(verbatim(comparison["title"]).append(f"\n{part} accuracy in percent{spread}"))
    for heading in ("", "balanced", *CLASS_GROUPS, "ECE"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))
    best = max(cell["mean"]["balanced_accuracy"] for cell in comparison["cells"])
    for cell in comparison["cells"]:
        values = [_percent(cell, name, spread=many_seeds) for name in ("balanced_accuracy", *CLASS_GROUPS, "ece")]
        if cell["mean"]["balanced_accuracy"] == best:
            values[0] = f"[bold]{values[0]}[/bold]"
        table.add_row(verbatim(cell["label"]), *values)
    return table


def pairs_table(comparison: dict[str, Any]) -> Table:
    """What each refiner adds to its base, seed by seed."""
    table = _table("What the refiner adds, in points of balanced accuracy")
    for heading in ("", "mean", "std", "seeds better", "worse"):
        table.add_column(heading, justify="left" if not heading else "right")
    for pair in comparison["pairs"]:
        mean, std = 100 * pair["mean_difference"], 100 * pair["std"]
        table.add_row(verbatim(pair["name"]), f"{mean:+.1f}", f"{std:.1f}", str(pair["wins"]), str(pair["losses"]))
    return table


def _percent(cell: dict[str, Any], name: str, *, spread: bool) -> str:
    mean, std = cell["mean"][name], cell["std"][name]
    if mean is None:
        return "-"
    return f"{100 * mean:.1f} ± {100 * std:.1f}" if spread else f"{100 * mean:.1f}"


def _table(title: str | Text) -> Table:
    return Table(title=title, box=box.SIMPLE, padding=(0, 1), title_style="bold")
