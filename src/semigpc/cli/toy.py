"""``semigpc demo`` and ``semigpc toy``: what SemiGPC changes, on long-tailed digits and on points
in the plane.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.tables import AsJson, comparison_table, say, share, table

if TYPE_CHECKING:
    from semigpc.paper.toy import ToyFigures

RATIO = 30.0  # imbalance of the demo's labels


@reported("demo")
def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the runs and the report.")
    ] = Path("demo"),
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Which split and which training.")
    ] = 0,
    as_json: AsJson = False,
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
    from semigpc.cli.live import ComparisonProgress
    from semigpc.io.threads import cores
    from semigpc.report.comparison_page import write_comparison_report
    from semigpc.report.run_page import write_run_report
    from semigpc.training.comparison import compare, run_path
    from semigpc.training.presets import TrainOptions, make_cells

    options = TrainOptions(ratio=RATIO)
    cells, _ = make_cells(
        "digits",
        options,
        algorithms=["simmatch"],
        addons=["none"],
        refiners=["none", "gp"],
        settings=[],
    )
    with ComparisonProgress(len(cells), "Training three networks") as progress:
        comparison = compare(
            cells,
            [seed],
            out,
            title=f"Long-tailed digits, 36 labels of the largest class and 1 of the smallest, seed {seed}",
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


@reported("toy")
def toy(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the two images.")
    ] = Path("toy"),
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=2**31, help="Which draw of the points.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Draw Figure 1 of the paper, and how labels spread from a few points.

    Three classifiers see the same points in the plane. The linear one draws
    straight borders. Similarity lets every labelled point vote for its class,
    so the larger class has more votes. SemiGPC lets points that lie together
    share their vote, and gives no weight to points far away.

    figure1.png: labels that disagree in one place, a minority surrounded by a
    majority, and an outlier far from all. Grey is less than 80% sure; the
    number is the probability at the ring. Labels that disagree should give
    0.5, the minority its own class, the outlier no idea (0.25).

    propagation.png: of four classes of 16 to 128 points, one point in eight
    has its label. Which labels do the others get? Look at the class of 16.

    The images have length-scale 1, the tables three. With a short one
    similarity respects the minority and the disagreement too, with a long one
    neither; of the outlier it is sure with any.
    """
    from semigpc.paper.toy import toy_figures
    from semigpc.paper.toy_figures import write_toy_figures

    console, figures = Console(stderr=as_json), toy_figures(seed)
    written = write_toy_figures(out, figures)
    if as_json:
        typer.echo(json.dumps(asdict(figures), indent=2))
    console.print(_confidence_table(figures))
    console.print(_propagation_table(figures))
    for path in written:
        say(f"wrote {path}", err=as_json)


def _confidence_table(figures: "ToyFigures") -> Table:
    title = (
        "Figure 1: how sure where labels disagree, how probable the minority's\n"
        "class at its centre, how sure of the outlier; last: of the four classes\n"
        "the one that is least probable at its own centre"
    )
    rows = [
        (
            one.length_scale,
            one.classifier,
            [f"{p:.3f}" for p in (one.disagreement, one.minority, one.outlier, min(one.centres))],
        )
        for one in figures.confidence
    ]
    return _table(title, ["disagreement", "minority", "outlier", "four centres"], rows)


def _propagation_table(figures: "ToyFigures") -> Table:
    from semigpc.paper.toy import COUNTS, THRESHOLD

    draws = len(figures.seeds_averaged)
    title = f"One label in eight given: percent of the other points in this draw,\nand in brackets the mean of {draws} draws"
    keys = ("accuracy", "minority_accuracy", "coverage", "covered_precision")
    rows = [
        (
            one.length_scale,
            one.classifier,
            [f"{share(getattr(one, key))} ({share(getattr(mean, key))})" for key in keys],
        )
        for one, mean in zip(figures.propagation, figures.propagation_mean, strict=True)
    ]
    return _table(
        title,
        ["right", f"class of {COUNTS[0]} right", f"{THRESHOLD:.0%} sure", "right if sure"],
        rows,
    )


def _table(title: str, headings: list[str], rows: Iterable[tuple[float, str, list[str]]]) -> Table:
    """Return a table that fits 80 characters, with a line under the last classifier of a
    length-scale.
    """
    from semigpc.paper.toy import LENGTH_SCALES, PROPAGATORS
    from semigpc.paper.toy_figures import NAMES

    made = table(title, "scale", "classifier", *(f">{heading}" for heading in headings))
    for column in made.columns:
        column.no_wrap = column is made.columns[1]  # the headings of numbers may take two lines
    for length_scale, classifier, values in rows:
        last = classifier == PROPAGATORS[-1] and length_scale != LENGTH_SCALES[-1]
        made.add_row(f"{length_scale:g}", NAMES[classifier], *values, end_section=last)
    return made
