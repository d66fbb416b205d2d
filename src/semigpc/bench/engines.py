"""``semigpc bench engines``: exact, low-rank, ensemble and matrix-free GPs side by side, and the peers of the low-rank one."""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semigpc.bench.engine_rows import Picked, Rows, compare, embedded_rows, exact_mean, generated_rows, pick, rbf
from semigpc.bench.resident import peak_resident_bytes
from semigpc.bench.timing import time_in_turns
from semigpc.gp import RBF, Engine, EnsembleGP, ExactGP, LandmarkFeatures, LowRankGP, MatrixFreeGP, choose_landmarks

Report = Callable[[str], None]
BATCH = 8  # rows replaced a step
FACTORS = (1.0, 2.0, 4.0)  # of the length-scale that leave-one-out picks, for curves over the rank
MEMBERS = 5
WIDTH, CLASSES = 384, 10  # of generated rows
FREE_WIDTH, FREE_LENGTH = 64, 0.5  # of those for the matrix-free engine: a pass costs N^2 D


class Study:
    """Rows and hyper-parameters that all parts share.

    Args:
        embeddings: of real images; None generates clusters. seed: of everything.
    """

    def __init__(self, embeddings: Path | None, seed: int, report: Report) -> None:
        self.embeddings, self.seed, self.report = embeddings, seed, report

    def rows(self, count: int) -> Rows:
        """So many rows."""
        if self.embeddings is None:
            return generated_rows(count, WIDTH, CLASSES, self.seed)
        return embedded_rows(self.embeddings, count, self.seed)

    def picked(self, rows: Rows) -> Picked:
        """Length-scale and noise by leave-one-out."""
        self.report("leave-one-out picks the length-scale")
        return pick(rows, self.seed)


def ranks(study: Study, *, size: int, wanted: list[int]) -> dict[str, Any]:
    """Error of the low-rank mean against the exact one, by rank, at three length-scales."""
    rows = study.rows(size)
    picked = study.picked(rows)
    curves = []
    for factor in FACTORS:
        kernel = rbf(factor * picked.length_scale)
        study.report(f"exact GP of {size} rows, length-scale {kernel.length_scale:.3g}")
        exact = exact_mean(rows, kernel, picked.noise_std)
        study.report(f"landmarks, length-scale {kernel.length_scale:.3g}")
        order = choose_landmarks(rows.features, kernel, max(wanted), generator=torch.Generator().manual_seed(study.seed))
        points = []
        for rank in wanted:
            basis = LandmarkFeatures(rows.features[order[:rank]], kernel)
            mean = lowrank_mean(rows, basis, picked.noise_std)
            unexplained = float(basis.residual(rows.features[:4096]).mean())
            points.append({"rank": len(basis), "unexplained": unexplained} | compare(mean, exact.mean, rows.classes))
            study.report(f"rank {rank}: {points[-1]['mean_difference']:.4f}, {points[-1]['same_class']:.3f} the same class")
        curves.append(
            {
                "factor": factor,
                "length_scale": kernel.length_scale,
                "noise_std": picked.noise_std,
                "effective_dimension": exact.dimension,
                "points": points,
            }
        )
        gc.collect()
    return {"size": size, "width": rows.features.shape[1], "queries": len(rows.queries), "curves": curves}


def lowrank_mean(rows: Rows, basis: LandmarkFeatures, noise_std: float) -> Tensor:
    """The mean of the low-rank engine with these landmarks at the queries, (M, C)."""
    phi = basis.phi(rows.features)
    A = phi.mT @ phi
    A.diagonal().add_(noise_std**2)
    weights: Tensor = torch.linalg.solve(A, phi.mT @ rows.targets.double())
    return basis.phi(rows.queries) @ weights


def sizes(study: Study, *, wanted: list[int], rank: int, steps: int) -> list[dict[str, Any]]:
    """Seconds an update and the error of every engine, over buffer sizes."""
    records = []
    for size in wanted:
        rows = study.rows(size + BATCH * (steps + 1))
        held = Rows(rows.features[:size], rows.targets[:size], rows.queries, rows.classes)
        picked = study.picked(held)
        kernel = rbf(picked.length_scale)
        engines: dict[str, Engine] = {}
        made: dict[str, float] = {}
        for name, make in _engines(size, rows, picked, rank).items():
            study.report(f"{name} engine of {size} rows")
            began = time.perf_counter()
            engines[name] = make()
            engines[name].replace(torch.arange(size), held.features, held.targets)
            made[name] = time.perf_counter() - began
        study.report(f"asking the engines of {size} rows")
        exact = exact_mean(held, kernel, picked.noise_std)
        errors = {name: compare(engine.mean(rows.queries), exact.mean, rows.classes) for name, engine in engines.items()}
        study.report(f"updating the engines of {size} rows")
        seconds = time_in_turns(
            {name: _replacing(engine, rows, size) for name, engine in engines.items()}, repetitions=steps, budget_s=60
        )
        records.append(
            {
                "size": size,
                "width": rows.features.shape[1],
                "length_scale": picked.length_scale,
                "noise_std": picked.noise_std,
                "rank": min(rank, size),
                "effective_dimension": exact.dimension,
                "engines": {name: {"update_s": _mean(seconds[name]), "fill_s": made[name], **errors[name]} for name in engines},
            }
        )
        del engines
        gc.collect()
    return records


