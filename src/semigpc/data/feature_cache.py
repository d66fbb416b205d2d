"""Features of a frozen network, computed once for V weak and V strong views of each image and kept on disk.

A cache is a folder named after what made it: the network's weights, the way views are cut, and V. It holds shards, safetensors
files of some hundred images, which appear under their names only when they are complete. A row is found by the image's own
fingerprint and not by its place in some data set, so data sets and seeds share the images they have in common, and an image
that has changed is computed again.
"""

import hashlib
import json
import os
import uuid
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator, Philox
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from semigpc import tensor_files
from semigpc.data.augment import Augment, AugmentConfig, ViewSource, check_views
from semigpc.data.dataset import DataError, Images, ImageSet, Integers, Splits
from semigpc.data.loaders import InOrder
from semigpc.files import FileError, WriteError, locked, read_json, remove_drafts, replacing, write_json

SHARD = 512  # images: what an interruption loses at most, half a minute or so of work
VARIABLE = "SEMIGPC_CACHE"
DELETE = "Delete that file; its features will be made again."
FEW = 64  # images that are not worth starting a worker for
Embed = Callable[[Tensor], Tensor]
Progress = Callable[[int, int], None]
Place = tuple[Path, int]  # a shard, and a row in it
MARK = 16  # bytes
IMAGES = 16  # of which all views go through the network together
KINDS = ("weak", "strong")


