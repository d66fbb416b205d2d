"""The long tails of both CIFARs, on labels alone: the totals of the paper, and the same split on
every machine.
"""

import hashlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from semigpc.data import SplitConfig, long_tail_counts, long_tail_split
from semigpc.data.splits import Overlap, Shuffler

TOTALS = {
    10: {50: (4196, 13996), 100: (3720, 12406), 150: (3496, 11665)},
    100: {20: (4741, 15907), 50: (3751, 12608), 100: (3218, 10847)},
}


def pool(n_classes: int) -> NDArray[np.int64]:
    """Labels of 50 000 images, equally many of each class."""
    return np.tile(np.arange(n_classes), 50_000 // n_classes)


def setting_a(n_classes: int, ratio: int, **changes: Any) -> SplitConfig:
    heads = {"labeled_head": 15_000 // n_classes, "unlabeled_head": 50_000 // n_classes}
    return SplitConfig(**(heads | {"labeled_ratio": ratio, "unlabeled_ratio": ratio} | changes))


@pytest.mark.parametrize(
    ("n_classes", "ratio"), [(n, ratio) for n, row in TOTALS.items() for ratio in row]
)
def test_both_settings_have_the_totals_of_the_paper(n_classes: int, ratio: int) -> None:
    labels, head = pool(n_classes), 50_000 // n_classes
    a = long_tail_split(labels, n_classes, setting_a(n_classes, ratio), seed=0)
    assert (len(a.labeled), len(a.unlabeled)) == TOTALS[n_classes][ratio]
    b = long_tail_split(
        labels, n_classes, setting_a(n_classes, ratio, labeled_head=4, labeled_ratio=1), seed=0
    )
    assert (len(b.labeled), len(b.unlabeled)) == (4 * n_classes, TOTALS[n_classes][ratio][1])
    for split in (a, b):
        assert set(split.labeled) <= set(split.unlabeled)
        assert np.bincount(labels[split.unlabeled]).tolist() == long_tail_counts(
            head, ratio, n_classes
        )


@pytest.mark.parametrize("n_classes", [10, 100])
@pytest.mark.parametrize("head", [3000, 5000])
def test_no_reading_labels_other_images_than_another(n_classes: int, head: int) -> None:
    labels, ratio = pool(n_classes), 100
    readings: tuple[tuple[Overlap, int], ...] = (
        ("nested", 5000),
        ("usb", head),
        ("disjoint", 3000),
    )
    splits = [
        long_tail_split(
            labels,
            n_classes,
            setting_a(n_classes, ratio, overlap=overlap, unlabeled_head=u * 10 // n_classes),
            0,
        )
        for overlap, u in readings
    ]
    # so that methods are compared on the same labels
    assert len({split.labeled.tobytes() for split in splits}) == 1


def by_hand(rng: Shuffler, overlap: Overlap, n_classes: int, ratio: int, seed: int) -> str:
    """The hash of a split as a loop over the classes draws it, with the global generator where USB
    uses that.
    """
    labels, draws = pool(n_classes), long_tail_counts(15_000 // n_classes, ratio, n_classes)
    more = long_tail_counts(50_000 // n_classes, ratio, n_classes)
    state = np.random.get_state()  # noqa: NPY002 -- the point is to compare with the legacy global generator
    np.random.seed(seed)  # noqa: NPY002
    shuffle = np.random.shuffle if rng == "usb" else np.random.default_rng(seed).shuffle
    labeled: list[int] = []
    unlabeled: list[int] = []
    for c in range(n_classes):
        own = np.where(labels == c)[0]
        shuffle(own)
        labeled.extend(own[: draws[c]])
        unlabeled.extend(
            own[: more[c]] if overlap == "nested" else own[draws[c] : draws[c] + more[c]]
        )
    np.random.set_state(state)  # noqa: NPY002
    unlabeled = unlabeled if overlap == "nested" else labeled + unlabeled
    return digest(labeled, unlabeled)


def digest(*parts: ArrayLike) -> str:
    arrays = [np.array(part, dtype="<i8") for part in parts]
    return hashlib.sha256(
        b"".join(f"{len(array)}\n".encode() + array.tobytes() for array in arrays)
    ).hexdigest()


@pytest.mark.parametrize(
    ("rng", "overlap", "n_classes", "ratio", "begins"),
    [
        ("pcg64", "nested", 10, 100, "61b7270232dc3119"),
        ("pcg64", "usb", 10, 100, "37ef3295644564da"),
        ("pcg64", "nested", 100, 50, "8b99a2af69524d38"),
        ("usb", "nested", 10, 100, "ddf1bdacd27779bc"),
        ("usb", "usb", 10, 100, "60b7994d4801abcc"),
        ("usb", "usb", 100, 50, "06ed7299791f7878"),
    ],
)
def test_a_seed_gives_the_same_split_on_every_machine(
    rng: Shuffler, overlap: Overlap, n_classes: int, ratio: int, begins: str
) -> None:
    split = long_tail_split(
        pool(n_classes), n_classes, setting_a(n_classes, ratio, rng=rng, overlap=overlap), seed=0
    )
    drawn = digest(split.labeled, split.unlabeled)
    assert drawn == by_hand(rng, overlap, n_classes, ratio, seed=0)
    assert drawn.startswith(begins)
