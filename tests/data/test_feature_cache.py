"""Cached features: those of the very views, computed once whoever asks, whole after any interruption, never stale."""

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
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
from safetensors.torch import save, save_file
from torch import Tensor

from semigpc.data import (
    Augment,
    AugmentConfig,
    CachedFeatures,
    CacheKey,
    DataError,
    FeatureCache,
    FolderConfig,
    Images,
    ImageSet,
    Splits,
    cache_root,
    feature_cache,
    view_chunks,
    weights_hash,
)
from semigpc.data.folder import load
from semigpc.data.pictures import ArrayImages, FileImages
from semigpc.data.zipped import ZipImages
from semigpc.models import SmallCNN
from tests.data.samples import write_pictures

AUGMENT = AugmentConfig(image_size=8, crop_ratio=0.75)
VIEWS = 3
KEY = CacheKey(network="pixels", weights="0" * 64, augment=AUGMENT, views=VIEWS, width=3 * 8 * 8)
EACH = 2 * VIEWS + 1  # pictures that the network sees of one to train on
TRAINED, JUDGED = 40, 8


class Counting:
    """A network whose features are the pixels, and which counts what it is shown; the ``ends_at``-th call fails."""

    def __init__(self, ends_at: int | None = None, error: type[BaseException] = RuntimeError) -> None:
        self.calls, self.seen, self.ends_at, self.error = 0, 0, ends_at, error

    def __call__(self, pictures: Tensor) -> Tensor:
        if self.calls == self.ends_at:
            raise self.error
        self.calls += 1
        self.seen += len(pictures)
        return pictures.flatten(1)


def noise(count: int = TRAINED + JUDGED) -> ArrayImages:
    return ArrayImages(np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8))


def splits_of(
    images: Images,
    labeled: Sequence[int] = range(12),
    unlabeled: Sequence[int] = range(TRAINED),
    test: Sequence[int] = range(TRAINED, TRAINED + JUDGED),
) -> Splits:
    """Pictures of a pool; the labelled ones are among the unlabelled."""
    pool = ImageSet(images, np.arange(len(images)) % 2, [str(i) for i in range(len(images))])
    drawn = pool.subset(np.array(unlabeled, dtype=np.int64))
    return Splits(
        labeled=pool.subset(np.array(labeled)),
        unlabeled=drawn.without_labels(),
        unlabeled_truth=drawn.labels,
        test=pool.subset(np.array(test)),
        class_names=("even", "odd"),
    )


def compute(root: Path, splits: Splits, embed: Callable[[Tensor], Tensor] | None = None, **options: Any) -> CachedFeatures:
    return FeatureCache(KEY, root).features(splits, embed or Counting(), **{"workers": 0} | options)


def computed(root: Path, splits: Splits) -> int:
    """How many pictures, in whatever view, the network has to see for these splits."""
    counting = Counting()
    compute(root, splits, counting)
    return counting.seen


def everything(source: CachedFeatures, splits: Splits) -> dict[str, Tensor]:
    """What can be had of each part, its pictures in the order of their positions; in six draws every view occurs."""
    found = {}
    for part, image_set in splits.parts():
        order = np.argsort(image_set.positions, kind="stable")
        fetched = source.fetch(image_set, order)
        found[f"{part} plain"] = source.plain(fetched)
        if part in CachedFeatures.TRAINING:
            for kind in ("weak", "strong"):
                draws = [source.cut(kind, fetched, np.random.default_rng(seed)) for seed in range(6)]
                found[f"{part} {kind}"] = torch.stack(draws, dim=1)
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(values, other[name]) for name, values in one.items())


