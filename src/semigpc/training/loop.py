"""The training loop: load, step, optimise, average; now and then log, evaluate, save.

Most runs have one generation. With an add-on that has several, each begins with a fresh network and
with the labels that the one before it gave to unlabelled images.
"""

import math
import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from semigpc.algorithms import ALGORITHMS
from semigpc.data import (
    BatchStream,
    CachedFeatures,
    EvaluationLoader,
    ImageSet,
    Splits,
    ViewSource,
)
from semigpc.data.dataset import Integers
from semigpc.data.feature_views import join
from semigpc.data.loaders import InOrder, check_unlabeled, normalised, worker_count
from semigpc.io.atomic import JsonObject
from semigpc.io.errors import CheckpointError, DivergedError
from semigpc.io.threads import allowed, using
from semigpc.training.evaluate import (
    evaluate_run,
    fill_rings,
    survey,
    unevaluated_head,
)
from semigpc.training.experiment import Experiment, TrainConfig
from semigpc.training.label_head import LabelHead, fit_label_head
from semigpc.training.metrics import Part
from semigpc.training.optim import set_rate, update_average
from semigpc.training.processes import Stopped, check_same_everywhere, sum_gradients
from semigpc.training.run_folder import (
    Checkpoint,
    RunFolder,
    RunSummary,
    SilentRunFolder,
    generation_steps,
    split_facts,
    write_checkpoint,
)
from semigpc.training.run_log import Listener, RunLog
from semigpc.training.state import (
    DataCache,
    RunData,
    Trainer,
    assemble,
    blank_input,
    build_fabric,
    products_in,
    stored_label_head,
)
from semigpc.types import Batch, Clock, StepOutput

# Of 16-mixed: the loss scale starts at 2^16 and is halved after every step that overflows.
LEAST_LOSS_SCALE = 2.0**-10
ADVICE = (
    "Start a new run with a lower train.lr, longer train.warmup_steps, train.clip_norm=1, or "
    "train.precision=32-true."
)


def train(
    experiment: Experiment,
    path: Path,
    *,
    resume: bool = False,
    listener: Listener | None = None,
    fabric: Fabric | None = None,
    cache: DataCache | None = None,
) -> RunSummary:
    """Train into a run folder, and return its summary.

    On a CPU the result depends only on the experiment and on the number of torch's threads: a run
    that was killed and resumed ends with the same bits as one that was not, for any number of
    loader workers. Ctrl-C saves at once, so that the inverse of a GP is rebuilt at another step
    than it would have been: the result is then the same up to rounding.

    Args:
        experiment: what to train. path: of the run folder.
        resume: continue from the last checkpoint in that folder, if there is one.
        listener: receives progress.
        fabric: of several processes that train together, each of which calls this function
            (:mod:`semigpc.training.processes`); without it, this process trains alone. The first
            process writes the folder; the others need no access to it.
        cache: data loaded before, for example by an earlier run; what is missing is loaded into it.

    Raises:
        RunError: the folder already holds a run, or one with other settings or data. InUseError:
            another process trains there.
        ProcessesError: processes that train together were started differently.
        DataError: the data cannot be used. DivergedError: the loss is not finite. WriteError: the
            disk is full.
        Stopped: after Ctrl-C, once everything is saved.
    """
    cache = cache or DataCache()
    listener = listener or Listener()
    folder = RunFolder(path) if fabric is None or fabric.is_global_zero else SilentRunFolder(path)
    with folder.locked():
        splits = cache.splits(experiment.data, experiment.seed)
        if fabric is not None:
            check_same_everywhere(experiment, splits, fabric)
        begun = resume and folder.writes and folder.config.exists()
        if begun:
            folder.check_same(experiment, splits)
        else:
            folder.refuse_if_taken()
        check_unlabeled(ALGORITHMS[experiment.algorithm_name].build.views, splits.unlabeled)
        with _own_random_numbers(experiment):
            fabric = fabric or build_fabric(experiment)
            return _train_into(folder, experiment, listener, fabric, cache, begun=begun)