def _engines(size: int, rows: Rows, picked: Picked, rank: int) -> Mapping[str, Callable[[], Engine]]:
    width, classes, kernel = rows.features.shape[1], rows.targets.shape[1], rbf(picked.length_scale)
    noise = picked.noise_std

    def exact(capacity: int) -> Engine:
        return ExactGP(capacity, width, classes, kernel=kernel, noise_std=noise)

    return {
        "exact": lambda: exact(size),
        "lowrank": lambda: LowRankGP(size, width, classes, rank=min(rank, size), kernel=kernel, noise_std=noise),
        "ensemble": lambda: EnsembleGP(size, width, classes, make=exact, members=MEMBERS),
        "matrix_free": lambda: MatrixFreeGP(size, width, classes, rank=min(rank, size), kernel=kernel, noise_std=noise),
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


def large(study: Study, *, size: int, rank: int, steps: int) -> dict[str, Any]:
    """One update of the low-rank engine over a million rows beside one over 16 300 and one of the exact engine there, in turns.

    With the method's own kernel and noise, as ``semigpc bench update`` has them. And the memory that a million rows take.
    """
    small_rows = generated_rows(16_300 + BATCH * (steps + 1), WIDTH, CLASSES, study.seed)
    kernel = RBF()
    small = LowRankGP(16_300, WIDTH, CLASSES, rank=rank, kernel=kernel)
    exact = ExactGP(16_300, WIDTH, CLASSES, kernel=kernel)
    for engine in (small, exact):
        study.report(f"{type(engine).__name__} of 16,300 rows")
        engine.replace(torch.arange(16_300), small_rows.features[:16_300], small_rows.targets[:16_300])
    built: list[tuple[LowRankGP, Rows]] = []

    def build() -> None:
        study.report(f"drawing {size:,} rows")
        rows = generated_rows(size + BATCH * (steps + 1), WIDTH, CLASSES, study.seed)
        study.report(f"low-rank engine of {size:,} rows")
        made = LowRankGP(size, WIDTH, CLASSES, rank=rank, kernel=kernel)
        made.replace(torch.arange(size), rows.features[:size], rows.targets[:size])
        built.append((made, rows))

    began = time.perf_counter()
    peak = peak_resident_bytes(build)
    filled = time.perf_counter() - began
    million, rows = built[0]
    study.report(f"updating the engines of {size:,} and 16,300 rows")
    seconds = time_in_turns(
        {
            "exact": _replacing(exact, small_rows, 16_300),
            "small": _replacing(small, small_rows, 16_300),
            "large": _replacing(million, rows, size),
        },
        repetitions=steps,
    )
    return {
        "size": size,
        "width": WIDTH,
        "rank": rank,
        "exact_update_s": _mean(seconds["exact"]),
        "small_update_s": _mean(seconds["small"]),
        "faster_than_exact": _mean(seconds["exact"]) / _mean(seconds["small"]),
        "update_s": _mean(seconds["large"]),
        "ratio": _mean(seconds["large"]) / _mean(seconds["small"]),
        "fill_s": filled,
        "peak_bytes": peak,
    }


def matrix_free(study: Study, *, size: int, rank: int, steps: int, tolerance: float) -> dict[str, Any]:
    """Iterations and seconds of a cold start and of warm ones, the residual they leave, and the memory.

    At a length-scale of 0.5, where rows of a class are alike and a solve takes work: at the method's own it takes next to none,
    at the longest no landmarks suffice.
    """
    rows = generated_rows(size + BATCH * (steps + 1), FREE_WIDTH, CLASSES, study.seed)
    engine = MatrixFreeGP(size, FREE_WIDTH, CLASSES, rank=rank, kernel=rbf(FREE_LENGTH), tolerance=tolerance)
    study.report(f"matrix-free engine of {size:,} rows, from nothing")
    cold: dict[str, float] = {}

    def fill() -> None:
        began = time.perf_counter()
        engine.replace(torch.arange(size), rows.features[:size], rows.targets[:size])
        cold.update(seconds=time.perf_counter() - began, iterations=engine.health.total_iterations)

    peak = peak_resident_bytes(fill)
    replace, warm = _replacing(engine, rows, size), []
    for step in range(steps):
        study.report(f"warm start {step + 1} of {steps}")
        began, before = time.perf_counter(), replaced(engine.health)
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
    rows, y = engine.features[slots].double(), engine.targets[slots].double()
    product = torch.zeros_like(y)
    for part, alpha in zip(points.split(4096), weights.split(4096), strict=True):
        product += engine.kernel(rows, part.double()) @ alpha
    left = y - product - engine.noise_std**2 * weights[slots]
    whole = engine.targets.double().norm(dim=0).clamp_min(1e-12)
    return float((left.norm(dim=0) * (engine.capacity / count) ** 0.5 / whole).max())


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
