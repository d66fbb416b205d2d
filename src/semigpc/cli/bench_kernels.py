"""``semigpc bench kernels``: what learning the kernel is worth."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.study import run_verb


@reported("bench kernels")
def kernels(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON of every seed; what it holds is not run again.")],
    embeddings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="Of CIFAR-10 in train/CLASS and test/CLASS, by semigpc embed."
        ),
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="Only this data set; repeat for several.", metavar="NAME")] = None,
    seeds: Annotated[int, typer.Option(help="Splits of each problem.", min=1)] = 5,
    plot: Annotated[Path | None, typer.Option(help="Draw the differences to this PNG.", dir_okay=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on standard output.")] = False,
) -> None:
    """Compare learned kernels with given ones on the estimator's problems.

    The paper's kernel, the estimator's grid, and l, eta and sigma learned from
    the labelled rows: by the marginal likelihood, by leave-one-out, and for
    each class. Judged by negative log-likelihood and balanced accuracy of
    unlabelled rows, whose labels none of them has seen.

      semigpc bench kernels --data digits --seeds 10 --out kernels.json

    Digits come with scikit-learn, segments with river (semigpc[study]);
    CIFAR-10 needs embeddings, see semigpc bench estimator --help.
    """
    from semigpc.bench.kernels import VARIANTS, study_on, summarise
    from semigpc.bench.long_tails import PROBLEMS

    summary = run_verb(PROBLEMS, study_on, summarise, out=out, plot=plot, embeddings=embeddings, data=data, seeds=seeds)
    if plot is not None:
        from semigpc.report.kernels_figure import draw_kernel_study

        draw_kernel_study(summary, VARIANTS, plot)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        for table in _tables(summary):
            Console().print(table)


def _tables(summary: dict[str, Any]) -> list[Table]:
    return [
        _table(summary, "nll", "Negative log-likelihood of unlabelled rows in nats, mean and spread over seeds", best=min),
        _table(summary, "balanced_accuracy", "Balanced accuracy in percent, mean and spread over seeds", best=max, scale=100),
    ]


def _table(summary: dict[str, Any], figure: str, title: str, *, best: Any, scale: float = 1) -> Table:
    table = Table(title=title, box=box.SIMPLE, title_justify="left", caption_justify="left", padding=(0, 1))
    table.add_column("problem")
    digits = 1 if scale > 1 else 3
    for variant in summary["overall"][figure]:
        table.add_column(variant.replace("_", "\n", 1), justify="right")
    for name, problem in summary["problems"].items():
        values = problem[figure].values()
        winner = best(value["mean"] for value in values)
        cells = (f"{scale * value['mean']:.{digits}f} ± {scale * value['std']:.{digits}f}" for value in values)
        marked = (f"[bold]{cell}[/]" if value["mean"] == winner else cell for cell, value in zip(cells, values, strict=True))
        table.add_row(name, *marked)
    table.add_row("all", *(f"{scale * value:.{digits}f}" for value in summary["overall"][figure].values()), style="bold")
    if figure == "nll":
        counts = [
            f"{variant}: lower than default on {wins['default']} of {summary['of_problems']}, than grid on {wins['grid']}"
            for variant, wins in summary["lower_nll_than"].items()
            if variant not in ("default", "grid")
        ]
        table.caption = "\n".join(counts)
    return table
