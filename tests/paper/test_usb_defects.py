"""The defects of USB that are not to come back (algorithms section 11): the test of each row, and
some that live here.
"""

import ast
import importlib
import inspect
import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import semigpc.addons
import semigpc.algorithms
import semigpc.refiners
from semigpc.addons import ADDONS
from semigpc.algorithms import ALGORITHMS
from semigpc.data import Augment
from semigpc.data.augment import CIFAR10_MEAN, CIFAR10_STD
from semigpc.io.errors import SettingsError
from semigpc.paper.tables import cifar10_lt
from semigpc.refiners import REFINERS
from semigpc.training import Experiment, TrainConfig, loop, train
from semigpc.training.loop import take_step
from semigpc.training.presets import TrainOptions, resolve
from semigpc.training.state import Trainer
from semigpc.types import Batch, Clock, StepOutput
from tests.data.samples import plain_view
from tests.training.small_runs import small_run

TESTS = Path(__file__).parents[1]
HERE, OPTIMISER = "paper/test_usb_defects.py", "paper/test_usb_optimiser.py"
ROWS: dict[str, tuple[str, ...]] = {
    "SimMatch bank: rows normalised across the batch": (
        "algorithms/test_acceptance.py::test_written_bank_rows_are_unit_vectors",
        "algorithms/test_fidelity.py::test_simmatch_as_usb_writes_it",
    ),
    "SimMatch bank: class 0 for images not seen": (
        "algorithms/test_acceptance.py::test_images_not_seen_yet_have_no_say_in_simmatch",
    ),
    "SimMatch teacher: the student judges": (
        "algorithms/test_acceptance.py::test_the_first_simmatch_reads_weak_views_through_the_teacher",
    ),
    "wrapped networks: positions and class token decay": (
        f"{OPTIMISER}::test_positions_and_class_token_never_decay_whatever_heads_there_are",
        "training/test_optim.py::test_vectors_and_positions_are_not_decayed",
    ),
    "imbalanced base class: no schedule": (
        f"{OPTIMISER}::test_it_runs_as_it_comes_at_the_rate_of_the_cosine",
        f"{OPTIMISER}::test_every_recipe_and_backbone_ends_at_a_fifth_of_its_rate",
        f"{OPTIMISER}::test_a_run_logs_the_rates_of_the_cosine",
    ),
    "DebiasPL: one mean for all classes, the network's momentum, a fixed tau": (
        "addons/test_debiaspl.py::test_the_shares_are_one_for_each_class_and_leave_uniform",
        "addons/test_debiaspl.py::test_the_shares_keep_their_own_momentum_whatever_that_of_the_network",
        "addons/test_debiaspl.py::test_the_strength_acts_on_the_label_and_on_the_loss_alike",
    ),
    "CoSSL: the student's labels, and class 0 for every image": (
        "addons/test_cossl.py::test_pseudo_labels_come_from_moving_average_and_head_not_from_the_student",
        "addons/test_cossl.py::test_features_are_enhanced_as_often_as_their_own_class_is_rare",
    ),
    "DASO: similarities of the batch before, and a soft path that is missing": (
        "addons/test_daso.py::test_semantic_labels_are_of_the_images_they_are_blended_with",
        "addons/test_daso.py::test_fixmatch_with_daso_is_its_equations_with_hard_and_with_soft_labels",
    ),
    "DARP: a mask by labels that are not refined": (
        "addons/test_darp.py::test_refined_labels_decide_the_mask_too",
    ),
    "CReST: rates by the number of a class": (
        "addons/test_crest.py::test_ranks_come_from_counts_and_not_from_the_number_of_the_class",
        "addons/test_crest.py::test_the_surest_of_each_predicted_class_join_as_the_rule_says",
    ),
    "SAW on ReMixMatch: soft targets made hard": (
        "addons/test_saw.py::test_soft_targets_are_not_turned_into_classes",
    ),
    "wrappers: layer-wise decay off": (
        f"{OPTIMISER}::test_rates_fall_layer_by_layer_whatever_heads_there_are",
        "training/test_optim.py::test_layers_have_the_rates_of_the_recipe",
    ),
    "WRN: first units convolve their raw input": (
        "models/test_wrn.py::test_a_unit_that_changes_shape_convolves_what_it_has_normalised",
        "models/test_wrn.py::test_every_parameter_is_reached_by_the_gradient",
    ),
    "CIFAR-10: statistics of ImageNet": (
        f"{HERE}::test_cifar_10_can_be_normalised_by_its_own_statistics",
        "paper/test_paper_scale.py::test_each_data_set_has_the_settings_of_its_row",
        "data/test_augment.py::test_the_statistics_of_the_recipe",
    ),
    "clip: no configuration reaches it": (
        f"{OPTIMISER}::test_clipping_is_a_setting_and_clips",
        f"{HERE}::test_a_misspelt_clip_is_refused_by_name",
    ),
    "data order: the same for every seed": (
        f"{HERE}::test_a_run_sees_its_images_in_the_order_of_its_seed",
        "data/test_loaders.py::test_seeds_change_positions_and_views",
        "data/test_loaders.py::test_usb_order_leaves_the_seed_out_of_the_positions",
    ),
    "use_epass: an option without a default": (
        f"{OPTIMISER}::test_it_runs_as_it_comes_at_the_rate_of_the_cosine",
    ),
    "Simis: a configuration without code": (f"{HERE}::test_nothing_is_offered_without_code",),
}


