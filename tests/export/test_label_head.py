"""The label head of a run to a file: the network and the classifier on its rows."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from semigpc.data.folder import FolderConfig
from semigpc.export.network import TOLERANCE
from semigpc.export.run import export_run
from semigpc.io.images import square_of
from semigpc.models import ModelConfig, encoder
from semigpc.training import FrozenConfig, train
from semigpc.training.inference import load_run
from tests.cli.own_data import make_folder
from tests.training.small_runs import small_run

SIDE = 16
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run on photographs that is judged by its label head, and its trained heads at 8 pixels."""
    root = tmp_path_factory.mktemp("photographs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEMIGPC_CACHE", str(root / "cache"))
        patch.setattr(encoder, "DEFAULT_SIZE", SIDE)
        photos = make_folder(root)
        data = FolderConfig(
            root=str(photos), labels=str(root / "labels.csv"), test=str(root / "test.csv")
        )
        experiment = replace(
            small_run("fixmatch", "gp", "train.steps=6", "train.workers=0"),
            data=data,
            model=ModelConfig(name="small_cnn"),
            frozen=FrozenConfig(views=1, width=16, label_head=True),
        )
        train(experiment, root / "run")
        yield root / "run"


def test_the_file_returns_what_predict_returns(run: Path, tmp_path: Path) -> None:
    done = export_run(run, out=tmp_path / "model.onnx")
    assert json.loads((tmp_path / "model.onnx.json").read_text()) == done.facts
    assert done.facts["outputs"]["probabilities"]["head"] == "label"
    assert done.facts["check"]["test_images"] == 15
    session = onnxruntime.InferenceSession(done.path, providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["semigpc"])
    assert facts["preparation"] == {
        "decode": 2 * SIDE,
        "shorter_side": None,
        "size": SIDE,
        "square": True,
    }
    loaded, images = load_run(run).part("test")
    assert facts["class_names"] == list(loaded.class_names)
    assert facts["step"] == loaded.step
    pixels = np.stack([square_of(images[i], SIDE) for i in range(len(images))])
    inputs = (pixels.transpose(0, 3, 1, 2) / 255).astype(np.float32)
    probabilities, label = session.run(["probabilities", "label"], {"images": inputs})
    expected = loaded.predict(images, heads=["label"]).probs["label"]
    assert np.abs(probabilities - expected).max() <= TOLERANCE
    assert (label == expected.argmax(axis=1)).all()


def test_trained_heads_are_exported_by_name(run: Path, tmp_path: Path) -> None:
    done = export_run(run, head="gp", out=tmp_path / "model.onnx")
    assert done.facts["input"]["shape"] == ["M", 3, 8, 8]
    assert {name: each["head"] for name, each in done.facts["outputs"].items()} == {
        "probabilities": "gp"
    }


def test_without_test_images_it_is_checked_on_random_ones(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semigpc.training.inference.LoadedRun.has", lambda *_: False)
    monkeypatch.setattr(encoder, "DEFAULT_SIZE", SIDE)
    done = export_run(run, head="label", out=tmp_path / "model.onnx")
    assert done.facts["check"]["test_images"] == 0
    assert "had no test images" in done.facts["notes"][0]
