"""The scales at which the paper's experiments are run: in full, and cut to what a machine without a
GPU can do.

In full is USB's recipe for vision transformers, which the paper follows: 204 800 steps, pre-trained
networks, a buffer of 16 300. Figures at scale "cpu" compare algorithms with each other, and
refiners with their base; they are not comparable with published ones.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Required

from typing_extensions import TypedDict

from semigpc.data import AugmentConfig, CifarConfig
from semigpc.data.augment import CIFAR100_MEAN, CIFAR100_STD, IMAGENET_MEAN, IMAGENET_STD, Triple
from semigpc.io.errors import SettingsError
from semigpc.models import ModelConfig
from semigpc.models.backbones import VITS
from semigpc.models.pretrained import WEIGHTS, WeightFile, find_weights
from semigpc.paper.fgvc import FGVCConfig
from semigpc.training import Experiment, TrainConfig
from semigpc.training.experiment import config_type
from semigpc.training.presets import on_cached_features

Pretraining = Literal["supervised", "dino", "msn"]
BUFFER = 16_300  # labelled features that a refiner keeps
WARMUP = 1024  # steps before a refiner acts
AVERAGED = 0.999  # momentum of the moving average, where an algorithm has one
SMALL, PHOTOGRAPH = 16, 48  # pixels a side at scale "cpu": of CIFAR, of photographs
TEN = 10  # classes, where the data's config does not contain their number
# times shorter, so that features take minutes: of 5000 unlabelled and 1500 labelled images 2000 and
# 600
TAILS = 2.5


# In full ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One row of the table of data sets.

    Args:
        backbone, image_size, lr, layer_decay: of the network. n_classes, test_images: of the data.
        similarity: T of SimMatch's similarities, and l^2 of the GP, which plays the same part.
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
    "cifar10": _CIFAR(
        backbone="vit_tiny_patch2_32", n_classes=10
    ),  # normalised as USB has it today
    "cifar100": _CIFAR(
        backbone="vit_small_patch2_32", n_classes=100, mean=CIFAR100_MEAN, std=CIFAR100_STD
    ),
    "semi_aves": Suite(n_classes=200, test_images=8000),
    "semi_inat": Suite(n_classes=810, test_images=16_200, averaged=0.0),
    "semi_fungi": Suite(n_classes=200, test_images=4000),
    "cub": Suite(n_classes=100, test_images=1000),
}


class PaperRun(TypedDict, total=False):
    """What every recipe of the paper takes.

    Args:
        root: of the data. weights: folder of the pre-trained networks; without one, ``weights``
            below root.
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
            much of each class (the daggered rows). The rest as in :class:`PaperRun`.
    """
    suite = SUITES[name]
    chosen = config_type("algorithm", algorithm)().in_paper(
        temperature=suite.similarity, photographs=not suite.small, average=suite.averaged > 0
    )
    memory = config_type("refiner", refiner)().with_memory(buffer_size=BUFFER, warmup_steps=WARMUP)
    memory = memory.in_paper(
        temperature=suite.similarity, n_classes=suite.n_classes, balanced=balanced
    )
    comparator = config_type("addon", addon)()
    ema = suite.averaged if chosen.uses_average else 0.0
    file = weight_file(suite.backbone, pretraining)
    return Experiment(
        data=data,
        augment=AugmentConfig(
            image_size=suite.image_size,
            style="pad" if suite.small else "resize",
            crop_ratio=0.875,
            mean=suite.mean,
            std=suite.std,
        ),
        model=ModelConfig(
            name=suite.backbone, pretrained=str(weights_folder(root, weights) / file.file)
        ),
        algorithm=chosen,
        addon=comparator,
        refiner=memory,
        train=TrainConfig(
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
            ema=AVERAGED if comparator.needs_average and not ema else ema,
            eval_steps=2048,
            checkpoint_steps=2048,
            eval_batch=16,
        ),
        seed=seed,
    )


def absolute(path: str | Path) -> str:
    """Return an absolute path."""
    return str(Path(path).expanduser().resolve())


# Weights ------------------------------------------------------------------------------------------


def weight_file(backbone: str, pretraining: Pretraining) -> WeightFile:
    """Return the file that a network starts from."""
    for known in WEIGHTS:
        if (known.backbone, known.pretraining) == (backbone, pretraining):
            return known
    offered = ", ".join(
        dict.fromkeys(known.pretraining for known in WEIGHTS if known.backbone == backbone)
    )
    raise SettingsError(
        f"{backbone} has published weights by {offered or 'nobody'}; got {pretraining!r}."
    )


def weights_folder(root: str | Path, weights: str | Path | None) -> Path:
    """Return where the files lie: the folder given, else ``weights`` below the data, or beside them
    if those are one file.
    """
    if weights is not None:
        return Path(weights).expanduser().resolve()
    place = Path(root).expanduser().resolve()
    return (place.parent if place.is_file() else place) / "weights"


def check_weights(experiment: Experiment | None) -> None:
    """Raise a SettingsError for an experiment whose weights are missing or damaged, with the address
    to fetch them from.
    """
    given = None if experiment is None else experiment.model.pretrained
    if given is None or given in ("timm", "embedded"):
        return
    try:
        find_weights(given)
    except (FileNotFoundError, ValueError) as error:
        known = next((weights for weights in WEIGHTS if weights.file == Path(given).name), None)
        if known is None:
            raise SettingsError(str(error)) from error
        other = (
            ", or take other ones by --set model.pretrained=timm"
            if VITS[known.backbone].hub
            else ""
        )
        raise SettingsError(
            f"{error} Or give the folder that holds the file by --weights{other}."
        ) from error


# Without a GPU ------------------------------------------------------------------------------------


def shrink(experiment: Experiment, features: Literal["live", "cached"]) -> Experiment:
    """Return the same data, algorithm and refiner in minutes (live, end to end) or seconds (cached)
    a run.

    Args:
        experiment: at the scale of the paper.
        features: "live" trains a small CNN from scratch; "cached" trains an adapter on features of
            EfficientNet-Lite0.
    """
    experiment = replace(experiment, data=_shorter_tails(experiment.data))
    return _acting(_small(experiment) if features == "live" else on_cached_features(experiment))


def _shorter_tails(data: Any) -> Any:
    """Return long-tailed CIFAR with fewer images; where labels are balanced they stay as many, and
    outside of U.

    The rarest class would have fewer unlabelled images than labels, so that the latter cannot be
    part of them.
    """
    if not isinstance(data, CifarConfig) or data.split.unlabeled_ratio == 1:
        return data
    split = replace(data.split, unlabeled_head=round(data.split.unlabeled_head / TAILS))
    if split.labeled_ratio == 1:
        return replace(data, split=replace(split, overlap="disjoint"))
    return replace(data, split=replace(split, labeled_head=round(split.labeled_head / TAILS)))


def _small(experiment: Experiment) -> Experiment:
    """Train a CNN of 93 000 weights from scratch, on CIFAR at 16 x 16; about two minutes a run on
    one CPU core.
    """
    images = experiment.augment.image_size <= 32
    algorithm = experiment.algorithm.preset("short")
    return replace(
        experiment,
        augment=replace(
            experiment.augment, image_size=SMALL if images else PHOTOGRAPH, operations=1
        ),
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
            # so small a network is no faster with more, and figures depend on their number
            threads=1,
        ),
    )


def shorten(experiment: Experiment, steps: int) -> Experiment:
    """Return the experiment over so many steps, to see it work: it is evaluated and saved at least
    once, and refines.

    The learning rate warms up over the same share of the run as before. The refiner's buffer has
    room for all labelled rows of the run, and no more: a balanced one is filled at once.
    """
    train, refiner = experiment.train, experiment.refiner
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
    return data.n_classes if isinstance(data, CifarConfig) else TEN
