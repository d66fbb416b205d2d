"""Images below a folder to a Parquet table of embeddings, resumable and in bounded memory."""

import hashlib
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor, nn

from semigpc.data import weights_hash
from semigpc.io.atomic import locked, remove_drafts, write_text, writing
from semigpc.io.errors import DataError, ImageError, NotExportableError
from semigpc.io.images import Pixels, read_image, to_pixels
from semigpc.io.paths import EXTENSIONS, Bad, checked, sorted_images
from semigpc.io.text import duration, printable
from semigpc.io.threads import granted, using
from semigpc.labeling.embedding_table import EmbeddingParts, EmbeddingTable, TableKey
from semigpc.labeling.scan import Progress, silent
from semigpc.models import MODELS, ModelConfig, build_model
from semigpc.models.backbones import EMBEDDED, EMBEDDED_MODEL, VITS, input_statistics
from semigpc.models.encoder import WORTHWHILE, in_onnx_runtime

# a JPEG may be decoded at a fraction of its size while it has this many pixels for each that the
# network sees
SHARP = 2
SIZE = 224  # pixels a side, for networks that do not say what they were trained with
Item = TypeVar("Item")
Made = TypeVar("Made")
HUB, NO_WEIGHTS, AUTO = "timm", "none", "auto"  # values of EmbedConfig.pretrained


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """The network for images, and how it is used.

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
            raise DataError(f"precision must be float16 or float32; got {self.precision!r}.")
        if self.image_size is not None and self.image_size < 2:
            raise DataError(f"The image size must be at least 2 pixels; got {self.image_size}.")
        if self.batch < 1:
            raise DataError(f"batch must be 1 or more; got {self.batch}.")


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


def embed_folder(
    folder: Path,
    out: Path,
    config: EmbedConfig | None = None,
    *,
    skip_bad: bool = False,
    overwrite: bool = False,
    follow_links: bool = False,
    progress: Progress = silent,
) -> EmbedResult:
    """Write the embeddings of all images below ``folder`` to ``out``, sorted by name; hidden files
    are left out.

    Finished parts are kept in a folder beside ``out``, of its name and ".parts", until all are
    finished; after a stop the same call continues. All images that cannot be read, and links that
    lead out of the folder, are listed in a file beside ``out``, of its name and ".bad.txt". Memory:
    the names, some thousand rows, and a few batches of images for each core.

    The network runs on a GPU if there is one, otherwise in ONNX Runtime, or in torch if the images
    are few or ONNX Runtime cannot be used. These agree to 1e-3 of the size of the embeddings, which
    is about the precision of float16, so a table may
    have rows of several: what is continued on another machine need not begin again.

    Args:
        folder: of images, at any depth. out: a .parquet file.
        config: the network; the embedded one by default.
        skip_bad: leave out images that cannot be read instead of failing at the end.
        overwrite: replace an existing table, and parts that were made otherwise.
        follow_links: use links that lead out of the folder.
        progress: called with the stage, images done and images to do after every batch, and once
            with a line that says how many images go through which network, how, and about how long
            that takes.

    Raises:
        ImageError: some images cannot be read. The embeddings of the others are kept for the next
            call.
        DataError: there are no images, or ``out`` cannot be written or holds something else.
    """
    table, config = EmbeddingTable(out), config or EmbedConfig()
    with locked(out.parent, out.name):
        remove_drafts(out.parent, out.name)
        if not checked(folder).is_dir():
            raise DataError(
                f"{folder} is {'a file' if folder.exists() else 'not there'}. Give a folder of images."
            )
        root = folder.resolve()
        names, bad = sorted_images(root, follow_links=follow_links)
        if not names and not bad:
            raise DataError(
                f"There are no images below {folder}. Known endings: {', '.join(sorted(EXTENSIONS))}."
            )
        marks = {
            name: f"{stat.st_size} {stat.st_mtime_ns}"
            for name in names
            for stat in [(root / name).stat()]
        }
        digest = hashlib.sha256(
            "".join(f"{name}\n{fact}\n" for name, fact in (*marks.items(), *bad)).encode()
        ).hexdigest()
        network = Network(config.model, config.pretrained, config.image_size)
        key = TableKey(
            config.model, network.weights, network.image_size, config.precision, network.width
        )
        if not overwrite and (finished := table.finished(key, digest)) is not None:
            table.remove_parts()  # left by a stop at the very end
            rows, bad = finished
            _list_bad(bad, rows, table, skip_bad=skip_bad)
            return EmbedResult(table.path, rows, bad, None, key)
        parts = EmbeddingParts(table.parts, key, overwrite=overwrite)
        missing = parts.missing(marks)
        broken = _embed(network, root, missing, marks, parts, config, progress) if missing else []
        unread = {name for name, _ in broken}
        good, bad = [name for name in marks if name not in unread], sorted(bad + broken)
        _list_bad(bad, len(good), table, skip_bad=skip_bad)
        table.write(parts.groups(good, marks), key, images=digest, bad=bad)
        table.remove_parts()
        return EmbedResult(table.path, len(good), bad, len(missing) - len(broken), key)


def _embed(
    network: "Network",
    root: Path,
    names: Sequence[str],
    marks: Mapping[str, str],
    parts: EmbeddingParts,
    config: EmbedConfig,
    progress: Progress,
) -> list[Bad]:
    """Add the embeddings of these images to the parts; return the images that cannot be read."""
    progress(f"preparing {network.name}", 0, None)
    bad: list[Bad] = []
    done = 0
    with warnings.catch_warnings(), using(granted()):
        warnings.simplefilter(
            "ignore"
        )  # about defects of a file that can be read all the same; for all threads at once
        note = network.accelerate() if len(names) * network.image_size**2 >= WORTHWHILE else None

        def read(batch: Sequence[str]) -> tuple[list[str], Pixels, list[Bad], Tensor | None]:
            good, pixels, unread = read_squares(root, batch, network.image_size)
            return (
                good,
                pixels,
                unread,
                network.embed(pixels) if good and network.in_threads else None,
            )

        batches = [
            names[first : first + config.batch] for first in range(0, len(names), config.batch)
        ]
        began = time.perf_counter()
        with closing(_ahead(read, batches[1:], granted())) as ahead:
            for good, pixels, unread, computed in chain([read(batches[0])], ahead):
                if good:
                    features = network.embed(pixels) if computed is None else computed
                    parts.add(
                        good,
                        [marks[name] for name in good],
                        _stored(features, network, config.precision),
                    )
                if not done:
                    seconds = (
                        (time.perf_counter() - began)
                        * len(batches)
                        / (granted() if network.in_threads else 1)
                    )
                    progress(_announcement(network, len(names), seconds, note), 0, 0)
                bad += unread
                done += len(good) + len(unread)
                progress("embedding", done, len(names))
    parts.flush()
    return bad


def _stored(features: Tensor, network: "Network", precision: str) -> NDArray[np.floating[Any]]:
    """Return embeddings in the precision of the table; raise unless all are finite."""
    rows = features.half() if precision == "float16" else features
    if not rows.isfinite().all():
        remedy = "Try precision float32." if features.isfinite().all() else "Check its weights."
        raise DataError(
            f"The embeddings of {network.name} contain NaN or infinity in {precision}. {remedy}"
        )
    return rows.numpy()


def _announcement(network: "Network", images: int, seconds: float, note: str | None) -> str:
    about = duration(seconds) if seconds >= 100 else f"{max(1, round(seconds))} s"
    what = f"embedding {images:,} images at {network.image_size} px with {network.name} on {network.engine}, about {about}"
    return f"{what}; not on ONNX Runtime, which is faster: {note}" if note else what


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
    few = "; ".join(f"{printable(name)}: {reason}" for name, reason in bad[:3])
    more = "" if len(bad) <= 3 else f"; and {len(bad) - 3} more"
    if not rows:
        raise ImageError(
            f"None of the {len(bad)} images can be read ({few}{more}). {listing} lists them all."
        )
    raise ImageError(
        f"{len(bad)} of {len(bad) + rows} images cannot be read ({few}{more}). {listing} lists them all. The others are "
        "embedded: replace or delete these and give the same command again, or leave them out with --skip-bad."
    )


class Network:
    """A frozen network from images to embeddings, in torch, on a GPU if there is one.

    Args:
        name: of any timm model, or one of ours.
        pretrained: as for :class:`EmbedConfig`; random weights ("none") are the same ones every
            time.
        image_size: pixels a side; None takes the size that the network was trained with.

    Raises:
        DataError: there is no such network, or its weights do not fit.
    """

    def __init__(self, name: str, pretrained: str, image_size: int | None) -> None:
        own_size, is_fixed = _own_size(name)
        self.name, self.image_size = name, image_size or own_size
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if pretrained == AUTO:
            pretrained = EMBEDDED if name == EMBEDDED_MODEL else HUB
        config = ModelConfig(
            name=name,
            image_size=self.image_size if is_fixed and self.image_size != own_size else None,
            pretrained=None if pretrained == NO_WEIGHTS else pretrained,
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)  # so that a network without weights is the same one every time
            try:
                backbone: nn.Module = build_model(config, 2).backbone.eval().requires_grad_(False)
            except (ValueError, KeyError, OSError) as error:
                raise DataError(
                    f"The network cannot be built: {error.args[0] if error.args else error}"
                ) from error
        self.weights = weights_hash(backbone.state_dict())
        normalised = _Normalised(backbone, *input_statistics(name))
        self._network = normalised.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._in_onnx_runtime: Callable[[NDArray[Any]], NDArray[np.float32]] | None = None
        self.width = self._width()

    @property
    def engine(self) -> str:
        """What computes, for a message."""
        where = "" if self.device.type == "cpu" else f" ({self.device})"
        return "ONNX Runtime" if self.in_threads else f"torch{where}"

    @property
    def in_threads(self) -> bool:
        """Whether :meth:`embed` uses one core, and several threads should call it at once."""
        return self._in_onnx_runtime is not None

    def accelerate(self) -> str | None:
        """Go over to ONNX Runtime, in some seconds, unless there is a GPU; return the reason if
        that cannot be done.
        """
        if self.device.type != "cpu":
            return None
        size = self.image_size
        noise = np.random.default_rng(0).integers(0, 256, (2, size, size, 3), dtype=np.uint8)
        try:
            self._in_onnx_runtime = in_onnx_runtime(
                self._network, torch.from_numpy(noise), threads=1
            )
        except NotExportableError as error:
            return str(error)
        return None

    @torch.inference_mode()
    def embed(self, pixels: Pixels) -> Tensor:
        """Return float32 embeddings (M, D) of images (M, s, s, 3)."""
        if self._in_onnx_runtime is not None:
            return torch.from_numpy(self._in_onnx_runtime(pixels))
        features: Tensor = self._network(
            torch.from_numpy(np.require(pixels, requirements="W")).to(self.device)
        )
        return features.float().cpu()

    def _width(self) -> int:
        size = self.image_size
        try:
            features = self.embed(np.zeros((1, size, size, 3), dtype=np.uint8))
        except (RuntimeError, ValueError, AssertionError) as error:
            raise DataError(
                f"{self.name} cannot see images of {size} x {size} pixels: {error}. Give another image size."
            ) from error
        if features.ndim != 2:
            raise DataError(
                f"{self.name} returns features of shape {tuple(features.shape[1:])} for an image and not one row. "
                "Choose a network that pools its features."
            )
        return features.shape[1]


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
        features: Tensor = self.network(
            images.permute(0, 3, 1, 2).float() * self.scale + self.shift
        )
        return features


def _own_size(name: str) -> tuple[int, bool]:
    """Return the pixels a side that a network was trained with, and whether it must be built for
    another size.
    """
    import timm

    if name in VITS:
        return VITS[name].image_size, True
    known = (
        None
        if name in MODELS or not timm.is_model(name.partition(".")[0])
        else timm.get_pretrained_cfg(name)
    )
    return (
        (SIZE, False)
        if known is None
        else (int(known.input_size[-1]), bool(known.fixed_input_size))
    )


def read_squares(
    root: Path, names: Sequence[str], size: int
) -> tuple[list[str], Pixels, list[Bad]]:
    """Return the largest square in the middle of each image, resized to s x s.

    Args:
        root: a folder. names: of images below it. size: s, in pixels.

    Returns:
        The n names that could be read, their pixels (n, s, s, 3), and the other names with the
        reasons.
    """
    good, squares, bad = [], [], []
    for name in names:
        try:
            squares.append(_square(root / name, size))
            good.append(name)
        except ImageError as error:
            bad.append((name, str(error)))
    return good, np.array(squares, np.uint8).reshape(-1, size, size, 3), bad


def _square(path: Path, size: int) -> Pixels:
    try:
        image = read_image(path, at_least=SHARP * size)
        return to_pixels(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR))
    except ImageError as error:
        raise ImageError(_reason(error.__cause__ or error, path)) from error
    except Exception as error:  # a decoder may raise any error for a damaged file
        raise ImageError(f"{type(error).__name__}: {_reason(error, path)}") from error


def _reason(error: BaseException, path: Path) -> str:
    """Return the reason on one line, without the path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).replace(f" {str(path)!r}", "").removeprefix(f"The image {printable(path)} ")
    return " ".join(text.split())
