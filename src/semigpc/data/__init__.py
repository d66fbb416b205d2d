"""Data: sets of pictures, long-tailed splits, views of pictures, and batches that depend on the seed and the step alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

from semigpc.data import arrays, digits, folder
from semigpc.data.arrays import ArraysConfig, splits_from_arrays
from semigpc.data.augment import Augment, AugmentConfig
from semigpc.data.dataset import DataError, Images, ImageSet, Splits
from semigpc.data.digits import DigitsConfig
from semigpc.data.folder import FolderConfig
from semigpc.data.loaders import BatchStream, EvaluationBatch, eval_loader, train_loader
from semigpc.data.splits import Split, SplitConfig, carve_validation, long_tail_counts, long_tail_split


class DatasetEntry(NamedTuple):
    """A data set that can be asked for by name: its config, and what turns config and seed into splits."""

    config: type[Any]
    load: Callable[[Any, int], Splits]


DATASETS: dict[str, DatasetEntry] = {
    "arrays": DatasetEntry(ArraysConfig, arrays.load),
    "digits": DatasetEntry(DigitsConfig, digits.load),
    "folder": DatasetEntry(FolderConfig, folder.load),
}

__all__ = [
    "DATASETS",
    "ArraysConfig",
    "Augment",
    "AugmentConfig",
    "BatchStream",
    "DataError",
    "DatasetEntry",
    "DigitsConfig",
    "EvaluationBatch",
    "FolderConfig",
    "ImageSet",
    "Images",
    "Split",
    "SplitConfig",
    "Splits",
    "carve_validation",
    "eval_loader",
    "long_tail_counts",
    "long_tail_split",
    "splits_from_arrays",
    "train_loader",
]
