"""Evaluation: every image once, in order, decoded once, by workers that end with the loader."""

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semigpc.data import (
    Augment,
    AugmentConfig,
    BatchStream,
    CachedFeatures,
    EvaluationLoader,
    ImageSet,
    Splits,
)
from semigpc.data.loaders import InOrder, worker_count
from semigpc.io import images as decoding
from semigpc.io.errors import ImageError
from semigpc.io.images import ArrayImages, FileImages
from tests.data.samples import STREAM, plain_view, random_image, same_batch, small_splits

CPU = torch.device("cpu")
AUGMENT = Augment(AugmentConfig(image_size=14, style="resize"))  # squares of 16


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Eleven of them."""
    paths = [tmp_path / f"{i}.jpg" for i in range(11)]
    for i, path in enumerate(paths):
        random_image(30 + i, 24, np.random.default_rng(i)).save(path)
    return paths


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were decoded in this process."""
    read, seen = decoding.read_image, list[Path]()

    def counted(path: Path, *arguments: Any, **options: Any) -> Any:
        seen.append(path)
        return read(path, *arguments, **options)

    monkeypatch.setattr(decoding, "read_image", counted)
    return seen


def splits_of(paths: list[Path], **options: int) -> Splits:
    names = [path.name for path in paths]
    pool = ImageSet(FileImages(paths, **options), np.arange(len(paths)) % 2, names)
    return Splits(
        labeled=pool.subset(np.arange(4)),
        unlabeled=pool.subset(np.arange(4, 7)).without_labels(),
        unlabeled_truth=np.full(3, -1),
        test=pool.subset(np.arange(2, 11)),
        class_names=("even", "odd"),
    )


def held_out(splits: Splits) -> ImageSet:
    assert splits.test is not None
    return splits.test


def loader_of(*sets: ImageSet, workers: int = 0, batch_size: int = 4) -> EvaluationLoader:
    return EvaluationLoader(sets, AUGMENT, batch_size=batch_size, workers=workers, device=CPU)


def images_of(loader: EvaluationLoader, images: ImageSet) -> torch.Tensor:
    return torch.cat([batch.images for batch in loader.batches(images)])


def test_every_image_comes_once_in_order_or_those_asked_for(photos: list[Path]) -> None:
    splits = splits_of(photos)
    test = held_out(splits)
    loader = loader_of(splits.labeled, test)
    for _ in range(2):
        seen = list(loader.batches(test))
        assert [len(batch.images) for batch in seen] == [4, 4, 1]
        assert torch.cat([batch.positions for batch in seen]).tolist() == list(range(9))
        assert torch.cat([batch.labels for batch in seen]).tolist() == test.labels.tolist()
        assert torch.equal(seen[1].images[2], plain_view(AUGMENT, test[6]))
    (few,) = loader.batches(splits.labeled, np.array([0, 3]))
    assert few.positions.tolist() == [0, 3]
    assert torch.equal(few.images[1], plain_view(AUGMENT, splits.labeled[3]))


def test_images_are_decoded_once_for_all_passes_and_loaders(
    photos: list[Path], decoded: list[Path]
) -> None:
    test = held_out(splits_of(photos))
    passes = iter(loader_of(test).batches(test))
    first = next(passes)  # and left there
    assert len(decoded) == 4
    again = images_of(loader_of(test), test)
    assert sorted(decoded) == sorted(photos[2:])
    assert torch.equal(again[:4], first.images)
    assert torch.equal(again, images_of(loader_of(test), test))
    assert len(decoded) == 9


def test_no_more_is_kept_than_the_limit(photos: list[Path], decoded: list[Path]) -> None:
    test = held_out(splits_of(photos, cache_bytes=5 * 14 * 14 * 3 + 20))
    loader = loader_of(test)
    list(loader.batches(test))
    assert len(decoded) == 9
    list(loader.batches(test))
    assert decoded[9:] == photos[7:], "five of nine are kept"
    nothing = held_out(splits_of(photos, cache_bytes=0))
    for _ in range(2):
        list(loader_of(nothing).batches(nothing))
    assert len(decoded) == 13 + 18


def test_another_size_is_not_mistaken_for_it(photos: list[Path]) -> None:
    test = held_out(splits_of(photos))
    larger = Augment(AugmentConfig(image_size=20, style="resize"))
    list(loader_of(test).batches(test))
    views = EvaluationLoader([test], larger, batch_size=9, workers=0, device=CPU)
    assert torch.equal(next(views.batches(test)).images[3], plain_view(larger, test[3]))


def test_training_decodes_every_image_once_too_and_views_are_the_same(
    photos: list[Path], decoded: list[Path]
) -> None:
    kept, fresh = (
        BatchStream(splits_of(photos, **limit), AUGMENT, **STREAM, total_steps=6)
        for limit in ({}, {"cache_bytes": 0})
    )
    assert all(same_batch(kept[step], fresh[step]) for step in range(6))
    assert len(decoded) == 7 + 6 * (6 + 9)


@pytest.mark.slow
def test_two_workers_change_nothing_share_what_they_decode_and_end(
    photos: list[Path], decoded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semigpc.data.loaders.WORKER_IMAGES", 0)
    before = set(multiprocessing.active_children())
    splits = splits_of(photos)
    test = held_out(splits)
    another = held_out(splits_of(photos))
    expected = images_of(loader_of(another), another)
    decoded.clear()
    with loader_of(splits.labeled, test, workers=2) as loader:
        for _ in range(2):
            assert torch.equal(images_of(loader, test), expected)
        started = set(multiprocessing.active_children()) - before
        assert len(started) == 2
        next(loader.batches(splits.labeled))  # and left there: the next pass is whole again
        assert torch.equal(images_of(loader, test), expected)
        assert set(multiprocessing.active_children()) - before == started
    assert set(multiprocessing.active_children()) == before
    assert torch.equal(images_of(loader_of(test), test), expected)
    assert decoded == [], "this process reads what the workers wrote"
    photos[5].write_bytes(b"no image")
    unlabeled = splits.unlabeled
    with pytest.raises(ImageError, match=r"5\.jpg"), loader_of(unlabeled, workers=1) as loader:
        list(loader.batches(unlabeled))
    assert set(multiprocessing.active_children()) == before


def test_workers_are_as_many_as_are_worth_it(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, arrays = FileImages(photos), ArrayImages(np.zeros((2, 64, 64, 3), np.uint8))
    large, tiny = (Augment(AugmentConfig(image_size=size)) for size in (33, 32))
    splits = small_splits()
    one, sets = torch.zeros(1), [(splits.labeled, np.arange(1))]
    features = CachedFeatures(weak=one, strong=one, plain=one, sets=sets)
    for cores, expected in ((1, 0), (2, 1), (6, 5), (64, 8)):
        monkeypatch.setattr("semigpc.data.loaders.cores", lambda cores=cores: cores)
        assert worker_count(None, files, large) == expected
        assert worker_count(3, arrays, tiny) == 3
        assert worker_count(None, files, features) == 0
        for images, augment in ((files, tiny), (arrays, large)):
            assert worker_count(None, images, augment) == 0
            on_gpu = worker_count(None, images, augment, device=torch.device("cuda"))
            assert on_gpu == min(2, expected)
    assert worker_count(None, files, large, processes=16) == 3
    assert worker_count(None, files, large, processes=100) == 0


def test_memory_is_pinned_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for available in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        stream = BatchStream(small_splits(), AUGMENT, **STREAM)
        assert InOrder(stream, range(1), workers=0, prefetch=1)._loader.pin_memory is available
