"""Images below a folder to a Parquet table of embeddings, resumable and in bounded memory."""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import Dataset

from semigpc.data import Augment, AugmentConfig, DataError, weights_hash
from semigpc.data.images import ImageError, Pixels, read_image, to_pixels
from semigpc.data.loaders import InOrder
from semigpc.data.paths import EXTENSIONS, Bad, checked, sorted_images
from semigpc.files import locked, remove_drafts, write_text, writing
from semigpc.labeling.embedding_table import EmbeddingParts, EmbeddingTable, TableKey
from semigpc.models import MODELS, ModelConfig, build_model
from semigpc.models.backbones import EMBEDDED, EMBEDDED_MODEL, VITS, input_statistics
from semigpc.text import printable
from semigpc.threads import granted, using

FEW = 64  # images; for fewer, starting a worker process takes longer than decoding
SIZE = 224  # pixels a side, for networks that do not say what they were trained with
HUB, NO_WEIGHTS, AUTO = "timm", "none", "auto"  # values of EmbedConfig.pretrained

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """The network for images, and how it is used.

    Args:
        model: any timm backbone.
        pretrained: "embedded" (for tf_efficientnet_lite0), "timm", a file, "none", or "auto": embedded if there are such
            weights, timm's otherwise.
        image_size: pixels a side of the network's input; None takes the size that it was trained with.
        precision: of the numbers in the table.
        batch: images that go through the network together.
        workers: processes that decode while the network works.
    """

    model: str = EMBEDDED_MODEL
    pretrained: str = AUTO
    image_size: int | None = None
    precision: Literal["float16", "float32"] = "float16"
    batch: int = 32
    workers: int = 1

    def __post_init__(self) -> None:
        if self.precision not in ("float16", "float32"):
            raise DataError(f"precision must be float16 or float32; got {self.precision!r}.")
        if self.image_size is not None and self.image_size < 2:
            raise DataError(f"The image size must be at least 2 pixels; got {self.image_size}.")
        if self.batch < 1 or self.workers < 0:
            raise DataError(f"batch must be 1 or more and workers 0 or more; got {self.batch} and {self.workers}.")


class EmbedResult(NamedTuple):
    """The table, its number of rows, and the images that were left out, each with the reason.

    ``made`` rows were computed by this call: None if the table existed already, fewer than all after a stop. ``key`` is what
    the embeddings depend on.
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
    progress: Progress | None = None,
) -> EmbedResult:
    """Write the embeddings of all images below ``folder`` to ``out``, sorted by name; hidden files are left out.

    Finished parts are kept in a folder beside ``out``, of its name and ".parts", until all are finished; after a stop the same
    call continues. All images that cannot be read, and links that lead out of the folder, are listed in a file beside ``out``,
    of its name and ".bad.txt". Memory: the names, and some thousand rows.

    Args:
        folder: of images, at any depth. out: a .parquet file.
        config: the network; the embedded one by default.
        skip_bad: leave out images that cannot be read instead of failing at the end.
        overwrite: replace an existing table, and parts that were made otherwise.
        follow_links: use links that lead out of the folder.
        progress: called with (images done, images to do) after every batch.

    Raises:
        ImageError: some images cannot be read. The embeddings of the others are kept for the next call.
        DataError: there are no images, or ``out`` cannot be written or holds something else.
    """
    table, config = EmbeddingTable(out), config or EmbedConfig()
    with locked(out.parent, out.name):
        remove_drafts(out.parent, out.name)
        if not checked(folder).is_dir():
            raise DataError(f"{folder} is {'a file' if folder.exists() else 'not there'}. Give a folder of images.")
        root = folder.resolve()
        names, bad = sorted_images(root, follow_links=follow_links)
        if not names and not bad:
            raise DataError(f"There are no images below {folder}. Known endings: {', '.join(sorted(EXTENSIONS))}.")
        marks = {name: f"{stat.st_size} {stat.st_mtime_ns}" for name in names for stat in [(root / name).stat()]}
        digest = hashlib.sha256("".join(f"{name}\n{fact}\n" for name, fact in (*marks.items(), *bad)).encode()).hexdigest()
        network = Network(config.model, config.pretrained, config.image_size)
        key = TableKey(config.model, network.weights, network.image_size, config.precision, network.width)
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
    progress: Progress | None,
) -> list[Bad]:
    """Add the embeddings of these images to the parts; return the images that cannot be read."""
    stream = SquareImages(root, names, network.image_size, config.batch)
    bad: list[Bad] = []
    with using(granted()), _workers_end_first():
        workers = config.workers if len(names) > FEW else 0
        for number, (good, pixels, unread) in enumerate(InOrder(stream, range(len(stream)), workers, 2), start=1):
            bad += unread
            if good:
                features = network.embed(pixels)
                rows = features.half() if config.precision == "float16" else features
                if not rows.isfinite().all():
                    remedy = "Try precision float32." if features.isfinite().all() else "Check its weights."
                    raise DataError(f"The embeddings of {network.name} contain NaN or infinity in {config.precision}. {remedy}")
                parts.add(good, [marks[name] for name in good], rows.numpy())
            if progress is not None:
                progress(min(number * config.batch, len(names)), len(names))
    parts.flush()
    return bad


def _list_bad(bad: Sequence[Bad], rows: int, table: EmbeddingTable, *, skip_bad: bool) -> None:
    """List images that cannot be read, one per line: name, tab, reason; raise an error unless they may be left out."""
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
        raise ImageError(f"None of the {len(bad)} images can be read ({few}{more}). {listing} lists them all.")
    raise ImageError(
        f"{len(bad)} of {len(bad) + rows} images cannot be read ({few}{more}). {listing} lists them all. The others are "
        "embedded: replace or delete these and give the same command again, or leave them out with --skip-bad."
    )


class Network:
    """A frozen network from images to embeddings, on a GPU if there is one.

    Args:
        name: of any timm model, or one of ours.
        pretrained: as for :class:`EmbedConfig`; random weights ("none") are the same ones every time.
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
                raise DataError(f"The network cannot be built: {error.args[0] if error.args else error}") from error
        self.weights = weights_hash(backbone.state_dict())
        self._backbone = backbone.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        mean, std = input_statistics(name)
        self._augment = Augment(AugmentConfig(image_size=self.image_size, style="resize", mean=mean, std=std))
        self.width = self._width()

    @torch.inference_mode()
    def embed(self, pixels: Pixels) -> Tensor:
        """Return float32 embeddings (M, D) of images (M, s, s, 3)."""
        images = self._augment.normalise(pixels).to(self.device, memory_format=torch.channels_last)
        features: Tensor = self._backbone(images)
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


