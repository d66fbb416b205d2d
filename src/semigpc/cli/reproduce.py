"""``semigpc reproduce``: a table of the paper, run cell by cell, our figures beside the published ones."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from semigpc.cli.failures import USAGE, reported
from semigpc.cli.tables import say, verbatim
from semigpc.cli.train import Features

if TYPE_CHECKING:
    from semigpc.recipes.paper import Options, PaperTable

WIDTH = 110  # characters, where nobody says how many there are


class Scale(StrEnum):
    """How much is run."""

    paper = "paper"
    cpu = "cpu"


def _help_without_a_table(context: typer.Context, table: str | None) -> str | None:
    if table is None and not context.params.get("listed"):
        from semigpc.recipes.paper import TABLES

        typer.echo(context.get_help())
        width = max(map(len, TABLES))
        typer.echo("\n".join(["Tables:", *(f"  {name:<{width}}  {entry.title}" for name, entry in TABLES.items())]))
        raise typer.Exit(USAGE)
    return table


@reported("reproduce")
def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            help="cifar10_lt, cifar100_lt, fgvc, balanced_cifar, algorithm_ablation or pretraining_ablation.",
            callback=_help_without_a_table,
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="Folder of the data, or a .zip of images; see docs.")
    ] = None,
    cell: Annotated[
        list[str], typer.Option("--cell", metavar="GLOB", help="Cells or groups to run, as in 'A/100/*'; repeat for more.")
    ] = [],  # noqa: B006 - typer reads it once
    algorithm: Annotated[
        list[str], typer.Option("--algorithm", metavar="NAME", help="Instead of the paper's; repeat for more.")
    ] = [],  # noqa: B006
    refiner: Annotated[
        list[str], typer.Option("--refiner", metavar="NAME", help="none and gp by default; similarity is there too.")
    ] = ["none", "gp"],  # noqa: B006
    labels_per_class: Annotated[
        int | None, typer.Option("--labels-per-class", metavar="N", min=1, help="In setting B; the paper has 4.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Seeds 0 to N - 1.")] = 3,
    scale: Annotated[Scale, typer.Option("--scale", help="In full, or cut to what a CPU can do.")] = Scale.paper,
    features: Annotated[
        Features, typer.Option("--features", help="At scale cpu: a small network, or a frozen one's features, kept.")
    ] = Features.live,
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="DIR", help="Folder of pre-trained weights; ROOT/weights by default.")
    ] = None,
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Any setting, for every cell that has it.")
    ] = [],  # noqa: B006
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Runs at a time.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for runs and pages; reproduced/TABLE-SCALE by default.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", is_eager=True, help="Only tell the cells and what each would cost; needs no data.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the recall of every class into this PNG.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")] = False,
) -> None:
    """Run a table of the paper, and print our figures beside the published ones.

    A table has groups of rows (A/100 is setting A with an imbalance ratio of
    100), and each group is a comparison on the same splits and seeds: labels
    only, the base algorithm, and the same with SemiGPC. Rows that the paper
    quotes from others are shown and not run.

    What was stopped goes on where it was: give the command again. Finished
    runs are kept, and figures.json in the output folder has all of it.

    What would it cost, and one cell of it:

      semigpc reproduce --list
      semigpc reproduce cifar10_lt --root data --cell 'B/100/*' --seeds 5

    The weights that the paper starts from are looked for in data/weights;
    what is missing is named with its address. Without a GPU:

      semigpc reproduce cifar10_lt --root data --scale cpu --seeds 3 --jobs 2
    """
    from semigpc.recipes.paper import Options, find_table

    options = Options(
        root=root or Path(),
        weights=weights,
        scale=scale.value,
        features=features.value,
        algorithms=tuple(algorithm),
        refiners=tuple(refiner),
        labels_per_class=labels_per_class,
        overrides=tuple(settings),
    )
    console = Console(stderr=as_json, width=None if Console(stderr=as_json).is_terminal else WIDTH)
    if listed:
        _tell_prices(table, options, cell, seeds, console, as_json=as_json)
    else:
        _run(find_table(table or ""), options, cell, seeds, root, out, jobs, plot, console, as_json=as_json)


def _run(
    table: "PaperTable",
    options: "Options",
    globs: list[str],
    seeds: int,
    root: Path | None,
    out: Path | None,
    jobs: int,
    plot: Path | None,
    console: Console,
    *,
    as_json: bool,
) -> None:
    """Run what is missing, and print what came out."""
    from semigpc.cli.comparison_bars import ComparisonProgress
    from semigpc.cli.reproduce_tables import gains_table, remarks, results_table
    from semigpc.recipes.reproduction import reproduce_table
    from semigpc.training import SettingError

    if root is None:
        raise SettingError("the data have to come from somewhere: give their folder by --root. Only --list needs none.")
    figures, path = reproduce_table(
        table,
        options,
        globs=globs,
        seeds=seeds,
        out=out,
        jobs=jobs,
        progress=ComparisonProgress,
        on_report=lambda page: say(f"report: {page}", err=as_json),
    )
    console.print(results_table(figures))
    console.print(gains_table(figures))
    for line in remarks(figures, table):
        console.print(verbatim(line), soft_wrap=True)
    say(f"figures: {path}", err=as_json)
    if plot is not None:
        from semigpc.report.comparison import draw_class_recall

        draw_class_recall(figures, plot)
        say(f"classes one by one: {plot}", err=as_json)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))


def _tell_prices(
    name: str | None, options: "Options", globs: list[str], seeds: int, console: Console, *, as_json: bool
) -> None:
    from semigpc.cli.reproduce_tables import price_remarks, price_table
    from semigpc.recipes.paper import TABLES, find_table, select
    from semigpc.recipes.reproduction import prices_of
    from semigpc.training import SettingError

    if name is None and globs:
        raise SettingError(f"--cell picks from one table: name it before --list. Known: {', '.join(TABLES)}.")
    prices = {}
    able = [table for table in TABLES.values() if options.scale == "paper" or not table.full_scale]
    for table in able if name is None else [find_table(name)]:
        prices[table.name] = prices_of(table, select(table.all_cells(options), globs), options.scale, seeds)
        console.print(price_table(prices[table.name]))
    for line in price_remarks(list(prices.values()), options.scale):
        console.print(verbatim(line), soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(prices, indent=2))
