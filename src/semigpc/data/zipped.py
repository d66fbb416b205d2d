"""Images inside a zip file, read in place."""

import io
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from semigpc.data.dataset import DataError
from semigpc.data.images import MEGABYTE, MOST_BYTES, ImageError, KeptImages, read_image
from semigpc.data.paths import checked, is_image_name

UNREADABLE = (OSError, EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)


class ZipImages(KeptImages):
    """Images that are members of a zip file, upright and RGB, decoded and kept.

    The zip file is opened when a process first asks for an image: a copy in another process opens it afresh, whether it was
    sent there or forked, since two processes must not share the position in an open file.

    Args:
        archive: the zip file.
        members: P names in it.
        cache_bytes: at most this much is kept; 0 keeps nothing.
    """

    def __init__(self, archive: Path, members: Sequence[str], *, cache_bytes: int = 512 * MEGABYTE) -> None:
        super().__init__(cache_bytes)
        self.archive = archive
        self.members = tuple(members)
        self._opened: tuple[int, zipfile.ZipFile] | None = None  # by which process

    def __len__(self) -> int:
        return len(self.members)

    def read(self, position: int) -> Image.Image:
        """Decode an image, whether it is held or not."""
        try:
            size = self._zip().getinfo(self.members[position]).file_size
            if size > MOST_BYTES:
                raise OSError(f"it has {size} bytes unpacked, and no image of a size that is read has more than {MOST_BYTES}")
            content = self._zip().read(self.members[position])
        except UNREADABLE as error:
            raise self._unreadable(position, error) from error
        return read_image(self.archive / self.members[position], io.BytesIO(content))

    def fingerprint(self, position: int) -> bytes:
        """Name, size and checksum as the zip file has them: changes when the image does, without reading it."""
        try:
            facts = self._zip().getinfo(self.members[position])
        except UNREADABLE as error:
            raise self._unreadable(position, error) from error
        return f"{facts.filename} {facts.file_size} {facts.CRC}".encode()

    def _unreadable(self, position: int, error: Exception) -> ImageError:
        return ImageError(
            f"The image {self.archive / self.members[position]} cannot be read: {error}. The zip file may have been "
            "replaced, cut short or encrypted; put a whole and plain one there."
        )

    def _zip(self) -> zipfile.ZipFile:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), zipfile.ZipFile(self.archive)
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        """What goes to a worker process: names alone, neither images nor the open file."""
        return super().__getstate__() | {"_opened": None}


def zipped_images(archive: Path) -> list[str]:
    """Names of all images in a zip file, sorted; hidden ones are passed over."""
    try:
        with zipfile.ZipFile(checked(archive)) as opened:
            names = opened.namelist()
    except FileNotFoundError as error:
        raise DataError(f"The zip file of the images is not there: {archive}. Check the path.") from error
    except (OSError, NotImplementedError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{archive} cannot be read as a zip file: {error}. It may be cut short; fetch it again, or give a folder."
        ) from error
    return sorted({name for name in names if is_image_name(name) and not name.startswith(".") and "/." not in name})
