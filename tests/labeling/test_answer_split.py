"""The row of a comparison without training says what ``semigpc label`` says of the same images."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from semigpc.data.dataset import ImageSet
from semigpc.data.folder import FolderConfig, load
from semigpc.data.splits import with_validation
from semigpc.io.errors import DataError, ImageError
from semigpc.io.images import ArrayImages
from semigpc.io.parts import CACHE_VARIABLE
from semigpc.labeling.inference import answer_split
from semigpc.labeling.label import LabelSettings, label_data
from semigpc.models.encoder import EmbedConfig
from tests.cli.own_data import make_folder

TINY = EmbedConfig(model="test_resnet", pretrained="none", image_size=32)


def unheard(done: int, total: int) -> None:
    pass


def test_it_says_of_unlabelled_images_what_label_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))  # no image has been embedded
    photos = make_folder(tmp_path, labels=(10, 8, 6), test=0)
    labels = tmp_path / "labels.csv"
    splits = load(FolderConfig(root=str(photos), labels=str(labels)), 0)
    heard: list[tuple[int, int]] = []
    probs, seconds = answer_split(
        TINY, splits, splits.unlabeled, 0, lambda done, total: heard.append((done, total))
    )
    assert seconds > 0
    assert heard[-1] == (60, 60)
    assert probs.shape == (36, 3)
    assert probs.sum(axis=1) == pytest.approx(np.ones(36), abs=1e-5)

    settings = LabelSettings(
        data=photos, labels=labels, out=tmp_path / "out", embed=TINY, report=False
    )
    label_data(settings)
    rows = parquet.read_table(tmp_path / "out" / "labels.parquet").to_pylist()
    said = {row["file_name"]: row for row in rows}
    for name, own in zip(splits.unlabeled.names, probs, strict=True):
        assert said[name]["guess"] == splits.class_names[own.argmax()]
        assert said[name]["confidence"] == pytest.approx(own.max(), abs=1e-6)


def test_it_does_not_learn_from_validation_or_judged_images(tmp_path: Path) -> None:
    photos = make_folder(tmp_path, labels=(10, 8, 6), unlabeled=4)
    config = FolderConfig(
        root=str(photos), labels=str(tmp_path / "labels.csv"), test=str(tmp_path / "test.csv")
    )
    splits = with_validation(load(config, 0), 0.25, 0)
    assert splits.test is not None
    probs, _ = answer_split(TINY, splits, splits.test, 0, unheard)
    alone, _ = answer_split(
        TINY, replace(splits, validation=None, test=None), splits.test, 0, unheard
    )
    assert np.array_equal(probs, alone)
    few = splits.test.subset(np.arange(3))
    assert answer_split(TINY, splits, few, 0, unheard)[0] == pytest.approx(probs[:3], abs=1e-6)


def test_images_that_it_cannot_use_are_an_error(tmp_path: Path) -> None:
    photos = make_folder(tmp_path, unlabeled=2)
    splits = load(FolderConfig(root=str(photos), labels=str(tmp_path / "labels.csv")), 0)
    (photos / splits.unlabeled.names[0]).write_text("no image")
    with pytest.raises(ImageError, match=r"1 images cannot be read .*Replace or remove"):
        answer_split(TINY, splits, splits.labeled, 0, unheard)
    pixels = np.zeros((len(splits.labeled), 8, 8), np.uint8)
    in_memory = ImageSet(ArrayImages(pixels), splits.labeled.labels, splits.labeled.names)
    with pytest.raises(DataError, match="images in files"):
        answer_split(TINY, splits, in_memory, 0, unheard)
