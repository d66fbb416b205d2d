"""The data of a run: its splits, and the views of their images or, in frozen mode, cached features
of these views.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
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
from semigpc.data.loaders import worker_count
from semigpc.io.errors import NotExportableError
from semigpc.io.threads import granted, using
from semigpc.models import ModelConfig, build_model
from semigpc.models.encoder import WORTHWHILE, in_onnx_runtime
from semigpc.training.experiment import Experiment, FrozenConfig, name_of
from semigpc.training.settings import settings_of
from semigpc.training.state import build_fabric

Progress = Callable[[int, int], None]  # images done, of so many


class RunData(NamedTuple):
    """The splits of a run, and where views of their images come from."""

    splits: Splits
    source: ViewSource


class DataCache:
    """What was loaded last, for the next run or caller that needs the same: reading it can take as
    long as a short run.

    Make a new one for every command, so that data which change between two commands are read again.
    """

    def __init__(self) -> None:
        self._splits: tuple[tuple[object, int], Splits] | None = None
        self._features: tuple[tuple[object, ...], CachedFeatures] | None = None

    def splits(self, data: object, seed: int) -> Splits:
        """Return the splits of a config out of ``DATASETS``, with a seed."""
        if self._splits is None or self._splits[0] != (data, seed):
            self._splits = self._features = (
                None  # before others are read: one of them at a time in memory
            )
            self._splits = (data, seed), DATASETS[name_of("data", data)].load(data, seed)
        return self._splits[1]

    def keep(self, data: object, seed: int, splits: Splits) -> None:
        """Keep splits that were made elsewhere, equal to those that this config and seed would
        load.
        """
        self._splits, self._features = ((data, seed), splits), None

    def run_data(
        self,
        experiment: Experiment,
        device: torch.device | None = None,
        progress: Progress | None = None,
    ) -> RunData:
        """Return splits and view source of an experiment: images, or in frozen mode features;
        missing ones are computed.

        Args:
            experiment: whose data.
            device: that computes features; without one a GPU if there is one. progress: receives
                how many images are done.
        """
        splits = self.splits(experiment.data, experiment.seed)
        if experiment.frozen is None:
            return RunData(splits, Augment(experiment.augment))
        key = (
            experiment.data,
            experiment.seed,
            experiment.augment,
            experiment.model,
            experiment.frozen,
        )
        if self._features is None or self._features[0] != key:
            self._features = None
            device = device or build_fabric(experiment).device
            features = cached_features(
                experiment.frozen,
                experiment.model,
                experiment.augment,
                splits,
                device=device,
                workers=experiment.train.workers,
                progress=progress,
            )
            self._features = key, features
        return RunData(splits, self._features[1])


def load_splits(experiment: Experiment) -> Splits:
    """Return the splits of an experiment's data and seed."""
    return DataCache().splits(experiment.data, experiment.seed)


def frozen_backbone(model: ModelConfig, device: torch.device) -> nn.Module:
    """Return the network that features come from, in evaluation mode and without gradients."""
    with (
        settings_of("model"),
        torch.random.fork_rng(),
    ):  # what trains on top must not depend on how many numbers this one drew
        torch.manual_seed(
            0
        )  # so that a network without pretrained weights is the same one every time
        backbone: nn.Module = build_model(model, 2).backbone
    return backbone.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def cached_features(
    frozen: FrozenConfig,
    model: ModelConfig,
    augment: AugmentConfig,
    splits: Splits,
    *,
    device: torch.device,
    workers: int | None = None,
    progress: Progress | None = None,
) -> CachedFeatures:
    """Return the features of these splits, from the cache as far as they are there; the rest is
    computed and added to it.

    On a CPU many views are computed in ONNX Runtime and few in torch. These agree to 1e-3 of the
    size of the features, about the precision in which features are kept, so a cache may have rows
    of both. ``workers`` are as in ``train.workers``.
    """
    backbone = frozen_backbone(model, device)
    size = augment.image_size
    in_runtime: Callable[[NDArray[Any]], NDArray[np.float32]] | None = None

    @torch.inference_mode()
    def embed(images: Tensor) -> Tensor:
        if in_runtime is not None:
            return torch.from_numpy(in_runtime(images.numpy()))
        features: Tensor = backbone(images.to(device, memory_format=torch.channels_last))
        return features.cpu()

    def prepare(views: int) -> None:
        nonlocal in_runtime
        if device.type != "cpu" or views * size**2 < WORTHWHILE:
            return
        noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
        try:
            in_runtime = in_onnx_runtime(backbone, noise, granted())
        except NotExportableError as error:
            warnings.warn(
                f"Features are computed in torch and not in ONNX Runtime, which is faster: {error}",
                stacklevel=2,
            )

    width = embed(torch.zeros(1, 3, size, size)).shape[1]
    key = CacheKey(
        network=model.name,
        weights=weights_hash(backbone.state_dict()),
        augment=augment,
        views=frozen.views,
        width=width,
    )
    with using(granted()):
        cache = FeatureCache(key, cache_root())
        count = worker_count(workers, splits.labeled.images, Augment(augment))
        return cache.features(splits, embed, prepare=prepare, workers=count, progress=progress)
