"""What each add-on makes of a step's time: the same algorithm with it and without, in turns."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch

from semigpc.bench.timing import time_in_turns
from semigpc.data import Augment, Splits, train_loader
from semigpc.recipes.field import field_experiment
from semigpc.threads import using
from semigpc.training import Experiment, SettingError
from semigpc.training.evaluate import survey
from semigpc.training.loop import take_step
from semigpc.training.run_data import load_splits
from semigpc.training.state import Trainer, assemble, build_fabric
from semigpc.types import Batch, Clock

PROBLEM = "digits_a"  # which needs no files
WINDOW = 10  # steps timed at a time: DARP refines its labels once in them
LATE = 0.9  # of training is behind, so that everything that an add-on does is on
SETTLING = 20  # steps before the clock starts, in which memories fill


def addon_steps(
    bases: Sequence[str], addons: Sequence[str], *, repetitions: int = 10, advance: Callable[[str], None] = lambda _: None
) -> dict[str, dict[str, dict[str, float]]]:
    """base -> add-on -> seconds of a step, and their ratio to the base without one.

    The fastest of ``repetitions`` windows of ten steps, late in a run on the small network of digits, batches at hand; what an
    add-on does once in a run or between generations is in the seconds of a run alone. On a larger network ratios are
    nearer to 1. Add-ons that a base refuses are left out.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for base in bases:
        steps: dict[str, Callable[[], Any]] = {}
        for addon in dict.fromkeys(("none", *addons)):
            try:
                experiment = field_experiment(PROBLEM, base, addon, "none")
            except SettingError:
                continue
            steps[addon] = _window(experiment)
        seconds = {addon: min(times) for addon, times in time_in_turns(steps, repetitions=repetitions).items()}
        found[base] = {addon: {"step_s": value / WINDOW, "ratio": value / seconds["none"]} for addon, value in seconds.items()}
        advance(f"step times of {base}")
    return found


def _window(experiment: Experiment) -> Callable[[], None]:
    """Ten steps, late in a generation."""
    fabric, splits = build_fabric(experiment), load_splits(experiment)
    with torch.random.fork_rng():
        torch.manual_seed(experiment.seed)
        trainer = assemble(experiment, splits.class_counts, fabric, n_unlabeled=len(splits.unlabeled))
    length = experiment.train.steps // experiment.addon.generations
    first = int(LATE * length) // WINDOW * WINDOW
    batches = _batches(experiment, splits, trainer, first)
    for step in range(SETTLING):
        _step(trainer, batches[step % WINDOW], first - SETTLING + step, length, experiment, splits)

    def window() -> None:
        with using(1):
            for number, batch in enumerate(batches):
                _step(trainer, batch, first + number, length, experiment, splits)

    return window


def _batches(experiment: Experiment, splits: Splits, trainer: Trainer, first: int) -> list[Batch]:
    config = experiment.train
    loader = train_loader(
        splits,
        Augment(experiment.augment),
        views=trainer.algorithm.views,
        labeled_batch=config.labeled_batch,
        unlabeled_batch=config.unlabeled_batch,
        seed=experiment.seed,
        epoch_steps=config.epoch_steps,
        first_step=first,
        total_steps=first + WINDOW,
        workers=0,
        power=experiment.addon.sampling_power,
        balanced=experiment.addon.needs_balanced_batch,
    )
    return list(islice(loader, WINDOW))


def _step(trainer: Trainer, batch: Batch, step: int, length: int, experiment: Experiment, splits: Splits) -> None:
    """As the loop takes it."""
    config = experiment.train
    clock = Clock(step, length, config.epoch_steps)
    if trainer.addon.surveys(clock):
        device = trainer.fabric.device
        trainer.addon.survey(
            survey(trainer.evaluated, splits, Augment(experiment.augment), batch=config.eval_batch, device=device)
        )
    take_step(trainer, trainer.fabric.to_device(batch), clock, config)
