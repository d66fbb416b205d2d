"""Use a run: its network and its GP, on its own test images or on others, labelled or not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import nn

from semigpc.data import (
    ArraysConfig,
    Augment,
    EvaluationBatch,
    EvaluationLoader,
    ImageSet,
    ViewSource,
)
from semigpc.data.arrays import labeled_and_unlabeled, read_npz, unlabeled_images
from semigpc.data.folder import FolderConfig, Listing, class_folders, from_table
from semigpc.data.loaders import worker_count
from semigpc.io.errors import DataError, RunError, SettingsError
from semigpc.io.images import ArrayImages, FileImages
from semigpc.io.paths import Bad, existing, files_at
from semigpc.io.tables import is_table
from semigpc.io.text import listed
from semigpc.io.threads import allowed, using
from semigpc.models import OnFrozen
from semigpc.models.encoder import frozen_backbone, weights_hash
from semigpc.refiners import GaussianProcessRefiner
from semigpc.training.evaluate import (
    Predictions,
    predict,
    refilled,
    unevaluated_head,
)
from semigpc.training.experiment import Experiment, settings_of
from semigpc.training.label_head import LabelHead
from semigpc.training.metrics import Head, Part
from semigpc.training.run_folder import (
    HEADS,
    Checkpoint,
    Choice,
    LogState,
    RunFolder,
    SplitFacts,
    Standing,
    standing,
)
from semigpc.training.state import (
    DataCache,
    Trainer,
    assemble,
    build_fabric,
    products_in,
    stored_label_head,
)

HeadChoice = Literal["auto", "linear", "gp", "label"]


@dataclass(frozen=True)
class LoadedRun:
    """What a run learnt, ready to predict.

    ``network`` is the one that was evaluated in training, in evaluation mode; ``gp`` is None if the
    run had none; ``head`` is the one that was chosen at ``step``, where the ``checkpoint`` was
    written; ``temperatures`` scale the confidence of each head, 1 where there is none.
    ``label_head`` is on rows of its own; None if the run had none.
    """

    folder: RunFolder
    experiment: Experiment
    split: SplitFacts
    network: nn.Module
    gp: GaussianProcessRefiner | None
    head: Head
    temperatures: Mapping[Head, float]
    source: ViewSource
    device: torch.device
    checkpoint: Choice
    step: int
    label_head: LabelHead | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """(C,)."""
        return tuple(self.split["class_names"])

    @property
    def groups(self) -> dict[str, list[int]]:
        """Class ids of many, medium and few."""
        return self.split["class_groups"] or {}

    @property
    def is_calibrated(self) -> bool:
        """Whether the confidence of the judged head was calibrated."""
        return self.head == "label" or bool(self.temperatures)

    def predict(
        self,
        images: ImageSet,
        *,
        heads: Sequence[Head] = HEADS,
        on_batch: Callable[[int], None] | None = None,
    ) -> Predictions:
        """Return calibrated probabilities by each head that the run has.

        Args:
            images: M of them. heads: those that are needed; others may be there too.
            on_batch: called with the size of each batch.
        """

        def batches(loader: EvaluationLoader) -> Iterator[EvaluationBatch]:
            for batch in loader.batches(images):
                yield batch
                if on_batch is not None:
                    on_batch(len(batch.labels))

        if self.label_head is not None and tuple(heads) == ("label",):
            return Predictions({"label": self._by_label(images, on_batch)}, images.labels)
        train = self.experiment.train
        with (
            self._loader(images) as loader,
            using(train.threads or allowed()),
            products_in(train.tf32),
        ):
            found = predict(self.network, self.gp, batches(loader)).calibrated(self.temperatures)
        if self.label_head is not None and "label" in heads:
            found.probs["label"] = self.label_head.probs(images)
        return found

    def _by_label(
        self, images: ImageSet, on_batch: Callable[[int], None] | None
    ) -> NDArray[np.float64]:
        """Return what the label head reports; ``on_batch`` receives how many more are embedded."""
        assert self.label_head is not None
        done = 0

        def embedded(count: int, _: int) -> None:
            nonlocal done
            if on_batch is not None:
                on_batch(count - done)
            done = count

        probs = self.label_head.probs(images, embedded)
        embedded(len(images), len(images))  # those with an embedding are not counted before
        return probs

    def heads(self, choice: HeadChoice) -> tuple[Head, ...]:
        """Return the chosen head; for ``auto`` all that can predict, the judged one first."""
        trained = self.gp is not None and len(self.gp.engine) > 0
        if choice == "gp" and not trained:
            why = f"had no labels in its GP at step {self.step}"
            if self.gp is None:
                why = "was trained without a GP"
            raise SettingsError(f"{self.folder.path} {why}, so it has no GP head. Use head=auto.")
        if choice == "label" and self.label_head is None:
            raise SettingsError(
                f"{self.folder.path} has no label head: runs on cached features of your own images "
                "have one (frozen.label_head). Use head=auto."
            )
        if choice != "auto":
            return (choice,)
        present = {"linear": True, "gp": trained, "label": self.label_head is not None}
        known: list[Head] = [head for head in HEADS if present[head]]
        return tuple(sorted(known, key=lambda head: head != self.head))

    def _loader(self, images: ImageSet) -> EvaluationLoader:
        train = self.experiment.train
        workers = worker_count(train.workers, images.images, self.source)
        return EvaluationLoader(
            [images], self.source, batch_size=train.eval_batch, workers=workers, device=self.device
        )

    def has(self, name: Part) -> bool:
        """Return whether the run had such images."""
        return bool(self._counts(name))

    def _counts(self, name: Part) -> list[int] | None:
        return self.split["test_counts"] if name == "test" else self.split["validation_counts"]

    def part(self, name: Part) -> "tuple[LoadedRun, ImageSet]":
        """Return test or validation images of the run, and the run as it was evaluated on them.

        The data are read again and must not have changed, as far as this part is concerned.
        """
        try:
            splits = DataCache().splits(self.experiment.data, self.experiment.seed)
        except DataError as error:
            message = f"{error} The data are those that {self.folder.config} names."
            raise DataError(message) from error
        images = splits.test if name == "test" else splits.validation
        if images is None:
            raise RunError(
                f"{self.folder.path} has no {name} images. Give some by data=..., or use another "
                "part=..."
            )
        before = self.folder.split_names(name)
        counts = np.bincount(images.labels, minlength=splits.n_classes).tolist()
        same_images = list(images.names) == before and counts == self._counts(name)
        if splits.class_names != self.class_names or not same_images:
            raise RunError(
                f"the {name} images or their classes have changed since {self.folder.path} was "
                f"trained: {len(self.class_names)} classes and {len(before)} images then, "
                f"{splits.n_classes} and {len(images)} now. Put them back as they were, or give "
                "images to evaluate on by data=..."
            )
        if self.gp is None or not self.gp.config.rebuilt_for_evaluation:
            return self, images
        with self._loader(splits.labeled) as loader:
            return replace(self, gp=refilled(self.gp, self.network, loader, splits.labeled)), images


def load_run(path: Path, choice: Choice | None = None) -> LoadedRun:
    """Read a run folder; the training data need not be there.

    Args:
        path: of the folder.
        choice: the checkpoint that was best on validation, or the last one; without it the best, if
            there is one.
    """
    folder = RunFolder(path)
    experiment = folder.experiment()
    split = folder.read_split()
    present = _present(folder, choice)
    saved = folder.checkpoint(present, experiment, split)
    fabric = build_fabric(experiment)
    trainer = _restored_trainer(experiment, split, fabric, saved)
    network = trainer.evaluated
    if experiment.frozen is not None:
        network = OnFrozen(_same_backbone(folder, experiment, fabric.device), network)
    log: LogState = saved.state["journal"]
    label_head = stored_label_head(experiment, saved)
    head = log.get("head") or unevaluated_head(trainer, has_label=label_head is not None)
    step: int = saved.state["step"]
    if choice is None:
        _check_standing(folder, Standing(present, step, head), log)
    return LoadedRun(
        folder=folder,
        experiment=experiment,
        split=split,
        network=network.eval(),
        gp=trainer.gp,
        head=head,
        temperatures=log.get("temperatures", {}),
        source=Augment(experiment.augment),
        device=trainer.fabric.device,
        checkpoint=present,
        step=step,
        label_head=label_head,
    )


def _restored_trainer(
    experiment: Experiment, split: SplitFacts, fabric: Fabric, saved: Checkpoint
) -> Trainer:
    """Return the networks and the algorithm of a checkpoint, from which every weight comes."""
    width = None
    if experiment.frozen is not None:
        width = saved.part("model")["backbone.hidden.weight"].shape[1]
    untrained = replace(experiment, model=replace(experiment.model, pretrained=None))
    with torch.random.fork_rng():
        trainer = assemble(
            untrained,
            np.array(saved.state["labeled_counts"]),
            fabric,
            n_unlabeled=split["unlabeled"],
            original_counts=np.array(split["labeled_counts"]),
            cached_width=width,
        )
    trainer.restore_networks(saved)
    return trainer


def _present(folder: RunFolder, choice: Choice | None) -> Choice:
    """Return which checkpoint to read: the chosen one, else the best, which a run may not have."""
    choice = choice or ("best" if folder.best.exists() else "last")
    if (folder.best if choice == "best" else folder.last).exists():
        return choice
    why = "it had no validation images" if folder.last.exists() else "it was stopped too early"
    raise RunError(
        f"{folder.path} has no {choice} checkpoint: {why}. Choose another, or resume the run."
    )


def _check_standing(folder: RunFolder, loaded: Standing, log: LogState) -> None:
    """Raise a :class:`RunError` if a checkpoint is not the one that its run stands for."""
    meant = standing(log["results"], loaded.step, loaded.head)
    if meant != loaded:
        raise RunError(
            f"{folder.path} stands for its {meant.checkpoint} checkpoint, of step {meant.step}, "
            f"which is missing: {folder.best}. Put it back, or use checkpoint={loaded.checkpoint}."
        )


def _same_backbone(folder: RunFolder, experiment: Experiment, device: torch.device) -> nn.Module:
    """Return the frozen network that a run's features came from, and no other."""
    with settings_of("model"):
        backbone = frozen_backbone(experiment.model, device)
    if weights_hash(backbone.state_dict()) != folder.feature_origin().get("weights"):
        raise RunError(
            f"{folder.path} was trained on features of {experiment.model.name} with other weights "
            f"than those found now (model.pretrained is {experiment.model.pretrained!r}). Put "
            "those back: with others its predictions mean nothing."
        )
    return backbone


