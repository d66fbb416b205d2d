import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from semigpc.data import Splits
from semigpc.data.dataset import ImageSet
from semigpc.io.errors import RunError
from semigpc.training.comparison import (
    Cell,
    ComparisonListener,
    Untrained,
    compare,
    figures_of,
    mean_gain,
)
from semigpc.training.state import Progress
from tests.training.small_runs import small_run


def cells(*settings: str) -> list[Cell]:
    short = ("train.steps=6", "train.eval_steps=6", *settings)
    return [
        Cell(small_run("supervised", "none", *short), "labels only"),
        Cell(small_run("fixmatch", "none", *short), "FixMatch"),
        Cell(small_run("fixmatch", "gp", *short), "FixMatch + SemiGPC"),
    ]


class Counting(ComparisonListener):
    def __init__(self) -> None:
        self.kept: list[bool] = []

    def done(self, cell: Cell, seed: int, summary: object, *, kept: bool) -> None:
        self.kept.append(kept)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_means_and_pairs_are_those_of_the_runs(jobs: int, tmp_path: Path) -> None:
    counting = Counting()
    found = compare(cells(), [0, 1], tmp_path, title="t", command="c", jobs=jobs, listener=counting)
    assert counting.kept == [False] * 6
    assert json.loads((tmp_path / "comparison.json").read_text()) == found
    base, refined = found["cells"][1:]
    values = [run["result"]["balanced_accuracy"] for run in base["runs"]]
    assert base["mean"]["balanced_accuracy"] == pytest.approx(np.mean(values))
    assert base["std"] is not None
    assert base["std"]["balanced_accuracy"] == pytest.approx(np.std(values))
    (pair,) = found["pairs"]
    assert (pair["with"], pair["without"]) == ("fixmatch+gp", "fixmatch+none")
    ours = [run["result"]["balanced_accuracy"] for run in refined["runs"]]
    assert pair["differences"] == pytest.approx(np.subtract(ours, values))
    assert found["baseline"] == "supervised+none"

    again = Counting()
    assert compare(cells(), [0, 1], tmp_path, title="t", command="c", listener=again) == found
    assert again.kept == [True] * 6


def test_a_folder_with_other_settings_is_refused(tmp_path: Path) -> None:
    compare(cells()[:1], [0], tmp_path, title="t", command="c")
    with pytest.raises(RunError, match="holds a run with other settings"):
        compare(cells("train.lr=1e-3")[:1], [0], tmp_path, title="t", command="c")


def test_cells_on_different_splits_are_refused(tmp_path: Path) -> None:
    mixed = [
        cells()[0],
        Cell(small_run("fixmatch", "none", "train.steps=6", "data.split.labeled_head=20"), "other"),
    ]
    with pytest.raises(RunError, match="different splits"):
        compare(mixed, [0], tmp_path, title="t", command="c")


def test_two_cells_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="its own algorithm, add-on and refiner"):
        compare([cells()[0], cells()[0]], [0], tmp_path, title="t", command="c")


class Told(ComparisonListener):
    def __init__(self) -> None:
        self.progress: list[tuple[int, int]] = []
        self.kept: list[bool] = []

    def answer(self, row: Untrained, seed: int) -> Progress:
        return lambda done, total: self.progress.append((done, total))

    def answered(self, row: Untrained, seed: int, record: object, *, kept: bool) -> None:
        self.kept.append(kept)


def test_a_row_without_training_is_judged_on_the_splits_of_the_runs_and_kept(
    tmp_path: Path,
) -> None:
    """It is right about every class but as many as the seed says, and one more."""
    seen: dict[int, str] = {}

    def answer(
        splits: Splits, images: ImageSet, seed: int, progress: Progress
    ) -> tuple[NDArray[Any], float]:
        seen[seed] = splits.sha256
        progress(1, len(images))
        labels = np.where(images.labels <= seed, splits.n_classes - 1, images.labels)
        return np.eye(splits.n_classes)[labels], 2.5

    def compared(listener: ComparisonListener, **settings: int) -> Any:
        row = Untrained("guess", "a guess", settings, answer)
        names = (cells()[:1], [0, 1], tmp_path)
        return compare(*names, title="t", command="c", untrained=[row], listener=listener)

    told = Told()
    found = compared(told)
    assert told.kept == [False, False]
    assert len(told.progress) == 2
    base, guess = found["cells"]
    assert [run["result"]["part"] for run in guess["runs"]] == ["test", "test"]
    values = [run["result"]["balanced_accuracy"] for run in guess["runs"]]
    assert values == pytest.approx([0.9, 0.8])
    assert guess["mean"]["balanced_accuracy"] == pytest.approx(0.85)
    assert guess["std"]["balanced_accuracy"] == pytest.approx(0.05)
    assert [run["seconds"] for run in guess["runs"]] == [2.5, 2.5]
    groups = [one["runs"][0]["result"]["groups"].keys() for one in (base, guess)]
    assert groups[0] == groups[1]
    assert found["pairs"] == []
    (pair,) = found["untrained_pairs"]
    assert (pair["with"], pair["without"]) == ("guess", "supervised+none")
    trained = [run["result"]["balanced_accuracy"] for run in base["runs"]]
    assert pair["differences"] == pytest.approx(np.subtract(values, trained))
    assert json.loads((tmp_path / "comparison.json").read_text()) == found
    for seed in (0, 1):
        run = tmp_path / "cells" / "supervised+none" / f"seed{seed}"
        assert json.loads((run / "split.json").read_text())["sha256"] == seen[seed]
    assert mean_gain([figures_of(found)]) is None, "no refiner"
    assert figures_of(found)["cells"]["guess"]["balanced_accuracy"] == [90.0, 80.0]

    again = Told()
    seen.clear()
    assert compared(again) == found
    assert (again.kept, seen) == ([True, True], {})

    damaged = tmp_path / "cells" / "guess" / "seed0" / "result.json"
    damaged.write_text("{}")
    with pytest.raises(RunError, match="Delete it to compute it again"):
        compared(Told())
    damaged.unlink()
    once = Told()
    assert compared(once) == found
    assert once.kept == [False, True]
    other = Told()
    compared(other, size=3)
    assert other.kept == [False, False]
