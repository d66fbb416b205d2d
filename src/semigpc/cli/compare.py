"""``semigpc compare``: algorithms with and without a refiner, on the same splits and seeds."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from semigpc.cli.failures import reported
from semigpc.cli.tables import AsJson, comparison_table, pairs_table, say
from semigpc.cli.train import (
    FeatureChoice,
    ImageSize,
    Labels,
    ModelName,
    OwnLinks,
    Root,
    Test,
    Validation,
    short_settings,
)

RATIO = 30.0  # imbalance of a recipe's labels


@reported("compare")
def compare_command(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A recipe, a folder of images, or an .npz file.")
    ] = "digits",
    algorithm: Annotated[
        list[str],
        typer.Option("--algorithm", metavar="NAME", help="Repeat for more; all by default."),
    ] = [],  # noqa: B006 - typer reads it once
    refiner: Annotated[
        list[str],
        typer.Option(
            "--refiner",
            metavar="NAME",
            help="Repeat for more; none and gp by default.",
            show_default=False,
        ),
    ] = ["none", "gp"],  # noqa: B006
    addon: Annotated[
        list[str],
        typer.Option(
            "--addon",
            metavar="NAME",
            help="On top of each; see semigpc list addons.",
            show_default=False,
        ),
    ] = ["none"],  # noqa: B006
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, help="Seeds 0 to N - 1.")
    ] = 3,
    ratio: Annotated[
        list[float],
        typer.Option(
            "--ratio", metavar="GAMMA", help=f"Imbalance of a recipe, {RATIO:g}; repeat for more."
        ),
    ] = [],  # noqa: B006
    root: Root = None,
    features: FeatureChoice = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="Length of every run.")
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, for every run that has it."),
    ] = [],  # noqa: B006
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Runs at a time.")] = 1,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="For runs, tables and pages.")
    ] = Path("comparison"),
    labels: Labels = None,
    test: Test = None,
    validation: Validation = None,
    model: ModelName = None,
    image_size: ImageSize = None,
    follow_links: OwnLinks = False,
    as_json: AsJson = False,
) -> None:
    """Train several algorithms with and without a refiner, and compare them.

    DATA and network are found as by semigpc train. Every cell sees the same
    split and the same seeds, so differences are paired: the table shows means
    and spreads, and what a refiner adds to its own base, seed by seed. Labels
    only is always run beside them. Without test images the figures are those
    of the labels held out for validation.

    If it is stopped, run it again to continue. The
    figures of all runs are in figures.json, class by class in the reports.

    For example:

      semigpc compare photos --labels labels.csv --algorithm fixmatch --steps 500
      semigpc compare digits --ratio 10 --ratio 100 --seeds 5 --jobs 2
    """
    from semigpc.cli.live import ComparisonProgress
    from semigpc.io.atomic import write_json
    from semigpc.report.comparison_page import write_comparison_report
    from semigpc.training.comparison import compare, figures_of, mean_gain
    from semigpc.training.presets import RECIPES, TrainOptions, make_cells

    console = Console(
        stderr=as_json, width=None if Console().is_terminal else 120
    )  # a file has no edge to fit into
    command = shlex.join(["semigpc", *sys.argv[1:]])
    comparisons = {}
    settings = [*settings, *short_settings(data, steps, root)]
    ratios: list[float] | list[None] = ratio or ([RATIO] if data in RECIPES else [None])
    for gamma in ratios:
        options = TrainOptions(
            ratio=gamma,
            labels=labels,
            test=test,
            validation=validation,
            model=model,
            image_size=image_size,
            cached=None if features is None else features == "cached",
            follow_links=follow_links,
        )
        cells, name = make_cells(
            data, options, algorithms=algorithm, addons=addon, refiners=refiner, settings=settings
        )
        for cell in cells:
            if cell.experiment.refiner.warmup_steps >= cell.experiment.train.steps:
                say(
                    f"Note: {cell.label} never uses its refiner: lower refiner.warmup_steps or raise --steps.",
                    err=True,
                )
        folder = out / f"ratio{gamma:g}" if len(ratios) > 1 else out
        tail = "" if gamma is None else f", imbalance ratio {gamma:g}"
        title = f"{name}{tail}, {seeds} seeds"
        with ComparisonProgress(len(cells) * seeds, title) as progress:
            result = compare(
                cells,
                range(seeds),
                folder,
                title=title,
                command=command,
                jobs=jobs,
                listener=progress,
            )
        comparisons[name if gamma is None else f"{gamma:g}"] = figures_of(result)
        console.print(comparison_table(result))
        console.print(pairs_table(result))
        say(f"report: {write_comparison_report(folder)}", err=as_json)
    overall = mean_gain(list(comparisons.values()))
    if overall is not None and len(ratios) > 1:
        console.print(
            f"Over all algorithms and ratios a refiner adds {100 * overall:+.1f} points of balanced accuracy."
        )
    figures = {"command": command, "comparisons": comparisons, "mean_gain": overall}
    write_json(out / "figures.json", figures)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
