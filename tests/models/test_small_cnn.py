"""The small network: shapes, and that it learns."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from semigpc.models import SmallCNN
from semigpc.models.heads import Classifier


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
