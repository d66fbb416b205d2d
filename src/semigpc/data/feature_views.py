"""Features of a frozen network, computed once for V weak and V strong views of each image and kept
on disk.

A cache is a folder named after what made it: the network's weights, the way views are cut, and V.
It holds shards, safetensors files of some hundred images, which appear under their names only when
they are complete. A row is found by the image's own fingerprint and not by its place in some data
set, so data sets and seeds share the images they have in common, and an image that has changed is
computed again.
"""

import hashlib
import json
import os
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator, Philox
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from semigpc.data.augment import Augment, AugmentConfig, ViewSource, check_views
from semigpc.data.dataset import Images, ImageSet, Integers, Splits
from semigpc.data.loaders import InOrder
from semigpc.io.atomic import locked, read_json, remove_drafts, replacing, write_json
from semigpc.io.errors import DataError, FileError, WriteError
from semigpc.io.tensors import open_tensors, remove_unfinished_tensors, save_tensors

SHARD = (
    512  # images in a file, which is what an interruption loses at most: some half a minute of work
)
VARIABLE = "SEMIGPC_CACHE"
DELETE = "Delete that file; its features will be made again."
FEW = 64  # images that are not worth starting a worker for
Embed = Callable[[Tensor], Tensor]
Progress = Callable[[int, int], None]
Place = tuple[Path, int]  # a shard, and a row in it
MARK = 16  # bytes of a fingerprint, as the key of a Philox generator needs them
IMAGES = 16  # whose views pass the network together


