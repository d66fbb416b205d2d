"""Counts and overlaps of long-tailed splits, as the tables of the specification have them."""

import hashlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from semigpc.data import (
    ImageSet,
    SplitConfig,
    Splits,
    carve_validation,
    long_tail_counts,
    long_tail_split,
)
from semigpc.data.splits import Overlap, Shuffler, long_tailed_splits
from semigpc.io.errors import DataError, SettingsError
from semigpc.io.images import ArrayImages

LABELS = np.tile(np.arange(10), 5000)  # ten classes of 5000, interleaved

VECTORS = {
    (1500, 50): [1500, 971, 628, 407, 263, 170, 110, 71, 46, 30],
    (1500, 100): [1500, 899, 539, 323, 193, 116, 69, 41, 25, 15],
    (1500, 150): [1500, 859, 492, 282, 161, 92, 53, 30, 17, 10],
    (5000, 50): [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100],
    (5000, 100): [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50],
    (5000, 150): [5000, 2865, 1642, 941, 539, 309, 177, 101, 58, 33],
}
TOTALS = {
    (10, 1500): {50: 4196, 100: 3720, 150: 3496},
    (100, 150): {20: 4741, 50: 3751, 100: 3218},
    (10, 5000): {50: 13996, 100: 12406, 150: 11665},
    (100, 500): {20: 15907, 50: 12608, 100: 10847},
    (10, 3000): {50: 8397, 100: 7443, 150: 6996},
    (100, 300): {20: 9527, 50: 7546, 100: 6486},
}


def config(overlap: Overlap = "nested", unlabeled_head: int = 5000) -> SplitConfig:
    """The paper's setting A on CIFAR-10 with a ratio of 100."""
    return tail(1500, unlabeled_head, 100, overlap=overlap)


def tail(labeled: int, unlabeled: int, ratio: float = 1.0, **options: Any) -> SplitConfig:
    """A split with these heads, both with one ratio unless told otherwise."""
    ratios = {"labeled_ratio": ratio, "unlabeled_ratio": ratio} | options
    return SplitConfig(labeled_head=labeled, unlabeled_head=unlabeled, **ratios)


def counts(positions: np.ndarray) -> list[int]:
    result: list[int] = np.bincount(LABELS[positions], minlength=10).tolist()
    return result


@pytest.mark.parametrize(("head", "ratio"), VECTORS)
def test_the_vectors_of_cifar10(head: int, ratio: int) -> None:
    assert long_tail_counts(head, ratio, 10) == VECTORS[head, ratio]


@pytest.mark.parametrize(
    ("n_classes", "head", "ratio", "total"),
    [(n, head, ratio, total) for (n, head), row in TOTALS.items() for ratio, total in row.items()],
)
def test_the_totals_of_both_cifars(n_classes: int, head: int, ratio: int, total: int) -> None:
    assert sum(long_tail_counts(head, ratio, n_classes)) == total


@pytest.mark.parametrize(("ratio", "last"), [(20, 7), (50, 3), (100, 1)])
def test_the_tails_of_cifar100(ratio: int, last: int) -> None:
    vector = long_tail_counts(150, ratio, 100)
    assert vector[0] == 150
    assert vector[-3:] == [last] * 3


def test_a_negative_ratio_reverses_the_tail() -> None:
    assert long_tail_counts(5000, -100, 10) == VECTORS[5000, 100][::-1]
    assert long_tail_counts(7, 1, 3) == long_tail_counts(7, -1, 3) == [7, 7, 7]


@pytest.mark.parametrize("head", [3, 10, 36, 120, 1000, 99999])
@pytest.mark.parametrize("ratio", [2, 3, 7, 10, 30, 100])
def test_the_last_class_is_the_head_over_the_ratio(head: int, ratio: int) -> None:
    for n_classes in (2, 3, 7, 100, 810):
        # where plain floats may fall just short
        assert long_tail_counts(head, ratio, n_classes)[-1] == head // ratio


@pytest.mark.parametrize(
    ("head", "ratio", "n_classes"),
    [(10, 0.5, 3), (10, 0, 3), (10, float("inf"), 3), (10, 2, 1), (-1, 2, 3)],
)
def test_impossible_tails_are_refused(head: int, ratio: float, n_classes: int) -> None:
    with pytest.raises(SettingsError, match="got"):
        long_tail_counts(head, ratio, n_classes)


