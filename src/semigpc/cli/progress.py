"""Progress bars, on standard error: one look for all verbs, and lines now and then where there is
no terminal.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from semigpc.cli.tables import say

LINE_EVERY = 30.0  # seconds between lines where there is no terminal: enough to see that it goes on


def progress_bars() -> Progress:
    """Return bars with a description, a note (the field ``note``) and the time left, which
    disappear at the end.

    Without a terminal they show nothing.
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
    """Show one bar, for the stage that is under way; nothing before the first call of :meth:`show`.

    Args:
        unit: what is counted, for the lines that stand for the bar where there is no terminal.
        line_at_end: print such a line at the end of a stage too, however short it was.
    """

    def __init__(self, unit: str = "", *, line_at_end: bool = False) -> None:
        self.unit, self.line_at_end = f" {unit}" if unit else "", line_at_end
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
        """Show how much of a stage is done, and of how much if that is known; with 0 its name is a
        message that stays.
        """
        if total == 0:
            self.close()
            say(stage, err=True)
            return
        now = time.monotonic()
        if stage != self.stage or self.task is None:
            self.close()
            self.bars.start()
            self.stage, self.task = stage, self.bars.add_task(stage, total=total, note="")
            self.began = self.last_line = now
        note = f"{done:,} of {total:,}" if total else f"{done:,}" if done else ""
        self.bars.update(self.task, completed=done, total=total, note=note)
        at_end = self.line_at_end and done == total
        if self.bars.disable and (at_end or now - self.last_line > LINE_EVERY):
            self.last_line = now
            left = (
                f", {(now - self.began) * (total - done) / done:.0f} s left"
                if total and done
                else ""
            )
            say(f"{stage}: {note}{self.unit}{left}" if note else stage, err=True)

    def counter(self, stage: str, total: int) -> Callable[..., None]:
        """Return a function that moves the bar of this stage by its argument, one without."""
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
