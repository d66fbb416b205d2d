"""scikit-learn's 8 x 8 handwritten digits, cut to a long tail: small, and without a download."""

from dataclasses import dataclass, field

import numpy as np

from semigpc.data.dataset import ImageSet, Splits
from semigpc.data.splits import SplitConfig, long_tailed_splits, put_aside
from semigpc.io.errors import SettingsError
from semigpc.io.images import ArrayImages

CLASS_NAMES = tuple("0123456789")
SMALLEST_CLASS = 174  # images of an 8, the rarest digit of the 1797
LARGEST_VALUE = 16


@dataclass(frozen=True, kw_only=True)
class DigitsConfig:
    """Class 0, the digit zero, is the head.

    Test and validation images are drawn first, equally many of each class and by the run's seed;
    the long tail is cut from what is left, so no image is in two of the three.

    Args:
        split: of the images left; the default gives 106 labels (36 zeros, a single nine) and 369
            unlabelled images.
        test_per_class: images of the test part.
        validation_per_class: images of the validation part; 0 for none.
    """

    split: SplitConfig = field(
        default_factory=lambda: SplitConfig(
            labeled_head=36, labeled_ratio=30, unlabeled_head=120, unlabeled_ratio=30
        )
    )
    test_per_class: int = 40
    validation_per_class: int = 10

    def __post_init__(self) -> None:
        if self.test_per_class < 0 or self.validation_per_class < 0:
            raise SettingsError(
                "test_per_class and validation_per_class must be 0 or more; "
                f"got {self.test_per_class} and {self.validation_per_class}."
            )
        held_out = self.test_per_class + self.validation_per_class
        head = max(self.split.unlabeled_head, self.split.labeled_head)
        if held_out + head > SMALLEST_CLASS:
            raise SettingsError(
                f"The rarest digit has {SMALLEST_CLASS} images for test, validation and the head "
                f"of the tail; got {held_out} and {head}. Lower one of them."
            )


def load(config: DigitsConfig, seed: int) -> Splits:
    """Draw test, validation, labelled and unlabelled digits."""
    # Here and not above: it takes a second to import, which every other data set, and each worker,
    # would pay.
    from sklearn.datasets import load_digits

    digits = load_digits()
    labels = digits.target.astype(np.int64)
    pixels = np.rint(digits.images * (255 / LARGEST_VALUE)).astype(np.uint8)
    pool = ImageSet(ArrayImages(pixels), labels, [f"digits/{i:04d}" for i in range(len(labels))])
    sizes = (config.test_per_class, config.validation_per_class)
    test, validation, rest = (pool.subset(part) for part in put_aside(labels, sizes, seed))
    return long_tailed_splits(
        rest, CLASS_NAMES, config.split, seed, validation=validation, test=test
    )
