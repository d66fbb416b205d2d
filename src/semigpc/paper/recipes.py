"""The paper's experiments: in full, and reduced to what a machine without a GPU can run.

In full is USB's recipe for vision transformers, which the paper follows: 204 800 steps, pre-trained
networks, a buffer of 16 300. Reduced experiments compare algorithms with each other, and refiners
with their base; their figures are not comparable with published ones.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Required

from typing_extensions import TypedDict, Unpack

from semigpc.data import AugmentConfig, CifarConfig, SplitConfig
from semigpc.data.augment import CIFAR100_MEAN, CIFAR100_STD, IMAGENET_MEAN, IMAGENET_STD, Triple
from semigpc.io.errors import SettingsError
from semigpc.models import ModelConfig
from semigpc.models.backbones import VITS
from semigpc.models.pretrained import WEIGHTS, WeightFile, find_weights
from semigpc.paper.fgvc import FGVCConfig, Name
from semigpc.training import Experiment, TrainConfig
from semigpc.training.experiment import config_type
from semigpc.training.presets import on_cached_features

Pretraining = Literal["supervised", "dino", "msn"]
BUFFER = 16_300  # labelled features that a refiner keeps
WARMUP = 1024  # steps before a refiner acts
AVERAGED = 0.999  # momentum of the moving average, where an algorithm has one
TRAINING_IMAGES = 50_000  # of either CIFAR
PAPER_LABELS = 4  # of each class, in setting B
SMALL_SIDE = 16  # pixels, of CIFAR without a GPU
SMALL_PHOTOGRAPH_SIDE = 48  # pixels, of photographs without a GPU
# Tails are this many times shorter without a GPU, so that features take minutes: 2000 of 5000
# unlabelled and 600 of 1500 labelled images of the largest class.
TAIL_REDUCTION = 2.5


# In full ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One row of the paper's table of data sets.

    Args:
        backbone, image_size, lr, layer_decay: of the network. n_classes, test_images: of the data.
        similarity: temperature T of SimMatch's similarities, and l^2 of the GP, which has its role.
        averaged: momentum of the moving average in SimMatch and CoMatch.
        small: images of 32 pixels, padded and cropped, and SimMatch's bank a running average;
            otherwise photographs that are resized, and a bank written by the moving average.
        mean, std: of the normalisation.
    """

    backbone: str = "vit_small_patch16_224"
    image_size: int = 224
    lr: float = 1e-3
    layer_decay: float = 0.65
    n_classes: int
    test_images: int
    similarity: float = 0.2
    averaged: float = AVERAGED
    small: bool = False
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD


_CIFAR = partial(
    Suite, image_size=32, lr=5e-4, layer_decay=0.5, test_images=10_000, similarity=0.1, small=True
)
SUITES: dict[str, Suite] = {
    # Normalised by ImageNet's statistics, as in today's USB.
    "cifar10": _CIFAR(backbone="vit_tiny_patch2_32", n_classes=10),
    "cifar100": _CIFAR(
        backbone="vit_small_patch2_32", n_classes=100, mean=CIFAR100_MEAN, std=CIFAR100_STD
    ),
    "semi_aves": Suite(n_classes=200, test_images=8000),
    "semi_inat": Suite(n_classes=810, test_images=16_200, averaged=0.0),
    "semi_fungi": Suite(n_classes=200, test_images=4000),
    "cub": Suite(n_classes=100, test_images=1000),
}


class PaperRun(TypedDict, total=False):
    """The arguments that all recipes share.

    Args:
        root: folder of the data. weights: folder of the pre-trained networks; ``weights`` below
            root if None.
        algorithm, addon, refiner: by name. seed: of split and training.
        pretraining: what the network starts from.
    """

    root: Required[str | Path]
    weights: str | Path | None
    algorithm: str
    addon: str
    refiner: str
    seed: int
    pretraining: Pretraining


def paper_experiment(
    name: str,
    data: Any,
    *,
    root: str | Path,
    weights: str | Path | None = None,
    algorithm: str = "simmatch",
    addon: str = "none",
    refiner: str = "gp",
    seed: int = 0,
    pretraining: Pretraining = "supervised",
    balanced: bool = False,
) -> Experiment:
    """Return the experiment of one row of the paper, or of an add-on on the same recipe.

    An add-on that needs a moving average of the network gets one with momentum 0.999 where the
    recipe has none.

    Args:
        name: of the suite. data: its config. balanced: whether the refiner's buffer holds equally
            many rows of each class (the daggered rows). The rest as in :class:`PaperRun`.
    """
    suite = SUITES[name]
    algorithm_config = config_type("algorithm", algorithm)().in_paper(
        temperature=suite.similarity, photographs=not suite.small, average=suite.averaged > 0
    )
    memory = config_type("refiner", refiner)().with_memory(buffer_size=BUFFER, warmup_steps=WARMUP)
    refiner_config = memory.in_paper(
        temperature=suite.similarity, n_classes=suite.n_classes, balanced=balanced
    )
    addon_config = config_type("addon", addon)()
    ema = suite.averaged if algorithm_config.uses_average else 0.0
    if addon_config.needs_average and not ema:
        ema = AVERAGED
    file = weights_folder(root, weights) / weight_file(suite.backbone, pretraining).file
    return Experiment(
        data=data,
        augment=_paper_views(suite),
        model=ModelConfig(name=suite.backbone, pretrained=str(file)),
        algorithm=algorithm_config,
        addon=addon_config,
        refiner=refiner_config,
        train=_paper_training(suite, ema),
        seed=seed,
    )


