"""Files edited by hand are refused by name, or do no harm: nothing ends in a way that was not
foreseen, nothing runs away.
"""

import random
from pathlib import Path

import pytest

from semigpc.training import RunFolder
from semigpc.training.run_folder import read_checkpoint
from tests.cli.hand_edits import STEPS, Case, attempt, complaint, make_artefacts
from tests.fuzzing import cases, seed


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))
    return tmp_path


def judge(root: Path, case: Case, number: int) -> str | None:
    """What is wrong with one edit of a file, if anything."""
    copied = root / "copies" / str(number)
    how, done = attempt(case, root, copied, random.Random(f"{seed()} {number}"))
    found = complaint(case, done)
    if (
        found is None
        and case.folder in ("run", "cached")
        and read_checkpoint(RunFolder(copied).last).state["step"] > STEPS
    ):
        found = "trained too far"
    return (
        None
        if found is None
        else f"{number}: {case.verb[0]} {case.file}, {how}: {found}: {done.output[-600:]}"
    )


@pytest.mark.slow
def test_a_few_edits_by_hand(root: Path) -> None:
    """Each file once, with the last of the verbs that read it."""
    chosen = {case.file: case for case in make_artefacts(root, everything=False)}
    wrong = [judge(root, case, number) for number, case in enumerate(chosen.values())]
    assert [one for one in wrong if one is not None] == []


@pytest.mark.nightly
def test_many_edits_by_hand(root: Path) -> None:
    artefacts = make_artefacts(root, everything=True)
    found = [judge(root, artefacts[number % len(artefacts)], number) for number in range(cases(60))]
    wrong = [one for one in found if one is not None]
    assert not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(wrong)
