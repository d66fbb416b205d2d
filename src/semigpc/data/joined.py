"""Unlabelled images that join the labelled ones, with labels a model gave them."""

from bisect import bisect_right
from dataclasses import replace

import numpy as np
from PIL import Image

from semigpc.data.augment import ViewSource
from semigpc.data.cached_features import CachedFeatures
from semigpc.data.dataset import Images, ImageSet, Integers, Splits


class Chain:
    """The images of several pools, one pool after the other."""

    def __init__(self, *pools: Images) -> None:
        self.pools = pools
        self.starts = np.cumsum([0, *map(len, pools)]).tolist()

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, position: int) -> Image.Image:
        pool = bisect_right(self.starts, position) - 1
        return self.pools[pool][position - self.starts[pool]]


def join(splits: Splits, given: Integers, source: ViewSource) -> tuple[Splits, ViewSource]:
    """The same splits with more labels, and a view source that knows the larger labelled set.

    The unlabelled images stay as they are: those that joined are in both sets.

    Args:
        splits: the data. given: (u,) the class of each unlabelled image that joins, -1 of the others.
        source: of views.
    """
    if given.shape != (len(splits.unlabeled),):
        raise ValueError(f"given must have one entry for each of the {len(splits.unlabeled)} unlabelled images.")
    labeled, unlabeled, chosen = splits.labeled, splits.unlabeled, np.flatnonzero(given >= 0)
    if labeled.images is unlabeled.images:
        pool, shift = labeled.images, 0
    else:
        pool, shift = Chain(labeled.images, unlabeled.images), len(labeled.images)
    larger = ImageSet(
        pool,
        np.concatenate([labeled.labels, given[chosen]]),
        [*labeled.names, *(unlabeled.names[i] for i in chosen)],
        np.concatenate([labeled.positions, unlabeled.positions[chosen] + shift]),
    )
    if isinstance(source, CachedFeatures):
        source = source.also(larger, [(labeled, np.arange(len(labeled))), (unlabeled, chosen)])
    return replace(splits, labeled=larger), source