def _paper_views(suite: Suite) -> AugmentConfig:
    return AugmentConfig(
        image_size=suite.image_size,
        style="pad" if suite.small else "resize",
        crop_ratio=0.875,
        mean=suite.mean,
        std=suite.std,
    )


def _paper_training(suite: Suite, ema: float) -> TrainConfig:
    return TrainConfig(
        steps=204_800,
        epoch_steps=1024,
        labeled_batch=8,
        unlabeled_ratio=1,
        optimizer="adamw",
        lr=suite.lr,
        layer_decay=suite.layer_decay,
        weight_decay=5e-4,
        warmup_steps=5120,
        schedule="cosine",
        ema=ema,
        eval_steps=2048,
        checkpoint_steps=2048,
        eval_batch=16,
    )


def absolute(path: str | Path) -> str:
    """Return an absolute path."""
    return str(Path(path).expanduser().resolve())


# Recipes ------------------------------------------------------------------------------------------


def long_tailed_cifar(
    n_classes: Literal[10, 100],
    *,
    setting: Literal["A", "B"] = "A",
    imbalance_ratio: float = 100,
    labels_per_class: int = PAPER_LABELS,
    **run: Unpack[PaperRun],
) -> Experiment:
    """Return a cell of "CIFAR-10-LT" or "CIFAR-100-LT".

    The labelled images are part of the unlabelled ones, whose largest class is complete.

    Args:
        n_classes: 10 or 100.
        setting: "A", labels as long-tailed as the unlabelled images and 30 % of them, with a
            balanced buffer; "B", ``labels_per_class`` labels of each class.
        imbalance_ratio: largest over smallest class of the unlabelled images.
        run: see :class:`PaperRun`.
    """
    if setting not in ("A", "B"):
        raise SettingsError(
            f"setting must be 'A' (long-tailed labels) or 'B' (equally many); got {setting!r}."
        )
    whole = TRAINING_IMAGES // n_classes
    split = SplitConfig(
        labeled_head=whole * 3 // 10 if setting == "A" else labels_per_class,
        labeled_ratio=imbalance_ratio if setting == "A" else 1.0,
        unlabeled_head=whole,
        unlabeled_ratio=imbalance_ratio,
        overlap="nested",
    )
    data = CifarConfig(root=absolute(run["root"]), n_classes=n_classes, split=split)
    return paper_experiment(f"cifar{n_classes}", data, balanced=setting == "A", **run)


cifar10_lt = partial(long_tailed_cifar, 10)
cifar100_lt = partial(long_tailed_cifar, 100)


def fgvc(*, benchmark: Name = "semi_aves", **run: Unpack[PaperRun]) -> Experiment:
    """Return a cell of "fine-grained benchmarks"; on SemiAves also of the two ablations.

    Labels are ``l_train_val``, unlabelled images ``u_train_in``. The splits are published, so the
    seed affects only the training.
    """
    root = absolute(run["root"])
    data = FGVCConfig(benchmark=benchmark, root=root, labels="l_train_val", unlabeled="in")
    return paper_experiment(benchmark, data, **run)


def balanced_cifar(
    *, n_classes: Literal[10, 100] = 10, labels: int = 40, **run: Unpack[PaperRun]
) -> Experiment:
    """Return a cell of "balanced CIFAR": all training images are unlabelled ones too."""
    if labels < n_classes or labels % n_classes:
        raise SettingsError(
            f"labels must be equally many of each of the {n_classes} classes, such as "
            f"{4 * n_classes}; got {labels}."
        )
    split = SplitConfig(
        labeled_head=labels // n_classes,
        unlabeled_head=TRAINING_IMAGES // n_classes,
        overlap="nested",
    )
    data = CifarConfig(root=absolute(run["root"]), n_classes=n_classes, split=split)
    return paper_experiment(f"cifar{n_classes}", data, **run)


# Weights ------------------------------------------------------------------------------------------


def weight_file(backbone: str, pretraining: Pretraining) -> WeightFile:
    """Return the file that a network starts from."""
    for one in WEIGHTS:
        if (one.backbone, one.pretraining) == (backbone, pretraining):
            return one
    offered = {one.pretraining: None for one in WEIGHTS if one.backbone == backbone}
    raise SettingsError(
        f"{backbone} has no published weights by {pretraining!r}; known: {', '.join(offered)}."
    )