def cache_root() -> Path:
    """Return the folder of all caches: the one named by SEMIGPC_CACHE, or ``~/.cache/semigpc``."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "semigpc").expanduser()


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
    pixels: str = "JPEG by draft, resized by torch"

    def plain(self) -> dict[str, Any]:
        """Return the key as plain values for JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @property
    def folder_name(self) -> str:
        """The folder of the cache."""
        digest = hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()
        return f"{self.network.replace('/', '_')}-{self.augment.image_size}px-{digest[:12]}"


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """sha256 over names, shapes and values of a state dict."""
    digest = hashlib.sha256()
    for name, value in weights.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(
            value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()


@dataclass
class Fetched:
    """Rows (n,) of some images, and which view of each was drawn under which name."""

    rows: Tensor
    drawn: dict[str, Tensor] = field(default_factory=dict)


class CachedFeatures:
    """A view source whose views are (n, D) rows of tables.

    A view is drawn from the V that were computed; "strong2" differs from "strong" if V > 1.
    Features are float16 until they
    are normalised. Memory: 2 (2 V R + R') D bytes.

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
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self._weak, self._strong, self._plain, self._sets = weak, strong, plain, sets
        self.origin = dict(origin or {})

    @property
    def width(self) -> int:
        """D."""
        return self._plain.shape[1]

    def also(
        self, image_set: ImageSet, parts: Sequence[tuple[ImageSet, Integers]]
    ) -> "CachedFeatures":
        """Return the same features with one more set: images of known sets at these positions, in
        order.
        """
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
        views, n = table.shape[1], len(fetched.rows)
        if name == "strong2" and "strong" in fetched.drawn and views > 1:
            chosen = (
                fetched.drawn["strong"] + 1 + torch.from_numpy(rng.integers(views - 1, size=n))
            ) % views
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
    """Some images of a set, or all: their indices and fingerprints, and V, or 0 where the plain
    view is enough.
    """

    image_set: ImageSet
    indices: Sequence[int]
    marks: Sequence[bytes]
    views: int


@dataclass
class _ViewChunks(Dataset[dict[str, Tensor]]):
    """Chunk i as bytes: "plain" (n, s, s, 3) and, if it has views, "weak" and "strong" (n, V, s, s,
    3).

    View v of an image depends on its fingerprint and v alone, in any order and in any process.
    """

    chunks: Sequence[_Chunk]
    augment: Augment

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        chunk = self.chunks[number]
        images = [
            self.augment.decode(chunk.image_set, i) for i in chunk.indices
        ]  # decoded once for plain and random views
        cut = {
            "plain": torch.from_numpy(
                np.stack([self.augment.evaluation_pixels(image) for image in images])
            )
        }
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
    """The shards of one key.

    Args:
        key: what the features depend on.
        root: the folder of all caches.

    Raises:
        DataError: the folder of this key was written by something else.
    """

    def __init__(self, key: CacheKey, root: Path) -> None:
        self.key = key
        self.path = root / key.folder_name
        self._verified: set[Path] = set()
        file = self.path / "key.json"
        if not file.exists() and not any(self.path.glob("*.safetensors")):
            return  # nothing was ever finished there
        remedy = f"Delete the folder {self.path}; it will be made again."
        try:
            stored = read_json(file, dict[str, Any], error=DataError, remedy=remedy)
        except FileNotFoundError as error:
            raise DataError(f"{file} cannot be read: it is gone. {remedy}") from error
        for name, wanted in key.plain().items():
            if stored.get(name) != wanted:
                raise DataError(
                    f"{file} says that these features were made otherwise: {name} is {stored.get(name)!r:.80} there and "
                    f"{wanted!r} here. They are not used; delete the folder, or set {VARIABLE} to another one."
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
        parts = []  # the training ones first
        for name, image_set in splits.parts():
            views = self.key.views if name in ("labeled", "unlabeled") else 0
            parts.append(_Chunk(image_set, range(len(image_set)), fingerprints(image_set), views))
        if any(self._missing(parts)):
            try:
                with locked(self.path, waiting=warnings.warn):  # then most of it is there
                    remove_drafts(self.path)
                    remove_unfinished_tensors(self.path)
                    chunks = list(self._missing(parts))
                    if prepare is not None:
                        prepare(sum(len(chunk.indices) * (1 + 2 * chunk.views) for chunk in chunks))
                    self._compute(chunks, embed, workers, progress)
            except WriteError as error:
                raise DataError(
                    f"Features cannot be written: {error} Or set {VARIABLE}."
                ) from error
        return self._gather(parts)

    def _compute(
        self, chunks: Sequence[_Chunk], embed: Embed, workers: int, progress: Progress | None
    ) -> None:
        """Add what is missing, shard by shard."""
        total, done = sum(len(chunk.indices) for chunk in chunks), 0
        augment = Augment(self.key.augment)
        stream = _ViewChunks(chunks, augment)
        waiting: list[tuple[_Chunk, dict[str, Tensor]]] = []
        for chunk, views in zip(
            chunks,
            InOrder(stream, range(len(chunks)), workers if total > FEW else 0, 2),
            strict=True,
        ):
            if waiting and (
                waiting[0][0].views != chunk.views
                or sum(len(earlier.indices) for earlier, _ in waiting) >= SHARD
            ):
                self._write(waiting)
                waiting = []
            waiting.append((chunk, self._embedded(views, augment, embed)))
            done += len(chunk.indices)
            if progress is not None:
                progress(done, total)
        if waiting:
            self._write(waiting)

    def _missing(self, parts: Sequence[_Chunk]) -> Iterable[_Chunk]:
        """Cut what is missing into chunks; what parts have in common is computed once."""
        with_views, plain = set(self._index("views")), set(self._index("plain"))
        for image_set, indices, marks, views in parts:
            known = with_views if views else with_views | plain
            missing = [i for i in indices if marks[i] not in known]
            (with_views if views else plain).update(marks[i] for i in missing)
            for first in range(0, len(missing), IMAGES):
                chosen = missing[first : first + IMAGES]
                yield _Chunk(image_set, chosen, [marks[i] for i in chosen], views)

    def _embedded(
        self, views: Mapping[str, Tensor], augment: Augment, embed: Embed
    ) -> dict[str, Tensor]:
        """Views (n, s, s, 3) and (n, V, s, s, 3) to features (n, D) and (n, V, D), in one pass of
        the network.
        """
        flat = [images.flatten(0, -4) for images in views.values()]
        features = (
            embed(augment.normalise(torch.cat(flat))).half().split([len(images) for images in flat])
        )
        return {
            name: rows.reshape(*views[name].shape[:-3], self.key.width)
            for name, rows in zip(views, features, strict=True)
        }

    def _write(self, computed: Sequence[tuple[_Chunk, dict[str, Tensor]]]) -> None:
        """Write one shard, which appears under its name when it is complete."""
        tensors = {
            name: torch.cat([features[name] for _, features in computed]) for name in computed[0][1]
        }
        if not all(bool(values.isfinite().all()) for values in tensors.values()):
            raise DataError(
                f"{self.key.network} returns features that are NaN or infinite in 16 bits. Check its weights."
            )
        marks = b"".join(mark for chunk, _ in computed for mark in chunk.marks)
        tensors["marks"] = torch.from_numpy(np.frombuffer(marks, np.uint8).reshape(-1, MARK).copy())
        kind, number = "views" if computed[0][0].views else "plain", uuid.uuid4().hex[:12]
        if not (self.path / "key.json").exists():
            write_json(self.path / "key.json", self.key.plain())
        with replacing(self.path / f"{kind}-{number}.safetensors") as draft:
            save_tensors(draft, tensors)

    # Reading --------------------------------------------------------------------------------------

    def _index(self, kind: str) -> dict[bytes, Place]:
        """Return where the row of each image is."""
        places: dict[bytes, Place] = {}
        for path in sorted(self.path.glob(f"{kind}-*.safetensors")):
            places |= {
                row.tobytes(): (path, number)
                for number, row in enumerate(self._read(path, "marks").numpy())
            }
        return places

    def _read(self, path: Path, name: str) -> Tensor:
        """Read a tensor of a shard; every byte of the shard is verified the first time."""
        try:
            with open_tensors(path, verify=path not in self._verified) as (file, _):
                self._verified.add(path)
                tensor: Tensor = file.get_tensor(name)
        except (FileError, OSError) as error:
            problem = (
                error
                if isinstance(error, FileError)
                else f"{path} cannot be read: {error.strerror or error}"
            )
            raise DataError(f"{problem}. {DELETE}") from error
        rows = {"marks": (MARK,), "plain": (self.key.width,)}.get(
            name, (self.key.views, self.key.width)
        )
        if tensor.shape[1:] != rows:
            raise DataError(
                f"{path} has {name} of the shape {tuple(tensor.shape)}, and not (n, {', '.join(map(str, rows))}). {DELETE}"
            )
        return tensor

    def _gather(self, parts: Sequence[_Chunk]) -> CachedFeatures:
        """Read the rows of these parts into memory: those of training images first, each image
        once.
        """
        trained = dict.fromkeys(mark for part in parts if part.views for mark in part.marks)
        row = {
            mark: number
            for number, mark in enumerate(
                trained | dict.fromkeys(m for part in parts for m in part.marks)
            )
        }
        views = self._index("views")
        return CachedFeatures(
            weak=self._rows("weak", list(trained), views),
            strong=self._rows("strong", list(trained), views),
            plain=self._rows("plain", list(row), self._index("plain") | views),
            sets=[
                (part.image_set, np.array([row[mark] for mark in part.marks], np.int64))
                for part in parts
            ],
            origin=self.key.plain(),
        )

    def _rows(self, name: str, marks: Sequence[bytes], index: Mapping[bytes, Place]) -> Tensor:
        shape = (self.key.width,) if name == "plain" else (self.key.views, self.key.width)
        gathered = torch.empty((len(marks), *shape), dtype=torch.float16)
        wanted: dict[Path, list[tuple[int, int]]] = {}
        for number, mark in enumerate(marks):
            path, there = index[mark]
            wanted.setdefault(path, []).append((number, there))
        for path, pairs in wanted.items():
            here, there_rows = torch.tensor(pairs).unbind(1)
            gathered[here] = self._read(path, name)[there_rows]
        return gathered


def fingerprints(image_set: ImageSet) -> list[bytes]:
    """Return a few bytes for each image that change when it does.

    They are a hash of what ``fingerprint`` of the pool returns, such as a file's size and time or
    the checksum in a zip file; for a pool without that method, of the pixels.
    """

    def of_pixels(position: int) -> bytes:
        image = image_set.images[position]
        return f"{image.size} ".encode() + image.tobytes()

    content: Callable[[int], bytes] = getattr(image_set.images, "fingerprint", of_pixels)
    return [
        hashlib.blake2b(content(position), digest_size=MARK).digest()
        for position in image_set.positions.tolist()
    ]


def join(splits: Splits, labels: Integers, source: ViewSource) -> tuple[Splits, ViewSource]:
    """Return the splits with more labels, and a view source for the larger labelled set.

    The unlabelled images stay as they are: those with a new label are in both sets.

    Args:
        splits: the data. labels: (u,) the class of each unlabelled image that joins the labelled
            ones, -1 of the others.
        source: of views.
    """
    if labels.shape != (len(splits.unlabeled),):
        raise ValueError(
            f"labels must have one entry for each of the {len(splits.unlabeled)} unlabelled images."
        )
    labeled, unlabeled, chosen = splits.labeled, splits.unlabeled, np.flatnonzero(labels >= 0)
    pool: Images = labeled.images
    shift = 0
    if pool is not unlabeled.images:
        pool, shift = ConcatDataset([labeled.images, unlabeled.images]), len(labeled.images)  # type: ignore[list-item]
    larger = ImageSet(
        pool,
        np.concatenate([labeled.labels, labels[chosen]]),
        [*labeled.names, *(unlabeled.names[i] for i in chosen)],
        np.concatenate([labeled.positions, unlabeled.positions[chosen] + shift]),
    )
    if isinstance(source, CachedFeatures):
        source = source.also(larger, [(labeled, np.arange(len(labeled))), (unlabeled, chosen)])
    return replace(splits, labeled=larger), source
