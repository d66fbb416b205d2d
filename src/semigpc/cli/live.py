"""Progress of runs on standard error: bars on a terminal, elsewhere a line now and then."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import Progress, TaskID

from semigpc.cli.progress import StageBar, progress_bars
from semigpc.cli.tables import say, verbatim
from semigpc.report.wording import percent
from semigpc.training import Listener, RunFolder
from semigpc.training.comparison import (
    Cell,
    ComparisonListener,
    Untrained,
    UntrainedRecord,
)
from semigpc.training.run_folder import MetricsLine, SplitFacts, judged_result
from semigpc.training.state import Progress as ImagesDone

CLASSES_COUNTED = 12  # of a split; more would fill the screen


class _Bars:
    """Bars for steps, and one before them for features that are computed once."""

    def __init__(self) -> None:
        self.bars = progress_bars()
        self.feature_bar = StageBar("images", line_at_end=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.feature_bar.close()
        self.bars.stop()

    def features(self, done: int, total: int) -> None:
        """Show how many images have their features."""
        self.feature_bar.show("features", done, total)


class RunProgress(_Bars, Listener):
    """Shows steps, time left, the last loss and the last balanced accuracy of one run.

    Args:
        folder: of the run, whose split is printed before the first step.
        console: to print it on.
    """

    def __init__(self, folder: RunFolder, console: Console) -> None:
        super().__init__()
        self.folder = folder
        self.console = console
        self.task = self.bars.add_task("", total=None, note="")
        self.last: dict[str, str] = {}
        self.total = 0

    def begin(self, first_step: int, total_steps: int) -> None:
        """Print the split, and show the bar."""
        self.feature_bar.close()
        print_split(self.folder.read_split(), self.console)
        if first_step:
            self.console.print(
                f"Resuming after step {first_step} of {total_steps}.", highlight=False
            )
        self.total = total_steps
        self.bars.update(self.task, total=total_steps, completed=first_step)
        self.bars.start()

    def step(self, step: int) -> None:
        """Move the bar."""
        note = ", ".join([f"{step + 1}/{self.total}", *self.last.values()])
        self.bars.update(self.task, completed=step + 1, note=note)

    def entry(self, entry: MetricsLine) -> None:
        """Show the last loss and accuracy: beside the bar, or as a line of its own."""
        if entry["kind"] == "note" and entry["message"] not in self.folder.read_split()["notes"]:
            when = f" at step {entry['step']}" if entry["step"] else ""
            self.console.print(verbatim(f"Note{when}: {entry['message']}"), soft_wrap=True)
        elif entry["kind"] == "train":
            self.last["loss"] = f"loss {entry['loss']:.3f}, {entry['steps_per_second']:.1f} steps/s"
        elif entry["kind"] == "eval":
            head = f"({entry['part']}, {entry['head']} head)"
            accuracy = f"{percent(entry['balanced_accuracy'])} balanced accuracy {head}"
            if entry["judged"]:  # one figure is enough beside the bar
                self.last["accuracy"] = accuracy
            if self.bars.disable:
                loss = f"{self.last['loss']}, " if "loss" in self.last else ""
                say(f"step {entry['step']} of {self.total}: {loss}{accuracy}", err=True)


def print_split(split: SplitFacts, console: Console) -> None:
    """Print classes, counts and notes of a split."""
    labeled = split["labeled_counts"] or []
    names = split["class_names"]
    pairs = list(zip(names, labeled, strict=True))
    shown = ", ".join(f"{name} {count}" for name, count in pairs[:CLASSES_COUNTED])
    if len(names) > CLASSES_COUNTED:
        shown += f" and {len(names) - CLASSES_COUNTED} more"
    counts = [
        f"{len(names)} classes",
        f"{sum(labeled)} labelled images ({shown})",
        f"{split['unlabeled']} unlabelled",
    ]
    for part in ("validation", "test"):
        images = split["test_counts"] if part == "test" else split["validation_counts"]
        if images:
            counts.append(f"{sum(images)} for {part}")
    notes = list(split["notes"])
    if not split["validation_counts"]:
        notes.append(
            "No validation images: the last step is used, since the best one is unknown. "
            "See --validation."
        )
    if not split["test_counts"]:
        notes.append("No test images: pass some to semigpc evaluate to measure the accuracy.")
    for line in (f"Found {', '.join(counts)}.", *(f"Note: {note}" for note in notes)):
        console.print(verbatim(line), soft_wrap=True)


class ComparisonProgress(_Bars, ComparisonListener):
    """One bar for all runs of a comparison and one per active run; elsewhere a line per run."""

    def __init__(self, total: int, title: str) -> None:
        super().__init__()
        self.all_runs = self.bars.add_task(title, total=total, note="")

    def run(self, cell: Cell, seed: int) -> Listener:
        """Return a bar for this run."""
        self.feature_bar.close()
        self.bars.start()
        task = self.bars.add_task(f"  {cell.label}, seed {seed}", total=None, note="")
        return _RunBar(self.bars, task)

    def done(self, cell: Cell, seed: int, summary: Mapping[str, Any], *, kept: bool) -> None:
        """Move the bar of all runs."""
        self._end(cell.label, seed)
        if self.bars.disable and not kept:
            result = judged_result(summary["results"])
            figure = "no figure"
            if result:
                figure = f"{percent(result['balanced_accuracy'])} balanced accuracy"
            say(f"{cell.label}, seed {seed}: {figure}, {summary['seconds']:.0f} s", err=True)

    def answer(self, row: Untrained, seed: int) -> ImagesDone:
        """Return what moves a bar for the embedding of images."""
        self.feature_bar.close()
        self.bars.start()
        task = self.bars.add_task(f"  {row.label}, seed {seed}", total=None, note="")
        return lambda done, total: self.bars.update(task, completed=done, total=total)

    def answered(self, row: Untrained, seed: int, record: UntrainedRecord, *, kept: bool) -> None:
        """Move the bar of all runs."""
        self._end(row.label, seed)
        if self.bars.disable and not kept:
            figure = percent(record["result"]["balanced_accuracy"])
            seconds = f"{record['seconds']:.0f} s"
            say(f"{row.label}, seed {seed}: {figure} balanced accuracy, {seconds}", err=True)

    def _end(self, label: str, seed: int) -> None:
        self.bars.advance(self.all_runs)
        for task in self.bars.tasks:
            if task.description == f"  {label}, seed {seed}":
                self.bars.remove_task(task.id)

    def advance(self, name: str) -> None:  # noqa: ARG002
        """Move the bar of all runs for a method that has no steps."""
        self.bars.advance(self.all_runs)


class _RunBar(Listener):
    """Shows one run of a comparison as a bar with its last balanced accuracy."""

    def __init__(self, bars: Progress, task: TaskID) -> None:
        self.bars = bars
        self.task = task

    def begin(self, first_step: int, total_steps: int) -> None:
        """Set the length of the bar."""
        self.bars.update(self.task, total=total_steps, completed=first_step)

    def step(self, step: int) -> None:
        """Move the bar."""
        self.bars.update(self.task, completed=step + 1)

    def entry(self, entry: MetricsLine) -> None:
        """Show the last accuracy."""
        if entry["kind"] == "eval" and entry["judged"]:
            self.bars.update(self.task, note=percent(entry["balanced_accuracy"]))
