"""``semigpc bench``: ratios measured side by side."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from semigpc.bench.update import OURS, PEERS, Record, bench_update, missing_peers
from semigpc.report.bench_figures import draw_update_curves

app = typer.Typer(help="Time semigpc against its peers, side by side in one run.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Time semigpc against its peers, side by side in one run."""


@app.command()
def update(
    size: Annotated[
        list[int] | None,
        typer.Option(help="Buffer size N; repeat for several. Without it: 1000 2000 4000 8000. The paper's is 16300.", min=64),
    ] = None,
    batch: Annotated[int, typer.Option(help="Rows replaced per step, B.", min=1)] = 8,
    classes: Annotated[int, typer.Option(help="Classes, C.", min=2)] = 10,
    steps: Annotated[int, typer.Option(help="Timed updates of ours and of the floor.", min=2)] = 32,
    budget: Annotated[float, typer.Option(help="Seconds after which a slow peer is not repeated again.", min=0)] = 20.0,
    seed: Annotated[int, typer.Option(help="Seed of the generated rows.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a record a size, on standard output.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write log-log curves to this PNG.", dir_okay=False)] = None,
) -> None:
    """Time one GP update: B rows replaced in a buffer of N.

    Ours stands beside a fresh inverse, a fresh Cholesky with a solve, the
    paper's block rule written plainly, scikit-learn and GPyTorch, and beside
    the floor: one product of the N x N matrix with B columns, which no exact
    method can avoid.

    Slow peers are repeated less often and never extrapolated. Ours is made for
    buffers of thousands: with a few hundred rows a fresh solve is as fast.
    """
    sizes = size or [1000, 2000, 4000, 8000]
    if batch >= min(sizes):
        raise typer.BadParameter(f"{batch} rows do not fit below the smallest size, {min(sizes)}.", param_hint="--batch")
    if plot is not None and not plot.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {plot.parent}.", param_hint="--plot")
    console = Console(stderr=True) if as_json else Console()
    for note in missing_peers():
        console.print(f"[yellow]{note}[/]")
    records: list[Record] = []
    with console.status("starting") as status:
        for n in sizes:
            records.append(
                bench_update(n, batch=batch, classes=classes, steps=steps, budget_s=budget, seed=seed, report=status.update)
            )
            console.print(_table(records[-1]))
    if plot is not None:
        draw_update_curves(records, OURS | PEERS, plot)
        console.print(f"Curves: {plot}")
    if as_json:
        typer.echo(json.dumps(records, indent=2))


def _table(record: Record) -> Table:
    title = f"One update, N = {record['size']}, B = {record['batch']}, C = {record['classes']}"
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("method")
    table.add_column("time", justify="right")
    table.add_column("time / ours", justify="right")
    table.add_column("repetitions", justify="right")
    for key, label in (OURS | PEERS).items():
        seconds = record.get(key)
        name = key.removesuffix("_s")
        if seconds is None:
            table.add_row(label, "not installed", "", "")
            continue
        ratio = float(seconds) / float(record["ours_s"] or 1)
        repetitions = str(record.get(f"repetitions_{name}") or record["steps"])
        style = "bold" if key == "ours_s" else ""
        table.add_row(label, f"{1e3 * float(seconds):.2f} ms", f"{ratio:.2f} x", repetitions, style=style)
    table.caption = (
        f"ours / floor {record['ratio_floor']:.2f} (median step {record['ratio_floor_median']:.2f}), "
        f"refining {record['ratio_floor_refined']:.2f}\n"
        f"extra memory {100 * float(record['peak_share'] or 0):.1f} % of N^2\n"
        f"error of the means {record['max_abs_error']:.1e}, refining {record['max_abs_error_refined']:.1e}"
    )
    return table
