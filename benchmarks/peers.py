"""What semigpc is compared with: other ways to update a GP, scikit-learn's labellers, and
classifiers tuned like semigpc.

Those without a grid have options that are fixed beforehand: those of their papers, or the defaults
of scikit-learn.
"""

import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import product
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import cg
from scipy.spatial.distance import pdist
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessClassifier, kernels
from sklearn.gaussian_process.kernels import ConstantKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid, NearestNeighbors
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from torch import Tensor

from benchmarks.problems import Clusters
from benchmarks.references import append_rows, drop_oldest_rows, kernel_matrix
from benchmarks.timing import Step, resident_bytes
from semigpc.estimator.answers import SCALINGS
from semigpc.estimator.fitting import fit_scalings
from semigpc.gp.kernels import RBF
from semigpc.labeling.evidence import PEERS, fit_peer

GPYTORCH_INSTALLED = find_spec("gpytorch") is not None
LABELLERS = (
    "label_spreading",
    "self_training",
)  # peers that label a table, out of those of the estimator
LOOK_SECONDS = 0.05  # between looks at the memory of a peer's process
# k, gamma and a of label propagation for deep learning (Iscen et al., 2019)
NEIGHBOURS = 50
POWER = 3.0
ALPHA = 0.99
ITERATIONS = 1000  # of conjugate gradients at most
# rows of a graph up to which one dense factor is used for all labels, 36 MB and a second at most
DENSE = 3000
FOLDS = 5  # of the inner cross-validation
TUNED_UNLABELED = 1500  # unlabelled rows at most while a peer is tuned, and ...
TRAINED_UNLABELED = (
    2000  # ... in self-training, which fits a regression on all of them in each round
)
GP_LABELS = 400  # labels up to which GaussianProcessClassifier is tuned and fitted within a minute
GP_CLASSES = 50  # the same: it fits one Laplace approximation for each
TREE_COLUMNS = 127  # up to which trees are fitted: tables, not embeddings or pixels of MNIST
# The other scalings keep the order of the values in a column, which is all that trees use.
TREE_SCALINGS = ("none", "unit", "centered")
TREES = 300

Record = dict[str, Any]
Rows = NDArray[Any]  # (n, D)
Codes = NDArray[np.int64]  # (n,)
Predict = Callable[[Rows], Codes]


# Every way to have K^-1 y after B of N rows have changed ------------------------------------------


@dataclass(frozen=True)
class Problem:
    """One buffer and the batch that enters it.

    Args:
        features: (N, D) unit vectors. targets: (N, C) one-hot. new_features: (B, D). new_targets:
            (B, C).
    """

    features: Tensor
    targets: Tensor
    new_features: Tensor
    new_targets: Tensor
    kernel: RBF
    noise_std: float


def peers(problem: Problem) -> Iterator[tuple[str, Step]]:
    """Each peer's step, by the name of its figure. Set up one at a time: at N = 16300 a matrix is 1
    GB.

    The dense torch peers are GIVEN the new K: their figure is the factorisation and K^-1 y alone.
    scikit-learn and GPyTorch are called as their users call them, so theirs includes evaluating the
    kernel.
    """
    yield from _dense_peers(problem)
    yield "paper_rule_s", _paper_rule(problem)
    yield "sklearn_s", _kernel_ridge(problem)
    if GPYTORCH_INSTALLED:
        yield from _gpytorch_peers(problem)


def _dense_peers(problem: Problem) -> Iterator[tuple[str, Step]]:
    K = kernel_matrix(problem.features, problem.kernel, problem.noise_std)
    y = problem.targets
    yield "inverse_s", lambda: torch.linalg.inv(K) @ y
    yield "cholesky_inverse_s", lambda: torch.cholesky_inverse(torch.linalg.cholesky(K)) @ y
    yield "cholesky_solve_s", lambda: torch.cholesky_solve(y, torch.linalg.cholesky(K))


