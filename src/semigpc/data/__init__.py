"""Data: image sets, long-tailed splits, views, and batches that depend on seed and step alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

from semigpc.data import arrays, cifar, digits, folder, mnist
from semigpc.data.arrays import ArraysConfig, splits_from_arrays
from semigpc.data.augment import Augment, AugmentConfig, ViewSource
from semigpc.data.cifar import CifarConfig
from semigpc.data.dataset import ImageSet, Splits
from semigpc.data.digits import DigitsConfig
from semigpc.data.feature_views import CachedFeatures, CacheKey, FeatureCache
from semigpc.data.folder import FolderConfig
from semigpc.data.loaders import BatchStream, EvaluationBatch, EvaluationLoader
from semigpc.data.mnist import MnistConfig
from semigpc.data.splits import (
    Split,
    SplitConfig,
    carve_validation,
    long_tail_counts,
    long_tail_split,
)
from semigpc.io.images import Images


class DatasetEntry(NamedTuple):
    """A named data set: its config, and the function from config and seed to splits."""

    config: type[Any]
    load: Callable[[Any, int], Splits]


DATASETS: dict[str, DatasetEntry] = {
    "arrays": DatasetEntry(ArraysConfig, arrays.load),
    "cifar": DatasetEntry(CifarConfig, cifar.load),
    "digits": DatasetEntry(DigitsConfig, digits.load),
    "folder": DatasetEntry(FolderConfig, folder.load),
    "mnist": DatasetEntry(MnistConfig, mnist.load),
}

__all__ = [
    "DATASETS",
    "ArraysConfig",
    "Augment",
    "AugmentConfig",
    "BatchStream",
    "CacheKey",
    "CachedFeatures",
    "CifarConfig",
    "DatasetEntry",
    "DigitsConfig",
    "EvaluationBatch",
    "EvaluationLoader",
    "FeatureCache",
    "FolderConfig",
    "ImageSet",
    "Images",
    "MnistConfig",
    "Split",
    "SplitConfig",
    "Splits",
    "ViewSource",
    "carve_validation",
    "long_tail_counts",
    "long_tail_split",
    "splits_from_arrays",
]
