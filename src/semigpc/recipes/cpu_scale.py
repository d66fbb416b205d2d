"""The paper's experiments cut to what a machine without a GPU can run: a small network, or a frozen one's features.

Figures at this scale compare algorithms with each other, and refiners with their base. They say nothing of published ones.
"""

from dataclasses import replace
from typing import Any, Literal

from semigpc.algorithms import CoMatchConfig, FixMatchConfig, FreeMatchConfig, NPMatchConfig, ReMixMatchConfig, SimMatchConfig
from semigpc.data import CifarConfig, FGVCConfig
from semigpc.models import ModelConfig
from semigpc.models.backbones import input_statistics
from semigpc.recipes.own import PRIOR_SCALE
from semigpc.recipes.paper_scale import SUITES
from semigpc.refiners import GPConfig, SimilarityConfig, auto_logit_scale
from semigpc.training import Experiment, FrozenConfig, TrainConfig

EMBEDDED = ModelConfig(name="tf_efficientnet_lite0", pretrained="embedded")
SMALL, PHOTOGRAPH, FROZEN = 16, 48, 96  # pixels a side
TEN = 10  # classes, where nobody says
FROZEN_LENGTH, FROZEN_NOISE = 0.5, 1.0  # l and sigma on features of an adapter, which fits its few labels closely
TAILS = 2.5  # times shorter, so that features take minutes: of 5000 unlabelled and 1500 labelled images 2000 and 600


def shrink(experiment: Experiment, features: Literal["live", "cached"]) -> Experiment:
    """The same data, algorithm and refiner in minutes (live, end to end) or seconds (cached) a run.

    Args:
        experiment: at the scale of the paper.
        features: "live" trains a small CNN from scratch; "cached" trains an adapter on features of EfficientNet-Lite0.
    """
    experiment = replace(experiment, data=_shorter_tails(experiment.data))
    return _small(experiment) if features == "live" else on_cached_features(experiment)


def _shorter_tails(data: Any) -> Any:
    """Long-tailed CIFAR with fewer images; where labels are balanced they stay as many, and outside of U.

    The rarest class would have fewer unlabelled images than labels, so that the latter cannot be part of them.
    """
    if not isinstance(data, CifarConfig) or data.split.unlabeled_ratio == 1:
        return data
    split = replace(data.split, unlabeled_head=round(data.split.unlabeled_head / TAILS))
    if split.labeled_ratio == 1:
        return replace(data, split=replace(split, overlap="disjoint"))
    return replace(data, split=replace(split, labeled_head=round(split.labeled_head / TAILS)))


def _small(experiment: Experiment) -> Experiment:
    """A CNN of 93 000 weights from scratch, on CIFAR at 16 x 16; about two minutes a run on one CPU core."""
    remixmatch, images = isinstance(experiment.algorithm, ReMixMatchConfig), experiment.augment.image_size <= 32
    return replace(
        experiment,
        augment=replace(experiment.augment, image_size=SMALL if images else PHOTOGRAPH, operations=1),
        model=ModelConfig(name="small_cnn"),
        algorithm=short_run(experiment.algorithm),
        refiner=_small_memory(experiment.refiner, experiment.data, 1024, 200),
        train=TrainConfig(
            steps=1500,
            epoch_steps=100,
            labeled_batch=32,
            unlabeled_ratio=1 if remixmatch else 2,  # as in the classic recipes; it sees each image three times
            lr=2e-3,
            layer_decay=1.0,
            warmup_steps=50,
            ema=0.99,
            eval_steps=500,
            checkpoint_steps=500,
            log_steps=100,
            workers=0 if images else 1,
            threads=1,  # so small a network is no faster with more, and figures depend on their number
        ),
    )


def on_cached_features(experiment: Experiment, model: ModelConfig = EMBEDDED, image_size: int = FROZEN) -> Experiment:
    """An adapter on features of a frozen network, whose V weak and V strong views are computed once; seconds a run.

    Args:
        experiment: data, algorithm and refiner. model: the frozen network. image_size: of the images it sees.
    """
    algorithm = short_run(experiment.algorithm)
    mean, std = input_statistics(model.name)
    refiner = _small_memory(experiment.refiner, experiment.data, 512, 50)
    if isinstance(refiner, GPConfig):
        refiner = replace(refiner, length_scale=FROZEN_LENGTH, noise_std=FROZEN_NOISE)
    if isinstance(algorithm, ReMixMatchConfig):
        algorithm = replace(algorithm, rotation_weight=0.0)  # features cannot be turned
    return replace(
        experiment,
        augment=replace(experiment.augment, image_size=image_size, operations=3, mean=mean, std=std),
        model=model,
        algorithm=algorithm,
        refiner=refiner,
        frozen=FrozenConfig(),
        train=TrainConfig(
            steps=600,
            epoch_steps=50,
            labeled_batch=32,
            unlabeled_ratio=1 if isinstance(algorithm, ReMixMatchConfig) else 2,
            lr=1e-3,
            layer_decay=1.0,
            warmup_steps=20,
            ema=0.99,
            eval_steps=200,
            checkpoint_steps=600,
            log_steps=50,
            eval_batch=1024,
            workers=0,
            threads=1,
        ),
    )


def short_run(algorithm: Any) -> Any:
    """Averages that follow within some hundred steps, and a confidence that a network reaches in as many."""
    if isinstance(algorithm, FixMatchConfig | SimMatchConfig | CoMatchConfig | NPMatchConfig):
        algorithm = replace(algorithm, threshold=0.8)
    if isinstance(algorithm, CoMatchConfig):
        algorithm = replace(algorithm, queue_batches=8)
    if isinstance(algorithm, FreeMatchConfig):
        algorithm = replace(algorithm, momentum=0.99)
    if isinstance(algorithm, ReMixMatchConfig):
        algorithm = replace(algorithm, alignment_momentum=0.99)
    return algorithm


def _small_memory(refiner: Any, data: Any, buffer_size: int, warmup_steps: int) -> Any:
    """A smaller buffer; for SemiGPC the class prior, and its own head to be judged by where the buffer is balanced."""
    if isinstance(refiner, GPConfig | SimilarityConfig):
        refiner = replace(refiner, buffer_size=buffer_size, warmup_steps=warmup_steps)
    if isinstance(refiner, GPConfig):
        head: Literal["gp", "linear"] = "gp" if refiner.balanced else "linear"
        scale = refiner.logit_scale or float(round(PRIOR_SCALE * auto_logit_scale(_n_classes(data))))
        return replace(refiner, class_prior="frequency", logit_scale=scale, eval_head=head)
    return refiner


def _n_classes(data: Any) -> int:
    if isinstance(data, FGVCConfig):
        return SUITES[data.benchmark].n_classes
    return data.n_classes if isinstance(data, CifarConfig) else TEN
