"""The commands under "Train on your own images" in the README, as they stand there."""

import csv
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.calls import semigpc
from tests.cli.own_data import CLASSES, make_class_folders, make_folder, write_table

README = Path(__file__).parents[2] / "README.md"
pytestmark = pytest.mark.slow


def own_data_commands() -> list[list[str]]:
    section = re.split(r"^## ", README.read_text(), flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith("Train on your own images")]
    return [shlex.split(line) for line in text.splitlines() if line.startswith("semigpc ")]


def test_the_commands_of_the_readme_work_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path, labels=(8, 6, 5), test=0)
    make_class_folders(tmp_path / "new_photos", dict.fromkeys(CLASSES, 3), skip=60)
    judged = make_class_folders(tmp_path / "test_photos", dict.fromkeys(CLASSES, 4), skip=80)
    rows = [
        (str(file.relative_to(judged)), file.parent.name) for file in sorted(judged.rglob("*.png"))
    ]
    write_table(tmp_path / "test_labels.csv", rows)

    monkeypatch.chdir(tmp_path)
    commands = own_data_commands()
    assert [command[1] for command in commands] == ["train", "evaluate", "predict"]
    commands[0] += ["--steps", "30"]  # the one thing that is not in the README
    for command in commands:
        done = semigpc(*command[1:])
        assert done.exit_code == 0, done.output
    assert (tmp_path / "runs" / "birds" / "report.html").exists()
    with (tmp_path / "labels_found.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 9
    assert {row["label"] for row in found} <= set(CLASSES)
