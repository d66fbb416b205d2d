"""``--model`` for photographs, with a cache that holds the weights of a tiny network."""

import json
from pathlib import Path

import pytest
import torch
from pyarrow import parquet

from semigpc.cli.train import describe_network
from semigpc.labeling.inference import load_labeling
from semigpc.models import networks
from semigpc.models.backbones import has_embedded_weights
from semigpc.models.networks import NETWORKS, Network
from semigpc.training.presets import TrainOptions, resolve
from tests.cli.calls import refused, worked
from tests.cli.own_data import make_folder
from tests.models.hub_cache import add_to_hub_cache, tiny_network

VIT = "test_vit.r160_in1k"
WIDTH = 64

needs_package = pytest.mark.skipif(
    not has_embedded_weights(), reason="the embedded weights are not installed"
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photographs and labels, and a table in which a tiny network is the best."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))
    best = Network(name="best", timm=VIT, width=WIDTH, image_size=32, megabytes=1, good_for="tests")
    monkeypatch.setattr(networks, "NETWORKS", (best, NETWORKS[-1]))
    make_folder(tmp_path, side=40)
    return tmp_path


def cache_weights(root: Path) -> None:
    add_to_hub_cache(root / "hub", f"timm/{VIT}", dict(tiny_network(VIT).state_dict()))


def network_of(table: Path) -> str:
    facts = json.loads(parquet.read_schema(table).metadata[b"semigpc"])
    assert isinstance(facts["network"], str)
    return facts["network"]


def test_embed_names_the_network_in_the_first_line(root: Path) -> None:
    cache_weights(root)
    command = ("embed", root / "photos", "--out", root / "x.parquet")
    lines = worked(*command).stdout.splitlines()
    assert lines[0].startswith(f"network: best ({VIT}), weights {root / 'hub'}")
    assert network_of(root / "x.parquet") == VIT
    quiet = worked(*command, "--json")
    assert json.loads(quiet.stdout)["network"] == VIT
    assert quiet.stderr.startswith("network: ")


@needs_package
@pytest.mark.slow
def test_weights_that_come_into_the_cache_later_change_nothing(root: Path) -> None:
    photos, out = root / "photos", root / "out"
    command = ("label", photos, "--labels", root / "labels.csv", "--out", out, "--no-report")
    first = worked(*command).stdout.splitlines()[0]
    assert first.startswith("network: tf_efficientnet_lite0, embedded weights")
    before = (out / "labels.csv").read_text()
    cache_weights(root)
    again = worked(*command).stdout.splitlines()[0]
    assert again == f"network: tf_efficientnet_lite0, as in {out / 'embeddings.parquet'}"
    assert (out / "labels.csv").read_text() == before
    other = root / "other"
    fixed = (*command[:4], "--out", other, "--no-report --model tf_efficientnet_lite0")
    worked(*fixed)
    assert (other / "labels.csv").read_text() == before


def test_label_and_predict_use_the_network_of_the_cache(root: Path) -> None:
    cache_weights(root)
    photos, out = root / "photos", root / "out"
    worked("label", photos, "--labels", root / "labels.csv", "--out", out, "--no-report")
    assert network_of(out / "embeddings.parquet") == VIT
    labelling = load_labeling(out)
    assert (labelling.embedding.model, labelling.embedding.image_size) == (VIT, 32)
    worked("predict", out, photos, "--out", root / "new.csv")


def test_a_short_name_that_cannot_be_downloaded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_arguments: object, **_more: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr("timm.create_model", offline)
    command = ("embed", root / "photos", "--out", root / "x.parquet", "--model best")
    told = refused(*command, code=1, words="could not be fetched (OSError: no network in tests)")
    for words in ("--pretrained", "SEMIGPC_WEIGHTS", "--model tf_efficientnet_lite0"):
        assert words in told


def test_train_takes_the_same_names(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(model: str | None, cached: bool | None = None) -> tuple[str, str | None, int, bool]:
        options = TrainOptions(labels=root / "labels.csv", model=model, cached=cached)
        experiment, _ = resolve(str(root / "photos"), options)
        assert experiment.model.name in describe_network(experiment)
        size = experiment.augment.image_size
        network = experiment.model
        return (network.name, network.pretrained, size, experiment.frozen is not None)

    if has_embedded_weights():
        assert chosen("auto") == chosen(None)
    assert chosen("best") == (VIT, "timm", 32, True)
    cache_weights(root)
    assert chosen("auto") == chosen("best")
    assert chosen("auto", cached=False) == (VIT, "timm", 32, False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert chosen("auto") == (VIT, "timm", 32, False)


@pytest.mark.slow
def test_a_run_trains_on_the_features_of_the_cached_network(root: Path) -> None:
    cache_weights(root)
    run = root / "run"
    command = ("train", root / "photos", "--labels", root / "labels.csv", "--model auto --out", run)
    done = worked(*command, "--steps 20 --set refiner.buffer_size=64 --set train.threads=1")
    assert done.stdout.startswith(f"Network: {VIT}, pre-trained (timm) and frozen")
    assert json.loads((run / "features.json").read_text())


def test_the_list_of_networks_says_what_is_on_the_disk(root: Path) -> None:
    shown = worked("list networks").stdout
    for words in ("best", VIT, "tests", "no", "not", "measured", "6.5 ms"):
        assert words in shown
    assert ", on this disk" not in json.loads(worked("list networks --json").stdout)["best"]
    cache_weights(root)
    assert ", on this disk" in json.loads(worked("list networks --json").stdout)["best"]
