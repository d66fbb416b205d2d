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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semigpc import tensor_files
from semigpc.data.augment import Augment, AugmentConfig
from semigpc.data.cached_features import CachedFeatures
from semigpc.data.dataset import DataError, ImageSet, Splits
from semigpc.data.view_chunks import Chunk, ViewChunks
from semigpc.data.workers import InOrder
from semigpc.files import WriteError, locked, remove_drafts, replacing, write_json
from semigpc.json_files import FileError, read_json

SHARD = 512  # images: what an interruption loses at most, half a minute or so of work
VARIABLE = "SEMIGPC_CACHE"
DELETE = "Delete that file; its features will be made again."
FEW = 64  # images that are not worth starting a worker for

Embed = Callable[[Tensor], Tensor]
Progress = Callable[[int, int], None]
Place = tuple[Path, int]  # a shard, and a row in it


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


MARK = 16  # bytes


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
