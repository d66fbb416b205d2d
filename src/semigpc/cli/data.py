"""``semigpc data``: are the published sets here what was published, and how does one come by them?"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from semigpc.cli.failures import reported
from semigpc.cli.tables import say, verbatim

if TYPE_CHECKING:
    from semigpc.data.verify import Figure, Finding, Report, Verification

CIFAR = {"cifar10": 10, "cifar100": 100}
STYLES = {"ok": "green", "differs": "bold red", "absent": "yellow", "paper is wrong": "cyan"}

app = typer.Typer(help="Check or fetch the data sets of the paper.", no_args_is_help=True)


class Name(StrEnum):
    """A published set."""

    semi_aves = "semi_aves"
    semi_fungi = "semi_fungi"
    semi_inat = "semi_inat"
    cub = "cub"
    cifar10 = "cifar10"
    cifar100 = "cifar100"


class Images(StrEnum):
    """How closely to look at the images."""

    none = "none"
    exist = "exist"
    decode = "decode"


Which = Annotated[Name, typer.Argument(help="The set.")]


@app.callback()
def data() -> None:
    """Check or fetch the data sets of the paper."""


@app.command()
@reported("data verify")
def verify(
    name: Which,
    root: Annotated[Path, typer.Argument(help="Folder with a folder of that name, or a .zip copy of CIFAR.", exists=True)],
    splits: Annotated[
        Path | None, typer.Option("--splits", metavar="DIR", help="Folder with NAME/*.txt, if not beside the images.")
    ] = None,
    images: Annotated[
        Images, typer.Option("--images", help="Look whether every listed image is there, and can be decoded.")
    ] = Images.none,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON on standard output.")] = False,
) -> None:
    """Check a published set: counts, hashes, parts, images.

    Every figure stands beside the one counted from the published files and
    beside the paper's. Files that are not there are told as absent; only
    labels and test are needed. The exit code is 1 if something differs.

    For example:

      semigpc data verify semi_aves data --images exist
      semigpc data verify cifar10 data
    """
    from semigpc.data.verify import verify_cifar, verify_fgvc

    decode = images is Images.decode
    with _bar() as report:
        if name.value in CIFAR:
            if splits is not None:
                raise typer.BadParameter("CIFAR has no split files; leave it out.", param_hint="--splits")
            found = verify_cifar(CIFAR[name.value], root, decode=decode, report=report)
        else:
            exist = images is not Images.none
            found = verify_fgvc(name.value, root, splits=splits, exist=exist, decode=decode, report=report)
    if as_json:
        typer.echo(json.dumps({"ok": found.ok, **asdict(found)}, indent=2))
    else:
        _tell(found)
    if not found.ok:
        raise typer.Exit(1)


@app.command()
@reported("data download")
def download(name: Which, root: Annotated[Path, typer.Argument(help="Folder to put a folder of that name into.")]) -> None:
    """Fetch CIFAR, or say how to come by the fine-grained sets.

    A download that broke off goes on where it stopped. The fine-grained sets
    are on pages that want a click or an account: for those this prints what
    to fetch, and where to put it.
    """
    from rich.progress import DownloadColumn, TransferSpeedColumn

    from semigpc.data import DataError
    from semigpc.data.archives import ARCHIVES, fetch
    from semigpc.data.published_counts import BENCHMARKS

    if name.value not in ARCHIVES:
        raise DataError(BENCHMARKS[name.value].instructions(name.value, root))
    source, folder = ARCHIVES[name.value], root.expanduser() / name.value
    if (folder / source.folder).is_dir():
        say(f"{folder / source.folder} is there already. Check it with: semigpc data verify {name.value} {root}")
        return
    errors = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(source.file_name, total=source.size)
        unpacked = fetch(source, folder, lambda there, size: bar.update(task, completed=there, total=size))
    say(f"{name.value} is in {unpacked}")


@contextmanager
def _bar() -> Iterator["Report"]:
    """A bar with the time left, shown once there is something to wait for; on a terminal only."""
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield report


def _tell(found: "Verification") -> None:
    console = Console()
    console.print(_table(found.findings))
    for line in (*found.notes, *found.unreadable):
        console.print(verbatim(line), soft_wrap=True)
    failed = sum(finding.fails for finding in found.findings)
    absent = sum(finding.verdict == "absent" for finding in found.findings)
    verdict = f"{failed} of {len(found.findings)} figures must be looked at" if failed else "Everything found is as published"
    console.print(verdict + (f"; absent: {absent}." if absent else "."), highlight=False)


def _table(findings: "tuple[Finding, ...]") -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1))
    for heading in ("what", "found", "expected", "paper says", "verdict"):
        table.add_column(heading, justify="left" if heading in ("what", "verdict") else "right", overflow="fold")
    for finding in findings:
        needed = ", needed" if finding.needed and finding.verdict == "absent" else ""
        verdict = f"[{STYLES[finding.verdict]}]{finding.verdict}{needed}[/]"
        table.add_row(
            verbatim(finding.what), *(_cell(value) for value in (finding.found, finding.expected, finding.paper)), verdict
        )
    return table


def _cell(value: "Figure") -> Text:
    return verbatim("-" if value is None else value)
