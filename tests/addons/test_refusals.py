"""Options of add-ons that are out of range, and tasks that an add-on cannot work on."""

import math
from typing import Any

import pytest
import torch

from semigpc.addons import ADDONS
from semigpc.types import Task
from tests.algorithms.tiny import COUNTS, LABELED, UNLABELED


@pytest.mark.parametrize(
    ("addon", "option", "value"),
    [
        ("abc", "threshold", 1.5),
        ("abc", "abc_weight", -1.0),
        ("abc", "abc_weight", math.nan),
        ("balanced_sampling", "power", 1.5),
        ("cossl", "warmup", 1.2),
        ("cossl", "head_momentum", -0.1),
        ("cossl", "least_own", 2.0),
        ("cossl", "head_rate", 0.0),
        ("cossl", "head_decay", -1.0),
        ("cossl", "start_steps", 0),
        ("crest", "generations", 1),
        ("crest", "power", -1.0),
        ("crest_plus", "final_temperature", 2.0),
        ("darp", "every", 0),
        ("darp", "alternations", 0),
        ("darp", "newton_steps", 0),
        ("darp", "keep", 0.0),
        ("darp", "tolerance", -1.0),
        ("darp", "warmup", 1.5),
        ("darp", "momentum", 1.0),
        ("darp", "counts", "true"),
        ("daso", "queue", 0),
        ("daso", "every", 0),
        ("daso", "temperature", 0.0),
        ("daso", "distribution_temperature", math.nan),
        ("daso", "warmup", 2.0),
        ("daso", "alignment_weight", -1.0),
        ("debiaspl", "strength", -0.1),
        ("debiaspl", "share_momentum", 1.0),
        ("deferred", "start", 2.0),
        ("deferred", "beta", -0.1),
        ("effective_number", "beta", 1.0),
        ("logit_adjustment", "strength", -1.0),
    ],
)
def test_an_option_out_of_range_is_refused(addon: str, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{option} must .*; got {value!r}"):
        ADDONS[addon].config(**{option: value})


@pytest.mark.parametrize(
    ("addon", "words"),
    [
        ("cossl", "n_features must be at least 1; got 0"),
        ("daso", "n_features must be at least 1; got 0"),
        ("darp", "got 0. Add unlabelled images"),
        ("saw", "got 0. Add unlabelled"),
    ],
)
def test_a_task_without_what_an_add_on_needs_is_refused(addon: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ADDONS[addon].build(ADDONS[addon].config(), Task(torch.tensor(COUNTS), LABELED, UNLABELED))