def cache_root() -> Path:
    """Where caches live: the folder named by SEMIGPC_CACHE, or ``~/.cache/semigpc``."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "semigpc").expanduser()


@dataclass(frozen=True, kw_only=True)
class CacheKey:
    """What a cached feature depends on besides the image.

    Args:
        network: its name, for people. weights: a hash of all that is in it.
        augment: how views are cut. views: V, of each kind.
        width: D.
    """

    network: str
    weights: str
    augment: AugmentConfig
    views: int
    width: int

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @property
    def folder_name(self) -> str:
        """Of the cache."""
        digest = hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()
        return f"{self.network.replace('/', '_')}-{self.augment.image_size}px-{digest[:12]}"


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """sha256 over names, shapes and values of a state dict."""
    digest = hashlib.sha256()
    for name, value in weights.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


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
        self._refuse_foreign()

    def features(self, splits: Splits, embed: Embed, *, workers: int = 1, progress: Progress | None = None) -> CachedFeatures:
        """Compute what is missing for these splits, and answer with all of it.

        Training images get V weak, V strong and the plain view, images to judge by the plain one alone. What is finished
        stays on disk when this is interrupted. Another process that adds to the same cache is waited for.

        Args:
            splits: whose images.
            embed: images (M, 3, s, s) to features (M, D).
            workers: processes that cut views while the network works.
            progress: told (images done, images to do) after every few.
        """
        sets = dict(splits.parts())
        marks = {part: fingerprints(image_set) for part, image_set in sets.items()}
        if any(self._missing(sets, marks)):
            try:
                with locked(self.path, waiting=warnings.warn):  # then most of it is there
                    remove_drafts(self.path)
                    tensor_files.remove_litter(self.path)
                    self._compute(sets, marks, embed, workers, progress)
            except WriteError as error:
                raise DataError(f"Features cannot be written: {error} Or set {VARIABLE}.") from error
        return self._gather(sets, marks)

    def _compute(
        self,
        sets: Mapping[str, ImageSet],
        marks: Mapping[str, list[bytes]],
        embed: Embed,
        workers: int,
        progress: Progress | None,
    ) -> None:
        """Add what is missing, shard by shard."""
        chunks = list(self._missing(sets, marks))
        total, done = sum(len(chunk.indices) for chunk in chunks), 0
        stream = ViewChunks(sets, chunks, Augment(self.key.augment))
        waiting: list[tuple[Chunk, dict[str, Tensor]]] = []
        for chunk, views in zip(chunks, InOrder(stream, range(len(chunks)), workers if total > FEW else 0, 2), strict=True):
            if waiting and (waiting[0][0].views != chunk.views or sum(len(held.indices) for held, _ in waiting) >= SHARD):
                self._write(waiting)
                waiting = []
            waiting.append((chunk, self._embedded(views, embed)))
            done += len(chunk.indices)
            if progress is not None:
                progress(done, total)
        if waiting:
            self._write(waiting)

    def _missing(self, sets: Mapping[str, ImageSet], marks: Mapping[str, list[bytes]]) -> Iterable[Chunk]:
        """Training images first; what both kinds of part share is computed once."""
        held = {"views": set(self._index("views")), "plain": set(self._index("plain"))}
        for part, image_set in sorted(sets.items(), key=lambda item: item[0] not in CachedFeatures.TRAINING):
            training = part in CachedFeatures.TRAINING
            known = held["views"] if training else held["views"] | held["plain"]
            missing = [i for i in range(len(image_set)) if marks[part][i] not in known]
            held["views" if training else "plain"].update(marks[part][i] for i in missing)
            yield from Chunk.cut(part, missing, [marks[part][i] for i in missing], self.key.views if training else 0)

    def _embedded(self, views: Mapping[str, Tensor], embed: Embed) -> dict[str, Tensor]:
        """Views (n, 3, s, s) and (n, V, 3, s, s) to features (n, D) and (n, V, D), in one pass of the network."""
        flat = [images.flatten(0, -4) for images in views.values()]
        features = embed(torch.cat(flat)).half().split([len(images) for images in flat])
        return {name: rows.reshape(*views[name].shape[:-3], self.key.width) for name, rows in zip(views, features, strict=True)}

    def _write(self, held: Sequence[tuple[Chunk, dict[str, Tensor]]]) -> None:
        """One shard, which appears under its name when it is complete."""
        tensors = {name: torch.cat([features[name] for _, features in held]) for name in held[0][1]}
        if not all(bool(values.isfinite().all()) for values in tensors.values()):
            raise DataError(f"{self.key.network} answers with features that are no numbers in 16 bits. Are its weights whole?")
        marks = b"".join(mark for chunk, _ in held for mark in chunk.marks)
        tensors["marks"] = torch.from_numpy(np.frombuffer(marks, np.uint8).reshape(-1, MARK).copy())
        kind, number = "views" if held[0][0].views else "plain", uuid.uuid4().hex[:12]
        if not (self.path / "key.json").exists():
            write_json(self.path / "key.json", self.key.plain())
        with replacing(self.path / f"{kind}-{number}.safetensors") as draft:
            tensor_files.save(draft, tensors)

    # Reading ----------------------------------------------------------------------------------------------------------

    def _refuse_foreign(self) -> None:
        file = self.path / "key.json"
        if not file.exists() and not any(self.path.glob("*.safetensors")):
            return  # nothing was ever finished there
        remedy = f"Delete the folder {self.path}; it will be made again."
        try:
            held = read_json(file, dict[str, Any], error=DataError, remedy=remedy)
        except FileNotFoundError as error:
            raise DataError(f"{file} cannot be read: it is gone. {remedy}") from error
        wanted = self.key.plain()
        other = [name for name in wanted if held.get(name) != wanted[name]]
        if other:
            raise DataError(
                f"{file} says that these features were made otherwise: {other[0]} is {held.get(other[0])!r:.80} there and "
                f"{wanted[other[0]]!r} here. They are not used; delete the folder, or set {VARIABLE} to another one."
            )

    def _index(self, kind: str) -> dict[bytes, Place]:
        """Where the row of each image is."""
        found: dict[bytes, Place] = {}
        for path in sorted(self.path.glob(f"{kind}-*.safetensors")):
            found |= {row.tobytes(): (path, number) for number, row in enumerate(self._read(path, "marks").numpy())}
        return found

    def _read(self, path: Path, name: str) -> Tensor:
        """A tensor of a shard, of which every byte is verified when it is first read."""
        try:
            with tensor_files.opened(path, verify=path not in self._verified) as (file, _):
                self._verified.add(path)
                tensor: Tensor = file.get_tensor(name)
        except (FileError, OSError) as error:
            problem = error if isinstance(error, FileError) else f"{path} cannot be read: {error.strerror or error}"
            raise DataError(f"{problem}. {DELETE}") from error
        rows = {"marks": (MARK,), "plain": (self.key.width,)}.get(name, (self.key.views, self.key.width))
        if tensor.shape[1:] != rows:
            raise DataError(
                f"{path} has {name} of the shape {tuple(tensor.shape)}, and not (n, {', '.join(map(str, rows))}). {DELETE}"
            )
        return tensor

    def _gather(self, sets: Mapping[str, ImageSet], marks: Mapping[str, list[bytes]]) -> CachedFeatures:
        """The rows of these sets, in memory: those of training images first, each image once."""
        ordered = sorted(sets, key=lambda part: part not in CachedFeatures.TRAINING)
        trained = dict.fromkeys(mark for part in ordered if part in CachedFeatures.TRAINING for mark in marks[part])
        row = {mark: number for number, mark in enumerate(trained | dict.fromkeys(m for part in ordered for m in marks[part]))}
        views = self._index("views")
        return CachedFeatures(
            weak=self._rows("weak", list(trained), views),
            strong=self._rows("strong", list(trained), views),
            plain=self._rows("plain", list(row), self._index("plain") | views),
            sets=[(image_set, np.array([row[mark] for mark in marks[part]], np.int64)) for part, image_set in sets.items()],
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
    """A few bytes for each image that change when it does.

    A pool that knows something cheap, such as a file's size and time or the checksum in a zip file, is asked for it; of others
    the pixels are hashed.
    """
    own: Callable[[int], bytes] | None = getattr(image_set.images, "fingerprint", None)
    found = []
    for position in image_set.positions.tolist():
        if own is None:
            image = image_set.images[position]
            content = f"{image.size} ".encode() + image.tobytes()
        else:
            content = own(position)
        found.append(hashlib.blake2b(content, digest_size=MARK).digest())
    return found


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
