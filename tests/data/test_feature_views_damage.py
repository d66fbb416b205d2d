"""Cached features after interruptions, and files that are not what they should be."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from semigpc.data import FeatureCache
from semigpc.io.errors import DataError
from tests.data.feature_samples import (
    EACH,
    JUDGED,
    KEY,
    TRAINED,
    VIEWS,
    Counting,
    compute,
    computed,
    everything,
    noise,
    same,
    shards,
    splits_of,
)

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


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 1e6]
)  # the last is too large for 16 bits
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
    message = (
        rf"^Features cannot be written: {tmp_path}/\S+ could not be written: .*Or set "
        rf"SEMIGPC_CACHE.$"
    )
    with files_no_larger_than(limit), pytest.raises(DataError, match=message):
        compute(tmp_path, splits)
    assert not [path for path in tmp_path.glob("*/*") if path.name != "key.json"]
    assert same(everything(compute(tmp_path, splits), splits), expected)


def test_a_place_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"^Features cannot be written: .*set SEMIGPC_CACHE.$"):
        compute(tmp_path / "file", splits_of(noise()))