def _train_into(
    folder: RunFolder,
    experiment: Experiment,
    listener: Listener,
    fabric: Fabric,
    cache: DataCache,
    *,
    begun: bool,
) -> RunSummary:
    """Load the data, go on from the last checkpoint if the run has begun, and train to the end."""
    with fabric.rank_zero_first(local=True):  # may take minutes, which Ctrl-C ends at once
        data = cache.run_data(experiment, fabric.device, listener.features)
    resumes = begun and folder.last.exists()
    label_head = None
    if experiment.has_label_head and folder.writes and not resumes:
        label_head = fit_label_head(
            experiment.model, data.splits, experiment.seed, listener.features
        )
    with Interrupt() as interrupt:
        saved = None
        if resumes:
            saved = folder.checkpoint("last", experiment, split_facts(data.splits))
            label_head = stored_label_head(experiment, saved)
        saved = fabric.broadcast(saved)
        label_head = fabric.broadcast(label_head)
        run = Run(experiment, folder, data, listener, fabric, interrupt, saved, label_head)
        try:
            return run.train(started=begun)
        finally:
            run.current.loader.close()


class Interrupt:
    """Within a ``with`` block, the first Ctrl-C or SIGTERM sets ``requested``; a second one acts.

    Outside the main thread, where Python handles no signals, ``requested`` stays False.
    """

    def __init__(self) -> None:
        self.requested = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.requested = True
        signal.signal(number, self._handlers[number])


@dataclass(frozen=True)
class Generation:
    """Steps ``first`` to ``last - 1`` of a run, with a trainer of their own.

    ``labels`` (u,) are the classes of unlabelled images that joined the labelled ones, -1 of the
    others; ``splits`` and ``source`` contain them. ``loader`` is for evaluation and surveys.
    """

    number: int
    first: int
    last: int
    labels: Integers
    splits: Splits
    source: ViewSource
    trainer: Trainer
    loader: EvaluationLoader

    @property
    def steps(self) -> int:
        """How many."""
        return self.last - self.first


