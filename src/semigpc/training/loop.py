"""The loop: load, step, go down, average; now and then log, evaluate, save."""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

from semigpc.data import CachedFeatures, Splits, ViewSource, train_loader
from semigpc.data.dataset import Integers
from semigpc.data.feature_cache import join
from semigpc.refiners import GPConfig, PlacementConfig
from semigpc.threads import allowed, using
from semigpc.training.evaluate import DivergedError, fill, survey
from semigpc.training.experiment import Experiment, TrainConfig
from semigpc.training.journal import Journal, Listener
from semigpc.training.optim import set_rate
from semigpc.training.processes import Interrupt, SilentRunFolder, Stopped, any_process, check_same_everywhere, sum_gradients
from semigpc.training.run_data import RunData, load_splits, view_source
from semigpc.training.run_folder import Checkpoint, CheckpointError, RunFolder, groups_of, split_facts, write_checkpoint
from semigpc.training.state import Trainer, assemble, build_fabric, gp_of, precision_state
from semigpc.types import Batch, Clock, StepOutput

ADVICE = "Start a new run with a lower train.lr, longer train.warmup_steps, train.clip_norm=1, or train.precision=32-true."


@dataclass(frozen=True)
class Generation:
    """One of them: steps ``first`` to ``last - 1`` of the run. Most runs have one.

    ``given`` (u,) are the classes of unlabelled images that joined the labels, -1 of the others; ``splits`` and ``source``
    have them in. ``base`` and ``base_source`` are those of the run.
    """

    number: int
    first: int
    last: int
    given: Integers
    splits: Splits
    source: ViewSource
    trainer: Trainer
    base: Splits
    base_source: ViewSource

    @property
    def steps(self) -> int:
        """How many."""
        return self.last - self.first

    @property
    def counts(self) -> list[int]:
        """(C,) labelled images of each class, those that joined included."""
        return [int(count) for count in self.splits.class_counts]


def train(
    experiment: Experiment,
    path: Path,
    *,
    resume: bool = False,
    listener: Listener | None = None,
    fabric: Fabric | None = None,
    material: RunData | None = None,
) -> dict[str, Any]:
    """Train, and leave a run folder that tells everything; answers with its summary.

    The result on a CPU depends on the experiment and the number of torch's threads alone: a run that was killed and resumed
    ends with the same bits as one that was not, whatever the number of loader workers. After Ctrl-C, which saves at once, a
    run with a GP goes on from an inverse rebuilt at another step than it would have been: the same up to rounding.

    Args:
        experiment: what to do. path: of the run folder.
        resume: go on from the last checkpoint in that folder, if there is one.
        listener: told about progress.
        fabric: of the processes that train together, all of which call this (:mod:`semigpc.training.processes`); without one
            this process trains alone. The first of them writes the folder, which the others need not see.
        material: of this very experiment, where somebody has it at hand; otherwise it is loaded.

    Raises:
        RunError: the folder holds a run already, or one with other settings or data. InUseError: another process trains there.
        ProcessesError: processes that train together were started differently.
        DataError: the data cannot be used. DivergedError: the loss is not finite. WriteError: the disk is full.
        Stopped: after Ctrl-C, once everything is saved.
    """
    folder = RunFolder(path) if fabric is None or fabric.is_global_zero else SilentRunFolder(path)
    with folder.locked():
        return _train(experiment, folder, resume, listener or Listener(), fabric, material)


def _train(
    experiment: Experiment,
    folder: RunFolder,
    resume: bool,
    listener: Listener,
    fabric: Fabric | None,
    material: RunData | None,
) -> dict[str, Any]:
    splits = load_splits(experiment) if material is None else material.splits
    groups = groups_of(splits)
    if fabric is not None:
        check_same_everywhere(experiment, splits, fabric)
    begun = resume and folder.writes and folder.config.exists()
    if begun:
        folder.check_same(experiment, splits)
    else:
        folder.refuse_if_taken()

    with _own_random_numbers(experiment):
        fabric = fabric or build_fabric(experiment)
        if material is None:
            with fabric.rank_zero_first(local=True):  # minutes, which Ctrl-C ends at once
                material = RunData(splits, view_source(experiment, splits, fabric.device, listener.features))
        source = material.source
        with Interrupt() as interrupt:
            facts = split_facts(splits) | {"class_groups": groups}
            saved = fabric.broadcast(folder.checkpoint("last", experiment, facts) if begun and folder.last.exists() else None)
            if saved is None:
                present = generation(experiment, splits, source, fabric)
            else:
                present = resumed(experiment, splits, source, fabric, saved)
            _batches(present, experiment, first=present.first)  # what cannot work is refused before anything is written
            if not begun:
                folder.start(experiment, splits, groups)
            if isinstance(source, CachedFeatures):
                folder.check_features(source.origin)
            journal = Journal(folder, experiment, splits, source, groups, listener)
            if saved is None:
                _remark(present, journal, folder, experiment)
                _prefill(present, experiment)
                return _run(present, journal, folder, experiment, 0, interrupt)
            journal.restore(saved.state["journal"])
            return _run(present, journal, folder, experiment, int(saved.state["step"]), interrupt)


