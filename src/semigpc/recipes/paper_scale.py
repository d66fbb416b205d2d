"""The paper's setting in full, which is USB's recipe for vision transformers: what its tables share.

Values are those of the recipe's tables: of data sets (section 1), of algorithms (section 4), of augmentation (section 5), and
of SemiGPC's open questions (algorithms section 3.6). Nothing is cut: 204 800 steps, pre-trained networks, a buffer of 16 300.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from semigpc.algorithms import CoMatchConfig, SimMatchConfig
from semigpc.data import AugmentConfig, SplitConfig
from semigpc.data.augment import CIFAR100_MEAN, CIFAR100_STD, IMAGENET_MEAN, IMAGENET_STD, Triple
from semigpc.data.cifar import CifarConfig
from semigpc.models import ModelConfig
from semigpc.recipes.weights import Pretraining, weight_file, weights_folder
from semigpc.refiners import GPConfig, SimilarityConfig
from semigpc.training import Experiment, SettingError, TrainConfig
from semigpc.training.experiment import config_type

BUFFER = 16_300
WARMUP = 1024  # steps before a refiner speaks
AVERAGED = 0.999  # momentum of the moving average, where an algorithm has one


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One row of the table of data sets.

    Args:
        backbone, image_size, lr, layer_decay: of the network. n_classes, test_images: of the data.
        similarity: T of SimMatch's similarities, and l^2 of the GP, which plays the same part.
        averaged: momentum of the moving average in SimMatch and CoMatch.
        small: images of 32 pixels, padded and cropped, and SimMatch's bank a running average; otherwise photographs that are
            resized, and a bank written by the moving average.
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


def _cifar(backbone: str, n_classes: int, mean: Triple, std: Triple) -> Suite:
    return Suite(
        backbone=backbone,
        image_size=32,
        lr=5e-4,
        layer_decay=0.5,
        n_classes=n_classes,
        test_images=10_000,
        similarity=0.1,
        small=True,
        mean=mean,
        std=std,
    )


SUITES: dict[str, Suite] = {
    "cifar10": _cifar("vit_tiny_patch2_32", 10, IMAGENET_MEAN, IMAGENET_STD),  # as USB has it today
    "cifar100": _cifar("vit_small_patch2_32", 100, CIFAR100_MEAN, CIFAR100_STD),
    "semi_aves": Suite(n_classes=200, test_images=8000),
    "semi_inat": Suite(n_classes=810, test_images=16_200, averaged=0.0),
    "semi_fungi": Suite(n_classes=200, test_images=4000),
    "cub": Suite(n_classes=100, test_images=1000),
}


def paper_experiment(
    name: str,
    data: Any,
    *,
    root: str | Path,
    weights: str | Path | None,
    algorithm: str,
    refiner: str,
    seed: int,
    pretraining: Pretraining = "supervised",
    balanced: bool = False,
) -> Experiment:
    """The experiment of one row of the paper.

    Args:
        name: of the suite. data: its config.
        root: of the data. weights: folder of the pre-trained networks; without one, ``weights`` below root.
        algorithm, refiner: by name. seed: of split and training.
        pretraining: what the network starts from.
        balanced: whether the refiner's buffer holds equally much of each class (the daggered rows).
    """
    suite = SUITES[name]
    chosen = paper_algorithm(algorithm, suite)
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
            name=suite.backbone, pretrained=str(weights_folder(root, weights) / file.file), pretrained_layout=file.layout
        ),
        algorithm=chosen,
        refiner=paper_refiner(refiner, suite, chosen, balanced=balanced),
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
            ema=suite.averaged if isinstance(chosen, SimMatchConfig | CoMatchConfig) else 0.0,
            eval_steps=2048,
            checkpoint_steps=2048,
            eval_batch=16,
        ),
        seed=seed,
    )


def paper_algorithm(name: str, suite: Suite) -> Any:
    """An algorithm as USB's ViT files have it: the defaults of its config, and in SimMatch what depends on the data.

    USB's Semi-iNat files have a moving average with momentum 0, which is the network itself, so that the bank which it writes
    holds the projections as they were last: a running average with momentum 0.
    """
    config = config_type("algorithm", name)()
    if not isinstance(config, SimMatchConfig):
        return config
    config = replace(config, temperature=suite.similarity)
    if suite.small:
        return config
    return replace(config, bank="teacher") if suite.averaged else replace(config, bank="momentum", bank_momentum=0.0)


def paper_refiner(name: str, suite: Suite, algorithm: Any, *, balanced: bool) -> Any:
    """A refiner with the defaults of algorithms section 3.6; a teacher that writes SimMatch's bank feeds the buffer too."""
    config = config_type("refiner", name)()
    source: Literal["student", "ema"] = "ema" if getattr(algorithm, "bank", "") == "teacher" else "student"
    if isinstance(config, GPConfig | SimilarityConfig):
        config = replace(config, buffer_size=BUFFER, balanced=balanced, warmup_steps=WARMUP, source=source)
    if isinstance(config, GPConfig):
        return replace(config, length_scale=suite.similarity**0.5, output_scale=1.0, noise_std=0.1**0.5)
    return replace(config, temperature=suite.similarity) if isinstance(config, SimilarityConfig) else config


def long_tailed_cifar(
    n_classes: Literal[10, 100],
    *,
    root: str | Path,
    setting: str,
    imbalance_ratio: float,
    labels_per_class: int,
    weights: str | Path | None,
    algorithm: str,
    refiner: str,
    seed: int,
) -> Experiment:
    """Either long-tailed CIFAR; L is part of U, whose largest class is whole (datasets section 1).

    Setting A: labels as long-tailed as U, 30 % of it, and a balanced buffer. Setting B: ``labels_per_class`` of each.
    """
    if setting not in ("A", "B"):
        raise SettingError(f"setting is 'A' (long-tailed labels) or 'B' (equally many of each class); got {setting!r}.")
    whole = 50_000 // n_classes
    head, ratio = (whole * 3 // 10, imbalance_ratio) if setting == "A" else (labels_per_class, 1.0)
    split = SplitConfig(
        labeled_head=head, labeled_ratio=ratio, unlabeled_head=whole, unlabeled_ratio=imbalance_ratio, overlap="nested"
    )
    return paper_experiment(
        f"cifar{n_classes}",
        CifarConfig(root=absolute(root), n_classes=n_classes, split=split),
        root=root,
        weights=weights,
        algorithm=algorithm,
        refiner=refiner,
        seed=seed,
        balanced=setting == "A",
    )


def absolute(path: str | Path) -> str:
    """A path that means the same from anywhere."""
    return str(Path(path).expanduser().resolve())
