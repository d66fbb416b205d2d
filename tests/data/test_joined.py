"""Images that join the labels, and labelled draws by class."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from semigpc.addons import BalancedSamplingConfig
from semigpc.data import (
    Augment,
    AugmentConfig,
    BatchStream,
    CachedFeatures,
    Splits,
    splits_from_arrays,
)
from semigpc.data.feature_views import join
from semigpc.data.loaders import drawn_order

LABELS = np.array([0] * 12 + [1] * 3 + [2] * 1)


def some_splits(unlabeled: int = 5) -> Splits:
    """Images whose colour says which one they are."""
    colours = np.arange(len(LABELS) + unlabeled, dtype=np.uint8)
    images = np.broadcast_to(colours[:, None, None, None], (len(colours), 4, 4, 3)).copy()
    return splits_from_arrays(images[: len(LABELS)], LABELS, images[len(LABELS) :])


def colour(image: Image.Image) -> int:
    return int(np.asarray(image)[0, 0, 0])


def test_those_that_join_stand_after_the_given_labels_with_their_own() -> None:
    splits = some_splits()
    larger, _ = join(splits, np.array([-1, 2, -1, 1, -1]), Augment(AugmentConfig(image_size=4)))
    assert larger.labeled.labels.tolist() == [*LABELS.tolist(), 2, 1]
    assert [colour(larger.labeled[i]) for i in range(18)] == [*range(16), 17, 19]
    assert larger.class_counts.tolist() == [12, 4, 2]
    assert len(larger.unlabeled) == 5, "they stay among the unlabelled ones"
    assert len(splits.labeled) == 16, "and the splits they came from do not change"


def test_cached_features_of_the_larger_set_are_those_of_its_parts() -> None:
    splits = some_splits()
    plain = torch.arange(21.0).unsqueeze(1).expand(21, 3)
    views = plain.unsqueeze(1).expand(21, 2, 3)
    sets = [(splits.labeled, np.arange(16)), (splits.unlabeled, np.arange(16, 21))]
    source = CachedFeatures(weak=views, strong=views, plain=plain, sets=sets)
    larger, views_of = join(splits, np.array([0, -1, -1, -1, 2]), source)
    assert views_of.plain(larger.labeled, np.array([0, 16, 17]))[:, 0].tolist() == [0, 16, 20]
    assert views_of.plain(larger.unlabeled, np.array([3]))[:, 0].tolist() == [19]
    with pytest.raises(ValueError, match="not among them"):
        source.fetch(larger.labeled, np.array([0]))


def test_one_entry_is_wanted_for_each_unlabelled_image() -> None:
    with pytest.raises(ValueError, match="one entry for each of the 5 unlabelled images"):
        join(some_splits(), np.array([1]), Augment(AugmentConfig(image_size=4)))


# Draws by class -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("power", "shares"),
    [(0.0, [1 / 3] * 3), (0.5, [0.559, 0.280, 0.161]), (1.0, [0.75, 0.1875, 0.0625])],
)
def test_classes_are_drawn_by_a_power_of_their_counts(power: float, shares: list[float]) -> None:
    order = drawn_order(LABELS, 20_000, power, seed=0, epoch=0, stream=0)
    found = np.bincount(LABELS[order]) / len(order)
    assert found.tolist() == pytest.approx(shares, abs=0.015)


def test_within_a_class_every_image_comes_once_before_any_comes_twice() -> None:
    order = drawn_order(LABELS, 60, 0.0, seed=1, epoch=2, stream=0)
    seen = order[LABELS[order] == 0]
    assert len(seen) >= 12
    assert sorted(seen[:12]) == list(range(12))


def test_a_class_without_images_is_never_drawn() -> None:
    order = drawn_order(np.array([0, 0, 2]), 50, 0.0, seed=0, epoch=0, stream=0)
    assert set(order.tolist()) == {0, 1, 2}


def batches(power: BalancedSamplingConfig | None, *, balanced: bool = False) -> list[torch.Tensor]:
    sizes: dict[str, Any] = {"labeled_batch": 6, "unlabeled_batch": 2, "views": ("weak",)}
    sizes |= {"epoch_steps": 10, "total_steps": 40, "seed": 0, "balanced": balanced}
    sizes |= {"power": None if power is None else power.sampling_power}
    stream = BatchStream(some_splits(), Augment(AugmentConfig(image_size=4)), **sizes)
    found = list(stream.batches(first_step=0, workers=0))
    if balanced:
        assert all(batch.balanced is not None and len(batch.balanced.y) == 6 for batch in found)
        return [batch.balanced.y for batch in found if batch.balanced is not None]
    return [torch.cat([batch.y, batch.index, batch.view_index]) for batch in found]


def test_a_power_of_one_is_the_plain_order_bit_for_bit() -> None:
    for one, other in zip(batches(None), batches(BalancedSamplingConfig(power=1.0)), strict=True):
        assert torch.equal(one, other)


def test_balanced_sampling_reaches_the_loader_and_leaves_unlabelled_images_alone() -> None:
    plain, even = batches(None), batches(BalancedSamplingConfig())
    assert float((torch.cat([rows[:6] for rows in even]) == 2).double().mean()) > 0.25 > 0.0625
    assert all(torch.equal(one[-2:], other[-2:]) for one, other in zip(plain, even, strict=True))


def test_a_balanced_part_comes_beside_the_batch_where_it_is_asked_for() -> None:
    labels = torch.cat(batches(None, balanced=True))
    shares = torch.bincount(labels) / len(labels)
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.1)
