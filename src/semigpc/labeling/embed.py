"""Images below a folder to a Parquet table of embeddings, resumable and in bounded memory."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from torch import Tensor

from semigpc.data import DataError
from semigpc.data.images import ImageError
from semigpc.data.loaders import InOrder
from semigpc.data.paths import EXTENSIONS, Bad, checked, sorted_images
from semigpc.files import locked, remove_drafts
from semigpc.labeling.embedding_table import EmbeddingParts, EmbeddingTable, TableKey
from semigpc.labeling.network import AUTO, Network
from semigpc.labeling.square_images import SquareImages, workers_end_first
from semigpc.models.backbones import NAME
from semigpc.text import printable
from semigpc.threads import granted, using

FEW = 64  # images that are not worth starting a worker for

Progress = Callable[[int, int], None]
Found = tuple[Path, dict[str, str], list[Bad]]


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