def _paper_rule(problem: Problem) -> Step:
    """The block rule of section 3.3 in plain matrix code: the oldest rows out, the newest in, alpha
    afterwards.
    """
    count = len(problem.new_features)
    K_inv = torch.cholesky_inverse(
        torch.linalg.cholesky(kernel_matrix(problem.features, problem.kernel, problem.noise_std))
    )
    kept = problem.features[count:]
    y = torch.cat([problem.targets[count:], problem.new_targets])

    def step() -> Tensor:
        C = problem.kernel(kept, problem.new_features)
        D = kernel_matrix(problem.new_features, problem.kernel, problem.noise_std)
        return append_rows(drop_oldest_rows(K_inv, count), C, D) @ y

    return step


def _kernel_ridge(problem: Problem) -> Step:
    X = problem.features.numpy()
    y = problem.targets.numpy()
    gamma = 1 / (2 * problem.kernel.length_scale**2)
    model = KernelRidge(alpha=problem.noise_std**2, kernel="rbf", gamma=gamma)
    return lambda: model.fit(X, y)


def _gpytorch_peers(problem: Problem) -> Iterator[tuple[str, Step]]:
    """GPyTorch with ONE target column, which favours it: its exact GP would repeat K for every
    further one.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside GPyTorch's own dependencies
        import gpytorch

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: Tensor, y: Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.RBFKernel()

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    x = problem.features
    y = problem.targets[:, 0].contiguous()
    new_x = problem.new_features
    new_y = problem.new_targets[:, 0].contiguous()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(x)
    model = Model(x, y, likelihood).to(x)
    likelihood.noise = problem.noise_std**2
    model.covar_module.lengthscale = problem.kernel.length_scale
    model.eval()

    def exactly(step: Step) -> Step:
        def wrapped() -> object:
            with ExitStack() as stack:
                # Above 800 rows GPyTorch would silently switch to an approximation.
                stack.enter_context(gpytorch.settings.max_cholesky_size(2 * len(x) + len(new_x)))
                stack.enter_context(gpytorch.settings.skip_posterior_variances(True))
                stack.enter_context(torch.no_grad())
                return step()

        return wrapped

    def refit() -> object:
        model.set_train_data(x, y, strict=False)  # drops what was cached
        return model(new_x).mean

    yield "gpytorch_refit_s", exactly(refit)
    exactly(refit)()
    yield "gpytorch_fantasy_s", exactly(lambda: model.get_fantasy_model(new_x, new_y))


# How many rows scikit-learn's semi-supervised classifiers can label before time, memory or NaN stop


@dataclass(frozen=True)
class Budget:
    """What a peer may use for one size: seconds, and bytes of its process in RAM, rows and
    libraries included.
    """

    seconds: float = 60.0
    bytes: int = 4 * 2**30


def largest_size(
    name: str,
    clusters: Clusters,
    *,
    labels: int,
    rows: int,
    budget: Budget,
    report: Callable[[str], object] = lambda _: None,
) -> Record:
    """Let one peer label more and more rows in a process of its own, until it is done with ``rows``
    or is stopped.

    Sizes double from twice the labels on. A size counts if every row gets an answer that is not NaN
    within the budget.

    Args:
        name: one of LABELLERS. labels: given, among the rows of every size.
        report: called with what is being tried, for a progress display.

    Returns:
        ``rows`` at the largest size that counts (0 for none), ``seconds`` and ``rows_per_s`` there;
        ``stopped`` by "memory", "time", "nan", an error, or None if all rows were labelled; and
        ``stopped_at`` how many rows.
    """
    record: Record = {
        "rows": 0,
        "seconds": None,
        "rows_per_s": None,
        "stopped": None,
        "stopped_at": None,
    }
    context = multiprocessing.get_context(
        "spawn"
    )  # a copy of this process would inherit its threads' locks
    ours, theirs = context.Pipe()
    child = context.Process(
        target=_label_more_and_more, args=(theirs, name, clusters, labels, rows), daemon=True
    )
    child.start()
    theirs.close()
    try:
        for size in sizes(labels, rows):
            report(f"{name}, {size:,} rows")
            answer = _answer(ours, child.pid, budget)
            if isinstance(answer, str):
                return record | {"stopped": answer, "stopped_at": size}
            record |= {"rows": size, "seconds": answer, "rows_per_s": size / answer}
        return record
    finally:
        child.kill()
        child.join()


def sizes(labels: int, rows: int) -> Iterator[int]:
    """Twice the labels, doubled until ``rows`` is reached."""
    size = 2 * labels
    while size < rows:
        yield size
        size *= 2
    yield rows


def _answer(connection: Connection, pid: int | None, budget: Budget) -> float | str:
    """Seconds of the size under way, or what stops it. The clock starts when the rows are there."""
    began: float | None = None
    while True:
        if connection.poll(LOOK_SECONDS):
            try:
                message = connection.recv()
            except EOFError:
                return "killed"
            if message != "began":
                return message  # type: ignore[no-any-return]
            began = time.monotonic()
        if began is not None and time.monotonic() - began > budget.seconds:
            return "time"
        if (resident_bytes(pid or 0) or 0) > budget.bytes:
            return "memory"


def _label_more_and_more(
    connection: Connection, name: str, clusters: Clusters, labels: int, rows: int
) -> None:
    """In the child: "began", then seconds or what went wrong, for size after size."""
    for size in sizes(labels, rows):
        X, codes = clusters.draw(size)
        connection.send("began")
        began = time.perf_counter()
        try:
            fitted = fit_peer(PEERS[name], X[:labels], codes[:labels], X[labels:])
            found = fitted.classifier
            probs = (
                found.label_distributions_
                if name == "label_spreading"
                else found.predict_proba(fitted.scaler.transform(X))
            )
            seconds = time.perf_counter() - began
            connection.send(seconds if np.isfinite(probs).all() else "nan")
        except MemoryError:
            connection.send("memory")
        except Exception as error:  # whatever it is, it is the peer's answer
            connection.send(f"{type(error).__name__}: {error}")


# Classifiers of rows of which some are labelled, tuned by cross-validation ------------------------


class Points:
    """Rows under one scaling: labelled ones (n, D), and these before the unlabelled ones (n + u,
    D).
    """

    def __init__(self, labeled: Rows, unlabeled: Rows) -> None:
        self.labeled = labeled
        self.all = np.concatenate([labeled, unlabeled])

    @cached_property
    def median(self) -> float:
        """The median distance between labelled rows that differ, 1 if none do."""
        distances = pdist(self.labeled)
        return float(np.median(distances[distances > 0])) if distances.any() else 1.0

    def known(self, codes: Codes) -> tuple[Rows, Codes]:
        """The labelled rows whose codes (n,) are not -1, and these codes."""
        return self.labeled[codes >= 0], codes[codes >= 0]


Learn = Callable[
    [Codes], Predict
]  # from codes (n,) of the labelled rows, -1 for those that are held out


@dataclass(frozen=True)
class TunedPeer:
    """A classifier with one parameter, chosen together with the scaling of the rows.

    Args:
        title: for people.
        prepare: returns how to learn, for points and a value of the parameter; what depends on
            these alone is done once.
        grid: values of the parameter.
        most_labels, most_classes, most_columns: it takes too long with more.
        most_unlabeled: of more unlabelled rows, so many are drawn.
        scalings: that are tried.
    """

    title: str
    prepare: Callable[[Points, Any], Learn]
    grid: tuple[Any, ...] = (None,)
    most_labels: int | None = None
    most_classes: int | None = None
    most_columns: int | None = None
    most_unlabeled: int | None = None
    scalings: tuple[str, ...] = SCALINGS

    def suits(self, X: Rows, codes: Codes) -> bool:
        """Return whether labelled rows (n, D) with codes (n,) are not too many for it."""
        sizes = (len(codes), len(np.unique(codes)), X.shape[1])
        most = (self.most_labels, self.most_classes, self.most_columns)
        return all(limit is None or size <= limit for size, limit in zip(sizes, most, strict=True))


def fit_tuned(
    peer: TunedPeer, X: Rows, codes: Codes, unlabeled: Rows, *, seed: int
) -> tuple[Predict, Record]:
    """Fit a peer with the scaling and the parameter of the best balanced accuracy on held-out
    labels.

    All pairs are tried in one stratified cross-validation of FOLDS folds, whose predictions are
    pooled. Of equal pairs the
    first is taken: scalings that semigpc itself would choose from come first. Held-out rows stay as
    unlabelled ones.

    Args:
        peer: to fit. X: (n, D) labelled rows. codes: (n,) 0 .. C - 1. unlabeled: (u, D). seed: of
            the folds and of draws.

    Returns:
        How to predict rows (M, D), and the ``scaling`` and ``parameter`` chosen with their
        ``score``.
    """
    rng = np.random.default_rng(seed)
    everything = np.concatenate([X, unlabeled])
    scalings = fit_scalings(everything, labels=len(X))
    scalings |= {
        name: fit_scalings(everything, name)[name] for name in SCALINGS if name not in scalings
    }
    scalings = {name: scaling for name, scaling in scalings.items() if name in peer.scalings}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter(
            "ignore"
        )  # of classes with fewer labels than folds, of rows that no label reaches
        held = _stratified(codes, rng)
        few = _drawn(unlabeled, TUNED_UNLABELED, rng)
        best: Record = {"score": -1.0}
        for name, scaling in scalings.items():
            points = Points(scaling(X).numpy(), scaling(few).numpy())
            for parameter in peer.grid:
                score = _held_out_score(peer.prepare(points, parameter), points, codes, held)
                if score > best["score"]:
                    best = {"scaling": name, "parameter": parameter, "score": score}
        scaling = scalings[best["scaling"]]
        rest = _drawn(unlabeled, peer.most_unlabeled or len(unlabeled), rng)
        predict = peer.prepare(
            Points(scaling(X).numpy(), scaling(rest).numpy()), best["parameter"]
        )(codes)

    def scaled(rows: Rows) -> Codes:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return np.asarray(predict(scaling(rows).numpy()), dtype=np.int64)

    return scaled, best


def _stratified(codes: Codes, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Return the labels of each fold: those of each class are dealt in turn. scikit-learn refuses
    classes of fewer labels.
    """
    order = rng.permutation(len(codes))
    order = order[codes[order].argsort(kind="stable")]
    return [order[fold::FOLDS] for fold in range(FOLDS) if fold < len(order)]


