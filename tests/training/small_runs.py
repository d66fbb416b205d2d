"""Runs that take a second or two, for tests of the loop."""

from typing import Any

from semigpc.training import Experiment
from semigpc.training.presets import digits
from semigpc.training.run_folder import RunSummary

STEPS = 30


def small_run(
    algorithm: str = "fixmatch", refiner: str = "gp", *settings: str, seed: int = 0
) -> Experiment:
    """Digits, a narrow schedule and a small buffer; short epochs, so that memories are in use."""
    short = [
        f"train.steps={STEPS}",
        "train.epoch_steps=5",
        "train.eval_steps=10",
        "train.checkpoint_steps=7",
        "train.log_steps=4",
        "train.warmup_steps=3",
        "train.threads=1",
    ]
    memory = ["refiner.buffer_size=96", "refiner.warmup_steps=4"] if refiner != "none" else []
    queue = ["algorithm.queue_batches=2"] if algorithm == "comatch" else []
    return digits(algorithm=algorithm, refiner=refiner, seed=seed).override(
        [*short, *memory, *queue, *settings]
    )


def gp_facts(summary: RunSummary) -> dict[str, Any]:
    """What a summary says about the GP of its run."""
    facts = summary["gp"]
    assert facts is not None
    return dict(facts)
