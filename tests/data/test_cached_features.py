"""Features in place of images: which view is drawn, and batches that follow from seed and step."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from semigpc.data import (
    Augment,
    AugmentConfig,
    BatchStream,
    CachedFeatures,
    EvaluationLoader,
    Splits,
)
from semigpc.types import Batch
from tests.data.samples import STREAM, same_batch, small_splits

VIEWS, LABELED, UNLABELED = 4, 20, 30
KINDS = {"weak": 1.0, "strong": 2.0}
PLAIN = 0.0


def table(kind: float, views: int) -> Tensor:
    """Features that say what they are: the kind, the row of the image, which of its views."""
    images = torch.arange(LABELED + UNLABELED)
    rows, numbers = torch.meshgrid(images, torch.arange(views), indexing="ij")
    return torch.stack([torch.full_like(rows, int(kind)), rows, numbers], dim=2).half()


def features(splits: Splits, views: int = VIEWS) -> CachedFeatures:
    """Rows 0..19 are the labelled images backwards, then the unlabelled and the test images."""
    assert splits.test is not None
    judged = torch.full((len(splits.test), 3), 7.0).half()
    judged[:, 1] = torch.arange(50, 50 + len(splits.test))
    return CachedFeatures(
        weak=table(KINDS["weak"], views),
        strong=table(KINDS["strong"], views),
        plain=torch.cat([table(PLAIN, 1)[:, 0], judged]),
        sets=[
            (splits.labeled, np.arange(LABELED)[::-1]),
            (splits.unlabeled, np.arange(LABELED, LABELED + UNLABELED)),
            (splits.test, np.arange(50, 50 + len(splits.test))),
        ],
    )


SPLITS = small_splits(LABELED, UNLABELED)
SOURCE = features(SPLITS)
SOME = np.array([4, 0, 29, 4, 11])


def drawn(
    source: CachedFeatures, name: str, seed: int, indices: Any = SOME, other: str | None = None
) -> Tensor:
    """View ``name`` of unlabelled images, after view ``other`` of them was drawn."""
    fetched, rng = source.fetch(SPLITS.unlabeled, indices), np.random.default_rng(seed)
    if other is not None:
        source.cut(other, fetched, rng)
    return source.cut(name, fetched, rng)


@pytest.mark.parametrize(("name", "kind"), [*KINDS.items(), ("strong2", KINDS["strong"])])
def test_a_view_is_one_of_those_that_the_image_has(name: str, kind: float) -> None:
    for seed in range(5):
        view = drawn(SOURCE, name, seed)
        assert view.dtype == torch.float16
        assert SOURCE.normalise(view).dtype == torch.float32
        assert view.shape == (5, 3)
        assert view[:, 0].tolist() == [kind] * 5
        assert view[:, 1].tolist() == [24, 20, 49, 24, 31]


@pytest.mark.parametrize("name", ["weak", "strong", "strong2"])
def test_every_view_is_drawn_about_as_often(name: str) -> None:
    many = np.zeros(4000, dtype=np.int64)
    counts = drawn(SOURCE, name, 0, many)[:, 2].long().bincount(minlength=VIEWS)
    assert counts.min() > 850
    assert counts.sum() == 4000


def test_images_of_a_batch_and_views_of_a_image_are_drawn_apart() -> None:
    fetched, rng = SOURCE.fetch(SPLITS.unlabeled, np.arange(UNLABELED)), np.random.default_rng(0)
    first, second = (SOURCE.cut("weak", fetched, rng)[:, 2] for _ in range(2))
    assert len(first.unique()) == VIEWS
    assert not torch.equal(first, second)


@pytest.mark.parametrize("views", [2, 3, 4])
def test_the_second_strong_view_is_another_one_and_any_of_the_others(views: int) -> None:
    source = features(SPLITS, views)
    fetched = source.fetch(SPLITS.unlabeled, np.zeros(3000, dtype=np.int64))
    rng = np.random.default_rng(0)
    names = ("strong", "strong2")
    strong, strong2 = (source.cut(name, fetched, rng)[:, 2].long() for name in names)
    pairs = (strong * views + strong2).bincount(minlength=views * views).reshape(views, views)
    assert pairs.diagonal().tolist() == [0] * views
    others = pairs[~torch.eye(views, dtype=torch.bool)]
    assert others.min() > 0.8 * 3000 / len(others)


def test_with_a_single_view_the_second_strong_one_is_the_first() -> None:
    source = features(SPLITS, 1)
    assert torch.equal(drawn(source, "strong2", 0, other="strong"), drawn(source, "strong", 0))


def test_equal_generators_draw_equal_views() -> None:
    for name in ("weak", "strong", "strong2"):
        first, again = (drawn(SOURCE, name, 5, other="strong") for _ in range(2))
        assert torch.equal(first, again)
        views = {tuple(drawn(SOURCE, name, seed)[:, 2].tolist()) for seed in range(10)}
        assert len(views) > 5


def test_the_plain_view_is_the_images_own() -> None:
    plain = SOURCE.plain(SPLITS.labeled, np.array([0, 19, 3]))
    assert plain.tolist() == [[PLAIN, 19, 0], [PLAIN, 0, 0], [PLAIN, 16, 0]]
    assert SOURCE.width == 3


def test_other_views_and_other_sets_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown view 'medium'; known: weak, strong, strong2"):
        drawn(SOURCE, "medium", 0)
    others = small_splits(LABELED, UNLABELED)
    for stranger in (others.labeled, SPLITS.labeled.subset(np.arange(LABELED))):
        with pytest.raises(ValueError, match=r"features are cached for the.*one is not among them"):
            SOURCE.fetch(stranger, np.array([0]))


# Batches of them ----------------------------------------------------------------------------------


def batches(workers: int = 0, first_step: int = 0, **changes: Any) -> list[Batch]:
    stream = BatchStream(SPLITS, SOURCE, **STREAM | changes, total_steps=12)
    return list(stream.batches(first_step=first_step, workers=workers))


def test_a_batch_has_the_images_that_it_would_have_without_a_cache() -> None:
    live = BatchStream(SPLITS, Augment(AugmentConfig(image_size=8)), **STREAM)
    for step, batch in enumerate(batches()):
        assert torch.equal(batch.index, live[step].index)
        assert torch.equal(batch.view_index, live[step].view_index)
        assert torch.equal(batch.y, live[step].y)
        assert torch.equal(batch.x[:, 1], 19.0 - batch.index)
        assert batch.x[:, 0].tolist() == [KINDS["weak"]] * 6
        assert list(batch.views) == ["weak", "strong", "strong2"]
        for view in batch.views.values():
            assert SOURCE.normalise(view).dtype == torch.float32
            assert torch.equal(view[:, 1], 20.0 + batch.view_index)
        assert (batch.views["strong"] != batch.views["strong2"]).any(dim=1).all()


def test_batches_are_a_function_of_seed_and_step() -> None:
    expected = batches()
    assert all(map(same_batch, batches(first_step=5), expected[5:]))
    stream = BatchStream(SPLITS, features(SPLITS), **STREAM)
    assert all(same_batch(stream[step], expected[step]) for step in (9, 2, 9, 0))
    assert not torch.equal(batches(seed=4)[0].x, expected[0].x)
    draws = {tuple(batch.x[:, 2].tolist()) for batch in expected}
    assert len(draws) > 10, "views are drawn anew at every step"


@pytest.mark.slow
def test_a_worker_changes_nothing() -> None:
    assert all(map(same_batch, batches(workers=1), batches()))


def test_evaluation_sees_the_plain_features_in_order() -> None:
    assert SPLITS.test is not None
    cpu = torch.device("cpu")
    loader = EvaluationLoader([SPLITS.test], SOURCE, batch_size=3, workers=0, device=cpu)
    seen = list(loader.batches(SPLITS.test))
    assert {batch.images.dtype for batch in seen} == {torch.float32}
    images = torch.cat([batch.images for batch in seen])
    assert images.tolist() == [[7, row, 7] for row in range(50, 57)]
    assert torch.cat([batch.labels for batch in seen]).tolist() == SPLITS.test.labels.tolist()
