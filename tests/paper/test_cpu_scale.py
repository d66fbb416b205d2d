"""The paper's experiments cut for a CPU: what changes, and what does not."""

from typing import Any, Literal

import pytest

from semigpc.algorithms import ALGORITHMS
from semigpc.data import CifarConfig
from semigpc.paper.fgvc import FGVCConfig
from semigpc.paper.recipes import cifar10_lt, fgvc, shorten, shrink
from semigpc.refiners import GPConfig
from semigpc.training import Experiment
from semigpc.training.presets import digits, on_cached_features

Scale = Literal["live", "cached"]
SCALES: tuple[Scale, Scale] = ("live", "cached")
BOTH = pytest.mark.parametrize("features", SCALES)


def paper(setting: Any = "A", **options: Any) -> Experiment:
    return cifar10_lt(root="data", setting=setting, imbalance_ratio=100, **options)


@BOTH
def test_setting_a_keeps_the_ratio_and_the_share_of_labels_with_tails_2_5_times_shorter(
    features: Scale,
) -> None:
    data = shrink(paper("A"), features).data
    assert isinstance(data, CifarConfig)
    labeled, unlabeled = data.split.counts(10)
    assert labeled == [600, 359, 215, 129, 77, 46, 27, 16, 10, 6]
    assert unlabeled == [2000, 1198, 718, 430, 258, 154, 92, 55, 33, 20]
    assert data.split.overlap == "nested"


@BOTH
@pytest.mark.parametrize("labels", [4, 25, 100])
def test_setting_b_keeps_its_labels_and_leaves_them_out_of_the_unlabelled_images(
    features: Scale, labels: int
) -> None:
    split = shrink(paper("B", labels_per_class=labels), features).data.split
    assert split.counts(10)[0] == [labels] * 10
    assert split.counts(10)[1][-1] == 20
    assert split.overlap == "disjoint"


@BOTH
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_can_be_cut_and_written_down(features: Scale, algorithm: str) -> None:
    small = shrink(paper(algorithm=algorithm), features)
    assert small.algorithm_name == algorithm
    assert small.train.steps <= 2000
    assert Experiment.from_plain(small.to_plain()) == small
    assert (small.frozen is not None) == (features == "cached")


@BOTH
def test_semigpc_has_the_defaults_but_for_the_size_of_its_buffer(features: Scale) -> None:
    for setting in ("A", "B"):
        refiner = shrink(paper(setting), features).refiner
        assert isinstance(refiner, GPConfig)
        size, warmup = refiner.buffer_size, refiner.warmup_steps
        assert refiner == GPConfig(buffer_size=size, warmup_steps=warmup)
        assert size <= 1024
        assert warmup <= 200


def test_features_are_not_turned_but_images_are() -> None:
    live, cached = (shrink(paper(algorithm="remixmatch"), at).algorithm for at in SCALES)
    assert (live.rotation_weight, cached.rotation_weight) == (0.5, 0.0)


@BOTH
def test_photographs_keep_their_split_and_their_way_of_being_cropped(features: Scale) -> None:
    full = fgvc(root="data", benchmark="semi_aves")
    small = shrink(full, features)
    assert isinstance(small.data, FGVCConfig)
    assert small.data == full.data
    assert small.augment.style == "resize"
    assert small.augment.image_size < full.augment.image_size


def test_a_frozen_network_sees_images_normalised_as_it_was_trained() -> None:
    augment = on_cached_features(digits()).augment
    assert augment.mean == augment.std == (0.5, 0.5, 0.5)  # EfficientNet-Lite0
    assert not augment.flip  # digits are never mirrored


@BOTH
def test_the_refiner_acts_in_every_generation_of_an_add_on(features: Scale) -> None:
    full = cifar10_lt(root="data", imbalance_ratio=100, addon="crest")
    small = shrink(full, features)
    for experiment in (small, shorten(full, 60), shorten(small, 12)):
        assert experiment.addon.generations == 6
        assert experiment.refiner.warmup_steps <= experiment.train.steps // 12