def test_usb_takes_what_is_left_and_misses_the_ratio() -> None:
    split = long_tail_split(LABELS, 10, config("usb"), seed=0)
    vector = counts(split.unlabeled)
    assert (vector[0], vector[1], vector[9]) == (5000, 3896, 65)
    assert round(vector[0] / vector[9]) == 77
    assert len(set(split.unlabeled)) == len(split.unlabeled)
    assert split.unlabeled[: len(split.labeled)].tolist() == split.labeled.tolist()


def test_disjoint_shares_nothing() -> None:
    split = long_tail_split(LABELS, 10, config("disjoint", unlabeled_head=3000), seed=0)
    assert len(split.unlabeled) == 7443
    assert not set(split.labeled) & set(split.unlabeled)


@pytest.mark.parametrize("overlap", ["nested", "usb", "disjoint"])
def test_a_split_follows_from_its_seed(overlap: Overlap) -> None:
    setting = config(overlap, unlabeled_head=3000)
    first, again, other = (long_tail_split(LABELS, 10, setting, seed) for seed in (3, 3, 4))
    for part in ("labeled", "unlabeled"):
        assert np.array_equal(getattr(first, part), getattr(again, part))
        assert not np.array_equal(getattr(first, part), getattr(other, part))
    assert first.labeled.dtype == first.unlabeled.dtype == np.int64
    assert len(first.unlabeled) == len(other.unlabeled)


def test_no_class_falls_below_the_minimum() -> None:
    assert long_tail_counts(36, 100, 10)[-1] == 0
    split = long_tail_split(LABELS, 10, tail(36, 60, 100), seed=0)
    assert min(counts(split.labeled)) == min(counts(split.unlabeled)) == 1
    more = long_tail_split(LABELS, 10, tail(36, 60, 100, minimum=3), seed=0)
    assert counts(more.labeled)[-3:] == [3, 3, 3]


def test_no_unlabelled_images_can_be_asked_for() -> None:
    split = long_tail_split(LABELS, 10, tail(5, 0, overlap="disjoint"), seed=0)
    assert len(split.labeled) == 50
    assert len(split.unlabeled) == 0


def test_a_class_that_is_too_small_is_named() -> None:
    labels = np.repeat(np.arange(3), [50, 50, 4])
    with pytest.raises(DataError, match=r"Class 2 has 4 images.*needs 10"):
        long_tail_split(labels, 3, tail(5, 5, overlap="disjoint"), seed=0)
    with pytest.raises(DataError, match="Class 2 has 4 images"):
        long_tail_split(labels, 3, SplitConfig(labeled_head=5, unlabeled_head=9), seed=0)
    nested = long_tail_split(labels, 3, SplitConfig(labeled_head=3, unlabeled_head=9), seed=0)
    assert np.bincount(labels[nested.unlabeled]).tolist() == [9, 9, 4]  # as many as there are


