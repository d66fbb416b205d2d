"""The ensemble over two processes against the ensemble in one."""

import pytest

from tests.training.together import run_all


@pytest.mark.nightly
def test_members_on_two_processes_answer_as_one_ensemble() -> None:
    run_all("tests.gp.spread_checks")
