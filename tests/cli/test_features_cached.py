"""The embedded network's features once, then training, evaluating and predicting: for photographs,
and --features cached.
"""

import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch

from semigpc.cli.train import describe_network
from semigpc.models import backbones
from semigpc.models.backbones import EMBEDDED_PACKAGE
from semigpc.training.presets import TrainOptions, resolve
from tests.cli.calls import SHORT, refused, semigpc, start
from tests.cli.own_data import CLASSES, make_folder

needs_package = pytest.mark.skipif(
    find_spec(EMBEDDED_PACKAGE) is None, reason=f"{EMBEDDED_PACKAGE} is not installed"
)
pytestmark = pytest.mark.slow  # a folder of photographs is embedded once, in five seconds
IMAGES = 56


class Cached(NamedTuple):
    """Folders, the command that filled the cache, and what it printed."""

    root: Path
    photos: Path
    run: Path
    command: tuple[str | Path, ...]
    printed: str
    lines: str

    @property
    def shards(self) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (self.root / "cache").glob("*/*")}


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
        yield Cached(root, photos, run, command, printed, lines)


@pytest.fixture
def photos(tmp_path: Path) -> tuple[str | Path, ...]:
    """The beginning of a command about a folder."""
    labels = make_folder(tmp_path).parent / "labels.csv"
    return (
        "train",
        tmp_path / "photos",
        "--labels",
        labels,
        "--features cached --out",
        tmp_path / "run",
    )


def results(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())["results"]
    return found


@needs_package
def test_training_computes_features_and_learns_from_them(cached: Cached) -> None:
    assert f"features: {IMAGES} of {IMAGES} images, 0 s left" in cached.lines
    assert (
        "Found 3 classes, 14 labelled images (one 5, two 3, zero 6), 30 unlabelled, 12 for test."
        in cached.printed
    )
    assert f"report: {cached.run / 'report.html'}" in cached.printed
    config = json.loads((cached.run / "config.json").read_text())
    assert (
        config["model"] | {"name": "tf_efficientnet_lite0", "pretrained": "embedded"}
        == config["model"]
    )
    assert config["frozen"]["views"] >= 2
    assert (config["augment"]["image_size"], config["augment"]["mean"]) == (32, [0.5, 0.5, 0.5])
    assert {path.name.partition("-")[0] for path in cached.shards} == {"key.json", "views", "plain"}


@needs_package
def test_photographs_train_on_the_frozen_network_and_the_first_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))
    photos = make_folder(tmp_path, labels=(4, 3, 2), unlabeled=3, test=3, side=40)
    tables = ("--labels", tmp_path / "labels.csv", "--test", tmp_path / "test.csv")
    done = semigpc("train", photos, *tables, "--steps 60 --out", tmp_path / "run", SHORT)
    assert done.exit_code == 0, done.output
    first_line = done.stdout.partition("\n")[0]
    assert first_line.startswith("Network: tf_efficientnet_lite0, pre-trained and frozen")
    assert "96 px" in first_line
    assert "--model NAME" in first_line
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["model"]["name"], config["model"]["pretrained"]) == (
        "tf_efficientnet_lite0",
        "embedded",
    )
    assert config["frozen"] is not None
    assert (config["refiner"]["length_scale"], config["refiner"]["logit_scale"]) == ("auto", "auto")
    assert results(tmp_path / "run")["last"]["balanced_accuracy"] > 0.5  # of three classes


