"""``semigpc toy``: Figure 1 of the paper, and how labels spread among points in the plane."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.options import AsJson
from semigpc.cli.tables import say, share, table

if TYPE_CHECKING:
    from semigpc.paper.toy import Propagation, ToyFigures

CONFIDENCE_TITLE = (
    "Figure 1: confidence where labels disagree, probability of the minority's\n"
    "class at its centre, confidence at the outlier; last: of the four classes\n"
    "the one that is least probable at its own centre"
)


@reported("toy")
def toy(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the two images.")
    ] = Path("toy"),
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=2**31, help="Seed of the points.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Draw Figure 1 of the paper, and how labels spread from a few points.

    Three classifiers see the same points in the plane. The linear one draws
    straight borders. In similarity every labelled point votes for its class,
    so a larger class has more votes. In SemiGPC points that lie together
    share their vote, and points far away have no weight.

    figure1.png: labels that disagree in one place, a minority surrounded by a
    majority, and an outlier far from all. Grey is less than 80% confidence;
    the number is the probability at the ring. It should be 0.5 where labels
    disagree, near 1 for the minority, and 0.25 for the outlier.

    propagation.png: of four classes of 16 to 128 points, one point in eight
    has its label. Which labels do the others get? Look at the class of 16.

    The images use length-scale 1, the tables three. With a short one
    similarity respects the minority and the disagreement too, with a long one
    neither; it is confident at the outlier with any.
    """
    from semigpc.paper.plots import write_toy_figures
    from semigpc.paper.toy import toy_figures

    console = Console(stderr=as_json)
    figures = toy_figures(seed)
    written = write_toy_figures(out, figures)
    if as_json:
        typer.echo(json.dumps(asdict(figures), indent=2))
    console.print(_confidence_table(figures))
    console.print(_propagation_table(figures))
    for path in written:
        say(f"wrote {path}", err=as_json)


def _confidence_table(figures: "ToyFigures") -> Table:
    rows = []
    for one in figures.confidence:
        numbers = (one.disagreement, one.minority, one.outlier, min(one.centres))
        rows.append((one.length_scale, one.classifier, [f"{number:.3f}" for number in numbers]))
    headings = ["disagreement", "minority", "outlier", "four centres"]
    return _table(CONFIDENCE_TITLE, headings, rows)


def _propagation_table(figures: "ToyFigures") -> Table:
    from semigpc.paper.toy import COUNTS, THRESHOLD

    title = (
        "One label in eight given: percent of the other points in this draw,\n"
        f"and in brackets the mean of {len(figures.seeds_averaged)} draws"
    )
    rows = []
    for one, mean in zip(figures.propagation, figures.propagation_mean, strict=True):
        pairs = zip(_shares(one), _shares(mean), strict=True)
        values = [f"{share(this)} ({share(average)})" for this, average in pairs]
        rows.append((one.length_scale, one.classifier, values))
    headings = ["right", f"class of {COUNTS[0]} right", f"{THRESHOLD:.0%} sure", "right if sure"]
    return _table(title, headings, rows)


def _shares(one: "Propagation") -> tuple[float, ...]:
    return (one.accuracy, one.minority_accuracy, one.coverage, one.covered_precision)


def _table(title: str, headings: list[str], rows: Iterable[tuple[float, str, list[str]]]) -> Table:
    """Return a table that fits 80 characters, with a line below each length-scale."""
    from semigpc.paper.plots import CLASSIFIER_NAMES
    from semigpc.paper.toy import LENGTH_SCALES, PROPAGATORS

    made = table(title, "scale", "classifier", *(f">{heading}" for heading in headings))
    for column in made.columns:
        column.no_wrap = column is made.columns[1]  # the headings of numbers may take two lines
    for length_scale, classifier, values in rows:
        last = classifier == PROPAGATORS[-1] and length_scale != LENGTH_SCALES[-1]
        name = CLASSIFIER_NAMES[classifier]
        made.add_row(f"{length_scale:g}", name, *values, end_section=last)
    return made
