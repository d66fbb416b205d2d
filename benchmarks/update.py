"""How long does one GP update take, B new rows into a buffer of N, against every other way of doing
it?
"""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.peers import GPYTORCH_INSTALLED, Problem, peers
from benchmarks.problems import read_embeddings
from benchmarks.references import kernel_matrix, posterior
from benchmarks.tables import COLOURS, Json, Plot, Seed, check_folders, dress, new_table, script
from benchmarks.timing import Step, peak_extra_bytes, time_in_turns
from semigpc.gp import RBF, ExactGP

STEPS_UNTIL_A_FOLD = 20  # whose memory is measured: one of them folds
QUERIES = 256  # rows at which means are compared with a fresh solve
Record = dict[str, float | int | str | None]
PEERS = {
    "inverse_s": "torch.linalg.inv, float64",
    "cholesky_inverse_s": "Cholesky + inverse, float64",
    "cholesky_solve_s": "Cholesky + solve, float64",
    "paper_rule_s": "paper's block rule, plain, float64",
    "sklearn_s": "scikit-learn KernelRidge refit, float64",
    "gpytorch_refit_s": "GPyTorch refit, float64",
    "gpytorch_fantasy_s": "GPyTorch get_fantasy_model, float64",
}
OURS = {"ours_s": "semigpc, float64", "floor_s": "floor: one P @ C, float32"}


@dataclass(frozen=True)
class Stream:
    """Rows to fill a buffer with and to replace it by: features (n, D) and one-hot targets (n, C),
    drawn at random.

    Args:
        name: of their kind. length_scale, noise_std: that suit them.
    """

    name: str
    features: Tensor
    targets: Tensor
    length_scale: float
    noise_std: float
    generator: torch.Generator

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return different rows (n, D), (n, C)."""
        chosen = torch.randperm(len(self.features), generator=self.generator)[:rows]
        return self.features[chosen], self.targets[chosen]


def generated_stream(
    rows: int, *, spread: float = 1.0, classes: int = 10, width: int = 384, seed: int = 0
) -> Stream:
    """Unit features around one direction per class: those of a half-trained network, or tight
    clusters for a small spread.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(classes, width, generator=generator), dim=1)
    labels = torch.randint(classes, (rows,), generator=generator)
    noise = spread * torch.randn(rows, width, generator=generator) / width**0.5
    features = F.normalize(centres[labels] + noise, dim=1)
    targets = F.one_hot(labels, classes).float()
    if spread == 1:
        return Stream("stream", features, targets, 0.1**0.5, 0.1**0.5, generator)
    return Stream("clusters", features, targets, 0.59, 0.2, generator)


def embedded_stream(path: Path, *, seed: int = 0) -> Stream:
    """A table of ``semigpc embed``, centred and of unit length; the class of a row is the folder
    that its image is in.
    """
    places, rows = read_embeddings(path)
    _, codes = np.unique([place[-2] for place in places], return_inverse=True)
    X = torch.from_numpy(rows.copy())
    targets = F.one_hot(torch.from_numpy(codes).long()).float()
    features = F.normalize(X - X.mean(dim=0), dim=1)
    return Stream(path.stem, features, targets, 0.59, 0.2, torch.Generator().manual_seed(seed))


