"""What an engine tells of its own numerical health."""

from dataclasses import dataclass, fields
from typing import Any

WORSE, NOTABLE = 1.5, 0.02  # other landmarks when new rows are left unexplained by more than this factor, and share ...
APART = 8  # ... and at most so many times while the buffer turns over once
MEMORY = 0.9  # of the running share that new rows leave unexplained, a batch


@dataclass(kw_only=True)
class LowRankHealth:
    """What a low-rank engine knows of itself; counts are since it was made.

    Args:
        steps: calls that changed the buffer.
        choices: times that landmarks were chosen. landmarks: how many there are now, m.
        steps_since, rows_since: steps taken and rows written since the last choice. rows_chosen_from: rows held then.
        uncovered: share of k(x, x) that the landmarks leave unexplained, of the rows written lately ...
        uncovered_then: ... and of all rows when the landmarks were chosen.
    """

    steps: int = 0
    choices: int = 0
    landmarks: int = 0
    steps_since: int = 0
    rows_since: int = 0
    rows_chosen_from: int = 0
    uncovered: float = 0.0
    uncovered_then: float = 0.0

    def count(self, rows: int) -> None:
        """A change of so many rows."""
        self.steps += 1
        self.steps_since += 1
        self.rows_since += rows

    def cover(self, share: float) -> None:
        """New rows are left unexplained by this share."""
        self.uncovered = MEMORY * self.uncovered + (1 - MEMORY) * share

    def chosen(self, landmarks: int, rows: int) -> None:
        """Landmarks have been chosen among so many rows."""
        self.landmarks, self.choices = landmarks, self.choices + 1
        self.steps_since, self.rows_since, self.rows_chosen_from = 0, 0, rows

    def due(self, held: int, *, full: bool, every: int) -> bool:
        """Whether it is time for other landmarks, with ``held`` rows.

        As many rows have come as there were; with a schedule, ``every`` so many steps instead, once the buffer is full. Or new
        rows are covered badly.
        """
        if every and self.steps_since >= every:
            return True
        if self.rows_since >= self.rows_chosen_from and not (every and full):
            return True
        return self.uncovered > WORSE * self.uncovered_then + NOTABLE and self.rows_since * APART >= held

    def saved(self) -> list[float]:
        """All of it as numbers, in order."""
        return [float(getattr(self, field.name)) for field in fields(self)]

    @classmethod
    def restored(cls, numbers: list[float]) -> "LowRankHealth":
        """The inverse of :meth:`saved`."""
        values: dict[str, Any] = {field.name: number for field, number in zip(fields(cls), numbers, strict=True)}
        counts = {name: round(value) for name, value in values.items() if not name.startswith("uncovered")}
        return cls(**(values | counts))
