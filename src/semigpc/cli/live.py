"""A run as it goes on: a bar on a terminal, a line at every evaluation elsewhere; on standard error either way."""

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from semigpc.cli.feature_bar import FeatureBar
from semigpc.cli.tables import say, verbatim
from semigpc.training import Listener, RunFolder


class Live(Listener):
    """Shows steps, speed, time left, the last loss and the last balanced accuracy.

    Args:
        folder: of the run, whose split is told before the first step.
        console: where to tell it.
    """

    def __init__(self, folder: RunFolder, console: Console) -> None:
        self.folder, self.console = folder, console
        errors = Console(stderr=True)
        self.on_terminal = errors.is_terminal
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}", markup=False), TimeRemainingColumn())
        self.bar = Progress(*columns, console=errors, transient=True, disable=not self.on_terminal)
        self.task = self.bar.add_task("", total=None, said="")
        self.extraction = FeatureBar()
        self.last: dict[str, str] = {}
        self.total = 0

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.extraction.close()
        self.bar.stop()

    def features(self, done: int, total: int) -> None:
        """Show how many images have their features."""
        self.extraction.show(done, total)

    def begin(self, first_step: int, total_steps: int) -> None:
        """Say what was found, and show the bar."""
        self.extraction.close()
        tell_split(dict(self.folder.read_split()), self.console)
        if first_step:
            self.console.print(f"Resuming after step {first_step} of {total_steps}.", highlight=False)
        self.total = total_steps
        self.bar.update(self.task, total=total_steps, completed=first_step)
        self.bar.start()

    def step(self, step: int) -> None:
        """Move the bar."""
        self.bar.update(self.task, completed=step + 1)

    def entry(self, entry: dict[str, Any]) -> None:
        """Show the last loss and accuracy: beside the bar, or as a line of its own."""
        if entry["kind"] == "note" and entry["message"] not in self.folder.read_split()["notes"]:
            self.console.print(verbatim(f"Note: {entry['message']}"), soft_wrap=True)
        elif entry["kind"] == "train":
            self.last["loss"] = f"loss {entry['loss']:.3f}, {entry['steps_per_second']:.1f} steps/s"
        elif entry["kind"] == "eval":
            figure = f"{100 * entry['balanced_accuracy']:.1f} % balanced accuracy ({entry['part']}, {entry['head']} head)"
            if entry["head"] == "linear":  # one figure is enough beside the bar
                self.last["accuracy"] = figure
            if not self.on_terminal:
                said = ", ".join([*([self.last["loss"]] if "loss" in self.last else []), figure])
                say(f"step {entry['step']} of {self.total}: {said}", err=True)
        self.bar.update(self.task, said=", ".join(self.last.values()))


def tell_split(split: dict[str, Any], console: Console) -> None:
    """Classes, counts and notes of a split."""
    labeled = split["labeled_counts"]
    names = split["class_names"]
    shown = ", ".join(f"{name} {count}" for name, count in list(zip(names, labeled, strict=True))[:12])
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    told = [
        f"{len(names)} classes, {sum(labeled)} labelled images ({shown}{more}), {split['unlabeled']} unlabelled",
        *(f"{sum(split[f'{part}_counts'])} for {part}" for part in ("validation", "test") if split[f"{part}_counts"]),
    ]
    console.print(verbatim(f"Found {', '.join(told)}."), soft_wrap=True)
    notes = list(split["notes"])
    if not split["validation_counts"]:
        notes.append("No validation images: the best step cannot be told, so the last one counts. See --validation.")
    if not split["test_counts"]:
        notes.append("No test images: see --test." if split["validation_counts"] else "No test images either: see --test.")
    for note in notes:
        console.print(verbatim(f"Note: {note}"), soft_wrap=True)
