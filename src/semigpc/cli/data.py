"""``semigpc data``: download the paper's data sets, and verify them against what was published."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.options import AsJson
from semigpc.cli.progress import StageBar
from semigpc.cli.tables import say, table, verbatim

if TYPE_CHECKING:
    from semigpc.paper.verify import CheckedFigure, Verification

MEGABYTE = 10**6  # bytes
CIFAR = {"cifar10": 10, "cifar100": 100}
STYLES = {"ok": "green", "differs": "bold red", "absent": "yellow", "paper is wrong": "cyan"}

app = typer.Typer(help="Check or download the data sets of the paper.", no_args_is_help=True)


Which = Annotated[
    Literal["semi_aves", "semi_fungi", "semi_inat", "cub", "cifar10", "cifar100"],
    typer.Argument(help="Data set."),
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
        typer.Argument(help="Folder with a folder of that name, or a .zip of CIFAR.", exists=True),
    ],
    splits: Annotated[
        Path | None,
        typer.Option(
            "--splits", metavar="DIR", help="Folder with NAME/*.txt, if not beside the images."
        ),
    ] = None,
    images: Annotated[
        Literal["none", "exist", "decode"],
        typer.Option("--images", help="Also check that images exist, or can be decoded."),
    ] = "none",
    as_json: AsJson = False,
) -> None:
    """Verify a published set: counts, hashes, parts, images.

    Every figure is printed beside the one counted from the published files
    and beside the paper's. Missing files are reported as absent; only labels
    and test are needed. The exit code is 1 if something differs.

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
            verification = verify_cifar(CIFAR[name], root, decode=decode, report=bar.show)
        else:
            exist = images != "none"
            verification = verify_fgvc(
                name, root, splits=splits, exist=exist, decode=decode, report=bar.show
            )
    if as_json:
        typer.echo(json.dumps({"ok": verification.ok, **asdict(verification)}, indent=2))
    else:
        _print_verification(verification)
    if not verification.ok:
        raise typer.Exit(1)


@app.command()
@reported("data download")
def download(
    name: Which,
    root: Annotated[Path, typer.Argument(help="Folder to put a folder of that name into.")],
) -> None:
    """Download CIFAR, or print how to get the fine-grained sets.

    The archive is checked against its md5 sum. The pages of the
    fine-grained sets require a click or an account, so this prints which
    files to fetch, and where to put them.
    """
    from semigpc.data.cifar import ARCHIVES, fetch
    from semigpc.io.errors import DataError
    from semigpc.paper.fgvc import BENCHMARKS

    if name not in ARCHIVES:
        raise DataError(BENCHMARKS[name].instructions(name, root))
    source = ARCHIVES[name]
    folder = root.expanduser() / name
    if (folder / source.folder).is_dir():
        say(f"{folder / source.folder} exists. To check it: semigpc data verify {name} {root}")
        return
    with StageBar("MB") as bar:
        unpacked = fetch(
            source,
            folder,
            lambda done, size: bar.show(source.file_name, done // MEGABYTE, size // MEGABYTE),
        )
    say(f"{name} is in {unpacked}")


def _print_verification(verification: "Verification") -> None:
    console = Console()
    console.print(_table(verification.findings))
    for line in (*verification.notes, *verification.unreadable):
        console.print(verbatim(line), soft_wrap=True)
    failed = sum(finding.fails for finding in verification.findings)
    absent = sum(finding.verdict == "absent" for finding in verification.findings)
    verdict = "Everything found is as published"
    if failed:
        verdict = f"{failed} of {len(verification.findings)} figures differ or are missing"
    console.print(verdict + (f"; absent: {absent}." if absent else "."), highlight=False)


def _table(findings: "list[CheckedFigure]") -> Table:
    made = table("", "what", "found", "expected", "paper says", "verdict")
    for column in made.columns[1:4]:
        column.justify = "right"  # numbers, and hashes that have to be broken into lines
    for finding in findings:
        needed = ", needed" if finding.needed and finding.verdict == "absent" else ""
        figures = (finding.found, finding.expected, finding.paper)
        values = ["-" if value is None else value for value in figures]
        verdict = f"[{STYLES[finding.verdict]}]{finding.verdict}{needed}[/]"
        made.add_row(verbatim(finding.what), *map(verbatim, values), verdict)
    return made