def _drawn(rows: Rows, most: int, rng: np.random.Generator) -> Rows:
    return rows if len(rows) <= most else rows[np.sort(rng.choice(len(rows), most, replace=False))]


def _held_out_score(
    learn: Learn, points: Points, codes: Codes, held: Sequence[NDArray[np.int64]]
) -> float:
    """Return the balanced accuracy of the labels, each predicted while its fold is held out."""
    found = np.full(len(codes), -1, dtype=np.int64)
    for out in held:
        kept = codes.copy()
        kept[out] = -1
        found[out] = learn(kept)(points.labeled[out])
    return balanced_accuracy(codes, found)


def held_out_probs(rows: Rows, codes: Codes, C: float, seed: int) -> NDArray[np.float64]:
    """Return probabilities (n, classes) of scaled rows (n, D) by balanced logistic regression on
    the labels of other folds.
    """
    probs = np.zeros((len(codes), int(codes.max()) + 1))
    for out in _stratified(codes, np.random.default_rng(seed)):
        kept = np.setdiff1d(np.arange(len(codes)), out)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of 500 iterations that were not enough, as in the tuning
            model = _logistic(C).fit(rows[kept], codes[kept])
        probs[np.ix_(out, model.classes_)] = model.predict_proba(rows[out])
    return probs


