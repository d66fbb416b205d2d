"""How long it takes to take B new rows into a GP over N, against every other way of doing it."""

import math
from collections.abc import Callable
from statistics import fmean, median
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from semigpc.bench.peers import GPYTORCH_INSTALLED, Problem, peers
from semigpc.bench.timing import Step, peak_extra_bytes, time_in_turns
from semigpc.gp import RBF, ExactGP
from semigpc.gp.reference import posterior

STEPS_UNTIL_A_FOLD = 20  # whose memory is looked at: one of them folds, some of them probe
Record = dict[str, float | int | str | None]
PEERS = {
    "inverse_s": "torch.linalg.inv",
    "cholesky_inverse_s": "Cholesky + inverse",
    "cholesky_solve_s": "Cholesky + solve",
    "paper_rule_s": "paper's block rule, plain",
    "sklearn_s": "scikit-learn KernelRidge refit",
    "gpytorch_refit_s": "GPyTorch refit",
    "gpytorch_fantasy_s": "GPyTorch get_fantasy_model",
}
OURS = {"ours_s": "semigpc", "ours_refined_s": "semigpc, refining", "floor_s": "floor: one P @ C"}


def bench_update(
    size: int,
    *,
    batch: int = 8,
    classes: int = 10,
    width: int = 384,
    steps: int = 32,
    budget_s: float = 20.0,
    seed: int = 0,
    report: Callable[[str], object] = lambda _: None,
) -> Record:
    """Time one update at buffer size N = ``size`` for our engine, the floor and every peer.

    Ours and the floor take turns for ``steps`` steps; ``ours_s`` is the MEAN step, folding included. Each peer is repeated
    up to 5 times, fewer once it has used ``budget_s``; how often is in ``repetitions_*``. Nothing is extrapolated.

    Args:
        size: N. batch: B. classes: C. width: D.
        steps: timed updates of ours and of the floor.
        budget_s: seconds after which a peer is not repeated any more.
        report: told what is being timed, for a progress display.

    Returns:
        Seconds, ratios over ours (``ratio_*``), ``ratio_floor`` of ours over the floor, ``peak_bytes`` of one update beyond the
        engine's own ``state_bytes``, and the ``max_abs_error`` of the means after the run against a fresh float64 solve.
    """
    generator = torch.Generator().manual_seed(seed)
    draw = _labelled_stream(classes, width, generator)
    kernel, noise_std = RBF(length_scale=0.1**0.5), 0.1**0.5
    record: Record = {"size": size, "batch": batch, "classes": classes, "width": width, "steps": steps, "seed": seed}
    record |= {"threads": torch.get_num_threads(), "torch": torch.__version__}

    features, targets = draw(size)
    engines: dict[str, ExactGP] = {}
    contenders: dict[str, Step] = {"floor_s": _floor(size, batch, generator)}
    modes: dict[str, Literal["never", "always"]] = {"ours_s": "never", "ours_refined_s": "always"}
    for name, refine in modes.items():
        report(f"N = {size}: filling the buffer ({OURS[name]})")
        engine = engines[name] = ExactGP(size, width, classes, kernel=kernel, noise_std=noise_std, refine=refine)
        engine.replace(torch.arange(size), features, targets)
        contenders[name] = _fifo_steps(engine, draw, batch, 1 + steps + STEPS_UNTIL_A_FOLD)

    report(f"N = {size}: {', '.join(OURS.values())}")
    seconds = time_in_turns(contenders, repetitions=steps)
    for name in contenders:
        record[name] = fmean(seconds[name])
        record[name.removesuffix("_s") + "_median_s"] = median(seconds[name])
    record["ratio_floor"] = fmean(seconds["ours_s"]) / fmean(seconds["floor_s"])
    record["ratio_floor_median"] = median(seconds["ours_s"]) / median(seconds["floor_s"])
    record["ratio_floor_refined"] = fmean(seconds["ours_refined_s"]) / fmean(seconds["floor_s"])
    peak_bytes = peak_extra_bytes(lambda: [contenders["ours_s"]() for _ in range(STEPS_UNTIL_A_FOLD)])
    record |= {"peak_bytes": peak_bytes, "peak_share": peak_bytes / (4 * size**2)}
    record["state_bytes"] = sum(buffer.nbytes for buffer in engines["ours_s"].buffers())
    contenders.clear()

    report(f"N = {size}: checking the means against a float64 solve")
    queries = draw(256)[0]
    ours = engines["ours_s"]
    exact, _ = posterior(queries.double(), ours.features.double(), ours.targets.double(), kernel, noise_std)
    record["max_abs_error"] = float((ours.mean(queries) - exact).abs().max())
    refined = engines["ours_refined_s"]
    exact, _ = posterior(queries.double(), refined.features.double(), refined.targets.double(), kernel, noise_std)
    record["max_abs_error_refined"] = float((refined.mean(queries) - exact).abs().max())
    record["rebuilds"] = ours.health.rebuilds + refined.health.rebuilds
    engines.clear()
    del ours, refined, engine

    problem = Problem(features, targets, *draw(batch), kernel, noise_std)
    record |= dict.fromkeys(PEERS) | {f"ratio_{name.removesuffix('_s')}": None for name in PEERS}
    for name, step in peers(problem):
        report(f"N = {size}: {PEERS[name]}")
        times = time_in_turns({name: step}, repetitions=5, budget_s=budget_s)[name]
        record[name] = median(times)
        record[f"ratio_{name.removesuffix('_s')}"] = median(times) / _number(record["ours_s"])
        record[f"repetitions_{name.removesuffix('_s')}"] = len(times)
    fastest = min(_number(record["inverse_s"]), _number(record["cholesky_inverse_s"]))
    record["ratio_fastest_inverse"] = fastest / _number(record["ours_s"])
    return record


def missing_peers() -> list[str]:
    """Peers that are not installed, with the way to have them."""
    return [] if GPYTORCH_INSTALLED else ["GPyTorch is not installed: pip install 'semigpc[peers]' adds it to the table."]


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _labelled_stream(classes: int, width: int, generator: torch.Generator) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Unit features around one direction per class, as a half-trained network would give, with one-hot labels."""
    centres = F.normalize(torch.randn(classes, width, generator=generator), dim=1)

    def draw(rows: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(classes, (rows,), generator=generator)
        noise = torch.randn(rows, width, generator=generator) / width**0.5
        return F.normalize(centres[labels] + noise, dim=1), F.one_hot(labels, classes).float()

    return draw


def _floor(size: int, batch: int, generator: torch.Generator) -> Step:
    """One pass over an N x N matrix, which every exact update needs at least."""
    P, C = torch.randn(size, size, generator=generator), torch.randn(size, batch, generator=generator)
    return lambda: P @ C


def _fifo_steps(engine: ExactGP, draw: Callable[[int], tuple[Tensor, Tensor]], batch: int, count: int) -> Step:
    """Calls of an update of the oldest rows with rows never seen before, drawn beforehand for ``count`` calls."""
    ready = iter([((torch.arange(batch) + batch * step) % engine.capacity, *draw(batch)) for step in range(count)])
    return lambda: engine.replace(*next(ready))
