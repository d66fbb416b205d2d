"""Progress bars on standard error, and lines now and then where there is no terminal."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from semigpc.cli.tables import say

LINE_EVERY = 30.0  # seconds between lines without a terminal: enough to see that it continues


def progress_bars() -> Progress:
    """Return bars with a description, a note (the field ``note``) and the time left.

    They disappear at the end; without a terminal they show nothing.
    """
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class StageBar:
    """Show one bar for the current stage; nothing before the first call of :meth:`show`.

    Args:
        unit: what is counted, for the lines printed instead of the bar without a terminal.
        line_at_end: print such a line at the end of every stage too.
    """

    def __init__(self, unit: str = "", *, line_at_end: bool = False) -> None:
        self.unit = f" {unit}" if unit else ""
        self.line_at_end = line_at_end
        self.bars = progress_bars()
        self.task: TaskID | None = None
        self.stage = ""
        self.began = self.last_line = 0.0  # seconds of the clock

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def show(self, stage: str, done: int, total: int | None) -> None:
        """Show how much of a stage is done, of ``total`` if known; with total 0 print its name."""
        if total == 0:
            self.close()
            say(stage, err=True)
            return
        now = time.monotonic()
        if stage != self.stage or self.task is None:
            self.close()
            self.bars.start()
            self.stage = stage
            self.task = self.bars.add_task(stage, total=total, note="")
            self.began = self.last_line = now
        note = f"{done:,}" if done else ""
        if total:
            note = f"{done:,} of {total:,}"
        self.bars.update(self.task, completed=done, total=total, note=note)
        at_end = self.line_at_end and done == total
        if self.bars.disable and (at_end or now - self.last_line > LINE_EVERY):
            self.last_line = now
            left = ""
            if total and done:
                left = f", {(now - self.began) * (total - done) / done:.0f} s left"
            say(f"{stage}: {note}{self.unit}{left}" if note else stage, err=True)

    def counter(self, stage: str, total: int) -> Callable[..., None]:
        """Return a function that advances the bar of this stage, by 1 unless told otherwise."""
        done = 0

        def advance(by: int = 1) -> None:
            nonlocal done
            done += by
            self.show(stage, done, total)

        return advance

    def close(self) -> None:
        """Remove the bar; another one may follow."""
        self.bars.stop()
        if self.task is not None:
            self.bars.remove_task(self.task)
            self.task = None