def balanced_accuracy(truth: NDArray[np.int64], found: NDArray[Any]) -> float:
    """Return the mean over the classes of the share of their rows that is found."""
    return float(recall_score(truth, found, labels=np.unique(truth), average="macro"))


def _classifier(build: Callable[[Points, Any], Any]) -> Callable[[Points, Any], Learn]:
    """Return how to prepare a classifier of scikit-learn that uses labelled rows alone."""

    def prepare(points: Points, parameter: Any) -> Learn:
        return lambda codes: build(points, parameter).fit(*points.known(codes)).predict

    return prepare


def _logistic(C: float) -> Any:
    return LogisticRegression(C=C, class_weight="balanced", max_iter=500, tol=1e-3)


def _forest(_: Points, parameter: tuple[int, Any]) -> Any:
    leaf, features = parameter
    return RandomForestClassifier(
        TREES,
        min_samples_leaf=leaf,
        max_features=features,
        class_weight="balanced_subsample",
        n_jobs=1,
        random_state=0,
    )


def _boosting(_: Points, leaf: int) -> Any:
    return HistGradientBoostingClassifier(
        min_samples_leaf=leaf, class_weight="balanced", early_stopping=False, random_state=0
    )


def _neighbours(points: Points, k: int) -> Learn:
    def learn(codes: Codes) -> Predict:
        rows, known = points.known(codes)
        return KNeighborsClassifier(n_neighbors=min(k, len(rows))).fit(rows, known).predict  # type: ignore[no-any-return]

    return learn


