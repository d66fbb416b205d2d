"""How few landmarks would carry the buffer of a run as it stands."""

from pathlib import Path
from typing import Any

import torch

from semigpc.bench.engine_rows import Rows, exact_mean
from semigpc.gp import LowRankGP
from semigpc.training.inference import load_run
from semigpc.training.run_folder import RunError

ROWS = 8192  # of the buffer that are looked at, at most


def run_buffer(path: Path, *, wanted: list[int], seed: int) -> dict[str, Any]:
    """The gap between low-rank and exact means by rank, with the rows, kernel and noise of a run's last checkpoint."""
    gp = load_run(path, "last").gp
    if gp is None or len(gp.engine) < 16:
        raise RunError(f"{path} has no GP with rows in its buffer; train one with --refiner gp.")
    engine = gp.engine
    held = engine.occupied.nonzero().squeeze(1)
    held = held[torch.randperm(len(held), generator=torch.Generator().manual_seed(seed))[:ROWS]]
    features, targets = engine.features[held].float(), engine.targets[held].float()
    rows = Rows(features, targets, features[:1], targets[:1].argmax(dim=1))
    points = []
    for rank in (rank for rank in wanted if rank <= len(held)):
        low = LowRankGP(
            len(held), engine.n_features, engine.n_classes, rank=rank, kernel=engine.kernel, noise_std=engine.noise_std
        )
        low.replace(torch.arange(len(held)), features, targets)
        points.append({"rank": low.health.landmarks, "unexplained": low.health.uncovered_then} | low.gap(rows=ROWS)._asdict())
    return {
        "rows": len(held),
        "kernel": str(engine.kernel),
        "noise_std": engine.noise_std,
        "effective_dimension": exact_mean(rows, engine.kernel, engine.noise_std).dimension,
        "points": points,
    }
