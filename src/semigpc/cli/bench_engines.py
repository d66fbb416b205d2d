"""``semigpc bench engines``: what each engine costs, and how far it is from the exact one."""

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from semigpc.cli.failures import reported


class Part(StrEnum):
    """What is measured."""

    sizes = "sizes"
    ranks = "ranks"
    peers = "peers"
    large = "large"
    matrix_free = "matrix_free"
    run = "run"


@reported("bench engines")
def engines(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON of all parts; what it holds is not run again.")],
    embeddings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="Of train/CLASS and test/CLASS images, by semigpc embed."
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", exists=True, file_okay=False, help="A run folder whose buffer to look at.")
    ] = None,
    part: Annotated[list[Part] | None, typer.Option(help="Only this part; repeat for several.")] = None,
    size: Annotated[list[int] | None, typer.Option(help="Buffer size N of the first part; repeat for several.", min=64)] = None,
    rank: Annotated[int, typer.Option(help="Landmarks of the low-rank engine, and of the preconditioner.", min=1)] = 1024,
    steps: Annotated[int, typer.Option(help="Timed updates of each engine.", min=2)] = 32,
    seed: Annotated[int, typer.Option(help="Seed of rows and landmarks.", min=0)] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw time and error to this PNG.", dir_okay=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON on standard output.")] = False,
) -> None:
    """Compare the exact, low-rank, ensemble and matrix-free engines.

    sizes: seconds an update and distance from the exact mean, over N.
    ranks: that distance by rank, N = 16300, at one, two and four times the
    length-scale that leave-one-out picks. peers: scikit-learn's Nystroem and
    Ridge on the same landmarks. large: the low-rank engine over a million rows.
    matrix_free: iterations of a cold and of warm starts, N = 50000. run: how
    few landmarks would carry the buffer of a run, given by --run.

    All of it takes an hour on two cores, and goes on where it was stopped:

      semigpc embed cifar10 --image-size 96 --out cifar10.parquet
      semigpc bench engines --embeddings cifar10.parquet --out engines.json
      semigpc bench engines --part sizes --size 1000 --size 2000 --out e.json
      semigpc bench engines --part run --run runs/digits-gp --out e.json --json
    """
    from semigpc.bench.engine_peers import peers
    from semigpc.bench.engine_runs import run_buffer
    from semigpc.bench.engines import Study, large, matrix_free, ranks, sizes

    for option, path in (("--out", out), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent}.", param_hint=option)
    if run is None and Part.run in (part or []):
        raise typer.BadParameter("the part run needs --run RUN.", param_hint="--part")
    console = Console(stderr=True)
    records: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    with console.status("starting") as status:
        study = Study(embeddings, seed, _teller(console, status.update))
        runs: dict[Part, Callable[[], Any]] = {
            Part.sizes: lambda: sizes(study, wanted=size or [1000, 2000, 4000, 8000, 16300], rank=rank, steps=steps),
            Part.ranks: lambda: ranks(study, size=16_300, wanted=[256, 512, 1024, 2048, 4096]),
            Part.peers: lambda: peers(study, size=16_300, rank=rank, repetitions=5),
            Part.large: lambda: large(study, size=1_000_000, rank=rank, steps=steps),
            Part.matrix_free: lambda: matrix_free(study, size=50_000, rank=rank, steps=8, tolerance=1e-3),
        }
        if run is not None:
            runs[Part.run] = lambda: run_buffer(run, wanted=[32, 64, 128, 256, 512, 1024], seed=seed)
        for name, measure in runs.items():
            if name in (part or list(Part)) and name.value not in records:
                records[name.value] = measure()
                out.write_text(json.dumps(records, indent=2) + "\n")
    if plot is not None:
        from semigpc.report.engine_figures import draw_engines

        draw_engines(records, plot)
        console.print(f"Curves: {plot}")
    if as_json:
        typer.echo(json.dumps(records, indent=2))
        return
    for record in records.get(Part.sizes, []):
        Console().print(_table(record))


def _teller(console: Console, show: Callable[[str], None]) -> Callable[[str], None]:
    """On a terminal the line that moves; elsewhere a line each."""
    return show if console.is_terminal else lambda text: console.print(text, highlight=False)


def _table(record: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE, title=f"N = {record['size']}, rank {record['rank']}", title_style="bold")
    for heading in ("engine", "s / update", "distance from exact", "same class", "accuracy"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    for name, figures in record["engines"].items():
        table.add_row(
            name,
            f"{figures['update_s']:.4f}",
            f"{figures['mean_difference']:.2g}",
            f"{figures['same_class']:.1%}",
            f"{figures['accuracy']:.1%}",
        )
    return table
