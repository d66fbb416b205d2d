"""``semigpc bench``: ratios measured side by side."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from semigpc.cli.bench_bulk import bulk
from semigpc.cli.bench_engines import engines
from semigpc.cli.bench_estimator import estimator
from semigpc.cli.bench_field import field
from semigpc.cli.bench_kernels import kernels
from semigpc.cli.bench_label import label
from semigpc.cli.bench_processes import processes
from semigpc.cli.bench_screening import screening
from semigpc.cli.tables import say, verbatim

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
    rows: Annotated[
        str,
        typer.Option(
            metavar="KIND|FILE",
            help="stream (a half-trained network), clusters (late in training), or a table of semigpc embed.",
        ),
    ] = "stream",
    batch: Annotated[int, typer.Option(help="Rows replaced per step, B.", min=1)] = 8,
    peers: Annotated[bool, typer.Option(help="Whether to time the other methods too.")] = True,
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

    For example:

      semigpc bench update --size 4000 --size 16300
      semigpc bench update --rows photos.parquet --size 8000 --no-peers
    """
    from semigpc.bench.update import OURS, PEERS, Record, bench_update, embedded_stream, generated_stream, missing_peers
    from semigpc.cli.bench_tables import update_table
    from semigpc.report.bench_figures import draw_update_curves

    sizes = size or [1000, 2000, 4000, 8000]
    if batch >= min(sizes):
        raise typer.BadParameter(f"{batch} rows do not fit below the smallest size, {min(sizes)}.", param_hint="--batch")
    if plot is not None and not plot.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {plot.parent}.", param_hint="--plot")
    console = Console(stderr=True) if as_json else Console()
    if rows in ("stream", "clusters"):
        spread, width = (1.0, 384) if rows == "stream" else (0.1, 1280)
        stream = generated_stream(max(sizes) + 2048, spread=spread, width=width, seed=seed)
    elif not Path(rows).is_file():
        raise typer.BadParameter(f"neither stream nor clusters, and there is no file {rows}.", param_hint="--rows")
    else:
        stream = embedded_stream(Path(rows), seed=seed)
        if len(stream.features) < max(sizes):
            raise typer.BadParameter(f"{rows} has {len(stream.features)} rows; the largest size is {max(sizes)}.")
    for note in missing_peers() if peers else []:
        console.print(f"[yellow]{note}[/]")
    records: list[Record] = []
    with console.status("starting") as status:
        for n in sizes:
            records.append(
                bench_update(n, stream, batch=batch, steps=steps, budget_s=budget, peers_too=peers, report=status.update)
            )
            console.print(update_table(records[-1]))
    if plot is not None:
        draw_update_curves(records, OURS | PEERS, plot)
        console.print(verbatim(f"Curves: {plot}"))
    if as_json:
        typer.echo(json.dumps(records, indent=2))


@app.command()
def step(
    model: Annotated[str, typer.Option(help="Network for images of 32 x 32.", metavar="NAME")] = "vit_tiny_patch2_32",
    algorithm: Annotated[str, typer.Option(help="Algorithm, with and without the GP.", metavar="NAME")] = "fixmatch",
    buffer: Annotated[int, typer.Option(help="Buffer size N; the buffer is full.", min=64)] = 2048,
    batch: Annotated[int, typer.Option(help="Labelled and unlabelled images a step, B.", min=1)] = 8,
    repetitions: Annotated[int, typer.Option(help="Timed steps of each kind.", min=2)] = 10,
    workers: Annotated[int, typer.Option(help="Processes that load images.", min=0)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of images and weights.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Time a whole training step with the GP and without it.

    Both see the same batch in turns: forward, pseudo-labels, backward,
    optimiser, and the GP's query and update with a full buffer. Then the loop
    runs on its real loader, to see how long a step waits for its images.
    """
    from semigpc.algorithms import ALGORITHMS
    from semigpc.bench.step import bench_step
    from semigpc.text import unknown_name

    if algorithm not in ALGORITHMS:
        raise typer.BadParameter(unknown_name("algorithm", algorithm, ALGORITHMS), param_hint="--algorithm")
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("Steps", total=3 * repetitions)
        times = bench_step(
            model=model,
            algorithm=algorithm,
            buffer_size=buffer,
            batch=batch,
            repetitions=repetitions,
            workers=workers,
            seed=seed,
            advance=lambda: progress.advance(task),
        )
    if as_json:
        typer.echo(json.dumps(times._asdict()))
    else:
        say(
            f"{algorithm} on {model}, B = {batch}: {times.base_s:.3f} s a step, {times.gp_s:.3f} s with a GP over {buffer} "
            f"rows, ratio {times.ratio:.3f}; {times.data_wait_share:.1%} of a step waits for data (fastest of {repetitions})."
        )


app.command()(engines)
app.command()(estimator)
app.command()(field)
app.command()(kernels)
app.command()(label)
app.command()(processes)
app.command()(screening)
app.command()(bulk)
