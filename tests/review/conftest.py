"""A labelled folder, made once and copied for each test."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from semigpc.review.session import Session, open_session
from tests.review.shapes import make_labelled


@pytest.fixture(scope="session")
def labelled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shapes")
    make_labelled(root)
    return root


@pytest.fixture
def out(labelled_once: Path, tmp_path: Path) -> Path:
    """What ``semigpc label`` wrote, with its data and images beside it."""
    shutil.copytree(labelled_once, tmp_path / "shapes", symlinks=True)
    return tmp_path / "shapes" / "out"


@pytest.fixture
def session(out: Path) -> Iterator[Session]:
    opened = open_session(out)
    yield opened
    opened.close()
