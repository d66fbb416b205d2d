"""Embedding a folder: what the table holds, stops, bad images, and tables that are in the way."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from pyarrow import parquet

from semigpc.io.errors import DataError, WriteError
from semigpc.io.images import read_image
from semigpc.labeling import embed, embedding_table
from semigpc.labeling.embed import EmbedConfig, EmbedResult, Network, embed_folder, read_squares
from semigpc.models import encoder
from tests.data.samples import random_image, write_images
from tests.labeling.embedding_samples import TINY, leftovers, rows_of


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_images(tmp_path / "photos", {"b": 4, "a/deep": 3}, size=(20, 15))
    return tmp_path / "photos"


def check_same(one: Path, other: Path) -> None:
    """To the last bits of 16, in which a network may differ when a batch has other company."""
    assert list(rows_of(one)) == list(rows_of(other))
    assert np.allclose(
        list(rows_of(one).values()), list(rows_of(other).values()), rtol=2e-3, atol=1e-4
    )
    assert np.ptp(list(rows_of(one).values()), axis=0).max() > 1e-2  # images differ by more


def interrupted_after(images: int) -> Any:
    def progress(_stage: str, done: int, _total: int | None) -> None:
        if done >= images:
            raise KeyboardInterrupt

    return progress


def test_one_row_a_image_sorted_by_name_with_what_made_it(photos: Path, tmp_path: Path) -> None:
    progress: list[tuple[str, int, int | None]] = []
    result = embed_folder(
        photos, tmp_path / "x.parquet", TINY, progress=lambda *now: progress.append(now)
    )
    table = parquet.read_table(result.path)
    assert table.column_names == ["file_name", "embedding"]
    names = [
        "a/deep/0.png",
        "a/deep/1.png",
        "a/deep/2.png",
        "b/0.png",
        "b/1.png",
        "b/2.png",
        "b/3.png",
    ]
    assert table.column("file_name").to_pylist() == names
    assert str(table.schema.field("embedding").type).replace("element", "item") == (
        f"fixed_size_list<item: halffloat>[{result.key.width}]"
    )
    facts = json.loads(table.schema.metadata[b"semigpc"])
    assert facts | asdict(result.key) == facts
    assert (facts["network"], facts["image_size"], facts["precision"], facts["bad"]) == (
        "test_resnet",
        32,
        "float16",
        [],
    )
    assert len(facts["weights"]) == 64
    begin, line, *batches = progress
    assert begin == ("preparing test_resnet", 0, None)
    assert re.fullmatch(
        r"embedding 7 images at 32 px with test_resnet on torch, about \d+ s", line[0]
    )
    assert line[1:] == (0, 0)
    assert batches == [("embedding", 3, 7), ("embedding", 6, 7), ("embedding", 7, 7)]
    assert result[1:4] == (7, [], 7)
    assert leftovers(tmp_path) == []


def test_a_row_is_what_the_network_says_of_the_middle_square(photos: Path, tmp_path: Path) -> None:
    config = EmbedConfig(model="test_resnet", pretrained="none", image_size=32, precision="float32")
    rows = rows_of(embed_folder(photos, tmp_path / "x.parquet", config).path)
    square = ImageOps.fit(Image.open(photos / "b/2.png"), (32, 32), Image.Resampling.BILINEAR)
    alone = Network("test_resnet", "none", 32).embed(np.asarray(square)[None])[0]
    assert torch.allclose(torch.tensor(rows["b/2.png"]), alone, rtol=1e-4, atol=1e-5)


def test_the_embedded_network_is_the_default(tmp_path: Path) -> None:
    write_images(tmp_path / "photos", {"a": 2}, size=(40, 40))
    result = embed_folder(tmp_path / "photos", tmp_path / "x.parquet")
    key = result.key
    assert (key.network, key.image_size, key.precision, key.width) == (
        "tf_efficientnet_lite0",
        224,
        "float16",
        1280,
    )
    first, second = (np.array(row) for row in rows_of(result.path).values())
    assert 0 < np.abs(first - second).mean() < np.abs(first).mean()  # two images of the same kind


def test_after_a_stop_only_what_is_missing_is_embedded(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = embed_folder(photos, tmp_path / "whole.parquet", TINY).path
    monkeypatch.setattr(embedding_table, "PART", 3)
    monkeypatch.setattr(embedding_table, "GROUP", 2)
    out = tmp_path / "x.parquet"
    with pytest.raises(KeyboardInterrupt):
        embed_folder(photos, out, TINY, progress=interrupted_after(6))
    assert not out.exists()
    assert len(list((tmp_path / "x.parquet.parts").glob("part-*.parquet"))) == 2
    result = embed_folder(photos, out, TINY)
    assert (result.rows, result.made) == (7, 1)
    check_same(out, whole)
    assert parquet.ParquetFile(out).num_row_groups == 4
    assert leftovers(tmp_path) == ["whole.parquet"]


def test_images_that_came_or_changed_during_a_stop_are_embedded_too(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_table, "PART", 3)
    out = tmp_path / "x.parquet"
    with pytest.raises(KeyboardInterrupt):
        embed_folder(photos, out, TINY, progress=interrupted_after(6))
    random_image(20, 15, np.random.default_rng(5)).save(photos / "a/deep/0.png")
    random_image(30, 30, np.random.default_rng(6)).save(photos / "a/new.png")
    (photos / "a/deep/1.png").unlink()
    result = embed_folder(photos, out, TINY)
    assert (result.rows, result.made) == (7, 3)
    check_same(out, embed_folder(photos, tmp_path / "y.parquet", TINY).path)


def test_parts_of_other_settings_are_refused_until_told_to_overwrite(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_table, "PART", 3)
    with pytest.raises(KeyboardInterrupt):
        embed_folder(photos, tmp_path / "x.parquet", TINY, progress=interrupted_after(3))
    other = EmbedConfig(model="test_resnet", pretrained="none", image_size=64)
    with pytest.raises(
        DataError,
        match=r"x.parquet.parts holds parts .* its image_size is 32 and not 64\. .* begin again",
    ):
        embed_folder(photos, tmp_path / "x.parquet", other)
    assert embed_folder(photos, tmp_path / "x.parquet", other, overwrite=True).made == 7
    assert leftovers(tmp_path) == []


def test_a_damaged_part_is_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_table, "PART", 3)
    with pytest.raises(KeyboardInterrupt):
        embed_folder(photos, tmp_path / "x.parquet", TINY, progress=interrupted_after(3))
    part = next((tmp_path / "x.parquet.parts").glob("part-*.parquet"))
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(
        DataError, match=rf"{part.name} cannot be read as Parquet: .*Delete that file"
    ):
        embed_folder(photos, tmp_path / "x.parquet", TINY)


def test_a_finished_table_is_left_alone_while_nothing_changed(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.parquet"
    first = embed_folder(photos, out, TINY)
    before = out.stat().st_mtime_ns
    again = embed_folder(photos, out, TINY)
    assert (again.rows, again.made, out.stat().st_mtime_ns) == (first.rows, None, before)
    with pytest.raises(
        DataError,
        match=r"made otherwise: its precision is 'float16' and not 'float32'\. Ask to overwrite it",
    ):
        embed_folder(photos, out, EmbedConfig(**asdict(TINY) | {"precision": "float32"}))
    (photos / "b/3.png").unlink()
    with pytest.raises(
        DataError,
        match="with 7 rows, and was made of other images: some were added, taken away or changed",
    ):
        embed_folder(photos, out, TINY)
    assert embed_folder(photos, out, TINY, overwrite=True).rows == 6


def test_a_file_that_is_no_table_of_ours_is_not_touched(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.parquet"
    parquet.write_table(
        parquet.read_table(embed_folder(photos, out, TINY).path).replace_schema_metadata({}), out
    )
    with pytest.raises(DataError, match="was not made by semigpc embed"):
        embed_folder(photos, out, TINY)
    out.write_text("precious")
    with pytest.raises(DataError, match=r"x\.parquet cannot be read"):
        embed_folder(photos, out, TINY)
    assert out.read_text() == "precious"


def in_onnx_runtime_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "WORTHWHILE", 0)


def announced(photos: Path, out: Path, config: EmbedConfig = TINY) -> str:
    """Embed, and return the line with the number of images, the network and the engine."""
    lines: list[str] = []
    embed_folder(
        photos,
        out,
        config,
        progress=lambda stage, _, total: lines.append(stage) if total == 0 else None,
    )
    (line,) = lines
    return line


def test_onnx_runtime_and_torch_give_the_same_rows(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EmbedConfig(**asdict(TINY) | {"precision": "float32"})
    assert " on torch, about " in announced(photos, tmp_path / "x.parquet", config)
    in_onnx_runtime_always(monkeypatch)
    monkeypatch.setattr(embed, "granted", lambda: 2)
    assert " on ONNX Runtime, about " in announced(photos, tmp_path / "y.parquet", config)
    one, other = (rows_of(tmp_path / name) for name in ("x.parquet", "y.parquet"))
    assert list(one) == list(other)
    torch_rows, onnx_rows = (np.array(list(rows.values())) for rows in (one, other))
    assert np.abs(torch_rows - onnx_rows).max() <= 1e-3 * np.sqrt(np.square(torch_rows).mean())
    assert np.ptp(torch_rows, axis=0).max() > 1e-2  # images differ by more


@pytest.mark.slow
def test_the_embedded_network_is_the_same_in_onnx_runtime() -> None:
    network = Network("tf_efficientnet_lite0", "embedded", 96)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 96, 96, 3), dtype=np.uint8)
    expected = network.embed(pixels)
    assert network.accelerate() is None
    assert network.engine == "ONNX Runtime"
    assert (network.embed(pixels) - expected).abs().max() <= 1e-3 * expected.square().mean().sqrt()
    assert torch.allclose(
        network.embed(pixels[2:3])[0], expected[2], rtol=1e-3, atol=1e-3
    )  # any number of images


def test_without_onnx_runtime_torch_embeds_with_a_note(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_onnx_runtime_always(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "ONNX_PACKAGES", ("onnx", "onnxruntime_of_nowhere"))
        line = announced(photos, tmp_path / "x.parquet")
    assert " on torch, about " in line
    assert line.endswith(
        "; not on ONNX Runtime, which is faster: onnxruntime_of_nowhere not installed: pip install 'semigpc[embedded]'."
    )


def test_an_onnx_form_that_differs_is_not_used(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_onnx_runtime_always(monkeypatch)
    honest = encoder.open_onnx

    def wrong(path: Path, threads: int) -> Any:
        run = honest(path, threads)
        return lambda images: {name: 1.01 * values for name, values in run(images).items()}

    monkeypatch.setattr(encoder, "open_onnx", wrong)
    assert "on torch, about " in (line := announced(photos, tmp_path / "x.parquet"))
    assert "which is faster: ONNX Runtime differs from torch by " in line
    monkeypatch.undo()
    check_same(tmp_path / "x.parquet", embed_folder(photos, tmp_path / "y.parquet", TINY).path)


def test_a_network_without_onnx_form_is_embedded_by_torch(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Moody(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1) if float(images.sum()) > 0 else -images.flatten(1)

    in_onnx_runtime_always(monkeypatch)
    monkeypatch.setattr(embed, "build_model", lambda *_: SimpleNamespace(backbone=Moody()))
    assert "which is faster: the network cannot be traced: " in announced(
        photos, tmp_path / "x.parquet"
    )
    assert len(rows_of(tmp_path / "x.parquet")) == 7


def test_an_exporter_that_fails_leaves_the_work_to_torch(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ImportError("onnxscript is too old")

    in_onnx_runtime_always(monkeypatch)
    monkeypatch.setattr(encoder, "write_onnx", broken)
    assert announced(photos, tmp_path / "x.parquet").endswith(
        "which is faster: ImportError: onnxscript is too old."
    )
    assert len(rows_of(tmp_path / "x.parquet")) == 7


def test_a_large_jpeg_is_decoded_small_and_looks_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    coarse.resize((1600, 1200), Image.Resampling.BICUBIC).save(tmp_path / "a.jpg", quality=90)
    whole = ImageOps.fit(Image.open(tmp_path / "a.jpg"), (96, 96), Image.Resampling.BILINEAR)
    assert read_image(tmp_path / "a.jpg", at_least=192).size == (400, 300)
    _, pixels, _ = read_squares(tmp_path, ["a.jpg"], 96)
    difference = np.abs(pixels[0].astype(float) - np.asarray(whole, dtype=float))
    assert 0 < difference.mean() < 0.05 * np.asarray(whole).std()


def test_embeddings_that_do_not_fit_in_sixteen_bits_are_an_error(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Network, "embed", lambda _self, pixels: torch.full((len(pixels), 4), 1e6))
    with pytest.raises(
        DataError,
        match=r"The embeddings of test_resnet contain NaN or infinity in float16\. Try precision float32\.",
    ):
        embed_folder(photos, tmp_path / "x.parquet", TINY)
    assert (
        embed_folder(
            photos, tmp_path / "y.parquet", EmbedConfig(**asdict(TINY) | {"precision": "float32"})
        ).rows
        == 7
    )


def test_no_images_no_folder_and_no_place_to_write(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(
        words: str, folder: Path = photos, out: Path = tmp_path / "x.parquet"
    ) -> EmbedResult | None:
        with pytest.raises((DataError, WriteError), match=words):
            embed_folder(folder, out, TINY)
        return None

    (tmp_path / "empty").mkdir()
    wrong(r"There are no images below .*empty\. Known endings: \.bmp, ", folder=tmp_path / "empty")
    wrong("nowhere is not there. Give a folder", folder=tmp_path / "nowhere")
    wrong("0.png is a file. Give a folder", folder=photos / "b/0.png")
    wrong("must be a .parquet file; got the name 'x.csv'", out=tmp_path / "x.csv")
    wrong("since there is no folder", out=tmp_path / "nowhere/x.parquet")
    (tmp_path / "folder.parquet").mkdir()
    wrong("folder.parquet is a folder", out=tmp_path / "folder.parquet")
    (tmp_path / "full.parquet.parts").write_text("in the way")
    wrong("full.parquet.parts could not be written: File exists. ", out=tmp_path / "full.parquet")

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "write_table", full)
    wrong(
        r"part-\w+.parquet could not be written: the disk is full \(.* MB free in .*Make room, or choose another place"
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"model": "test_resnte"},
            "The network cannot be built: unknown model 'test_resnte'; did you mean 'test_resnet'",
        ),
        (
            {"pretrained": "embedded"},
            "the embedded weights are those of tf_efficientnet_lite0; got test_resnet",
        ),
        ({"pretrained": "nowhere.pth"}, "nowhere.pth"),
        (
            {"model": "test_vit", "image_size": 31},
            "test_vit cannot see images of 31 x 31 pixels|cannot be built",
        ),
        ({"precision": "float64"}, "precision must be float16 or float32; got 'float64'"),
        ({"image_size": 1}, "at least 2 pixels; got 1"),
        ({"batch": 0}, "batch must be 1 or more"),
    ],
)
def test_settings_that_cannot_be(
    photos: Path, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        embed_folder(photos, tmp_path / "x.parquet", EmbedConfig(**asdict(TINY) | settings))
    assert leftovers(tmp_path) == []


def test_a_network_of_fixed_size_is_built_for_the_size_asked_for() -> None:
    assert Network("test_vit", "none", None).image_size == 160
    assert Network("test_vit", "none", 64).embed(np.zeros((1, 64, 64, 3), np.uint8)).shape == (
        1,
        64,
    )
