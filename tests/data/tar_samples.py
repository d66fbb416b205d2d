"""Archives to unpack, good and bad."""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


def packed(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A tar file, not yet compressed."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for member, content in entries:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


NOISE = np.random.default_rng(0).bytes(600_000)  # more than two blocks, and it does not compress
GOOD = (
    (entry("set", tarfile.DIRTYPE), b""),
    (entry("set/a.bin"), NOISE),
    (entry("set/deep/b.txt"), b"b"),
    (entry("other/c.txt"), b"c"),
)
CONTENT = gzip.compress(packed(*GOOD), mtime=0)


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def written(folder: Path, content: bytes) -> Path:
    """An archive with that content."""
    path = folder / "x.tar.gz"
    path.write_bytes(content)
    return path
