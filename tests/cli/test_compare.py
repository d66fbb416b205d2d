"""``semigpc compare`` and ``demo``, through the real entry point."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.calls import refused, start, worked
from tests.cli.own_data import make_folder

SHORT = "--set train.steps=8 --set train.eval_steps=8 --set train.threads=1"
SHORT_GP = f"{SHORT} --set refiner.warmup_steps=2"


@pytest.mark.slow
def test_compare_writes_tables_and_a_page_for_each_ratio(tmp_path: Path) -> None:
    command = "compare digits --algorithm fixmatch --ratio 10 --ratio 30 --seeds 2"
    done = worked(command, SHORT_GP, "--json --out", tmp_path)
    found = json.loads(done.stdout)
    assert found["comparisons"].keys() == {"10", "30"}
    assert json.loads((tmp_path / "figures.json").read_text()) == found
    cells = found["comparisons"]["10"]["cells"]
    assert list(cells) == ["supervised+none", "fixmatch+none", "fixmatch+gp"]
    assert [len(cell["balanced_accuracy"]) for cell in cells.values()] == [2, 2, 2]
    pairs = [pair for one in found["comparisons"].values() for pair in one["pairs"]]
    gains = [pair["mean_difference"] for pair in pairs]
    assert found["mean_gain"] == pytest.approx(sum(gains) / len(gains))
    assert "FixMatch + SemiGPC" in done.stderr
    assert "points of balanced accuracy" in done.stderr
    for ratio in ("ratio10", "ratio30"):
        assert "FixMatch + SemiGPC" in (tmp_path / ratio / "report.html").read_text()
        run = tmp_path / ratio / "cells" / "fixmatch+gp" / "seed1"
        config = json.loads((run / "config.json").read_text())
        assert config["refiner"]["warmup_steps"] == 2


@pytest.mark.slow
def test_compare_takes_own_images_and_holds_some_labels_out(tmp_path: Path) -> None:
    photos = make_folder(tmp_path, labels=(10, 6, 5), unlabeled=6, test=0)
    out = tmp_path / "out"
    methods = "--algorithm fixmatch --algorithm simmatch --refiner none --refiner gp --seeds 2"
    labels = ("--labels", tmp_path / "labels.csv")
    command = ("compare", photos, *labels, methods, SHORT_GP, "--out", out)
    printed = worked(*command).stdout
    assert "validation accuracy in percent" in printed
    assert "label, without training" in printed
    assert "Without training, minus labels only" in printed
    assert "photos, 2 seeds" in (out / "report.html").read_text()
    figures = json.loads((out / "figures.json").read_text())
    expected = "supervised+none fixmatch+none fixmatch+gp simmatch+none simmatch+gp label"
    found = figures["comparisons"]["photos"]
    assert list(found["cells"]) == expected.split()
    assert len(found["cells"]["label"]["balanced_accuracy"]) == 2
    (pair,) = found["untrained_pairs"]
    assert (pair["with"], pair["without"]) == ("label", "supervised+none")
    assert "label, without training" in (out / "report.html").read_text()
    assert worked(*command).stderr == ""  # every run is finished, so none starts again
    assert json.loads((out / "figures.json").read_text())["comparisons"] == figures["comparisons"]


@pytest.mark.slow
def test_compare_takes_arrays_of_two_classes_and_notes_a_refiner_that_is_never_used(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    y = np.tile([0, 1], 12)
    x = (rng.integers(0, 60, (24, 8, 8)) + 150 * y[:, None, None]).astype(np.uint8)
    parts = {"x_labeled": x[:8], "y_labeled": y[:8], "x_unlabeled": x[8:16]}
    np.savez(tmp_path / "two.npz", **parts, x_test=x[16:], y_test=y[16:])
    out = tmp_path / "out"
    few = "--algorithm fixmatch --seeds 1 --steps 3 --out"
    done = worked("compare", tmp_path / "two.npz", few, out)
    assert "two, 1 seed" in done.stdout
    assert "test accuracy in percent" in done.stdout
    assert "Note: FixMatch + SemiGPC never uses its refiner." in done.stderr
    assert "refiner.warmup_steps" in done.stderr
    (comparison,) = json.loads((out / "figures.json").read_text())["comparisons"].values()
    assert comparison["cells"]["fixmatch+none"]["groups"]["few"] is None


def test_compare_says_beforehand_that_there_is_nothing_to_compare_by(tmp_path: Path) -> None:
    photos = make_folder(tmp_path)  # three labels of a class, and no test images unless given
    command = ("compare", photos, "--labels", tmp_path / "labels.csv", "--out", tmp_path / "out")
    refused(*command, code=2, words="no images to compare")
    refused(*command, "--ratio 10", code=2, words="does not apply to your own data")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("digitz", "'digitz' is neither a folder nor a recipe. Did you mean 'digits'?"),
        ("digits --algorithm fixmach", "did you mean 'fixmatch'?"),
        ("digits --refiner pg", "unknown refiner 'pg'; did you mean 'gp'?"),
        ("digits --set train.lrr=1", "did you mean 'train.lr'?"),
        ("digits --set refiner.lenght_scale=1", "did you mean 'refiner.length_scale'?"),
        ("digits --set refiner=1", "refiner"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(
    arguments: str, words: str, tmp_path: Path
) -> None:
    refused("compare", arguments, "--out", tmp_path / "out", code=2, words=words)
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_the_demo_shows_that_the_few_come_off_better(tmp_path: Path) -> None:
    done = worked("demo --json --out", tmp_path)
    cells = {cell["name"]: cell["mean"] for cell in json.loads(done.stdout)["cells"]}
    assert list(cells) == ["supervised+none", "simmatch+none", "simmatch+gp"]
    assert cells["simmatch+gp"]["few"] > cells["simmatch+none"]["few"]
    assert cells["simmatch+gp"]["balanced_accuracy"] > 0.75
    assert all(name in done.stderr for name in ("many", "medium", "few", "report:"))
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "cells" / "simmatch+gp" / "seed0" / "report.html").exists()


@pytest.mark.nightly
def test_a_comparison_that_is_ended_takes_its_workers_along(tmp_path: Path) -> None:
    command = "compare digits --algorithm fixmatch --seeds 2 --jobs 2 --out out"
    started = "out/cells/fixmatch*/seed0/metrics.jsonl"
    with start(command, cwd=tmp_path) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob(started)) and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "semigpc compare: interrupted" in stderr
    assert nobody_left(process.pid, seconds=20)


def nobody_left(group: int, *, seconds: float) -> bool:
    """Whether a process group empties in that time; some helpers end after their parent."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.2)
    return False