def _remark(present: Generation, journal: Journal, folder: RunFolder, experiment: Experiment) -> None:
    """What is to be said of a run before it begins."""
    folder.rewind_metrics(0)
    for note in present.splits.notes:
        journal.note(0, note)
    if isinstance(experiment.refiner, PlacementConfig) and experiment.refiner.warmup_steps >= present.steps:
        journal.note(
            0,
            "The refiner's warm-up is as long as the run, or a generation of it: it never speaks; lower refiner.warmup_steps.",
        )
    gp = gp_of(present.trainer.refiner)
    if gp is not None and gp.config.engine.name == "auto" and gp.choice.name != "exact":
        journal.note(0, f"The GP is carried by the {gp.choice.name} engine: {gp.choice.reason}.")
    masks = getattr(experiment.algorithm, "threshold", 0) or experiment.algorithm_name == "freematch"
    if gp is not None and gp.config.confidence != "max_softmax" and not masks:
        journal.note(0, f"refiner.confidence changes nothing: {experiment.algorithm_name} has no threshold as it is set.")


def _prefill(present: Generation, experiment: Experiment) -> None:
    """One pass over the labels into a GP's buffer, where that is asked for."""
    gp, trainer = gp_of(present.trainer.refiner), present.trainer
    if gp is not None and isinstance(experiment.refiner, GPConfig) and experiment.refiner.prefill:
        batch, device = experiment.train.eval_batch, trainer.fabric.device
        fill(gp, trainer.evaluated, present.splits.labeled, present.source, batch=batch, device=device)


def _run(
    present: Generation, journal: Journal, folder: RunFolder, experiment: Experiment, first: int, interrupt: Interrupt
) -> dict[str, Any]:
    """All generations from a step on; most runs have but one."""
    journal.begin(first)
    while True:
        journal.sees(present.splits, present.source)
        _run_generation(present, journal, folder, experiment, max(first, present.first), interrupt)
        if present.last == experiment.train.steps:
            return journal.finish(present.last, present.trainer, status="finished")
        present, remark = following(experiment, present)
        journal.note(present.first, remark)
        _prefill(present, experiment)


def _run_generation(
    present: Generation, journal: Journal, folder: RunFolder, experiment: Experiment, first: int, interrupt: Interrupt
) -> None:
    config, trainer = experiment.train, present.trainer
    own, fabric = replace(config, steps=present.steps), trainer.fabric
    batches = iter(_batches(present, experiment, first=first))
    for step in range(first, present.last):
        waited = time.perf_counter()
        batch = fabric.to_device(next(batches))
        waited = time.perf_counter() - waited

        clock = Clock(step - present.first, present.steps, config.epoch_steps, present.number)
        if trainer.addon.surveys(clock):
            look = survey(trainer.evaluated, present.splits, present.source, batch=config.eval_batch, device=fabric.device)
            trainer.addon.survey(look)
        output, rate = take_step(trainer, batch, clock, own)
        journal.record(step, output, batch, rate=rate, waited=waited)
        done = step + 1
        for remark in trainer.addon.take_notes():
            journal.note(done, remark)
        if done % config.log_steps == 0 or done == config.steps:
            journal.log(done)
        if (done % config.eval_steps == 0 or done == config.steps) and journal.evaluate(done, trainer):
            save_checkpoint(folder.best, present, journal, done)
        stop = any_process(fabric, interrupt.requested) and done < config.steps
        if done % config.checkpoint_steps == 0 or done == config.steps or stop:
            journal.log(done)
            trainer.settle()
            save_checkpoint(folder.last, present, journal, done)
        if stop:
            journal.finish(done, trainer, status="stopped")
            fabric.barrier()  # a launcher may kill all processes once one has ended, so none ends before all is saved
            raise Stopped(f"stopped after step {done} of {config.steps}; everything is saved in {folder.path}.")


def _batches(present: Generation, experiment: Experiment, *, first: int) -> Iterable[Batch]:
    config, addon = experiment.train, experiment.addon
    return train_loader(
        present.splits,
        present.source,
        views=present.trainer.algorithm.views,
        labeled_batch=config.labeled_batch,
        unlabeled_batch=config.unlabeled_batch,
        seed=experiment.seed,
        epoch_steps=config.epoch_steps,
        first_step=first,
        total_steps=present.last,
        workers=config.workers,
        usb_order=config.compat_usb_order,
        power=addon.sampling_power,
        balanced=addon.needs_balanced_batch,
    )


