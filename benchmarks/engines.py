"""What does each GP engine cost, and how far is it from the exact one?"""

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as replaced
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.problems import Clusters, load_embeddings_pool
from benchmarks.references import kernel_matrix
from benchmarks.tables import (
    COLOURS,
    Json,
    Plot,
    Seed,
    check_folders,
    dress,
    new_table,
    script,
    show,
)
from benchmarks.timing import peak_resident_bytes, time_in_turns
from semigpc.gp import (
    RBF,
    Engine,
    EnsembleGP,
    ExactGP,
    Kernel,
    MatrixFreeGP,
)
from semigpc.gp.scales import choose_by_grid
from semigpc.io.errors import DataError

BATCH = 8  # rows replaced per step
MEMBERS = 5  # of the ensemble
# of generated rows
WIDTH = 384
CLASSES = 10
# of those for the matrix-free engine: a pass costs N^2 D
FREE_WIDTH = 64
FREE_LENGTH = 0.5
TUNED = 3000  # rows by which leave-one-out picks the length-scale
QUERIES = 2000  # rows at which means are compared
CHUNK = 2048  # rows at a time

NAMES = {
    "exact": "exact",
    "ensemble": "ensemble of 5",
    "matrix_free": "matrix-free",
}
MARKERS = "osD^"  # of the curves
LEAST = 1e-7  # differences below are drawn there


class Rows(NamedTuple):
    """Unit features (n, D) with one-hot targets (n, C), and queries (M, D) with their classes (M,);
    all float32.
    """

    features: Tensor
    targets: Tensor
    queries: Tensor
    classes: Tensor


class Picked(NamedTuple):
    """The kernel and the noise that leave-one-out picks."""

    kernel: RBF
    noise_std: float


@dataclass(frozen=True)
class Study:
    """Rows and hyper-parameters that all parts share.

    Args:
        embeddings: of real images; None generates clusters. seed: of everything. report: called
            with the stage.
    """

    embeddings: Path | None
    seed: int
    report: Callable[[str], object]

    def rows(self, count: int) -> Rows:
        """Return so many rows, of train/CLASS images with queries of test/CLASS, or generated."""
        if self.embeddings is None:
            return generated_rows(count, WIDTH, CLASSES, self.seed)
        pool = load_embeddings_pool(self.embeddings)
        if pool.X_test is None or pool.codes_test is None:
            raise DataError(f"{self.embeddings} must be of images in train/CLASS and test/CLASS.")
        if count > len(pool.codes):
            raise DataError(
                f"{self.embeddings} has {len(pool.codes)} rows in train; {count} are needed."
            )
        rng = np.random.default_rng([self.seed, 6])
        kept = rng.permutation(len(pool.codes))[:count]
        asked = rng.permutation(len(pool.codes_test))[:QUERIES]
        return _rows(pool.X[kept], pool.codes[kept], pool.X_test[asked], pool.codes_test[asked])

    def picked(self, rows: Rows) -> Picked:
        """Return kernel and noise by the estimator's grid, on rows drawn at random."""
        self.report("leave-one-out picks the length-scale")
        drawn = torch.randperm(
            len(rows.features), generator=torch.Generator().manual_seed(self.seed)
        )[:TUNED]
        codes = rows.targets[drawn].argmax(dim=1)
        found = choose_by_grid({"unit": rows.features[drawn]}, codes, kernel="rbf")
        return Picked(RBF(length_scale=found.length_scale), found.noise_std)


def generated_rows(count: int, width: int, classes: int, seed: int) -> Rows:
    """Return clusters on the unit sphere with a long tail."""
    clusters = Clusters(width, classes, seed)
    return _rows(*clusters.draw(count), *clusters.draw(QUERIES, stream=1))


def _rows(
    X: NDArray[np.float32],
    codes: NDArray[np.int64],
    X_asked: NDArray[np.float32],
    codes_asked: NDArray[np.int64],
) -> Rows:
    features, queries = (F.normalize(torch.from_numpy(part), dim=1) for part in (X, X_asked))
    targets = F.one_hot(torch.from_numpy(codes), int(codes.max()) + 1).float()
    return Rows(features, targets, queries, torch.from_numpy(codes_asked))


def exact_mean(rows: Rows, kernel: Kernel, noise_std: float) -> Tensor:
    """Return the exact mean at the queries, (M, C). O(n^3), two n^2 matrices.

    One Cholesky factor in float32 and one step of refinement in float64.
    """
    H = rows.features
    y = rows.targets.double()
    K = kernel_matrix(H, kernel, noise_std)
    root = torch.linalg.cholesky(K)
    alpha = torch.cholesky_solve(rows.targets, root).double()
    residual = torch.cat(
        [
            part - wide.double() @ alpha
            for part, wide in zip(y.split(CHUNK), K.split(CHUNK), strict=True)
        ]
    )
    alpha += torch.cholesky_solve(residual.float(), root).double()
    return torch.cat([kernel(part, H).double() @ alpha for part in rows.queries.split(CHUNK)])


