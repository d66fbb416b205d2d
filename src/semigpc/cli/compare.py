"""``semigpc compare``: algorithms with and without a refiner, on the same splits and seeds."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from semigpc.algorithms import ALGORITHMS
from semigpc.cli.failures import reported
from semigpc.cli.tables import comparison_table, pairs_table
from semigpc.recipes import RECIPES
from semigpc.report.comparison_page import write_comparison_report
from semigpc.training import Listener, SettingError
from semigpc.training.comparison import Cell, ComparisonListener, compare
from semigpc.training.settings import nearest_name

REFINER_LABELS = {"none": "", "similarity": " + similarity", "gp": " + SemiGPC"}


@reported("compare")
def compare_command(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="What to train on: see semigpc list recipes.")] = "digits",
    algorithm: Annotated[
        list[str], typer.Option("--algorithm", metavar="NAME", help="One row each; repeat for more. All of them by default.")
    ] = [],  # noqa: B006 - typer reads it once
    refiner: Annotated[
        list[str], typer.Option("--refiner", metavar="NAME", help="Columns to pair; none and gp by default.")
    ] = ["none", "gp"],  # noqa: B006
    ratio: Annotated[
        list[float], typer.Option("--ratio", metavar="GAMMA", help="Imbalance ratio; repeat for one comparison each.")
    ] = [30.0],  # noqa: B006
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Seeds 0 to N - 1.")] = 3,
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Any setting, for every run; see semigpc list settings.")
    ] = [],  # noqa: B006
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for runs, tables and pages.")] = Path("comparison"),
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Runs at a time.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Train several algorithms with and without a refiner, and compare them.

    Every cell sees the same split and the same seeds, so differences are
    paired: the table shows means and spreads, and what a refiner adds to its
    own base, seed by seed. Labels only is always run beside them.

    A comparison that was stopped goes on where it was: call it again.

    As in the results of the documentation:

      semigpc compare digits --ratio 10 --ratio 100 --seeds 5 --jobs 2
    """
    console = Console(stderr=as_json)
    comparisons = {}
    for gamma in ratio:
        cells = make_cells(recipe, algorithm, refiner, gamma, settings)
        folder = out / f"ratio{gamma:g}" if len(ratio) > 1 else out
        title = f"{recipe}, imbalance ratio {gamma:g}, {seeds} seeds"
        command = shlex.join(["semigpc", *sys.argv[1:]])
        with ComparisonProgress(len(cells) * seeds, title) as progress:
            result = compare(cells, range(seeds), folder, title=title, command=command, jobs=jobs, listener=progress)
        comparisons[f"{gamma:g}"] = result
        console.print(comparison_table(result))
        console.print(pairs_table(result))
        typer.echo(f"report: {write_comparison_report(folder)}", err=as_json)
    overall = mean_gain(list(comparisons.values()))
    if overall is not None and len(ratio) > 1:
        console.print(f"Over all algorithms and ratios a refiner adds {100 * overall:+.1f} points of balanced accuracy.")
    if as_json:
        typer.echo(json.dumps({"comparisons": comparisons, "mean_gain": overall}, indent=2))


def make_cells(recipe: str, algorithms: list[str], refiners: list[str], ratio: float, settings: list[str]) -> list[Cell]:
    """Labels only first, then every algorithm with every refiner."""
    if recipe not in RECIPES:
        raise SettingError(nearest_name("recipe", recipe, list(RECIPES)))
    chosen = [("supervised", "none")] + [
        (algorithm, refiner)
        for algorithm in (algorithms or list(ALGORITHMS))
        for refiner in refiners
        if algorithm != "supervised"
    ]
    cells = []
    for algorithm, refiner in chosen:
        experiment = RECIPES[recipe](imbalance_ratio=ratio, algorithm=algorithm, refiner=refiner, seed=0)
        label = ALGORITHMS[algorithm].label + REFINER_LABELS[refiner]
        cells.append(Cell(experiment.override(_that_apply(settings, experiment.to_plain())), label))
    return cells


def _that_apply(settings: list[str], plain: Mapping[str, Any]) -> list[str]:
    """Settings of a refiner or algorithm apply to the cells that have one of that kind; all others must exist."""
    return [
        setting
        for setting in settings
        if setting.split(".", 1)[0] not in ("refiner", "algorithm")
        or setting.split("=", 1)[0].split(".")[-1] in plain[setting.split(".", 1)[0]]
    ]


def mean_gain(comparisons: list[dict[str, Any]]) -> float | None:
    """The mean of all paired differences."""
    gains = [pair["mean_difference"] for comparison in comparisons for pair in comparison["pairs"]]
    return sum(gains) / len(gains) if gains else None


class ComparisonProgress(ComparisonListener):
    """One bar for all runs and one for each that is going on, on standard error."""

    def __init__(self, total: int, title: str) -> None:
        console = Console(stderr=True)
        self.live = console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeRemainingColumn())
        self.bars = Progress(*columns, console=console, transient=True, disable=not self.live)
        self.all = self.bars.add_task(title, total=total, said="")

    def __enter__(self) -> "ComparisonProgress":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def run(self, cell: Cell, seed: int) -> Listener:
        """A bar for this run."""
        return RunBar(self.bars, self.bars.add_task(f"  {cell.label}, seed {seed}", total=None, said=""))

    def done(self, cell: Cell, seed: int, summary: Mapping[str, Any], *, kept: bool) -> None:
        """Move the bar of all runs."""
        self.bars.advance(self.all)
        for task in self.bars.tasks:
            if task.description == f"  {cell.label}, seed {seed}":
                self.bars.remove_task(task.id)
        if not self.live and not kept:
            last = summary["results"]["last"]
            figure = f"{100 * last['balanced_accuracy']:.1f} % balanced accuracy" if last else "no figure"
            typer.echo(f"{cell.label}, seed {seed}: {figure}, {summary['seconds']:.0f} s", err=True)


class RunBar(Listener):
    """Shows one run as a bar with its last balanced accuracy."""

    def __init__(self, bars: Progress, task: TaskID) -> None:
        self.bars, self.task = bars, task

    def begin(self, first_step: int, total_steps: int) -> None:
        """Set the length of the bar."""
        self.bars.update(self.task, total=total_steps, completed=first_step)

    def step(self, step: int) -> None:
        """Move it."""
        self.bars.update(self.task, completed=step + 1)

    def entry(self, entry: dict[str, Any]) -> None:
        """Show how good the network is."""
        if entry["kind"] == "eval" and entry["head"] == "linear":
            self.bars.update(self.task, said=f"{100 * entry['balanced_accuracy']:.1f} %")
