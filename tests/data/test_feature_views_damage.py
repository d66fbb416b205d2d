"""Cached features after interruptions, and files that are not what they should be."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor

from semigpc.data import FeatureCache, feature_views
from semigpc.io import tensors
from semigpc.io.atomic import DRAFT
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
from tests.fuzzing import seed

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


def die_while_writing(root: str) -> None:
    """Compute features until the third file is half written, and be killed."""
    before = iter(range(2))

    def write_half(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        if next(before, None) is None:
            whole = save(tensors)
            path.write_bytes(whole[: len(whole) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        save_file(tensors, path, metadata=metadata)

    patch = pytest.MonkeyPatch()
    patch.setattr(feature_views, "IMAGES", 4)
    patch.setattr(feature_views, "SHARD", 8)
    patch.setattr(tensors, "save_file", write_half)
    compute(Path(root), splits_of(noise()))


@pytest.mark.slow
def test_a_process_that_was_killed_leaves_whole_files(
    tmp_path: Path, expected: dict[str, Tensor]
) -> None:
    code = f"import sys; from {__name__} import die_while_writing; die_while_writing(sys.argv[1])"
    victim = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
    )
    assert victim.returncode == -signal.SIGKILL, victim.stderr.decode()
    assert len(list(tmp_path.glob(f"*/.*{DRAFT}*"))) == 1, "the half of a file"
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
def test_features_that_something_else_made_are_refused(
    tmp_path: Path, field: str, value: object, words: str
) -> None:
    file = key_file(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(DataError) as refused:
        FeatureCache(KEY, tmp_path)
    assert str(refused.value) == (
        f"{file} says that these features were made otherwise: {words}. They are not used; delete the folder, "
        "or set SEMIGPC_CACHE to another one."
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [("no JSON", "cannot be read"), ("[1]", "cannot be used"), (b"\xff\xfe", "cannot be read")],
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
    with pytest.raises(
        DataError,
        match=rf"{file} cannot be read: .*Delete the folder {file.parent}; it will be made again",
    ):
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
    with pytest.raises(
        DataError,
        match=rf"^{broken} (cannot be read|is damaged): .*Delete that file; its features will be made again.$",
    ):
        compute(tmp_path, splits)
    broken.unlink()
    counting = Counting()
    assert same(everything(compute(tmp_path, splits, counting), splits), expected)
    assert counting.seen == 8 * EACH


@pytest.mark.usefixtures("small_shards")
def test_flipped_bytes_are_noticed(tmp_path: Path) -> None:
    """In any place of any shard that is there, also where it would only change a feature a little."""
    splits, rng = splits_of(noise()), random.Random(seed())
    compute(tmp_path, splits)
    for path in shards(tmp_path):
        whole = path.read_bytes()
        for position in [0, *rng.sample(range(len(whole)), 5)]:
            content = bytearray(whole)
            content[position] ^= 1 << rng.randrange(8)
            path.write_bytes(content)
            with pytest.raises(
                DataError,
                match=rf"^{path} (is damaged|cannot be read): .*Delete that file; its features will",
            ):
                compute(tmp_path, splits)
        path.write_bytes(whole)
    assert computed(tmp_path, splits) == 0


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 1e6]
)  # the last is too large for 16 bits
def test_features_that_are_no_numbers_are_refused_and_not_kept(
    tmp_path: Path, value: float
) -> None:
    splits = splits_of(noise())
    with pytest.raises(
        DataError,
        match=r"^pixels returns features that are NaN or infinite in 16 bits. Check its weights",
    ):
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
    message = rf"^Features cannot be written: {tmp_path}/\S+ could not be written: .*Or set SEMIGPC_CACHE.$"
    with files_no_larger_than(limit), pytest.raises(DataError, match=message):
        compute(tmp_path, splits)
    assert not [path for path in tmp_path.glob("*/*") if path.name != "key.json"]
    assert same(everything(compute(tmp_path, splits), splits), expected)


def test_a_place_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DataError, match=r"^Features cannot be written: .*Not a directory.*set SEMIGPC_CACHE.$"
    ):
        compute(tmp_path / "file", splits_of(noise()))