def images_to_evaluate(
    run: LoadedRun,
    data: Path,
    labels: Path | None = None,
    *,
    partial: bool = False,
    follow_links: bool = False,
    trust_pseudo: bool = False,
) -> tuple[ImageSet, tuple[str, ...]]:
    """Return labelled images, and notes for the user.

    Classes are looked up by name among those of the run.

    Args:
        run: whose classes count.
        data: a folder of class folders, a table beside its images, or an ``.npz`` file with x_test
            and y_test.
        labels: a table for a folder whose sub-folders are no classes; rows without a label are
            skipped.
        partial: let classes of the run be absent.
        follow_links: use links that lead out of the folder.
        trust_pseudo: take labels of the table that semigpc itself gave out or predicted.
    """
    path = existing(data, "The data to evaluate on")
    if path.suffix == ".npz":
        images = _from_arrays(run, path, labels)
        notes: tuple[str, ...] = ()
    else:
        listing = _list_files(
            run, path, labels, follow_links=follow_links, trust_pseudo=trust_pseudo
        )
        images = _named_images(run, listing, labels or path)
        notes = listing.notes
    occurring = set(images.labels.tolist())
    absent = [name for c, name in enumerate(run.class_names) if c not in occurring]
    if absent and not partial:
        raise DataError(
            f"the run has {len(run.class_names)} classes, and {data} has images of "
            f"{len(occurring)}: none of {listed(absent)}. Add some, or use partial=True to "
            "evaluate on the classes that are there."
        )
    return images, notes


