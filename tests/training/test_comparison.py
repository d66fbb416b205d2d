import json
from pathlib import Path

import numpy as np
import pytest

from semigpc.io.errors import RunError
from semigpc.training.comparison import Cell, ComparisonListener, compare
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
