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
from semigpc.files import locked, remove_drafts
from semigpc.labeling.embedding_table import EmbeddingParts, EmbeddingTable, TableKey
from semigpc.models import MODELS, ModelConfig, build_model
from semigpc.models.backbones import EMBEDDED, NAME, VITS, input_statistics
from semigpc.text import printable
from semigpc.threads import granted, using

FEW = 64  # images that are not worth starting a worker for
Progress = Callable[[int, int], None]
Found = tuple[Path, dict[str, str], list[Bad]]
SIZE = 224  # of networks that do not say what they were trained with
HUB, NO_WEIGHTS, AUTO = "timm", "none", "auto"


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """Which network sees the images, and how.

    Args:
        model: any timm backbone.
        pretrained: "embedded" (for tf_efficientnet_lite0), "timm", a file, "none", or "auto": embedded if there are such
            weights, timm's otherwise.
        image_size: pixels a side that the network sees; None takes what it was trained with.
        precision: of the numbers in the table.
        batch: images that go through the network together.
        workers: processes that decode while the network works.
    """

    model: str = NAME
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
    """The table, its rows, and the images that were left out, each with the reason.

    ``made`` rows were computed by this call: None if the table was there already, fewer than all after a stop. ``key`` says
    what they were made with.
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
    """Write the embeddings of all images below ``folder`` to ``out``, sorted by name; hidden files are passed over.

    Finished parts wait in a folder beside ``out``, of its name and ".parts", until all are there; the same call goes on after
    a stop. Images that cannot be read, and links that lead out of the folder, are all found before any is told, and listed
    in a file beside ``out``, of its name and ".bad.txt". Memory: the names, and some thousand rows.

    Args:
        folder: of images, however deep. out: a .parquet file.
        config: which network, and how; the embedded one unless told.
        skip_bad: leave out what cannot be read instead of failing at the end.
        overwrite: replace a table that is there, and parts that were made otherwise.
        follow_links: use links that lead out of the folder.
        progress: told (images done, images to do) after every batch.

    Raises:
        ImageError: some images cannot be read. What could be read is kept for the next call.
        DataError: there are no images, or ``out`` cannot be written or holds something else.
    """
    table = EmbeddingTable(out)
    with locked(out.parent, out.name):
        remove_drafts(out.parent, out.name)
        found = _found(folder, follow_links)
        return _embed_found(found, table, config or EmbedConfig(), skip_bad, overwrite, progress)


def _embed_found(
    found: Found, table: EmbeddingTable, config: EmbedConfig, skip_bad: bool, overwrite: bool, progress: Progress | None
) -> EmbedResult:
    root, marks, bad = found
    digest = _digest(marks, bad)
    network = Network(config.model, config.pretrained, config.image_size)
    key = TableKey(
        network=config.model,
        weights=network.weights,
        image_size=network.image_size,
        precision=config.precision,
        width=network.width,
    )
    if not overwrite and (held := table.held(key, digest)) is not None:
        table.remove_parts()  # left by a stop at the very end
        _list_bad(held.bad, held.rows, table, skip_bad=skip_bad)
        return EmbedResult(table.path, held.rows, held.bad, None, key)
    parts = EmbeddingParts(table.parts, key, overwrite=overwrite)
    missing = parts.missing(marks)
    broken = _embed(network, root, missing, marks, parts, config, progress) if missing else []
    unread = {name for name, _ in broken}
    good, bad = [name for name in marks if name not in unread], sorted(bad + broken)
    _list_bad(bad, len(good), table, skip_bad=skip_bad)
    table.write(parts.groups(good, marks), key, images=digest, bad=bad)
    table.remove_parts()
    return EmbedResult(table.path, len(good), bad, len(missing) - len(broken), key)


def _found(folder: Path, follow_links: bool) -> Found:
    """The resolved folder; size and time of each image below it, by name; and those that are not to be opened."""
    if not checked(folder).is_dir():
        raise DataError(f"{folder} is {'a file' if folder.exists() else 'not there'}. Give a folder of images.")
    root, marks = folder.resolve(), dict[str, str]()
    names, bad = sorted_images(root, follow_links=follow_links)
    for name in names:
        facts = (root / name).stat()
        marks[name] = f"{facts.st_size} {facts.st_mtime_ns}"
    if not marks and not bad:
        raise DataError(f"There are no images below {folder}. Known endings: {', '.join(sorted(EXTENSIONS))}.")
    return root, marks, bad


def _digest(marks: Mapping[str, str], bad: Sequence[Bad]) -> str:
    """Which images there are, as they are now."""
    digest = hashlib.sha256()
    for name, fact in (*marks.items(), *bad):
        digest.update(f"{name}\n{fact}\n".encode())
    return digest.hexdigest()


class Network:
    """Images to embeddings, without gradients, on a GPU if there is one.

    Args:
        name: any that timm knows, or one of ours.
        pretrained: "embedded", "timm" for timm's hub, a file, "none" for random weights (the same ones every time), or "auto":
            embedded where there are such weights and the hub otherwise.
        image_size: pixels a side; None takes what the network was trained with.

    Raises:
        DataError: there is no such network, or its weights do not fit.
    """

    def __init__(self, name: str, pretrained: str, image_size: int | None) -> None:
        own_size, fixed = _own_size(name)
        self.name, self.image_size = name, image_size or own_size
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if pretrained == AUTO:
            pretrained = EMBEDDED if name == NAME else HUB
        config = ModelConfig(
            name=name,
            image_size=self.image_size if fixed and self.image_size != own_size else None,
            pretrained=None if pretrained == NO_WEIGHTS else pretrained,
        )
        backbone = _built(config).eval().requires_grad_(False)
        self.weights = weights_hash(backbone.state_dict())
        self._backbone = backbone.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        mean, std = input_statistics(name)
        self._augment = Augment(AugmentConfig(image_size=self.image_size, style="resize", mean=mean, std=std))
        self.width = self._tried()

    @torch.inference_mode()
    def embed(self, pixels: Pixels) -> Tensor:
        """Images (M, s, s, 3) to float32 embeddings (M, D)."""
        images = self._augment.normalise(pixels).to(self.device, memory_format=torch.channels_last)
        features: Tensor = self._backbone(images)
        return features.float().cpu()

    def _tried(self) -> int:
        """D, of an answer to a black image."""
        size = self.image_size
        try:
            answer = self.embed(torch.zeros(1, size, size, 3, dtype=torch.uint8).numpy())
        except (RuntimeError, ValueError, AssertionError) as error:
            raise DataError(
                f"{self.name} cannot see images of {size} x {size} pixels: {error}. Give another image size."
            ) from error
        if answer.ndim != 2:
            raise DataError(
                f"{self.name} answers an image with numbers of shape {tuple(answer.shape[1:])} and not with one row. "
                "Choose a network that pools its features."
            )
        return answer.shape[1]


def _embed(
    network: Network,
    root: Path,
    names: Sequence[str],
    marks: Mapping[str, str],
    parts: EmbeddingParts,
    config: EmbedConfig,
    progress: Progress | None,
) -> list[Bad]:
    """Add the embeddings of these images to the parts; answer with those that cannot be read."""
    stream = SquareImages(root, names, network.image_size, config.batch)
    bad: list[Bad] = []
    with using(granted()), workers_end_first():
        workers = config.workers if len(names) > FEW else 0
        for number, squares in enumerate(InOrder(stream, range(len(stream)), workers, 2)):
            first = number * config.batch
            good = [names[first + place] for place in squares.places]
            bad += squares.bad
            if good:
                rows = _rounded(network.embed(squares.pixels), config.precision, network.name)
                parts.add(good, [marks[name] for name in good], rows.numpy())
            if progress is not None:
                progress(min(first + config.batch, len(names)), len(names))
    parts.flush()
    return bad


def _rounded(features: Tensor, precision: str, network: str) -> Tensor:
    rounded = features.half() if precision == "float16" else features
    if not bool(rounded.isfinite().all()):
        way_out = "Try precision float32." if bool(features.isfinite().all()) else "Are its weights whole?"
        raise DataError(f"{network} answers with embeddings that are no numbers in {precision}. {way_out}")
    return rounded


def _list_bad(bad: Sequence[Bad], rows: int, table: EmbeddingTable, *, skip_bad: bool) -> None:
    """Write down what cannot be read; an error unless it may be left out."""
    listing = table.write_bad(bad)
    if not bad or (skip_bad and rows):
        return
    few = "; ".join(f"{printable(name)}: {reason}" for name, reason in bad[:3])
    more = "" if len(bad) <= 3 else f"; and {len(bad) - 3} more"
    if not rows:
        raise ImageError(f"None of the {len(bad)} images can be read ({few}{more}). {listing} lists them all.")
    raise ImageError(
        f"{len(bad)} of {len(bad) + rows} images cannot be read ({few}{more}). {listing} lists them all. The others are "
        "embedded: replace or delete these and give the same command again, or leave them out with --skip-bad."
    )


def _own_size(name: str) -> tuple[int, bool]:
    """Pixels a side that a network was trained with, and whether it must be built for another size."""
    import timm

    if name in VITS:
        return VITS[name].image_size, True
    known = None if name in MODELS or not timm.is_model(name.partition(".")[0]) else timm.get_pretrained_cfg(name)
    return (SIZE, False) if known is None else (int(known.input_size[-1]), bool(known.fixed_input_size))


def _built(config: ModelConfig) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # so that a network without weights is the same one every time
        try:
            backbone: nn.Module = build_model(config, 2).backbone
        except (ValueError, KeyError, OSError) as error:
            raise DataError(f"The network cannot be built: {error.args[0] if error.args else error}") from error
    return backbone


class Squares(NamedTuple):
    """Those of a batch that could be read: their places in it (n,), and pixels (n, s, s, 3); and those that could not."""

    places: list[int]
    pixels: Pixels
    bad: list[Bad]


class SquareImages(Dataset[Squares]):
    """Batch i of the named images: the largest square in the middle of each, resized to s x s.

    Args:
        root: a folder. names: of images below it.
        size: s. batch: images in a batch; the last may have fewer.
    """

    def __init__(self, root: Path, names: Sequence[str], size: int, batch: int) -> None:
        self.root, self.names, self.size, self.batch = root, names, size, batch

    def __len__(self) -> int:
        return -(-len(self.names) // self.batch)

    def __getitem__(self, number: int) -> Squares:
        places, squares, bad = [], [], []
        first = number * self.batch
        for place, name in enumerate(self.names[first : first + self.batch]):
            try:
                squares.append(self._square(self.root / name))
                places.append(place)
            except ImageError as error:
                bad.append((name, str(error)))
        return Squares(places, np.array(squares, np.uint8).reshape(-1, self.size, self.size, 3), bad)

    def _square(self, path: Path) -> Pixels:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of blemishes in a file that can be read all the same
            try:
                return to_pixels(ImageOps.fit(read_image(path), (self.size, self.size), Image.Resampling.BILINEAR))
            except ImageError as error:
                raise ImageError(_reason(error.__cause__ or error, path)) from error
            except Exception as error:  # a decoder may stumble over a broken file in any way
                raise ImageError(f"{type(error).__name__}: {_reason(error, path)}") from error


@contextmanager
def workers_end_first() -> Iterator[None]:
    """End worker processes that were started within if it is left by an error, such as Ctrl-C.

    One that is still starting would look for what the main process has taken down by then, and show a traceback.
    """
    before = set(active_children())
    try:
        yield
    except BaseException:
        for worker in set(active_children()) - before:
            worker.kill()  # they hold nothing that could be lost, and heed nothing gentler before they have started
            with suppress(RuntimeError):  # torch's complaint that a worker died
                worker.join()
        raise


def _reason(error: BaseException, path: Path) -> str:
    """One line without the path, which the name stands for."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).replace(f" {str(path)!r}", "").removeprefix(f"The image {printable(path)} ")
    return " ".join(text.split())
