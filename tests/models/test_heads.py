"""What every classifier answers, how its parameters are grouped for the optimiser, and the adapter
for features of a frozen network.
"""

import math
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from semigpc.models import MODELS, Adapter, Classifier, ModelConfig, OnFrozen, SmallCNN, build_model
from semigpc.types import HeadSpec

HEADS = {"rotation": HeadSpec("linear", 4), "projection": HeadSpec("projection", 16)}
VITS = [name for name in MODELS if name.startswith("vit")]


@cache
def built(name: str) -> Classifier:
    return build_model(ModelConfig(name=name), 7, HEADS)


def test_answers_with_logits_features_and_heads(generator: torch.Generator) -> None:
    model, images = Classifier(SmallCNN(8), 7, HEADS), torch.randn(5, 3, 8, 8, generator=generator)
    output = model.eval()(images)
    assert (model.n_features, model.n_classes) == (32, 7)
    torch.testing.assert_close(output.features, model.backbone(images))
    torch.testing.assert_close(
        output.logits, output.features @ model.classifier.weight.T + model.classifier.bias
    )
    shapes = {name: values.shape for name, values in output.heads.items()}
    assert shapes == {"rotation": (5, 4), "projection": (5, 16)}


def test_projections_are_unit_vectors_of_a_two_layer_network(generator: torch.Generator) -> None:
    head = Classifier(SmallCNN(8), 7, HEADS).heads["projection"]
    features = torch.randn(9, 32, generator=generator)
    z = head(features)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(9))
    inner = (features @ head.hidden.weight.T + head.hidden.bias).clamp(min=0)  # type: ignore[operator, union-attr]
    outer = inner @ head.out.weight.T + head.out.bias  # type: ignore[operator, union-attr]
    torch.testing.assert_close(z, outer / outer.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_projection_of_nothing_is_zero_and_not_nan(dtype: torch.dtype) -> None:
    head = Classifier(SmallCNN(8), 7, HEADS).heads["projection"].to(dtype)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    z = head(torch.ones(2, 32, dtype=dtype))
    z.sum().backward()
    assert not z.any()
    assert z.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())


def test_new_layers_start_as_pytorch_has_it() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Classifier(SmallCNN(), 10, HEADS)
    for layer in (model.classifier, model.heads["rotation"], model.heads["projection"].out):
        bound = 128**-0.5
        for parameter in layer.parameters():  # type: ignore[union-attr]
            assert 0.5 * bound < parameter.abs().max() <= bound


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_a_layer_and_every_layer_a_parameter(name: str) -> None:
    model = built(name)
    ids = model.layer_ids()
    assert set(ids) == {parameter for parameter, _ in model.named_parameters()}
    last = max(ids.values())
    assert set(ids.values()) == set(range(last + 1))
    on_top = {parameter for parameter in ids if not parameter.startswith("backbone.")}
    assert on_top == {parameter for parameter, layer in ids.items() if layer == last}


@pytest.mark.parametrize("name", VITS)
def test_layers_of_a_vit_are_the_recipes(name: str) -> None:
    model = built(name)
    for parameter, layer in model.layer_ids().items():
        part = parameter.removeprefix("backbone.")
        if part.startswith(("patch_embed.", "pos_embed", "cls_token")):
            assert layer == 0
        elif part.startswith("blocks."):
            assert layer == int(part.split(".")[1]) + 1
        elif part.startswith("norm."):
            assert layer == 12
        else:
            assert part.startswith(("classifier.", "heads."))
            assert layer == 13


def test_layers_of_convolutional_networks_go_from_stem_to_heads() -> None:
    small, wide = built("small_cnn").layer_ids(), built("wrn_28_2").layer_ids()
    assert [small[f"backbone.blocks.{i}.0.weight"] for i in range(3)] == [0, 1, 2]
    assert (small["classifier.weight"], small["heads.rotation.bias"]) == (3, 3)
    assert wide["backbone.stem.weight"] == 0
    assert [wide[f"backbone.blocks.{i}.3.conv2.weight"] for i in range(3)] == [1, 2, 3]
    assert (wide["backbone.norm.weight"], wide["classifier.weight"]) == (3, 4)


def test_layers_of_other_timm_models_are_timms() -> None:
    ids = build_model(ModelConfig(name="resnet18"), 7).layer_ids()
    assert ids["backbone.conv1.weight"] == 0
    first, last = (ids[f"backbone.layer{name}.weight"] for name in ("1.0.conv1", "4.1.conv2"))
    assert 0 < first < last < ids["classifier.weight"]


@pytest.mark.parametrize("name", MODELS)
def test_weight_decay_spares_vectors_positions_and_class_token_alone(name: str) -> None:
    model = built(name)
    spared = model.no_weight_decay()
    for parameter, values in model.named_parameters():
        token = parameter in ("backbone.pos_embed", "backbone.cls_token")
        assert (parameter in spared) == (values.ndim == 1 or token)
    assert ("backbone.pos_embed" in spared) == (name in VITS)


class Plain(nn.Module):
    """Somebody's own backbone, with the least that is asked of one."""

    num_features = 12

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 1))

    def forward(self, images: Tensor) -> Tensor:
        return (images * self.scale[..., None]).flatten(1)

    def no_weight_decay(self) -> set[str]:
        return {"scale", "not there"}


