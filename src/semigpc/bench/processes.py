"""Whether several processes do what one does: the same run twice, and how far the two are apart."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semigpc.training import RunError, RunFolder
from semigpc.training.run_folder import read_checkpoint


def compare_processes(algorithm: str, folder: Path, *, devices: int, steps: int, settings: Sequence[str]) -> dict[str, Any]:
    """Train an algorithm with a GP on digits in one process and in several, by the command line, and compare.

    Args:
        folder: for the two runs. devices: processes of the second one. settings: of both, such as train.precision=64-true.
    """
    paths = {count: folder / f"{algorithm}-{count}" for count in (1, devices)}
    for count, path in paths.items():
        _train(algorithm, path, devices=count, steps=steps, settings=settings)
    losses = [_losses(path) for path in paths.values()]
    ours, theirs = (read_checkpoint(RunFolder(path).last).tensors for path in paths.values())
    apart = {name: float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours if ours[name].numel()}
    return {
        "algorithm": algorithm,
        "processes": devices,
        "steps": steps,
        "settings": list(settings),
        "loss": max(abs(a - b) for a, b in zip(*losses, strict=True)),
        "first_loss_apart": next((i for i, (a, b) in enumerate(zip(*losses, strict=True)) if abs(a - b) > 1e-5), None),
        "weights": max(value for name, value in apart.items() if name.startswith("model.")),
        "gp_rows": max(value for name, value in apart.items() if "engine" in name),
    }


def _train(algorithm: str, path: Path, *, devices: int, steps: int, settings: Sequence[str]) -> None:
    rare = (f"train.{name}={steps}" for name in ("eval_steps", "checkpoint_steps"))
    wanted = ["train.log_steps=1", "train.workers=0", *rare, *settings]
    command = [sys.executable, "-m", "semigpc", "train", "digits", "--algorithm", algorithm, "--refiner", "gp"]
    command += ["--steps", str(steps), "--devices", str(devices), "--out", str(path)]
    for setting in wanted:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RunError(f"{devices} processes of {algorithm} ended with code {done.returncode}: {done.stderr.strip()[-500:]}")


def _losses(path: Path) -> list[float]:
    entries = map(json.loads, RunFolder(path).metrics.read_text().splitlines())
    return [entry["loss"] for entry in entries if entry["kind"] == "train"]
