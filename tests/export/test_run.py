"""Whole runs to a file: what is inside, what is said about it, and what is refused."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from semigpc.addons import ADDONS
from semigpc.data import Augment
from semigpc.export import run as export_module
from semigpc.export.network import TOLERANCE, Exported
from semigpc.export.run import CHECK_IMAGES, export_run
from semigpc.gp import ExactGP, Expansion, NoExpansionError
from semigpc.io.errors import DifferenceError, NotExportableError, RunError, SettingsError
from semigpc.training import FrozenConfig, train
from semigpc.training.inference import LoadedRun, load_run
from semigpc.training.metrics import Head
from semigpc.training.state import EvaluationNetwork
from tests.training.small_runs import small_run

HELD_OUT = ("data.test_per_class=12", "data.validation_per_class=3")
FEWER = (*HELD_OUT, "data.split.unlabeled_head=60", "train.steps=14")
CLASSES = 10
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run on cached features of a frozen network, judged by its GP."""
    root = tmp_path_factory.mktemp("frozen")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEMIGPC_CACHE", str(root / "cache"))
        judged = ("refiner.eval_head=gp", "refiner.class_prior=frequency")
        experiment = small_run("simmatch", "gp", *FEWER, *judged)
        train(replace(experiment, frozen=FrozenConfig(views=2, width=32)), root / "run")
        yield root / "run"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a GP."""
    path = tmp_path_factory.mktemp("plain") / "run"
    train(small_run("fixmatch", "none", *FEWER), path)
    return path


@pytest.fixture(scope="module")
def done(frozen: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_run(frozen, out=tmp_path_factory.mktemp("onnx") / "sub" / "model.onnx")


def test_the_frozen_network_and_the_gp_are_inside(frozen: Path, done: Exported) -> None:
    """Bytes of the test images through the file alone, beside what ``semigpc evaluate`` goes by."""
    run = load_run(frozen)
    images = run.part("test")[1]
    expected = run.predict(images).probs
    augment = Augment(run.experiment.augment)
    pixels = np.stack([augment.evaluation_pixels(images[i]) for i in range(len(images))])
    session = onnxruntime.InferenceSession(done.path, providers=["CPUExecutionProvider"])
    names = ["probabilities", "gp_probabilities", "linear_probabilities"]
    said = session.run(names, {"images": (pixels.transpose(0, 3, 1, 2) / 255).astype(np.float32)})
    heads: tuple[Head, ...] = ("gp", "gp", "linear")
    for values, head in zip(said, heads, strict=True):
        assert np.abs(values - expected[head]).max() <= TOLERANCE
    # They are not the same question.
    assert np.abs(expected["gp"] - expected["linear"]).max() > 0.01


def test_the_facts_say_how_to_use_it(frozen: Path, done: Exported) -> None:
    facts = json.loads((done.path.parent / "model.onnx.json").read_text())
    assert facts == done.facts
    session = onnxruntime.InferenceSession(done.path, providers=["CPUExecutionProvider"])
    inside = json.loads(session.get_modelmeta().custom_metadata_map["semigpc"])
    beside_only = {"file", "format", "run", "check", "notes", "versions"}
    assert inside == {key: fact for key, fact in facts.items() if key not in beside_only}
    assert facts["class_names"] == [str(c) for c in range(CLASSES)]
    assert facts["input"]["shape"] == ["M", 3, 8, 8]
    assert facts["preparation"] == {"decode": 18, "shorter_side": None, "size": 8}
    assert facts["normalised_inside_by"]["mean"] == list(load_run(frozen).experiment.augment.mean)
    heads = {"probabilities": "gp", "gp_probabilities": "gp", "linear_probabilities": "linear"}
    assert {name: told["head"] for name, told in facts["outputs"].items()} == heads
    found = (facts["checkpoint"], facts["step"], facts["format"])
    assert found == ("best", load_run(frozen).step, "onnx")
    assert facts["gp"]["points"] == len(load_run(frozen).gp.engine)  # type: ignore[union-attr]
    check = facts["check"]
    assert (check["rows"], check["test_images"]) == (CHECK_IMAGES, 120)
    assert check["random_images"] == CHECK_IMAGES - 120
    assert check["largest_difference"] == max(check["of_each_output"].values()) <= TOLERANCE
    assert facts["versions"]["onnxruntime"] == onnxruntime.__version__
    assert facts["notes"] == []
    files = {file.name for file in done.path.parent.iterdir()}
    assert files == {"model.onnx", "model.onnx.json"}  # and no draft


def test_torch_reads_its_own_format_for_any_number_of_images(frozen: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    path = tmp_path / "model.pt2"

    def progress(stage: str, n: int, _: int | None) -> None:
        seen.append((stage, n))

    chosen: Any = {"kind": "torch", "head": "gp", "checkpoint": "last"}
    done = export_run(frozen, out=path, progress=progress, **chosen)
    stored = {"semigpc": ""}
    module = torch.export.load(path, extra_files=stored).module()
    assert json.loads(stored["semigpc"])["class_names"] == [str(c) for c in range(CLASSES)]
    for rows in (1, 3):
        said = module(torch.rand(rows, 3, 8, 8))
        assert list(said) == ["probabilities"]
        torch.testing.assert_close(said["probabilities"].sum(dim=1), torch.ones(rows))
    assert (done.facts["checkpoint"], done.facts["step"]) == ("last", 14)
    stages = [stage for stage, n in seen if n in (0, CHECK_IMAGES)]
    assert stages == ["Loading the run", "Writing model.pt2", "Checking"]


def changed(monkeypatch: pytest.MonkeyPatch, **parts: Any) -> None:
    """Runs load as they are, but for these parts."""

    def load(*asked: Any) -> LoadedRun:
        return replace(load_run(*asked), **parts)

    monkeypatch.setattr(export_module, "load_run", load)


def test_a_run_without_a_gp_exports_its_classifier(plain: Path, tmp_path: Path) -> None:
    done = export_run(plain, kind="torch", out=tmp_path / "model.pt2")
    assert list(done.facts["outputs"]) == ["probabilities"]
    assert done.facts["outputs"]["probabilities"]["head"] == "linear"
    assert done.facts["gp"] is None
    assert done.facts["notes"] == []
    with pytest.raises(SettingsError, match=r"was trained without a GP, so it has no GP head"):
        export_run(plain, kind="torch", out=tmp_path / "gp.pt2", head="gp")


def test_what_trained_with_16_bits_answers_in_float32(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = load_run(plain).experiment.override(["train.precision=bf16-mixed"])
    changed(monkeypatch, experiment=mixed)
    done = export_run(plain, kind="torch", out=tmp_path / "model.pt2")
    (note,) = done.facts["notes"]
    assert "float32" in note
    assert "bf16-mixed" in note


def test_a_gp_that_has_seen_nothing_is_left_out(
    frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gp = load_run(frozen).gp
    assert gp is not None
    changed(monkeypatch, gp=gp.empty_copy())
    done = export_run(frozen, kind="torch", out=tmp_path / "model.pt2")
    assert list(done.facts["outputs"]) == ["probabilities"]
    assert done.facts["outputs"]["probabilities"]["head"] == "linear"
    assert "had no labels at step" in done.facts["notes"][0]
    words = r"had no labels in its GP at step .*, so it has no GP head"
    with pytest.raises(SettingsError, match=words):
        export_run(frozen, kind="torch", out=tmp_path / "gp.pt2", head="gp")


def test_an_engine_without_an_expansion_is_refused_with_a_way_out(
    frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_such(_engine: ExactGP, *, offset: object = None) -> Expansion:
        raise NoExpansionError("this one is no sum.")

    monkeypatch.setattr(ExactGP, "expansion", none_such)
    words = r"the GP of .* cannot be exported: this one is no sum\. Or use head=linear"
    with pytest.raises(NotExportableError, match=words):
        export_run(frozen, kind="torch", out=tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []
    export_run(frozen, kind="torch", out=tmp_path / "model.pt2", head="linear")


def test_a_file_that_answers_otherwise_is_not_kept(
    frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "TOLERANCE", 0.0)
    words = r"differs from the run by .* in .*probabilities, and 0 is allowed; it was removed"
    with pytest.raises(DifferenceError, match=words):
        export_run(frozen, kind="torch", out=tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_answers_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(DifferenceError, match="by nan in gp_probabilities"):
        export_module._check_differences({"probabilities": 0.5, "gp_probabilities": float("nan")})


def test_without_its_images_it_is_checked_on_random_ones(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_run: LoadedRun, _part: str) -> None:
        raise RunError("the test images have changed.")

    monkeypatch.setattr(LoadedRun, "part", gone)
    done = export_run(plain, kind="torch", out=tmp_path / "model.pt2")
    assert done.facts["check"]["random_images"] == CHECK_IMAGES
    (note,) = done.facts["notes"]
    assert note.startswith("Checked on random images alone: ")
    assert "the test images have changed." in note


@pytest.mark.parametrize(
    ("name", "kind", "error", "words"),
    [
        ("model.pt2", "onnx", SettingsError, r"must end in \.onnx for kind=.*; got 'model\.pt2'"),
        ("model.onnx", "torch", SettingsError, r"must end in \.pt2 for kind=.*; got 'model\.onnx'"),
        (
            "folder.onnx",
            "onnx",
            SettingsError,
            r"folder\.onnx is a folder. Give the name of a file by out=",
        ),
        ("taken.onnx", "onnx", RunError, r"taken\.onnx exists. Give another name by out="),
        ("told.onnx", "onnx", RunError, r"told\.onnx\.json exists"),
    ],
)
def test_names_that_will_not_do(
    plain: Path, tmp_path: Path, name: str, kind: str, error: type[Exception], words: str
) -> None:
    (tmp_path / "folder.onnx").mkdir()
    for taken in ("taken.onnx", "told.onnx.json"):
        (tmp_path / taken).write_text("mine")
    with pytest.raises(error, match=words):
        export_run(plain, out=tmp_path / name, kind=kind)  # type: ignore[arg-type]
    assert (tmp_path / "taken.onnx").read_text() == "mine"


@pytest.mark.parametrize("addon", ["abc", "acr", "cdmad", "cossl", "none"])
def test_what_answers_in_place_of_the_linear_head_is_inside_too(addon: str, tmp_path: Path) -> None:
    """The second heads of ABC and ACR, the balanced one of CoSSL, the neural process of NP-Match;
    CDMAD's logits less those of an image without content.
    """
    algorithm = "npmatch" if addon == "none" else "fixmatch"
    options = {"cossl": {"warmup": 0.5, "start_steps": 20}}.get(addon, {})
    plain = small_run(algorithm, "none", *FEWER)
    train(replace(plain, addon=ADDONS[addon].config(**options)), tmp_path / "run")
    done = export_run(tmp_path / "run", kind="torch")
    assert done.facts["outputs"]
    run = load_run(tmp_path / "run")
    images = torch.rand(3, 3, 8, 8)
    program = torch.export.load(done.path).module()
    augment = run.experiment.augment
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (augment.mean, augment.std))
    network = run.network
    assert isinstance(network, EvaluationNetwork)
    with torch.no_grad():
        logits = network((images - mean) / std).logits
        plain_logits = network.network((images - mean) / std).logits
        said = program(images)["probabilities"]
    expected = torch.softmax(logits / run.temperatures["linear"], dim=1)
    assert torch.allclose(said, expected, atol=TOLERANCE)
    assert not torch.allclose(plain_logits, logits, atol=1e-3)
