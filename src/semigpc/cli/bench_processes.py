"""``semigpc bench processes``: whether several processes do what one does."""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported


@reported("bench processes")
def processes(
    algorithm: Annotated[
        list[str] | None, typer.Option(help="See semigpc list algorithms; all without it. Repeat for several.", metavar="NAME")
    ] = None,
    devices: Annotated[int, typer.Option(help="Processes beside one.", min=2)] = 2,
    steps: Annotated[int, typer.Option(help="Of each run.", min=1)] = 50,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Of both runs, repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON on standard output.")] = False,
) -> None:
    """Train on digits in one process and in several, and compare.

    Losses of every step, weights at the end, and the rows in the GP's buffer,
    largest difference each. Sums are made in another order, so float32 runs
    drift apart; in float64 they should agree to the last digits:

      semigpc bench processes --algorithm fixmatch --set train.precision=64-true
    """
    from semigpc.algorithms import ALGORITHMS
    from semigpc.bench.processes import compare_processes
    from semigpc.text import unknown_name

    for name in algorithm or []:
        if name not in ALGORITHMS:
            raise typer.BadParameter(unknown_name("algorithm", name, ALGORITHMS), param_hint="--algorithm")
    console, records = Console(stderr=True), []
    with tempfile.TemporaryDirectory() as folder, console.status("starting") as status:
        for name in algorithm or list(ALGORITHMS):
            status.update(f"{name} in 1 and in {devices} processes")
            records.append(compare_processes(name, Path(folder), devices=devices, steps=steps, settings=settings or []))
    if as_json:
        typer.echo(json.dumps(records, indent=2))
        return
    table = Table(box=box.SIMPLE, title=f"1 and {devices} processes, {steps} steps: largest differences", title_style="bold")
    for heading in ("algorithm", "loss", "weights", "rows of the GP"):
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    for record in records:
        table.add_row(record["algorithm"], *(f"{record[key]:.1e}" for key in ("loss", "weights", "gp_rows")))
    Console().print(table)
