"""Your own images: sensible settings for a few hundred to some thousand of them, on a CPU or a GPU."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from semigpc.algorithms import CoMatchConfig
from semigpc.data import ArraysConfig, AugmentConfig, DataError, FolderConfig, Splits
from semigpc.data.arrays import load as load_arrays
from semigpc.data.folder import load as load_folder
from semigpc.models import MODELS, ModelConfig
from semigpc.models.backbones import VITS
from semigpc.refiners import GPConfig, SimilarityConfig, auto_logit_scale
from semigpc.training import Experiment, TrainConfig
from semigpc.training.experiment import config_type

TINY = 32  # pixels a side, up to which images are used as they are
LOOKED_AT = 16  # images, to find out how large they are
ENOUGH_TO_VALIDATE = 5  # labels of each class
VALIDATION = 0.2
TIMM_SIZE = 224
PRIOR_SCALE = 1.7  # the class prior lowers posterior means, so lambda has to be larger; chosen on digits, where it makes 11


@dataclass(frozen=True)
class OwnData:
    """A user's images, listed once: how to read them, and what the listing says about the other settings.

    Args:
        config: reads the images in every run. n_classes: of the labels. largest_side: of the first labelled images, in pixels.
        judged: whether some labelled images are kept out of training, for test or validation.
    """

    config: FolderConfig | ArraysConfig
    n_classes: int
    largest_side: int
    judged: bool

    def experiment(
        self, *, algorithm: str, refiner: str, model: str | None = None, image_size: int | None = None, seed: int = 0
    ) -> Experiment:
        """Return an experiment on these images; two minutes on two CPU cores with the small network.

        Args:
            algorithm, refiner: by name.
            model: by name; without one the small CNN, which suits a CPU.
            image_size: pixels a side; without it what suits the model and the images.
            seed: of the run.
        """
        chosen, memory = config_type("algorithm", algorithm)(), config_type("refiner", refiner)()
        if isinstance(chosen, CoMatchConfig):
            chosen = replace(chosen, queue_batches=8)
        if isinstance(memory, GPConfig):
            scale = round(PRIOR_SCALE * auto_logit_scale(self.n_classes), 2)
            memory = replace(memory, buffer_size=2048, class_prior="frequency", logit_scale=scale, warmup_steps=100)
        if isinstance(memory, SimilarityConfig):
            memory = replace(memory, buffer_size=2048, warmup_steps=100)
        name = model or "small_cnn"
        largest, size = self.largest_side, image_size
        if size is None:
            size = _own_size(name) or min(largest, TINY)
        small, transformer = name == "small_cnn", name in VITS or name.startswith(("vit", "deit"))
        return Experiment(
            data=self.config,
            augment=AugmentConfig(image_size=size, style="pad" if largest <= TINY or size <= TINY else "resize"),
            model=ModelConfig(name=name, image_size=size if transformer else None),
            algorithm=chosen,
            refiner=memory,
            train=TrainConfig(
                steps=1000,
                epoch_steps=100,
                labeled_batch=16,
                unlabeled_ratio=3,
                lr=2e-3 if small else 5e-4,
                layer_decay=0.5 if transformer else 1.0,
                warmup_steps=20,
                ema=0.99,
                eval_steps=100,
                checkpoint_steps=100,
                log_steps=50,
                workers=0 if largest <= TINY else 2,
            ),
            seed=seed,
        )


def own_folder(
    root: Path,
    *,
    labels: str | None = None,
    test: str | None = None,
    validation: float | str | None = None,
    seed: int = 0,
    follow_links: bool = False,
) -> OwnData:
    """List a folder of images, with a table of labels or one sub-folder for each class; see :class:`FolderConfig`.

    Args:
        root, labels, test: as in :class:`FolderConfig`. validation: the same; without it a fifth of the labels, if every class
            has five.
        seed: of the run. follow_links: use links that lead out of the folder.
    """
    config = FolderConfig(
        root=str(root),
        labels=labels,
        test=test,
        validation=0.0 if validation is None else validation,
        follow_links=follow_links,
    )
    return _own_data(config, load_folder(config, seed), hold_out=validation is None)


def own_arrays(path: Path, *, validation: float | None = None, seed: int = 0) -> OwnData:
    """List an ``.npz`` file of arrays, see :class:`ArraysConfig`; ``validation`` as in :func:`own_folder`."""
    config = ArraysConfig(path=str(path), validation=validation or 0.0)
    return _own_data(config, load_arrays(config, seed), hold_out=validation is None)


def _own_data(config: FolderConfig | ArraysConfig, splits: Splits, *, hold_out: bool) -> OwnData:
    """``hold_out``: take a part of the labels for validation if there is none, and if every class has enough."""
    judged = splits.test is not None or splits.validation is not None
    if hold_out and splits.validation is None and splits.class_counts.min() >= ENOUGH_TO_VALIDATE:
        config, judged = replace(config, validation=VALIDATION), True
    return OwnData(config, splits.n_classes, _largest_side(splits), judged)


def _largest_side(splits: Splits) -> int:
    """Of the first labelled images, in pixels."""
    sides = [max(splits.labeled[i].size) for i in range(min(LOOKED_AT, len(splits.labeled)))]
    largest = int(np.max(sides))
    if largest < 2:
        raise DataError(f"Images must be larger than one pixel; {splits.labeled.names[0]} is {splits.labeled[0].size}.")
    return largest


def _own_size(name: str) -> int | None:
    """The image a network is made for, or None if it takes any."""
    if name in VITS:
        return VITS[name].image_size
    return None if name in MODELS else TIMM_SIZE
