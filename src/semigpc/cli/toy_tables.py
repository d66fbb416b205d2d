"""The images and tables of ``semigpc toy``."""

import json
from dataclasses import asdict
from pathlib import Path

import typer
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from semigpc.cli.tables import say
from semigpc.report.toy_figures import NAMES, confidence_figure, propagation_figure, save_png
from semigpc.toy import (
    CLASSIFIERS,
    COUNTS,
    LENGTH_SCALES,
    PROPAGATORS,
    THRESHOLD,
    ConfidenceMap,
    Propagation,
    ToyData,
    ToyFigures,
    confidence_map,
    draw,
    propagate,
    toy_figures,
)

RESOLUTION = 300  # points along a side of a map
PROPAGATION_LENGTH_SCALE = 1.0  # so wide that a large class reaches into a small one
MAPS = (("linear", 0.5), ("similarity", 0.5), ("gp", 0.5), ("similarity", 1.0), ("gp", 1.0))


def show_toy(out: Path, seed: int, *, as_json: bool) -> None:
    """Draw both images into ``out`` and print the tables."""
    console = Console(stderr=as_json)
    data, figures = draw(seed), toy_figures(seed)
    written = [out / "propagation.png", out / "confidence_maps.png"]
    save_png(_propagation_image(data, figures), written[0])
    save_png(confidence_figure(data, _evaluate_maps(data)), written[1])

    if as_json:
        typer.echo(json.dumps(asdict(figures), indent=2))
    console.print(_confidence_table(figures))
    console.print(_propagation_table(figures))
    for path in written:
        say(f"wrote {path}", err=as_json)


def _propagation_image(data: ToyData, figures: ToyFigures) -> Figure:
    chosen = PROPAGATION_LENGTH_SCALE
    probs = {name: propagate(data, classifier=name, length_scale=chosen) for name in PROPAGATORS}
    return propagation_figure(data, probs, _at(figures.propagation, chosen), _at(figures.propagation_mean, chosen))


def _at(entries: tuple[Propagation, ...], length_scale: float) -> dict[str, Propagation]:
    return {entry.classifier: entry for entry in entries if entry.length_scale == length_scale}


def _evaluate_maps(data: ToyData) -> dict[tuple[str, float], ConfidenceMap]:
    """Evaluate every map behind a progress bar, which goes to standard error and leaves nothing behind."""
    maps, errors = {}, Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("Confidence maps", total=len(MAPS) * RESOLUTION)
        for name, length_scale in MAPS:
            predict = CLASSIFIERS[name](data.points, data.labels, length_scale)
            maps[name, length_scale] = confidence_map(predict, resolution=RESOLUTION, on_row=lambda: progress.advance(task))
    return maps


def _confidence_table(figures: ToyFigures) -> Table:
    title = "All labels given: how probable the right class is at its centre,\nand how sure the classifier is of the outlier"
    table = _table(title, *(f"class of {count}" for count in COUNTS), "outlier")
    for entry in figures.confidence:
        values = [*entry.centre_own_class, entry.outlier_confidence]
        _add_row(table, entry.length_scale, entry.classifier, [f"{value:.3f}" for value in values])
    return table


def _propagation_table(figures: ToyFigures) -> Table:
    draws = len(figures.seeds_averaged)
    title = f"One label in eight given: percent of the other points in this draw,\nand in brackets the mean of {draws} draws"
    table = _table(title, "right", f"class of {COUNTS[0]} right", f"{THRESHOLD:.0%} sure", "right if sure")
    for one, mean in zip(figures.propagation, figures.propagation_mean, strict=True):
        pairs = [
            (one.accuracy, mean.accuracy),
            (one.minority_accuracy, mean.minority_accuracy),
            (one.coverage, mean.coverage),
            (one.covered_precision, mean.covered_precision),
        ]
        values = [f"{100 * here:.1f} ({100 * over:.1f})" for here, over in pairs]
        _add_row(table, one.length_scale, one.classifier, values)
    return table


def _table(title: str, *headings: str) -> Table:
    """Make an empty table that fits 80 characters."""
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1), title_style="bold")
    table.add_column("scale")
    table.add_column("classifier", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _add_row(table: Table, length_scale: float, classifier: str, values: list[str]) -> None:
    """Add a row, and a line under the last classifier of a length-scale."""
    last = classifier == PROPAGATORS[-1] and length_scale != LENGTH_SCALES[-1]
    table.add_row(f"{length_scale:g}", NAMES[classifier], *values, end_section=last)
