"""The adapter is its equation, takes features and nothing else, and goes back onto the network it
was trained on.
"""

import math

import pytest
import torch
from torch import Tensor

from semigpc.models import Adapter, Classifier, OnFrozen, SmallCNN
from semigpc.types import HeadSpec


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
    torch.testing.assert_close(
        adapter(100 * features - 30), adapter(features), rtol=1e-3, atol=1e-4
    )


def test_features_without_any_spread_are_numbers_still() -> None:
    adapter = Adapter(6, width=4)
    assert torch.equal(adapter(torch.full((2, 6), 3.0)), adapter.hidden.bias.relu().expand(2, 4))


def test_only_the_hidden_layer_learns() -> None:
    adapter = Adapter(12)
    assert {name: tuple(value.shape) for name, value in adapter.named_parameters()} == {
        "hidden.weight": (256, 12),
        "hidden.bias": (256,),
    }
    assert adapter.num_features == 256


@pytest.mark.parametrize(("n_inputs", "width"), [(1, 8), (0, 8), (8, 0)])
def test_impossible_adapters_are_refused(n_inputs: int, width: int) -> None:
    message = f"n_inputs must be at least 2 and width at least 1; got {n_inputs} and {width}."
    with pytest.raises(ValueError, match=message):
        Adapter(n_inputs, width)


def test_a_classifier_on_it_has_logits_features_and_heads(generator: torch.Generator) -> None:
    model = Classifier(
        Adapter(12, width=6), n_classes=3, heads={"projection": HeadSpec("projection", 4)}
    )
    features = torch.randn(5, 12, generator=generator)
    output = model(features)
    assert output.logits.shape == (5, 3)
    assert torch.equal(output.features, model.backbone(features))
    assert output.heads["projection"].shape == (5, 4)
    output.logits.sum().backward()
    assert all(
        model.get_parameter(f"backbone.hidden.{name}").grad is not None
        for name in ("weight", "bias")
    )


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
