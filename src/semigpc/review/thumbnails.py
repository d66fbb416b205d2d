"""Small versions of the images of the data set: by row number, upright, of bounded size, and only from below its folder."""

import io
import threading
import warnings
from collections import OrderedDict
from pathlib import Path

from PIL import Image, ImageOps

from semigpc.data.images import ImageError, opened_image, read_image
from semigpc.labeling.project import Project

SIZES = (96, 384, 1600)  # pixels along the longer side: beside a card, on it, and enlarged
AT_ONCE = 2  # images decoded at the same time, as a large one takes 700 MB
KEPT_BYTES = 128 * 2**20  # of JPEG files in memory
QUALITY = 85  # of JPEG, of 100


class Thumbnails:
    """JPEG files made on request; the latest are kept in memory.

    Args:
        project: of the images.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._room = KEPT_BYTES
        self._lock = threading.Lock()
        self._decoders = threading.Semaphore(AT_ONCE)

    def get(self, row: int, size: int) -> bytes:
        """Return the image of a row as JPEG, no larger than ``size`` pixels either way.

        Raises:
            ImageError: there is none, it cannot be read, it is too large to decode, or it lies outside of the folder.
        """
        with self._lock:
            if (row, size) in self._kept:
                self._kept.move_to_end((row, size))
                return self._kept[row, size]
        path = self.project.image(row)  # never outside of the folder of images, also not by a link
        if path is None:
            raise ImageError("There is no image of this row in the folder of images.")
        content = self._make(path, size)
        with self._lock:
            if (row, size) not in self._kept:
                self._kept[row, size] = content
                self._room -= len(content)
            while self._room < 0:
                self._room += len(self._kept.popitem(last=False)[1])
        return content

    def _make(self, path: Path, size: int) -> bytes:
        with warnings.catch_warnings(), self._decoders:
            warnings.simplefilter("ignore")  # Pillow warns about odd images that it can read
            try:
                image = _decode(path, size)
            except ImageError as error:  # in short, for a card, which does not show the folder
                if error.__cause__ is None:
                    raise ImageError(str(error).replace(str(path), path.name)) from error
                missing = isinstance(error.__cause__, FileNotFoundError)
                raise ImageError(f"This image {'is no longer there' if missing else 'cannot be read'}.") from error
        image.thumbnail((size, size), Image.Resampling.LANCZOS)
        content = io.BytesIO()
        image.save(content, "JPEG", quality=QUALITY)
        return content.getvalue()


def _decode(path: Path, size: int) -> Image.Image:
    with opened_image(path) as opened:
        if opened.format == "JPEG":
            opened.draft("RGB", (size, size))  # the decoder itself can shrink it, up to eight times
            return ImageOps.exif_transpose(opened).convert("RGB")
    return read_image(path)
