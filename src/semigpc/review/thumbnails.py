"""Small versions of the images of the data set: by row number, upright, of bounded size, and only
from below its folder.
"""

import threading
from collections import OrderedDict
from pathlib import Path

from semigpc.io.errors import ImageError
from semigpc.io.images import thumbnail
from semigpc.labeling.project import Project

SIZES = (96, 384, 1600)  # pixels along the longer side: beside a card, on it, and enlarged
AT_ONCE = 2  # images decoded at the same time, as a large one takes 700 MB
KEPT_BYTES = 128 * 2**20  # of JPEG files in memory


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
            ImageError: there is none, it cannot be read, it is too large to decode, or it lies
                outside of the folder.
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
        with self._decoders:
            try:
                return thumbnail(path, size)
            except ImageError as error:  # in short, for a card, which does not show the folder
                if error.__cause__ is None:
                    raise ImageError(str(error).replace(str(path), path.name)) from error
                missing = isinstance(error.__cause__, FileNotFoundError)
                raise ImageError(
                    f"This image {'is no longer there' if missing else 'cannot be read'}."
                ) from error
