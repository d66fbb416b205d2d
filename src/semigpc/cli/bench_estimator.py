"""``semigpc bench estimator``: how good the labels are, beside those of others."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.study import run_verb


@reported("bench estimator")
def estimator(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON of every seed; what it holds is not run again.")],
    embeddings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="Of CIFAR-10 in train/CLASS and test/CLASS, by semigpc embed."
        ),
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="Only this data set; repeat for several.", metavar="NAME")] = None,
    seeds: Annotated[int, typer.Option(help="Splits of each problem.", min=1)] = 5,
    plot: Annotated[Path | None, typer.Option(help="Draw the accuracies to this PNG.", dir_okay=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on standard output.")] = False,
) -> None:
    """Compare SemiGPClassifier with scikit-learn on long-tailed problems.

    Balanced accuracy on rows nobody saw, for long-tailed labels (A) and for as
    many labels of every class (B), all methods with their defaults; and what
    came of target_precision=0.95 on the unlabelled rows.

    Digits come with scikit-learn, segments with river (semigpc[study]); for
    CIFAR-10 give embeddings:

      semigpc embed cifar10 --image-size 96 --out cifar10.parquet
      semigpc bench estimator --embeddings cifar10.parquet --out study.json
    """
    from semigpc.bench.estimator import compare_on, summarise
    from semigpc.bench.long_tails import PROBLEMS

    summary = run_verb(PROBLEMS, compare_on, summarise, out=out, plot=plot, embeddings=embeddings, data=data, seeds=seeds)
    if plot is not None:
        from semigpc.bench.estimator import OURS
        from semigpc.estimator.peers import PEERS
        from semigpc.report.bench_figures import draw_estimator_study

        titles = {OURS: "SemiGPClassifier", **{name: peer.title for name, peer in PEERS.items()}}
        draw_estimator_study(summary, titles, OURS, plot)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        for table in _tables(summary):
            Console().print(table)


def _tables(summary: dict[str, Any]) -> list[Table]:
    methods = list(summary["overall"])
    accuracy = Table(title="Balanced accuracy, mean over seeds", box=box.SIMPLE, title_justify="left", padding=(0, 1))
    accuracy.add_column("problem")
    for method in methods:
        accuracy.add_column(method.replace("_", "\n"), justify="right")
    for name, problem in summary["problems"].items():
        best = max(problem["mean"].values())
        cells = (f"[bold]{100 * value:.1f}[/]" if value == best else f"{100 * value:.1f}" for value in problem["mean"].values())
        accuracy.add_row(name, *cells)
    accuracy.add_row("all", *(f"{100 * value:.1f}" for value in summary["overall"].values()), style="bold")
    accuracy.caption = (
        f"{100 * summary['ahead_of_best_peer']:+.1f} points on average over the best of the others, {summary['best_peer']}; "
        f"on a single problem {100 * summary['least_ahead_on_one']:+.1f} at worst over the best there"
    )
    promise = Table(title="With target_precision=0.95", box=box.SIMPLE, title_justify="left", padding=(0, 1))
    for heading in ("problem", "right", "labelled", "silent seeds"):
        promise.add_column(heading, justify="left" if heading == "problem" else "right")
    for name, problem in summary["problems"].items():
        promise.add_row(name, _percent(problem["precision"]), _percent(problem["coverage"]), str(problem["silent"] or ""))
    promise.add_row("all", _percent(summary["precision"]), _percent(summary["coverage"]), "", style="bold")
    return [accuracy, promise]


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"