def bench_update(
    size: int,
    stream: Stream,
    *,
    batch: int = 8,
    steps: int = 32,
    budget_s: float = 20.0,
    peers_too: bool = True,
    report: Callable[[str], object] = lambda _: None,
) -> Record:
    """Time one update at buffer size N = ``size`` for our engine, the floor and every peer.

    Ours and the floor take turns for ``steps`` steps, each of which replaces random rows;
    ``ours_s`` is the MEAN step, folding included. Each peer is repeated up to 5 times, fewer once
    it has used ``budget_s``; how often is in ``repetitions_*``. Nothing is extrapolated. Filling
    the buffer in one call is compared with one Cholesky inverse.

    Args:
        size: N. batch: B.
        steps: timed updates of ours and of the floor.
        budget_s: seconds after which a peer is not repeated any more. peers_too: whether peers are
            timed, beside the floor.
        report: called with what is being timed, for a progress display.

    Returns:
        Seconds, ratios over ours (``ratio_*``), ``ratio_floor`` of ours over the floor,
        ``slowest_share`` of the slowest step over the median, ``peak_bytes`` of one update beyond
        the engine's own ``state_bytes``, ``matrix_share`` of the bytes of P over 4 N^2, and the
        ``max_abs_error`` of the means after the run against a fresh float64 solve.
    """
    classes = stream.targets.shape[1]
    width = stream.features.shape[1]
    kernel = RBF(length_scale=stream.length_scale)
    noise_std = stream.noise_std
    record: Record = {
        "size": size,
        "rows": stream.name,
        "batch": batch,
        "classes": classes,
        "width": width,
        "steps": steps,
    }
    record |= {"length_scale": kernel.length_scale, "noise_std": noise_std}
    record |= {"threads": torch.get_num_threads(), "torch": torch.__version__}

    features, targets = (part.double() for part in stream.draw(size))
    engine = ExactGP(size, width, classes, kernel=kernel, noise_std=noise_std)
    report(f"N = {size}: filling the buffer")
    began = time.perf_counter()
    engine.replace(torch.arange(size), features, targets)
    record["fill_s"] = time.perf_counter() - began
    _time_steps(record, engine, stream, steps=steps, report=report)

    report(f"N = {size}: checking the means against a float64 solve")
    queries = stream.draw(QUERIES)[0].double()
    exact, _ = posterior(queries, engine.features, engine.targets, kernel, noise_std)
    record |= {
        "max_abs_error": float((engine.mean(queries) - exact).abs().max()),
        "rebuilds": engine.health.rebuilds,
    }
    record["state_bytes"] = sum(buffer.nbytes for buffer in engine.buffers())
    record["matrix_share"] = sum(buffer.nbytes for buffer in engine.inverse.buffers()) / (
        4 * size**2
    )
    del engine

    record |= dict.fromkeys(PEERS) | {f"ratio_{name.removesuffix('_s')}": None for name in PEERS}
    new_features, new_targets = (part.double() for part in stream.draw(batch))
    problem = Problem(features, targets, new_features, new_targets, kernel, noise_std)
    for name, step in (
        peers(problem) if peers_too else [("cholesky_inverse_s", _cholesky_inverse(problem))]
    ):
        report(f"N = {size}: {PEERS[name]}")
        times = time_in_turns({name: step}, repetitions=5, budget_s=budget_s)[name]
        record[name] = median(times)
        record[f"ratio_{name.removesuffix('_s')}"] = median(times) / _number(record["ours_s"])
        record[f"repetitions_{name.removesuffix('_s')}"] = len(times)
    record["ratio_fill"] = _number(record["fill_s"]) / _number(record["cholesky_inverse_s"])
    fresh = [
        _number(record[name])
        for name in ("inverse_s", "cholesky_inverse_s")
        if record[name] is not None
    ]
    record["ratio_fastest_inverse"] = min(fresh) / _number(record["ours_s"])
    return record


def _time_steps(
    record: Record, engine: ExactGP, stream: Stream, *, steps: int, report: Callable[[str], object]
) -> None:
    """Time replacements of random rows beside the floor, and measure their memory."""
    size = engine.capacity
    batch = int(_number(record["batch"]))
    ready = iter(
        [
            (torch.randperm(size, generator=stream.generator)[:batch], *stream.draw(batch))
            for _ in range(1 + steps + STEPS_UNTIL_A_FOLD)
        ]
    )
    P = torch.randn(size, size, generator=stream.generator)
    C = torch.randn(size, batch, generator=stream.generator)
    contenders: dict[str, Step] = {
        "floor_s": lambda: P @ C,
        "ours_s": lambda: engine.replace(*next(ready)),
    }
    report(f"N = {size}: {', '.join(OURS.values())}")
    seconds = time_in_turns(contenders, repetitions=steps)
    for name, times in seconds.items():
        record[name] = fmean(times)
        record[name.removesuffix("_s") + "_median_s"] = median(times)
    ours = seconds["ours_s"]
    floor = seconds["floor_s"]
    record |= {
        "ratio_floor": fmean(ours) / fmean(floor),
        "ratio_floor_median": median(ours) / median(floor),
    }
    record |= {"slowest_s": max(ours), "slowest_share": max(ours) / median(ours)}
    peak_bytes = peak_extra_bytes(
        lambda: [contenders["ours_s"]() for _ in range(STEPS_UNTIL_A_FOLD)]
    )
    record |= {"peak_bytes": peak_bytes, "peak_share": peak_bytes / (4 * size**2)}


def _cholesky_inverse(problem: Problem) -> Step:
    K = kernel_matrix(problem.features, problem.kernel, problem.noise_std)
    return lambda: torch.cholesky_inverse(torch.linalg.cholesky(K))


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def update_table(record: Record) -> Table:
    """Return the table of one record, one row per method."""
    sizes = f"N = {record['size']}, B = {record['batch']}, C = {record['classes']}"
    title = f"One update, rows: {record['rows']}, {sizes}"
    table = new_table(title, "method", "time", "time / ours", "repeated")
    for key, label in (OURS | PEERS).items():
        seconds = record.get(key)
        name = key.removesuffix("_s")
        if seconds is None:
            table.add_row(label, "not timed", "", "")
            continue
        ratio = float(seconds) / float(record["ours_s"] or 1)
        repetitions = str(record.get(f"repetitions_{name}") or record["steps"])
        style = "bold" if key == "ours_s" else ""
        table.add_row(
            label, f"{1e3 * float(seconds):.2f} ms", f"{ratio:.2f} x", repetitions, style=style
        )
    table.caption = (
        f"ours / floor {record['ratio_floor']:.2f} "
        f"(median step {record['ratio_floor_median']:.2f}), "
        f"slowest / median step {record['slowest_share']:.1f}\n"
        f"filling the buffer at once {record['fill_s']:.1f} s, "
        f"{record['ratio_fill']:.2f} x one Cholesky inverse\n"
        f"P takes {record['matrix_share']:.2f} x 4 N^2 bytes, "
        f"an update {record['peak_share']:.3f} x more\n"
        f"error of the means {record['max_abs_error']:.1e}"
    )
    return table