def shards(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.safetensors"))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """Features of the usual splits, computed in one go."""
    splits = splits_of(noise())
    return everything(compute(tmp_path_factory.mktemp("whole"), splits), splits)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four pictures at a time through the network, eight in a file."""
    monkeypatch.setattr(view_chunks, "PICTURES", 4)
    monkeypatch.setattr(feature_cache, "SHARD", 8)


# What is in it -----------------------------------------------------------------------------------------------------------


def test_plain_features_are_the_networks_own(tmp_path: Path) -> None:
    splits, network = splits_of(noise()), SmallCNN().eval()
    cache = FeatureCache(replace(KEY, width=network.num_features), tmp_path)
    with torch.no_grad():
        source = cache.features(splits, network, workers=0)
        for _, image_set in splits.parts():
            indices = np.arange(len(image_set))[::-1].copy()
            wanted = network(Augment(AUGMENT).plain([image_set[int(i)] for i in indices]))
            torch.testing.assert_close(source.plain(source.fetch(image_set, indices)), wanted, rtol=1e-3, atol=1e-4)
    assert source.width == network.num_features


def crops(picture: Image.Image) -> Tensor:
    """Every crop of the reflected picture, as it is and mirrored, normalised: (50, 192)."""
    padded = np.pad(np.asarray(picture) / 255, ((2, 2), (2, 2), (0, 0)), mode="reflect")
    cut = np.array([padded[top : top + 8, left : left + 8] for top in range(5) for left in range(5)])
    both = (np.concatenate([cut, cut[:, :, ::-1]]) - AUGMENT.mean) / AUGMENT.std
    return torch.from_numpy(both.transpose(0, 3, 1, 2).reshape(len(both), -1)).float()


def test_weak_features_are_those_of_weak_views_and_strong_ones_are_not(expected: dict[str, Tensor]) -> None:
    images, found = noise(), {"weak": 0, "strong": 0}
    for kind in found:
        for position, draws in enumerate(expected[f"unlabeled {kind}"]):
            distances = (draws[:, None] - crops(images[position])).abs().amax(dim=2)  # (6, 50)
            found[kind] += int((distances.amin(dim=1) < 2e-3).sum())
    assert found["weak"] == 6 * TRAINED
    assert found["strong"] < TRAINED


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_a_picture_has_several_different_views(expected: dict[str, Tensor], kind: str) -> None:
    counts = [len(draws.unique(dim=0)) for draws in expected[f"unlabeled {kind}"]]
    assert max(counts) == VIEWS
    assert np.mean(counts) > 2.5, "six draws of three nearly always meet all of them"


def test_labelled_pictures_have_the_features_they_have_among_the_unlabelled(expected: dict[str, Tensor]) -> None:
    assert torch.equal(expected["labeled plain"], expected["unlabeled plain"][:12])
    for kind in ("weak", "strong"):
        for here, there in zip(expected[f"labeled {kind}"], expected[f"unlabeled {kind}"], strict=False):
            assert len(torch.cat([here, there]).unique(dim=0)) <= VIEWS


def test_views_depend_on_the_picture_and_not_on_the_order(tmp_path: Path, expected: dict[str, Tensor]) -> None:
    rng = np.random.default_rng(1)
    shuffled = splits_of(noise(), *(rng.permutation(list(part)).tolist() for part in (range(12), range(40), range(40, 48))))
    assert same(everything(compute(tmp_path, shuffled), shuffled), expected)


def test_views_are_the_same_when_computed_in_two_calls(tmp_path: Path, expected: dict[str, Tensor]) -> None:
    compute(tmp_path, splits_of(noise(), range(5), range(3, 17), range(44, 47)))
    splits = splits_of(noise())
    assert same(everything(compute(tmp_path, splits), splits), expected)


def test_a_worker_changes_nothing_and_does_not_outlive_the_work(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    splits = splits_of(noise(90), unlabeled=range(80), test=range(80, 90))  # enough for a worker to be worth it
    here, there = (compute(tmp_path / str(workers), splits, workers=workers) for workers in (0, 1))
    assert same(everything(here, splits), everything(there, splits))
    assert set(multiprocessing.active_children()) == before


def test_no_unlabelled_pictures_is_fine(tmp_path: Path) -> None:
    splits = splits_of(noise(), unlabeled=())
    source = compute(tmp_path, splits)
    none = source.fetch(splits.unlabeled, np.empty(0, dtype=np.int64))
    assert source.cut("weak", none, np.random.default_rng(0)).shape == (0, KEY.width)
    assert len(source.plain(source.fetch(splits.labeled, np.arange(12)))) == 12


def test_only_the_sets_of_the_split_can_be_asked_for(tmp_path: Path) -> None:
    splits = splits_of(noise())
    source = compute(tmp_path, splits)
    with pytest.raises(ValueError, match="cached for the sets of one split; this one is not among them"):
        source.fetch(splits_of(noise()).labeled, np.arange(3))


# What is computed --------------------------------------------------------------------------------------------------------


def test_a_picture_is_computed_once_though_it_is_in_two_parts(tmp_path: Path) -> None:
    assert computed(tmp_path, splits_of(noise())) == TRAINED * EACH + JUDGED


def test_progress_counts_the_pictures_to_do(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    compute(tmp_path, splits_of(noise()), progress=lambda done, total: told.append((done, total)))
    done = [number for number, _ in told]
    assert done == sorted(set(done))
    assert told[-1] == (TRAINED + JUDGED, TRAINED + JUDGED)
    assert {total for _, total in told} == {TRAINED + JUDGED}


def test_the_second_time_nothing_is_computed_nor_told(tmp_path: Path, expected: dict[str, Tensor]) -> None:
    def never(*_: object) -> Any:
        raise AssertionError("nothing is left to do")

    splits = splits_of(noise())
    compute(tmp_path, splits)
    files = {path: path.stat().st_mtime_ns for path in shards(tmp_path)}
    assert same(everything(compute(tmp_path, splits, never, progress=never), splits), expected)
    assert {path: path.stat().st_mtime_ns for path in shards(tmp_path)} == files


def test_another_split_of_the_same_pictures_shares_what_it_can(tmp_path: Path) -> None:
    images = noise()
    assert computed(tmp_path, splits_of(images, range(6), range(30), range(30, 38))) == 30 * EACH + 8
    # Pictures 0..29 have all views, 30..37 the plain one; 33..37 are to be trained on now, and 44..47 are new.
    other = splits_of(images, range(20, 28), [*range(10, 30), *range(33, 38)], [*range(8), 30, 31, *range(44, 48)])
    assert computed(tmp_path, other) == 5 * EACH + 4
    fresh = everything(compute(tmp_path / "fresh", other), other)
    assert same(everything(compute(tmp_path, other), other), fresh)


def test_a_file_that_changed_is_computed_again(tmp_path: Path) -> None:
    write_pictures(tmp_path / "photos", {"ant": 6, "bee": 5, "unlabeled": 8})
    cache, picture = tmp_path / "cache", tmp_path / "photos" / "bee" / "2.png"

    def photos() -> Splits:
        return load(FolderConfig(root=str(tmp_path / "photos")), seed=0)

    assert computed(cache, photos()) == 19 * EACH
    assert computed(cache, photos()) == 0
    os.utime(picture, ns=(0, 0))  # perhaps another picture of the same size
    assert computed(cache, photos()) == EACH
    Image.new("RGB", (6, 5), "white").save(picture)
    assert computed(cache, photos()) == EACH
    splits = photos()
    source = compute(cache, splits)
    white = source.plain(source.fetch(splits.labeled, np.array([8])))  # ant has six
    assert splits.labeled.names[8] == "bee/2.png"
    torch.testing.assert_close(white, Augment(AUGMENT).plain([splits.labeled[8]]).flatten(1), rtol=1e-3, atol=0)
    assert computed(cache, photos()) == 0


def test_the_same_path_in_another_folder_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        Path("0.bmp").write_bytes(b"as long")
        os.utime("0.bmp", ns=(0, 0))
        found.append(FileImages([Path("0.bmp")]).fingerprint(0))
    assert found[0] != found[1]


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    write_pictures(tmp_path / "photos", {"ant": 3, "bee": 3})
    splits = load(FolderConfig(root=str(tmp_path / "photos")), seed=0)
    (tmp_path / "photos" / "bee" / "1.png").unlink()
    with pytest.raises(DataError, match=r"^The picture .*bee/1.png cannot be found: .* take it out of the data.$"):
        compute(tmp_path / "cache", splits)


def zip_up(archive: Path, pictures: Sequence[Image.Image]) -> Splits:
    names = [f"{i}.bmp" for i in range(len(pictures))]  # all of one size
    with zipfile.ZipFile(archive, "w") as file:
        for name, picture in zip(names, pictures, strict=True):
            picture.save(archive.parent / "one.bmp")
            file.write(archive.parent / "one.bmp", name)
    return splits_of(ZipImages(archive, names), range(4), range(10), range(10, 12))


def test_a_member_of_a_zip_file_that_changed_is_computed_again(tmp_path: Path) -> None:
    images, cache = noise(12), tmp_path / "cache"
    pictures = [images[i] for i in range(12)]
    assert computed(cache, zip_up(tmp_path / "a.zip", pictures)) == 10 * EACH + 2
    assert computed(cache, zip_up(tmp_path / "a.zip", pictures)) == 0, "written again, the same pictures inside"
    assert computed(cache, zip_up(tmp_path / "moved.zip", pictures)) == 0
    pictures[7] = pictures[7].transpose(Image.Transpose.ROTATE_90)
    assert computed(cache, zip_up(tmp_path / "a.zip", pictures)) == EACH


def test_a_zip_file_that_is_gone_is_named(tmp_path: Path) -> None:
    splits = zip_up(tmp_path / "a.zip", [noise(12)[i] for i in range(12)])
    (tmp_path / "a.zip").unlink()
    with pytest.raises(DataError, match=r"The picture .*a.zip/0.bmp cannot be read: .*put a whole and plain one there"):
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
        ("weights", "1" * 64),
        ("views", 4),
        ("network", "other"),
        ("width", 3),
        ("image_size", 9),
        ("crop_ratio", 0.8),
        ("flip", False),
        ("operations", 2),
        ("mean", (0.5, 0.5, 0.5)),
        ("std", (0.5, 0.5, 0.5)),
        ("style", "resize"),
    ],
)
def test_whatever_features_depend_on_has_a_folder_of_its_own(tmp_path: Path, what: str, value: Any) -> None:
    change = {what: value}
    other = replace(KEY, **change) if hasattr(KEY, what) else replace(KEY, augment=replace(AUGMENT, **change))
    assert FeatureCache(other, tmp_path).path != FeatureCache(KEY, tmp_path).path
    assert FeatureCache(replace(KEY), tmp_path).path == FeatureCache(KEY, tmp_path).path


def test_the_hash_of_weights_sees_names_shapes_types_and_values() -> None:
    weights = {"a": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}
    others = [
        {"a": weights["a"].reshape(3, 2), "n": weights["n"]},
        {"a": weights["a"], "m": weights["n"]},
        {"a": weights["a"] + torch.tensor([0.0, 0.0, 1e-6]), "n": weights["n"]},
        {"a": weights["a"], "n": torch.tensor(4)},
        {"a": weights["a"].view(torch.int32), "n": weights["n"]},
    ]
    hashes = [weights_hash(other) for other in (weights, *others)]
    assert len(set(hashes)) == 6
    transposed = torch.arange(6.0).reshape(2, 3).T.contiguous().T  # the same values, laid out otherwise
    assert weights_hash({"a": transposed, "n": torch.tensor(3)}) == hashes[0]


def test_the_folder_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for value, expected in (("/fast/disk", "/fast/disk"), ("~/x", "/home/somebody/x"), ("", "/home/somebody/.cache/semigpc")):
        monkeypatch.setenv("SEMIGPC_CACHE", value)
        assert cache_root() == Path(expected)


# Interruptions -----------------------------------------------------------------------------------------------------------


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


def die_while_writing(root: str) -> None:
    """Compute features until the third file is half written, and be killed."""
    before = iter(range(2))

    def write_half(tensors: dict[str, Tensor], path: Path) -> None:
        if next(before, None) is None:
            whole = save(tensors)
            path.write_bytes(whole[: len(whole) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        save_file(tensors, path)

    patch = pytest.MonkeyPatch()
    patch.setattr(view_chunks, "PICTURES", 4)
    patch.setattr(feature_cache, "SHARD", 8)
    patch.setattr(feature_cache, "save_file", write_half)
    compute(Path(root), splits_of(noise()))


def test_a_process_that_was_killed_leaves_whole_files(tmp_path: Path, expected: dict[str, Tensor]) -> None:
    code = f"import sys; from {__name__} import die_while_writing; die_while_writing(sys.argv[1])"
    victim = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[2], capture_output=True)
    assert victim.returncode == -signal.SIGKILL, victim.stderr.decode()
    assert len(list(tmp_path.glob("*/.*.part"))) == 1, "the half of a file"
    splits, rest = splits_of(noise()), Counting()
    source = compute(tmp_path, splits, rest)
    assert rest.seen == (TRAINED - 16) * EACH + JUDGED
    assert same(everything(source, splits), expected)


def test_drafts_are_never_read(tmp_path: Path) -> None:
    splits = splits_of(noise())
    compute(tmp_path, splits)
    whole = shards(tmp_path)
    for path in whole:
        path.rename(path.with_name(f".{path.stem}.part"))
    (whole[0].parent / ".0123456789ab.part").write_bytes(b"nothing that could be read")
    assert computed(tmp_path, splits) == TRAINED * EACH + JUDGED


@pytest.mark.parametrize("left", [(), (".0123456789ab.part",)])
def test_a_folder_in_which_nothing_was_finished_is_used(tmp_path: Path, left: tuple[str, ...]) -> None:
    folder = tmp_path / KEY.folder_name
    folder.mkdir()
    for name in left:
        (folder / name).write_text("{")
    assert computed(tmp_path, splits_of(noise())) == TRAINED * EACH + JUDGED
    assert json.loads((folder / "key.json").read_text())["views"] == VIEWS


# Bad input ---------------------------------------------------------------------------------------------------------------


def key_file(tmp_path: Path) -> Path:
    compute(tmp_path, splits_of(noise()))
    return tmp_path / KEY.folder_name / "key.json"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("weights", "f" * 64, f"weights is '{'f' * 64}' there and '{'0' * 64}' here"),
        ("views", 5, "views is 5 there and 3 here"),
        ("network", None, "network is None there and 'pixels' here"),
    ],
)
def test_features_that_something_else_made_are_refused(tmp_path: Path, field: str, value: object, words: str) -> None:
    file = key_file(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(DataError) as refused:
        FeatureCache(KEY, tmp_path)
    assert str(refused.value) == (
        f"{file} says that these features were made otherwise: {words}. They are not used; delete the folder, "
        "or set SEMIGPC_CACHE to another one."
    )


@pytest.mark.parametrize(
    ("content", "words"), [("no JSON", "cannot be read"), ("[1]", "made otherwise"), (b"\xff\xfe", "cannot be read")]
)
def test_a_key_that_is_none_is_refused(tmp_path: Path, content: str | bytes, words: str) -> None:
    file = key_file(tmp_path)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=rf"{file} .*{words}.*elete the folder"):
        FeatureCache(KEY, tmp_path)


