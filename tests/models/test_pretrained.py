"""Weight files as others write them: what goes in, what is left out, what is refused."""

import collections
import logging
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from semigpc.models import ModelConfig, SmallCNN, WideResNet, build_model, load_weights
from semigpc.models.pretrained import resize_positions

Weights = dict[str, Tensor]


def tiny_vit(*, patch_size: int = 2, image_size: int = 8, **settings: Any) -> nn.Module:
    settings |= {"img_size": image_size, "patch_size": patch_size, "num_classes": 0}
    vit: nn.Module = VisionTransformer(embed_dim=12, depth=2, num_heads=3, **settings)
    return vit


def random_weights(backbone: nn.Module, seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(value.shape, generator=generator)
        for name, value in backbone.state_dict().items()
    }


def prefixed(weights: Weights) -> Weights:
    return {f"module.{name}": value for name, value in weights.items()}


def usb_file(weights: Weights) -> dict[str, object]:
    tops = {
        "fc.weight": torch.ones(5, 12),
        "classifier.bias": torch.ones(5),
        "mlp.0.weight": torch.ones(2),
        "head.bias": torch.ones(5),
    }
    return {"model": prefixed({**weights, **tops}), "epoch": 3}


def dino_file(weights: Weights) -> dict[str, object]:
    return dict(weights)


def msn_file(weights: Weights) -> dict[str, object]:
    tops = {"fc.fc1.weight": torch.ones(3, 12), "fc.bn1.running_mean": torch.ones(3)}
    online = {name: value + 1 for name, value in weights.items()}
    optimizer = {
        "state": {0: {"step": 1, "exp_avg": torch.ones(2)}},
        "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999)}],
    }
    rest = {"opt": optimizer, "epoch": 800, "loss": 1.5, "scaler": None}
    return {
        "encoder": prefixed({**online, **tops}),
        "target_encoder": prefixed({**weights, **tops}),
        "prototypes": torch.ones(4, 3),
        **rest,
    }


def timm_file(weights: Weights) -> dict[str, object]:
    return {
        "state_dict": {**weights, "head.weight": torch.ones(5, 12), "head.bias": torch.ones(5)},
        "arch": "vit",
    }


FILES = {"usb": usb_file, "dino": dino_file, "msn": msn_file, "timm": timm_file}
N_DROPPED = {"usb": 4, "dino": 0, "msn": 2, "timm": 2}


def assert_holds(backbone: nn.Module, weights: Weights) -> None:
    state = backbone.state_dict()
    assert set(state) == set(weights)
    assert all(torch.equal(state[name], value) for name, value in weights.items())


@pytest.mark.parametrize("layout", FILES)
@pytest.mark.parametrize("ending", [".pth", ".pth.tar"])
def test_every_layout_comes_back_as_it_was_saved(layout: str, ending: str, tmp_path: Path) -> None:
    vit, path = tiny_vit(), tmp_path / f"weights{ending}"
    weights = random_weights(vit, 1)
    torch.save(FILES[layout](weights), path)
    report = load_weights(vit, path)
    assert_holds(vit, weights)
    assert report.loaded == tuple(weights)
    assert (len(report.dropped), report.unexpected, report.resized) == (N_DROPPED[layout], (), ())


def test_safetensors_and_the_older_format_of_torch_are_read_too(tmp_path: Path) -> None:
    vit = tiny_vit()
    for seed, ending in enumerate((".safetensors", ".pt")):
        weights, path = random_weights(vit, seed), tmp_path / f"weights{ending}"
        if ending == ".safetensors":
            save_file(weights, path)
        else:
            torch.save(weights, path, _use_new_zipfile_serialization=False)
        load_weights(vit, str(path))
        assert_holds(vit, weights)


