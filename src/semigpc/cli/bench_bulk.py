"""``semigpc bench bulk``: partitions labelled on Ray, disturbed on the way, beside the local engine."""

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.stage_bar import StageBar


@reported("bench bulk")
def bulk(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to write partitions and labels; must not exist.")],
    rows: Annotated[int, typer.Option(help="Rows to label, M.", min=1000)] = 10_000_000,
    partitions: Annotated[int, typer.Option(help="Files that they are cut into.", min=4)] = 40,
    labels: Annotated[int, typer.Option(help="Labelled rows, N.", min=20)] = 500,
    width: Annotated[int, typer.Option(help="Numbers a row, D.", min=2)] = 32,
    classes: Annotated[int, typer.Option(help="Classes, C.", min=2)] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the generated rows.", min=0)] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the files where they are.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Label partitions on Ray, with a worker killed and a stop on the way.

    Generates a long tail, labels it by semigpc label --engine ray, kills a
    worker when a quarter is done, stops the command when half is, gives it
    again, labels the same rows by the local engine, and compares every row.
    Linux only; takes about 300 bytes of disk a row while it runs.

      semigpc bench bulk --rows 1000000 --out bulk --json
    """
    if out.exists():
        raise typer.BadParameter(f"{out} is there already; name a folder that is not.", param_hint="--out")
    if labels < classes * 2 or labels // partitions + classes > rows // partitions:
        raise typer.BadParameter(f"{labels} do not fit {classes} classes and {rows} rows.", param_hint="--labels")
    from semigpc.bench.bulk import bench_bulk

    try:
        with StageBar() as bar:
            record = bench_bulk(
                out,
                rows,
                partitions=partitions,
                labels=labels,
                width=width,
                classes=classes,
                seed=seed,
                report=bar.show,
            )
    finally:
        if not keep:
            shutil.rmtree(out, ignore_errors=True)
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        Console().print(_table(record))


def _table(record: dict[str, Any]) -> Table:
    ray, local, differ = record["ray"], record["local"], record["differences"]
    title = f"{record['rows']:,} rows of {record['width']} in {record['partitions']} partitions, {record['labels']:,} labels"
    table = Table(title=title, title_justify="left", caption_justify="left", show_header=False)
    table.add_row("Ray, with the stop", f"{ray['seconds']:,.0f} s, {ray['rows_per_s']:,.0f} rows a second")
    table.add_row("local", f"{local['seconds']:,.0f} s, {local['rows_per_s']:,.0f} rows a second")
    for name, rate in ray["rows_per_core_s"].items():
        table.add_row(f"Ray, {name}", f"{rate:,.0f} rows a second and core")
    table.add_row("worker killed", "yes" if ray["killed_worker"] else "no")
    kept = f"{ray['partitions_kept']} of {ray['partitions_when_stopped']} partitions kept after the stop"
    table.add_row("went on", kept if ray["complete"] else "not complete")
    differing = ", ".join(f"{name} {count}" for name, count in differ["rows_that_differ"].items())
    table.add_row("rows that differ", differing)
    return table
