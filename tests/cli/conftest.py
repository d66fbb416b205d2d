"""One short run on a practitioner's folder, for tests that change nothing in it."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.calls import SHORT, semigpc
from tests.cli.own_data import make_folder


class Trained(NamedTuple):
    """Folders, and what ``semigpc train`` printed."""

    root: Path
    photos: Path
    run: Path
    printed: str
    lines: str


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    root = tmp_path_factory.mktemp("own")
    photos, run = make_folder(root), root / "run"
    tables = ("--labels", root / "labels.csv", "--test", root / "test.csv")
    done = semigpc("train", photos, *tables, "--steps 30 --out", run, SHORT)
    assert done.exit_code == 0, done.output
    return Trained(root, photos, run, done.stdout, done.stderr)
