"""``semigpc bench label``: how fast a table is labelled."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported
from semigpc.cli.stage_bar import StageBar


@reported("bench label")
def label(
    rows: Annotated[int, typer.Option(help="Rows to label, M.", min=1)] = 1_000_000,
    labels: Annotated[int, typer.Option(help="Labelled rows, N.", min=2)] = 2000,
    width: Annotated[int, typer.Option(help="Numbers a row, D.", min=2)] = 384,
    classes: Annotated[int, typer.Option(help="Classes, C.", min=2)] = 20,
    correction_labels: Annotated[
        int, typer.Option(help="Labelled rows of the model that is corrected; 0 leaves corrections out.", min=0)
    ] = 16_000,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Whether to try scikit-learn's classifiers.")] = True,
    peer_seconds: Annotated[float, typer.Option(help="Seconds that a peer may take for one size.", min=0)] = 60.0,
    peer_gb: Annotated[float, typer.Option(help="Gigabytes of RAM that a peer's process may hold.", min=0)] = 4.0,
    seed: Annotated[int, typer.Option(help="Seed of the generated rows.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Time the labelling of a table against the products it needs.

    Class, confidence, variance, status and the three weightiest reasons of
    every row stand beside the floor: the kernel's matrix product with its exp,
    the mean, and the triangular solve for the variance, run bare in turns.

    LabelSpreading and SelfTraining get more and more rows until time, memory
    or NaN stops them. A correction is one label more in a model of 16 000,
    until 1000 rows are scored again; to build that model takes a minute.

      semigpc bench label --rows 100000 --correction-labels 0 --no-peers
    """
    if labels < classes or 0 < correction_labels < classes:
        raise typer.BadParameter(f"{classes} classes need a labelled row each.", param_hint="--classes")
    from semigpc.bench.label import bench_label
    from semigpc.bench.label_peers import Budget

    with StageBar() as bar:
        record = bench_label(
            rows,
            labels=labels,
            width=width,
            classes=classes,
            peers=peers,
            budget=Budget(peer_seconds, int(peer_gb * 1e9)),
            correction_labels=correction_labels,
            seed=seed,
            report=bar.show,
        )
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        Console().print(_table(record))


def _table(record: dict[str, Any]) -> Table:
    title = f"{record['rows']:,} rows of {record['width']}, {record['labels']:,} labels, {record['classes']} classes"
    table = Table(title=title, title_justify="left", caption_justify="left")
    for heading in ("", "rows a second", "floor", "time / floor"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, figures in (("with variance", record), ("without", record["without_variance"])):
        rates = (f"{figures['rows_per_s']:,.0f}", f"{figures['floor_rows_per_s']:,.0f}", f"{figures['ratio']:.2f}")
        table.add_row(f"semigpc, {name}", *rates)
    for name, peer in (record["peers"] or {}).items():
        table.add_row(f"{name}, {peer['rows']:,} rows", f"{peer['rows_per_s'] or 0:,.0f}", "", _end(peer))
    notes = [f"error {record['max_abs_error']:.1e}"]
    if record["peak_bytes"] is not None:
        notes.insert(0, f"{record['peak_bytes'] / 1e6:,.0f} MB beyond the input")
    if record["correction"]:
        correction = record["correction"]
        notes.append(f"a correction among {correction['labels']:,} labels takes {correction['seconds']:.2f} s")
    table.caption = "; ".join(notes)
    return table


def _end(peer: dict[str, Any]) -> str:
    return f"{peer['stopped']} at {peer['stopped_at']:,}" if peer["stopped"] else "all rows"