def images_at(
    paths: Sequence[Path], *, follow_links: bool = False, skipped: list[Bad] | None = None
) -> ImageSet:
    """Return images without labels: files, all below folders, or those of one .npz file.

    Each is listed once.

    Args:
        paths: of files and folders, or of one .npz file as for :func:`semigpc.data.arrays.load`.
        follow_links: use links that lead out of a folder.
        skipped: filled with what cannot be used in folders, each with the reason, instead of an
            error.
    """
    if [path.suffix for path in paths] == [".npz"]:
        return _unlabeled_arrays(paths[0])
    files = files_at(paths, follow_links=follow_links, skipped=skipped)
    return ImageSet(
        FileImages(list(files), cache_bytes=0),
        np.full(len(files), -1),
        list(files.values()),
    )


def _unlabeled_arrays(path: Path) -> ImageSet:
    """Return x_unlabeled of a file, or else the images whose label is -1."""
    arrays = read_npz(path, ("x_unlabeled", "x_labeled", "y_labeled"))
    x_unlabeled = arrays.get("x_unlabeled")
    if x_unlabeled is not None and len(x_unlabeled):
        return unlabeled_images(x_unlabeled)
    if {"x_labeled", "y_labeled"} <= arrays.keys():
        _, images = labeled_and_unlabeled(arrays["x_labeled"], arrays["y_labeled"])
        if len(images):
            return images
    raise DataError(f"{path} has no unlabelled images, in x_unlabeled or with -1 in y_labeled.")


