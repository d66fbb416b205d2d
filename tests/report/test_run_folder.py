"""Reading what a run left: resumed steps once, bulky matrices only where they are drawn."""

import json
from pathlib import Path
from typing import Any

from semigpc.report.run_record import read_run
from tests.report.synthetic import write_run


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
    assert run.problems == [
        "Unreadable lines of metrics.jsonl, such as a kill leaves at the end, were left out: 2."
    ]


def test_the_headline_is_the_summary_with_the_matrix_of_its_step(tmp_path: Path) -> None:
    summary = write_run(tmp_path / "run", n_classes=5)
    last = {key: value for key, value in summary["results"]["last"].items() if key != "confusion"}
    summary["results"]["last"] = {**last, "top1": 0.125}
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


def test_an_interrupted_run_opens_with_the_head_that_its_last_evaluation_chose(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "run", n_classes=5)
    (tmp_path / "run" / "summary.json").unlink()
    assert read_run(tmp_path / "run").head == "linear"
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text(
        "\n".join(json.dumps(line | {"judged": line.get("head") == "gp"}) for line in lines)
    )
    assert read_run(tmp_path / "run").head == "gp"
