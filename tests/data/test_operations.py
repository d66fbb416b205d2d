"""Every operation against Pillow itself, and how they are drawn."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from semigpc.data import augment
from semigpc.data.augment import CUTOUT_COLOUR, POOL, Operation, cutout, rand_augment
from tests.data.samples import random_image

AFFINE, NEAREST = Image.Transform.AFFINE, Image.Resampling.NEAREST

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
    "shear_x": lambda image, v: image.transform(image.size, AFFINE, (1, v, 0, 0, 1, 0), NEAREST),
    "shear_y": lambda image, v: image.transform(image.size, AFFINE, (1, 0, 0, v, 1, 0), NEAREST),
    "solarize": lambda image, v: ImageOps.solarize(image, v),  # type: ignore[arg-type]  # a float threshold is fine
    "translate_x": lambda image, v: image.transform(
        image.size, AFFINE, (1, 0, v * image.size[0], 0, 1, 0), NEAREST
    ),
    "translate_y": lambda image, v: image.transform(
        image.size, AFFINE, (1, 0, 0, 0, 1, v * image.size[1]), NEAREST
    ),
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

    monkeypatch.setattr(augment, "POOL", tuple(spy(operation) for operation in POOL))
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
