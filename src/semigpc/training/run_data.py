"""The data of a run: its splits, and the views of their images or, in frozen mode, cached features
of these views.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch

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
)
from semigpc.data.loaders import worker_count
from semigpc.io.threads import granted, using
from semigpc.models import ModelConfig
from semigpc.models.encoder import Encoder
from semigpc.training.experiment import Experiment, FrozenConfig, name_of, settings_of
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
    """Return the features of these splits from the cache, after computing those that are missing.

    ``workers`` are as in ``train.workers``.
    """
    with settings_of("model"):
        encoder = Encoder(model, augment.image_size, device)
    key = CacheKey(
        network=model.name,
        weights=encoder.weights,
        augment=augment,
        views=frozen.views,
        width=encoder.width,
    )

    def prepare(views: int) -> None:
        if (reason := encoder.accelerate(views, threads=granted())) is not None:
            warnings.warn(
                f"Features are computed in torch and not in ONNX Runtime, which is faster: {reason}",
                stacklevel=2,
            )

    with using(granted()):
        cache = FeatureCache(key, cache_root())
        count = worker_count(workers, splits.labeled.images, Augment(augment))
        return cache.features(splits, encoder, prepare=prepare, workers=count, progress=progress)
