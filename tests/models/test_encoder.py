"""The frozen network, and tables of embeddings: contents, stops, bad images, refusals."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from pyarrow import parquet

from semigpc.io import graphs, parts
from semigpc.io.errors import DataError, ImageError, SettingsError, WriteError
from semigpc.io.images import read_image, read_squares
from semigpc.models import ModelConfig, encoder
from semigpc.models.encoder import (
    EmbedConfig,
    Encoder,
    embed_files,
    embed_folder,
    frozen_backbone,
    weights_hash,
)
from tests.data.samples import random_image, write_images

CPU = torch.device("cpu")
TINY = EmbedConfig(model="test_resnet", pretrained="none", image_size=32, batch=3)


def rows_of(path: Path) -> dict[str, list[float]]:
    columns = parquet.read_table(path).to_pydict()
    return dict(zip(columns["file_name"], columns["embedding"], strict=True))


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"photos", "x.parquet", "cache"}


def stored(folder: Path) -> list[Path]:
    """The parts in the cache of a test."""
    return sorted((folder / "cache" / "embeddings").rglob("rows-*.safetensors"))


def embedded_afresh(photos: Path, out: Path, config: "EmbedConfig") -> Path:
    """Embed with an empty cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEMIGPC_CACHE", str(out.with_name("another_cache")))
        path = embed_folder(photos, out, config).path
    shutil.rmtree(out.with_name("another_cache"))
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_images(tmp_path / "photos", {"b": 4, "a/deep": 3}, size=(20, 15))
    return tmp_path / "photos"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "x.parquet"


def check_same(one: Path, other: Path) -> None:
    """To the last bits of 16, in which a row may depend on the batch that it was computed in."""
    assert list(rows_of(one)) == list(rows_of(other))
    here, there = (np.array(list(rows_of(path).values())) for path in (one, other))
    assert np.allclose(here, there, rtol=2e-3, atol=1e-4)
    assert np.ptp(here, axis=0).max() > 1e-2  # images differ by more


# The network --------------------------------------------------------------------------------------


def test_a_network_without_weights_is_the_same_every_time_and_draws_no_numbers() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = frozen_backbone(ModelConfig(), CPU)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    other = frozen_backbone(ModelConfig(), CPU)
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
    assert not one.training
    assert not any(parameter.requires_grad for parameter in one.parameters())


def test_the_hash_of_weights_depends_on_names_shapes_types_and_values() -> None:
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
    transposed = weights["a"].T.contiguous().T  # the same values in another memory layout
    assert weights_hash({"a": transposed, "n": torch.tensor(3)}) == hashes[0]


def test_a_network_of_fixed_size_is_built_for_the_size_asked_for() -> None:
    config = EmbedConfig(model="test_vit", pretrained="none")
    assert config.encoder().image_size == 160
    small = replace(config, image_size=64).encoder()
    assert small(torch.zeros(1, 64, 64, 3, dtype=torch.uint8)).shape == (1, 64)


@pytest.mark.slow
@pytest.mark.parametrize("of_bytes", [False, True])
def test_onnx_runtime_returns_the_rows_of_torch(
    monkeypatch: pytest.MonkeyPatch, of_bytes: bool
) -> None:
    monkeypatch.setattr(encoder, "WORTHWHILE_PIXELS", 0)
    network = Encoder(ModelConfig(name="test_resnet"), 32, CPU, of_bytes=of_bytes)
    rng = torch.Generator().manual_seed(1)
    if of_bytes:
        images = torch.randint(256, (5, 32, 32, 3), dtype=torch.uint8, generator=rng)
    else:
        images = torch.randn(5, 3, 32, 32, generator=rng)
    expected = network(images)
    assert network.engine == "torch"
    assert network.accelerate(5, threads=1) is None
    assert network.engine == "ONNX Runtime"
    tolerance = 1e-3 * expected.square().mean().sqrt()
    assert (network(images) - expected).abs().max() <= tolerance
    assert (network(images[2:3])[0] - expected[2]).abs().max() <= tolerance  # any number of images


@pytest.mark.slow
def test_the_embedded_network_is_the_same_in_onnx_runtime() -> None:
    network = EmbedConfig(pretrained="embedded", image_size=96).encoder()
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (5, 96, 96, 3), dtype=torch.uint8, generator=rng)
    expected = network(pixels)
    assert network.accelerate(10**6, threads=1) is None
    assert (network(pixels) - expected).abs().max() <= 1e-3 * expected.square().mean().sqrt()


