"""Networks for photographs: which one `auto` takes, and what it is loaded from."""

import socket
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from semigpc.io.errors import DataError, HubError, SettingsError
from semigpc.models import ModelConfig, build_model, networks
from semigpc.models.backbones import EMBEDDED_MODEL, embedded_weights, has_embedded_weights
from semigpc.models.encoder import EmbedConfig, embed_folder
from semigpc.models.networks import (
    NETWORKS,
    ChosenNetwork,
    Network,
    choose_network,
    network_named,
)
from semigpc.models.pretrained import hub_file
from tests.data.samples import write_images
from tests.models.hub_cache import add_to_hub_cache, tiny_network

VIT = "test_vit.r160_in1k"
RESNET = "test_resnet.r160_in1k"


def tiny(name: str, model: str) -> Network:
    return Network(name=name, timm=model, width=64, image_size=160, megabytes=1, good_for="tests")


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches, a table of two tiny networks before the embedded one, and no network."""
    for variable, folder in (("HF_HUB_CACHE", "hub"), ("TORCH_HOME", "torch")):
        monkeypatch.setenv(variable, str(tmp_path / folder))
    monkeypatch.delenv("SEMIGPC_WEIGHTS", raising=False)
    table = (tiny("large", VIT), tiny("small", RESNET), NETWORKS[-1])
    monkeypatch.setattr(networks, "NETWORKS", table)

    def connect(*_arguments: object, **_more: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(socket.socket, "connect", connect)
    return tmp_path / "hub"


def cached(hub: Path, name: str) -> nn.Module:
    """Put a network into the cache; return it."""
    model = tiny_network(name)
    add_to_hub_cache(hub, f"timm/{name}", dict(model.state_dict()))
    return model


def features(model: nn.Module, size: int = 160) -> torch.Tensor:
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        result: torch.Tensor = model.eval()(images)
    return result


def built(config: EmbedConfig, size: int | None = None) -> nn.Module:
    model = ModelConfig(name=config.model, pretrained=config.source, image_size=size)
    return build_model(model, 2).backbone


def auto(model: str = "auto", earlier: Path | None = None, **options: Any) -> ChosenNetwork:
    return choose_network(EmbedConfig(model=model, **options), earlier=earlier)


# The table ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_the_table_says_what_timm_builds(network: Network) -> None:
    with torch.device("meta"):
        model: Any = timm.create_model(network.timm, num_classes=0)
    numbers = sum(value.numel() for value in model.state_dict().values())
    assert numbers * 4 / 1e6 == pytest.approx(network.megabytes, abs=0.6)
    published = timm.get_pretrained_cfg(network.timm)
    assert published is not None
    assert published.has_weights
    if network.timm != EMBEDDED_MODEL:  # whose rows hold its earlier stages too
        assert network.width == model.num_features
        assert "." in network.timm, "one of several sets of weights has to be named"


def test_names_are_short_and_none_stands_twice() -> None:
    names = [name for one in NETWORKS for name in {one.name, one.timm}]
    assert len(names) == len(set(names))
    assert {"dinov2", "siglip", "clip", "convnext"} <= set(names)
    assert NETWORKS[-1].timm == EMBEDDED_MODEL


# What auto takes ----------------------------------------------------------------------------------


def test_auto_takes_the_embedded_network_where_nothing_is_on_the_disk() -> None:
    chosen = auto()
    assert chosen.config == EmbedConfig(model=EMBEDDED_MODEL)
    assert chosen.line.startswith(f"network: {EMBEDDED_MODEL}, embedded")


def test_auto_takes_the_first_of_the_table_that_is_in_a_cache(hub: Path) -> None:
    cached(hub, RESNET)
    assert auto().config.model == RESNET
    cached(hub, VIT)
    chosen = auto()
    assert (chosen.config.model, chosen.config.source) == (VIT, "timm")
    assert chosen.line.startswith(f"network: large ({VIT}), weights {hub}")
    assert f"model={EMBEDDED_MODEL}" in chosen.line
    assert auto(EMBEDDED_MODEL).config == EmbedConfig()


def test_a_network_that_is_not_in_the_table_is_not_taken_by_itself(hub: Path) -> None:
    cached(hub, "test_vit2.r160_in1k")
    assert auto().config.model == EMBEDDED_MODEL


def test_a_download_that_was_stopped_does_not_count(hub: Path) -> None:
    blobs = hub / f"models--timm--{VIT}" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.incomplete").write_bytes(b"half")
    assert hub_file(VIT) is None
    assert auto().config.model == EMBEDDED_MODEL


def test_the_cache_of_torch_is_searched_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "vit_small_patch14_dinov2.lvd142m"
    file = tmp_path / "torch/hub/checkpoints/dinov2_vits14_pretrain.pth"
    assert hub_file(name) is None
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    assert hub_file(name) == file
    monkeypatch.setattr(networks, "NETWORKS", NETWORKS)
    assert auto().config.model == name


def test_the_folder_of_the_hub_follows_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    cached(tmp_path / "home" / "hub", VIT)
    assert auto().config.model == VIT
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert auto().config.model == EMBEDDED_MODEL
    cached(tmp_path / "cache" / "huggingface" / "hub", VIT)
    assert auto().config.model == VIT


def test_other_weights_than_auto_belong_to_the_embedded_network(hub: Path) -> None:
    cached(hub, VIT)
    config = auto(pretrained="none").config
    assert config == EmbedConfig(model=EMBEDDED_MODEL, pretrained="none")


def test_a_table_that_exists_keeps_its_network(tmp_path: Path, hub: Path) -> None:
    write_images(tmp_path / "photos", {"a": 2}, size=(9, 8))
    table = tmp_path / "x.parquet"
    config = EmbedConfig(model=RESNET, pretrained="none", image_size=32)
    embed_folder(tmp_path / "photos", table, config)
    cached(hub, VIT)
    chosen = auto(earlier=table)
    assert chosen.config == config
    assert str(table) in chosen.line
    assert auto("large", earlier=table).config.model == VIT
    assert auto(earlier=tmp_path / "none.parquet").config.model == VIT


# Weights of the user ------------------------------------------------------------------------------


def test_weights_of_the_user_come_before_the_caches(
    tmp_path: Path, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(hub, VIT)
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("SEMIGPC_WEIGHTS", str(own))
    model: Any = tiny_network("test_resnet", seed=3)
    torch.save(model.state_dict(), own / "small.pth")  # a short name
    torch.save({}, own / "resnet18.pth")  # not in the table, so after it
    torch.save({}, own / "checkpoint.pth")  # no network's name
    (own / "readme.txt").write_text("")
    chosen = auto()
    assert (chosen.config.model, chosen.config.pretrained) == (RESNET, str(own / "small.pth"))
    assert chosen.config.image_size == 160
    assert "SEMIGPC_WEIGHTS" in chosen.line
    model.reset_classifier(0)
    assert torch.equal(features(built(chosen.config)), features(model))
    monkeypatch.setenv("SEMIGPC_WEIGHTS", str(own / "resnet18.pth"))
    assert auto().config.model == "resnet18"


def test_a_named_network_takes_the_users_weights_and_the_embedded_one_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMIGPC_WEIGHTS", str(tmp_path))
    for name in (RESNET, EMBEDDED_MODEL):
        torch.save({}, tmp_path / f"{name}.pth")
    assert auto("small").config.pretrained == str(tmp_path / f"{RESNET}.pth")
    assert auto("large").config.source == "timm"
    assert auto(EMBEDDED_MODEL).config == EmbedConfig()


@pytest.mark.parametrize("place", ["nowhere", "empty", "others"])
def test_a_variable_that_names_nothing_is_an_error(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "checkpoint.pth").write_bytes(b"")
    monkeypatch.setenv("SEMIGPC_WEIGHTS", str(tmp_path / place))
    with pytest.raises(SettingsError, match=f"SEMIGPC_WEIGHTS is .*{place}"):
        auto()
    assert auto(EMBEDDED_MODEL).config == EmbedConfig()


# Loading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [RESNET, VIT])
def test_cached_weights_are_loaded_without_a_hub(hub: Path, name: str) -> None:
    model: Any = cached(hub, name)
    model.reset_classifier(0)
    config = auto(name).config
    assert torch.equal(features(built(config)), features(model))


def test_a_transformer_of_another_size_is_resized_as_timm_does(hub: Path) -> None:
    model = cached(hub, VIT)
    config = EmbedConfig(model=VIT, pretrained="timm", image_size=96)
    ours = built(config, size=96)
    theirs = timm.create_model(
        VIT,
        pretrained=True,
        pretrained_cfg_overlay={"state_dict": model.state_dict()},
        num_classes=0,
        img_size=96,
    )
    assert torch.equal(features(ours, 96), features(theirs, 96))
    assert config.encoder().width == 64


@pytest.mark.parametrize("content", ["cut", "other"])
def test_a_damaged_cache_is_an_error_that_names_the_file(hub: Path, content: str) -> None:
    cached(hub, VIT)
    file = hub_file(VIT)
    assert file is not None
    damaged = file.read_bytes()[:5000]
    if content == "other":
        add_to_hub_cache(hub, "other/model", {"a": torch.zeros(2)})
        damaged = (hub / "models--other--model/blobs/abc").read_bytes()
    file.resolve().write_bytes(damaged)
    with pytest.raises(DataError, match=r"model\.safetensors.*delete it"):
        auto("large").config.encoder()


def test_a_network_that_cannot_be_downloaded_says_what_to_do() -> None:
    config = auto("small").config
    with pytest.raises(HubError, match=r"test_resnet.*could not be fetched.*SEMIGPC_WEIGHTS"):
        config.encoder()


def test_a_short_name_is_the_timm_model_of_the_table() -> None:
    chosen = auto("large", image_size=None, precision="float32")
    expected = EmbedConfig(model=VIT, image_size=160, precision="float32")
    assert chosen.config == expected
    assert network_named("resnet18") is None
    assert auto("resnet18").config == EmbedConfig(model="resnet18")


@pytest.mark.skipif(not has_embedded_weights(), reason="the embedded weights are not installed")
def test_cached_weights_of_the_embedded_network_do_not_replace_its_own(hub: Path) -> None:
    model = tiny_network(EMBEDDED_MODEL)
    add_to_hub_cache(hub, "timm/tf_efficientnet_lite0.in1k", dict(model.state_dict()))
    config = auto().config
    assert config.source == "embedded"
    backbone = built(config)
    expected = embedded_weights(EMBEDDED_MODEL, backbone)["conv_stem.weight"]
    assert torch.equal(backbone.state_dict()["conv_stem.weight"], expected)
