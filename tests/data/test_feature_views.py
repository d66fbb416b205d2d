"""Cached features: those of the very views, computed once whoever asks, never stale; and what is
left after interruptions and damage.
"""

import json
import multiprocessing
import os
import resource
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from semigpc.data import (
    Augment,
    AugmentConfig,
    CachedFeatures,
    CacheKey,
    FeatureCache,
    FolderConfig,
    Images,
    ImageSet,
    Splits,
    feature_views,
)
from semigpc.data.folder import load
from semigpc.io import parts
from semigpc.io.errors import DataError
from semigpc.io.images import ArrayImages, ZipImages
from semigpc.io.parts import cache_root
from semigpc.models import SmallCNN
from tests.data.samples import plain_view, write_images

AUGMENT = AugmentConfig(image_size=8, crop_ratio=0.75)
VIEWS = 3
KEY = CacheKey(network="pixels", weights="0" * 64, augment=AUGMENT, views=VIEWS, width=3 * 8 * 8)
EACH = 2 * VIEWS + 1  # images that the network sees of one to train on
TRAINED, JUDGED = 40, 8


class Counting:
    """A network whose features are the pixels; it counts images, and fails at call ``ends_at``."""

    def __init__(
        self, ends_at: int | None = None, error: type[BaseException] = RuntimeError
    ) -> None:
        self.calls, self.seen, self.ends_at, self.error = 0, 0, ends_at, error

    def __call__(self, images: Tensor) -> Tensor:
        if self.calls == self.ends_at:
            raise self.error
        self.calls += 1
        self.seen += len(images)
        return images.flatten(1)


def noise(count: int = TRAINED + JUDGED) -> ArrayImages:
    return ArrayImages(np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8))


def splits_of(
    images: Images,
    labeled: Sequence[int] = range(12),
    unlabeled: Sequence[int] = range(TRAINED),
    test: Sequence[int] = range(TRAINED, TRAINED + JUDGED),
) -> Splits:
    """Images of a pool; the labelled ones are among the unlabelled."""
    pool = ImageSet(images, np.arange(len(images)) % 2, [str(i) for i in range(len(images))])
    drawn = pool.subset(np.array(unlabeled, dtype=np.int64))
    return Splits(
        labeled=pool.subset(np.array(labeled)),
        unlabeled=drawn.without_labels(),
        unlabeled_truth=drawn.labels,
        test=pool.subset(np.array(test)),
        class_names=("even", "odd"),
    )


def compute(
    root: Path, splits: Splits, embed: Callable[[Tensor], Tensor] | None = None, **options: Any
) -> CachedFeatures:
    return FeatureCache(KEY, root).features(splits, embed or Counting(), **{"workers": 0} | options)


def computed(root: Path, splits: Splits) -> int:
    """How many images, in whatever view, the network has to see for these splits."""
    counting = Counting()
    compute(root, splits, counting)
    return counting.seen


def everything(source: CachedFeatures, splits: Splits) -> dict[str, Tensor]:
    """What can be had of each part, its images in the order of their positions; in six draws every
    view occurs.
    """
    found = {}
    for part, image_set in splits.parts():
        order = np.argsort(image_set.positions, kind="stable")
        fetched = source.fetch(image_set, order)
        found[f"{part} plain"] = source.plain(image_set, order)
        if part in ("labeled", "unlabeled"):
            for kind in ("weak", "strong"):
                rngs = [np.random.default_rng(seed) for seed in range(6)]
                draws = [source.cut(kind, fetched, rng) for rng in rngs]
                found[f"{part} {kind}"] = torch.stack(draws, dim=1)
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(map(torch.equal, one.values(), other.values()))


def shards(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.safetensors"))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """Features of the usual splits, computed in one go."""
    splits = splits_of(noise())
    return everything(compute(tmp_path_factory.mktemp("whole"), splits), splits)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four images at a time through the network, eight in a file."""
    monkeypatch.setattr(feature_views, "CHUNK_IMAGES", 4)
    monkeypatch.setattr(parts, "PART_ROWS", 8)


# What is in it ------------------------------------------------------------------------------------


def test_plain_features_are_the_networks_own(tmp_path: Path) -> None:
    splits, network = splits_of(noise()), SmallCNN().eval()
    cache = FeatureCache(replace(KEY, width=network.num_features), tmp_path)
    with torch.no_grad():
        source = cache.features(splits, network, workers=0)
        for _, image_set in splits.parts():
            indices = np.arange(len(image_set))[::-1].copy()
            views = [plain_view(Augment(AUGMENT), image_set[int(i)]) for i in indices]
            wanted = network(torch.stack(views))
            actual = source.normalise(source.plain(image_set, indices))
            torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-4)
    assert source.width == network.num_features