def test_labels_cannot_be_nested_in_fewer_images() -> None:
    crossed = tail(100, 200, 10, unlabeled_ratio=-10)
    with pytest.raises(DataError, match="class 0 would have 100 labelled and 20 unlabelled"):
        long_tail_split(LABELS, 10, crossed, seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"overlap": "some"}, "overlap must be one of nested, usb, disjoint; got 'some'"),
        ({"rng": "mt"}, "rng must be one of pcg64, usb"),
        ({"minimum": 0}, "minimum must be at least 1"),
        ({"labeled_head": 0}, "labeled_head must be at least 1"),
        ({"unlabeled_head": -1}, "got 10 and -1"),
        ({"labeled_ratio": 0.5}, "imbalance_ratio"),
        ({"foreign": -1}, "foreign must be at least 0; got -1"),
    ],
)
def test_configs_check_their_ranges(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SplitConfig(**({"labeled_head": 10, "unlabeled_head": 20} | changes))  # type: ignore[arg-type]


def test_foreign_classes_are_only_unlabelled_and_unknown() -> None:
    names = tuple("0123456789")
    pool = ImageSet(ArrayImages(np.zeros((400, 8, 8), np.uint8)), np.arange(400) % 10, names * 40)
    held = pool.subset(np.arange(100))
    rest = pool.subset(np.arange(100, 400))

    def of(foreign: int) -> Splits:
        split = tail(4, 12, 4, overlap="disjoint", foreign=foreign)
        return long_tailed_splits(rest, names, split, seed=1, validation=held, test=held)

    splits = of(3)
    outside = splits.unlabeled_out
    assert outside is not None
    assert splits.class_names == names[:7]
    assert splits.class_counts.tolist() == long_tail_counts(4, 4, 7)
    assert np.bincount(splits.unlabeled_truth[~outside]).tolist() == long_tail_counts(12, 4, 7)
    assert set(splits.unlabeled_truth[outside]) == {-1}
    drawn = rest.labels[np.searchsorted(rest.positions, splits.unlabeled.positions[outside])]
    assert np.bincount(drawn).tolist() == [0] * 7 + [12] * 3
    for part in (splits.validation, splits.test):
        assert part is not None
        assert set(part.labels) == set(range(7))
    assert of(0).unlabeled_out is None
    with pytest.raises(SettingsError, match="foreign must leave two classes of 10; got 9"):
        of(9)


def test_validation_takes_its_part_of_each_class_but_never_the_last_label() -> None:
    labels = np.repeat(np.arange(4), [20, 9, 2, 1])
    kept, held = carve_validation(labels, 0.3, seed=0)
    assert np.bincount(labels[held], minlength=4).tolist() == [6, 2, 0, 0]
    assert sorted([*kept, *held]) == list(range(len(labels)))
    _, most = carve_validation(labels, 0.99, seed=0)
    assert np.bincount(labels[most], minlength=4).tolist() == [19, 8, 1, 0]
    again, other = (carve_validation(labels, 0.3, seed=seed)[1] for seed in (0, 1))
    assert again.tolist() == held.tolist() != other.tolist()
    assert len(carve_validation(labels, 0.0, seed=0)[1]) == 0
    with pytest.raises(DataError, match=r"\[0, 1\); got 1"):
        carve_validation(labels, 1.0, seed=0)


# Both CIFARs, on labels alone: the totals of the paper, and the same split on every machine -------


def pool(n_classes: int) -> NDArray[np.int64]:
    """Labels of 50 000 images, equally many of each class."""
    return np.tile(np.arange(n_classes), 50_000 // n_classes)


def setting_a(n_classes: int, ratio: int, **changes: Any) -> SplitConfig:
    heads = {"labeled_head": 15_000 // n_classes, "unlabeled_head": 50_000 // n_classes}
    return SplitConfig(**(heads | {"labeled_ratio": ratio, "unlabeled_ratio": ratio} | changes))


@pytest.mark.parametrize(
    ("n_classes", "ratio"), [(10, r) for r in (50, 100, 150)] + [(100, r) for r in (20, 50, 100)]
)
def test_both_settings_have_the_counts_of_the_paper(n_classes: int, ratio: int) -> None:
    labels = pool(n_classes)
    labeled = long_tail_counts(15_000 // n_classes, ratio, n_classes)
    unlabeled = long_tail_counts(50_000 // n_classes, ratio, n_classes)
    few = {"labeled_head": 4, "labeled_ratio": 1}
    for changes, counted in (({}, labeled), (few, [4] * n_classes)):
        split = long_tail_split(labels, n_classes, setting_a(n_classes, ratio, **changes), seed=0)
        assert np.bincount(labels[split.labeled]).tolist() == counted
        assert np.bincount(labels[split.unlabeled]).tolist() == unlabeled
        assert set(split.labeled) <= set(split.unlabeled)


@pytest.mark.parametrize("n_classes", [10, 100])
@pytest.mark.parametrize("head", [3000, 5000])
def test_no_reading_labels_other_images_than_another(n_classes: int, head: int) -> None:
    drawn = set()
    for overlap, u in (("nested", 5000), ("usb", head), ("disjoint", 3000)):
        reading = setting_a(n_classes, 100, overlap=overlap, unlabeled_head=u * 10 // n_classes)
        drawn.add(long_tail_split(pool(n_classes), n_classes, reading, 0).labeled.tobytes())
    assert len(drawn) == 1, "methods are compared on the same labels"


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
        first = 0 if overlap == "nested" else draws[c]
        unlabeled.extend(own[first : first + more[c]])
    np.random.set_state(state)  # noqa: NPY002
    unlabeled = unlabeled if overlap == "nested" else labeled + unlabeled
    return digest(labeled, unlabeled)


def digest(*parts: ArrayLike) -> str:
    arrays = [np.array(part, dtype="<i8") for part in parts]
    lines = b"".join(f"{len(array)}\n".encode() + array.tobytes() for array in arrays)
    return hashlib.sha256(lines).hexdigest()


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
    setting = setting_a(n_classes, ratio, rng=rng, overlap=overlap)
    split = long_tail_split(pool(n_classes), n_classes, setting, seed=0)
    drawn = digest(split.labeled, split.unlabeled)
    assert drawn == by_hand(rng, overlap, n_classes, ratio, seed=0)
    assert drawn.startswith(begins)
