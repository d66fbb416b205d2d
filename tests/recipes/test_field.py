"""The short runs of ``semigpc bench field``."""

import re
from pathlib import Path

import pytest

from semigpc.addons import ADDONS
from semigpc.recipes.field import BASES, PROBLEMS, field_experiment
from semigpc.training import SettingError

ROOT = Path("images.zip")


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("base", [*BASES, "npmatch"])
def test_every_combination_is_an_experiment_that_is_judged_once(problem: str, base: str) -> None:
    for addon in ADDONS:
        for refiner in ("none", "gp"):
            found = field_experiment(problem, base, addon, refiner, root=ROOT, seed=2)
            assert (found.algorithm_name, found.addon_name, found.refiner_name) == (base, addon, refiner)
            assert found.train.eval_steps == found.train.checkpoint_steps == found.train.steps
            assert found.seed == 2
            assert (found.frozen is not None) == PROBLEMS[problem].cached


def test_each_generation_is_as_long_as_a_run_of_the_others() -> None:
    plain, crest = (field_experiment("digits_a", "fixmatch", addon, "gp") for addon in ("none", "crest"))
    assert crest.addon.generations == 3
    assert crest.train.steps == 3 * plain.train.steps
    assert crest.train.epoch_steps == plain.train.epoch_steps
    assert crest.refiner == plain.refiner


def test_counts_that_the_labels_do_not_tell_are_estimated_in_setting_b() -> None:
    kinds = [field_experiment(problem, "fixmatch", "darp", "none").addon.counts for problem in ("digits_a", "digits_b")]
    assert kinds == ["labeled", "estimated"]


def test_a_trial_is_as_short_as_asked() -> None:
    found = field_experiment("digits_b", "simmatch", "debiaspl", "gp", steps=20)
    assert (found.train.steps, found.refiner.warmup_steps, found.train.epoch_steps) == (20, 2, 3)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("digits", "fixmatch", "none", "none"), "unknown problem 'digits'; did you mean 'digits_"),
        (("digits_a", "fixmatch", "drap", "none"), "unknown addon 'drap'; did you mean 'darp'?"),
        (("digits_a", "fixmach", "none", "none"), "unknown algorithm 'fixmach'; did you mean 'fixmatch'?"),
        (("digits_a", "supervised", "darp", "none"), "darp acts on unlabelled images"),
    ],
)
def test_what_there_is_not_is_refused(names: tuple[str, str, str, str], message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        field_experiment(*names)
