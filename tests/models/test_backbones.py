"""The paper's transformers by our names, and the rest of timm by its own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semigpc.models import MODELS, ModelConfig, build_model
from semigpc.models.backbones import VITS, build_timm, build_vit

# patch, pixels, width, heads, stochastic depth, tokens without the class token
TABLE = {
    "vit_tiny_patch2_32": (2, 32, 192, 3, 0.1, 256),
    "vit_small_patch2_32": (2, 32, 384, 6, 0.2, 256),
    "vit_small_patch16_224": (16, 224, 384, 6, 0.2, 196),
}


@pytest.mark.parametrize("name", TABLE)
def test_transformers_follow_the_table(name: str) -> None:
    patch, pixels, width, n_heads, drop_path, n_tokens = TABLE[name]
    vit: Any = build_vit(name)
    assert vit.pos_embed.shape == (1, n_tokens + 1, width)
    assert vit.patch_embed.proj.weight.shape == (width, 3, patch, patch)
    assert [block.attn.num_heads for block in vit.blocks] == [n_heads] * 12
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in vit.blocks]
    torch.testing.assert_close(torch.tensor(rates), torch.linspace(0, drop_path, 12))
    assert {m.eps for m in vit.modules() if isinstance(m, nn.LayerNorm)} == {1e-6}
    assert {m.p for m in vit.modules() if isinstance(m, nn.Dropout)} <= {0.0}
    block = 12 * width**2 + 13 * width  # qkv, proj, two of the MLP; their biases and two norms
    stem = 3 * patch**2 * width + width + width + (n_tokens + 1) * width
    assert sum(p.numel() for p in vit.parameters()) == 12 * block + stem + 2 * width
    with torch.no_grad():
        assert vit.eval()(torch.zeros(1, 3, pixels, pixels)).shape == (1, width)


def test_the_feature_is_the_class_token_after_the_final_norm(generator: torch.Generator) -> None:
    vit: Any = build_vit("vit_tiny_patch2_32", image_size=8).eval()
    images = torch.randn(2, 3, 8, 8, generator=generator)
    seen: list[Tensor] = []
    vit.norm.register_forward_hook(lambda _module, _inputs, tokens: seen.append(tokens))
    features = vit(images)
    torch.testing.assert_close(features, seen[0][:, 0])
    assert seen[0].shape == (2, 17, 192)


def test_settings_replace_the_tables() -> None:
    config = ModelConfig(name="vit_small_patch16_224", image_size=64, patch_size=8, drop_path=0.0)
    vit: Any = build_model(config, 5).backbone
    assert vit.pos_embed.shape == (1, 65, 384)
    assert all(isinstance(block.drop_path1, nn.Identity) for block in vit.blocks)


@pytest.mark.parametrize(
    ("name", "width"),
    [("resnet18", 512), ("mobilenetv3_small_050", 1024), ("vit_tiny_patch16_224", 192)],
)
def test_any_timm_model_becomes_a_classifier(name: str, width: int) -> None:
    model = build_model(ModelConfig(name=name, image_size=32 if "vit" in name else None), 5).eval()
    output = model(torch.zeros(2, 3, 32, 32))
    assert (output.logits.shape, output.features.shape) == ((2, 5), (2, width))


def test_names_with_a_tag_are_timms_and_plain_ones_ours() -> None:
    ours: Any = build_model(ModelConfig(name="vit_small_patch16_224"), 5).backbone
    timms: Any = build_model(ModelConfig(name="vit_small_patch16_224.dino"), 5).backbone
    assert ours.blocks[11].drop_path1.drop_prob == pytest.approx(0.2)
    assert isinstance(timms.blocks[11].drop_path1, nn.Identity)


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("smal_cnn", "small_cnn"),
        ("wrn_28_10", "wrn_28_"),
        ("vit_tiny_patch2_23", "vit_tiny_patch2_32"),
        ("resnet81", "resnet18"),
        ("vit_small_patch16_224.dion", "vit_small_patch16_224.dino"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, close: str) -> None:
    with pytest.raises(KeyError, match=f"unknown model '{name}'; did you mean .*{close}"):
        build_model(ModelConfig(name=name), 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "resnet18", "image_size": 32}, "resnet18 has no image_size to set; got 32"),
        ({"name": "vgg11", "drop_path": 0.1}, r"timm's vgg11 has no drop_path to set; got 0\.1"),
        ({"name": "small_cnn", "patch_size": 2}, "images of any size.*got patch_size 2"),
        ({"name": "vit_tiny_patch2_32", "image_size": 33}, "got 33 and 2. Use 32"),
        ({"name": "wrn_28_2", "pretrained": "timm"}, "no weights for wrn_28_2"),
        ({"name": "vit_tiny_patch2_32", "pretrained": "timm"}, "no weights for vit_tiny_patch2_32"),
        ({"name": "deit_tiny_patch16_224", "patch_size": 8, "pretrained": "timm"}, "patch_size 8"),
    ],
)
def test_settings_a_model_does_not_have_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(ModelConfig(**settings), 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 0}, "image_size must be at least 1; got 0"),
        ({"patch_size": -2}, "patch_size must be at least 1; got -2"),
        ({"drop_path": 1.0}, r"drop_path must lie in \[0, 1\); got 1\.0"),
        ({"pretrained": ""}, "pretrained must be 'timm', 'embedded' or a file; got ''"),
    ],
)
def test_a_config_checks_its_ranges(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**settings)


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_args: object, **_settings: object) -> None:
        raise OSError("cannot reach the hub")

    monkeypatch.setattr("timm.create_model", no_network)
    with pytest.raises(RuntimeError, match=r"resnet18 could not be fetched \(OSError:.*elsewhere"):
        build_timm("resnet18", pretrained=True)
    with pytest.raises(OSError, match="cannot reach"):
        build_timm("resnet18")


def test_hub_weights_of_our_transformer_are_deits(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    create, asked = timm.create_model, []

    def offline(name: str, *, pretrained: bool, **settings: Any) -> nn.Module:
        asked.append((name, pretrained))
        model: nn.Module = create(name, **settings)
        return model.requires_grad_(False).apply(_fill)

    monkeypatch.setattr("timm.create_model", offline)
    vit: Any = build_model(
        ModelConfig(name="vit_small_patch16_224", image_size=96, pretrained="timm"), 5
    ).backbone
    assert asked == [("deit_small_patch16_224.fb_in1k", True)]
    assert (vit.blocks[11].mlp.fc2.weight == 0.25).all()
    assert vit.pos_embed.shape == (1, 37, 384)


def _fill(module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.fill_(0.25)


@pytest.mark.slow
def test_timm_is_imported_only_when_asked_for() -> None:
    code = (
        "import sys, semigpc.models as m; m.build_model(m.ModelConfig(), 3).layer_ids(); "
        "sys.exit(sum(name.split('.')[0] == 'timm' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path.cwd()).returncode == 0


def test_every_transformer_of_the_table_is_a_model() -> None:
    assert set(TABLE) == set(VITS) <= set(MODELS)