def compare(mean: Tensor, exact: Tensor, classes: Tensor) -> dict[str, float]:
    """Return the distance of a mean (M, C) from the exact one, and the accuracy of each."""
    difference = (mean.double() - exact).abs()
    return {
        "mean_difference": float(difference.mean()),
        "max_difference": float(difference.max()),
        "same_class": float((mean.argmax(dim=1) == exact.argmax(dim=1)).double().mean()),
        "accuracy": float((mean.argmax(dim=1) == classes).double().mean()),
        "exact_accuracy": float((exact.argmax(dim=1) == classes).double().mean()),
    }


def sizes(study: Study, *, wanted: list[int], rank: int, steps: int) -> list[dict[str, Any]]:
    """Seconds an update and the error of every engine, over buffer sizes."""
    records = []
    for size in wanted:
        rows = study.rows(size + BATCH * (steps + 1))
        held = Rows(rows.features[:size], rows.targets[:size], rows.queries, rows.classes)
        picked = study.picked(held)
        engines: dict[str, Engine] = {}
        made: dict[str, float] = {}
        for name, make in _engines(size, rows, picked, rank).items():
            study.report(f"{name} engine of {size} rows")
            began = time.perf_counter()
            engines[name] = make()
            engines[name].replace(torch.arange(size), held.features, held.targets)
            made[name] = time.perf_counter() - began
        study.report(f"asking the engines of {size} rows")
        exact = exact_mean(held, *picked)
        errors = {
            name: compare(engine.mean(rows.queries), exact, rows.classes)
            for name, engine in engines.items()
        }
        study.report(f"updating the engines of {size} rows")
        seconds = time_in_turns(
            {name: _replacing(engine, rows, size) for name, engine in engines.items()},
            repetitions=steps,
            budget_s=60,
        )
        records.append(
            {
                "size": size,
                "width": rows.features.shape[1],
                "length_scale": picked.kernel.length_scale,
                "noise_std": picked.noise_std,
                "rank": min(rank, size),
                "engines": {
                    name: {"update_s": _mean(seconds[name]), "fill_s": made[name], **errors[name]}
                    for name in engines
                },
            }
        )
        del engines
        gc.collect()
    return records


def _engines(
    size: int, rows: Rows, picked: Picked, rank: int
) -> Mapping[str, Callable[[], Engine]]:
    width = rows.features.shape[1]
    classes = rows.targets.shape[1]
    kernel, noise = picked

    def exact(capacity: int) -> Engine:
        return ExactGP(capacity, width, classes, kernel=kernel, noise_std=noise)

    return {
        "exact": lambda: exact(size),
        "ensemble": lambda: EnsembleGP(size, width, classes, make=exact, members=MEMBERS),
        "matrix_free": lambda: MatrixFreeGP(
            size, width, classes, rank=min(rank, size), kernel=kernel, noise_std=noise
        ),
    }


def _replacing(engine: Engine, rows: Rows, size: int) -> Callable[[], None]:
    """The next batch into the next slots, as a FIFO buffer has it."""
    step = 0

    def replace() -> None:
        nonlocal step
        slots = (torch.arange(BATCH) + BATCH * step) % size
        fresh = size + (torch.arange(BATCH) + BATCH * step) % (len(rows.features) - size)
        engine.replace(slots, rows.features[fresh], rows.targets[fresh])
        step += 1

    return replace


def matrix_free(
    study: Study, *, size: int, rank: int, steps: int, tolerance: float
) -> dict[str, Any]:
    """Iterations and seconds of a cold start and of warm ones, the residual they leave, and the
    memory.

    At a length-scale of 0.5, where rows of a class are alike and a solve takes work: at the
    method's own it takes next to none, at the longest no landmarks suffice.
    """
    rows = generated_rows(size + BATCH * (steps + 1), FREE_WIDTH, CLASSES, study.seed)
    engine = MatrixFreeGP(
        size,
        FREE_WIDTH,
        CLASSES,
        rank=rank,
        kernel=RBF(length_scale=FREE_LENGTH),
        tolerance=tolerance,
    )
    study.report(f"matrix-free engine of {size:,} rows, from nothing")
    cold: dict[str, float] = {}

    def fill() -> None:
        began = time.perf_counter()
        engine.replace(torch.arange(size), rows.features[:size], rows.targets[:size])
        cold.update(seconds=time.perf_counter() - began, iterations=engine.health.total_iterations)

    peak = peak_resident_bytes(fill)
    replace = _replacing(engine, rows, size)
    warm = []
    for step in range(steps):
        study.report(f"warm start {step + 1} of {steps}")
        began = time.perf_counter()
        before = replaced(engine.health)
        replace()
        warm.append(
            {
                "seconds": time.perf_counter() - began,
                "iterations": engine.health.total_iterations - before.total_iterations,
                "rounds": engine.health.rounds - before.rounds,
                "passes": engine.health.passes - before.passes,
            }
        )
    return {
        "size": size,
        "width": FREE_WIDTH,
        "rank": rank,
        "tolerance": tolerance,
        "length_scale": FREE_LENGTH,
        "noise_std": engine.noise_std,
        "cold": cold,
        "warm": warm,
        "warm_over_cold": max(step["iterations"] for step in warm) / max(cold["iterations"], 1),
        "residual": _true_residual(engine),
        "peak_bytes": peak,
        "kernel_matrix_bytes": 4 * size**2,
    }


