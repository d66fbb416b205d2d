"""``semigpc demo``: what SemiGPC changes on long-tailed digits."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from semigpc.cli.failures import reported
from semigpc.cli.options import DEFAULT_RATIO, AsJson
from semigpc.cli.tables import comparison_table, say


@reported("demo")
def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the runs and the report.")
    ] = Path("demo"),
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Seed of the split and the training.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Show on handwritten digits what SemiGPC changes, in about a minute.

    The labels have a long tail: 36 zeros, 24 ones and so on down to a single
    eight and a single nine. So have the 370 unlabelled digits. Three networks
    are trained on the same data: on the labels only, by SimMatch, and by
    SimMatch whose pseudo-labels come from a Gaussian process.

    Look at the column few: the rarest classes, which self-training tends to
    lose. The report shows every class and the pseudo-labels it received.

    Run again, it shows the same figures without training.
    """
    from semigpc.cli.live import ComparisonProgress
    from semigpc.io.threads import cores
    from semigpc.report.comparison_page import write_comparison_report
    from semigpc.report.run_page import write_run_report
    from semigpc.training.comparison import compare, run_path
    from semigpc.training.presets import TrainOptions, make_cells

    cells, _ = make_cells(
        "digits",
        TrainOptions(ratio=DEFAULT_RATIO),
        algorithms=["simmatch"],
        addons=["none"],
        refiners=["none", "gp"],
        settings=[],
    )
    labels = "36 labels of the largest class and 1 of the smallest"
    with ComparisonProgress(len(cells), "Training three networks") as progress:
        comparison = compare(
            cells,
            [seed],
            out,
            title=f"Long-tailed digits, {labels}, seed {seed}",
            command=f"semigpc demo --seed {seed}",
            jobs=max(1, min(len(cells), cores())),
            listener=progress,
        )
    for cell in cells:
        write_run_report(run_path(out, cell, seed))
    page = write_comparison_report(out)
    if as_json:
        typer.echo(json.dumps(comparison, indent=2))
    Console(stderr=as_json).print(comparison_table(comparison))
    say(f"report: {page}", err=as_json)
