"""``semigpc list``: everything there is, and every setting."""

import json
from collections.abc import Mapping
from typing import Any

from semigpc.addons import ADDONS
from semigpc.algorithms import ALGORITHMS
from semigpc.data import DATASETS
from semigpc.models import MODELS
from semigpc.models.pretrained import WEIGHTS
from semigpc.refiners import REFINERS
from semigpc.training.presets import RECIPES, digits
from tests.cli.calls import semigpc

ROOMS: dict[str, Mapping[str, Any]] = {
    "addons": ADDONS,
    "algorithms": ALGORITHMS,
    "refiners": REFINERS,
    "models": MODELS,
    "datasets": DATASETS,
    "recipes": RECIPES,
    "weights": {one.file: one for one in WEIGHTS},
}


def test_everything_has_a_line() -> None:
    told = json.loads(semigpc("list --json").stdout)
    for kind, room in ROOMS.items():
        assert set(room) <= set(told[kind])
        assert all(told[kind].values())
        shown = semigpc("list", kind).stdout
        for name in room:
            assert f"{name} " in shown


def test_settings_can_be_given_back() -> None:
    lines = semigpc("list settings digits --algorithm comatch --refiner none").stdout.splitlines()
    assert "train.lr=0.002" in lines
    assert "algorithm.queue_batches=8" in lines
    experiment = digits(algorithm="comatch", refiner="none")
    assert experiment.override(lines) == experiment


def test_models_of_timm_by_a_part_of_their_name() -> None:
    assert "resnet18" in semigpc("list models resnet1").stdout.splitlines()
    assert semigpc("list models nothing_like_it").exit_code == 2
    assert semigpc("list recipes digits").exit_code == 2
