"""``semigpc suggest``: which rows to label next."""

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.options import AsJson, LabelledFolder
from semigpc.cli.tables import say, table, verbatim
from semigpc.report.wording import percent

if TYPE_CHECKING:
    from semigpc.labeling.suggest import Suggestion

SUGGESTIONS_SHOWN = 20  # rows on the screen


@reported("suggest")
def suggest(
    out: LabelledFolder,
    count: Annotated[
        int, typer.Option("--count", min=1, max=1000, help="Number of rows to suggest.")
    ] = 50,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the sample taken from large data.")
    ] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace suggestions that have been filled in.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Suggest which rows to label next, so that each label helps the most.

    All answers given on the page are known to it. Most rows are those that
    teach most, no two alike; others may be of a class with few labels or of
    one without any, from 40 labels on every second one is drawn at random, as
    the guarantee rests on such, and labels that others contradict come up
    again. The columns kind and why tell which. They are listed in
    OUT/suggestions.csv: write the right class into its empty column label, and
    pass the file to semigpc label beside the
    earlier labels. Rows left empty are ignored; do not leave out rows drawn at
    random because they are hard.

    For example:

      semigpc suggest labelled --count 30
      semigpc label photos --labels labels.csv --labels labelled/suggestions.csv --out better
    """
    from semigpc.labeling.project import Project
    from semigpc.labeling.suggest import suggest as choose_rows
    from semigpc.labeling.suggest import write_suggestions

    project = Project.open(out)
    suggestions = choose_rows(project, count, seed=seed)
    path = write_suggestions(project, suggestions, overwrite=overwrite)
    for note in project.notes:
        say(f"note: {note}", err=as_json)
    if as_json:
        typer.echo(json.dumps([row._asdict() for row in suggestions], indent=2))
    else:
        Console().print(_suggestions_table(suggestions, project.id_name))
    fewer = f" ({count} were requested; no more are left)" if len(suggestions) < count else ""
    line = f"wrote {path}: {len(suggestions)} rows{fewer}; write labels into its column label"
    say(line, err=as_json)


def _suggestions_table(suggestions: "list[Suggestion]", id_name: str) -> Table:
    made = table("", ">rank", id_name, "guess", ">confidence", "why")
    for rank, row in enumerate(suggestions[:SUGGESTIONS_SHOWN], start=1):
        names = (verbatim(row.id), verbatim(row.guess))
        made.add_row(str(rank), *names, percent(row.confidence), verbatim(row.why))
    if len(suggestions) > SUGGESTIONS_SHOWN:
        made.caption = f"and {len(suggestions) - SUGGESTIONS_SHOWN} more"
    return made
