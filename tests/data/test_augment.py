"""The pipelines against torchvision's functions, the operations against Pillow's, and their random
numbers.
"""

import itertools
import math
import pickle
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF
from numpy.random import default_rng
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor

from semigpc.data import Augment, AugmentConfig
from semigpc.data.augment import (
    CIFAR10_MEAN,
    CIFAR10_STD,
    CIFAR100_MEAN,
    CIFAR100_STD,
    CUTOUT_COLOUR,
    IMAGENET_MEAN,
    IMAGENET_STD,
    POOL,
    Operation,
    crop_box,
    cutout,
    rand_augment,
    resized,
)
from semigpc.io.errors import SettingsError
from semigpc.io.images import Pixels, to_image, to_pixels
from tests.data.samples import plain_view, random_image

SHAPES = [(8, 8), (32, 32), (40, 25), (25, 40), (300, 200)]


def normalised(image: Image.Image) -> Tensor:
    pixels = TF.to_dtype(TF.to_image(image), torch.float32, scale=True)
    result: Tensor = TF.normalize(pixels, IMAGENET_MEAN, IMAGENET_STD)
    return result


@pytest.fixture
def crop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strong views without RandAugment."""
    monkeypatch.setattr("semigpc.data.augment.rand_augment", lambda cropped, *_: cropped)


def by_torchvision(image: Image.Image, size: list[int]) -> Pixels:
    pixels: Pixels = TF.resize(TF.to_image(image), size).permute(1, 2, 0).numpy()
    return pixels


@pytest.mark.parametrize("style", ["pad", "resize"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_view_has_the_size_asked_for(style: str, shape: tuple[int, int]) -> None:
    augment = Augment(AugmentConfig(image_size=24, style=style))  # type: ignore[arg-type]
    image = random_image(*shape, default_rng(0))
    for name in ("weak", "strong", "strong2"):
        views = augment.cut(name, [augment.square(image)], default_rng(1))
        assert views.shape == (1, 24, 24, 3)
        assert views.dtype == torch.uint8
        assert augment.normalise(views).shape == (1, 3, 24, 24)
    assert plain_view(augment, image).shape == (3, 24, 24)


@pytest.mark.parametrize("shape", [(8, 8), (40, 25), (300, 200), (700, 900)])
@pytest.mark.parametrize("size", [8, 24, 256])
def test_images_are_resized_as_by_pillow_but_for_one_of_255(
    shape: tuple[int, int], size: int
) -> None:
    image = random_image(*shape, default_rng(0))
    expected = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(resized(to_pixels(image), size, size) - expected).max() <= 1


def test_a_weak_view_is_a_crop_of_the_reflected_image_maybe_mirrored() -> None:
    image = random_image(32, 32, default_rng(0))
    padded = TF.pad(image, [4, 4, 4, 4], padding_mode="reflect")
    crops = {}
    for top in range(9):
        for left in range(9):
            crop = TF.crop(padded, top, left, 32, 32)
            crops[crop.tobytes()] = (top, left, False)
            crops[TF.horizontal_flip(crop).tobytes()] = (top, left, True)
    augment, rng = Augment(AugmentConfig(image_size=32)), default_rng(0)
    drawn = [crops[augment.pixels("weak", to_pixels(image), rng).tobytes()] for _ in range(3000)]
    assert set(drawn) == set(crops.values())  # every offset, both ways round, and nothing else
    assert np.mean([mirrored for *_, mirrored in drawn]) == pytest.approx(0.5, abs=0.05)


def test_without_flips_nothing_is_mirrored() -> None:
    image = random_image(8, 8, default_rng(0))
    augment, rng = Augment(AugmentConfig(image_size=8, flip=False, crop_ratio=1.0)), default_rng(0)
    views = {augment.pixels("weak", to_pixels(image), rng).tobytes() for _ in range(20)}
    assert views == {image.tobytes()}


@pytest.mark.parametrize(
    ("size", "ratio", "pad"),
    [(32, 0.875, 4), (8, 0.875, 1), (28, 0.875, 3), (32, 1.0, 0), (10, 0.5, 5)],
)
def test_the_padding_is_the_part_that_the_crop_leaves(size: int, ratio: float, pad: int) -> None:
    columns = np.zeros((size, size, 3), np.uint8) + np.arange(size, dtype=np.uint8)[None, :, None]
    augment = Augment(AugmentConfig(image_size=size, crop_ratio=ratio, flip=False))
    rng = default_rng(0)
    first = {int(augment.pixels("weak", columns, rng)[0, pad, 0]) for _ in range(400)}
    assert first == set(range(2 * pad + 1)) if 2 * pad < size else first >= set(range(size))


@pytest.mark.usefixtures("crop_alone")
def test_strong_views_start_from_the_same_crop_and_flip() -> None:
    square = to_pixels(random_image(32, 32, default_rng(0)))
    augment = Augment(AugmentConfig(image_size=32))
    weak, strong = (augment.pixels(name, square, default_rng(5)) for name in ("weak", "strong"))
    assert (weak == strong).all()


def test_randaugment_sees_the_cropped_image_and_its_result_is_the_view() -> None:
    image = random_image(16, 16, default_rng(0))
    augment = Augment(AugmentConfig(image_size=16, crop_ratio=1.0, flip=False, operations=2))
    rng = default_rng(5)
    rng.random(3)  # what crop and flip take
    view = augment.pixels("strong", to_pixels(image), default_rng(5))
    assert view.tobytes() == rand_augment(image, rng, 2).tobytes()


def test_the_weak_view_of_a_photograph_is_a_crop_of_the_squashed_image() -> None:
    image = random_image(50, 31, default_rng(0))
    augment = Augment(AugmentConfig(image_size=28, style="resize", flip=False))
    squashed = augment.square(image)
    expected = by_torchvision(image, [32, 32]).astype(int)
    np.testing.assert_allclose(squashed, expected, atol=1, rtol=0)
    corners = itertools.product(range(5), range(5))
    crops = {squashed[top : top + 28, left : left + 28].tobytes() for top, left in corners}
    rng = default_rng(0)
    assert {augment.pixels("weak", squashed, rng).tobytes() for _ in range(400)} == crops


def test_the_strong_crop_of_a_photograph_has_the_area_and_aspect_of_the_recipe() -> None:
    rng = default_rng(0)
    top, left, height, width = np.array([crop_box(256, rng) for _ in range(600)]).T
    area, aspect = width * height / 256**2, np.log(width / height)
    assert min(left.min(), top.min()) >= 0
    assert max((left + width).max(), (top + height).max()) <= 256
    assert 0.075 < area.min() < 0.12
    assert 0.9 < area.max() <= 1
    assert np.abs(aspect).max() < math.log(4 / 3) + 0.02
    assert abs(aspect.mean()) < 0.03


@pytest.mark.usefixtures("crop_alone")
def test_the_strong_crop_is_cropped_first_and_then_resized() -> None:
    square = to_pixels(random_image(32, 32, default_rng(0)))
    augment = Augment(AugmentConfig(image_size=28, style="resize", flip=False))
    rng = default_rng(3)
    area = rng.uniform(0.08, 1) * 1024
    aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
    width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
    left, top = rng.integers(32 - width + 1), rng.integers(32 - height + 1)
    expected = by_torchvision(to_image(square[top : top + height, left : left + width]), [28, 28])
    view = augment.pixels("strong", square, default_rng(3))
    np.testing.assert_allclose(view, expected.astype(int), atol=1, rtol=0)


def test_a_crop_that_never_fits_is_the_whole_image() -> None:
    class AlwaysWide(np.random.Generator):
        def uniform(self, *bounds: float) -> float:  # type: ignore[override]
            return bounds[1]

    assert crop_box(32, AlwaysWide(np.random.PCG64(0))) == (0, 0, 32, 32)


@pytest.mark.parametrize("shape", [(50, 31), (31, 50), (32, 32), (500, 375), (20, 21)])
def test_photographs_are_evaluated_at_their_centre(shape: tuple[int, int]) -> None:
    image = random_image(*shape, default_rng(0))
    expected = TF.center_crop(TF.resize(image, [32]), [28, 28])
    actual = plain_view(Augment(AugmentConfig(image_size=28, style="resize")), image)
    torch.testing.assert_close(actual, normalised(expected), atol=1e-5, rtol=0)


def test_small_images_are_evaluated_as_they_are() -> None:
    augment = Augment(AugmentConfig(image_size=32))
    image, other = random_image(32, 32, default_rng(0)), random_image(40, 25, default_rng(0))
    torch.testing.assert_close(plain_view(augment, image), normalised(image), atol=1e-5, rtol=0)
    expected = normalised(TF.resize(other, [32, 32]))
    torch.testing.assert_close(plain_view(augment, other), expected, atol=1e-5, rtol=0)


def test_stacks_are_normalised_like_single_images() -> None:
    augment = Augment(AugmentConfig(image_size=8))
    squares = [to_pixels(random_image(8, 8, default_rng(i))) for i in range(5)]
    views = augment.cut("strong", squares, default_rng(0))
    stack = augment.normalise(views)
    assert stack.shape == (5, 3, 8, 8)
    assert stack.is_contiguous()
    assert all(map(torch.equal, stack, map(augment.normalise, views)))


@pytest.mark.parametrize("style", ["pad", "resize"])
def test_views_follow_from_the_generator(style: str) -> None:
    augment = Augment(AugmentConfig(image_size=16, style=style))  # type: ignore[arg-type]
    copy = pickle.loads(pickle.dumps(augment))  # as a worker gets it
    squares = [augment.square(random_image(20, 20, default_rng(0)))]
    for name in ("weak", "strong"):
        views = [augment.cut(name, squares, default_rng(seed)) for seed in range(10)]
        assert len({view.numpy().tobytes() for view in views}) > 5
        for same in (augment, copy):
            assert torch.equal(same.cut(name, squares, default_rng(7)), views[7])
    rng = default_rng(7)
    strong, strong2 = (augment.cut(name, squares, rng) for name in ("strong", "strong2"))
    assert not torch.equal(strong, strong2)


def test_images_are_not_changed() -> None:
    square = to_pixels(random_image(16, 16, default_rng(0)))
    before, rng = square.tobytes(), default_rng(0)
    augment = Augment(AugmentConfig(image_size=16))
    for _ in range(100):
        augment.cut("strong", [square], rng)
    assert square.tobytes() == before


def test_the_statistics_of_the_recipe() -> None:
    assert AugmentConfig(image_size=32).mean == (0.485, 0.456, 0.406)
    assert AugmentConfig(image_size=32).std == (0.229, 0.224, 0.225)
    assert pytest.approx((0.491, 0.482, 0.447), abs=1e-3) == CIFAR10_MEAN
    assert pytest.approx((0.247, 0.244, 0.262), abs=1e-3) == CIFAR10_STD
    assert pytest.approx((0.507, 0.487, 0.441), abs=1e-3) == CIFAR100_MEAN
    assert pytest.approx((0.267, 0.256, 0.276), abs=1e-3) == CIFAR100_STD


def test_an_unknown_view_is_answered_with_the_known_ones() -> None:
    augment = Augment(AugmentConfig(image_size=8))
    with pytest.raises(ValueError, match="unknown view 'stong'; known: weak, strong, strong2"):
        augment.cut("stong", np.zeros((1, 8, 8, 3), np.uint8), default_rng(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": 1}, "image_size must be at least 2 pixels; got 1"),
        ({"style": "crop"}, "style must be 'pad' or 'resize'; got 'crop'"),
        ({"crop_ratio": 0.4}, r"crop_ratio must lie in \[0.5, 1\]; got 0.4"),
        ({"operations": -1}, "operations must be 0 or more; got -1"),
        ({"std": (1.0, 0.0, 1.0)}, "std above 0"),
    ],
)
def test_configs_check_their_ranges(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        AugmentConfig(**({"image_size": 8} | changes))  # type: ignore[arg-type]


# Operations, against Pillow itself ----------------------------------------------------------------

NEAREST = Image.Resampling.NEAREST


def moved(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, NEAREST)


REFERENCES: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    "color": lambda image, v: ImageEnhance.Color(image).enhance(v),
    "contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "identity": lambda image, _: image,
    "posterize": lambda image, v: ImageOps.posterize(image, max(1, int(v))),
    "rotate": lambda image, v: image.rotate(v, NEAREST, fillcolor=(0, 0, 0)),
    "sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
    "shear_x": lambda image, v: moved(image, (1, v, 0, 0, 1, 0)),
    "shear_y": lambda image, v: moved(image, (1, 0, 0, v, 1, 0)),
    "solarize": lambda image, v: ImageOps.solarize(image, v),  # type: ignore[arg-type]  # a float threshold is fine
    "translate_x": lambda image, v: moved(image, (1, 0, v * image.size[0], 0, 1, 0)),
    "translate_y": lambda image, v: moved(image, (1, 0, 0, 0, 1, v * image.size[1])),
}
RANGES = {
    **dict.fromkeys(("autocontrast", "equalize", "identity"), (0, 1)),
    **dict.fromkeys(("brightness", "color", "contrast", "sharpness"), (0.05, 0.95)),
    **dict.fromkeys(("shear_x", "shear_y", "translate_x", "translate_y"), (-0.3, 0.3)),
    "posterize": (4, 8),
    "rotate": (-30, 30),
    "solarize": (0, 256),
}


def awkward_images() -> list[Image.Image]:
    """Sizes from tiny to wide, flat channels, two values, full range, a dark corner."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (24, 40, 3), dtype=np.uint8)
    one_flat = noise.copy()
    one_flat[..., 1] = 77
    two_values = np.where(rng.random((20, 20, 3)) < 0.9, 30, 31).astype(np.uint8)
    arrays = [noise, one_flat, two_values, np.full((17, 16, 3), 9, np.uint8)]
    arrays += [noise[:8, :8], noise // 7 + 3, noise[:, :11]]
    return [
        *(Image.fromarray(np.ascontiguousarray(array)) for array in arrays),
        *(random_image(*size, rng) for size in ((32, 32), (7, 50), (96, 80))),
    ]


@pytest.mark.parametrize("operation", POOL, ids=lambda operation: operation.name)
def test_an_operation_is_pillows_byte_for_byte(operation: Operation) -> None:
    reference = REFERENCES[operation.name]
    for image in awkward_images():
        before = image.tobytes()
        for magnitude in np.linspace(operation.low, operation.high, 13).tolist():
            ours, theirs = operation.apply(image, magnitude), reference(image, magnitude)
            assert ours.size == image.size
            assert ours.mode == "RGB"
            assert ours.tobytes() == theirs.tobytes(), (operation.name, magnitude, image.size)
        assert image.tobytes() == before


def test_the_pool_has_the_fourteen_operations_with_their_ranges() -> None:
    assert {operation.name: (operation.low, operation.high) for operation in POOL} == RANGES
    assert len(POOL) == 14


def test_a_sheared_image_is_black_where_nothing_comes_from() -> None:
    white = Image.new("RGB", (10, 10), (255, 255, 255))
    sheared = np.asarray(next(o for o in POOL if o.name == "shear_x").apply(white, 0.3))
    x, y = np.meshgrid(np.arange(10), np.arange(10))
    source = x + 0.5 + 0.3 * (y + 0.5)  # pixel (x, y) comes from x + c y
    assert ((sheared[..., 0] == 0) == (source >= 10)).all()


def record_draws(monkeypatch: pytest.MonkeyPatch, seed: int, calls: int) -> list[tuple[str, float]]:
    seen: list[tuple[str, float]] = []

    def spy(operation: Operation) -> Operation:
        def note(image: Image.Image, magnitude: float) -> Image.Image:
            seen.append((operation.name, magnitude))
            return image

        return operation._replace(apply=note)

    spies = tuple(spy(operation) for operation in POOL)
    monkeypatch.setattr("semigpc.data.augment.POOL", spies)
    rng = np.random.default_rng(seed)
    for _ in range(calls):
        rand_augment(Image.new("RGB", (4, 4)), rng, 3)
    return seen


def test_three_operations_are_drawn_uniformly_with_replacement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = record_draws(monkeypatch, seed=0, calls=4000)
    assert len(seen) == 12000
    counts = Counter(name for name, _ in seen)
    assert all(abs(counts[name] - 12000 / 14) < 5 * (12000 / 14) ** 0.5 for name in RANGES)
    triples = [{name for name, _ in seen[i : i + 3]} for i in range(0, 12000, 3)]
    with_repeats = sum(len(triple) < 3 for triple in triples) / 4000
    assert with_repeats == pytest.approx(1 - 13 * 12 / 14**2, abs=0.04)


def test_magnitudes_fill_their_range(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = record_draws(monkeypatch, seed=1, calls=4000)
    for name, (low, high) in RANGES.items():
        drawn = np.array([magnitude for other, magnitude in seen if other == name])
        assert low <= drawn.min() <= drawn.max() < high
        quarters = np.histogram(drawn, bins=4, range=(low, high))[0] / len(drawn)
        assert quarters == pytest.approx(np.full(4, 0.25), abs=0.08)
    assert {int(magnitude) for name, magnitude in seen if name == "posterize"} == {4, 5, 6, 7}


@pytest.mark.parametrize("size", [(8, 8), (32, 32), (20, 13)])
def test_a_cutout_is_what_drawing_a_rectangle_gives(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    image = random_image(*size, rng)
    for _ in range(300):
        fraction, centre = rng.uniform(0, 0.5), (rng.uniform(0, size[0]), rng.uniform(0, size[1]))
        side = fraction * size[0]
        left, top = (int(max(0, c - side / 2)) for c in centre)
        drawn = image.copy()
        corners = (left, top, min(size[0], left + side), min(size[1], top + side))
        ImageDraw.Draw(drawn).rectangle(corners, CUTOUT_COLOUR)
        assert cutout(image, fraction, centre).tobytes() == drawn.tobytes()


def test_a_cutout_of_nothing_changes_nothing() -> None:
    image = random_image(8, 8, np.random.default_rng(0))
    before = image.tobytes()
    assert cutout(image, 0.0, (3, 3)) is image
    cutout(image, 0.5, (3, 3))
    assert image.tobytes() == before


def test_cutouts_always_follow_and_their_sides_are_uniform() -> None:
    rng = np.random.default_rng(0)
    blank = Image.new("RGB", (100, 100))
    painted = [np.asarray(rand_augment(blank, rng, 0)) for _ in range(800)]
    colours = {tuple(values) for array in painted for values in array.reshape(-1, 3)[::97]}
    assert colours <= {(0, 0, 0), CUTOUT_COLOUR}
    widths = np.array([(array[..., 0] > 0).any(axis=0).sum() for array in painted])
    touching = [array[:, -1].any() or array[-1].any() for array in painted]
    inside = widths[np.logical_not(touching)]
    assert widths.min() >= 1
    assert widths.max() <= 51
    assert max(inside) > 45
