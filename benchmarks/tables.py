"""What the scripts share: options, errors, tables, the look of figures, and studies that can be
stopped and resumed.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import joblib
import typer
from matplotlib.axes import Axes
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.problems import EMBEDDED, NEEDS, OnData, Pool, loaders
from semigpc.io.errors import DataError, RunError, SettingsError
from semigpc.training.processes import Stopped

COLOURS = (
    "#0072B2",
    "#56B4E9",
    "#999999",
    "#D55E00",
    "#E69F00",
    "#CC79A7",
    "#009E73",
    "#6A3D9A",
    "#B15928",
    "#1A1A1A",
)
WIDTH = 140  # columns of tables where there is no terminal
# exit codes
USAGE = 2
FAILURE = 1
STOPPED = 130

Record = dict[str, Any]
Case = TypeVar("Case", bound=OnData)

Json = Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")]
Plot = Annotated[
    Path | None, typer.Option(help="Draw the figures to this PNG.", metavar="FILE", dir_okay=False)
]
Seed = Annotated[int, typer.Option(help="Seed of generated rows, images and weights.", min=0)]
StudyFile = Annotated[
    Path,
    typer.Option(
        "--out", metavar="FILE", help="JSON of every seed; what it holds is not run again."
    ),
]
Embeddings = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FILE",
        help=f"A table of semigpc embed for one of {', '.join(EMBEDDED)}; repeat for several.",
    ),
]
Mnist = Annotated[
    Path | None,
    typer.Option(
        metavar="NPZ",
        exists=True,
        dir_okay=False,
        help="Pixels of MNIST: x_train, y_train, x_test, y_test.",
    ),
]
Seeds = Annotated[str, typer.Option(metavar="FROM:TO", help="Draws of each problem; 5 is 0:5.")]
Jobs = Annotated[int, typer.Option(help="Processes; with several, each has one thread.", min=1)]
DataNames = Annotated[
    list[str] | None, typer.Option(help="Only this data set; repeat for several.", metavar="NAME")
]


def read_seeds(text: str) -> range:
    """Return the seeds of FROM:TO, of which TO is not one, or 0:N for a number N."""
    first, _, last = text.rpartition(":")
    if not (last.isdecimal() and (first or "0").isdecimal() and int(first or "0") < int(last)):
        raise typer.BadParameter(
            f"{text!r} is not FROM:TO with FROM < TO, such as 0:20.", param_hint="--seeds"
        )
    return range(int(first or "0"), int(last))


def read_embedding_files(texts: Sequence[str] | None) -> dict[str, Path]:
    """Return the files of --embeddings NAME=FILE by name."""
    files = {}
    for text in texts or ():
        name, _, path = text.partition("=")
        if name not in EMBEDDED or not path:
            problem = f"{text!r} is not NAME=FILE, with one of {', '.join(EMBEDDED)} for NAME."
            raise typer.BadParameter(problem, param_hint="--embeddings")
        if not Path(path).is_file():
            raise typer.BadParameter(f"there is no file {path}.", param_hint="--embeddings")
        files[name] = Path(path)
    return files


def script(command: Callable[..., None]) -> typer.Typer:
    """Return the command line of a script. Errors that a user can mend are one line on standard
    error, without a traceback.
    """

    @functools.wraps(command)
    def reported(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except (SettingsError, DataError) as error:
            code = USAGE
            message = str(error)
        except (RunError, ImportError, OSError) as error:
            code = FAILURE
            message = str(error)
        except (KeyboardInterrupt, Stopped):
            code = STOPPED
            message = "stopped. Give the same command again to go on."
        else:
            return
        typer.echo(f"{command.__name__}: {message}", err=True)
        raise typer.Exit(code)

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(reported)
    return app


def check_folders(**paths: Path | None) -> None:
    """Raise if the folder of an output file is missing; names are those of the options."""
    for option, path in paths.items():
        if path is not None and not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent}.", param_hint=f"--{option}")


def show(record: Any, tables: Callable[[], Sequence[Table]], *, as_json: bool) -> None:
    """Print a record as JSON, or its tables."""
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    console = Console(width=None if Console().is_terminal else WIDTH)
    for table in tables():
        console.print(table)


def new_table(title: str, *headings: str, caption: str | None = None) -> Table:
    """Return an empty table: the first column is text, the others are numbers."""
    table = Table(
        title=title,
        caption=caption,
        box=box.SIMPLE,
        padding=(0, 1),
        title_style="bold",
        title_justify="left",
        caption_justify="left",
    )
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=not number)
    return table


def dress(axes: Axes, title: str, x: str, y: str = "") -> None:
    """Give axes a title, labels and a light grid."""
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)


def name_rows(axes: Axes, problems: Mapping[str, Record]) -> range:
    """Name the rows of a figure after the problems of a study, the first at the top; return their
    heights.
    """
    rows = range(len(problems))[::-1]
    axes.set_yticks(
        list(rows), [f"{name} ({problem['seeds']} seeds)" for name, problem in problems.items()]
    )
    return rows


# Studies ------------------------------------------------------------------------------------------


def study(
    problems: Sequence[Case],
    measure: Callable[[Case, Pool, int], Record],
    summarise: Callable[[Sequence[Record]], Record],
    *,
    out: Path,
    plot: Path | None,
    embeddings: Sequence[str] | None,
    mnist: Path | None = None,
    data: list[str] | None,
    seeds: str,
    jobs: int = 1,
) -> Record:
    """Check the options of a study, run what ``out`` lacks with a progress bar, and return the
    summary.
    """
    check_folders(out=out, plot=plot)
    at_hand = loaders(read_embedding_files(embeddings), mnist)
    drawn = read_seeds(seeds)
    names = {problem.data for problem in problems}
    unknown = [name for name in data or [] if name not in names]
    if unknown:
        raise typer.BadParameter(
            f"unknown data {unknown[0]!r}; known: {', '.join(sorted(names))}.", param_hint="--data"
        )
    chosen = [problem for problem in problems if problem.data in (data or at_hand)]
    missing = [problem.data for problem in chosen if problem.data not in at_hand]
    if missing:
        raise typer.BadParameter(f"{missing[0]} needs {NEEDS[missing[0]]}.", param_hint="--data")
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("problems", total=len(chosen) * len(drawn))

        def advance(name: str) -> None:
            bar.update(task, advance=1, description=name)

        return summarise(
            run_study(
                chosen,
                at_hand,
                drawn,
                out,
                jobs=jobs,
                measure=measure,
                summarise=summarise,
                advance=advance,
            )
        )


def run_study(
    problems: Sequence[Case],
    loaders: Mapping[str, Callable[[], Pool]],
    seeds: range,
    out: Path,
    *,
    measure: Callable[[Case, Pool, int], Record],
    summarise: Callable[[Sequence[Record]], Record],
    advance: Callable[[str], object],
    jobs: int = 1,
) -> list[Record]:
    """Measure every problem and seed that ``out`` does not hold yet; ``out`` is written after each
    of them.

    Args:
        problems: to measure. loaders: of their data sets. seeds: of each problem. out: JSON of
            summary and records.
        measure: returns a record, with ``problem`` and ``seed``, for a problem, its data and a
            seed.
        summarise: of all records. advance: called with the name of a problem whenever a seed of it
            is done.
        jobs: processes that measure at the same time, each with one thread if there are several.
    """
    records: list[Record] = json.loads(out.read_text())["records"] if out.exists() else []
    done = {(record["problem"], record["seed"]) for record in records}
    for name in dict.fromkeys(problem.data for problem in problems):
        cells = [(problem, seed) for problem in problems if problem.data == name for seed in seeds]
        missing = [(problem, seed) for problem, seed in cells if (problem.name, seed) not in done]
        for problem, seed in cells:
            if (problem, seed) not in missing:
                advance(problem.name)
        if not missing:
            continue
        pool = loaders[name]()
        with joblib.parallel_config("loky", inner_max_num_threads=1 if jobs > 1 else None):
            parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
            for record in parallel(
                joblib.delayed(measure)(problem, pool, seed) for problem, seed in missing
            ):
                records.append(record)
                _write(out, summarise(records), records)
                advance(record["problem"])
    return records


def _write(out: Path, summary: Record, records: Sequence[Record]) -> None:
    """Write a study, one record to a line."""
    lines = ",\n".join(json.dumps(record) for record in records)
    draft = out.with_name(out.name + ".part")
    draft.write_text(f'{{"summary": {json.dumps(summary, indent=1)},\n"records": [\n{lines}\n]}}\n')
    draft.replace(out)
