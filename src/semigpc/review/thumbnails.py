"""Images of the data set made small: by row number, upright, of bounded size, and only from below its folder."""

import io
import threading
import warnings
from collections import OrderedDict
from pathlib import Path

from PIL import Image, ImageOps

from semigpc.data.images import ImageError, opened_image, read_image
from semigpc.labeling.project import Project

SIZES = (96, 384, 1600)  # pixels along the longer side: beside a card, on it, and enlarged
AT_ONCE = 2
KEPT_BYTES = 128 * 2**20
QUALITY = 85


class Thumbnails:
    """JPEG files made when they are asked for; the latest are kept in memory.

    Args:
        project: whose images.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._room = KEPT_BYTES
        self._lock = threading.Lock()
        self._decoders = threading.Semaphore(AT_ONCE)

    def get(self, row: int, size: int) -> bytes:
        """The image of a row as JPEG, no larger than ``size`` pixels either way.

        Raises:
            ImageError: there is none, it cannot be read, it is too large to decode, or it lies outside of the folder.
        """
        with self._lock:
            if (row, size) in self._kept:
                self._kept.move_to_end((row, size))
                return self._kept[row, size]
        made = self._make(self._path(row), size)
        with self._lock:
            if (row, size) not in self._kept:
                self._kept[row, size] = made
                self._room -= len(made)
            while self._room < 0:
                self._room += len(self._kept.popitem(last=False)[1])
        return made

    def _path(self, row: int) -> Path:
        path = self.project.image(row)  # never outside of the folder of images, also not by a link
        if path is None:
            raise ImageError("There is no image of this row in the folder of images.")
        return path

    def _make(self, path: Path, size: int) -> bytes:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd images that it can read
            try:
                image = self._decode(path, size)
            except ImageError as error:
                raise ImageError(_in_short(error, path)) from error
        image.thumbnail((size, size), Image.Resampling.LANCZOS)
        made = io.BytesIO()
        image.save(made, "JPEG", quality=QUALITY)
        return made.getvalue()

    def _decode(self, path: Path, size: int) -> Image.Image:
        with self._decoders:
            with opened_image(path) as opened:
                if opened.format == "JPEG":
                    opened.draft("RGB", (size, size))  # the decoder itself can shrink it, up to eight times
                    return ImageOps.exif_transpose(opened).convert("RGB")
            return read_image(path)


def _in_short(error: ImageError, path: Path) -> str:
    """As it fits on a card, which need not know the folder."""
    if error.__cause__ is None:
        return str(error).replace(str(path), path.name)
    gone = isinstance(error.__cause__, FileNotFoundError)
    return "This image is no longer there." if gone else "This image cannot be read."
