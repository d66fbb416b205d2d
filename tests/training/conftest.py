import shutil
from pathlib import Path

import pytest

from semigpc.training import train
from tests.training.small_runs import small_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of FixMatch with the GP; tests that change it take a copy."""
    path = tmp_path_factory.mktemp("finished") / "run"
    train(small_run(), path)
    return path


@pytest.fixture
def finished_copy(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")