def test_convolutional_networks_round_trip_with_their_running_statistics(tmp_path: Path) -> None:
    for network, copy in ((SmallCNN(4), SmallCNN(4)), (WideResNet(10), WideResNet(10))):
        network(torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
        torch.save({"model": network.state_dict()}, tmp_path / "conv.pth")
        load_weights(copy, tmp_path / "conv.pth")
        assert_holds(copy, network.state_dict())


def test_step_counts_of_batch_norm_may_be_absent() -> None:
    network = SmallCNN(4)
    report = load_weights(
        network, {k: v for k, v in network.state_dict().items() if "tracked" not in k}
    )
    assert len(report.loaded) == 15


@pytest.mark.parametrize(
    "name",
    ["patch_embed.proj.weight", "pos_embed", "cls_token", "blocks.1.mlp.fc2.bias", "norm.weight"],
)
@pytest.mark.parametrize("layout", FILES)
def test_a_missing_part_is_named_and_nothing_is_loaded(layout: str, name: str) -> None:
    vit = tiny_vit()
    before, weights = {k: v.clone() for k, v in vit.state_dict().items()}, random_weights(vit, 1)
    del weights[name]
    with pytest.raises(ValueError, match=rf"must be in.*given weights; missing: {name}\. Not used"):
        load_weights(vit, FILES[layout](weights))
    assert_holds(vit, before)


def test_a_convolutional_network_misses_any_of_its_parts() -> None:
    network = WideResNet(10)
    weights = network.state_dict()
    del weights["blocks.1.0.bn2.running_var"]
    with pytest.raises(ValueError, match=r"missing: blocks\.1\.0\.bn2\.running_var"):
        load_weights(network, weights)


def test_unexpected_parts_are_reported_and_fc_norm_is_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vit = tiny_vit()
    weights = random_weights(vit, 1)
    extra = {"fc_norm.weight": torch.ones(12), "blocks.2.norm1.weight": torch.ones(12)}
    report = load_weights(vit, usb_file({**weights, **extra}))
    assert report.unexpected == tuple(extra)
    assert_holds(vit, weights)

    network = SmallCNN()
    torch.save({**network.state_dict(), "neck.weight": torch.ones(2)}, tmp_path / "cnn.pth")
    with caplog.at_level(logging.WARNING):
        build_model(ModelConfig(pretrained=str(tmp_path / "cnn.pth")), 3)
    assert "not used, since the backbone has no such part: neck.weight" in caplog.text


def test_fc_norm_is_loaded_where_the_backbone_has_one() -> None:
    vit = tiny_vit(global_pool="avg", class_token=False)
    weights = random_weights(vit, 1)
    assert "fc_norm.weight" in weights
    load_weights(vit, usb_file(weights))
    assert_holds(vit, weights)


def test_msn_is_read_from_the_target_and_never_from_the_online_encoder() -> None:
    contents = msn_file(random_weights(tiny_vit(), 1))
    del contents["target_encoder"]
    with pytest.raises(ValueError, match=r"missing: cls_token, .* Not used from the.*prototypes\."):
        load_weights(tiny_vit(), contents)


@pytest.mark.parametrize("image_size", [4, 16])
def test_positions_are_resized_bicubically_and_the_class_token_kept(image_size: int) -> None:
    vit, grid = tiny_vit(image_size=image_size), image_size // 2
    weights = random_weights(tiny_vit(), 1)
    report = load_weights(vit, usb_file(weights))
    assert report.resized == ("pos_embed",)
    old = weights["pos_embed"]
    maps = torch.stack([old[0, 1:, d].reshape(4, 4) for d in range(12)])[None]
    maps = F.interpolate(maps, (grid, grid), mode="bicubic", align_corners=False)[0]
    positions = vit.state_dict()["pos_embed"]
    assert torch.equal(positions[:, 0], old[:, 0])
    torch.testing.assert_close(positions[0, 1:], torch.stack([m.flatten() for m in maps], dim=1))
    assert_holds(vit, {**weights, "pos_embed": positions})


def test_resizing_keeps_a_smooth_field_in_place() -> None:
    """Positions that are their own coordinates stay so on a finer grid, to 0.05."""
    rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    coordinates = torch.stack([rows, columns], dim=-1).reshape(1, 64, 2)
    coarse = torch.cat([torch.zeros(1, 1, 2), coordinates], dim=1)
    fine = resize_positions(coarse, 257)[:, 1:].reshape(16, 16, 2)[4:12, 4:12]
    line = ((torch.arange(16.0) + 0.5) / 2 - 0.5)[4:12]
    expected = torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=-1)
    torch.testing.assert_close(fine, expected, atol=0.05, rtol=0)


