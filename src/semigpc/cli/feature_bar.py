"""Progress of computing features, on standard error."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from semigpc.cli.tables import say

EVERY_SECONDS = 30.0  # between lines where there is no terminal


class FeatureBar:
    """A bar with the time left on a terminal, a line now and then elsewhere; nothing if all features are there already."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self.on_terminal = console.is_terminal
        columns = (TextColumn("features"), BarColumn(), MofNCompleteColumn(), TextColumn("images"), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, transient=True, disable=not self.on_terminal)
        self.task: TaskID | None = None
        self.began = self.told = time.monotonic()

    def show(self, done: int, total: int) -> None:
        """So many images of those that were missing are done."""
        if self.task is None:
            self.bar.start()
            self.task = self.bar.add_task("", total=total)
            self.began = self.told = time.monotonic()
        self.bar.update(self.task, completed=done, total=total)
        now = time.monotonic()
        if not self.on_terminal and (done == total or now - self.told > EVERY_SECONDS):
            self.told = now
            left = (now - self.began) * (total - done) / done
            say(f"features: {done} of {total} images, {left:.0f} s left", err=True)

    def close(self) -> None:
        """Take the bar away; another one may follow."""
        self.bar.stop()
        if self.task is not None:
            self.bar.remove_task(self.task)
            self.task = None
