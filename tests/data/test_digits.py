"""The digits: counts, no image twice, everything from the seed."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from semigpc.data import DigitsConfig, SplitConfig, long_tail_counts
from semigpc.data.digits import SMALLEST_CLASS, load
from semigpc.io.errors import SettingsError


def test_the_default_is_a_long_tail_with_zero_at_its_head() -> None:
    data = load(DigitsConfig(), seed=0)
    assert data.class_names == tuple("0123456789")
    assert data.class_counts.tolist() == [max(1, count) for count in long_tail_counts(36, 30, 10)]
    assert np.bincount(data.unlabeled_truth).tolist() == long_tail_counts(120, 30, 10)
    assert data.test is not None
    assert np.bincount(data.test.labels).tolist() == [40] * 10
    assert data.validation is not None
    assert np.bincount(data.validation.labels).tolist() == [10] * 10
    assert data.notes == ("Classes with a single labelled image: '8', '9'.",)
    assert (len(data.labeled), len(data.unlabeled)) == (106, 369)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_training_validation_and_test_share_no_image(seed: int) -> None:
    data = load(DigitsConfig(), seed)
    assert data.validation is not None
    assert data.test is not None
    training, held, judged = (
        set(part.positions) for part in (data.unlabeled, data.validation, data.test)
    )
    assert set(data.labeled.positions) <= training  # nested
    assert not training & held
    assert not (training | held) & judged


def test_labels_are_those_of_the_images() -> None:
    data, source = load(DigitsConfig(), seed=0), load_digits()
    assert (source.target[data.labeled.positions] == data.labeled.labels).all()
    assert (source.target[data.unlabeled.positions] == data.unlabeled_truth).all()
    assert (data.unlabeled.labels == -1).all()
    assert data.labeled.names[0] == f"digits/{data.labeled.positions[0]:04d}"


def test_images_are_grey_in_rgb_over_the_full_range() -> None:
    data, source = load(DigitsConfig(), seed=0), load_digits()
    pixels = np.asarray(data.labeled[5])
    original = source.images[data.labeled.positions[5]]
    assert pixels.shape == (8, 8, 3)
    assert (pixels == pixels[..., :1]).all()
    assert np.abs(pixels[..., 0] - original * 255 / 16).max() <= 0.5


def test_the_seed_decides_every_part() -> None:
    first, again, other = (load(DigitsConfig(), seed) for seed in (3, 3, 4))
    assert first.sha256 == again.sha256 != other.sha256
    assert first.test is not None
    assert other.test is not None
    assert set(first.test.positions) != set(other.test.positions)


def test_the_rarest_digit_is_the_limit() -> None:
    assert np.bincount(load_digits().target).min() == SMALLEST_CLASS
    whole = SplitConfig(labeled_head=10, unlabeled_head=SMALLEST_CLASS)
    data = load(DigitsConfig(split=whole, test_per_class=0, validation_per_class=0), seed=0)
    assert data.validation is data.test is None
    assert np.bincount(data.unlabeled_truth).tolist() == [SMALLEST_CLASS] * 10
    with pytest.raises(SettingsError, match=r"174 images.*got 50 and 125"):
        DigitsConfig(split=SplitConfig(labeled_head=10, unlabeled_head=125))
    with pytest.raises(SettingsError, match="0 or more; got -1 and 10"):
        DigitsConfig(test_per_class=-1)