def draw_update_curves(
    records: Sequence[Mapping[str, float | int | str | None]], names: Mapping[str, str], path: Path
) -> None:
    """Draw seconds per update over buffer size, log-log, one curve for each entry of ``names``
    (key: legend) that was timed.
    """
    figure = Figure(figsize=(8.5, 5.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for (key, label), colour in zip(names.items(), COLOURS, strict=False):
        points = [
            (float(r["size"] or 0), float(value))
            for r in records
            if (value := r.get(key)) is not None
        ]
        if not points:
            continue
        ours = key.startswith("ours")
        axes.loglog(
            *zip(*points, strict=True),
            marker="o",
            color=colour,
            label=label,
            linewidth=2.6 if ours else 1.4,
            linestyle="--" if key == "floor_s" else "-",
            zorder=3 if ours else 2,
        )
    sizes = sorted({int(r["size"] or 0) for r in records})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    dress(
        axes,
        f"Taking {records[0]['batch']} new rows into a GP over N",
        "buffer size N",
        "seconds per update",
    )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path)


def update(
    size: Annotated[
        list[int] | None,
        typer.Option(
            help="Buffer size N; repeat for several. Default: 1000 2000 4000 8000. Paper: 16300.",
            min=64,
        ),
    ] = None,
    rows: Annotated[
        str,
        typer.Option(
            metavar="KIND|FILE",
            help="stream (a half-trained network), clusters (late in training), or a table file.",
        ),
    ] = "stream",
    batch: Annotated[int, typer.Option(help="Rows replaced per step, B.", min=1)] = 8,
    peers: Annotated[bool, typer.Option(help="Whether to time the other methods too.")] = True,
    steps: Annotated[int, typer.Option(help="Timed updates of ours and of the floor.", min=2)] = 32,
    budget: Annotated[
        float, typer.Option(help="Seconds after which a slow peer is not repeated again.", min=0)
    ] = 20.0,
    seed: Seed = 0,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Time one GP update: B rows replaced in a buffer of N.

    Ours stands beside a fresh inverse, a fresh Cholesky with a solve, the
    paper's block rule written plainly, scikit-learn and GPyTorch, and beside
    the floor: one product of the N x N matrix with B columns, which no exact
    method can avoid.

    Slow peers are repeated less often and never extrapolated. Ours is made for
    buffers of thousands: with a few hundred rows a fresh solve is as fast.

      python benchmarks/update.py --size 4000 --size 16300
      python benchmarks/update.py --rows photos.parquet --size 8000 --no-peers
    """
    sizes = size or [1000, 2000, 4000, 8000]
    if batch >= min(sizes):
        raise typer.BadParameter(
            f"{batch} rows do not fit below the smallest size, {min(sizes)}.", param_hint="--batch"
        )
    check_folders(plot=plot)
    stream = _stream(rows, max(sizes), seed)
    console = Console(stderr=True) if as_json else Console()
    if peers and not GPYTORCH_INSTALLED:
        console.print(
            "[yellow]GPyTorch is not installed: pip install 'semigpc\\[peers]' adds it.[/]"
        )
    records: list[Record] = []
    with console.status("starting") as status:
        for n in sizes:
            records.append(
                bench_update(
                    n,
                    stream,
                    batch=batch,
                    steps=steps,
                    budget_s=budget,
                    peers_too=peers,
                    report=status.update,
                )
            )
            console.print(update_table(records[-1]))
    if plot is not None:
        draw_update_curves(records, OURS | PEERS, plot)
        console.print(f"Curves: {plot}", markup=False)
    if as_json:
        typer.echo(json.dumps(records, indent=2))


def _stream(rows: str, size: int, seed: int) -> Stream:
    if rows in ("stream", "clusters"):
        spread, width = (1.0, 384) if rows == "stream" else (0.1, 1280)
        return generated_stream(size + 2048, spread=spread, width=width, seed=seed)
    if not Path(rows).is_file():
        raise typer.BadParameter(
            f"neither stream nor clusters, and there is no file {rows}.", param_hint="--rows"
        )
    stream = embedded_stream(Path(rows), seed=seed)
    if len(stream.features) < size:
        raise typer.BadParameter(
            f"{rows} has {len(stream.features)} rows; the largest size is {size}.",
            param_hint="--rows",
        )
    return stream


app = script(update)
if __name__ == "__main__":
    app()
