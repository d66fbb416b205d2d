"""Live progress of a comparison."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from semigpc.cli.feature_bar import FeatureBar
from semigpc.cli.tables import say
from semigpc.training import Listener
from semigpc.training.comparison import Cell, ComparisonListener


class ComparisonProgress(ComparisonListener):
    """One bar for all runs and one for each that is going on, on standard error."""

    def __init__(self, total: int, title: str) -> None:
        console = Console(stderr=True)
        self.live = console.is_terminal
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[said]}", markup=False),
            TimeRemainingColumn(),
        )
        self.bars = Progress(*columns, console=console, transient=True, disable=not self.live)
        self.all = self.bars.add_task(title, total=total, said="")
        self.extraction = FeatureBar()

    def __enter__(self) -> "ComparisonProgress":
        return self

    def __exit__(self, *_: object) -> None:
        self.extraction.close()
        self.bars.stop()

    def features(self, done: int, total: int) -> None:
        """Show how many images have their features, before any run starts."""
        self.extraction.show(done, total)

    def run(self, cell: Cell, seed: int) -> Listener:
        """A bar for this run."""
        self.extraction.close()
        self.bars.start()
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
            say(f"{cell.label}, seed {seed}: {figure}, {summary['seconds']:.0f} s", err=True)

    def beside(self, name: str) -> None:  # noqa: ARG002
        """Move the bar of all runs for something that has no steps."""
        self.bars.advance(self.all)


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