# The table ----------------------------------------------------------------------------------------


@pytest.mark.slow  # two seconds
def test_a_slow_first_batch_does_not_decide_the_expected_time(
    photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = iter([2.0])
    read = read_squares

    def slow_at_first(*arguments: Any, **options: Any) -> Any:
        time.sleep(next(waits, 0.0))
        return read(*arguments, **options)

    monkeypatch.setattr(Encoder, "in_onnx_runtime", True)
    monkeypatch.setattr(encoder, "granted", lambda: 1)
    monkeypatch.setattr(encoder, "read_squares", slow_at_first)
    lines: list[str] = []
    embed_folder(photos, out, TINY, progress=lambda text, *_: lines.append(text))
    assert next(waits, None) is None, "it was slow"
    assert lines[1].endswith("about 1 s")


def test_one_row_per_image_sorted_by_name_with_what_made_it(photos: Path, out: Path) -> None:
    progress: list[tuple[str, int, int | None]] = []
    result = embed_folder(photos, out, TINY, progress=lambda *now: progress.append(now))
    table = parquet.read_table(out)
    assert table.column_names == ["file_name", "embedding"]
    names = [f"a/deep/{i}.png" for i in range(3)] + [f"b/{i}.png" for i in range(4)]
    assert table.column("file_name").to_pylist() == names
    kind = str(table.schema.field("embedding").type).replace("element", "item")
    assert kind == f"fixed_size_list<item: halffloat>[{result.key.width}]"
    facts = json.loads(table.schema.metadata[b"semigpc"])
    assert facts | asdict(result.key) == facts
    assert (facts["network"], facts["image_size"], facts["bad"]) == ("test_resnet", 32, [])
    begin, line, *batches = progress
    assert begin == ("preparing test_resnet", 0, None)
    announced = r"embedding 7 images at 32 px with test_resnet on torch, about \d+ s"
    assert re.fullmatch(announced, line[0])
    assert line[1:] == (0, 0)
    assert batches == [("embedding", 3, 7), ("embedding", 6, 7), ("embedding", 7, 7)]
    assert result[1:4] == (7, [], 7)
    assert leftovers(out.parent) == set()


def test_a_row_is_the_networks_for_the_square_in_the_middle(photos: Path, out: Path) -> None:
    config = replace(TINY, precision="float32")
    rows = rows_of(embed_folder(photos, out, config).path)
    square = ImageOps.fit(Image.open(photos / "b/2.png"), (32, 32), Image.Resampling.BILINEAR)
    alone = config.encoder()(torch.from_numpy(np.array(square)[None]))[0]
    assert torch.allclose(torch.tensor(rows["b/2.png"]), alone, rtol=1e-4, atol=1e-5)


def test_a_large_jpeg_is_decoded_small_and_looks_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    coarse.resize((1600, 1200), Image.Resampling.BICUBIC).save(tmp_path / "a.jpg", quality=90)
    whole = ImageOps.fit(Image.open(tmp_path / "a.jpg"), (96, 96), Image.Resampling.BILINEAR)
    assert read_image(tmp_path / "a.jpg", at_least=192).size == (400, 300)
    _, pixels, _ = read_squares(tmp_path, ["a.jpg"], 96)
    difference = np.abs(pixels[0].astype(float) - np.asarray(whole, dtype=float))
    assert 0 < difference.mean() < 0.05 * np.asarray(whole).std()


def test_the_embedded_network_is_the_default(tmp_path: Path, out: Path) -> None:
    write_images(tmp_path / "photos", {"a": 2}, size=(40, 40))
    result = embed_folder(tmp_path / "photos", out)
    key = result.key
    found = (key.network, key.image_size, key.precision, key.width)
    assert found == ("tf_efficientnet_lite0", 224, "float16", 2024)
    first, second = (np.array(row) for row in rows_of(out).values())
    assert 0 < np.abs(first - second).mean() < np.abs(first).mean()  # two similar images


# Stops --------------------------------------------------------------------------------------------


def stop_after(photos: Path, out: Path, images: int) -> None:
    """Embed with parts of three rows, and be interrupted."""

    def progress(_stage: str, done: int, _total: int | None) -> None:
        if done >= images:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_ROWS", 3)
        with pytest.raises(KeyboardInterrupt):
            embed_folder(photos, out, TINY, progress=progress)
    assert not out.exists()


def test_after_a_stop_only_what_is_missing_is_embedded(
    photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = embedded_afresh(photos, out.with_name("whole.parquet"), TINY)
    stop_after(photos, out, 6)
    assert len(stored(out.parent)) == 2
    monkeypatch.setattr(encoder, "GROUP_ROWS", 2)
    result = embed_folder(photos, out, TINY)
    assert (result.rows, result.made) == (7, 1)
    check_same(out, whole)
    assert parquet.ParquetFile(out).num_row_groups == 4
    assert leftovers(out.parent) == {"whole.parquet"}


def test_images_that_came_or_changed_during_a_stop_are_embedded_too(
    photos: Path, out: Path
) -> None:
    stop_after(photos, out, 6)
    random_image(20, 15, np.random.default_rng(5)).save(photos / "a/deep/0.png")
    random_image(30, 30, np.random.default_rng(6)).save(photos / "a/new.png")
    (photos / "a/deep/1.png").unlink()
    result = embed_folder(photos, out, TINY)
    assert (result.rows, result.made) == (7, 3)
    check_same(out, embedded_afresh(photos, out.with_name("y.parquet"), TINY))


def replace_content(image: Path, seed: int) -> None:
    """Put another image in the place of one, with the same size in bytes and the same time."""
    before = image.stat()
    random_image(20, 15, np.random.default_rng(seed)).save(image, "BMP")
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert image.stat().st_size == before.st_size


@pytest.fixture
def bitmaps(photos: Path) -> Path:
    """The same photographs in files of equal size."""
    for path in photos.rglob("*.png"):
        Image.open(path).save(path, "BMP")
    return photos


def test_an_image_replaced_by_one_of_the_same_size_and_time_is_embedded_again(
    bitmaps: Path, out: Path
) -> None:
    stop_after(bitmaps, out, 6)
    replace_content(bitmaps / "a/deep/0.png", 5)
    result = embed_folder(bitmaps, out, TINY)
    assert (result.rows, result.made) == (7, 2)
    check_same(out, embedded_afresh(bitmaps, out.with_name("y.parquet"), TINY))
    replace_content(bitmaps / "a/deep/0.png", 6)
    with pytest.raises(DataError, match=r"7 rows.*other images"):
        embed_folder(bitmaps, out, TINY)


def test_images_of_equal_content_are_embedded_once_and_have_the_same_row(
    photos: Path, out: Path
) -> None:
    shutil.copyfile(photos / "b/1.png", photos / "b/copy.png")
    totals: list[int | None] = []
    result = embed_folder(photos, out, TINY, progress=lambda _, __, total: totals.append(total))
    assert (result.rows, result.made, totals[-1]) == (8, 8, 7)
    rows = rows_of(out)
    assert rows["b/copy.png"] == rows["b/1.png"]


def test_to_overwrite_replaces_the_table_and_embeds_nothing_again(photos: Path, out: Path) -> None:
    stop_after(photos, out, 6)
    assert embed_folder(photos, out, TINY, overwrite=True).made == 1
    before = rows_of(out)
    assert embed_folder(photos, out, TINY, overwrite=True).made == 0
    assert rows_of(out) == before


def test_rows_of_other_settings_are_apart(photos: Path, out: Path) -> None:
    stop_after(photos, out, 6)
    for other in (replace(TINY, image_size=64), replace(TINY, precision="float32")):
        assert embed_folder(photos, out, other, overwrite=True).made == 7
    assert embed_folder(photos, out, TINY, overwrite=True).made == 1
    assert leftovers(out.parent) == set()


def test_a_damaged_part_is_deleted_with_a_note_and_its_images_are_embedded_again(
    photos: Path, out: Path
) -> None:
    stop_after(photos, out, 6)
    part = stored(out.parent)[0]
    part.write_bytes(part.read_bytes()[:150])
    with pytest.warns(UserWarning, match=rf"{part.name}.*embedded again"):
        assert embed_folder(photos, out, TINY).made == 4
    assert not part.exists()
    check_same(out, embedded_afresh(photos, out.with_name("y.parquet"), TINY))


# The store ----------------------------------------------------------------------------------------


def test_an_image_is_embedded_once_whatever_its_name_and_folder(
    photos: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = embed_folder(photos, out, TINY)
    shutil.copytree(photos, tmp_path / "moved/deeper")
    other = embed_folder(tmp_path / "moved", tmp_path / "moved.parquet", TINY)
    assert (other.rows, other.made) == (7, 0)
    monkeypatch.setattr(EmbedConfig, "encoder", None)  # the network is not even built
    paths = [photos / "b/2.png", tmp_path / "moved/deeper/b/2.png", photos / "b/0.png"]
    rows, bad = embed_files(paths, TINY, first.key)
    assert bad == {}
    expected = rows_of(out)
    assert rows.tolist() == [expected["b/2.png"], expected["b/2.png"], expected["b/0.png"]]


def test_rows_of_files_are_those_of_a_table(photos: Path, out: Path) -> None:
    key = embed_folder(photos, out, TINY).key
    expected = rows_of(out)
    shutil.rmtree(out.with_name("cache"))
    (photos / "text.png").write_text("no image")
    rows, bad = embed_files([photos / "text.png", photos / "b/1.png"], TINY, key)
    assert np.allclose(rows[1], expected["b/1.png"], rtol=2e-3, atol=1e-4)
    assert list(bad) == [0]
    assert "is not one of" in bad[0]
    assert len(stored(out.parent)) == 1


def test_another_network_is_refused_before_anything_is_stored(photos: Path, out: Path) -> None:
    key = embed_folder(photos, out, TINY).key
    other = replace(key, weights="0" * 64)
    with pytest.raises(DataError, match=r"not the network .* its weights is .*Put back"):
        embed_files([photos / "b/1.png"], TINY, other)
    assert len({part.parent for part in stored(out.parent)}) == 1


def test_two_processes_may_add_rows_at_once(photos: Path, out: Path) -> None:
    key = embed_folder(photos, out, TINY).key
    shutil.rmtree(out.with_name("cache"))
    one, other = encoder.RowStore(key), encoder.RowStore(key)
    marks = [bytes([i]) * 16 for i in range(3)]
    rows = torch.arange(3.0).half().unsqueeze(1).expand(3, key.width)
    one.add("rows", marks[:2], {"embedding": rows[:2]})
    other.add("rows", marks[1:], {"embedding": rows[1:]})
    one.flush()
    killed = stored(out.parent)[0].with_name(".rows-x.semigpc-draft.safetensors")
    killed.write_text("half a part")
    other.flush()
    assert not killed.exists()
    for store in (one, other, encoder.RowStore(key)):
        assert set(store.known()) == set(marks)
        assert torch.equal(store.rows("embedding", marks), rows)


def test_a_finished_table_is_used_while_nothing_changed(photos: Path, out: Path) -> None:
    first = embed_folder(photos, out, TINY)
    before = out.stat().st_mtime_ns
    again = embed_folder(photos, out, TINY)
    assert (again.rows, again.made, out.stat().st_mtime_ns) == (first.rows, None, before)
    with pytest.raises(DataError, match=r"precision is 'float16' and not 'float32'.*overwrite"):
        embed_folder(photos, out, replace(TINY, precision="float32"))
    (photos / "b/3.png").unlink()
    with pytest.raises(DataError, match=r"7 rows.*other images"):
        embed_folder(photos, out, TINY)
    assert embed_folder(photos, out, TINY, overwrite=True).rows == 6


def test_a_file_of_another_program_is_not_touched(photos: Path, out: Path) -> None:
    embed_folder(photos, out, TINY)
    parquet.write_table(parquet.read_table(out).replace_schema_metadata({}), out)
    with pytest.raises(DataError, match="not made by semigpc embed"):
        embed_folder(photos, out, TINY)
    out.write_text("precious")
    with pytest.raises(DataError, match=r"x\.parquet cannot be read"):
        embed_folder(photos, out, TINY)
    assert out.read_text() == "precious"


# ONNX Runtime -------------------------------------------------------------------------------------


def announced(photos: Path, out: Path, config: EmbedConfig = TINY) -> str:
    """Embed, and return the line with the number of images, the network and the engine."""
    lines: list[str] = []

    def progress(stage: str, _done: int, total: int | None) -> None:
        if total == 0:
            lines.append(stage)

    embed_folder(photos, out, config, progress=progress)
    (line,) = lines
    return line


@pytest.mark.slow
def test_both_engines_write_the_same_rows(
    photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(TINY, precision="float32")
    other = out.with_name("y.parquet")
    assert " on torch, about " in announced(photos, out, config)
    monkeypatch.setenv("SEMIGPC_CACHE", str(out.with_name("another")))
    monkeypatch.setattr(encoder, "WORTHWHILE_PIXELS", 0)
    monkeypatch.setattr(encoder, "granted", lambda: 2)
    assert " on ONNX Runtime, about " in announced(photos, other, config)
    assert list(rows_of(out)) == list(rows_of(other))
    in_torch, in_onnx = (np.array(list(rows_of(path).values())) for path in (out, other))
    assert np.abs(in_torch - in_onnx).max() <= 1e-3 * np.sqrt(np.square(in_torch).mean())


def without_packages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(encoder, "ONNX_PACKAGES", ("onnx", "onnxruntime_of_nowhere"))


def with_wrong_outputs(patch: pytest.MonkeyPatch) -> None:
    right = graphs.open_onnx

    def wrong(path: Path, threads: int) -> Any:
        run = right(path, threads)
        return lambda images: {name: 1.01 * values for name, values in run(images).items()}

    patch.setattr(encoder, "open_onnx", wrong)


def with_a_network_that_cannot_be_traced(patch: pytest.MonkeyPatch) -> None:
    class Branching(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1) if float(images.sum()) > 0 else -images.flatten(1)

    patch.setattr(encoder, "build_model", lambda *_: SimpleNamespace(backbone=Branching()))


def with_an_exporter_that_fails(patch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ImportError("onnxscript is too old")

    patch.setattr(encoder, "write_onnx", broken)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defect", "words"),
    [
        (without_packages, "onnxruntime_of_nowhere not installed: pip install 'semigpc[embedded]'"),
        (with_wrong_outputs, "ONNX Runtime differs from torch by "),
        (with_a_network_that_cannot_be_traced, "the network cannot be traced: "),
        (with_an_exporter_that_fails, "ImportError: onnxscript is too old"),
    ],
)
def test_where_onnx_runtime_cannot_be_used_torch_embeds_with_a_note(
    photos: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    defect: Callable[[pytest.MonkeyPatch], None],
    words: str,
) -> None:
    monkeypatch.setattr(encoder, "WORTHWHILE_PIXELS", 0)
    defect(monkeypatch)
    line = announced(photos, out)
    assert " on torch, about " in line
    assert words in line
    assert len(rows_of(out)) == 7


# Refusals -----------------------------------------------------------------------------------------


def test_embeddings_that_do_not_fit_in_sixteen_bits_are_an_error(
    photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoder, "__call__", lambda _, images: torch.full((len(images), 4), 1e6))
    with pytest.raises(DataError, match=r"test_resnet .* NaN or infinity in float16.*float32"):
        embed_folder(photos, out, TINY)
    other = replace(TINY, precision="float32")
    assert embed_folder(photos, out, other, overwrite=True).rows == 7


def test_no_images_no_folder_and_no_place_to_write(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(words: str, folder: Path = photos, out: str = "x.parquet") -> None:
        with pytest.raises((DataError, WriteError), match=words):
            embed_folder(folder, tmp_path / out, TINY)

    (tmp_path / "empty").mkdir()
    wrong(r"no images below .*empty\. Known endings: \.bmp, ", folder=tmp_path / "empty")
    wrong("nowhere does not exist", folder=tmp_path / "nowhere")
    wrong("0.png is a file", folder=photos / "b/0.png")
    wrong("parquet file; got 'x.csv'", out="x.csv")
    wrong("nowhere does not exist", out="nowhere/x.parquet")
    (tmp_path / "folder.parquet").mkdir()
    wrong("folder.parquet is a folder", out="folder.parquet")
    (tmp_path / "cache").write_text("in the way")
    wrong(r"cache\S* could not be written.*set SEMIGPC_CACHE")
    (tmp_path / "cache").unlink()

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parts, "save_tensors", full)
    wrong(r"rows-\w+.safetensors could not be written: the disk is full")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "test_resnte"}, "unknown model 'test_resnte'; did you mean 'test_resnet'"),
        ({"pretrained": "embedded"}, "of tf_efficientnet_lite0; got test_resnet"),
        ({"pretrained": "nowhere.pth"}, "nowhere.pth"),
        ({"model": "test_vit", "image_size": 31}, "31 x 31 pixels|cannot be built"),
        ({"precision": "float64"}, "float16 or float32; got 'float64'"),
        ({"image_size": 1}, "at least 2 pixels; got 1"),
        ({"batch": 0}, "batch must be at least 1"),
    ],
)
def test_settings_that_cannot_be_used(
    photos: Path, out: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises((DataError, SettingsError), match=words):
        embed_folder(photos, out, EmbedConfig(**asdict(TINY) | settings))
    assert leftovers(out.parent) == set()


# Bad images ---------------------------------------------------------------------------------------


def test_all_bad_images_are_found_and_listed(photos: Path, tmp_path: Path, out: Path) -> None:
    (photos / "a/text.jpg").write_text("no image")
    whole = random_image(60, 40, np.random.default_rng(0))
    whole.save(photos / "whole.jpg")
    (photos / "b/cut.jpg").write_bytes((photos / "whole.jpg").read_bytes()[:900])
    (photos / "huge.ppm").write_bytes(b"P6 20000 20000 255\n" + bytes(3000))
    whole.save(tmp_path / "outside.png")
    (photos / "link.png").symlink_to(tmp_path / "outside.png")
    (photos / "fine_link.png").symlink_to(photos / "b/0.png")
    with pytest.raises(
        ImageError, match=r"4 of 13 .*\(a/text.jpg: its content is not one of .*; b/"
    ):
        embed_folder(photos, out, TINY)
    assert not out.exists()
    lines = Path(f"{out}.bad.txt").read_text().splitlines()
    reasons = dict(line.split("\t") for line in lines)
    assert list(reasons) == ["a/text.jpg", "b/cut.jpg", "huge.ppm", "link.png"]
    assert "truncated" in reasons["b/cut.jpg"]
    assert "400000000 pixels" in reasons["huge.ppm"]
    assert str(tmp_path / "outside.png") in reasons["link.png"]

    skipped = embed_folder(photos, out, TINY, skip_bad=True)
    assert (skipped.rows, skipped.made, [name for name, _ in skipped.bad]) == (9, 0, list(reasons))
    assert {"fine_link.png", "whole.jpg"} < set(rows_of(out))
    assert embed_folder(photos, out, TINY, skip_bad=True) == skipped._replace(made=None)
    with pytest.raises(ImageError, match="4 of 13 images"):
        embed_folder(photos, out, TINY)


def test_images_that_were_repaired_are_embedded(photos: Path, out: Path) -> None:
    good = (photos / "b/0.png").read_bytes()
    (photos / "b/0.png").write_text("no image")
    with pytest.raises(ImageError, match="1 of 7"):
        embed_folder(photos, out, TINY)
    (photos / "b/0.png").write_bytes(good)
    assert embed_folder(photos, out, TINY)[1:4] == (7, [], 1)
    assert leftovers(out.parent) == set()  # nor the list of bad ones


def test_a_folder_with_only_bad_images_is_an_error_even_with_skip_bad(
    tmp_path: Path, out: Path
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_text("no image")
    with pytest.raises(
        ImageError, match=r"None of the 1 images .*a.jpg: its content is not one of"
    ):
        embed_folder(tmp_path / "photos", out, TINY, skip_bad=True)


def test_images_above_the_warning_limit_of_pillow_are_embedded(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # Pillow warns above, raises above twice
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (40, 40)).save(tmp_path / "photos/large.png")
    Image.new("RGB", (1500, 1)).save(tmp_path / "photos/thin.png")
    assert embed_folder(tmp_path / "photos", out, TINY).rows == 2


def test_names_of_any_kind(photos: Path, out: Path) -> None:
    content = (photos / "b/0.png").read_bytes()
    for name in ("<b>&.png", "line\nbreak.png", "größe.png", ".hidden.png", "latin\udce9.png"):
        (photos / name).write_bytes(content)
    (photos / ".cache").mkdir()
    (photos / ".cache/a.png").write_bytes(content)
    (photos / "notes.txt").write_text("not an image")
    (photos / "broken\n.png").write_text("no image")
    result = embed_folder(photos, out, TINY, skip_bad=True)
    assert set(rows_of(out)) >= {"<b>&.png", "line\nbreak.png", "größe.png"}
    assert result.rows == 10
    broken, latin = Path(f"{out}.bad.txt").read_text().splitlines()
    assert broken.startswith("broken\\n.png\tits content is not one of BMP, GIF")
    assert latin == "latin\\udce9.png\tits name is not UTF-8; rename it"