@pytest.mark.parametrize("test", sorted({test for tests in ROWS.values() for test in tests}))
def test_the_test_of_every_defect_is_there_and_is_not_left_out(test: str) -> None:
    file, name = test.split("::")
    found = [
        node
        for node in ast.parse((TESTS / file).read_text()).body
        if getattr(node, "name", None) == name
    ]
    assert len(found) == 1, f"{file} has no {name}: say in ROWS what covers the defect now"
    assert isinstance(found[0], ast.FunctionDef)
    marks = " ".join(ast.unparse(decorator) for decorator in found[0].decorator_list)
    assert "skip" not in marks
    assert "xfail" not in marks


def test_every_row_of_the_list_is_here() -> None:
    assert len(ROWS) == 18  # as many as section 11 has


def test_cifar_10_can_be_normalised_by_its_own_statistics() -> None:
    """The recipe keeps ImageNet's, as in USB (recipe section 5); the older ones are two settings,
    and reach the images.
    """
    own = [f"augment.mean={json.dumps(CIFAR10_MEAN)}", f"augment.std={json.dumps(CIFAR10_STD)}"]
    grey = Image.new("RGB", (32, 32), (125, 123, 114))
    for settings, statistics in (
        (own, (CIFAR10_MEAN, CIFAR10_STD)),
        ([], ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
    ):
        augment = (
            cifar10_lt(root="/data", algorithm="fixmatch", refiner="none")
            .override(settings)
            .augment
        )
        assert (augment.mean, augment.std) == statistics
        expected = (
            torch.tensor([125.0, 123.0, 114.0]) / 255 - torch.tensor(statistics[0])
        ) / torch.tensor(statistics[1])
        torch.testing.assert_close(
            plain_view(Augment(augment), grey).mean(dim=(1, 2)), expected, rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("key", ["train.clip", "train.clip_grad", "clip", "clip_grad"])
def test_a_misspelt_clip_is_refused_by_name(key: str) -> None:
    made, _ = resolve("digits", TrainOptions(refiner="none"))
    with pytest.raises(
        SettingsError, match=rf"unknown setting '{key}'; did you mean 'train\.clip_norm'\?"
    ):
        made.override([f"{key}=1.0"])


@pytest.mark.slow
def test_a_run_sees_its_images_in_the_order_of_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Batch] = []

    def write_down(
        trainer: Trainer, batch: Batch, clock: Clock, config: TrainConfig
    ) -> tuple[StepOutput, float]:
        seen.append(batch)
        return take_step(trainer, batch, clock, config)

    monkeypatch.setattr(loop, "take_step", write_down)

    def order(name: str, *settings: str) -> list[list[int]]:
        seen.clear()
        train(
            small_run("fixmatch", "none", "train.steps=3", "data.test_per_class=1", *settings),
            tmp_path / name,
        )
        return [
            torch.cat([batch.index for batch in seen]).tolist(),
            torch.cat([batch.view_index for batch in seen]).tolist(),
        ]

    first, again, other = order("first"), order("again"), order("other", "seed=1")
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]
    compat = "train.compat_usb_order=true"
    assert order("usb", compat) == order("usb other", compat, "seed=1"), (
        "as USB has it, seeds share an order"
    )


@pytest.mark.parametrize(
    ("room", "registry"),
    [(semigpc.algorithms, ALGORITHMS), (semigpc.addons, ADDONS), (semigpc.refiners, REFINERS)],
)
def test_nothing_is_offered_without_code(room: Any, registry: Any) -> None:
    """Every config in a room is that of an entry which can be built, or what several of them have
    in common.
    """
    listed = {entry.config for entry in registry.values()}
    modules = [
        importlib.import_module(f"{room.__name__}.{found.name}")
        for found in pkgutil.iter_modules(room.__path__)
    ]
    there = {
        value
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("Config")
        and inspect.isclass(value)
        and value.__module__.startswith(room.__name__)
    }
    assert listed <= there
    assert {
        config
        for config in there - listed
        if not any(issubclass(other, config) for other in listed)
    } == set()
    assert all(callable(entry.build) for entry in registry.values())
    kind = room.__name__.rpartition(".")[2].removesuffix("s")
    with pytest.raises(SettingsError, match=f"unknown {kind} 'simis'"):
        Experiment.from_plain({kind: {"name": "simis"}})
