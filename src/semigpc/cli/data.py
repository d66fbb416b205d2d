"""``semigpc data``: check the published data sets against what was published, and download them."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import AsJson, say, table, verbatim

if TYPE_CHECKING:
    from semigpc.paper.verify import CheckedFigure, Verification

MEGABYTE = 10**6  # bytes
CIFAR = {"cifar10": 10, "cifar100": 100}
STYLES = {"ok": "green", "differs": "bold red", "absent": "yellow", "paper is wrong": "cyan"}

app = typer.Typer(help="Check or download the data sets of the paper.", no_args_is_help=True)


Which = Annotated[
    Literal["semi_aves", "semi_fungi", "semi_inat", "cub", "cifar10", "cifar100"],
    typer.Argument(help="The set."),
]


@app.callback()
def data() -> None:
    """Check or download the data sets of the paper."""


@app.command()
@reported("data verify")
def verify(
    name: Which,
    root: Annotated[
        Path,
        typer.Argument(
            help="Folder with a folder of that name, or a .zip copy of CIFAR.", exists=True
        ),
    ],
    splits: Annotated[
        Path | None,
        typer.Option(
            "--splits", metavar="DIR", help="Folder with NAME/*.txt, if not beside the images."
        ),
    ] = None,
    images: Annotated[
        Literal["none", "exist", "decode"],
        typer.Option("--images", help="Check that images are there, or can be decoded."),
    ] = "none",
    as_json: AsJson = False,
) -> None:
    """Check a published set: counts, hashes, parts, images.

    Every figure stands beside the one counted from the published files and
    beside the paper's. Files that are not there are reported as absent; only
    labels and test are needed. The exit code is 1 if something differs.

    For example:

      semigpc data verify semi_aves data --images exist
      semigpc data verify cifar10 data
    """
    from semigpc.paper.verify import verify_cifar, verify_fgvc

    decode = images == "decode"
    with StageBar() as bar:
        if name in CIFAR:
            if splits is not None:
                raise typer.BadParameter(
                    "CIFAR has no split files; leave it out.", param_hint="--splits"
                )
            found = verify_cifar(CIFAR[name], root, decode=decode, report=bar.show)
        else:
            exist = images != "none"
            found = verify_fgvc(
                name, root, splits=splits, exist=exist, decode=decode, report=bar.show
            )
    if as_json:
        typer.echo(json.dumps({"ok": found.ok, **asdict(found)}, indent=2))
    else:
        _tell(found)
    if not found.ok:
        raise typer.Exit(1)


@app.command()
@reported("data download")
def download(
    name: Which,
    root: Annotated[Path, typer.Argument(help="Folder to put a folder of that name into.")],
) -> None:
    """Download CIFAR, or say how to get the fine-grained sets.

    A download that broke off resumes where it stopped. The fine-grained sets
    are on pages that want a click or an account: for those this prints what
    to fetch, and where to put it.
    """
    from semigpc.data.cifar import ARCHIVES, fetch
    from semigpc.io.errors import DataError
    from semigpc.paper.fgvc import BENCHMARKS

    if name not in ARCHIVES:
        raise DataError(BENCHMARKS[name].instructions(name, root))
    source, folder = ARCHIVES[name], root.expanduser() / name
    if (folder / source.folder).is_dir():
        say(
            f"{folder / source.folder} is there already. Check it with: semigpc data verify {name} {root}"
        )
        return
    with StageBar("MB") as bar:
        unpacked = fetch(
            source,
            folder,
            lambda done, size: bar.show(source.file_name, done // MEGABYTE, size // MEGABYTE),
        )
    say(f"{name} is in {unpacked}")


def _tell(found: "Verification") -> None:
    console = Console()
    console.print(_table(found.findings))
    for line in (*found.notes, *found.unreadable):
        console.print(verbatim(line), soft_wrap=True)
    failed = sum(finding.fails for finding in found.findings)
    absent = sum(finding.verdict == "absent" for finding in found.findings)
    verdict = (
        f"{failed} of {len(found.findings)} figures must be looked at"
        if failed
        else "Everything found is as published"
    )
    console.print(verdict + (f"; absent: {absent}." if absent else "."), highlight=False)


def _table(findings: "list[CheckedFigure]") -> Table:
    made = table("", "what", "found", "expected", "paper says", "verdict")
    for column in made.columns[1:4]:
        column.justify = "right"  # numbers, and hashes that have to be broken into lines
    for finding in findings:
        needed = ", needed" if finding.needed and finding.verdict == "absent" else ""
        values = (
            "-" if value is None else value
            for value in (finding.found, finding.expected, finding.paper)
        )
        verdict = f"[{STYLES[finding.verdict]}]{finding.verdict}{needed}[/]"
        made.add_row(verbatim(finding.what), *map(verbatim, values), verdict)
    return made
