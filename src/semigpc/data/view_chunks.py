"""All views of a few images at a time, for a network that will see each of them once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, Philox
from torch import Tensor
from torch.utils.data import Dataset

from semigpc.data.augment import Augment
from semigpc.data.dataset import ImageSet

IMAGES = 16  # of which all views go through the network together
KINDS = ("weak", "strong")


@dataclass(frozen=True)
class Chunk:
    """Images of one part of a split: their indices there and their fingerprints; with ``views`` random views of each kind."""

    part: str
    indices: Sequence[int]
    marks: Sequence[bytes]
    views: int

    @classmethod
    def cut(cls, part: str, indices: Sequence[int], marks: Sequence[bytes], views: int) -> "Iterable[Chunk]":
        """Many images, a chunk at a time."""
        for first in range(0, len(indices), IMAGES):
            last = first + IMAGES
            yield cls(part, indices[first:last], marks[first:last], views)


class ViewChunks(Dataset[dict[str, Tensor]]):
    """Chunk i as "plain" (n, 3, s, s) and, if it has views, "weak" and "strong" (n, V, 3, s, s).

    View v of an image depends on its fingerprint and v alone, whoever asks and in whatever order.
    """

    def __init__(self, sets: Mapping[str, ImageSet], chunks: Sequence[Chunk], augment: Augment) -> None:
        self.sets, self.chunks, self.augment = dict(sets), chunks, augment

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        chunk = self.chunks[number]
        images = self.augment.fetch(self.sets[chunk.part], np.array(chunk.indices))
        cut = {"plain": self.augment.plain(images)}
        if chunk.views:
            generators = [Generator(Philox(key=np.frombuffer(mark, np.uint64))) for mark in chunk.marks]
            for kind in KINDS:
                pixels = [
                    [self.augment.pixels(kind, image, rng) for _ in range(chunk.views)]
                    for image, rng in zip(images, generators, strict=True)
                ]
                cut[kind] = self.augment.normalise(np.array(pixels))
        return cut
