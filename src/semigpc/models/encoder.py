"""A frozen network as a function from images to rows, in torch or in ONNX Runtime.

It is used for tables of embeddings (:func:`embed_folder`), rows of new images
(:func:`embed_files`), cached features and predictions of runs on cached features. On a CPU, ONNX
Runtime takes a quarter to a half of torch's time. Both agree to 1e-3 of the size of the rows, about
the precision of float16, so one table or cache may have rows of both.
"""

import hashlib
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semigpc.io.atomic import locked, remove_drafts, write_text, writing
from semigpc.io.content import content_mark, file_mark, joined_mark
from semigpc.io.errors import (
    DataError,
    ImageError,
    NotExportableError,
    SettingsError,
    WriteError,
)
from semigpc.io.graphs import ONNX_PACKAGES, innermost, open_onnx, trace, write_onnx
from semigpc.io.images import Images, Pixels, RangeNote, pool_squares, read_squares
from semigpc.io.parts import CACHE_VARIABLE, Folder, RowParts, cache_root, key_digest
from semigpc.io.paths import EXTENSIONS, Bad, checked, sorted_images
from semigpc.io.tables import EmbeddingTable, TableKey
from semigpc.io.text import printable
from semigpc.io.threads import granted, using
from semigpc.models import MODELS, ModelConfig, build_model
from semigpc.models.backbones import EMBEDDED, EMBEDDED_MODEL, VITS, input_statistics

# Pixels that a network must see before ONNX Runtime saves the seven seconds that it takes to get
# the network there: on two cores torch takes 24 ms for an image of 224 x 224 and ONNX Runtime 8.
WORTHWHILE_PIXELS = 400 * 224**2
TOLERANCE = 1e-3  # largest difference from torch, relative to the root mean square of the outputs
DEFAULT_SIZE = 224  # pixels a side, for networks whose own size is not known
HUB = "timm"  # as EmbedConfig.pretrained: weights of timm's hub
# Weights of the averages of each stage of the embedded network, counted from 0, in its rows.
STAGE_WEIGHTS = {2: 0.5, 3: 0.3, 4: 0.3, 5: 0.15, 6: 0.2}
PIXELS = "JPEG by draft, the middle square, bilinear by Pillow"  # how images are prepared
NO_WEIGHTS = "none"  # the same: random weights, the same ones every time
AUTO = "auto"  # the same: the embedded weights if the network has some, timm's otherwise
GROUP_ROWS = 4096  # rows of a table of embeddings that are written together
MARKS_REPORTED = 500  # images that are read, to see whether they changed, between two reports

Progress = Callable[[str, int, int | None], None]  # stage, images done, images to do
# From names and s to the names that can be read, their pixels (n, s, s, 3), and the others.
Read = Callable[[Sequence[str], int], tuple[list[str], Pixels, list[Bad]]]
Item = TypeVar("Item")
Made = TypeVar("Made")


# The network --------------------------------------------------------------------------------------


def frozen_backbone(model: ModelConfig, device: torch.device) -> nn.Module:
    """Return the network that rows come from, in evaluation mode and without gradients.

    Without pretrained weights it is the same network every time, and no random numbers of the
    caller are used.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone: nn.Module = build_model(model, 2).backbone
    return backbone.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names, shapes and values of a state dict."""
    digest = hashlib.sha256()
    for name, value in weights.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(content.numpy().tobytes())
    return digest.hexdigest()