@pytest.mark.parametrize("as_folder", [False, True])
def test_shards_whose_key_is_gone_are_refused(tmp_path: Path, as_folder: bool) -> None:
    file = key_file(tmp_path)
    file.unlink()
    if as_folder:
        file.mkdir()
    with pytest.raises(DataError, match=rf"{file} cannot be read: .*Delete the folder {file.parent}; it will be made again"):
        FeatureCache(KEY, tmp_path)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("share", [0.0, 0.02, 0.6, 0.999])
def test_a_file_that_was_cut_short_is_named_and_deleting_it_heals(
    tmp_path: Path, expected: dict[str, Tensor], share: float
) -> None:
    splits = splits_of(noise())
    compute(tmp_path, splits)
    broken = next(path for path in shards(tmp_path) if path.name.startswith("views"))
    content = broken.read_bytes()
    broken.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=rf"^{broken} cannot be read: .*Delete that file; its features will be made again.$"):
        compute(tmp_path, splits)
    broken.unlink()
    counting = Counting()
    assert same(everything(compute(tmp_path, splits, counting), splits), expected)
    assert counting.seen == 8 * EACH


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])  # the last is too large for 16 bits
def test_features_that_are_no_numbers_are_refused_and_not_kept(tmp_path: Path, value: float) -> None:
    splits = splits_of(noise())
    with pytest.raises(DataError, match=r"^pixels answers with features that are no numbers in 16 bits. Are its weights whole"):
        compute(tmp_path, splits, lambda pictures: torch.full((len(pictures), KEY.width), value))
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
def test_a_full_disk_is_told_and_leaves_nothing_half_done(tmp_path: Path, expected: dict[str, Tensor], limit: int) -> None:
    splits = splits_of(noise())
    message = rf"^Features cannot be written to {tmp_path}/\S+: .*Make room, or set SEMIGPC_CACHE.$"
    with files_no_larger_than(limit), pytest.raises(DataError, match=message):
        compute(tmp_path, splits)
    assert not [path for path in tmp_path.glob("*/*") if path.name != "key.json"]
    assert same(everything(compute(tmp_path, splits), splits), expected)


def test_a_place_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"^Features cannot be written to .*Not a directory.*set SEMIGPC_CACHE.$"):
        compute(tmp_path / "file", splits_of(noise()))
