"""``semigpc demo``: labels only, SimMatch, and SimMatch with SemiGPC, side by side on long-tailed digits."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from semigpc.cli.failures import reported
from semigpc.cli.tables import say

RATIO = 30.0


@reported("demo")
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the runs and the report.")] = Path("demo"),
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Which split and which training.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Show on handwritten digits what SemiGPC changes, in about a minute.

    The labels have a long tail: 36 zeros, 24 ones and so on down to a single
    eight and a single nine. So have the 370 unlabelled digits. Three networks
    are trained on the same data: on the labels only, by SimMatch, and by
    SimMatch whose pseudo-labels come from a Gaussian process.

    Look at the column few: these are the classes that self-training forgets.
    The report shows it class by class, and which labels each one believed.

    Called again it shows the same figures without training.
    """
    from semigpc.cli.comparison_bars import ComparisonProgress
    from semigpc.cli.tables import comparison_table
    from semigpc.recipes.comparisons import make_cells
    from semigpc.recipes.lookup import TrainOptions
    from semigpc.report.comparison import write_comparison_report
    from semigpc.report.run_page import write_run_report
    from semigpc.threads import cores
    from semigpc.training.comparison import compare, run_path

    console = Console(stderr=as_json)
    options = TrainOptions(ratio=RATIO)
    cells, _ = make_cells("digits", options, algorithms=["simmatch"], addons=["none"], refiners=["none", "gp"], settings=[])
    jobs = max(1, min(len(cells), cores()))
    with ComparisonProgress(len(cells), "Training three networks") as progress:
        comparison = compare(
            cells,
            [seed],
            out,
            title=f"Long-tailed digits, 36 labels of the largest class and 1 of the smallest, seed {seed}",
            command=f"semigpc demo --seed {seed}",
            jobs=jobs,
            listener=progress,
        )
    for cell in cells:
        write_run_report(run_path(out, cell, seed))
    page = write_comparison_report(out)
    if as_json:
        typer.echo(json.dumps(comparison, indent=2))
    console.print(comparison_table(comparison))
    say(f"report: {page}", err=as_json)