def _list_files(
    run: LoadedRun, path: Path, labels: Path | None, *, follow_links: bool, trust_pseudo: bool
) -> Listing:
    """List the images of a table, or of class folders."""
    if labels is not None or is_table(path):
        table = path if labels is None else existing(labels, "The table of labels", path)
        root = path.parent if labels is None else path
        return from_table(table, root, follow_links=follow_links, trust_pseudo=trust_pseudo)
    # the sub-folder that was not a class in training either
    data = run.experiment.data
    unlabeled = data.unlabeled if isinstance(data, FolderConfig) else None
    return class_folders(path, unlabeled=unlabeled, follow_links=follow_links)


def _named_images(run: LoadedRun, listing: Listing, place: Path) -> ImageSet:
    """Return the labelled images of a listing, which was made of the table or folder ``place``."""
    named = {name: label for name, label in listing.labels.items() if label is not None}
    if not named:
        raise DataError(f"{place} has no labelled image to evaluate on. Fill in the labels.")
    numbers = _numbers(run, list(named.values()))
    return ImageSet(
        FileImages([listing.root / name for name in named], cache_bytes=0), numbers, list(named)
    )


def _from_arrays(run: LoadedRun, path: Path, labels: Path | None) -> ImageSet:
    if labels is not None:
        raise DataError(f"{path} contains its labels, y_test; leave out the parameter labels.")
    arrays = read_npz(path, ("x_test", "y_test"))
    if len(arrays) < 2:
        present = listed(list(arrays)) or "neither"
        raise DataError(f"{path} must contain x_test and y_test to evaluate on; it has {present}.")
    x = arrays["x_test"]
    y = arrays["y_test"]
    if y.ndim != 1 or y.dtype.kind not in "iu" or len(x) != len(y) or not len(y) or y.min() < 0:
        raise DataError(
            f"y_test must contain one class, 0 or more, for each of the {len(x)} images; got "
            f"{y.dtype} {y.shape}."
        )
    names = [str(c) for c in y.tolist()]
    if isinstance(run.experiment.data, ArraysConfig):  # classes are numbers there
        names = [run.class_names[c] if c < len(run.class_names) else str(c) for c in y.tolist()]
    return ImageSet(ArrayImages(x), _numbers(run, names), [f"x_test/{i}" for i in range(len(x))])


def _numbers(run: LoadedRun, names: Sequence[str]) -> NDArray[np.int64]:
    known = {name: c for c, name in enumerate(run.class_names)}
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise DataError(
            f"the data have images of {listed(unknown)}, and the run was trained on "
            f"{listed(run.class_names)}. Rename the class, leave it out, or train with it."
        )
    return np.array([known[name] for name in names], dtype=np.int64)