def _true_residual(engine: MatrixFreeGP, sampled: int = 512) -> float:
    """max_c |y - K alpha| / |y|, estimated from sampled rows, evaluated in float64."""
    slots = torch.randperm(engine.capacity, generator=torch.Generator().manual_seed(1))[:sampled]
    count = len(slots)
    points, weights = engine.expansion()
    rows = engine.features[slots].double()
    y = engine.targets[slots].double()
    product = torch.zeros_like(y)
    for part, alpha in zip(points.split(4096), weights.split(4096), strict=True):
        product += engine.kernel(rows, part.double()) @ alpha
    left = y - product - engine.noise_std**2 * weights[slots]
    whole = engine.targets.double().norm(dim=0).clamp_min(1e-12)
    return float((left.norm(dim=0) * (engine.capacity / count) ** 0.5 / whole).max())


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


class Part(StrEnum):
    """What is measured."""

    sizes = "sizes"
    matrix_free = "matrix_free"


def engines(
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FILE", help="JSON of all parts; what it holds is not run again."
        ),
    ],
    rows: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Of train/CLASS and test/CLASS images, by semigpc embed; else clusters.",
        ),
    ] = None,
    part: Annotated[
        list[Part] | None, typer.Option(help="Only this part; repeat for several.")
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option(help="Buffer size N of the first part; repeat for several.", min=64),
    ] = None,
    rank: Annotated[int, typer.Option(help="Landmarks of the preconditioner.", min=1)] = 1024,
    steps: Annotated[int, typer.Option(help="Timed updates of each engine.", min=2)] = 32,
    seed: Seed = 0,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Compare the exact, ensemble and matrix-free engines.

    sizes: seconds per update and distance from the exact mean, over N.
    matrix_free: iterations of a cold and of warm starts, N = 50000.

    All of it takes an hour on two cores, and resumes where it was stopped:

      semigpc embed cifar10 --image-size 96 --out cifar10.parquet
      python benchmarks/engines.py --rows cifar10.parquet --out engines.json
      python benchmarks/engines.py --part sizes --size 1000 --size 2000 --out e.json
    """
    check_folders(out=out, plot=plot)
    console = Console(stderr=True)
    records: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    with console.status("starting") as status:
        study = Study(
            rows,
            seed,
            status.update if console.is_terminal else lambda text: typer.echo(text, err=True),
        )
        parts: dict[Part, Callable[[], Any]] = {
            Part.sizes: lambda: sizes(
                study, wanted=size or [1000, 2000, 4000, 8000, 16300], rank=rank, steps=steps
            ),
            Part.matrix_free: lambda: matrix_free(
                study, size=50_000, rank=rank, steps=8, tolerance=1e-3
            ),
        }
        for name, measure in parts.items():
            if name in (part or list(Part)) and name.value not in records:
                records[name.value] = measure()
                out.write_text(json.dumps(records, indent=2) + "\n")
    if plot is not None:
        draw_engines(records, plot)
    show(
        records, lambda: [_table(record) for record in records.get(Part.sizes, [])], as_json=as_json
    )


def _table(record: dict[str, Any]) -> Table:
    title = f"N = {record['size']}, rank {record['rank']}"
    table = new_table(
        title, "engine", "s / update", "distance from exact", "same class", "accuracy"
    )
    for name, figures in record["engines"].items():
        shares = (f"{figures[key]:.1%}" for key in ("same_class", "accuracy"))
        table.add_row(
            name, f"{figures['update_s']:.4f}", f"{figures['mean_difference']:.2g}", *shares
        )
    return table


def draw_engines(records: Mapping[str, Any], path: Path) -> None:
    """Draw seconds per update and distance from the exact mean, both over N.

    Args:
        records: of the parts; without sizes the panels are empty.
    """
    figure = Figure(figsize=(10, 4.6), dpi=150, layout="constrained")
    seconds, distance = figure.subplots(1, 2)
    records_by_size = records.get("sizes", [])
    sizes = [record["size"] for record in records_by_size]
    for (key, label), colour, marker in zip(NAMES.items(), COLOURS, MARKERS, strict=False):
        figures = [record["engines"][key] for record in records_by_size]
        style: dict[str, Any] = {"color": colour, "marker": marker, "label": label, "linewidth": 2}
        seconds.loglog(sizes, [each["update_s"] for each in figures], **style)
        differences = [max(each["mean_difference"], LEAST) for each in figures]
        distance.loglog(sizes, differences, **style)
    _finish(seconds, "A step of 8 rows", "seconds per update", sizes)
    _finish(distance, "Distance from the exact mean", "mean |difference|", sizes)
    figure.savefig(path)


def _finish(axes: Axes, title: str, y: str, ticks: list[int]) -> None:
    dress(axes, title, "buffer size N", y)
    if ticks:
        axes.legend(frameon=False, fontsize=8)
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()


app = script(engines)
if __name__ == "__main__":
    app()
