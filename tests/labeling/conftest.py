"""A table that was labelled once in every kind of file, for all tests that change nothing in it."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from semigpc.labeling.label import label_data
from tests.labeling.samples import IDS, X, settings, write


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of labels by the kind of file; made when it is first asked for."""

    @cache
    def make(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        label_data(settings(folder, data=write(folder, kind, X, IDS)))
        return folder / "out"

    return make
