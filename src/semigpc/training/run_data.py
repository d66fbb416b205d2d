"""What the runs of a comparison are made from, kept from one run to the next."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from semigpc.data import (
    DATASETS,
    Augment,
    AugmentConfig,
    CachedFeatures,
    CacheKey,
    FeatureCache,
    Splits,
    ViewSource,
    cache_root,
    weights_hash,
)
from semigpc.models import ModelConfig, build_model
from semigpc.threads import granted, using
from semigpc.training.experiment import Experiment, FrozenConfig, name_of
from semigpc.training.settings import settings_of
from semigpc.training.state import build_fabric

PARTS = ("data", "augment", "model", "frozen", "seed")  # of an experiment, that decide its material


def same_data(one: Experiment, other: Experiment) -> bool:
    """Whether two experiments see the same images, or the same features of them."""
    return all(getattr(one, part) == getattr(other, part) for part in PARTS)


Progress = Callable[[int, int], None]


class RunData(NamedTuple):
    """What a run is made from: its splits, and where views of their images come from."""

    splits: Splits
    source: ViewSource


def load_splits(experiment: Experiment) -> Splits:
    """The splits of its data and seed."""
    return DATASETS[name_of("data", experiment.data)].load(experiment.data, experiment.seed)


def view_source(experiment: Experiment, splits: Splits, device: torch.device, progress: Progress | None) -> ViewSource:
    """What batches are made from: images, or in frozen mode their features, of which missing ones are computed."""
    if experiment.frozen is None:
        return Augment(experiment.augment)
    return cached_features(experiment.frozen, experiment.model, experiment.augment, splits, device=device, progress=progress)


class DataCache:
    """The material of the last experiment, for the next one if it needs the same: reading it takes as long as a short run.

    Made anew for every comparison, so that data which change between two of them are read again.
    """

    def __init__(self) -> None:
        self._held: tuple[Experiment, RunData] | None = None

    def of(self, experiment: Experiment) -> RunData | None:
        """Splits and features; None for images, of which a run's own views are made at no cost."""
        if experiment.frozen is None:
            return None
        if self._held is None or not same_data(self._held[0], experiment):
            self._held = None  # before another is read: one of them at a time in memory
            splits = load_splits(experiment)
            source = view_source(experiment, splits, build_fabric(experiment).device, None)
            self._held = experiment, RunData(splits, source)
        return self._held[1]


def frozen_backbone(model: ModelConfig, device: torch.device) -> nn.Module:
    """The network below, in evaluation mode and without gradients."""
    with settings_of("model"), torch.random.fork_rng():  # what trains on top must not depend on how many numbers this one drew
        torch.manual_seed(0)  # so that a network without pretrained weights is the same one every time
        backbone: nn.Module = build_model(model, 2).backbone
    return backbone.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def cached_features(
    frozen: FrozenConfig,
    model: ModelConfig,
    augment: AugmentConfig,
    splits: Splits,
    *,
    device: torch.device,
    workers: int = 1,
    progress: Progress | None = None,
) -> CachedFeatures:
    """Features of these splits: from the cache as far as they are there, the rest computed and added to it.

    On two CPU cores EfficientNet-Lite0 takes some ten minutes for 12 000 images of 96 px with V = 3.
    """
    backbone = frozen_backbone(model, device)

    @torch.inference_mode()
    def embed(images: Tensor) -> Tensor:
        features: Tensor = backbone(images.to(device, memory_format=torch.channels_last))
        return features.cpu()

    size = augment.image_size
    width = embed(torch.zeros(1, 3, size, size)).shape[1]
    key = CacheKey(
        network=model.name, weights=weights_hash(backbone.state_dict()), augment=augment, views=frozen.views, width=width
    )
    with using(granted()):
        return FeatureCache(key, cache_root()).features(splits, embed, workers=workers, progress=progress)
