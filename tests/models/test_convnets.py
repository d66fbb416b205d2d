"""The convolutional networks: shapes, the recipe's settings, and that the small one learns."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from semigpc.models import Classifier, SmallCNN, WideResNet
from semigpc.models.convnets import Unit


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (8, 8), (8, 11), (28, 28), (32, 32)])
def test_images_of_any_size_become_one_feature_each(
    size: tuple[int, int], generator: torch.Generator
) -> None:
    features = SmallCNN(8)(torch.randn(2, 3, *size, generator=generator))
    assert features.shape == (2, 32)
    assert features.isfinite().all()


@pytest.mark.parametrize(
    ("size", "last_map"), [(3, 3), (4, 2), (8, 2), (16, 4), (32, 4), (28, 3), (17, 2)]
)
def test_halves_only_while_two_by_two_pixels_are_left(size: int, last_map: int) -> None:
    network, seen = SmallCNN(4), []
    network.blocks[-1].register_forward_hook(
        lambda _module, _inputs, maps: seen.append(maps.shape[-2:])
    )
    network(torch.zeros(2, 3, size, size))
    assert seen == [(last_map, last_map)]


def test_evaluation_judges_each_image_alone_and_training_does_not(
    generator: torch.Generator,
) -> None:
    network, images = SmallCNN(8), torch.randn(6, 3, 8, 8, generator=generator)
    together = network(images)
    assert not torch.allclose(network(images[:3]), together[:3], atol=1e-3)
    network.eval()
    torch.testing.assert_close(network(images[:3]), network(images)[:3])


def test_the_default_is_128_features_wide_and_ends_in_relu(generator: torch.Generator) -> None:
    network = SmallCNN()
    features = network(torch.randn(4, 3, 8, 8, generator=generator))
    assert features.shape == (4, network.num_features) == (4, 128)
    assert (features >= 0).all()


@pytest.mark.slow
def test_learns_digits(generator: torch.Generator) -> None:
    digits = load_digits()
    images = torch.tensor(digits.images / 8 - 1, dtype=torch.float32)[:, None].expand(-1, 3, -1, -1)
    labels = torch.tensor(digits.target)
    train, test = torch.randperm(len(labels), generator=generator).tensor_split([1000])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Classifier(SmallCNN(), 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        rows = train[torch.randint(len(train), (64,), generator=generator)]
        loss = F.cross_entropy(model(images[rows]).logits, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[test]).logits.argmax(dim=1) == labels[test]).float().mean()
    assert accuracy > 0.96  # 0.985 to 0.995 over seeds


def test_wrn_28_2_has_its_28_layers_128_features_and_a_million_and_a_half_parameters() -> None:
    network = WideResNet()
    assert network.num_features == 128
    three_by_three = [
        m for m in network.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)
    ]
    assert len(three_by_three) + 3 == 28  # three 1x1 shortcuts are counted by tradition
    assert sum(p.numel() for p in network.parameters()) == 1_466_336
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 128)


def test_every_parameter_is_reached_by_the_gradient(generator: torch.Generator) -> None:
    network = WideResNet(10)
    network(torch.randn(4, 3, 16, 16, generator=generator)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        # The first batch norm takes the stem's bias out again: its gradient is rounding alone.
        assert name == "stem.bias" or parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("activate_shortcut", [False, True])
def test_a_unit_is_its_formula(activate_shortcut: bool, generator: torch.Generator) -> None:
    unit = Unit(4, 6, stride=2, activate_shortcut=activate_shortcut).eval()
    x = torch.randn(3, 4, 8, 8, generator=generator)

    def act(maps: Tensor) -> Tensor:
        maps = maps / (1 + 1e-5) ** 0.5  # fresh statistics: mean 0, variance 1
        return torch.where(maps > 0, maps, 0.1 * maps)

    hidden = F.conv2d(act(x), unit.conv1.weight, stride=2, padding=1)
    residual = F.conv2d(act(hidden), unit.conv2.weight, padding=1)
    shortcut = unit.shortcut(act(x) if activate_shortcut else x)
    torch.testing.assert_close(unit(x), shortcut + residual)


@pytest.mark.slow
def test_only_the_first_unit_activates_its_shortcut() -> None:
    units = [unit for block in WideResNet().blocks for unit in block]  # type: ignore[attr-defined]
    assert [unit.activate_shortcut for unit in units] == [True] + [False] * 11


def test_batch_norms_and_biases_are_the_recipes() -> None:
    network = WideResNet()
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {norm.momentum for norm in norms} == {0.001}
    assert network.norm.eps == 1e-3
    layers = dict(network.named_modules()).items()
    biased = [name for name, m in layers if isinstance(m, nn.Conv2d) and m.bias is not None]
    assert biased == ["stem"]


def test_starts_kaiming_normal_by_fan_out_and_its_classifier_xavier_normal_without_bias() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Classifier(WideResNet(), 100)
    weight = model.backbone.blocks[2][1].conv1.weight  # type: ignore[index, union-attr]
    assert weight.std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    assert model.classifier.weight.std().item() == pytest.approx((2 / (128 + 100)) ** 0.5, rel=0.03)
    assert not model.classifier.bias.any()


@pytest.mark.parametrize("depth", [27, 4])
def test_refuses_depths_without_a_whole_number_of_units(depth: int) -> None:
    with pytest.raises(ValueError, match=rf"depth must be 6 n \+ 4.*got {depth}"):
        WideResNet(depth)