def _gp_classifier(points: Points, parameter: tuple[float, float]) -> Any:
    length, variance = parameter
    kernel = ConstantKernel(variance) * kernels.RBF(length * points.median)
    return GaussianProcessClassifier(kernel, optimizer=None)


def _self_training(points: Points, C: float) -> Learn:
    def learn(codes: Codes) -> Predict:
        every = np.full(len(points.all), -1, dtype=np.int64)
        every[: len(codes)] = codes
        return SelfTrainingClassifier(_logistic(C)).fit(points.all, every).predict  # type: ignore[no-any-return]

    return learn


def _label_spreading(points: Points, parameter: tuple[int, float, float]) -> Learn:
    """LabelSpreading with w_ij = exp(-g d_ij^2 / m^2) between a row and its k nearest, m the median
    distance of labelled rows.

    With g = 0 this is scikit-learn's kNN kernel; otherwise its RBF kernel, cut off so that the
    graph stays sparse.
    """
    k, g, alpha = parameter
    k = min(k, len(points.all) - 1)
    index = NearestNeighbors(n_neighbors=k).fit(points.all)

    def weights(nearest: tuple[Rows, Rows]) -> sparse.csr_matrix:
        distances, places = nearest
        values = np.exp(-g * np.square(distances / points.median)) + 1e-12
        own = np.repeat(np.arange(len(places)), places.shape[1])
        return sparse.csr_matrix(
            (values.ravel(), (own, places.ravel())), shape=(len(places), len(points.all))
        )

    graph = weights(index.kneighbors())

    def kernel(_: Rows, queries: Rows) -> sparse.csr_matrix:
        return graph if queries is points.all else weights(index.kneighbors(queries)).T

    def learn(codes: Codes) -> Predict:
        every = np.full(len(points.all), -1, dtype=np.int64)
        every[: len(codes)] = codes
        model = LabelSpreading(kernel=kernel, alpha=alpha, max_iter=100)
        predict: Predict = model.fit(points.all, every).predict
        return predict

    return learn


