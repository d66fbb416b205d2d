"""What a check of a data set found, figure by figure, beside what was published and what the paper says."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from semigpc.data.images import ImageError
from semigpc.threads import cores

Verdict = Literal["ok", "differs", "absent", "paper is wrong"]
Figure = int | str | None
Report = Callable[[str, int, int], None]  # what is being looked at, how many are done, of how many
AT_ONCE = 256  # images between two reports


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One figure.

    Args:
        what: it is of.
        found: in the files here; None if they are not there.
        expected: counted from the published files; None if those could not be looked at.
        paper: what the paper says, if it says anything.
        verdict: of ``found`` against ``expected``; of both against ``paper``.
        needed: whether the data are of no use without it.
    """

    what: str
    found: Figure
    expected: Figure
    paper: Figure = None
    verdict: Verdict
    needed: bool = False

    @property
    def fails(self) -> bool:
        """Whether somebody has to do something about it."""
        return self.verdict == "differs" or (self.verdict == "absent" and self.needed)


@dataclass(frozen=True, kw_only=True)
class Verification:
    """All findings of a data set, with sentences on those that need one, and every image that cannot be read."""

    name: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything that is there is as published, and everything that is needed is there."""
        return not any(finding.fails for finding in self.findings)


def judged(
    what: str,
    found: Figure,
    expected: Figure,
    paper: Figure = None,
    *,
    paper_agrees: bool | None = None,
    needed: bool = False,
) -> Finding:
    """A finding with its verdict. Where nothing was counted, what the paper says is expected.

    Args:
        what, found, expected, paper, needed: as in :class:`Finding`.
        paper_agrees: whether the paper's figure and the one counted mean the same, if equality does not tell.
    """
    reference = paper if expected is None else expected
    if paper_agrees is None:
        paper_agrees = paper is None or expected is None or paper == expected
    verdict: Verdict = "ok" if paper_agrees else "paper is wrong"
    if found is None:
        verdict = "absent"
    elif reference is not None and found != reference:
        verdict = "differs"
    return Finding(what=what, found=found, expected=expected, paper=paper, verdict=verdict, needed=needed)


def classes_told(classes: int, fewest: int, most: int) -> str:
    """``200 x 15..53``: so many classes, so many images of each."""
    return f"{classes} x {fewest}" if fewest == most else f"{classes} x {fewest}..{most}"


def counts_told(counts: Sequence[int]) -> str:
    """The same of the images of each class."""
    return classes_told(len(counts), min(counts, default=0), max(counts, default=0))


def unreadable(
    read: Callable[[int], Any], count: int, report: Report | None = None, *, workers: int | None = None
) -> list[str]:
    """Decode ``count`` images and answer with what is wrong with those that cannot be; all of them, not only the first.

    Args:
        read: decodes the image at a position, or raises :class:`ImageError`.
        count: how many there are.
        report: told now and then.
        workers: threads; as many as there are cores by default. Decoding does not hold the interpreter's lock.
    """

    def problem(position: int) -> str | None:
        try:
            read(position)
        except ImageError as error:
            return str(error).partition(" It may be ")[0].rstrip(".")
        return None

    problems: list[str] = []
    with ThreadPoolExecutor(workers or cores()) as pool:
        for first in range(0, count, AT_ONCE):
            chunk = range(first, min(first + AT_ONCE, count))
            problems += [found for found in pool.map(problem, chunk) if found]
            if report is not None:
                report("decoding", chunk.stop, count)
    return problems