def test_what_prepares_the_network_hears_how_many_views_are_missing(tmp_path: Path) -> None:
    calls: list[int] = []
    splits = splits_of(noise())
    compute(tmp_path, splits, prepare=calls.append)
    assert calls == [TRAINED * EACH + JUDGED]
    compute(tmp_path, splits, prepare=calls.append)
    assert len(calls) == 1, "nothing was missing"


def crops(image: Image.Image) -> Tensor:
    """Every crop of the reflected image, as it is and mirrored, normalised: (50, 192)."""
    padded = np.pad(np.asarray(image) / 255, ((2, 2), (2, 2), (0, 0)), mode="reflect")
    corners = [(top, left) for top in range(5) for left in range(5)]
    cut = np.array([padded[top : top + 8, left : left + 8] for top, left in corners])
    both = (np.concatenate([cut, cut[:, :, ::-1]]) - AUGMENT.mean) / AUGMENT.std
    return torch.from_numpy(both.transpose(0, 3, 1, 2).reshape(len(both), -1)).float()


def test_weak_features_are_those_of_weak_views_and_strong_ones_are_not(
    expected: dict[str, Tensor],
) -> None:
    images, found = noise(), {"weak": 0, "strong": 0}
    for kind in found:
        for position, draws in enumerate(expected[f"unlabeled {kind}"]):
            distances = (draws[:, None] - crops(images[position])).abs().amax(dim=2)  # (6, 50)
            found[kind] += int((distances.amin(dim=1) < 2e-3).sum())
    assert found["weak"] == 6 * TRAINED
    assert found["strong"] < TRAINED


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_a_image_has_several_different_views(expected: dict[str, Tensor], kind: str) -> None:
    counts = [len(draws.unique(dim=0)) for draws in expected[f"unlabeled {kind}"]]
    assert max(counts) == VIEWS
    assert np.mean(counts) > 2.5, "six draws of three nearly always meet all of them"


def test_labelled_images_have_the_features_they_have_among_the_unlabelled(
    expected: dict[str, Tensor],
) -> None:
    assert torch.equal(expected["labeled plain"], expected["unlabeled plain"][:12])
    for kind in ("weak", "strong"):
        for i, draws in enumerate(expected[f"labeled {kind}"]):
            both = torch.cat([draws, expected[f"unlabeled {kind}"][i]])
            assert len(both.unique(dim=0)) <= VIEWS


def test_views_depend_on_the_image_and_not_on_the_order(
    tmp_path: Path, expected: dict[str, Tensor]
) -> None:
    rng = np.random.default_rng(1)
    parts = (range(12), range(40), range(40, 48))
    shuffled = splits_of(noise(), *(rng.permutation(list(part)).tolist() for part in parts))
    assert same(everything(compute(tmp_path, shuffled), shuffled), expected)


def test_views_are_the_same_when_computed_in_two_calls(
    tmp_path: Path, expected: dict[str, Tensor]
) -> None:
    compute(tmp_path, splits_of(noise(), range(5), range(3, 17), range(44, 47)))
    splits = splits_of(noise())
    assert same(everything(compute(tmp_path, splits), splits), expected)