class Encoder:
    """A frozen network: images in, rows out.

    Args:
        model: the network and its weights. image_size: s, in pixels. device: that computes.
        of_bytes: images are bytes (M, s, s, 3), the network normalises them as it was trained, and
            rows of the embedded one hold its earlier stages too (:class:`Stages`); otherwise images
            are normalised, (M, 3, s, s), and rows are the features that a head is trained on.

    Raises:
        ValueError, KeyError, OSError: the network cannot be built. DataError: it cannot be used for
            images of this size, or returns no rows.
    """

    def __init__(
        self, model: ModelConfig, image_size: int, device: torch.device, *, of_bytes: bool = False
    ) -> None:
        self.name = model.name
        self.image_size = image_size
        self.device = device
        backbone = frozen_backbone(model, device)
        self.weights = weights_hash(backbone.state_dict())
        self._of_bytes = of_bytes
        self._network = backbone
        if of_bytes:
            rows = Stages(backbone) if model.pretrained == EMBEDDED else backbone
            self._network = _Normalised(rows, *input_statistics(model.name)).to(device)
        self._run_onnx: Callable[[NDArray[Any]], NDArray[np.float32]] | None = None
        self.width = self._find_width()

    @property
    def in_onnx_runtime(self) -> bool:
        """Whether ONNX Runtime computes; then several threads may call the encoder at once."""
        return self._run_onnx is not None

    @property
    def engine(self) -> str:
        """What computes, for a message."""
        where = "" if self.device.type == "cpu" else f" ({self.device})"
        return "ONNX Runtime" if self.in_onnx_runtime else f"torch{where}"

    def accelerate(self, images: int, *, threads: int) -> str | None:
        """Switch to ONNX Runtime if there is no GPU and ``images`` are enough to be worth it.

        Takes some seconds. Returns the reason if that is not possible.

        Args:
            images: how many will be encoded. threads: of each call.
        """
        size = self.image_size
        if self.device.type != "cpu" or images * size**2 < WORTHWHILE_PIXELS:
            return None
        if self._of_bytes:
            rng = np.random.default_rng(0)
            noise = torch.from_numpy(rng.integers(0, 256, (2, size, size, 3), dtype=np.uint8))
        else:
            noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
        try:
            self._run_onnx = in_onnx_runtime(self._network, noise, threads)
        except NotExportableError as error:
            return str(error)
        return None

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Return float32 rows (M, D) on the CPU."""
        if self._run_onnx is not None:
            return torch.from_numpy(self._run_onnx(images.numpy()))
        if self._of_bytes:
            moved = images.to(self.device)
        else:
            moved = images.to(self.device, memory_format=torch.channels_last)
        rows: Tensor = self._network(moved)
        return rows.float().cpu()

    def of_unit_range(self) -> nn.Module:
        """Return the network of images (M, 3, s, s), RGB in [0, 1], on the CPU, for export.

        Weights of convolutions are made contiguous, as torch.export fails to save others.
        """
        network = self._network
        assert isinstance(network, _Normalised)
        made = _UnitRange(network).to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return made.eval()  # type: ignore[no-any-return]

    def _find_width(self) -> int:
        size = self.image_size
        shape = (1, size, size, 3) if self._of_bytes else (1, 3, size, size)
        try:
            rows = self(torch.zeros(shape, dtype=torch.uint8 if self._of_bytes else torch.float32))
        except (RuntimeError, ValueError, AssertionError) as error:
            raise DataError(
                f"{self.name} does not accept images of {size} x {size} pixels: {error}. "
                "Choose another image size."
            ) from error
        if rows.ndim != 2:
            raise DataError(
                f"{self.name} returns features of shape {tuple(rows.shape[1:])} for an image "
                "instead of one row. Choose a network that pools its features."
            )
        return rows.shape[1]


class Stages(nn.Module):
    """The embedded network with averages of its earlier stages beside its features, (M, 2024).

        h = [h_last, w_3 mean(F_3), ..., w_7 mean(F_7)]

    F_s are the maps of stage s, averaged over their places: they hold texture and material, which
    the last features have learnt to ignore. They cost no time. The weights give each stage a third
    of the spread of the last features; larger ones and the first two stages were not better on
    tuning draws (docs/results.md).

    Args:
        backbone: timm's tf_efficientnet_lite0.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        """Return rows (M, 2024) of normalised images (M, 3, s, s)."""
        network: Any = self.backbone
        maps = network.bn1(network.conv_stem(images))
        earlier = []
        for stage, block in enumerate(network.blocks):
            maps = block(maps)
            if stage in STAGE_WEIGHTS:
                earlier.append(STAGE_WEIGHTS[stage] * maps.mean(dim=(2, 3)))
        last = network.global_pool(network.bn2(network.conv_head(maps)))
        return torch.cat([last, *earlier], dim=1)


