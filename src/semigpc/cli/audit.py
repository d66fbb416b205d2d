"""``semigpc audit``: the precision of the pseudo-labels, from a sample checked by people."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semigpc.cli.failures import reported
from semigpc.cli.options import AsJson, LabelledFolder
from semigpc.cli.tables import say, share, table, verbatim
from semigpc.report.wording import percent

if TYPE_CHECKING:
    from semigpc.labeling.audit import AuditResult, ClassFigures, WrongLabels
    from semigpc.labeling.project import Project

CLASSES_LISTED = 30  # and pairs of classes, on the screen
DEFAULT_SAMPLE = 200  # rows to check: an interval of about 4 points


@reported("audit")
def audit(
    out: LabelledFolder,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample",
            min=1,
            max=100_000,
            help=f"Number of rows to draw; {DEFAULT_SAMPLE} by default.",
        ),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            "--answers", metavar="FILE", help="The sample, with its column truth filled in."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of the sample; 0 by default.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Draw again although the last sample has answers.")
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
            "it draws a new sample; --answers evaluates the last one.", param_hint="--sample"
        )
    from semigpc.labeling.audit import judge
    from semigpc.labeling.project import Project

    project = Project.open(out)
    if answers is None:
        sample = sample or DEFAULT_SAMPLE
        _draw(project, out, sample, seed=seed or 0, overwrite=overwrite, as_json=as_json)
        return
    result = judge(project, answers)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    _print_result(result, Console(stderr=as_json))


def _draw(
    project: "Project", out: Path, sample: int, *, seed: int, overwrite: bool, as_json: bool
) -> None:
    from semigpc.labeling.audit import draw_sample

    path, design = draw_sample(project, sample, seed=seed, overwrite=overwrite)
    for note in project.notes:
        say(f"note: {note}", err=as_json)
    rows = sum(stratum.rows for stratum in design.strata)
    if as_json:
        facts = {"path": str(path), "pseudo_labels": rows} | asdict(design)
        typer.echo(json.dumps(facts, indent=2))
    sizes = f"{len(design.rows)} of {rows} pseudo-labels, from {len(design.strata)} strata"
    say(f"wrote {path}: {sizes} of class and confidence", err=as_json)
    command = f"semigpc audit {out} --answers {path}"
    say(f"write the right class (or y, or n) into its column truth, then: {command}", err=as_json)


def _print_result(result: "AuditResult", console: Console) -> None:
    console.print(_classes_table(result["classes"]))
    if result["confusions"]:
        console.print(_confusions_table(result["confusions"]))
    if result["unanswered"]:
        rows = result["answered"] + result["unanswered"]
        line = f"{result['unanswered']} of {rows} rows have no answer; they are assumed to be like "
        console.print(f"{line}the others of their class.", soft_wrap=True)
    unknown = [entry["class"] for entry in result["classes"] if not entry["checked"]]
    if unknown:
        names = ", ".join(unknown[:CLASSES_LISTED])
        line = f"No answers for {names}: the overall interval allows for all of these labels to be "
        console.print(verbatim(f"{line}right, and for all to be wrong."), soft_wrap=True)
    total = result["all"]
    console.print(
        f"[bold]{percent(total['precision'])} of the {total['rows']} pseudo-labels are right[/bold]"
        f" ({percent(total['low'])} to {percent(total['high'])}, at 95%)",
        soft_wrap=True,
    )


def _classes_table(classes: "Sequence[ClassFigures]") -> Table:
    """Return one row per class; if there are many, those with the lowest precision."""
    headings = (">labels", ">checked", ">right", ">precision", ">95% interval", ">confidence")
    made = table("", "class", *headings)
    shown = list(classes)
    if len(shown) > CLASSES_LISTED:
        shown.sort(key=lambda entry: 1 if entry["precision"] is None else entry["precision"])
        shown = shown[:CLASSES_LISTED]
        made.caption = f"the {CLASSES_LISTED} worst of {len(classes)} classes; audit.json has all"
    for entry in shown:
        interval = percent(None)
        if entry["low"] is not None:
            interval = f"{share(entry['low'])} to {percent(entry['high'])}"
        made.add_row(
            verbatim(entry["class"]),
            str(entry["rows"]),
            str(entry["checked"]),
            str(entry["right"]),
            percent(entry["precision"]),
            interval,
            percent(entry["confidence"]),
        )
    return made


def _confusions_table(pairs: "Sequence[WrongLabels]") -> Table:
    made = table("wrong labels", "label", "truth", ">rows")
    for pair in pairs[:CLASSES_LISTED]:
        truth = Text("not given", "dim") if pair["truth"] is None else verbatim(pair["truth"])
        made.add_row(verbatim(pair["label"]), truth, str(pair["count"]))
    if len(pairs) > CLASSES_LISTED:
        made.caption = f"and {len(pairs) - CLASSES_LISTED} more pairs, in audit.json"
    return made
