"""Features of a frozen network for V weak and V strong views of each image, kept on disk.

A cache is a folder named after what made it: the network's weights, the way views are cut, and V.
It is a :class:`semigpc.io.parts.RowParts`: a row is found by the mark of the image's content and
not by its place in some data set, so data sets and seeds share the images they have in common, and
an image that has changed is computed again.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator, Philox
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from semigpc.data.augment import Augment, AugmentConfig, ViewSource, check_views
from semigpc.data.dataset import ImageSet, Integers, Splits
from semigpc.data.loaders import InOrder
from semigpc.io.atomic import locked
from semigpc.io.errors import DataError, WriteError
from semigpc.io.images import Images
from semigpc.io.parts import CACHE_VARIABLE, Folder, Key, RowParts, key_digest, plain

LEAST_IMAGES_FOR_WORKERS = 64  # fewer images are not worth starting a worker process for
CHUNK_IMAGES = 16  # images whose views pass the network together
Embed = Callable[[Tensor], Tensor]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class CacheKey:
    """What a cached feature depends on besides the image.

    Args:
        network: its name, for people. weights: a hash of all that is in it.
        augment: how views are cut. views: V, of each kind.
        width: D. pixels: how images are decoded and resized.
    """

    network: str
    weights: str
    augment: AugmentConfig
    views: int
    width: int
    pixels: str = "JPEG by draft, resized by torch, plain views by Pillow"

    def plain(self) -> Key:
        """Return the key as plain values for JSON."""
        return plain(asdict(self))

    @property
    def folder_name(self) -> str:
        """The folder of the cache."""
        name = self.network.replace("/", "_")
        return f"{name}-{self.augment.image_size}px-{key_digest(self.plain())[:12]}"


@dataclass
class Fetched:
    """Rows (n,) of some images, and which view of each was drawn under which name."""

    rows: Tensor
    drawn: dict[str, Tensor] = field(default_factory=dict)


class CachedFeatures:
    """A view source whose views are (n, D) rows of tables.

    A view is drawn from the V that were computed; "strong2" differs from "strong" if V > 1.
    Features are float16 until they are normalised. Memory: 2 (2 V R + R') D bytes.

    Args:
        weak, strong: (R, V, D) of R training images.
        plain: (R', D), those R first.
        sets: the rows (n,) of the images of each set. Views can be cut of these sets alone.
        origin: the key of the cache, by which the same network can be found again.
    """

    def __init__(
        self,
        *,
        weak: Tensor,
        strong: Tensor,
        plain: Tensor,
        sets: Sequence[tuple[ImageSet, Integers]],
        origin: Key | None = None,
    ) -> None:
        self._weak = weak
        self._strong = strong
        self._plain = plain
        self._sets = sets
        self.origin = dict(origin or {})

    @property
    def width(self) -> int:
        """D."""
        return self._plain.shape[1]

    def also(
        self, image_set: ImageSet, parts: Sequence[tuple[ImageSet, Integers]]
    ) -> "CachedFeatures":
        """Return the same features with one more set, made of images of known sets, in order."""
        rows = np.concatenate([self._rows(known)[indices] for known, indices in parts])
        sets = [*self._sets, (image_set, rows)]
        return CachedFeatures(
            weak=self._weak, strong=self._strong, plain=self._plain, sets=sets, origin=self.origin
        )

    def keep(self, image_set: ImageSet, *, plain: bool) -> None:
        """Do nothing: all is in memory."""

    def fetch(self, image_set: ImageSet, indices: Integers) -> Fetched:
        """Return the rows of these images."""
        return Fetched(torch.from_numpy(self._rows(image_set)[indices]))

    def _rows(self, image_set: ImageSet) -> Integers:
        for known, rows in self._sets:
            if known is image_set:
                return rows
        raise ValueError(
            "features are cached for the sets of one split; this one is not among them."
        )

    def cut(self, name: str, fetched: Fetched, rng: Generator) -> Tensor:
        """Return one of the V views of each image, (n, D)."""
        check_views((name,))
        table = self._weak if name == "weak" else self._strong
        n = len(fetched.rows)
        views = table.shape[1]
        if name == "strong2" and "strong" in fetched.drawn and views > 1:
            steps = 1 + torch.from_numpy(rng.integers(views - 1, size=n))
            chosen = (fetched.drawn["strong"] + steps) % views
        else:
            chosen = torch.from_numpy(rng.integers(views, size=n))
        fetched.drawn[name] = chosen
        return table[fetched.rows, chosen]

    def plain(self, image_set: ImageSet, indices: Integers) -> Tensor:
        """Return the plain view of each image, (n, D)."""
        return self._plain[torch.from_numpy(self._rows(image_set)[indices])]

    def normalise(self, views: Tensor) -> Tensor:
        """Return features as float32."""
        return views.float()


class _Chunk(NamedTuple):
    """Some images of a set, or all: indices, marks and V, or 0 for the plain view alone."""

    image_set: ImageSet
    indices: Sequence[int]
    marks: Sequence[bytes]
    views: int


@dataclass
class _ViewChunks(Dataset[dict[str, Tensor]]):
    """Chunk i as bytes: "plain" (n, s, s, 3); with views also "weak" and "strong" (n, V, s, s, 3).

    View v of an image depends on its content and v alone, in any order and in any process.
    """

    chunks: Sequence[_Chunk]
    augment: Augment

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        chunk = self.chunks[number]
        # Decoded once for plain and random views.
        images = [self.augment.decode(chunk.image_set, i) for i in chunk.indices]
        plain_views = np.stack([self.augment.evaluation_pixels(image) for image in images])
        cut = {"plain": torch.from_numpy(plain_views)}
        if chunk.views:
            generators = [
                Generator(Philox(key=np.frombuffer(mark, np.uint64))) for mark in chunk.marks
            ]
            squares = [self.augment.square(image) for image in images]  # resized once for all views
            for kind in ("weak", "strong"):
                pixels = [
                    [self.augment.pixels(kind, image, rng) for _ in range(chunk.views)]
                    for image, rng in zip(squares, generators, strict=True)
                ]
                cut[kind] = torch.from_numpy(np.array(pixels))
        return cut


class FeatureCache:
    """The features of one key, in a folder of its own.

    Args:
        key: what the features depend on.
        root: the folder of all caches.

    Raises:
        DataError: the folder of this key was written by something else.
    """

    def __init__(self, key: CacheKey, root: Path) -> None:
        self.key = key
        self.path = root / key.folder_name
        views = (key.views, key.width)
        self._parts = RowParts(
            Folder(self.path),
            key.plain(),
            shapes={
                "views": {"weak": views, "strong": views, "plain": (key.width,)},
                "plain": {"plain": (key.width,)},
            },
            dtype=torch.float16,
            remedy=f"Delete that file, or the folder {self.path}; it will be made again.",
        )
        difference = self._parts.difference()
        if difference is not None:
            raise DataError(
                f"The features in {self.path} were made differently: {difference}. "
                f"Delete the folder, or set {CACHE_VARIABLE} to another one."
            )

    def features(
        self,
        splits: Splits,
        embed: Embed,
        *,
        prepare: Callable[[int], None] | None = None,
        workers: int = 1,
        progress: Progress | None = None,
    ) -> CachedFeatures:
        """Compute what is missing for these splits, and return all features of them.

        Training images get V weak, V strong and the plain view, test and validation images the
        plain one alone. What is finished stays on disk when this is interrupted. If another process
        adds to the same cache, this one waits.

        Args:
            splits: whose images.
            embed: images (M, 3, s, s) to features (M, D).
            prepare: called with the number of views to compute, before the first of them; not if
                there are none.
            workers: processes that cut views while the network works.
            progress: called with (images done, images to do) after each chunk.
        """
        sets = []  # the training ones first
        for name, image_set in splits.parts():
            views = self.key.views if name in ("labeled", "unlabeled") else 0
            sets.append(_Chunk(image_set, range(len(image_set)), image_set.marks, views))
        if any(self._missing(sets)):
            try:
                with locked(self.path, waiting=warnings.warn):  # then most of it is there
                    self._parts.begin()
                    chunks = list(self._missing(sets))
                    if prepare is not None:
                        prepare(sum(len(chunk.indices) * (1 + 2 * chunk.views) for chunk in chunks))
                    self._compute(chunks, embed, workers, progress)
            except WriteError as error:
                message = f"Features cannot be written: {error} Or set {CACHE_VARIABLE}."
                raise DataError(message) from error
        return self._gather(sets)

    def _missing(self, sets: Sequence[_Chunk]) -> Iterable[_Chunk]:
        """Cut what is missing into chunks; what sets have in common is computed once."""
        with_views = set(self._parts.index("views"))
        plain = set(self._parts.index("plain"))
        for image_set, indices, marks, views in sets:
            known = with_views if views else with_views | plain
            missing = [i for i in indices if marks[i] not in known]
            (with_views if views else plain).update(marks[i] for i in missing)
            for first in range(0, len(missing), CHUNK_IMAGES):
                chosen = missing[first : first + CHUNK_IMAGES]
                yield _Chunk(image_set, chosen, [marks[i] for i in chosen], views)

    def _compute(
        self, chunks: Sequence[_Chunk], embed: Embed, workers: int, progress: Progress | None
    ) -> None:
        """Add what is missing, part by part."""
        total = sum(len(chunk.indices) for chunk in chunks)
        augment = Augment(self.key.augment)
        processes = workers if total > LEAST_IMAGES_FOR_WORKERS else 0
        stream = InOrder(_ViewChunks(chunks, augment), range(len(chunks)), processes, 2)
        done = 0
        for chunk, views in zip(chunks, stream, strict=True):
            kind = "views" if chunk.views else "plain"
            self._parts.add(kind, chunk.marks, self._embedded(views, augment, embed))
            done += len(chunk.indices)
            if progress is not None:
                progress(done, total)
        self._parts.flush()

    def _embedded(
        self, views: Mapping[str, Tensor], augment: Augment, embed: Embed
    ) -> dict[str, Tensor]:
        """Return features (n, D) and (n, V, D) of views (n, s, s, 3) and (n, V, s, s, 3).

        All views pass the network together.
        """
        flat = [images.flatten(0, -4) for images in views.values()]
        features = embed(augment.normalise(torch.cat(flat))).half()
        if not features.isfinite().all():
            raise DataError(
                f"{self.key.network} returns features that are NaN or infinite in 16 bits. "
                "Check its weights."
            )
        by_view = features.split([len(images) for images in flat])
        return {
            name: rows.reshape(*views[name].shape[:-3], self.key.width)
            for name, rows in zip(views, by_view, strict=True)
        }

    def _gather(self, sets: Sequence[_Chunk]) -> CachedFeatures:
        """Read the rows of these sets: those of training images first, each image once."""
        trained = dict.fromkeys(mark for part in sets if part.views for mark in part.marks)
        known = trained | dict.fromkeys(mark for part in sets for mark in part.marks)
        row = {mark: number for number, mark in enumerate(known)}
        return CachedFeatures(
            weak=self._parts.rows("weak", list(trained)),
            strong=self._parts.rows("strong", list(trained)),
            plain=self._parts.rows("plain", list(row)),
            sets=[
                (part.image_set, np.array([row[mark] for mark in part.marks], np.int64))
                for part in sets
            ],
            origin=self.key.plain(),
        )


@dataclass(frozen=True, eq=False)
class JoinedImages(Images):
    """The images of one pool, then those of another."""

    first: Images
    second: Images

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, position: int) -> Image.Image:
        pool, own = self._place(position)
        return pool[own]

    def read(self, position: int, *, at_least: int | None = None) -> Image.Image:
        """Return an image as its own pool does."""
        pool, own = self._place(position)
        return pool.read(own, at_least=at_least)

    def _place(self, position: int) -> tuple[Images, int]:
        if position < len(self.first):
            return self.first, position
        return self.second, position - len(self.first)


def join(splits: Splits, labels: Integers, source: ViewSource) -> tuple[Splits, ViewSource]:
    """Return the splits with more labels, and a view source for the larger labelled set.

    The unlabelled images stay as they are: those with a new label are in both sets.

    Args:
        splits: the data.
        labels: (u,) the class of each unlabelled image that joins the labelled ones, -1 for others.
        source: of views.
    """
    if labels.shape != (len(splits.unlabeled),):
        raise ValueError(
            f"labels must have one entry for each of the {len(splits.unlabeled)} unlabelled images."
        )
    labeled = splits.labeled
    unlabeled = splits.unlabeled
    chosen = np.flatnonzero(labels >= 0)
    pool = labeled.images
    shift = 0
    if pool is not unlabeled.images:
        pool = JoinedImages(labeled.images, unlabeled.images)
        shift = len(labeled.images)
    larger = ImageSet(
        pool,
        np.concatenate([labeled.labels, labels[chosen]]),
        [*labeled.names, *(unlabeled.names[i] for i in chosen)],
        np.concatenate([labeled.positions, unlabeled.positions[chosen] + shift]),
    )
    if isinstance(source, CachedFeatures):
        source = source.also(larger, [(labeled, np.arange(len(labeled))), (unlabeled, chosen)])
    return replace(splits, labeled=larger), source
