"""``semigpc demo`` and ``semigpc toy``: what SemiGPC changes, on long-tailed digits and on points in the plane."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import AsJson, comparison_table, say, share, table

if TYPE_CHECKING:
    from semigpc.toy import ToyFigures

RATIO = 30.0  # imbalance of the demo's labels


@reported("demo")
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the runs and the report.")] = Path("demo"),
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Which split and which training.")] = 0,
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
    from semigpc.recipes.lookup import TrainOptions, make_cells
    from semigpc.report.comparison import write_comparison_report
    from semigpc.report.run_page import write_run_report
    from semigpc.threads import cores
    from semigpc.training.comparison import compare, run_path

    options = TrainOptions(ratio=RATIO)
    cells, _ = make_cells("digits", options, algorithms=["simmatch"], addons=["none"], refiners=["none", "gp"], settings=[])
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
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the two images.")] = Path("toy"),
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**31, help="Which draw of the points.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Draw the paper's toy problem, which shows why labels are spread with a GP.

    Four classes sit at the corners of a square, with 16, 32, 64 and 128
    points. Similarity lets every labelled point vote for its class, so the
    larger class has more votes. SemiGPC lets points that lie together share
    their vote, and gives no weight to points far away.

    propagation.png: one point in eight has its label. Which labels do the
    others get? Look at the class of 16.

    confidence_maps.png: where is each classifier at least 80% sure? Look at
    the star, where no class has a point.

    The tables show the rest. With a short length-scale similarity spreads
    labels as well as SemiGPC does, with a long one it loses the class of 16,
    and with any it is sure of the outlier.
    """
    from semigpc.report import toy_figures as drawing
    from semigpc.toy import toy_figures

    console, figures = Console(stderr=as_json), toy_figures(seed)
    with StageBar() as bar:
        on_row = bar.counter("Confidence maps", len(drawing.MAPS) * drawing.RESOLUTION)
        written = drawing.write_toy_figures(out, figures, on_row)
    if as_json:
        typer.echo(json.dumps(asdict(figures), indent=2))
    console.print(_confidence_table(figures))
    console.print(_propagation_table(figures))
    for path in written:
        say(f"wrote {path}", err=as_json)


def _confidence_table(figures: "ToyFigures") -> Table:
    from semigpc.toy import COUNTS

    title = "All labels given: how probable the right class is at its centre,\nand how sure the classifier is of the outlier"
    rows = [
        (
            entry.length_scale,
            entry.classifier,
            [f"{value:.3f}" for value in (*entry.centre_own_class, entry.outlier_confidence)],
        )
        for entry in figures.confidence
    ]
    return _table(title, [*(f"class of {count}" for count in COUNTS), "outlier"], rows)


def _propagation_table(figures: "ToyFigures") -> Table:
    from semigpc.toy import COUNTS, THRESHOLD

    draws = len(figures.seeds_averaged)
    title = f"One label in eight given: percent of the other points in this draw,\nand in brackets the mean of {draws} draws"
    keys = ("accuracy", "minority_accuracy", "coverage", "covered_precision")
    rows = [
        (one.length_scale, one.classifier, [f"{share(getattr(one, key))} ({share(getattr(mean, key))})" for key in keys])
        for one, mean in zip(figures.propagation, figures.propagation_mean, strict=True)
    ]
    return _table(title, ["right", f"class of {COUNTS[0]} right", f"{THRESHOLD:.0%} sure", "right if sure"], rows)


def _table(title: str, headings: list[str], rows: Iterable[tuple[float, str, list[str]]]) -> Table:
    """Return a table that fits 80 characters, with a line under the last classifier of a length-scale."""
    from semigpc.report.toy_figures import NAMES
    from semigpc.toy import LENGTH_SCALES, PROPAGATORS

    made = table(title, "scale", "classifier", *(f">{heading}" for heading in headings))
    for column in made.columns:
        column.no_wrap = column is made.columns[1]  # the headings of numbers may take two lines
    for length_scale, classifier, values in rows:
        last = classifier == PROPAGATORS[-1] and length_scale != LENGTH_SCALES[-1]
        made.add_row(f"{length_scale:g}", NAMES[classifier], *values, end_section=last)
    return made
