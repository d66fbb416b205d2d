"""How many images per second do the loaders of semigpc and of torchvision prepare?"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.tables import Json, Seed, new_table, script, show
from benchmarks.timing import Step, time_in_turns
from semigpc.data import (
    Augment,
    AugmentConfig,
    BatchStream,
    EvaluationLoader,
    FolderConfig,
    ImageSet,
    ViewSource,
)
from semigpc.data.augment import IMAGENET_MEAN, IMAGENET_STD
from semigpc.data.folder import load
from semigpc.data.loaders import TINY_SIDE, normalised
from semigpc.io.images import GIGABYTE
from semigpc.io.threads import cores, using
from semigpc.io.versions import versions
from semigpc.types import Batch

Record = dict[str, Any]
BATCH = 64
PREFETCH = 4
SIZES = (32, 224)  # pixels a side
PHOTOGRAPH = (500, 375)  # pixels of a generated file where the network sees more than 32
TORCHVISION = "torchvision"
DECODING = "semigpc, decoding"
KEPT = "semigpc, kept"
OURS = {DECODING: 0, KEPT: 2 * GIGABYTE}  # bytes to keep decoded images in
READY = (
    v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
)


class TwoViews:
    """A weak and a strong view of an image, as torchvision's own transforms make them.

    Both are cut from one resized image, as ours are. There is no cutout, which ours have.
    """

    def __init__(self, size: int) -> None:
        flip = v2.RandomHorizontalFlip()
        augment = v2.RandAugment(num_ops=3)
        if size <= TINY_SIDE:
            self.first: Callable[[Image.Image], Image.Image] = v2.Identity()
            weak = strong = v2.RandomCrop(size, padding=size // 8, padding_mode="reflect")
        else:
            large = size * 8 // 7
            self.first = v2.Resize((large, large))
            weak = v2.RandomCrop(size)
            strong = v2.RandomResizedCrop(size)
        self.views = (v2.Compose([weak, flip, *READY]), v2.Compose([strong, flip, augment, *READY]))

    def __call__(self, image: Image.Image) -> tuple[Tensor, Tensor]:
        image = self.first(image)
        return self.views[0](image), self.views[1](image)


def write_files(folder: Path, count: int, size: int, seed: int) -> None:
    """Write crops of the two photographs of scikit-learn: PNG files of 32 x 32, or JPEG files of
    500 x 375.
    """
    rng = np.random.default_rng(seed)
    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    for number in range(count):
        photograph = photographs[number % 2]
        width = int(rng.integers(400, photograph.width))
        height = width * 3 // 4 if width * 3 // 4 < photograph.height else photograph.height
        left = int(rng.integers(photograph.width - width + 1))
        top = int(rng.integers(photograph.height - height + 1))
        box = (left, top, left + width, top + height)
        file = folder / ("even", "odd")[number % 2] / f"{number:05d}"
        file.parent.mkdir(parents=True, exist_ok=True)
        if size <= TINY_SIDE:
            photograph.resize((size, size), Image.Resampling.BICUBIC, box).save(
                file.with_suffix(".png")
            )
        else:
            photograph.resize(PHOTOGRAPH, Image.Resampling.BICUBIC, box).save(
                file.with_suffix(".jpg"), quality=90
            )


@contextmanager
def training_passes(
    folder: Path, size: int, workers: int, batches: int, seed: int
) -> Iterator[dict[str, Step]]:
    """Yield a function for each contender that makes some batches of 64 images, a weak and a strong
    view of each.
    """
    files = ImageFolder(str(folder), TwoViews(size))
    drawn = np.random.default_rng(seed).integers(len(files), size=batches * BATCH).tolist()
    passes: dict[str, Step] = {
        TORCHVISION: partial(_pass, torchvision_loader(Subset(files, drawn), workers))
    }
    with ExitStack() as opened:
        for name, limit in OURS.items():
            splits = load(FolderConfig(root=str(folder), cache_bytes=limit), seed)
            stream = BatchStream(
                replace(
                    splits,
                    unlabeled=splits.labeled.without_labels(),
                    unlabeled_truth=splits.labeled.labels,
                ),
                augmentation(size),
                views=("weak", "strong"),
                labeled_batch=1,
                unlabeled_batch=BATCH,
                seed=seed,
                epoch_steps=batches,
                total_steps=batches,
            )
            ours = opened.enter_context(
                closing(stream.batches(first_step=0, workers=workers, prefetch=PREFETCH))
            )
            passes[name] = partial(_training_pass, ours, stream.source)
        yield passes


@contextmanager
def evaluation_passes(folder: Path, size: int, workers: int) -> Iterator[dict[str, Step]]:
    """Yield the same for evaluation: every image once, its shorter side resized, and the centre
    cropped.
    """
    crop = (v2.Resize(size if size <= TINY_SIDE else size * 8 // 7), v2.CenterCrop(size))
    passes: dict[str, Step] = {
        TORCHVISION: partial(
            _pass,
            torchvision_loader(ImageFolder(str(folder), v2.Compose([*crop, *READY])), workers),
        )
    }
    with ExitStack() as opened:
        for name, limit in OURS.items():
            images = load(FolderConfig(root=str(folder), cache_bytes=limit), 0).labeled
            ours = EvaluationLoader(
                [images],
                augmentation(size),
                batch_size=BATCH,
                workers=workers,
                device=torch.device("cpu"),
            )
            passes[name] = partial(_evaluation_pass, opened.enter_context(ours), images)
        yield passes


def augmentation(size: int) -> Augment:
    """Return the recipe of CIFAR for small images, and that of photographs for others."""
    return Augment(AugmentConfig(image_size=size, style="pad" if size <= TINY_SIDE else "resize"))


def torchvision_loader(images: Dataset[Any], workers: int) -> DataLoader[Any]:
    """Return a DataLoader with the settings of ours."""
    return DataLoader(
        images, BATCH, num_workers=workers, persistent_workers=True, prefetch_factor=PREFETCH
    )


def _pass(loader: Iterable[Any]) -> None:
    for _ in loader:
        pass


def _training_pass(loader: Iterable[Batch], source: ViewSource) -> None:
    for batch in loader:
        normalised(batch, source)


def _evaluation_pass(loader: EvaluationLoader, images: ImageSet) -> None:
    _pass(loader.batches(images))


def bench_loader(
    folder: Path, *, size: int, workers: int, batches: int, repetitions: int, seed: int = 0
) -> list[Record]:
    """Time training and evaluation batches of one size, the contenders in turns.

    Returns:
        For each purpose and contender ``images_per_s``, the median, and ``ratio``, the median over
        repetitions of how many times as fast as torchvision it was in the same repetition.
    """
    records = []
    count = sum(1 for _ in folder.rglob("*.*"))
    for purpose, images in (("training", batches * BATCH), ("evaluation", count)):
        opened = (
            training_passes(folder, size, workers, batches, seed)
            if purpose == "training"
            else evaluation_passes(folder, size, workers)
        )
        with using(1), opened as passes:
            seconds = time_in_turns(passes, repetitions=repetitions)
        for name, times in seconds.items():
            ratios = [theirs / own for theirs, own in zip(seconds[TORCHVISION], times, strict=True)]
            facts = {"image_size": size, "workers": workers, "purpose": purpose, "loader": name}
            records.append(
                facts | {"images_per_s": images / median(times), "ratio": median(ratios)}
            )
    return records


def loader(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Class folders of images, instead of generated ones.", exists=True
        ),
    ] = None,
    images: Annotated[int, typer.Option(help="Files to generate for each size.", min=BATCH)] = 1280,
    image_size: Annotated[
        list[int] | None, typer.Option(help="Pixels that the network sees; repeat for more.", min=8)
    ] = None,
    workers: Annotated[
        list[int] | None, typer.Option(help="Processes that load; repeat for more.", min=1)
    ] = None,
    batches: Annotated[
        int, typer.Option(help="Of 64 images, in each measurement of training.", min=1)
    ] = 10,
    rounds: Annotated[
        int, typer.Option(help="Measurements of each loader; the median counts.", min=1)
    ] = 5,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare our loader with torchvision's ImageFolder, v2 transforms and DataLoader, on the same
    files.

    python benchmarks/loader.py --image-size 224 --workers 1
    """
    records = []
    with Console(stderr=True).status("") as status, tempfile.TemporaryDirectory() as made:
        for size in image_size or SIZES:
            folder = data or Path(made) / str(size)
            if data is None:
                write_files(folder, images, size, seed)
            for count in workers or (1, 2):
                status.update(f"{size} px, {count} workers")
                records += bench_loader(
                    folder, size=size, workers=count, batches=batches, repetitions=rounds, seed=seed
                )
    record = {
        "batch": BATCH,
        "cores": cores(),
        "load": os.getloadavg()[0],
        "rates": records,
        "versions": versions("pillow"),
    }
    show(record, lambda: [_table(record)], as_json=as_json)


def _table(record: Mapping[str, Any]) -> Table:
    caption = (
        f"{record['cores']} cores, load {record['load']:.1f}; kept: decoded in an earlier pass"
    )
    table = new_table(
        "Images per second",
        "pixels",
        "workers",
        "for",
        TORCHVISION,
        DECODING,
        KEPT,
        caption=caption,
    )
    cells: dict[tuple[int, int, str], list[str]] = {}
    for entry in record["rates"]:
        key = entry["image_size"], entry["workers"], entry["purpose"]
        cells.setdefault(key, []).append(f"{entry['images_per_s']:,.0f} ({entry['ratio']:.1f}x)")
    for (size, count, purpose), row in cells.items():
        table.add_row(str(size), str(count), purpose, *row)
    return table


app = script(loader)
if __name__ == "__main__":
    app()
