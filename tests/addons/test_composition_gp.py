"""Every algorithm with every add-on, with SemiGPC."""

from pathlib import Path

import pytest

from tests.addons.composition import check_resumes, pairs_with, squares


@pytest.mark.parametrize(("algorithm", "addon"), pairs_with("gp"))
def test_it_steps_is_saved_and_resumes_to_the_same_bits(
    algorithm: str, addon: str, tmp_path: Path
) -> None:
    check_resumes(algorithm, addon, "gp", squares(tmp_path), tmp_path)
