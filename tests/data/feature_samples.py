"""Images, splits and a network that counts, for tests of cached features."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semigpc.data import (
    AugmentConfig,
    CachedFeatures,
    CacheKey,
    FeatureCache,
    Images,
    ImageSet,
    Splits,
)
from semigpc.io.images import ArrayImages

AUGMENT = AugmentConfig(image_size=8, crop_ratio=0.75)
VIEWS = 3
KEY = CacheKey(network="pixels", weights="0" * 64, augment=AUGMENT, views=VIEWS, width=3 * 8 * 8)
EACH = 2 * VIEWS + 1  # images that the network sees of one to train on
TRAINED, JUDGED = 40, 8


class Counting:
    """A network whose features are the pixels, and which counts what it is shown; the
    ``ends_at``-th call fails.
    """

    def __init__(
        self, ends_at: int | None = None, error: type[BaseException] = RuntimeError
    ) -> None:
        self.calls, self.seen, self.ends_at, self.error = 0, 0, ends_at, error

    def __call__(self, images: Tensor) -> Tensor:
        if self.calls == self.ends_at:
            raise self.error
        self.calls += 1
        self.seen += len(images)
        return images.flatten(1)


def noise(count: int = TRAINED + JUDGED) -> ArrayImages:
    return ArrayImages(np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8))


def splits_of(
    images: Images,
    labeled: Sequence[int] = range(12),
    unlabeled: Sequence[int] = range(TRAINED),
    test: Sequence[int] = range(TRAINED, TRAINED + JUDGED),
) -> Splits:
    """Images of a pool; the labelled ones are among the unlabelled."""
    pool = ImageSet(images, np.arange(len(images)) % 2, [str(i) for i in range(len(images))])
    drawn = pool.subset(np.array(unlabeled, dtype=np.int64))
    return Splits(
        labeled=pool.subset(np.array(labeled)),
        unlabeled=drawn.without_labels(),
        unlabeled_truth=drawn.labels,
        test=pool.subset(np.array(test)),
        class_names=("even", "odd"),
    )


def compute(
    root: Path, splits: Splits, embed: Callable[[Tensor], Tensor] | None = None, **options: Any
) -> CachedFeatures:
    return FeatureCache(KEY, root).features(splits, embed or Counting(), **{"workers": 0} | options)


def computed(root: Path, splits: Splits) -> int:
    """How many images, in whatever view, the network has to see for these splits."""
    counting = Counting()
    compute(root, splits, counting)
    return counting.seen


def everything(source: CachedFeatures, splits: Splits) -> dict[str, Tensor]:
    """What can be had of each part, its images in the order of their positions; in six draws every
    view occurs.
    """
    found = {}
    for part, image_set in splits.parts():
        order = np.argsort(image_set.positions, kind="stable")
        fetched = source.fetch(image_set, order)
        found[f"{part} plain"] = source.plain(image_set, order)
        if part in ("labeled", "unlabeled"):
            for kind in ("weak", "strong"):
                draws = [
                    source.cut(kind, fetched, np.random.default_rng(seed)) for seed in range(6)
                ]
                found[f"{part} {kind}"] = torch.stack(draws, dim=1)
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(values, other[name]) for name, values in one.items()
    )


def shards(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.safetensors"))
