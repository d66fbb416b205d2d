"""Reading what a run has left: resumed steps once, matrices only where they are drawn, problems."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semigpc.data import Splits, arrays, folder
from semigpc.io.atomic import sealed
from semigpc.io.errors import RunError
from semigpc.training.run_folder import RunFolder, read_run
from tests.data.samples import random_image
from tests.report.synthetic import write_run
from tests.training.small_runs import small_run


def append(folder: Path, *entries: dict[str, Any]) -> None:
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.writelines(json.dumps(entry) + "\n" for entry in entries)


def test_a_step_measured_again_after_a_resume_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "run", n_classes=5)
    before = read_run(tmp_path / "run")
    append(tmp_path / "run", {"kind": "train", "step": 400, "loss": 123.0})
    after = read_run(tmp_path / "run")
    assert len(after.train) == len(before.train)
    assert [entry["loss"] for entry in after.train if entry["step"] == 400] == [123.0]
    assert [entry["step"] for entry in after.train] == sorted(
        entry["step"] for entry in after.train
    )


def test_only_the_newest_matrix_of_each_head_and_part_is_kept(tmp_path: Path) -> None:
    write_run(tmp_path / "run", n_classes=5)
    kept = [
        (entry["part"], entry["head"], entry["step"])
        for entry in read_run(tmp_path / "run").evals
        if "confusion" in entry
    ]
    assert sorted(kept) == [
        (part, head, 2000) for part in ("test", "validation") for head in ("gp", "linear")
    ]
    assert not any("confusion" in entry for entry in read_run(tmp_path / "run", bulky=False).evals)


def test_a_whole_line_of_another_shape_is_left_out_too(tmp_path: Path) -> None:
    write_run(tmp_path / "run", n_classes=5)
    (tmp_path / "run" / "metrics.jsonl").write_text(
        '[1]\n\n{"kind": "train"}\n{"kind": "train", "step": 3, "loss": 1.0}\n'
    )
    run = read_run(tmp_path / "run")
    assert [entry["step"] for entry in run.train] == [3]
    (problem,) = run.problems
    assert "2 unreadable lines" in problem


def test_the_headline_is_of_the_best_step_and_else_of_the_last_with_its_matrix(
    tmp_path: Path,
) -> None:
    summary = write_run(tmp_path / "run", n_classes=5)
    results = summary["results"]
    headline = read_run(tmp_path / "run").headline()
    assert headline is not None
    assert headline["step"] == results["best_on_validation"]["step"] < results["last"]["step"]
    last = {key: value for key, value in results["last"].items() if key != "confusion"}
    summary["results"] = {"last": {**last, "top1": 0.125}}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    headline = read_run(tmp_path / "run").headline()
    assert headline is not None
    assert headline["top1"] == 0.125
    assert "confusion" in headline


def test_without_a_split_classes_are_numbered(tmp_path: Path) -> None:
    write_run(tmp_path / "run", n_classes=5)
    (tmp_path / "run" / "split.json").unlink()
    run = read_run(tmp_path / "run")
    assert run.class_names == ["0", "1", "2", "3", "4"]
    assert run.order.tolist() == [0, 1, 2, 3, 4]


def test_an_interrupted_run_stands_for_the_best_of_its_evaluations(tmp_path: Path) -> None:
    write_run(tmp_path / "run", n_classes=5)
    (tmp_path / "run" / "summary.json").unlink()
    assert read_run(tmp_path / "run").standing.head == "linear"
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "eval":
            best = line["step"] == 600
            line["judged"] = line["head"] == ("gp" if best else "linear")
            line["balanced_accuracy"] = 0.9 if best else 0.5
    metrics.write_text("\n".join(json.dumps(line) for line in lines))
    run = read_run(tmp_path / "run")
    assert run.standing == ("best", 600, "gp")
    headline = run.headline()
    assert headline is not None
    assert (headline["step"], headline["head"]) == (2000, "linear")


def test_the_summary_names_the_head_also_where_nothing_was_evaluated(tmp_path: Path) -> None:
    summary = write_run(tmp_path / "run", n_classes=5)
    changed = summary | {"head": "gp", "results": {}}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(changed))
    assert read_run(tmp_path / "run").standing.head == "gp"


@pytest.mark.parametrize("edited", [False, True])
def test_an_edited_summary_is_shown_with_a_warning_and_rejected_by_the_strict_reader(
    tmp_path: Path, edited: bool
) -> None:
    folder = RunFolder(tmp_path / "run")
    summary = sealed(write_run(folder.path, n_classes=5) | {"files": {}})
    if edited:
        summary["seconds"] = 1.0
    folder.summary.write_text(json.dumps(summary))
    run = read_run(folder.path)
    assert run.summary["seconds"] == summary["seconds"]
    if not edited:
        assert run.problems == []
        assert folder.read_summary()["seconds"] == summary["seconds"]
        return
    (problem,) = run.problems
    assert "sha256" in problem
    with pytest.raises(RunError, match="sha256"):
        folder.read_summary()


def folder_of_images(root: Path, seed: int) -> Splits:
    """Images in class folders, each of 174 bytes and from the beginning of time."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(("ant/0", "ant/1", "bee/0", "bee/1", "unlabeled/0")):
        image = random_image(6, 5, np.random.default_rng(seed) if number == 3 else rng)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(root / f"{name}.bmp")
        os.utime(root / f"{name}.bmp", ns=(0, 0))
    return folder.load(folder.FolderConfig(root=str(root)), seed=0)


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
