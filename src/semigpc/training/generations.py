"""A run in generations: each starts with a fresh network, and with the labels that the one before it gave."""

from dataclasses import dataclass

import numpy as np
import torch
from lightning_fabric import Fabric

from semigpc.data import CachedFeatures, Splits, ViewSource
from semigpc.data.dataset import Integers
from semigpc.data.feature_cache import join
from semigpc.training.checkpoint import Checkpoint, CheckpointError
from semigpc.training.experiment import Experiment
from semigpc.training.state import Trainer, assemble
from semigpc.training.survey import survey


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