def take_step(trainer: Trainer, batch: Batch, clock: Clock, config: TrainConfig) -> tuple[StepOutput, float]:
    """Loss, gradient, optimiser, moving average; answers with what the algorithm said and the learning rate."""
    step = clock.step
    rate = set_rate(trainer.optimizer, step, config)
    try:
        output = trainer.algorithm.step(trainer.networks, batch, clock)
    except ValueError as error:  # a GP refuses features that are no numbers before there is a loss
        if trainer.still_finite(batch.x):
            raise
        raise DivergedError(f"the network's features are no numbers any more at step {step}. {ADVICE}") from error
    _refuse_non_finite(output, step, rate)
    trainer.optimizer.zero_grad(set_to_none=True)
    trainer.fabric.backward(output.loss)
    if trainer.fabric.world_size > 1:
        sum_gradients(trainer.model, trainer.fabric)
    if config.clip_norm:
        trainer.fabric.clip_gradients(trainer.networks.student, trainer.optimizer, max_norm=config.clip_norm)
    trainer.optimizer.step()
    trainer.update_average(config.ema)
    return output, rate


def save_checkpoint(path: Path, present: Generation, journal: Journal, step: int) -> None:
    """Everything at the end of a step, in one file, which the first of several processes writes."""
    trainer = present.trainer
    state = {
        "step": step,
        "journal": journal.state(),
        "precision": precision_state(trainer.fabric),
        "generation": present.number,
        "labeled_counts": present.counts,
        "experiment": journal.experiment.to_plain(),
        "split": split_facts(present.base) | {"class_groups": journal.groups},
    }
    tensors = trainer.tensors()  # asked of every process: the members of an ensemble may be spread over them
    if present.number:
        tensors["generation"] = {"given": torch.from_numpy(present.given)}
    if journal.folder.writes:
        write_checkpoint(path, tensors, state)


def _refuse_non_finite(output: StepOutput, step: int, rate: float) -> None:
    loss = float(output.loss.detach())
    if math.isfinite(loss):
        return
    parts = ", ".join(f"{name} {float(value.detach()):g}" for name, value in output.metrics.items())
    raise DivergedError(f"the loss is {loss} at step {step} ({parts}; learning rate {rate:g}). {ADVICE}")


@contextmanager
def _own_random_numbers(experiment: Experiment) -> Iterator[None]:
    """Seed torch for the run, and give the caller's generator and thread count back afterwards."""
    with torch.random.fork_rng(), using(experiment.train.threads or allowed()):
        torch.manual_seed(experiment.seed)
        yield


def generation(
    experiment: Experiment,
    splits: Splits,
    source: ViewSource,
    fabric: Fabric,
    *,
    number: int = 0,
    given: Integers | None = None,
) -> Generation:
    """Generation ``number`` of a run, fresh, with the labels ``given`` (u,) by the one before."""
    total, steps = experiment.addon.generations, experiment.train.steps
    given = np.full(len(splits.unlabeled), -1) if given is None else given
    ours, views = join(splits, given, source) if (given >= 0).any() else (splits, source)
    width = source.width if isinstance(source, CachedFeatures) else None
    trainer = assemble(
        experiment,
        ours.class_counts,
        fabric,
        n_unlabeled=len(splits.unlabeled),
        original_counts=splits.class_counts,
        cached_width=width,
    )
    first, last = number * steps // total, (number + 1) * steps // total
    return Generation(number, first, last, given, ours, views, trainer, splits, source)


def resumed(experiment: Experiment, splits: Splits, source: ViewSource, fabric: Fabric, saved: Checkpoint) -> Generation:
    """The generation in which a checkpoint was written, and its state."""
    given, number = saved.part("generation").get("given"), int(saved.state["generation"])
    labels = None if given is None else given.numpy()
    if labels is not None and not (
        labels.shape == (len(splits.unlabeled),) and -1 <= labels.min() <= labels.max() < splits.n_classes
    ):
        raise CheckpointError(
            f"the checkpoint of generation {number} has labels for {len(labels)} images, with classes {labels.min()} to "
            f"{labels.max()}; the data have {len(splits.unlabeled)} unlabelled images and {splits.n_classes} classes. "
            "Put the run folder back as it was, or train anew in another one."
        )
    found = generation(experiment, splits, source, fabric, number=number, given=labels)
    found.trainer.restore(saved)
    return found


@torch.no_grad()
def following(experiment: Experiment, before: Generation) -> tuple[Generation, str]:
    """The generation after this one, and what is to be said of it.

    The network labels all of U as it answers in evaluation, without a GP; the add-on chooses, and everything starts afresh with
    these labels.
    """
    trainer = before.trainer
    seen = survey(
        trainer.evaluated,
        before.base,
        before.base_source,
        batch=experiment.train.eval_batch,
        device=trainer.fabric.device,
    )
    given = trainer.addon.relabel(seen).cpu().numpy().astype(np.int64)
    number = before.number + 1
    after = generation(experiment, before.base, before.base_source, trainer.fabric, number=number, given=given)
    joined = int((given >= 0).sum())
    if not joined:
        return after, f"Generation {number + 1} begins with no label more: no unlabelled image was chosen."
    counts = np.bincount(given[given >= 0], minlength=before.base.n_classes).tolist()
    return after, f"Generation {number + 1} begins with {joined} images more, labelled by the one before, by class {counts}."
