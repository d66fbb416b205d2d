"""Cached features: those of the very views, computed once whoever asks, never stale."""

import multiprocessing
import os
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from semigpc.data import Augment, FeatureCache, FolderConfig, Splits, cache_root
from semigpc.data.folder import load
from semigpc.io.errors import DataError
from semigpc.io.images import FileImages, ZipImages
from semigpc.models import SmallCNN
from tests.data.feature_samples import (
    AUGMENT,
    EACH,
    JUDGED,
    KEY,
    TRAINED,
    VIEWS,
    compute,
    computed,
    everything,
    noise,
    same,
    shards,
    splits_of,
)
from tests.data.samples import plain_view, write_images

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
    cut = np.array(
        [padded[top : top + 8, left : left + 8] for top in range(5) for left in range(5)]
    )
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


def test_only_the_sets_of_the_split_can_be_asked_for(tmp_path: Path) -> None:
    splits = splits_of(noise())
    source = compute(tmp_path, splits)
    with pytest.raises(ValueError, match=r"cached for the sets.*split; this one is not among them"):
        source.fetch(splits_of(noise()).labeled, np.arange(3))


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
    os.utime(image, ns=(0, 0))  # perhaps another image of the same size
    assert computed(cache, photos()) == EACH
    Image.new("RGB", (6, 5), "white").save(image)
    assert computed(cache, photos()) == EACH
    splits = photos()
    source = compute(cache, splits)
    white = source.plain(splits.labeled, np.array([8])).float()  # ant has six
    assert splits.labeled.names[8] == "bee/2.png"
    wanted = plain_view(Augment(AUGMENT), splits.labeled[8]).flatten()[None]
    torch.testing.assert_close(white, wanted, rtol=1e-3, atol=0)
    assert computed(cache, photos()) == 0


def test_the_same_path_in_another_folder_is_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        Path("0.bmp").write_bytes(b"as long")
        os.utime("0.bmp", ns=(0, 0))
        found.append(FileImages([Path("0.bmp")]).fingerprint(0))
    assert found[0] != found[1]


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    write_images(tmp_path / "photos", {"ant": 3, "bee": 3})
    splits = load(FolderConfig(root=str(tmp_path / "photos")), seed=0)
    (tmp_path / "photos" / "bee" / "1.png").unlink()
    with pytest.raises(DataError, match=r"^The image .*bee/1.png cannot be found: .*.*the data.$"):
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