class _Normalised(nn.Module):
    """The network of (v / 255 - mean) / std for bytes v (M, s, s, 3)."""

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        m, d = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (mean, std))
        self.register_buffer("scale", (1 / (255 * d)).float())
        self.register_buffer("shift", (-m / d).float())

    def forward(self, images: Tensor) -> Tensor:
        normalised = images.permute(0, 3, 1, 2).float() * self.scale + self.shift
        rows: Tensor = self.network(normalised)
        return rows


class _UnitRange(nn.Module):
    """The network of (v - mean) / std for v (M, 3, s, s) in [0, 1]."""

    def __init__(self, normalised: _Normalised) -> None:
        super().__init__()
        self.normalised = normalised

    def forward(self, images: Tensor) -> Tensor:
        normalised = images * (255 * self.normalised.scale) + self.normalised.shift
        rows: Tensor = self.normalised.network(normalised)
        return rows.float()


# ONNX ---------------------------------------------------------------------------------------------


def in_onnx_runtime(
    network: nn.Module, images: Tensor, threads: int
) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
    """Return the network as a function in ONNX Runtime, once it agrees with torch on these images
    to TOLERANCE.

    Making it takes some seconds; nothing is left on disk.

    Args:
        network: on the CPU, from images to one tensor. images: two or more. threads: of each call.

    Raises:
        NotExportableError: a package is missing, the network has no ONNX form, or its outputs
            differ.
    """
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    if missing:
        raise NotExportableError(
            f"{', '.join(missing)} not installed: pip install 'semigpc[embedded]'."
        )
    try:
        with TemporaryDirectory(prefix="semigpc-") as folder:
            path = Path(folder) / "network.onnx"
            write_onnx(trace(network, images), ["features"], path)
            run = open_onnx(path, threads)
    except NotExportableError:
        raise
    except Exception as error:  # versions that do not fit raise errors of any kind
        raise NotExportableError(f"{innermost(error)}.") from error
    with torch.inference_mode():
        expected = network(images).numpy()
    size = float(np.sqrt(np.square(expected, dtype=np.float64).mean()))
    difference = float(np.abs(run(images.numpy())["features"] - expected).max())
    if not difference <= TOLERANCE * size:
        raise NotExportableError(
            f"ONNX Runtime differs from torch by {difference:.2g} in outputs of size {size:.2g}."
        )
    return lambda images: run(images)["features"]


