"""``semigpc audit``: how many of the pseudo-labels are right, by a sample that people check."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semigpc.cli.failures import reported
from semigpc.cli.tables import say, verbatim

FEW = 30  # classes, and pairs of classes, shown on the screen
SAMPLE = 200


@reported("audit")
def audit(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder that semigpc label wrote.")],
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, max=100_000, help=f"Draw so many rows to check; {SAMPLE} unless told.")
    ] = None,
    answers: Annotated[
        Path | None, typer.Option("--answers", metavar="FILE", help="The sample with its column truth filled in.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of the drawing; 0 unless told.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Draw again, though the last sample has answers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON on standard output.")] = False,
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
        raise typer.BadParameter("it draws a new sample, and --answers judges the last one.", param_hint="--sample")
    from semigpc.labeling.audit import draw_sample, judge
    from semigpc.labeling.project import Project

    project = Project.open(out)
    if answers is None:
        path, design = draw_sample(project, sample or SAMPLE, seed=seed or 0, overwrite=overwrite)
        rows = sum(stratum.rows for stratum in design.strata)
        if as_json:
            typer.echo(json.dumps({"path": str(path), "pseudo_labels": rows} | design.plain(), indent=2))
        sizes = f"{len(design.rows)} of {rows} pseudo-labels, from {len(design.strata)} strata of class and confidence"
        say(f"wrote {path}: {sizes}", err=as_json)
        command = f"semigpc audit {out} --answers {path}"
        say(f"write the right class (or y, or n) into its column truth, then: {command}", err=as_json)
        return
    result = judge(project, answers)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    _tell(result, Console(stderr=as_json))


def _tell(result: dict[str, Any], console: Console) -> None:
    console.print(_classes(result))
    if result["confusions"]:
        console.print(_confusions(result["confusions"]))
    if result["unanswered"]:
        console.print(
            f"{result['unanswered']} of {result['answered'] + result['unanswered']} rows are not answered, and are taken to be "
            "like the others of their class.",
            soft_wrap=True,
        )
    unknown = [entry["class"] for entry in result["classes"] if not entry["checked"]]
    if unknown:
        console.print(
            verbatim(
                f"Nothing was answered of {', '.join(unknown[:FEW])}: the interval of all rows allows for all of these labels "
                "to be right, and for all to be wrong."
            ),
            soft_wrap=True,
        )
    total = result["all"]
    console.print(
        f"[bold]{_percent(total['precision'])} of the {total['rows']} pseudo-labels are right[/bold] "
        f"({_percent(total['low'])} to {_percent(total['high'])}, at 95 %)",
        soft_wrap=True,
    )


def _classes(result: dict[str, Any]) -> Table:
    """One row a class, the worst known ones first if there are many."""
    table = Table(box=box.SIMPLE, padding=(0, 1))
    table.add_column("class", overflow="fold")
    for heading in ("labels", "checked", "right", "precision", "95 % interval", "confidence"):
        table.add_column(heading, justify="right", no_wrap=True)
    classes = result["classes"]
    if len(classes) > FEW:
        classes = sorted(classes, key=lambda entry: 1 if entry["precision"] is None else entry["precision"])[:FEW]
        table.caption = f"the {FEW} worst of {len(result['classes'])} classes; audit.json has all"
    for entry in classes:
        interval = "-" if entry["low"] is None else f"{100 * entry['low']:.1f} to {_percent(entry['high'])}"
        counts = (str(entry[name]) for name in ("rows", "checked", "right"))
        table.add_row(verbatim(entry["class"]), *counts, _percent(entry["precision"]), interval, _percent(entry["confidence"]))
    return table


def _confusions(pairs: list[dict[str, Any]]) -> Table:
    table = Table(title="wrong labels", box=box.SIMPLE, padding=(0, 1), title_style="bold")
    for heading in ("label", "truth", "rows"):
        table.add_column(heading, justify="right" if heading == "rows" else "left", overflow="fold")
    for pair in pairs[:FEW]:
        truth = Text("not said", "dim") if pair["truth"] is None else verbatim(pair["truth"])
        table.add_row(verbatim(pair["label"]), truth, str(pair["count"]))
    if len(pairs) > FEW:
        table.caption = f"and {len(pairs) - FEW} more pairs, in audit.json"
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