def weights_folder(root: str | Path, weights: str | Path | None) -> Path:
    """Return the folder of weights: the given one, else ``weights`` below or beside the data."""
    if weights is not None:
        return Path(weights).expanduser().resolve()
    place = Path(root).expanduser().resolve()
    return (place.parent if place.is_file() else place) / "weights"


def check_weights(experiment: Experiment | None) -> None:
    """Raise a SettingsError, with the address, if the weights are missing or damaged."""
    given = None if experiment is None else experiment.model.pretrained
    if given is None or given in ("timm", "embedded"):
        return
    try:
        find_weights(given)
    except (FileNotFoundError, ValueError) as error:
        known = next((weights for weights in WEIGHTS if weights.file == Path(given).name), None)
        if known is None:
            raise SettingsError(str(error)) from error
        remedy = "Or pass the folder that contains the file as weights=..."
        if VITS[known.backbone].hub:
            remedy += ", or set model.pretrained=timm"
        raise SettingsError(f"{error} {remedy}.") from error


# Without a GPU ------------------------------------------------------------------------------------


def shrink(experiment: Experiment, features: Literal["live", "cached"]) -> Experiment:
    """Return the experiment reduced to minutes (live) or seconds (cached) of one CPU core.

    Args:
        experiment: at the scale of the paper.
        features: "live" trains a small CNN from scratch; "cached" trains an adapter on features of
            EfficientNet-Lite0.
    """
    experiment = replace(experiment, data=_shorter_tails(experiment.data))
    return _acting(_small(experiment) if features == "live" else on_cached_features(experiment))


def _shorter_tails(data: Any) -> Any:
    """Return long-tailed CIFAR with fewer images.

    Balanced labels stay as many, and outside of the unlabelled images: the rarest class would have
    fewer of these than labels.
    """
    if not isinstance(data, CifarConfig) or data.split.unlabeled_ratio == 1:
        return data
    split = replace(data.split, unlabeled_head=round(data.split.unlabeled_head / TAIL_REDUCTION))
    if split.labeled_ratio == 1:
        return replace(data, split=replace(split, overlap="disjoint"))
    return replace(
        data, split=replace(split, labeled_head=round(split.labeled_head / TAIL_REDUCTION))
    )


def _small(experiment: Experiment) -> Experiment:
    """Train a CNN of 93 000 weights from scratch; about two minutes per run on one CPU core."""
    is_cifar = experiment.augment.image_size <= 32
    side = SMALL_SIDE if is_cifar else SMALL_PHOTOGRAPH_SIDE
    algorithm = experiment.algorithm.preset("short")
    return replace(
        experiment,
        augment=replace(experiment.augment, image_size=side, operations=1),
        model=ModelConfig(name="small_cnn"),
        algorithm=algorithm,
        refiner=experiment.refiner.for_short_run(buffer_size=1024, warmup_steps=200),
        train=TrainConfig(
            steps=1500,
            epoch_steps=100,
            labeled_batch=32,
            unlabeled_ratio=algorithm.small_ratio,
            lr=2e-3,
            layer_decay=1.0,
            warmup_steps=50,
            ema=0.99,
            eval_steps=500,
            checkpoint_steps=500,
            log_steps=100,
            threads=1,  # more are no faster here, and figures depend on their number
        ),
    )


def shorten(experiment: Experiment, steps: int) -> Experiment:
    """Return the experiment with this many steps, to try it: evaluated, saved and refined once.

    The learning rate warms up over the same share of the run as before. The refiner's buffer has
    room for all labelled rows of the run, and no more: a balanced one is filled at once.
    """
    train = experiment.train
    refiner = experiment.refiner
    intervals = ("epoch_steps", "eval_steps", "checkpoint_steps", "log_steps")
    at_most = {name: min(getattr(train, name), steps) for name in intervals}
    room = max(steps * train.labeled_batch, _n_classes(experiment.data))
    refiner = refiner.with_memory(
        buffer_size=min(refiner.buffer_size, room), warmup_steps=refiner.warmup_steps
    )
    warmup = train.warmup_steps * steps // train.steps
    train = replace(train, steps=steps, warmup_steps=warmup, **at_most)
    return _acting(replace(experiment, refiner=refiner, train=train))


def _acting(experiment: Experiment) -> Experiment:
    """Return the experiment with a refiner that acts in at least half of every generation."""
    refiner = experiment.refiner
    steps = experiment.train.steps // experiment.addon.generations
    warmup = min(refiner.warmup_steps, steps // 2)
    refiner = refiner.with_memory(buffer_size=refiner.buffer_size, warmup_steps=warmup)
    return replace(experiment, refiner=refiner)


def _n_classes(data: Any) -> int:
    if isinstance(data, FGVCConfig):
        return SUITES[data.benchmark].n_classes
    if isinstance(data, CifarConfig):
        return data.n_classes
    raise TypeError(f"the paper has no data of type {type(data).__name__}")