class Run:
    """One run: what is trained, where it is written, and the generation that trains now.

    Args:
        experiment: what to do. folder: where to write. data: of the experiment. listener: receives
            progress.
        fabric: of this process. interrupt: of the user. saved: the checkpoint to go on from, if
            there is one. label_head: the head that needs no training, if the run has it.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        data: RunData,
        listener: Listener,
        fabric: Fabric,
        interrupt: Interrupt,
        saved: Checkpoint | None = None,
        label_head: LabelHead | None = None,
    ) -> None:
        self.experiment = experiment
        self.folder = folder
        self.data = data
        self.listener = listener
        self.fabric = fabric
        self.interrupt = interrupt
        self.saved = saved
        self.label_head = label_head
        self.facts = split_facts(data.splits)
        self.groups = self.facts["class_groups"] or {}
        self.workers = worker_count(
            experiment.train.workers,
            data.splits.labeled.images,
            data.source,
            processes=fabric.world_size,
            device=fabric.device,
        )
        self.current = self._generation(0) if saved is None else self._resumed(saved)

    def train(self, *, started: bool) -> RunSummary:
        """Train to the end and return the summary; ``started`` if the folder has its files."""
        self.batches(self.current.first)  # raises what cannot work before anything is written
        if not started:
            self.folder.start(self.experiment, self.data.splits)
        if isinstance(self.data.source, CachedFeatures):
            self.folder.check_features(self.data.source.origin)
        self.log = RunLog(self.folder, self.experiment, self.data.splits, self.listener)
        first = 0
        if self.saved is None:
            self.folder.rewind_metrics(0)
            for note in self._notes():
                self.log.note(0, note)
        else:
            self.log.restore(self.saved.state["journal"])
            first = int(self.saved.state["step"])
        self.folder.remove_summary()
        self.log.begin(first)
        while True:
            self._train_generation(max(first, self.current.first))
            if self.current.last == self.experiment.train.steps:
                return self._finish(self.current.last, "finished")
            self.current, note = self._following()
            self.log.forget_head()
            self.log.note(self.current.first, note)

    def batches(self, first: int) -> Generator[Batch]:
        """Return the batches of the current generation from a step on, ready on the device."""
        config = self.experiment.train
        addon = self.experiment.addon
        stream = BatchStream(
            self.current.splits,
            self.current.source,
            views=self.current.trainer.algorithm.views,
            labeled_batch=config.labeled_batch,
            unlabeled_batch=config.unlabeled_batch,
            seed=self.experiment.seed,
            epoch_steps=config.epoch_steps,
            total_steps=self.current.last,
            power=addon.sampling_power,
            balanced=addon.needs_balanced_batch,
        )
        return self._on_device(stream.batches(first_step=first, workers=self.workers))

    def _on_device(self, loader: InOrder[Batch]) -> Generator[Batch]:
        with closing(loader):
            for batch in loader:
                yield normalised(self.fabric.to_device(batch), self.current.source)

    # Training -------------------------------------------------------------------------------------

    def _train_generation(self, first: int) -> None:
        config = self.experiment.train
        warmup_steps = max(config.warmup_steps, self.experiment.refiner.warmup_steps)
        self.log.follow(self.current.trainer.refiner, self.current.first + warmup_steps)
        with closing(self.batches(first)) as batches:
            own = replace(config, steps=self.current.steps)
            for step in range(first, self.current.last):
                self._step(step, batches, own)
                self._after_step(step + 1)

    def _step(self, step: int, batches: Iterator[Batch], config: TrainConfig) -> None:
        """Load a batch and train on it; ``config.steps`` are those of the generation."""
        current = self.current
        trainer = current.trainer
        began = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - began
        clock = Clock(step - current.first, current.steps, config.epoch_steps, current.number)
        if trainer.addon.surveys(clock):
            trainer.addon.survey(survey(trainer.evaluated, current.splits, current.loader))
        if clock.step == self.experiment.refiner.warmup_steps:
            self._fill_rings()
        output, rate = take_step(trainer, batch, clock, config)
        self.log.record(step, output, batch, rate=rate, waited=waited)

    def _after_step(self, done: int) -> None:
        """Log, evaluate and save where it is time to, after ``done`` steps."""
        config = self.experiment.train
        trainer = self.current.trainer
        at_end = done == config.steps
        for note in trainer.addon.take_notes():
            self.log.note(done, note)
        if done % config.log_steps == 0 or at_end:
            self.log.log(done)
            scale = trainer.precision_state().get("scale", 1.0)
            if scale < LEAST_LOSS_SCALE:
                raise DivergedError(
                    f"gradients overflow at step {done - 1} with a loss scale as small as "
                    f"{scale:g}. {ADVICE}"
                )
        if (done % config.eval_steps == 0 or at_end) and self._evaluate(done):
            self._save(self.folder.best, done)
        stop = _any_process(self.fabric, self.interrupt.requested) and not at_end
        if done % config.checkpoint_steps == 0 or at_end or stop:
            self.log.log(done)
            trainer.rebuild_gp()
            self._save(self.folder.last, done)
        if stop:
            self._finish(done, "stopped")
            # A launcher may kill all processes once one has ended: none ends before all is saved.
            self.fabric.barrier()
            raise Stopped(
                f"stopped after step {done} of {config.steps}; everything is saved in "
                f"{self.folder.path}."
            )

    def _evaluate(self, step: int) -> bool:
        began = time.perf_counter()
        current = self.current
        last = step == self.experiment.train.steps
        current.trainer.show_blank()
        evaluation = evaluate_run(
            self.experiment,
            current.trainer,
            current.splits,
            current.loader,
            self.groups,
            last=last,
            label_probs=self.label_probs,
        )
        return self.log.evaluated(step, evaluation, last=last, seconds=time.perf_counter() - began)

    @cached_property
    def label_probs(self) -> dict[Part, NDArray[np.float64]] | None:
        """Return what the label head reports at every step, for the parts that are evaluated."""
        if self.label_head is None:
            return None
        splits = self.data.splits
        parts: dict[Part, ImageSet | None] = {
            "validation": splits.validation,
            "test": splits.test,
        }
        return {
            part: self.label_head.probs(images)
            for part, images in parts.items()
            if images is not None
        }

    def _save(self, path: Path, step: int) -> None:
        """Write everything at the end of a step into one file, in the first process."""
        current = self.current
        trainer = current.trainer
        trainer.show_blank()
        state: JsonObject = {
            "step": step,
            "journal": self.log.state(),
            "precision": trainer.precision_state(),
            "generation": current.number,
            "labeled_counts": [int(count) for count in current.splits.class_counts],
            "experiment": self.experiment.to_plain(),
            "split": self.facts,
        }
        # Called in every process: the members of an ensemble may be spread over them.
        tensors = trainer.tensors()
        if current.number:
            tensors["generation"] = {"labels": torch.from_numpy(current.labels)}
        if self.label_head is not None:
            tensors["label_head"], state["label_head"] = self.label_head.stored()
        if self.folder.writes:
            write_checkpoint(path, tensors, state)

    def _finish(self, step: int, status: Literal["finished", "stopped"]) -> RunSummary:
        trainer = self.current.trainer
        # Where nothing was evaluated, as for a run that is loaded.
        head = self.log.head or unevaluated_head(trainer, has_label=self.label_head is not None)
        facts: RunSummary = {
            "status": status,
            "label": self.experiment.label,
            "processes": self.fabric.world_size,
            "class_groups": self.groups,
            "gp": trainer.refiner.facts(),
        }
        return self.log.finish(step, head, facts)

    def _notes(self) -> Iterator[str]:
        """Yield what the reader of a run should know before it begins."""
        experiment = self.experiment
        current = self.current
        yield from current.splits.notes
        warmup_steps = experiment.refiner.warmup_steps
        if current.trainer.algorithm.views and warmup_steps >= current.steps:
            yield (
                f"The refiner's warm-up, {warmup_steps} steps, is no shorter than training, "
                f"{current.steps} steps, so no pseudo-label is refined; lower refiner.warmup_steps."
            )
        train = experiment.train
        if train.precision_on(self.fabric.device.type) != train.precision:
            yield (
                f"train.precision={train.precision} needs a GPU; on this CPU the network computes "
                "in float32."
            )
        has_threshold = experiment.algorithm.has_threshold
        yield from current.trainer.refiner.notes(has_threshold=has_threshold)

    def _fill_rings(self) -> None:
        """Bring a balanced buffer into balance, which is done when the refiner begins to act."""
        current = self.current
        trainer = current.trainer
        labeled = current.splits.labeled
        if trainer.refiner.entries_per_class:
            seed = self.experiment.seed
            fill_rings(trainer.refiner, trainer.asked, current.loader, labeled, seed)

    # Generations ----------------------------------------------------------------------------------

    def _generation(self, number: int, labels: Integers | None = None) -> Generation:
        """Return generation ``number``, fresh, with the labels (u,) that the one before gave."""
        splits, source = own_splits, own_source = self.data
        labels = np.full(len(splits.unlabeled), -1) if labels is None else labels
        if (labels >= 0).any():
            own_splits, own_source = join(splits, labels, source)
        trainer = assemble(
            self.experiment,
            own_splits.class_counts,
            self.fabric,
            n_unlabeled=len(splits.unlabeled),
            original_counts=splits.class_counts,
            cached_width=source.width if isinstance(source, CachedFeatures) else None,
            blank=blank_input(self.experiment, self.fabric.device),
        )
        first, last = generation_steps(self.experiment, number)
        loader = EvaluationLoader(
            [splits.labeled, *(images for _, images in own_splits.parts())],
            own_source,
            batch_size=self.experiment.train.eval_batch,
            workers=self.workers,
            device=self.fabric.device,
        )
        return Generation(number, first, last, labels, own_splits, own_source, trainer, loader)

    def _resumed(self, saved: Checkpoint) -> Generation:
        """Return the generation in which a checkpoint was written, in its state."""
        number = int(saved.state["generation"])
        tensor = saved.part("generation").get("labels")
        labels = None if tensor is None else tensor.numpy()
        if labels is not None:
            self._check_labels(number, labels)
        generation = self._generation(number, labels)
        generation.trainer.restore(saved)
        return generation

    def _check_labels(self, number: int, labels: Integers) -> None:
        splits = self.data.splits
        size = len(splits.unlabeled)
        in_range = -1 <= labels.min() <= labels.max() < splits.n_classes
        if labels.shape != (size,) or not in_range:
            raise CheckpointError(
                f"the checkpoint of generation {number} has labels for {len(labels)} images, with "
                f"classes {labels.min()} to {labels.max()}; the data have {size} unlabelled images "
                f"and {splits.n_classes} classes. Put the run folder back as it was, or train "
                "again in another one."
            )

    def _following(self) -> tuple[Generation, str]:
        """Return the next generation, and a note about it.

        The network labels all of U as in evaluation, without a GP; the add-on chooses, and
        everything starts afresh with these labels.
        """
        trainer = self.current.trainer
        number = self.current.number + 1
        with self.current.loader as loader:
            outputs = survey(trainer.evaluated, self.data.splits, loader)
        labels = trainer.addon.relabel(outputs).cpu().numpy().astype(np.int64)
        generation = self._generation(number, labels)
        joined = labels[labels >= 0]
        note = f"Generation {number + 1} begins without further labels: no image was chosen."
        if len(joined):
            counts = np.bincount(joined, minlength=self.data.splits.n_classes).tolist()
            note = (
                f"Generation {number + 1} begins with {len(joined)} more images, labelled by the "
                f"one before, by class {counts}."
            )
        return generation, note


def take_step(
    trainer: Trainer, batch: Batch, clock: Clock, config: TrainConfig
) -> tuple[StepOutput, float]:
    """Take one step of the optimiser and the moving average; return output and learning rate."""
    step = clock.step
    rate = set_rate(trainer.optimizer, step, config)
    try:
        output = trainer.algorithm.step(trainer.networks, batch, clock)
    except ValueError as error:  # a GP rejects features that are not finite before there is a loss
        if trainer.still_finite(batch.x):
            raise
        raise DivergedError(
            f"the network's features contain NaN or infinity at step {step}. {ADVICE}"
        ) from error
    loss = float(output.loss.detach())
    if not math.isfinite(loss):
        parts = ", ".join(
            f"{name} {float(value.detach()):g}" for name, value in output.metrics.items()
        )
        raise DivergedError(
            f"the loss is {loss} at step {step} ({parts}; learning rate {rate:g}). {ADVICE}"
        )
    trainer.optimizer.zero_grad(set_to_none=True)
    trainer.fabric.backward(output.loss)
    if trainer.fabric.world_size > 1:
        sum_gradients(trainer.model, trainer.fabric)
    if config.clip_norm:
        trainer.fabric.clip_gradients(
            trainer.networks.student,
            trainer.optimizer,
            max_norm=config.clip_norm,
            error_if_nonfinite=False,
        )
    trainer.optimizer.step()
    if trainer.average is not None:
        update_average(trainer.average, trainer.model, config.ema)
    return output, rate


def _any_process(fabric: Fabric, flag: bool) -> bool:
    """Return whether ``flag`` is set in any process; the result is the same in all."""
    if fabric.world_size == 1:
        return flag  # a tensor on a GPU would have to be waited for
    return bool(fabric.all_reduce(torch.tensor(float(flag), device=fabric.device), reduce_op="sum"))


@contextmanager
def _own_random_numbers(experiment: Experiment) -> Iterator[None]:
    """Seed torch for the run; restore the caller's generator, threads and TF32 afterwards."""
    with (
        torch.random.fork_rng(),
        using(experiment.train.threads or allowed()),
        products_in(experiment.train.tf32),
    ):
        torch.manual_seed(experiment.seed)
        yield