def test_a_grid_that_is_not_square_is_refused() -> None:
    with pytest.raises(ValueError, match="1 and a square grid to be resized; got 13"):
        resize_positions(torch.zeros(1, 13, 4), 17)


def test_kernels_of_another_patch_are_refused_and_other_shapes_listed() -> None:
    small, vit = tiny_vit(), tiny_vit(patch_size=16, image_size=64)
    with pytest.raises(ValueError, match=r"backbone's size, 2x2;.*16x16\. Kernels are not resized"):
        load_weights(small, random_weights(vit, 1))
    weights = random_weights(small, 1)
    weights["norm.bias"] = torch.zeros(7)
    with pytest.raises(ValueError, match=r"norm\.bias \(7,\) for \(12,\)"):
        load_weights(small, weights)


class Payload:
    """What an attacker would put in a file: a call made while it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle"])
def test_code_in_a_file_is_refused_and_never_run(kind: str, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "bad.pth"
    contents = {"target_encoder": random_weights(tiny_vit(), 1), "opt": Payload(trace)}
    if kind == "pickle":
        path.write_bytes(pickle.dumps({"opt": Payload(trace)}, protocol=2))
    else:
        torch.save(contents, path, _use_new_zipfile_serialization=kind == "zip")
    with pytest.raises(
        ValueError, match=r"would run code from.*torch\.save the part that holds the weights"
    ) as refusal:
        load_weights(tiny_vit(), path)
    assert not trace.exists()
    assert ("pathlib.Path" if kind == "zip" else "getattr") in str(refusal.value)


def test_harmless_objects_beside_the_weights_are_named_too(tmp_path: Path) -> None:
    contents = {"target_encoder": random_weights(tiny_vit(), 1), "opt": math.fsum}
    torch.save(contents, tmp_path / "msn.pth.tar")
    with pytest.raises(ValueError, match=r"also holds math\.fsum.*for MSN \{'target_encoder'"):
        load_weights(tiny_vit(), tmp_path / "msn.pth.tar")


def test_ordered_dicts_are_fine(tmp_path: Path) -> None:
    vit = tiny_vit()
    torch.save(collections.OrderedDict(random_weights(vit, 1)), tmp_path / "ordered.pt")
    assert load_weights(vit, tmp_path / "ordered.pt").loaded


def test_what_is_no_weight_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"a file that exists; got .*nowhere\.pth"):
        load_weights(tiny_vit(), tmp_path / "nowhere.pth")
    for contents in (b"", b"<html>404</html>", b"\x80\x02."):
        (tmp_path / "text.pth").write_bytes(contents)
        with pytest.raises(ValueError, match=r"text\.pth is not a weight file"):
            load_weights(tiny_vit(), tmp_path / "text.pth")
    torch.save(torch.ones(3), tmp_path / "tensor.pth")
    with pytest.raises(ValueError, match=r"must hold a dict; .* holds a Tensor"):
        load_weights(tiny_vit(), tmp_path / "tensor.pth")
    with pytest.raises(ValueError, match=r"at the top level.*'state_dict'.*but student, teacher"):
        load_weights(tiny_vit(), {"student": {}, "teacher": {}})


def test_a_model_is_built_from_a_file_with_a_fresh_classifier(tmp_path: Path) -> None:
    network = SmallCNN()
    torch.save({"model": prefixed(network.state_dict())}, tmp_path / "cnn.pth")
    model = build_model(ModelConfig(pretrained=str(tmp_path / "cnn.pth")), 3)
    assert_holds(model.backbone, network.state_dict())
