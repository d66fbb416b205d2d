"""NPZ files with arrays of every type through the command line: no error is unexpected."""

from pathlib import Path

import numpy as np
import pytest

from tests.array_types import IMAGES, LABELS, ROWS, TYPES, of_type
from tests.batteries import combinations
from tests.cli.calls import semigpc
from tests.cli.conftest import Trained

OPTIONS = "--algorithm supervised --refiner none --steps 1 --set train.threads=1"


def check(*arguments: str | Path) -> None:
    done = semigpc(*arguments)
    assert "Unexpected error" not in done.output, done.output
    assert done.exit_code in (0, 2), done.output


@pytest.mark.parametrize(
    ("kind", "part"), combinations(list(TYPES), ["x", "y", "ids"], costly=True)
)
def test_label(tmp_path: Path, kind: str, part: str) -> None:
    parts = {"x": ROWS, "y": LABELS, "ids": np.arange(24)}
    np.savez(
        tmp_path / "data.npz", allow_pickle=True, **(parts | {part: of_type(parts[part], kind)})
    )
    check("label", tmp_path / "data.npz", "--out", tmp_path / "out", "--no-report")


@pytest.mark.parametrize(
    ("kind", "part"),
    combinations(list(TYPES), ["x_labeled", "y_labeled", "y_unlabeled_truth"], costly=True),
)
def test_train_and_predict(tmp_path: Path, trained: Trained, kind: str, part: str) -> None:
    pixels = IMAGES.astype(np.uint8)
    parts = {
        "x_labeled": pixels[:12],
        "y_labeled": LABELS[:12],
        "x_unlabeled": pixels[12:],
        "y_unlabeled_truth": LABELS[:12],
    }
    np.savez(
        tmp_path / "data.npz", allow_pickle=True, **(parts | {part: of_type(parts[part], kind)})
    )
    check("train", tmp_path / "data.npz", "--out", tmp_path / "run", OPTIONS)
    bare = {"x_labeled": pixels, "y_labeled": LABELS}
    if part in bare:
        bare[part] = of_type(bare[part], kind)
    np.savez(tmp_path / "new.npz", allow_pickle=True, **bare)
    check("predict", trained.run, tmp_path / "new.npz")
