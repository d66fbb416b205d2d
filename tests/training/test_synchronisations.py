"""How often a training step makes the host wait for a GPU, counted on the CPU."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn

from semigpc.addons import ADDONS
from semigpc.algorithms import ALGORITHMS
from semigpc.training.journal import Journal, Listener
from semigpc.training.loop import Run, take_step
from semigpc.training.processes import Interrupt
from semigpc.training.run_data import DataCache
from semigpc.training.run_folder import RunFolder
from semigpc.training.state import build_fabric
from semigpc.types import Clock
from tests.synchronisations import Synchronisations, place
from tests.training.small_runs import small_run

BUDGET = {"exact": 6, "lowrank": 8, "ensemble": 8}
ROWS, BATCH, COUNTED = 256, 8, 8  # 32 steps to fill; landmarks are chosen whenever the rows have doubled


def steps_of(algorithm: str, engine: str, folder: Path, *settings: str, addon: str = "none") -> Iterator[Synchronisations]:
    """What each step of a run waits for, as training/loop.py takes it, without logging, evaluation and checkpoints."""
    refiner = ["refiner.warmup_steps=0", f"refiner.buffer_size={ROWS}", f"refiner.engine={engine}"] if engine != "none" else []
    if engine == "ensemble":
        refiner.append("refiner.engine.members=2")
    batches = [f"train.labeled_batch={BATCH}", "train.epoch_steps=3", "train.steps=120", "train.ema=0.999"]
    experiment = small_run(algorithm, "none" if engine == "none" else "gp", *batches, *refiner, *settings)
    experiment = replace(experiment, addon=ADDONS[addon].config())
    fabric = build_fabric(experiment)
    torch.manual_seed(0)
    data = DataCache().run_data(experiment, fabric.device)
    run = Run(experiment, RunFolder(folder), data, Listener(), fabric, Interrupt())
    trainer, journal = run.current.trainer, Journal(run.folder, experiment, data.splits, Listener())
    for module in (trainer.model, trainer.average, trainer.algorithm):
        if isinstance(module, nn.Module):
            place(module)
    for step, batch in enumerate(run.batches(0)):
        clock = Clock(step, run.current.steps, experiment.train.epoch_steps)
        place(batch)
        with Synchronisations() as counted:
            output, rate = take_step(trainer, batch, clock, experiment.train)
            journal.record(step, output, batch, rate=rate, waited=0.0)
        yield counted


@pytest.mark.slow
@pytest.mark.parametrize("engine", BUDGET)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_with_a_gp_stays_within_its_budget(algorithm: str, engine: str, tmp_path: Path) -> None:
    steps = steps_of(algorithm, engine, tmp_path)
    for phase in (islice(steps, ROWS // BATCH), islice(steps, COUNTED)):  # while the buffer fills, and full
        counted = list(phase)
        places = sum((step.places for step in counted), Counter[tuple[str, str]]())
        assert places.total() <= BUDGET[engine] * len(counted), places.most_common()


@pytest.mark.parametrize("setting", ["refiner.role=classifier", "refiner.confidence=expected", "train.clip_norm=1"])
@pytest.mark.parametrize("algorithm", ["fixmatch", "remixmatch", "simmatch"])
def test_other_uses_of_the_gp_stay_within_it_too(algorithm: str, setting: str, tmp_path: Path) -> None:
    counted = list(islice(steps_of(algorithm, "exact", tmp_path, setting), ROWS // BATCH, ROWS // BATCH + COUNTED))
    places = sum((step.places for step in counted), Counter[tuple[str, str]]())
    assert places.total() <= BUDGET["exact"] * len(counted), places.most_common()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_without_a_refiner_waits_for_its_loss_alone(algorithm: str, tmp_path: Path) -> None:
    for step in islice(steps_of(algorithm, "none", tmp_path), 8):
        assert [where.partition(":")[0] for _, where in step.places.elements()] == ["training/loop.py"]


@pytest.mark.parametrize("settings", [("refiner.class_prior=frequency",), ("refiner.balanced=true", "refiner.balance=strict")])
def test_class_prior_and_balance_cost_no_synchronisation(settings: tuple[str, ...], tmp_path: Path) -> None:
    plain, other = (
        list(islice(steps_of("fixmatch", "exact", tmp_path, *each), 8, 12))
        for each in (("refiner.class_prior=none",), settings)
    )
    assert sum(step.total for step in other) <= sum(step.total for step in plain)


@pytest.mark.parametrize("addon", ["daso", "saw", "abc", "debiaspl", "effective_number", "logit_adjustment", "crest_plus"])
def test_add_ons_wait_for_nothing(addon: str, tmp_path: Path) -> None:
    steps = list(
        islice(steps_of("fixmatch", "none", tmp_path, addon=addon), 10, 12)
    )  # no first step of an epoch, in which SAW counts
    assert sum(step.total for step in steps) == len(steps), [step.places for step in steps]