def test_any_module_with_num_features_is_a_backbone() -> None:
    model = Classifier(Plain(), 2)
    assert model(torch.zeros(5, 3, 2, 2)).logits.shape == (5, 2)
    assert model.layer_ids() == {"backbone.scale": 0, "classifier.weight": 1, "classifier.bias": 1}
    assert model.no_weight_decay() == {"backbone.scale", "classifier.bias"}


def test_refuses_images_and_features_of_another_shape() -> None:
    model = Classifier(Plain(), 2)
    with pytest.raises(ValueError, match=r"images must have shape \(M, 3, H,.*\(3, 2, 2\)\. Stack"):
        model(torch.zeros(3, 2, 2))
    with pytest.raises(ValueError, match=r"features of shape \(5, 12\); got \(5, 48\)"):
        model(torch.zeros(5, 3, 4, 4))


def test_refuses_heads_and_backbones_it_cannot_use() -> None:
    with pytest.raises(ValueError, match="n_classes must be at least 2; got 1"):
        Classifier(Plain(), 1)
    with pytest.raises(ValueError, match="the width of head 'z' must be at least 1; got 0"):
        Classifier(Plain(), 2, {"z": HeadSpec("linear", 0)})
    with pytest.raises(ValueError, match=r"of head 'z' must be one.*neural_process; got 'cosine'"):
        Classifier(Plain(), 2, {"z": HeadSpec("cosine", 4)})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a backbone must have num_features.*Identity has none"):
        Classifier(nn.Identity(), 2)


# The adapter for features of a frozen network -----------------------------------------------------


def by_hand(adapter: Adapter, features: Tensor) -> Tensor:
    """relu(W norm(f) + b), a number at a time."""
    weight, bias = adapter.hidden.weight.tolist(), adapter.hidden.bias.tolist()
    rows = []
    for f in features.tolist():
        mean = math.fsum(f) / len(f)
        variance = math.fsum((value - mean) ** 2 for value in f) / len(f)
        norm = [(value - mean) / math.sqrt(variance + 1e-5) for value in f]
        hidden = (
            math.fsum(w * v for w, v in zip(row, norm, strict=True)) + b
            for row, b in zip(weight, bias, strict=True)
        )
        rows.append([max(value, 0.0) for value in hidden])
    return torch.tensor(rows, dtype=torch.float64)


def test_the_adapter_is_its_equation(generator: torch.Generator) -> None:
    adapter = Adapter(7, width=5).double()
    features = 3 + 4 * torch.randn(9, 7, generator=generator, dtype=torch.float64)
    actual, expected = adapter(features), by_hand(adapter, features)
    assert 5 < int((expected == 0).sum()) < 40, "some on either side of the ramp"
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_scale_and_shift_of_the_features_do_not_matter(generator: torch.Generator) -> None:
    adapter = Adapter(64, width=8)
    features = torch.randn(5, 64, generator=generator)
    moved = adapter(100 * features - 30)
    torch.testing.assert_close(moved, adapter(features), rtol=1e-3, atol=1e-4)


def test_features_without_any_spread_are_numbers_still() -> None:
    adapter = Adapter(6, width=4)
    assert torch.equal(adapter(torch.full((2, 6), 3.0)), adapter.hidden.bias.relu().expand(2, 4))


def test_only_the_hidden_layer_learns() -> None:
    adapter = Adapter(12)
    shapes = {name: tuple(value.shape) for name, value in adapter.named_parameters()}
    assert shapes == {"hidden.weight": (256, 12), "hidden.bias": (256,)}
    assert adapter.num_features == 256


@pytest.mark.parametrize(("n_inputs", "width"), [(1, 8), (0, 8), (8, 0)])
def test_impossible_adapters_are_refused(n_inputs: int, width: int) -> None:
    message = f"n_inputs must be at least 2 and width at least 1; got {n_inputs} and {width}."
    with pytest.raises(ValueError, match=message):
        Adapter(n_inputs, width)


def test_a_classifier_on_it_has_logits_features_and_heads(generator: torch.Generator) -> None:
    model = Classifier(Adapter(12, width=6), 3, {"projection": HeadSpec("projection", 4)})
    features = torch.randn(5, 12, generator=generator)
    output = model(features)
    assert output.logits.shape == (5, 3)
    assert torch.equal(output.features, model.backbone(features))
    assert output.heads["projection"].shape == (5, 4)
    output.logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.backbone.parameters())


def test_images_for_an_adapter_and_features_for_a_network_are_refused() -> None:
    adapter, network = Classifier(Adapter(12), n_classes=3), Classifier(SmallCNN(), n_classes=3)
    with pytest.raises(ValueError, match=r"images must have shape.*n_inputs\); got \(2, 3, 8, 8\)"):
        adapter(torch.zeros(2, 3, 8, 8))
    with pytest.raises(ValueError, match=r"images must have shape \(M,.*Stack single images"):
        adapter(torch.zeros(12))
    with pytest.raises(ValueError, match=r"images must have shape \(M, 3, H, W\); got \(2, 12\)"):
        network(torch.zeros(2, 12))


def test_on_its_network_it_takes_images_again(generator: torch.Generator) -> None:
    frozen = SmallCNN().eval()
    classifier = Classifier(Adapter(frozen.num_features), n_classes=3)
    whole = OnFrozen(frozen, classifier).eval()
    images = torch.randn(4, 3, 8, 8, generator=generator)
    expected = classifier(frozen(images))
    output = whole(images)
    assert torch.equal(output.logits, expected.logits)
    assert torch.equal(output.features, expected.features)
