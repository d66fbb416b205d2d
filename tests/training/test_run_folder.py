"""Reading what a run has left: resumed steps once, matrices only where they are drawn, problems."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from semigpc.data import Splits, arrays
from semigpc.data import folder as image_folder
from semigpc.io.atomic import sealed
from semigpc.io.errors import RunError
from semigpc.training.run_folder import RunFolder, read_run
from tests.data.samples import random_image
from tests.report.synthetic import write_run
from tests.training.small_runs import entries, small_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", n_classes=5)
    return tmp_path / "run"


def test_a_step_measured_again_after_a_resume_counts_once(folder: Path) -> None:
    before = read_run(folder)
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('{"kind": "train", "step": 400, "loss": 123.0}\n')
    after = read_run(folder)
    assert [entry["loss"] for entry in after.train if entry["step"] == 400] == [123.0]
    steps = [[entry["step"] for entry in run.train] for run in (before, after)]
    assert steps[1] == sorted(steps[0])


def test_only_the_newest_matrix_of_each_head_and_part_is_kept(folder: Path) -> None:
    kept = [entry for entry in read_run(folder).evals if "confusion" in entry]
    newest = [(part, head, 2000) for part in ("test", "validation") for head in ("gp", "linear")]
    assert sorted((entry["part"], entry["head"], entry["step"]) for entry in kept) == newest
    assert not any("confusion" in entry for entry in read_run(folder, bulky=False).evals)


def test_a_whole_line_of_another_shape_is_left_out_too(folder: Path) -> None:
    lines = '[1]\n\n{"kind": "train"}\n{"kind": "train", "step": 3, "loss": 1.0}\n'
    (folder / "metrics.jsonl").write_text(lines)
    run = read_run(folder)
    assert [entry["step"] for entry in run.train] == [3]
    (problem,) = run.problems
    assert "2 unreadable lines" in problem


def test_the_headline_is_of_the_best_step_and_else_of_the_last_with_its_matrix(
    folder: Path,
) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    last = summary["results"]["last"]
    headline = read_run(folder).headline()
    assert headline is not None
    assert headline["step"] == summary["results"]["best_on_validation"]["step"] < last["step"]
    del last["confusion"]
    summary["results"] = {"last": last | {"top1": 0.125}}
    (folder / "summary.json").write_text(json.dumps(summary))
    headline = read_run(folder).headline()
    assert headline is not None
    assert headline["top1"] == 0.125
    assert "confusion" in headline


def test_without_a_split_classes_are_numbered(folder: Path) -> None:
    (folder / "split.json").unlink()
    run = read_run(folder)
    assert run.class_names == ["0", "1", "2", "3", "4"]
    assert run.order.tolist() == [0, 1, 2, 3, 4]


def test_an_interrupted_run_stands_for_the_best_of_its_evaluations(folder: Path) -> None:
    (folder / "summary.json").unlink()
    assert read_run(folder).standing.head == "linear"
    lines = entries(folder)
    for line in lines:
        if line["kind"] == "eval":
            best = line["step"] == 600
            line["judged"] = line["head"] == ("gp" if best else "linear")
            line["balanced_accuracy"] = 0.9 if best else 0.5
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run = read_run(folder)
    assert run.standing == ("best", 600, "gp")
    headline = run.headline()
    assert headline is not None
    assert (headline["step"], headline["head"]) == (2000, "linear")


def test_the_summary_names_the_head_also_where_nothing_was_evaluated(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"head": "gp", "results": {}}))
    assert read_run(folder).standing.head == "gp"


def test_an_edited_summary_is_shown_with_a_warning_and_rejected_by_the_strict_reader(
    folder: Path,
) -> None:
    path = folder / "summary.json"
    summary = sealed(json.loads(path.read_text()) | {"files": {}})
    path.write_text(json.dumps(summary))
    assert read_run(folder).problems == []
    assert RunFolder(folder).read_summary()["seconds"] == summary["seconds"] != 1.0
    path.write_text(json.dumps(summary | {"seconds": 1.0}))
    run = read_run(folder)
    assert run.summary["seconds"] == 1.0
    (problem,) = run.problems
    assert "sha256" in problem
    with pytest.raises(RunError, match="sha256"):
        RunFolder(folder).read_summary()


def folder_of_images(root: Path, seed: int) -> Splits:
    """Images in class folders, each of 174 bytes and from the beginning of time."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(("ant/0", "ant/1", "bee/0", "bee/1", "unlabeled/0")):
        image = random_image(6, 5, np.random.default_rng(seed) if number == 3 else rng)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(root / f"{name}.bmp")
        os.utime(root / f"{name}.bmp", ns=(0, 0))
    return image_folder.load(image_folder.FolderConfig(root=str(root)), seed=0)


def array_of_images(root: Path, seed: int) -> Splits:
    root.mkdir(exist_ok=True)
    images = np.random.default_rng(0).integers(256, size=(5, 6, 5), dtype=np.uint8)
    images[3] = np.random.default_rng(seed).integers(256, size=(6, 5))
    np.savez(root / "x.npz", x_labeled=images[:4], y_labeled=[0, 0, 1, 1], x_unlabeled=images[4:])
    os.utime(root / "x.npz", ns=(0, 0))
    return arrays.load(arrays.ArraysConfig(path=str(root / "x.npz")), seed=0)


@pytest.mark.parametrize(
    ("make", "name"), [(folder_of_images, "bee/1.bmp"), (array_of_images, "x_labeled/3")]
)
def test_a_run_is_not_resumed_on_an_image_of_other_content(
    tmp_path: Path, make: Callable[[Path, int], Splits], name: str
) -> None:
    experiment = small_run()
    run = RunFolder(tmp_path / "run")
    run.start(experiment, make(tmp_path / "data", 1))
    run.check_same(experiment, make(tmp_path / "data", 1))
    with pytest.raises(RunError, match=rf"1 images of the labeled part .*'{name}'.*Put them back"):
        run.check_same(experiment, make(tmp_path / "data", 2))
