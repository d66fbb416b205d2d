"""``semigpc suggest`` and ``semigpc audit``: what to label next, and how many labels are right, in
a folder of labels.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semigpc.cli.failures import reported
from semigpc.cli.tables import AsJson, say, share, table, verbatim
from semigpc.io.text import percent

if TYPE_CHECKING:
    from semigpc.labeling.suggest import Suggestion

SUGGESTIONS_SHOWN = 20  # rows on the screen
CLASSES_LISTED = 30  # and pairs of classes, on the screen
SAMPLE = 200  # rows to check, which make an interval of some 4 points


@reported("suggest")
def suggest(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder that semigpc label wrote.")],
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="Rows to suggest.")] = 50,
    rare: Annotated[
        float,
        typer.Option(
            "--rare",
            min=0.0,
            max=10.0,
            help="How much rare classes come first: 0 not at all, 1 very much.",
        ),
    ] = 0.5,
    outliers: Annotated[
        Literal["include", "exclude"],
        typer.Option(
            "--outliers", help="Rows unlike all that is labelled; they may be a new class."
        ),
    ] = "include",
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of the rows that large data are represented by.")
    ] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace suggestions that were filled in.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say which rows to label next, so that each label teaches the most.

    Half of them are rows that the labels say little about, rare classes
    first; the other half is sought for classes that get no new labels or have
    few, in turn (column for_class). No two would teach the same. They are
    listed in OUT/suggestions.csv: write the right class into its empty column
    label, and give it to semigpc label beside the labels of before. Rows that
    stay empty are passed over.

    For example:

      semigpc suggest labelled --count 30
      semigpc label photos --labels labels.csv --labels labelled/suggestions.csv --out better
    """
    from semigpc.labeling.project import Project
    from semigpc.labeling.suggest import SuggestConfig, write_suggestions
    from semigpc.labeling.suggest import suggest as find

    project = Project.open(out)
    config = SuggestConfig(
        count=count, rare=rare, outliers=outliers, pool=max(3000, 4 * count), seed=seed
    )
    suggestions = find(project, config)
    path = write_suggestions(project, suggestions, overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps([row._asdict() for row in suggestions], indent=2))
    else:
        Console().print(_suggestions_table(suggestions, project.id_name))
    fewer = f", which is all that is left of {count}" if len(suggestions) < count else ""
    say(
        f"wrote {path}: {len(suggestions)} rows{fewer}; write labels into its column label",
        err=as_json,
    )


def _suggestions_table(suggestions: "list[Suggestion]", id_name: str) -> Table:
    made = table("", ">rank", id_name, "likeliest", ">confidence", "why")
    for rank, row in enumerate(suggestions[:SUGGESTIONS_SHOWN], start=1):
        made.add_row(
            str(rank),
            verbatim(row.id),
            verbatim(row.believed),
            percent(row.confidence),
            verbatim(row.why),
        )
    if len(suggestions) > SUGGESTIONS_SHOWN:
        made.caption = f"and {len(suggestions) - SUGGESTIONS_SHOWN} more"
    return made


@reported("audit")
def audit(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder that semigpc label wrote.")],
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample", min=1, max=100_000, help=f"Draw so many rows to check; {SAMPLE} by default."
        ),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            "--answers", metavar="FILE", help="The sample with its column truth filled in."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Of the drawing; 0 by default.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Draw again, though the last sample has answers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure the precision of the pseudo-labels by checking some of them.

    First without --answers: rows of every class and confidence are drawn at
    random into OUT/audit.csv. Write the right class of each into its empty
    column truth, or y if the label is right and n if it is wrong. Then with
    --answers: the precision of all pseudo-labels, and of each class, with a 95
    percent interval; also in OUT/audit.json.

    For example:

      semigpc audit labelled --sample 200
      semigpc audit labelled --answers labelled/audit.csv
    """
    if answers is not None and (sample is not None or seed is not None or overwrite):
        raise typer.BadParameter(
            "it draws a new sample, and --answers judges the last one.", param_hint="--sample"
        )
    from semigpc.labeling.audit import draw_sample, judge
    from semigpc.labeling.project import Project

    project = Project.open(out)
    if answers is None:
        path, design = draw_sample(project, sample or SAMPLE, seed=seed or 0, overwrite=overwrite)
        rows = sum(stratum.rows for stratum in design.strata)
        if as_json:
            typer.echo(
                json.dumps({"path": str(path), "pseudo_labels": rows} | asdict(design), indent=2)
            )
        sizes = f"{len(design.rows)} of {rows} pseudo-labels, from {len(design.strata)} strata of class and confidence"
        say(f"wrote {path}: {sizes}", err=as_json)
        command = f"semigpc audit {out} --answers {path}"
        say(
            f"write the right class (or y, or n) into its column truth, then: {command}",
            err=as_json,
        )
        return
    result = judge(project, answers)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    _print_audit(result, Console(stderr=as_json))


def _print_audit(result: dict[str, Any], console: Console) -> None:
    console.print(_classes_table(result))
    if result["confusions"]:
        console.print(_confusions_table(result["confusions"]))
    if result["unanswered"]:
        console.print(
            f"{result['unanswered']} of {result['answered'] + result['unanswered']} rows are not answered, and are taken to be "
            "like the others of their class.",
            soft_wrap=True,
        )
    unknown = ", ".join(
        [entry["class"] for entry in result["classes"] if not entry["checked"]][:CLASSES_LISTED]
    )
    if unknown:
        line = f"Nothing was answered of {unknown}: the interval of all rows allows for all of these labels to be right, and for "
        console.print(verbatim(f"{line}all to be wrong."), soft_wrap=True)
    total = result["all"]
    console.print(
        f"[bold]{percent(total['precision'])} of the {total['rows']} pseudo-labels are right[/bold] "
        f"({percent(total['low'])} to {percent(total['high'])}, at 95%)",
        soft_wrap=True,
    )


def _classes_table(result: dict[str, Any]) -> Table:
    """One row per class, the worst known ones first if there are many."""
    made = table(
        "", "class", ">labels", ">checked", ">right", ">precision", ">95% interval", ">confidence"
    )
    classes = result["classes"]
    if len(classes) > CLASSES_LISTED:
        classes = sorted(
            classes, key=lambda entry: 1 if entry["precision"] is None else entry["precision"]
        )[:CLASSES_LISTED]
        made.caption = (
            f"the {CLASSES_LISTED} worst of {len(result['classes'])} classes; audit.json has all"
        )
    for entry in classes:
        interval = (
            percent(None)
            if entry["low"] is None
            else f"{share(entry['low'])} to {percent(entry['high'])}"
        )
        counts = (str(entry[name]) for name in ("rows", "checked", "right"))
        made.add_row(
            verbatim(entry["class"]),
            *counts,
            percent(entry["precision"]),
            interval,
            percent(entry["confidence"]),
        )
    return made


def _confusions_table(pairs: list[dict[str, Any]]) -> Table:
    made = table("wrong labels", "label", "truth", ">rows")
    for pair in pairs[:CLASSES_LISTED]:
        truth = Text("not said", "dim") if pair["truth"] is None else verbatim(pair["truth"])
        made.add_row(verbatim(pair["label"]), truth, str(pair["count"]))
    if len(pairs) > CLASSES_LISTED:
        made.caption = f"and {len(pairs) - CLASSES_LISTED} more pairs, in audit.json"
    return made