@needs_package
def test_the_default_network_depends_on_the_images_and_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(side: int, **options: Any) -> tuple[str, bool, int, str | None]:
        folder = tmp_path / str(side)
        photos = folder / "photos" if folder.exists() else make_folder(folder, side=side)
        experiment, _ = resolve(str(photos), TrainOptions(labels=folder / "labels.csv", **options))
        frozen = experiment.frozen is not None
        assert ("pre-trained" in describe_network(experiment).partition(". ")[0]) == (
            experiment.model.pretrained is not None
        )
        return (
            experiment.model.name,
            frozen,
            experiment.augment.image_size,
            experiment.model.pretrained,
        )

    embedded = "tf_efficientnet_lite0"
    assert chosen(32) == ("small_cnn", False, 32, None)
    assert chosen(32, cached=True) == (embedded, True, 96, "embedded")
    assert chosen(33) == chosen(33, cached=True) == (embedded, True, 96, "embedded")
    assert chosen(200) == (embedded, True, 160, "embedded")
    assert chosen(200, image_size=224) == (embedded, True, 224, "embedded")
    assert (
        chosen(200, cached=False)
        == chosen(200, model="small_cnn")
        == ("small_cnn", False, 32, None)
    )
    assert chosen(200, model="resnet18") == ("resnet18", False, 224, None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert chosen(32) == ("small_cnn", False, 32, None)
    assert chosen(200) == chosen(200, cached=False) == (embedded, False, 224, "embedded")
    assert chosen(200, cached=True) == (embedded, True, 160, "embedded")


@needs_package
def test_the_second_run_starts_without_computing_and_ends_the_same(
    cached: Cached, tmp_path: Path
) -> None:
    before = cached.shards
    done = semigpc(*cached.command, "--out", tmp_path / "again")
    assert done.exit_code == 0, done.output
    assert "features:" not in done.stderr
    assert cached.shards == before
    assert results(tmp_path / "again") == results(cached.run)


@needs_package
def test_other_algorithms_share_the_features(cached: Cached, tmp_path: Path) -> None:
    command = cached.command[:-1]  # there is no buffer to set
    done = semigpc(*command, "--out", tmp_path / "other", "--algorithm remixmatch --refiner none")
    assert done.exit_code == 0, done.output
    assert "features:" not in done.stderr


@needs_package
def test_a_run_is_evaluated_on_images_without_the_cache(
    cached: Cached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "elsewhere"))
    done = semigpc("evaluate", cached.run, "--json")
    assert done.exit_code == 0, done.output
    heads = json.loads(done.stdout)["heads"]
    assert set(heads) == {"linear", "gp"}
    assert heads["linear"]["n"] == 12
    assert heads["gp"]["top1"] == pytest.approx(
        results(cached.run)["last"]["top1"], abs=0.1
    )  # one image on the edge
    assert heads["gp"]["balanced_accuracy"] > 0.6  # of three classes
    assert not (tmp_path / "elsewhere").exists()


@needs_package
def test_a_run_labels_new_images(cached: Cached) -> None:
    done = semigpc("predict", cached.run, cached.photos, "--head gp --json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert len(rows) == IMAGES
    right = [
        row["label"].startswith(Path(row["file"]).name[:2]) for row in rows
    ]  # files begin as their class does
    assert {row["label"] for row in rows} == set(CLASSES)
    assert sum(right) > 0.6 * IMAGES


@needs_package
def test_a_cache_that_something_else_made_is_named(
    cached: Cached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = (path for path in cached.shards if path.name == "key.json")
    other = tmp_path / "cache" / key.parent.name / "key.json"
    shutil.copytree(key.parent, other.parent)
    other.write_text(json.dumps(json.loads(key.read_text()) | {"weights": "otherwise"}))
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))
    refused(
        *cached.command,
        "--out",
        tmp_path / "run",
        code=2,
        words=f"features in {other.parent} were made differently",
    )


@needs_package
def test_a_place_that_cannot_be_written_to_is_named(
    cached: Cached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "file"))
    words = f"Features cannot be written: {tmp_path / 'file'}"
    assert "set SEMIGPC_CACHE" in refused(
        *cached.command, "--out", tmp_path / "run", code=2, words=words
    )


def test_without_the_package_it_says_which_extra_has_it(
    photos: tuple[str | Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backbones, "find_spec", lambda _: None)
    said = refused(*photos, code=2, words="pip install 'semigpc[embedded]'")
    assert "--model small_cnn" in said
    assert not (tmp_path / "run").exists()


def test_a_network_that_nobody_knows(photos: tuple[str | Path, ...]) -> None:
    said = refused(
        *photos, "--model resnet8", code=2, words="model: unknown model 'resnet8'; did you mean"
    )
    assert "not foreseen" not in said


def test_a_network_without_weights_to_freeze(photos: tuple[str | Path, ...]) -> None:
    refused(
        *photos,
        "--model wrn_28_2",
        code=2,
        words="timm's hub has no weights for wrn_28_2; give pretrained a file",
    )


def test_weights_that_cannot_be_fetched(
    photos: tuple[str | Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("cannot reach the hub")

    monkeypatch.setattr(timm, "create_model", unreachable)
    said = refused(
        *photos,
        "--model resnet18",
        code=1,
        words="the hub weights of resnet18 could not be fetched",
    )
    assert "Without a network, fetch https://" in said
    assert "not foreseen" not in said


def test_a_transformer_is_made_for_the_images_it_sees(tmp_path: Path) -> None:
    folder = str(make_folder(tmp_path))
    for size in (None, 64):
        options = TrainOptions(
            labels=tmp_path / "labels.csv",
            model="vit_tiny_patch16_224",
            image_size=size,
            cached=True,
        )
        experiment, _ = resolve(folder, options)
        assert experiment.model.pretrained == "timm"
        assert experiment.model.image_size == experiment.augment.image_size == (size or 96)


def test_a_recipe_brings_its_own_network() -> None:
    refused(
        "train digits --features cached --model resnet18",
        code=2,
        words="model apply to your own data",
    )
    experiment, _ = resolve(
        "digits", TrainOptions(algorithm="remixmatch", refiner="none", cached=True)
    )
    assert (experiment.model.name, experiment.algorithm.rotation_weight) == (
        "tf_efficientnet_lite0",
        0,
    )
