"""Files to squares of pixels, a batch at a time; what cannot be read is told and stops nothing."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import active_children
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps
from torch.utils.data import Dataset

from semigpc.data.images import ImageError, Pixels, read_image, to_pixels
from semigpc.data.paths import Bad
from semigpc.text import printable


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
