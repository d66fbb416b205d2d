"""``semigpc bench screening``: rows of no known class, and wrong labels, by a GP's variance and by other scores."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.study import run_verb

ROWS = ("known", "all")
SHORT = {"probability": "prob."}  # as tables have it


@reported("bench screening")
def screening(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON of every seed; what it holds is not run again.")],
    embeddings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="Of CIFAR-10 in train/CLASS and test/CLASS, by semigpc embed."
        ),
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="Only this data set; repeat for several.", metavar="NAME")] = None,
    seeds: Annotated[int, typer.Option(help="Draws of each problem.", min=1)] = 10,
    plot: Annotated[Path | None, typer.Option(help="Draw AUROC and risk to this PNG.", dir_okay=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on standard output.")] = False,
) -> None:
    """Screen rows of unknown classes by the variance, beside other scores.

    Half of the classes are known by a few labels each; unlabelled rows are of
    all. The AUROC says how well a score tells the known from the unknown, the
    risk how many labels are wrong among the half it is surest of. Peers: the
    distance to the nearest label, and scikit-learn's LocalOutlierFactor.

    Digits come with scikit-learn, segments with river (semigpc[study]); for
    CIFAR-10 give embeddings:

      semigpc bench screening --data digits --seeds 5 --out screening.json
      semigpc bench screening --embeddings cifar10.parquet --out screening.json
    """
    from semigpc.bench.screening import PROBLEMS, SCORES, screen, summarise

    summary = run_verb(PROBLEMS, screen, summarise, out=out, plot=plot, embeddings=embeddings, data=data, seeds=seeds)
    if plot is not None:
        from semigpc.report.screening_figure import draw_screening

        draw_screening(summary, SCORES, plot)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        for table in _tables(summary):
            Console().print(table)


def _tables(summary: dict[str, Any]) -> list[Table]:
    auroc = _table("AUROC of known against unknown classes", [SHORT.get(score, score) for score in summary["auroc"]])
    for name, problem in summary["problems"].items():
        best, spread = max(problem["auroc"].values()), problem["auroc_std"]
        cells = {score: f"{value:.3f} ±{spread[score]:.2f}".replace("±0", "±") for score, value in problem["auroc"].items()}
        auroc.add_row(name, *(f"[bold]{cell}[/]" if problem["auroc"][score] == best else cell for score, cell in cells.items()))
    auroc.add_row("all", *(f"{value:.3f}    " for value in summary["auroc"].values()), style="bold")
    auroc.caption = "mean ± deviation over seeds; 0.5 is a coin. nearest: distance to a label; lof: LocalOutlierFactor"
    kinds = list(summary["risk"])
    risk = _table(
        "Wrong labels in percent, of the half each is surest of",
        [f"{SHORT.get(kind, kind)}\n{rows}" for rows in ROWS for kind in kinds],
    )
    for name, problem in {**summary["problems"], "all": summary}.items():
        halves = (f"{100 * problem['risk'][kind][key]['half']:.1f}" for key in ROWS for kind in kinds)
        risk.add_row(name, *halves, style="bold" if name == "all" else "")
    risk.caption = "known: of rows of known classes; all: of all rows, where labels of unknown classes are wrong"
    return [auroc, risk]


def _table(title: str, headings: list[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0), title_justify="left", caption_justify="left")
    table.add_column("problem", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
