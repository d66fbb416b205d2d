"""A finished run put to use: its network and its GP, on images of any kind."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import with_config
from torch import nn
from typing_extensions import TypedDict

from semigpc.data import DATASETS, Augment, DataError, EvaluationBatch, ImageSet, Splits, ViewSource, eval_loader, weights_hash
from semigpc.files import RELAXED, Sha256
from semigpc.models import OnFrozen
from semigpc.refiners import GaussianProcessRefiner
from semigpc.threads import allowed, using
from semigpc.training.evaluate import Predictions, gp_of, headline_head, predict, refilled
from semigpc.training.experiment import Experiment, name_of
from semigpc.training.frozen import frozen_backbone
from semigpc.training.run_folder import Choice, RunError, RunFolder, SplitFacts, read_json
from semigpc.training.state import assemble, build_fabric

Part = Literal["test", "validation"]


@with_config(RELAXED)
class FeatureOrigin(TypedDict):
    """``features.json``: the network that made the features of a run, of which only the weights matter here."""

    weights: Sha256


@dataclass(frozen=True)
class LoadedRun:
    """What a run learnt, ready to answer.

    ``network`` is the one that was evaluated in training, in evaluation mode; ``gp`` is None if the run had none; ``head`` is
    the one whose figures stand in the tables; ``step`` is where the ``checkpoint`` was written.
    """

    folder: RunFolder
    experiment: Experiment
    split: SplitFacts
    network: nn.Module
    gp: GaussianProcessRefiner | None
    head: str
    source: ViewSource
    device: torch.device
    checkpoint: Choice
    step: int

    @property
    def class_names(self) -> tuple[str, ...]:
        """(C,)."""
        return tuple(self.split["class_names"])

    @property
    def groups(self) -> dict[str, list[int]]:
        """Class ids of many, medium and few."""
        return self.split["class_groups"]

    def predict(self, images: ImageSet, *, on_batch: Callable[[int], None] | None = None) -> Predictions:
        """Probabilities of M images by each head; ``on_batch`` hears how many images were just done."""
        batches = eval_loader(images, self.source, batch_size=self.experiment.train.eval_batch, workers=0)
        with using(self.experiment.train.threads or allowed()):
            return predict(self.network, self.gp, _counted(batches, on_batch), self.device)

    def has(self, name: Part) -> bool:
        """Whether the run had such images."""
        return bool(self._counts(name))

    def _counts(self, name: Part) -> list[int] | None:
        return self.split["test_counts"] if name == "test" else self.split["validation_counts"]

    def part(self, name: Part) -> "tuple[LoadedRun, ImageSet]":
        """Test or validation images of the run's own data, and the run as it was judged on them.

        The data are read again and must still be what they were, as far as this part is concerned.
        """
        data = self.experiment.data
        try:
            splits: Splits = DATASETS[name_of("data", data)].load(data, self.experiment.seed)
        except DataError as error:
            raise DataError(f"{error} The data are those that {self.folder.config} names.") from error
        images = splits.test if name == "test" else splits.validation
        if images is None:
            raise RunError(f"{self.folder.path} has no {name} images. Give some with --data, or another --part.")
        before = self.folder.split_names(name)
        now = np.bincount(images.labels, minlength=splits.n_classes).tolist()
        if splits.class_names != self.class_names or list(images.names) != before or now != self._counts(name):
            raise RunError(
                f"the {name} images or their classes have changed since {self.folder.path} was trained: "
                f"{len(self.class_names)} classes and {len(before)} images then, {splits.n_classes} and {len(images)} now. "
                "Put them back as they were, or give images to judge by with --data."
            )
        if self.gp is None or not self.gp.config.rebuilt_for_evaluation:
            return self, images
        batch = self.experiment.train.eval_batch
        gp = refilled(self.gp, self.network, splits.labeled, self.source, batch=batch, device=self.device)
        return replace(self, gp=gp), images


def load_run(path: Path, choice: Choice | None = None) -> LoadedRun:
    """Read a run folder; the training data need not be there.

    Args:
        path: of the folder.
        choice: the checkpoint that was best on validation, or the last one; without it the best, if there is one.
    """
    folder = RunFolder(path)
    experiment = folder.experiment()
    split = folder.read_split()
    choice = choice or ("best" if folder.best.exists() else "last")
    file = folder.best if choice == "best" else folder.last
    if not file.exists():
        why = "it had no validation images" if folder.last.exists() else "it was stopped too early"
        raise RunError(f"{path} has no {choice} checkpoint: {why}. Choose another, or train on with --resume.")
    saved = folder.checkpoint(choice, experiment, split)
    original, counts = np.array(split["labeled_counts"]), np.array(saved.state["labeled_counts"])
    fabric, n_unlabeled = build_fabric(experiment), split["unlabeled"]
    with torch.random.fork_rng():
        if experiment.frozen is None:  # every weight comes from the checkpoint
            bare = replace(experiment, model=replace(experiment.model, pretrained=None))
            trainer = assemble(bare, counts, fabric, n_unlabeled=n_unlabeled, original_counts=original)
        else:
            width = saved.part("model")["backbone.hidden.weight"].shape[1]
            trainer = assemble(
                experiment, counts, fabric, n_unlabeled=n_unlabeled, original_counts=original, cached_width=width
            )
    trainer.restore_networks(saved)
    network = trainer.evaluated
    if experiment.frozen is not None:
        network = OnFrozen(_same_backbone(folder, experiment, fabric.device), network)
    return LoadedRun(
        folder,
        experiment,
        split,
        network.eval(),
        gp_of(trainer.refiner),
        headline_head(trainer.refiner),
        Augment(experiment.augment),
        trainer.fabric.device,
        choice,
        saved.state["step"],
    )


def _same_backbone(folder: RunFolder, experiment: Experiment, device: torch.device) -> nn.Module:
    """The frozen network that a run's features came from, and no other."""
    backbone = frozen_backbone(experiment.model, device)
    made_by = read_json(folder.features, "the run does not say what made its features", FeatureOrigin)
    if weights_hash(backbone.state_dict()) != made_by["weights"]:
        raise RunError(
            f"{folder.path} was trained on features of {experiment.model.name} with other weights than it finds now "
            f"(model.pretrained is {experiment.model.pretrained!r}). Put those back; on others its answers mean nothing."
        )
    return backbone


def _counted(batches: Iterable[EvaluationBatch], on_batch: Callable[[int], None] | None) -> Iterator[EvaluationBatch]:
    for batch in batches:
        yield batch
        if on_batch is not None:
            on_batch(len(batch.labels))
