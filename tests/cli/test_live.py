"""What a run says while it goes on."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from semigpc.cli.live import RunProgress
from semigpc.training import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    nothing = dict.fromkeys(("validation_counts", "test_counts", "unlabeled_counts"))
    facts = {"class_names": ["a", "b"], "labeled_counts": [1, 2], "unlabeled": 3}
    more = {"sha256": "0" * 64, "class_groups": {}, "notes": ["One class is rare."]}
    (tmp_path / "split.json").write_text(json.dumps(facts | nothing | more))
    return RunFolder(tmp_path)


def test_a_note_is_told_unless_it_is_one_of_the_split_which_is_told_with_it(
    folder: RunFolder,
) -> None:
    said = io.StringIO()
    with RunProgress(folder, Console(file=said, width=100)) as live:
        live.entry({"kind": "note", "step": 0, "message": "One class is rare."})
        live.entry({"kind": "note", "step": 0, "message": "The refiner never speaks."})
    assert said.getvalue() == "Note: The refiner never speaks.\n"
