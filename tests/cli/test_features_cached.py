"""The embedded network's features once, then training and evaluating on them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from semigpc.cli.train import describe_network
from semigpc.models import backbones
from semigpc.models.backbones import EMBEDDED_PACKAGE
from semigpc.training.presets import TrainOptions, make_cells, resolve
from tests.cli.calls import SHORT, refused, start, worked
from tests.cli.own_data import make_folder

needs_package = pytest.mark.skipif(
    find_spec(EMBEDDED_PACKAGE) is None, reason=f"{EMBEDDED_PACKAGE} is not installed"
)
pytestmark = pytest.mark.slow  # a folder of photographs is embedded once, in five seconds
IMAGES = 56


class Cached(NamedTuple):
    """A run, its cache, and what it printed."""

    run: Path
    cache: Path
    printed: str
    lines: str


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cached]:
    root = tmp_path_factory.mktemp("cached")
    photos, run = make_folder(root, unlabeled=10, test=4), root / "run"
    tables = ("--labels", root / "labels.csv", "--test", root / "test.csv")
    command = ("train", photos, *tables, "--features cached --image-size 32 --steps 60", SHORT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEMIGPC_CACHE", str(root / "cache"))
        with start(*command, "--out", run, cwd=root) as process:
            printed, lines = process.communicate(timeout=600)
        assert process.returncode == 0, lines
        yield Cached(run, root / "cache", printed, lines)


def results(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())["results"]
    return found


@needs_package
def test_training_computes_features_and_learns_from_them(cached: Cached) -> None:
    assert f"features: {IMAGES} of {IMAGES} images, 0 s left" in cached.lines
    first_line = cached.printed.partition("\n")[0]
    assert first_line.startswith("Network: tf_efficientnet_lite0, pre-trained and frozen")
    assert "32 px" in first_line
    assert "semigpc open" in cached.printed.splitlines()[1]
    assert "--model NAME" in first_line
    counts = "3 classes, 14 labelled images (one 5, two 3, zero 6), 30 unlabelled, 12 for test."
    assert f"Found {counts}" in cached.printed
    assert f"report: {cached.run / 'report.html'}" in cached.printed
    config = json.loads((cached.run / "config.json").read_text())
    network = {"name": "tf_efficientnet_lite0", "pretrained": "embedded"}
    assert config["model"] | network == config["model"]
    assert config["frozen"]["views"] >= 2
    assert (config["augment"]["image_size"], config["augment"]["mean"]) == (32, [0.5, 0.5, 0.5])
    assert (config["refiner"]["length_scale"], config["refiner"]["logit_scale"]) == ("auto", "auto")
    kinds = {path.name.partition("-")[0] for path in cached.cache.glob("*/*")}
    assert kinds == {"key.json", "views", "plain", "tf_efficientnet_lite0"}  # embeddings too
    assert config["frozen"]["label_head"]


@needs_package
def test_the_default_network_depends_on_the_images_and_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(side: int, **options: Any) -> tuple[str, bool, int, str | None]:
        folder = tmp_path / str(side)
        photos = folder / "photos" if folder.exists() else make_folder(folder, side=side)
        experiment, _ = resolve(str(photos), TrainOptions(labels=folder / "labels.csv", **options))
        model = experiment.model
        line = describe_network(experiment).partition(". ")[0]
        assert ("pre-trained" in line) == (model.pretrained is not None)
        frozen = experiment.frozen is not None
        return (model.name, frozen, experiment.augment.image_size, model.pretrained)

    def embedded(size: int, *, frozen: bool = True) -> tuple[str, bool, int, str]:
        return ("tf_efficientnet_lite0", frozen, size, "embedded")

    scratch = ("small_cnn", False, 32, None)
    assert chosen(32) == scratch
    assert chosen(32, cached=True) == embedded(96)
    assert chosen(33) == chosen(33, cached=True) == embedded(96)
    assert chosen(200) == embedded(160)
    assert chosen(200, image_size=224) == embedded(224)
    assert chosen(200, cached=False) == chosen(200, model="small_cnn") == scratch
    assert chosen(200, model="resnet18") == ("resnet18", False, 224, None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert chosen(32) == scratch
    assert chosen(200) == chosen(200, cached=False) == embedded(224, frozen=False)
    assert chosen(200, cached=True) == embedded(160)


@needs_package
def test_a_run_is_evaluated_on_images_without_the_cache(
    cached: Cached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "elsewhere"))
    found = json.loads(worked("evaluate", cached.run, "--json").stdout)
    heads = found["heads"]
    assert set(heads) == {"linear", "gp", "label"}
    assert heads["linear"]["n"] == 12
    assert found["head"] == "label"
    top1 = results(cached.run)["last"]["top1"]
    assert heads["label"]["top1"] == pytest.approx(top1, abs=0.1)  # one image on the edge
    assert heads["gp"]["balanced_accuracy"] > 0.6  # of three classes
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["embeddings"]


@needs_package
def test_predictions_are_those_of_label_and_need_no_other_head(
    cached: Cached, tmp_path: Path
) -> None:
    photos = cached.run.parent / "photos"
    out = tmp_path / "out"
    worked("label", photos, "--labels", cached.run.parent / "labels.csv", "--no-report --out", out)
    for model in (cached.run, out):
        worked("predict", model, photos, "--out", tmp_path / f"{model.name}.json")
    run, label = (
        {row["file_name"]: row for row in json.loads((tmp_path / f"{name}.json").read_text())}
        for name in ("run", "out")
    )
    same = [run[name]["guess"] == label[name]["guess"] for name in label]
    assert np.mean(same) > 0.9, "label has the test images among its unlabelled ones"


@needs_package
def test_labels_are_held_out_for_comparisons_only(cached: Cached) -> None:
    root = cached.run.parent
    options = TrainOptions(labels=root / "labels.csv", cached=True)
    own, _ = resolve(str(root / "photos"), options)
    assert own.has_label_head
    assert own.data.validation == 0.0
    asked, _ = resolve(str(root / "photos"), replace(options, validation="0.2"))
    assert asked.data.validation == 0.2
    both = {"algorithms": ["fixmatch"], "addons": ["none"], "refiners": ["none"], "settings": []}
    compared = replace(options, validation="0.2")
    cells, _ = make_cells(str(root / "photos"), compared, **both)
    assert not any(cell.experiment.has_label_head for cell in cells)


def test_without_the_package_it_says_which_extra_has_it_and_starts_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backbones, "find_spec", lambda _: None)
    photos = ("train", make_folder(tmp_path), "--labels", tmp_path / "labels.csv")
    run = tmp_path / "run"
    words = "pip install 'semigpc[embedded]'"
    said = refused(*photos, "--features cached --out", run, code=2, words=words)
    assert "--model small_cnn" in said
    assert not run.exists()


def test_a_transformer_is_made_for_the_images_it_sees(tmp_path: Path) -> None:
    folder = str(make_folder(tmp_path))
    options = TrainOptions(
        labels=tmp_path / "labels.csv", model="vit_tiny_patch16_224", cached=True
    )
    for size in (None, 64):
        experiment, _ = resolve(folder, replace(options, image_size=size))
        assert experiment.model.pretrained == "timm"
        assert experiment.model.image_size == experiment.augment.image_size == (size or 96)


def test_a_recipe_brings_its_own_network() -> None:
    command = "train digits --features cached --model resnet18"
    refused(command, code=2, words="model apply to your own data")
    options = TrainOptions(algorithm="remixmatch", refiner="none", cached=True)
    experiment, _ = resolve("digits", options)
    assert experiment.model.name == "tf_efficientnet_lite0"
    assert experiment.algorithm.rotation_weight == 0