class Diffusion:
    """Label propagation on a kNN graph: Z = (I - a S)^-1 Y over labelled and unlabelled rows, with
    S = D^-1/2 W D^-1/2.

    w_ij = max(0, cos(x_i, x_j))^g between a row and its k nearest, made symmetric by W + W^T.
    Column c of Y is 1 / n_c at the labels of class c, so that every class sends out the same mass
    whatever its size; rows of Z are then normalised. Up to DENSE rows one Cholesky factor, O((n +
    u)^3), is used for all Y; of more, conjugate gradients, O(k (n + u) C) an iteration.
    No test row is in the graph: one gets the mean of its k nearest rows of Z, weighted by w.

    Args:
        rows: (n + u, D), the n labelled ones first.
        neighbours: k, or as many as there are. power: g. alpha: a.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        neighbours: int = NEIGHBOURS,
        power: float = POWER,
        alpha: float = ALPHA,
        dense: int = DENSE,
    ) -> None:
        rows = unit(rows)
        self.power = power
        self.index = NearestNeighbors(
            n_neighbors=min(neighbours, len(rows) - 1), algorithm="brute"
        ).fit(rows)
        distances, nearest = self.index.kneighbors()  # of each row, without itself
        own = np.repeat(np.arange(len(rows)), nearest.shape[1])
        W = sparse.csr_matrix(
            (affinity(distances, power).ravel(), (own, nearest.ravel())),
            shape=(len(rows), len(rows)),
        )
        W = W + W.T
        scale = sparse.diags(1 / np.sqrt(np.maximum(np.asarray(W.sum(axis=1)).ravel(), 1e-12)))
        system = sparse.identity(len(rows), format="csr") - alpha * (scale @ W @ scale)
        if len(rows) <= dense:
            factor: Any = cho_factor(system.toarray(), overwrite_a=True, check_finite=False)
            self.solve: Callable[[Rows], Rows] = lambda Y: cho_solve(factor, Y)
        else:
            self.solve = lambda Y: np.stack([_solve(system, column) for column in Y.T], axis=1)
        self.rows = len(rows)

    def learn(self, codes: Codes) -> Predict:
        """Return how to predict rows (M, D), for the codes (n,) of the first rows, -1 where there
        is no label.
        """
        known = np.flatnonzero(codes >= 0)
        Y = np.zeros((self.rows, int(codes.max()) + 1))
        Y[known, codes[known]] = 1 / np.bincount(codes[known])[codes[known]]
        Z = self.solve(Y)
        shares = Z / np.maximum(Z.sum(axis=1, keepdims=True), 1e-12)

        def predict(rows: Rows) -> Codes:
            distances, nearest = self.index.kneighbors(unit(rows))
            mean = np.einsum("mk,mkc->mc", affinity(distances, self.power), shares[nearest])
            return np.asarray(mean.argmax(axis=1), dtype=np.int64)

        return predict


def _diffusion(points: Points, parameter: tuple[int, float, float]) -> Learn:
    k, power, alpha = parameter
    return Diffusion(points.all, neighbours=k, power=power, alpha=alpha).learn


def unit(rows: Rows) -> Rows:
    """Rows of unit length."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def affinity(distances: Rows, power: float) -> Rows:
    """max(0, cos)^g from distances between unit rows: cos = 1 - d^2 / 2."""
    return np.asarray(np.maximum(0, 1 - distances**2 / 2) ** power)


def _solve(system: Any, column: NDArray[np.float64]) -> NDArray[np.float64]:
    solution, left = cg(system, column, maxiter=ITERATIONS)
    if left:
        raise RuntimeError(
            f"label propagation did not converge in {ITERATIONS} iterations; are features finite?"
        )
    return np.asarray(solution)


TUNED_PEERS: Mapping[str, TunedPeer] = {
    "knn": TunedPeer("Nearest neighbours", _neighbours, (1, 3, 5, 10, 20)),
    "class_mean": TunedPeer("Nearest class mean", _classifier(lambda *_: NearestCentroid())),
    "logistic": TunedPeer(
        "Logistic regression, balanced",
        _classifier(lambda _, C: _logistic(C)),
        (1.0, 0.01, 0.1, 10.0, 100.0),
    ),
    "gp_classifier": TunedPeer(
        "GaussianProcessClassifier",
        _classifier(_gp_classifier),
        ((1.0, 1.0), (1.0, 30.0), (0.5, 30.0), (0.25, 30.0)),
        most_labels=GP_LABELS,
        most_classes=GP_CLASSES,
    ),
    "label_spreading": TunedPeer(
        "LabelSpreading",
        _label_spreading,
        tuple((k, g, a) for k, g in ((7, 0.0), (30, 2.0), (30, 8.0)) for a in (0.2, 0.8)),
    ),
    "diffusion": TunedPeer(
        "Label propagation, kNN graph",
        _diffusion,
        tuple(product((10, 5, 30), (12.0, 3.0), (0.9, 0.99))),
    ),
    "self_training": TunedPeer(
        "SelfTraining (balanced logistic)",
        _self_training,
        (1.0, 0.1, 10.0),
        most_unlabeled=TRAINED_UNLABELED,
    ),
    "random_forest": TunedPeer(
        "Random forest, balanced",
        _classifier(_forest),
        tuple(product((1, 3), ("sqrt", 0.5))),
        most_columns=TREE_COLUMNS,
        scalings=TREE_SCALINGS,
    ),
    "boosting": TunedPeer(
        "HistGradientBoosting, balanced",
        _classifier(_boosting),
        (20, 5, 2),
        most_columns=TREE_COLUMNS,
        scalings=TREE_SCALINGS,
    ),
}
