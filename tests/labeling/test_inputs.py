"""Images that are embedded before they are labelled."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semigpc.io.errors import DataError
from semigpc.labeling import label as inputs_module
from semigpc.labeling.columns import ColumnOptions
from semigpc.labeling.label import LabelSettings, is_image_folder, label_data
from semigpc.labeling.project import Project
from semigpc.models.encoder import EmbedConfig, EmbedResult, embed_folder
from tests.labeling.samples import labels_of, settings, write_labels

TINY = EmbedConfig(model="test_resnet", pretrained="none", image_size=32)
COLOURS = {"red": (200, 30, 30), "blue": (30, 30, 200)}


@pytest.fixture
def wanted(tmp_path: Path) -> LabelSettings:
    """Twelve images of either colour, four of each labelled."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    given = {}
    for i in range(24):
        kind = ("red", "blue")[i % 2]
        noise = rng.integers(-30, 30, (12, 12, 3))
        pixels = np.clip(np.array(COLOURS[kind]) + noise, 0, 255).astype(np.uint8)
        name = f"sub/{kind} {i:02d}.png" if i % 3 else f"{kind} {i:02d}.png"
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
        if i < 8:
            given[name] = kind
    wanted = settings(tmp_path, data=tmp_path / "photos", embed=TINY, target_precision=None)
    write_labels(tmp_path / "labels.csv", given, "file_name")
    return wanted


def test_images_are_embedded_and_labelled(
    wanted: LabelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[str] = []
    summary = label_data(wanted, progress=lambda stage, done, total: stages.append(stage))
    prepare, line, *others = dict.fromkeys(stages)
    assert prepare == "preparing test_resnet"
    assert " images at 32 px with test_resnet on torch, about " in line
    assert others == ["embedding", "reading", "fitting", "labelling"]
    assert summary["rows_noun"] == "images"
    rows = labels_of(wanted.out).to_pylist()
    assert len(rows) == 24
    assert all(row["guess"] in row["file_name"] for row in rows)
    studio = (wanted.out / "label_studio.json").read_text()
    assert '"image": "/data/local-files/?d=photos/' in studio
    project = Project.open(wanted.out)
    assert project.image(0) == wanted.data.resolve() / project.ids[0]
    moved = wanted.out.rename(wanted.out.with_name("moved"))  # the embeddings move along
    assert Project.open(moved).embeddings(np.array([1])).shape == (1, summary["width"])
    moved.rename(wanted.out)
    monkeypatch.setattr("semigpc.labeling.label.scan", None)
    assert label_data(wanted) == summary


def test_labels_are_checked_before_the_network_is_put_to_work(
    wanted: LabelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs_module, "embed_folder", None)
    assert wanted.labels is not None
    for content, words in (
        ("file_name,label\n../x.png,red\n", "leads out of the root"),
        ("file_name,label\nred 99.png,red\nblue 99.png,blue\n", "2 images .*: .red 99.png., .blue"),
        ("file_name,label\nred 00.png,red\n", "at least two classes"),
        ("file_name,label\nred 00.png,\n", "has no labels"),
    ):
        wanted.labels.write_text(content)
        with pytest.raises(DataError, match=words):
            label_data(wanted)
    with pytest.raises(DataError, match="Images need a table of labels"):
        label_data(replace(wanted, labels=None))
    with pytest.raises(DataError, match="is a folder of images"):
        label_data(replace(wanted, columns=ColumnOptions(id="name")))
    assert not wanted.out.exists()


def test_images_that_cannot_be_read(wanted: LabelSettings) -> None:
    broken = next(path for path in wanted.data.rglob("*.png") if path.name == "red 00.png")
    broken.write_text("no image")
    with pytest.raises(DataError, match=r"1 of 24 images cannot be read \(red 00\.png"):
        label_data(wanted)
    summary = label_data(replace(wanted, skip_bad=True))
    assert summary["rows"] == 23
    assert "left out: 1; embeddings.parquet.bad.txt" in summary["notes"][0]


def test_another_network_is_refused_unless_overwritten(wanted: LabelSettings) -> None:
    label_data(wanted)
    other = replace(wanted, embed=replace(TINY, image_size=40))
    words = r"network is \['test_resnet', 'none', 32, 'float16'\] there"
    with pytest.raises(DataError, match=words):
        label_data(other)
    assert label_data(other, overwrite=True)["rows"] == 24


def test_to_overwrite_embeds_nothing_again(
    wanted: LabelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    label_data(wanted)
    made: list[int | None] = []
    embed = embed_folder

    def counted(*arguments: Any, **options: Any) -> EmbedResult:
        result = embed(*arguments, **options)
        made.append(result.made)
        return result

    monkeypatch.setattr(inputs_module, "embed_folder", counted)
    label_data(wanted)
    label_data(wanted, overwrite=True)
    assert made == [None, 0]


def test_which_folders_hold_images(wanted: LabelSettings, tmp_path: Path) -> None:
    assert is_image_folder(wanted.data)
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a.parquet").write_bytes(b"")
    assert not is_image_folder(tmp_path / "shards")
    assert wanted.labels is not None
    assert not is_image_folder(wanted.labels)
