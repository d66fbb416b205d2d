"""Features in place of images: what a batch is made of when the network below is frozen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from semigpc.data.augment import check_views
from semigpc.data.dataset import ImageSet, Integers


@dataclass
class Fetched:
    """Rows (n,) of some images, and which view of each was drawn under which name."""

    rows: Tensor
    drawn: dict[str, Tensor] = field(default_factory=dict)


class CachedFeatures:
    """A view source whose views are (n, D) rows of tables.

    A view is one of the V there are, drawn whenever it is asked for; "strong2" is another than "strong" if V > 1. Features are
    held as float16 and leave as float32. Memory: 2 (2 V R + R') D bytes.

    Args:
        weak, strong: (R, V, D) of R training images.
        plain: (R', D), those R first.
        sets: which rows (n,) the images of each set have. Only these very sets can be asked for.
        origin: what made them, for whoever must be sure to use the same network again.
    """

    TRAINING = ("labeled", "unlabeled")

    def __init__(
        self,
        *,
        weak: Tensor,
        strong: Tensor,
        plain: Tensor,
        sets: Sequence[tuple[ImageSet, Integers]],
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self._weak, self._strong, self._plain = weak, strong, plain
        self._sets = list(sets)
        self.origin = dict(origin or {})

    @property
    def width(self) -> int:
        """D."""
        return self._plain.shape[1]

    def also(self, image_set: ImageSet, parts: Sequence[tuple[ImageSet, Integers]]) -> "CachedFeatures":
        """The same features, and one more set that can be asked for: images of known sets at these positions, in order."""
        rows = np.concatenate([self.fetch(known, indices).rows.numpy() for known, indices in parts])
        sets = [*self._sets, (image_set, rows)]
        return CachedFeatures(weak=self._weak, strong=self._strong, plain=self._plain, sets=sets, origin=self.origin)

    def fetch(self, image_set: ImageSet, indices: Integers) -> Fetched:
        """Where the features of these images are."""
        for known, rows in self._sets:
            if known is image_set:
                return Fetched(torch.from_numpy(rows[indices]))
        raise ValueError("features are cached for the sets of one split; this one is not among them.")

    def cut(self, name: str, fetched: Fetched, rng: Generator) -> Tensor:
        """One of the V views of each image, (n, D)."""
        check_views((name,))
        table = self._weak if name == "weak" else self._strong
        views, n = table.shape[1], len(fetched.rows)
        if name == "strong2" and "strong" in fetched.drawn and views > 1:
            chosen = (fetched.drawn["strong"] + 1 + torch.from_numpy(rng.integers(views - 1, size=n))) % views
        else:
            chosen = torch.from_numpy(rng.integers(views, size=n))
        fetched.drawn[name] = chosen
        return table[fetched.rows, chosen].float()

    def plain(self, fetched: Fetched) -> Tensor:
        """The view to judge by, (n, D)."""
        return self._plain[fetched.rows].float()