@pytest.mark.slow
def test_a_worker_changes_nothing_and_does_not_outlive_the_work(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    # enough for a worker to be worth it
    splits = splits_of(noise(90), unlabeled=range(80), test=range(80, 90))
    here, there = (compute(tmp_path / str(workers), splits, workers=workers) for workers in (0, 1))
    assert same(everything(here, splits), everything(there, splits))
    assert set(multiprocessing.active_children()) == before


def test_no_unlabelled_images_is_fine(tmp_path: Path) -> None:
    splits = splits_of(noise(), unlabeled=())
    source = compute(tmp_path, splits)
    none = source.fetch(splits.unlabeled, np.empty(0, dtype=np.int64))
    assert source.cut("weak", none, np.random.default_rng(0)).shape == (0, KEY.width)
    assert len(source.plain(splits.labeled, np.arange(12))) == 12


# What is computed ---------------------------------------------------------------------------------


def test_progress_counts_the_images_to_do(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    compute(tmp_path, splits_of(noise()), progress=lambda done, total: told.append((done, total)))
    done = [number for number, _ in told]
    assert done == sorted(set(done))
    assert told[-1] == (TRAINED + JUDGED, TRAINED + JUDGED)
    assert {total for _, total in told} == {TRAINED + JUDGED}


def test_the_second_time_nothing_is_computed_nor_told(
    tmp_path: Path, expected: dict[str, Tensor]
) -> None:
    def never(*_: object) -> Any:
        raise AssertionError("nothing is left to do")

    splits = splits_of(noise())
    compute(tmp_path, splits)
    files = {path: path.stat().st_mtime_ns for path in shards(tmp_path)}
    assert same(everything(compute(tmp_path, splits, never, progress=never), splits), expected)
    assert {path: path.stat().st_mtime_ns for path in shards(tmp_path)} == files


def test_another_split_of_the_same_images_shares_what_it_can(tmp_path: Path) -> None:
    images = noise()
    first = splits_of(images, range(6), range(30), range(30, 38))
    assert computed(tmp_path, first) == 30 * EACH + 8
    # Images 0..29 have all views and 30..37 the plain one; 33..37 now need all, 44..47 are new.
    trained = [*range(10, 30), *range(33, 38)]
    other = splits_of(images, range(20, 28), trained, [*range(8), 30, 31, *range(44, 48)])
    assert computed(tmp_path, other) == 5 * EACH + 4
    fresh = everything(compute(tmp_path / "fresh", other), other)
    assert same(everything(compute(tmp_path, other), other), fresh)


def test_a_file_that_changed_is_computed_again(tmp_path: Path) -> None:
    write_images(tmp_path / "photos", {"ant": 6, "bee": 5, "unlabeled": 8})
    cache, image = tmp_path / "cache", tmp_path / "photos" / "bee" / "2.png"

    def photos() -> Splits:
        return load(FolderConfig(root=str(tmp_path / "photos")), seed=0)

    assert computed(cache, photos()) == 19 * EACH
    assert computed(cache, photos()) == 0
    os.utime(image, ns=(0, 0))  # the same content
    assert computed(cache, photos()) == 0
    Image.new("RGB", (6, 5), "white").save(image)
    os.utime(image, ns=(0, 0))
    assert computed(cache, photos()) == EACH
    splits = photos()
    source = compute(cache, splits)
    white = source.plain(splits.labeled, np.array([8])).float()  # ant has six
    assert splits.labeled.names[8] == "bee/2.png"
    wanted = plain_view(Augment(AUGMENT), splits.labeled[8]).flatten()[None]
    torch.testing.assert_close(white, wanted, rtol=1e-3, atol=0)
    assert computed(cache, photos()) == 0


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    write_images(tmp_path / "photos", {"ant": 3, "bee": 3})
    splits = load(FolderConfig(root=str(tmp_path / "photos")), seed=0)
    (tmp_path / "photos" / "bee" / "1.png").unlink()
    with pytest.raises(DataError, match=r"^The image .*bee/1.png cannot be read: .*.*the data.$"):
        compute(tmp_path / "cache", splits)


def zip_up(archive: Path, images: Sequence[Image.Image]) -> Splits:
    names = [f"{i}.bmp" for i in range(len(images))]  # all of one size
    with zipfile.ZipFile(archive, "w") as file:
        for name, image in zip(names, images, strict=True):
            image.save(archive.parent / "one.bmp")
            file.write(archive.parent / "one.bmp", name)
    return splits_of(ZipImages(archive, names), range(4), range(10), range(10, 12))


def test_a_member_of_a_zip_file_that_changed_is_computed_again(tmp_path: Path) -> None:
    array, cache = noise(12), tmp_path / "cache"
    images = [array[i] for i in range(12)]
    assert computed(cache, zip_up(tmp_path / "a.zip", images)) == 10 * EACH + 2
    for name in ("a.zip", "moved.zip"):  # written again, the same images inside
        assert computed(cache, zip_up(tmp_path / name, images)) == 0
    images[7] = images[7].transpose(Image.Transpose.ROTATE_90)
    assert computed(cache, zip_up(tmp_path / "a.zip", images)) == EACH


def test_a_zip_file_that_is_gone_is_named(tmp_path: Path) -> None:
    splits = zip_up(tmp_path / "a.zip", [noise(12)[i] for i in range(12)])
    (tmp_path / "a.zip").unlink()
    with pytest.raises(DataError, match=r"The image .*a.zip/0.bmp cannot be read: .*restore it"):
        compute(tmp_path / "cache", splits)


def test_pixels_of_an_array_that_changed_are_computed_again(tmp_path: Path) -> None:
    images = noise()
    compute(tmp_path, splits_of(images))
    images.pixels[3, 0, 0, 0] ^= 1
    images.pixels[44, 7, 7, 2] ^= 1
    assert computed(tmp_path, splits_of(images)) == EACH + 1


@pytest.mark.parametrize(
    ("what", "value"),
    [
        *[("weights", "1" * 64), ("views", 4), ("network", "other"), ("width", 3)],
        *[("image_size", 9), ("crop_ratio", 0.8), ("flip", False), ("operations", 2)],
        *[("mean", (0.5, 0.5, 0.5)), ("std", (0.5, 0.5, 0.5)), ("style", "resize")],
    ],
)
def test_whatever_features_depend_on_has_a_folder_of_its_own(
    tmp_path: Path, what: str, value: Any
) -> None:
    change: dict[str, Any] = {what: value}
    if not hasattr(KEY, what):
        change = {"augment": replace(AUGMENT, **change)}
    assert FeatureCache(replace(KEY, **change), tmp_path).path != FeatureCache(KEY, tmp_path).path
    assert FeatureCache(replace(KEY), tmp_path).path == FeatureCache(KEY, tmp_path).path


def test_the_folder_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for value, expected in (
        ("/fast/disk", "/fast/disk"),
        ("~/x", "/home/somebody/x"),
        ("", "/home/somebody/.cache/semigpc"),
    ):
        monkeypatch.setenv("SEMIGPC_CACHE", value)
        assert cache_root() == Path(expected)


# Interruptions ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize(("ends_at", "kept"), [(0, 0), (2, 8), (5, 16), (11, 40)])
def test_what_was_finished_is_kept(
    tmp_path: Path, expected: dict[str, Tensor], ends_at: int, kept: int, error: type[BaseException]
) -> None:
    splits = splits_of(noise())
    with pytest.raises(error):
        compute(tmp_path, splits, Counting(ends_at, error))
    rest, told = Counting(), []
    source = compute(tmp_path, splits, rest, progress=lambda _, total: told.append(total))
    assert rest.seen == (TRAINED - kept) * EACH + JUDGED
    assert set(told) == {TRAINED - kept + JUDGED}
    assert same(everything(source, splits), expected)


@pytest.mark.parametrize("left", [(), (".0123456789ab.part",)])
def test_a_folder_in_which_nothing_was_finished_is_used(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    folder = tmp_path / KEY.folder_name
    folder.mkdir()
    for name in left:
        (folder / name).write_text("{")
    assert computed(tmp_path, splits_of(noise())) == TRAINED * EACH + JUDGED
    assert json.loads((folder / "key.json").read_text())["views"] == VIEWS


# Bad input ----------------------------------------------------------------------------------------


def test_features_that_were_made_differently_are_an_error(tmp_path: Path) -> None:
    compute(tmp_path, splits_of(noise()))
    file = tmp_path / KEY.folder_name / "key.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"views": 5}))
    with pytest.raises(DataError, match=r"views is 5 there and 3 here.*SEMIGPC_CACHE"):
        FeatureCache(KEY, tmp_path)


@pytest.mark.usefixtures("small_shards")
def test_deleting_a_damaged_part_has_its_features_computed_again(
    tmp_path: Path, expected: dict[str, Tensor]
) -> None:
    splits = splits_of(noise())
    compute(tmp_path, splits)
    broken = next(path for path in shards(tmp_path) if path.name.startswith("views"))
    broken.write_bytes(broken.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"^{broken} .*Delete that file"):
        compute(tmp_path, splits)
    broken.unlink()
    counting = Counting()
    assert same(everything(compute(tmp_path, splits, counting), splits), expected)
    assert counting.seen == 8 * EACH


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])  # the last is too large for 16 bits
def test_features_that_are_no_numbers_are_refused_and_not_kept(
    tmp_path: Path, value: float
) -> None:
    splits = splits_of(noise())
    with pytest.raises(DataError, match=r"^pixels returns.*infinite in 16 bits. Check its weights"):
        compute(tmp_path, splits, lambda images: torch.full((len(images), KEY.width), value))
    assert not shards(tmp_path)
    assert computed(tmp_path, splits) == TRAINED * EACH + JUDGED


@contextmanager
def files_no_larger_than(limit: int) -> Iterator[None]:
    """A disk that is full for anything larger: the system itself refuses to write on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limit", [10, 5000])  # not even the key; or the key and no features
def test_a_full_disk_is_told_and_leaves_nothing_half_done(
    tmp_path: Path, expected: dict[str, Tensor], limit: int
) -> None:
    splits = splits_of(noise())
    message = rf"^Features cannot be written: {tmp_path}/\S+ could not be .*Or set SEMIGPC_CACHE.$"
    with files_no_larger_than(limit), pytest.raises(DataError, match=message):
        compute(tmp_path, splits)
    assert not [path for path in tmp_path.glob("*/*") if path.name != "key.json"]
    assert same(everything(compute(tmp_path, splits), splits), expected)


def test_a_place_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"^Features cannot be written: .*set SEMIGPC_CACHE.$"):
        compute(tmp_path / "file", splits_of(noise()))
