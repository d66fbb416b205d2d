"""Progress of work that goes through several stages, on standard error."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from semigpc.cli.tables import say

EVERY_SECONDS = 30.0  # between lines where there is no terminal


class StageBar:
    """One bar at a time, for the stage that is under way; a line now and then where there is no terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self.on_terminal = console.is_terminal
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}", markup=False),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console, transient=True, disable=not self.on_terminal)
        self.task: TaskID | None = None
        self.stage = ""
        self.told = time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def show(self, stage: str, done: int, total: int | None) -> None:
        """So much of a stage is done, of how much if that is known."""
        count = f"{done:,}" + (f" of {total:,}" if total else "") if done else ""
        if stage != self.stage or self.task is None:
            if self.task is not None:
                self.bar.remove_task(self.task)
            self.stage, self.task = stage, self.bar.add_task(stage, total=total, count=count)
        self.bar.update(self.task, completed=done, total=total, count=count)
        now = time.monotonic()
        if not self.on_terminal and now - self.told > EVERY_SECONDS:
            self.told = now
            say(f"{stage}: {count}" if count else stage, err=True)
