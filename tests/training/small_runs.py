"""Runs that take a second or two, for tests of the loop."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from semigpc.training import Experiment, Listener, RunFolder
from semigpc.training.presets import digits
from semigpc.training.run_folder import RunSummary

STEPS = 30


def small_run(
    algorithm: str = "fixmatch", refiner: str = "gp", *settings: str, seed: int = 0
) -> Experiment:
    """Digits, a narrow schedule and a small buffer; short epochs, so that memories are in use."""
    short = [
        *(f"train.steps={STEPS}", "train.epoch_steps=5", "train.eval_steps=10"),
        *("train.checkpoint_steps=7", "train.log_steps=4", "train.warmup_steps=3"),
        "train.threads=1",
    ]
    memory = ["refiner.buffer_size=96", "refiner.warmup_steps=4"] if refiner != "none" else []
    queue = ["algorithm.queue_batches=2"] if algorithm == "comatch" else []
    experiment = digits(algorithm=algorithm, refiner=refiner, seed=seed)
    return experiment.override([*short, *memory, *queue, *settings])


class StopAt(Listener):
    """Presses Ctrl-C in a step, counted from 1, after which the run stops."""

    def __init__(self, last: int | None) -> None:
        self.last = last

    def step(self, step: int) -> None:
        if step + 1 == self.last:
            os.kill(os.getpid(), signal.SIGINT)


def entries(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of a run, or those of one kind."""
    lines = [json.loads(line) for line in RunFolder(run).metrics.read_text().splitlines()]
    return [line for line in lines if kind in (None, line["kind"])]


def gp_facts(summary: RunSummary) -> dict[str, Any]:
    """What a summary says about the GP of its run."""
    facts = summary["gp"]
    assert facts is not None
    return dict(facts)