# A table of embeddings ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """The network for a table of embeddings, and how it is used.

    Args:
        model: any timm backbone.
        pretrained: "embedded" (for tf_efficientnet_lite0), "timm", a file, "none", or "auto":
            embedded if there are such weights, timm's otherwise.
        image_size: pixels a side of the network's input; None takes the size that it was trained
            with.
        precision: of the numbers in the table.
        batch: images that go through the network together.
    """

    model: str = EMBEDDED_MODEL
    pretrained: str = AUTO
    image_size: int | None = None
    precision: Literal["float16", "float32"] = "float16"
    batch: int = 16

    def __post_init__(self) -> None:
        if self.precision not in ("float16", "float32"):
            raise SettingsError(f"precision must be float16 or float32; got {self.precision!r}.")
        if self.image_size is not None and self.image_size < 2:
            raise SettingsError(f"image_size must be at least 2 pixels; got {self.image_size}.")
        if self.batch < 1:
            raise SettingsError(f"batch must be at least 1; got {self.batch}.")

    @property
    def source(self) -> str:
        """Return where the weights come from, as :func:`embed_folder` stores it."""
        if self.pretrained == AUTO:
            return EMBEDDED if self.model == EMBEDDED_MODEL else HUB
        if self.pretrained in (EMBEDDED, HUB, NO_WEIGHTS):
            return self.pretrained
        return str(Path(self.pretrained).expanduser().resolve())

    @property
    def facts(self) -> list[str | int]:
        """Return network, weights, image size and precision, also where the defaults decide."""
        image_size = self.image_size or _own_size(self.model)[0]
        return [self.model, self.source, image_size, self.precision]

    def encoder(self) -> Encoder:
        """Return the network, on a GPU if there is one.

        Raises:
            DataError: there is no such network, or its weights do not fit.
        """
        pretrained: str | None = self.pretrained
        if pretrained == AUTO:
            pretrained = self.source
        own_size, is_fixed = _own_size(self.model)
        image_size = self.image_size or own_size
        model = ModelConfig(
            name=self.model,
            image_size=image_size if is_fixed and image_size != own_size else None,
            pretrained=None if pretrained == NO_WEIGHTS else pretrained,
        )
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            return Encoder(model, image_size, device, of_bytes=True)
        except DataError:
            raise
        except (ValueError, KeyError, OSError) as error:
            reason = error.args[0] if error.args else error
            raise DataError(f"The network cannot be built: {reason}") from error


def _own_size(name: str) -> tuple[int, bool]:
    """Return the image size that a network was trained with, and whether it must be built anew for
    another one.
    """
    import timm

    if name in VITS:
        return VITS[name].image_size, True
    if name in MODELS or not timm.is_model(name.partition(".")[0]):
        return DEFAULT_SIZE, False
    known = timm.get_pretrained_cfg(name)
    if known is None:
        return DEFAULT_SIZE, False
    return int(known.input_size[-1]), bool(known.fixed_input_size)


class EmbedResult(NamedTuple):
    """The table, its number of rows, and the images that were left out, each with the reason.

    ``made`` rows were computed by this call: None if the table existed already, fewer than all
    after a stop. ``key`` is what the embeddings depend on.
    """

    path: Path
    rows: int
    bad: list[Bad]
    made: int | None
    key: TableKey


def _no_progress(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""


def embed_folder(
    folder: Path,
    out: Path,
    config: EmbedConfig | None = None,
    *,
    skip_bad: bool = False,
    overwrite: bool = False,
    follow_links: bool = False,
    progress: Progress = _no_progress,
) -> EmbedResult:
    """Write the embeddings of all images below ``folder`` to ``out``, sorted by name.

    Hidden files are left out. Rows are kept in the user's cache (:class:`RowStore`), so that the
    same call continues after a stop, and no image is embedded twice. An image is known by its
    content, which is read. Images that cannot be read, and links that lead out of the folder, are
    listed in "<out>.bad.txt". Memory: the names, some thousand rows, and a few batches of images
    per core.

    Args:
        folder: of images, at any depth.
        out: a .parquet file.
        config: the network; the embedded one by default.
        skip_bad: leave out images that cannot be read instead of raising an error at the end.
        overwrite: replace an existing table.
        follow_links: use links that lead out of the folder.
        progress: called with stage, images done and images to do after every batch, and once with
            a line on the number of images, the network, and the expected time.

    Raises:
        ImageError: some images cannot be read. The embeddings of the others are kept for the next
            call.
        DataError: there are no images, or ``out`` cannot be written or holds something else.
    """
    table = EmbeddingTable(out)
    with locked(out.parent, out.name):
        remove_drafts(out.parent, out.name)
        images = _images(folder, follow_links=follow_links, progress=progress)
        config = config or EmbedConfig()
        return _embed_images(images, table, config, skip_bad, overwrite, progress)


def _embed_images(
    images: "_Images",
    table: EmbeddingTable,
    config: EmbedConfig,
    skip_bad: bool,
    overwrite: bool,
    progress: Progress,
) -> EmbedResult:
    encoder = config.encoder()
    key = encoder_key(encoder, config)
    finished = None if overwrite else table.finished(key, images.digest)
    if finished is not None:
        rows, bad = finished
        _list_bad(bad, rows, table, skip_bad=skip_bad)
        return EmbedResult(table.path, rows, bad, None, key)
    store = RowStore(key)
    marks = images.marks
    known = store.known()
    missing = {mark: name for name, mark in reversed(marks.items()) if mark not in known}
    reasons: dict[bytes, str] = {}
    if missing:
        names = sorted(missing.values())
        read = partial(read_squares, images.root)
        broken = _embed(encoder, read, names, marks, store, config, progress)
        reasons = {marks[name]: reason for name, reason in broken}
    good = [name for name, mark in marks.items() if mark not in reasons]
    unread = [(name, reasons[mark]) for name, mark in marks.items() if mark in reasons]
    bad = sorted(images.bad + unread)
    _list_bad(bad, len(good), table, skip_bad=skip_bad)
    groups = _groups(store, good, marks)
    table.write(groups, key, images=images.digest, bad=bad, pretrained=config.source)
    made = sum(marks[name] in missing for name in good)
    return EmbedResult(table.path, len(good), bad, made, key)


def encoder_key(encoder: Encoder, config: EmbedConfig) -> TableKey:
    """Return what rows of a network depend on besides the images."""
    return TableKey(
        config.model, encoder.weights, encoder.image_size, config.precision, encoder.width
    )


def embed_files(
    paths: Sequence[Path],
    config: EmbedConfig,
    key: TableKey,
    *,
    progress: Progress = _no_progress,
) -> tuple[NDArray[np.float32], dict[int, str]]:
    """Return the rows (n, D) of n images, and why images could not be read, by their position.

    Rows are those of a table of embeddings with the same key, rounded as there. The network is
    built only if an image was never embedded before; its row is stored for the next time.

    Args:
        paths: of the images. config: the network. key: what the rows depend on.
        progress: called as that of :func:`embed_folder`.

    Raises:
        DataError: the network is not the one of the key.
    """
    names = [str(path) for path in paths]
    marks = _marks(Path(), names, progress)
    return _rows_of(names, marks, partial(read_squares, Path()), config, key, progress)


def embed_pool(
    images: Images,
    positions: Sequence[int],
    marks: Sequence[bytes],
    config: EmbedConfig,
    key: TableKey,
    *,
    progress: Progress = _no_progress,
) -> NDArray[np.float32]:
    """Return the rows (n, D) of images of a pool, as :func:`embed_files` does for files.

    Args:
        images: the pool. positions: (n,) in it. marks: (n,) of these images.
        config, key, progress: as of :func:`embed_files`.

    Raises:
        DataError: the network is not the one of the key, or an image cannot be read.
    """
    names = [str(position) for position in positions]
    known = dict(zip(names, marks, strict=True))
    rows, _ = _rows_of(names, known, partial(pool_squares, images), config, key, progress)
    return rows


def _rows_of(
    names: Sequence[str],
    marks: dict[str, bytes],
    read: Read,
    config: EmbedConfig,
    key: TableKey,
    progress: Progress,
) -> tuple[NDArray[np.float32], dict[int, str]]:
    """Return the rows of named images, and why some could not be read, by their position."""
    store = RowStore(key)
    known = store.known()
    missing = {mark: name for name, mark in reversed(marks.items()) if mark not in known}
    reasons: dict[bytes, str] = {}
    if missing:
        encoder = config.encoder()
        found = encoder_key(encoder, config)
        if found != key:
            raise DataError(
                f"{config.model} is not the network that made the embeddings: "
                f"{key.difference(asdict(found))}. Put back its weights ({config.source})."
            )
        ordered = sorted(missing.values())
        broken = _embed(encoder, read, ordered, marks, store, config, progress)
        reasons = {marks[name]: reason for name, reason in broken}
    rows = np.zeros((len(names), key.width), np.float32)
    good = [i for i, name in enumerate(names) if marks[name] not in reasons]
    for first in range(0, len(good), GROUP_ROWS):
        group = good[first : first + GROUP_ROWS]
        rows[group] = store.rows("embedding", [marks[names[i]] for i in group]).numpy()
    bad = {i: reasons[marks[name]] for i, name in enumerate(names) if marks[name] in reasons}
    return rows, bad


class _Images(NamedTuple):
    """The resolved folder, the marks of its images by name, and images that cannot be used."""

    root: Path
    marks: dict[str, bytes]
    bad: list[Bad]

    @property
    def digest(self) -> str:
        """A hash that changes when an image is added, removed or changed."""
        names = [*self.marks, *(name for name, _ in self.bad)]
        unused = (content_mark(reason.encode()) for _, reason in self.bad)
        return joined_mark(names, [*self.marks.values(), *unused])


def _images(folder: Path, *, follow_links: bool, progress: Progress) -> _Images:
    if not checked(folder).is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {what}. Give a folder of images.")
    root = folder.resolve()
    names, bad = sorted_images(root, follow_links=follow_links)
    if not names and not bad:
        endings = ", ".join(sorted(EXTENSIONS))
        raise DataError(f"There are no images below {folder}. Known endings: {endings}.")

    return _Images(root, _marks(root, names, progress), bad)


def _marks(root: Path, names: Sequence[str], progress: Progress) -> dict[str, bytes]:
    """Return the mark of each image, all of which are read."""

    def mark(name: str) -> bytes:
        try:
            return file_mark(root / name)
        except OSError:  # decoding it fails too, and gives the reason
            return content_mark(name.encode())

    marks = {}
    with closing(_ahead(mark, names, granted())) as found:
        for name, own in zip(names, found, strict=True):
            marks[name] = own
            if len(marks) % MARKS_REPORTED == 0:
                progress("reading", len(marks), len(names))
    return marks


class RowStore(RowParts):
    """Rows of a frozen network by the content of images, in the user's cache.

    One folder for each network, image size and precision, below ``embeddings`` in
    :func:`semigpc.io.parts.cache_root`. All commands share it, so that an image is embedded once,
    wherever its rows are written to: 2 D bytes per image in float16. Several processes may add rows
    at once: each part has a name of its own, and the folder is locked while one is written.

    Args:
        key: what the rows depend on besides the images.

    Raises:
        DataError: the folder holds something else.
    """

    def __init__(self, key: TableKey) -> None:
        facts = {**asdict(key), "pixels": PIXELS}
        name = f"{key.network.replace('/', '_')}-{key.image_size}px-{key_digest(facts)[:12]}"
        folder = cache_root() / "embeddings" / name
        super().__init__(
            Folder(folder),
            facts,
            shapes={"rows": {"embedding": (key.width,)}},
            dtype=torch.float16 if key.precision == "float16" else torch.float32,
            remedy=f"Delete the folder {folder}; its embeddings will be computed again.",
        )
        difference = self.difference()
        if difference is not None:
            raise DataError(
                f"The embeddings in {folder} were made differently: {difference}. Delete the "
                f"folder, or set {CACHE_VARIABLE} to another one."
            )

    def known(self) -> Mapping[bytes, object]:
        """Return the marks of the images that have a row; parts that are damaged are deleted."""
        return self.index("rows", damaged=_note_damage)

    def flush(self) -> None:
        """Write the rows that are waiting, while no other process does."""
        if not self._waiting:
            return
        try:
            with locked(self.folder.place, waiting=lambda _: None):
                self.begin()  # only drafts of killed processes are there now
                super().flush()
        except WriteError as error:
            raise WriteError(f"{error} Or set {CACHE_VARIABLE}.", passing=error.passing) from error


def _note_damage(message: str) -> None:
    warnings.warn(f"{message}. The file was deleted; its images are embedded again.", stacklevel=3)


def _groups(
    store: RowStore, names: Sequence[str], marks: Mapping[str, bytes]
) -> Iterator[tuple[list[str], NDArray[np.floating[Any]]]]:
    """Yield the rows of these names in this order, some thousand at a time."""
    for first in range(0, len(names), GROUP_ROWS):
        group = list(names[first : first + GROUP_ROWS])
        yield group, store.rows("embedding", [marks[name] for name in group]).numpy()


def _embed(
    encoder: Encoder,
    read: Read,
    names: Sequence[str],
    marks: Mapping[str, bytes],
    store: RowStore,
    config: EmbedConfig,
    progress: Progress,
) -> list[Bad]:
    """Add the embeddings of these images to the store; return the images that cannot be read."""
    progress(f"preparing {encoder.name}", 0, None)
    bad: list[Bad] = []
    done = 0
    with warnings.catch_warnings(), using(granted()):
        # Pillow warns of defects in files that it can read; the filter holds for all threads.
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", RangeNote)
        note = encoder.accelerate(len(names), threads=1)
        batches = [names[i : i + config.batch] for i in range(0, len(names), config.batch)]
        began = time.perf_counter()
        with closing(_encoded(encoder, read, batches)) as encoded:
            # Beside ONNX Runtime the first batch takes up to six times as long as the others.
            timed = min(int(encoder.in_onnx_runtime), len(batches) - 1)
            for number, (good, rows, unread) in enumerate(encoded):
                each = time.perf_counter() - began
                if good:
                    stored = {"embedding": _stored(rows, encoder, config.precision)}
                    store.add("rows", [marks[name] for name in good], stored)
                if number == timed:
                    at_once = granted() if encoder.in_onnx_runtime else 1
                    seconds = each * len(batches) / at_once
                    progress(_announcement(encoder, len(names), seconds, note), 0, 0)
                bad += unread
                done += len(good) + len(unread)
                if number >= timed:
                    progress("embedding", done, len(names))
                began = time.perf_counter()
    store.flush()
    return bad


def _encoded(
    encoder: Encoder, squares: Read, batches: Sequence[Sequence[str]]
) -> Generator[tuple[list[str], Tensor, list[Bad]], None, None]:
    """Yield for each batch the names that can be read, their rows and the other names with reasons.

    Threads that are a few batches ahead decode images. They also run ONNX Runtime, on one core
    each; torch uses several cores itself and is called here.
    """

    def read(batch: Sequence[str]) -> tuple[list[str], Tensor, list[Bad]]:
        good, pixels, unread = squares(batch, encoder.image_size)
        images = torch.from_numpy(pixels)
        return good, encoder(images) if good and encoder.in_onnx_runtime else images, unread

    with closing(_ahead(read, batches[1:], granted())) as ahead:
        for good, images, unread in chain([read(batches[0])], ahead):
            yield good, encoder(images) if good and not encoder.in_onnx_runtime else images, unread


def _stored(rows: Tensor, encoder: Encoder, precision: str) -> Tensor:
    """Return embeddings in the precision of the table; raise an error unless all are finite."""
    stored = rows.half() if precision == "float16" else rows
    if not stored.isfinite().all():
        finite = bool(rows.isfinite().all())
        remedy = "Use precision=float32." if finite else "Check its weights."
        raise DataError(
            f"The embeddings of {encoder.name} contain NaN or infinity in {precision}. {remedy}"
        )
    return stored


def _announcement(encoder: Encoder, images: int, seconds: float, note: str | None) -> str:
    if seconds < 100:
        about = f"{max(1, round(seconds))} s"
    elif seconds < 2 * 3600:
        about = f"{round(seconds / 60)} min"
    else:
        about = f"{seconds / 3600:.1f} h"
    network = f"{encoder.name} on {encoder.engine}"
    line = f"embedding {images:,} images at {encoder.image_size} px with {network}, about {about}"
    return f"{line}; not on ONNX Runtime, which is faster: {note}" if note else line


def _ahead(
    function: Callable[[Item], Made], items: Sequence[Item], threads: int
) -> Generator[Made, None, None]:
    """Yield ``function(item)`` for each item, in order, computed by threads that are a few items
    ahead of the caller.
    """
    waiting: deque[Future[Made]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _list_bad(bad: Sequence[Bad], rows: int, table: EmbeddingTable, *, skip_bad: bool) -> None:
    """List images that cannot be read, one per line: name, tab, reason; raise an error unless they
    may be left out.
    """
    listing = table.path.with_name(table.path.name + ".bad.txt")
    if not bad:
        with writing(listing):
            listing.unlink(missing_ok=True)
        return
    write_text(listing, "".join(f"{printable(name)}\t{reason}\n" for name, reason in bad))
    if skip_bad and rows:
        return
    first = "; ".join(f"{printable(name)}: {reason}" for name, reason in bad[:3])
    more = "" if len(bad) <= 3 else f"; and {len(bad) - 3} more"
    if not rows:
        raise ImageError(
            f"None of the {len(bad)} images can be read ({first}{more}). {listing} lists them all."
        )
    raise ImageError(
        f"{len(bad)} of {len(bad) + rows} images cannot be read ({first}{more}). {listing} lists "
        "them all. The others are embedded: replace or delete these and run the same command "
        "again, "
        "or leave them out with skip_bad=True."
    )
