"""``semigpc suggest``: what to label next."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.tables import say, verbatim

if TYPE_CHECKING:
    from semigpc.labeling.suggest import Suggestion

FEW = 20  # rows shown on the screen


class Outliers(StrEnum):
    """What to do with rows unlike all that is labelled."""

    include = "include"
    exclude = "exclude"


@reported("suggest")
def suggest(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder that semigpc label wrote.")],
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="Rows to suggest.")] = 50,
    rare: Annotated[
        float,
        typer.Option("--rare", min=0.0, max=10.0, help="How much rare classes come first: 0 not at all, 1 very much."),
    ] = 0.5,
    outliers: Annotated[
        Outliers, typer.Option("--outliers", help="Rows unlike all that is labelled; they may be a new class.")
    ] = Outliers.include,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the rows that large data are represented by.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace suggestions that were filled in.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON on standard output.")] = False,
) -> None:
    """Say which rows to label next, so that each label teaches the most.

    Chosen are rows that the labels say little about, rare classes first, and
    no two that would teach the same. They are listed in OUT/suggestions.csv:
    write the right class into its empty column label, and give it to semigpc
    label beside the labels of before. Rows that stay empty are passed over.

    For example:

      semigpc suggest labelled --count 30
      semigpc label photos --labels labels.csv --labels labelled/suggestions.csv --out better
    """
    from semigpc.labeling.project import Project
    from semigpc.labeling.suggest import SuggestConfig, write_suggestions
    from semigpc.labeling.suggest import suggest as find

    project = Project.open(out)
    config = SuggestConfig(count=count, rare=rare, outliers=outliers.value, pool=max(3000, 4 * count), seed=seed)
    found = find(project, config)
    path = write_suggestions(project, found, overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps([row._asdict() for row in found], indent=2))
    else:
        Console().print(_table(found, project.id_name))
    fewer = f", which is all that is left of {count}" if len(found) < count else ""
    say(f"wrote {path}: {len(found)} rows{fewer}; write labels into its column label", err=as_json)


def _table(found: "list[Suggestion]", id_name: str) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1))
    for heading, justify in (("", "right"), (id_name, "left"), ("believed", "left"), ("sure", "right"), ("why", "left")):
        table.add_column(verbatim(heading), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for rank, row in enumerate(found[:FEW], start=1):
        table.add_row(str(rank), verbatim(row.id), verbatim(row.believed), f"{100 * row.confidence:.0f} %", verbatim(row.why))
    if len(found) > FEW:
        table.caption = f"and {len(found) - FEW} more"
    return table