def _own_size(name: str) -> tuple[int, bool]:
    """Return the pixels a side that a network was trained with, and whether it must be built for another size."""
    import timm

    if name in VITS:
        return VITS[name].image_size, True
    known = None if name in MODELS or not timm.is_model(name.partition(".")[0]) else timm.get_pretrained_cfg(name)
    return (SIZE, False) if known is None else (int(known.input_size[-1]), bool(known.fixed_input_size))


class SquareImages(Dataset[tuple[list[str], Pixels, list[Bad]]]):
    """Batch i of the named images: the largest square in the middle of each, resized to s x s.

    A batch has the n names that could be read, their pixels (n, s, s, 3), and the other names with the reasons.

    Args:
        root: a folder. names: of images below it.
        size: s. batch: images in a batch; the last may have fewer.
    """

    def __init__(self, root: Path, names: Sequence[str], size: int, batch: int) -> None:
        self.root, self.names, self.size, self.batch = root, names, size, batch

    def __len__(self) -> int:
        return -(-len(self.names) // self.batch)

    def __getitem__(self, number: int) -> tuple[list[str], Pixels, list[Bad]]:
        good, squares, bad = [], [], []
        for name in self.names[number * self.batch : (number + 1) * self.batch]:
            try:
                squares.append(self._square(self.root / name))
                good.append(name)
            except ImageError as error:
                bad.append((name, str(error)))
        return good, np.array(squares, np.uint8).reshape(-1, self.size, self.size, 3), bad

    def _square(self, path: Path) -> Pixels:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about defects of a file that can be read all the same
            try:
                return to_pixels(ImageOps.fit(read_image(path), (self.size, self.size), Image.Resampling.BILINEAR))
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


@contextmanager
def _workers_end_first() -> Iterator[None]:
    """Kill worker processes that were started inside if an error, such as Ctrl-C, ends the block.

    A worker that is still starting would otherwise miss what the main process has removed by then, and show a traceback.
    """
    before = set(active_children())
    try:
        yield
    except BaseException:
        for worker in set(active_children()) - before:
            worker.kill()  # they hold nothing that could be lost, and ignore other signals before they have started
            with suppress(RuntimeError):  # torch reports that a worker died
                worker.join()
        raise
