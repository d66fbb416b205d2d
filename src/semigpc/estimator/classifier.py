"""SemiGPClassifier: labels for all rows of a table of which a few are labelled."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor
from torch.nn.functional import one_hot

from semigpc.estimator.answers import (
    SMALLEST,
    Answers,
    Decisions,
    Doubles,
    Explanation,
    Floats,
    Integers,
    LeftOutLabels,
    Probabilities,
    Scaling,
    Status,
    centre_of,
    highest_grade,
    left_out_scores,
    rounded,
)
from semigpc.estimator.copies import sums_of
from semigpc.estimator.fitting import STATISTICS_ROWS, FitOptions, fit_memory
from semigpc.estimator.head import (
    EQUAL_ROWS,
    ClassifierHead,
    Rules,
    head_facts,
    rows_input,
    write_head,
)
from semigpc.estimator.memory import Memory, row_numbers
from semigpc.estimator.posterior import Scored
from semigpc.estimator.promise import make_promise
from semigpc.io.tables import label_text
from semigpc.io.threads import suited_to

PRECISIONS = (np.float64, np.float32)  # of rows that are taken as they are, until they are centred
SCORED_ROWS = 16_384  # at a time, to bound memory


class SemiGPClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian process classification of rows of which a few are labelled, made for long tails.

        mu(x) = k(h, h_Q) K^-1 (Y - 1 nu^T)       h = scaling(x)       K = k(h_Q, h_Q) + sigma^2 I
        p(c | x) ~ ( w softmax(lambda' mu + log(pi) / 2)
                   + (1 - w) softmax(2 lambda sqrt(nbar / n_c) mu~ + log(pi) / 2) )^b

    mu~ is the same of a GP that also holds unlabelled rows which joined in self-training, pi are
    the estimated shares of the classes among the unlabelled rows, and nu those of the labels; w is
    0.6, or 0.3 where the unlabelled rows are far more evenly spread than the labels. The
    class is the argmax of p, its confidence is p, and everything else follows from p too: see
    :class:`semigpc.estimator.answers.Probabilities`.

    ``fit`` chooses scaling, l, sigma and lambda by leave-one-out in closed form with every class
    counting the same, estimates from the unlabelled rows how often each class occurs among them,
    and chooses b so that left-out labels are most likely. A label comes with its probability, the
    posterior variance, and the labelled rows that contribute most; ``partial_fit`` takes a
    correction in O(N^2).

    Cost: fit O(n^3) for n labelled rows, a prediction O(n (D + C)), with its variance O(n (D + n)).
    Beyond 26 215 labelled rows, or what half of the machine's memory holds, the average of several
    GPs is used instead of one (``engine_``): each holds all rows of small classes and a part of the
    large ones, so that cubes and squares are those of 12 288 rows. There is no self-training then.

    Args:
        kernel: "rbf" (the paper's), "laplace", "cosine", or any other of
            :data:`semigpc.gp.KERNELS` with k(h, h) = 1.
        length_scale: l, in units of scaled rows; "auto" chooses among multiples of the median
            distance.
        noise_std: sigma, beside an output scale of 1; "auto" chooses.
        logit_scale: lambda; "auto" maximises the likelihood of left-out labels.
        sharpness: b, but for classes with one or two labels; "auto" does the same.
        scaling: "unit", "centered", "standard", "rank", "weighted", "weighted_rank",
            "weighted_steps", "whitened" or "none", see :class:`semigpc.estimator.Scaling`; "auto"
            chooses, weighted and whitened ones for rows of fewer than 128 columns only, steps up
            to 64.
        class_prior: "estimated" decides for the most probable class, which makes the fewest errors
            and hardly fewer in rare classes. "balanced" decides for the largest p / sqrt(pi), which
            finds more rows of rare classes and makes more errors; confidence stays p.
        self_training: rounds in which unlabelled rows of high confidence join the labelled ones;
            False is 0; "auto" is three if recall of left-out labels, averaged over classes, is at
            least a half, and 0 otherwise. Variance and reasons come from given labels alone.
        abstain: confidence below which no label is given out, in place of ``target_precision``;
            above 1, none ever is.
        target_precision: with probability 90 % over the labels drawn, at least this share of the
            labels given out is right, if the labels of each class are a random sample of that
            class. It sets the threshold; ``promise_`` has what came of it. None gives out a label
            for every row.
        per_class: whether the promise is made for the labels of each class by itself.
        outlier_quantile: rows of a larger variance than this share of the labelled ones (left out)
            are called outliers, if no class has a probability of (1 + 1 / C) / 2 or more.
        random_state: seed for subsets of many labels.

    Attributes:
        classes_: (C,) sorted. class_counts_: (C,) given labels. class_shares_: (C,) estimated
            shares among the unlabelled rows.
        transduction_: (n,) labels of the rows that were fitted: the given ones, and those given out
            for the others. Not with ``fit(..., transduce=False)``.
        threshold_: (C,) confidence below which a label of each class is withheld; 0 if none ever
            is.
        promise_: what can be said of the labels given out, see :class:`semigpc.estimator.Promise`.
        held_out_: given labels as the others predict them by the whole procedure, self-training
            included; None if ``sharpness`` is given and nothing is promised.
        outlier_variance_: variance above which a row may be an outlier.
        scaling_, kernel_, length_scale_, noise_std_, logit_scale_, sharpness_, self_training_: as
            chosen. confidence_scale_: lambda'.
        labeled_rows_: numbers of the rows with a given label. n_features_in_: D.
        copy_groups_: (n,) the group of each of these rows. Rows of one group are copies of each
            other, see :class:`semigpc.estimator.Copies`, and are left out together.
        engine_: "exact", or "ensemble" where labelled rows are too many for one GP. engine_reason_:
            why, in a sentence.
    """

    def __init__(
        self,
        *,
        kernel: str = "rbf",
        length_scale: float | Literal["auto"] = "auto",
        noise_std: float | Literal["auto"] = "auto",
        logit_scale: float | Literal["auto"] = "auto",
        sharpness: float | Literal["auto"] = "auto",
        scaling: str = "auto",
        class_prior: Literal["balanced", "estimated"] = "estimated",
        self_training: int | bool | Literal["auto"] = "auto",
        abstain: float | None = None,
        target_precision: float | None = 0.95,
        per_class: bool = False,
        outlier_quantile: float = 0.99,
        random_state: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.length_scale = length_scale
        self.noise_std = noise_std
        self.logit_scale = logit_scale
        self.sharpness = sharpness
        self.scaling = scaling
        self.class_prior = class_prior
        self.self_training = self_training
        self.abstain = abstain
        self.target_precision = target_precision
        self.per_class = per_class
        self.outlier_quantile = outlier_quantile
        self.random_state = random_state

    # Learning -------------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any, *, rows: Any = None, drawn: Any = None, transduce: bool = True
    ) -> Self:
        """Learn from rows of which some are labelled.

        Args:
            X: (n, D) finite numbers. y: (n,) classes; -1 or NaN, or None beside text, where there
                is no label; a sparse indicator matrix is accepted too.
            rows: (n,) numbers that identify the rows in explanations and corrections; 0 .. n - 1 if
                left out.
            drawn: (n,) whether each row is a random one of its class, all if left out. Labels of
                other rows, such as those that an active learner asked for, are learned from and do
                not count for ``promise_`` and ``held_out_``.
            transduce: whether to label all rows for ``transduction_``, which costs as much as
                ``predict``. Without it there is no such attribute.
        """
        return self._fit(X, y, None, rows, drawn=drawn, transduce=transduce)

    def _fit(
        self, X: Any, y: Any, classes: Any, rows: Any, *, drawn: Any = None, transduce: bool = True
    ) -> Self:
        options = FitOptions.of(self.get_params())
        X = self._validated(X, reset=True)
        self._centre = centre_of(X[:: -(-len(X) // STATISTICS_ROWS)])
        X = self._rounded(X)
        codes, self.classes_ = read_targets(y, None if classes is None else np.unique(classes))
        numbers = row_numbers(rows, len(X))
        is_drawn = np.ones(len(X), dtype=bool) if drawn is None else np.asarray(drawn)
        _check_labels(len(X), codes, is_drawn, self.classes_)
        with suited_to(X.size):  # for passes over the rows; larger work sets its own threads
            fitted = fit_memory(X, codes, numbers, is_drawn, len(self.classes_), options)
        self._memory = fitted.memory
        self._helped = fitted.helped
        self._copies = fitted.copies
        self._scaling = fitted.scaling
        self.scaling_ = fitted.scaling.name
        self.kernel_ = fitted.memory.kernel
        self.length_scale_ = fitted.length_scale
        self.noise_std_ = fitted.memory.noise_std
        self.logit_scale_ = fitted.probabilities.logit_scale
        self.confidence_scale_ = fitted.probabilities.confidence_scale
        self.sharpness_ = fitted.probabilities.sharpness
        self.held_out_ = fitted.held_out
        self.self_training_ = fitted.rounds
        self.outlier_variance_ = fitted.outlier_variance
        self.class_shares_ = fitted.probabilities.shares.numpy()
        self.promise_ = fitted.promise
        self.threshold_ = fitted.promise.thresholds
        self._count()
        self._rows_seen = int(numbers.max()) + 1
        self._n_fitted = len(X)
        self._transduced: dict[int, int] = {}  # positions in transduction_ by row number
        if transduce:
            self._transduced = {int(number): place for place, number in enumerate(numbers)}
            self.transduction_ = self._transduce(X, codes)
        elif hasattr(self, "transduction_"):
            del self.transduction_  # of an earlier fit
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, *, rows: Any = None) -> Self:
        """Add, replace or withdraw labels online: O(B N^2) for B rows.

        Hyper-parameters, shares and threshold stay as ``fit`` chose them; class counts change. The
        first call is a ``fit``. A new class is added; several GPs are built anew for it.

        Args:
            X: (B, D). y: (B,) classes; -1, None or NaN withdraws the label of that row.
            classes: all classes there will be, at the first call; later ones are added.
            rows: (B,) distinct row numbers. A known number stands for the same row as before. If
                left out, a row that equals a labelled one replaces its label, and any other is new.
        """
        if not hasattr(self, "classes_"):
            return self._fit(X, y, classes, rows)
        X = self._checked(X)
        codes, known = read_targets(
            y, self.classes_ if classes is None else np.union1d(self.classes_, classes)
        )
        if len(codes) != len(X):
            raise ValueError(
                f"y must have one entry for each of the {len(X)} rows; got {len(codes)}."
            )
        if len(known) > len(self.classes_):
            self._add_classes(known)
        points = self._scaling(X)
        if rows is None:
            numbers, keep = self._memory.recognise(points, self._rows_seen)
        else:
            numbers = row_numbers(rows, len(X))
            keep = np.arange(len(X))
        codes = codes[keep]
        self._rows_seen = max(self._rows_seen, int(numbers.max(initial=-1)) + 1)
        labelled = codes >= 0
        known_codes = codes[labelled]
        targets = one_hot(torch.from_numpy(known_codes), len(self.classes_)).double()
        points = points[torch.from_numpy(keep[labelled])]
        for memory in self.memories():
            memory.forget(numbers[~labelled])
            memory.put(numbers[labelled], points, targets, known_codes)
        self._copies.forget(numbers)
        self._copies.put(numbers[labelled], X[keep[labelled]])
        self._count()
        ours = np.array([number in self._transduced for number in numbers.tolist()], dtype=bool)
        if ours.any():
            labels = self._transduce(X[keep][ours], codes[ours])
            kind = np.result_type(self.transduction_, labels)
            self.transduction_ = self.transduction_.astype(kind)
            places = [self._transduced[number] for number in numbers[ours].tolist()]
            self.transduction_[places] = labels
        return self

    def _add_classes(self, known: NDArray[Any]) -> None:
        places = np.searchsorted(known, self.classes_)
        for memory in self.memories():
            memory.rename_classes(torch.from_numpy(places), len(known))
        # A new class is rare, since no row has it yet.
        shares = np.full(len(known), 1 / (self._n_fitted + len(known)))
        shares[places] = self.class_shares_ * (1 - (len(known) - len(places)) * shares[0])

        def with_new(thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
            wider = np.full(len(known), thresholds.max())
            wider[places] = thresholds
            return wider

        self.classes_ = known
        self.class_shares_ = shares
        self.threshold_ = with_new(self.threshold_)
        self.promise_ = self.promise_._replace(
            thresholds=self.threshold_,
            grades={precision: with_new(each) for precision, each in self.promise_.grades.items()},
        )
        if self._transduced and {self.transduction_.dtype.kind, known.dtype.kind} & {"U", "S"}:
            kind = np.result_type(self.transduction_.dtype, known.dtype)
            self.transduction_ = self.transduction_.astype(kind)

    def _count(self) -> None:
        self.engine_ = self._memory.engine
        self.engine_reason_ = self._memory.reason
        rows, codes, _ = self._memory.given()
        self.labeled_rows_ = rows
        self.copy_groups_ = self._copies.groups(rows)
        self.class_counts_ = np.bincount(codes, minlength=len(self.classes_))

    # Prediction -----------------------------------------------------------------------------------

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the classes (M,) of rows (M, D), whatever their confidence. O(M n (D + C))."""
        codes = self.answer(X, variance=False, top=0).codes
        labels: NDArray[Any] = self.classes_[codes]
        return labels

    def label(self, X: Any) -> NDArray[Any]:
        """Return the labels (M,) given out for rows (M, D). O(M n (D + C + n)).

        Other rows have -1, NaN or (beside text) None.
        """
        answers = self.answer(X, top=0)
        return self._named(answers.codes, withheld=answers.status != Status.PSEUDO)

    def predict_proba(self, X: Any) -> Floats:
        """Return probabilities (M, C); rows sum to 1. O(M n (D + C))."""
        rows = self._checked(X)
        with self._threads(rows, variance=False):
            return np.concatenate([probs.numpy() for _, probs, _ in self._scored(rows)])

    def predict_variance(self, X: Any) -> Floats:
        """Return posterior over prior variance (M,). O(M n (D + n)).

        0 where all is known, 1 far from every label.
        """
        rows = self._checked(X)
        with self._threads(rows, variance=True):
            starts = range(0, len(rows), SCORED_ROWS)
            points = (self._scaling(rows[start : start + SCORED_ROWS]) for start in starts)
            parts = [self._memory.score(each, variance=True).variance for each in points]
            return np.concatenate([part.numpy() for part in parts if part is not None])

    def answer(self, X: Any, *, variance: bool = True, top: int = 3) -> Answers:
        """Return class, confidence, variance, status and reasons of rows (M, D).

        In bounded memory. Without ``variance`` no row is called an outlier. O(M n (D + C)), with
        the variance O(M n (D + C + n)).

        Args:
            top: reasons per row, the largest first.
        """
        return self._answer(self._checked(X), variance=variance, top=top)

    def _answer(self, X: Floats, *, variance: bool, top: int) -> Answers:
        with self._threads(X, variance=variance):
            scored = self._scored(X, variance=variance, top=top)
            parts = [self.answered(probs, each) for _, probs, each in scored]
            columns: Any = zip(*parts, strict=True)
            joined: list[Any] = [
                None if column[0] is None else np.concatenate(column) for column in columns
            ]
            return Answers(*joined)

    def answered(self, probs: Tensor, scored: Scored) -> Answers:
        """Return the answers for probabilities (M, C), with the classes that they decide for."""
        codes = scored.classes.numpy()
        first = scored.classes.unsqueeze(1)
        confidence = probs.gather(1, first).squeeze(1).numpy()
        others = probs.scatter(1, first, -1.0).max(dim=1)
        status = np.where(confidence < self.threshold_[codes], Status.ABSTAINED, Status.PSEUDO)
        status = status.astype(np.uint8)
        grade = highest_grade(self.promise_.grades, codes, confidence)
        variance = None if scored.variance is None else scored.variance.numpy()
        if variance is not None:
            status[self.is_outlier(variance, confidence)] = Status.OUTLIER
            grade[status == Status.OUTLIER] = 0
        return Answers(
            codes=codes,
            confidence=confidence,
            second=others.indices.numpy(),
            second_confidence=others.values.clamp_min(0).numpy(),
            variance=variance,
            status=status,
            grade=grade.astype(np.float32),
            rows=np.append(self._memory.row_numbers(), -1)[scored.slots.numpy()],
            weights=scored.reasons.numpy(),
            scores=scored.mean.gather(1, first).squeeze(1).numpy(),
        )

    def renew_promise(self, held_out: LeftOutLabels, pool: Decisions) -> None:
        """Make the promise again for other left-out labels and unlabelled rows. O(u DRAWS).

        For labels that came since ``fit``: each was predicted before it was known, which is as good
        as leaving it out. Does nothing if no precision was asked for.

        Args:
            held_out: the left-out labels. pool: decisions for u unlabelled rows.
        """
        options = FitOptions.of(self.get_params())
        if options.promised is None:
            return
        self.held_out_ = held_out
        self.promise_ = make_promise(
            held_out,
            pool,
            torch.from_numpy(self.class_shares_),
            torch.from_numpy(self.class_counts_).double(),
            options.promised,
            per_class=options.per_class,
            chosen=max(0.0, 1 - len(held_out.codes) / max(1, len(self.labeled_rows_))),
        )
        self.threshold_ = self.promise_.thresholds

    def is_outlier(self, variance: Floats, confidence: Floats) -> NDArray[np.bool_]:
        """Return which rows (M,) are unlike everything labelled: little is known of any class.

        A row is that if its variance (M,) is larger than ``outlier_variance_``, and its confidence
        (M,) nearer to 1 / C than to 1.
        """
        weak = confidence < (1 + 1 / len(self.classes_)) / 2
        return np.asarray((variance > self.outlier_variance_) & weak)

    def explain(self, X: Any, top: int = 3, classes: Any = None) -> Explanation:
        """Return the labelled rows of largest weight; weights are signed and add up to the score.

        O(M n (D + n)), for few rows.

        Args:
            X: (M, D). top: labelled rows to list, largest weight first; the others are summed up.
                With the number of labels, all are listed, down to those of the most negative
                weight.
            classes: (M,) classes to explain, or one for all rows; the predicted ones if left out.
        """
        rows = self._checked(X)
        points = self._scaling(rows)
        if classes is None:
            codes = torch.cat([scored.classes for _, _, scored in self._scored(rows)])
        else:
            named = np.broadcast_to(np.asarray(classes), (len(points),))
            codes = torch.from_numpy(self._codes_of(named))
        slots, weights, scores = self._memory.reasons(points, codes, top)
        return Explanation(
            codes=codes.numpy(),
            rows=np.append(self._memory.row_numbers(), -1)[slots.numpy()],
            weights=weights.float().numpy(),
            differences=self._memory.differences(points, codes, slots).float().numpy(),
            rest=(scores - weights.sum(dim=1)).float().numpy(),
            scores=scores.float().numpy(),
        )

    @property
    def row_scaling(self) -> Scaling:
        """What makes points of rows: the same object until the next fit."""
        return self._scaling

    def points(self, X: Any) -> Tensor:
        """Return rows (M, D) as the GP sees them, scaled; float32. O(M D)."""
        return self._scaling(self._checked(X))

    def covariance(self, X1: Any, X2: Any) -> Floats:
        """Return the posterior covariance (M1, M2) of two sets of rows, over the prior variance.

        O(M2 n^2 + M1 n M2).
        """
        points = self._scaling(self._checked(X1))
        others = self._scaling(self._checked(X2))
        covariance: Floats = self._memory.covariance(points, others).float().numpy()
        return covariance

    def leave_one_out(self) -> LeftOutLabels:
        """Return what the other given labels predict for each, all classes being equally frequent.

        Copies of its row are left out with it (``copy_groups_``), and rows that joined in
        self-training take no part, so that wrong labels can be found among all of them. In closed
        form: O(n^2 + n C), or O(n^2 (D + C)) where ``engine_`` is "ensemble". The variance of an
        ensemble is then that of the GPs which hold the row, without it; the others hold as many
        similar rows. ``held_out_`` has what the whole procedure predicts.
        """
        check_is_fitted(self)
        rows, codes, positions = self._memory.given()
        own = one_hot(torch.from_numpy(codes), len(self.classes_)).double()
        left_out = self._memory.left_out(self.copy_groups_)
        held = own * self._memory.held_shares()[positions].unsqueeze(1)
        removed = sums_of(held, self.copy_groups_)
        about = (left_out.mean[positions], left_out.ones[positions], self._memory.counts(), removed)
        even = left_out_scores(*about)
        return LeftOutLabels(
            rows=rows,
            codes=codes,
            groups=self.copy_groups_,
            proba=torch.softmax(self.logit_scale_ * even, dim=1).float().numpy(),
            decided=even.argmax(dim=1).numpy(),
            variance=left_out.variance[positions].clamp(0, 1).float().numpy(),
        )

    def explain_left_out(
        self, rows: Any, classes: Any, top: int = 3
    ) -> tuple[Integers, Floats, Floats]:
        """Return reasons for a class at labelled rows, as if these had never been labelled.

        Nor their copies: each row is left out with its group of ``copy_groups_``.
        The probabilities of :meth:`leave_one_out` are those of the scores. O(M n (D + n)), for few
        rows.

        Args:
            rows: (M,) numbers of rows with a given label. classes: (M,) the class to explain for
                each.
            top: labelled rows to list, largest weight first.

        Returns:
            Row numbers (M, top), -1 where there are fewer; what each adds to the score (M, top),
            signed; scores (M,).
        """
        check_is_fitted(self)
        numbers = row_numbers(rows, len(rows))
        unknown = numbers[~np.isin(numbers, self.labeled_rows_)]
        if len(unknown):
            raise ValueError(f"rows must have a given label; row {unknown[0]} has none.")
        codes = torch.from_numpy(self._codes_of(np.asarray(classes)))
        slots, weights, scores = self._memory.left_out_reasons(
            numbers, codes, top, self.copy_groups_
        )
        return (
            np.append(self._memory.row_numbers(), -1)[slots.numpy()],
            weights.float().numpy(),
            scores.float().numpy(),
        )

    # Export ---------------------------------------------------------------------------------------

    def head(
        self, *, centre: Doubles | None = None, tolerance: float = EQUAL_ROWS
    ) -> ClassifierHead:
        """Return the model as a module of plain tensors, which later corrections do not change.

        Args:
            centre: (D,) what the caller subtracted from all rows before it rounded them.
            tolerance: see :class:`ClassifierHead`.
        """
        check_is_fitted(self)
        return ClassifierHead.of(
            scaling=self._scaling,
            centre=self._centre if centre is None else centre,
            memory=self._memory,
            helped=self._helped,
            probabilities=self.probabilities(),
            rules=Rules(self.promise_.grades, self.threshold_, self.outlier_variance_),
            tolerance=tolerance,
        )

    def to_onnx(self, path: str | Path) -> None:
        """Write the model as one ONNX file that needs neither semigpc nor the data.

        The input is ``rows`` (M, D), unscaled, in float32; the outputs are those of
        :class:`semigpc.estimator.head.ClassifierHead`: ``probabilities`` (M, C) as of
        ``predict_proba``, ``label``, ``grade``, ``status`` and, up to 2000 labels, ``variance``.
        Class names and thresholds are in the metadata, as JSON under the key ``semigpc``. If ``X``
        was float64 with an offset that float32 cannot represent, the input is float64. It needs
        ``pip install 'semigpc[export]'``.
        """
        head = self.head()
        facts = head_facts(head, self.classes_.tolist())
        width = self.n_features_in_
        write_head(head, width, Path(path), facts | {"input": rows_input(head, width)})

    # Helpers --------------------------------------------------------------------------------------

    def _checked(self, X: Any) -> Floats:
        check_is_fitted(self)
        return self._rounded(self._validated(X, reset=False))

    def _validated(self, X: Any, *, reset: bool) -> NDArray[Any]:
        # scikit-learn adds all numbers up to find infinity, and the sum of huge ones is not finite.
        with np.errstate(invalid="ignore"):
            rows: NDArray[Any] = validate_data(self, X, dtype=PRECISIONS, reset=reset)
        return rows

    def _rounded(self, X: NDArray[Any]) -> Floats:
        rows = rounded(X, self._centre)
        with np.errstate(invalid="ignore"):
            assert_all_finite(rows, input_name="X")
        return rows

    def _scored(
        self, X: Floats, *, variance: bool = False, top: int = 0
    ) -> Iterator[tuple[Tensor, Tensor, Scored]]:
        """Yield points, probabilities and scores by given labels, one chunk at a time.

        The classes of the scores are those that the probabilities decide for.
        """
        probabilities = self.probabilities()
        scales = self._memory.scales().clamp_min(1e-9).float()
        for start in range(0, len(X), SCORED_ROWS):
            points = self._scaling(X[start : start + SCORED_ROWS])
            even = None if self._helped is None else self._helped.score_unjoined(points)
            probs = torch.empty(len(points), len(self.classes_))
            choose = partial(_choose, probabilities, scales, even, probs)
            yield (
                points,
                probs,
                self._memory.score(points, choose=choose, variance=variance, top=top),
            )

    def _threads(self, X: Floats, *, variance: bool) -> AbstractContextManager[None]:
        """Set the number of threads for all work on a block of rows."""
        return suited_to(min(len(X), SCORED_ROWS) * self._memory.row_work(variance=variance))

    def memories(self) -> list[Memory]:
        """Return the GP over given labels and, with self-training, that with joined rows."""
        return [self._memory] if self._helped is None else [self._memory, self._helped]

    def probabilities(self) -> Probabilities:
        """Return what turns the scores of both GPs into probabilities."""
        return Probabilities(
            logit_scale=self.logit_scale_,
            confidence_scale=self.confidence_scale_,
            sharpness=self.sharpness_,
            shares=torch.from_numpy(self.class_shares_).clamp_min(SMALLEST).float(),
            counts=torch.from_numpy(self.class_counts_).float(),
            balanced=self.class_prior == "balanced",
        )

    def _named(self, codes: Integers, *, withheld: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the classes (M,), with -1, NaN or None where they are withheld."""
        labels = self.classes_[codes]
        if not withheld.any():
            return labels
        kind = labels.dtype.kind
        if kind in "iu":
            labels = labels.astype(np.result_type(labels.dtype, np.int8))
        elif kind != "f":
            labels = labels.astype(object)
        missing = {"i": -1, "u": -1, "f": np.nan}
        labels[withheld] = missing.get(kind)
        return labels

    def _codes_of(self, names: NDArray[Any]) -> Integers:
        """Return the places (M,) of class names (M,) in ``classes_``."""
        places = np.searchsorted(self.classes_, names).clip(0, len(self.classes_) - 1)
        unknown = self.classes_[places] != names
        if unknown.any():
            raise ValueError(
                f"classes must be among classes_; {names[unknown].tolist()[0]!r} is not."
            )
        return places

    def _transduce(self, X: NDArray[np.float32], codes: Integers) -> NDArray[Any]:
        answers = self._answer(X, variance=False, top=0)
        labelled = codes >= 0
        return self._named(
            np.where(labelled, codes, answers.codes),
            withheld=~labelled & (answers.status == Status.ABSTAINED),
        )


def _check_labels(rows: int, codes: Integers, drawn: NDArray[Any], classes: NDArray[Any]) -> None:
    """Raise a ValueError unless there are labels (n,) of two classes, and n truth values."""
    if len(codes) != rows:
        raise ValueError(f"y must have one entry for each of the {rows} rows; got {len(codes)}.")
    if drawn.shape != (rows,) or drawn.dtype != bool:
        raise ValueError(
            f"drawn must be {rows} truth values, one for each row of X; "
            f"got {drawn.dtype} {drawn.shape}."
        )
    if not (codes >= 0).any():
        raise ValueError(
            f"none of the {rows} rows is labelled: all of y is -1, None or NaN. "
            "Label some rows of at least two classes."
        )
    if len(classes) < 2:
        only = classes.tolist()[0]
        raise ValueError(
            f"all labels are of one class, {only!r}; label rows of at least two classes."
        )


def _choose(
    probabilities: Probabilities,
    scales: Tensor,
    even: Tensor | None,
    probs: Tensor,
    mean: Tensor,
    start: int,
) -> Tensor:
    """Return the classes of some rows, and write their probabilities to ``probs`` (M, C).

    Args:
        scales: (C,) factors that means contain. even: (M, C) scores of the GP with joined rows,
            None if there is none. mean: (m, C) of the rows from ``start`` on.
    """
    own = slice(start, start + len(mean))
    probs[own] = probabilities.of(mean / scales, mean if even is None else even[own])
    return probabilities.decide(probs[own]).classes


def read_targets(y: Any, classes: NDArray[Any] | None = None) -> tuple[Integers, NDArray[Any]]:
    """Return codes (n,), -1 where there is no label, and classes (C,) of labels.

    Labels may have any form that scikit-learn accepts. Unlabelled rows are marked as in
    :func:`semigpc.io.tables.label_text`: by -1, NaN, None or empty text. A sparse matrix of one
    column is read as a vector; one of several columns is an indicator, whose rows without an entry
    are unlabelled.

    Args:
        y: (n,) or a sparse matrix of n rows.
        classes: (C,) sorted, if they are known already; labels that are not among them are added.
    """
    values = _dense(y)
    known = ~_missing(values)
    labels = values[known]
    are_text = [isinstance(label, str) for label in labels] if labels.dtype.kind == "O" else []
    if are_text and not all(are_text):  # text stays objects, beside None
        if any(are_text):
            raise ValueError(
                "labels must be all text or all numbers; got both. Convert the numbers to text."
            )
        labels = np.array(labels.tolist())
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(
            "y contains infinity; a label is a class, and NaN or -1 mark rows without one."
        )
    if len(labels):
        with warnings.catch_warnings():
            # That there are many classes for so few labels, which is what this is for.
            warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
            check_classification_targets(labels)
    is_text = labels.dtype.kind in "OUST"
    if classes is not None and len(labels) and (classes.dtype.kind in "OUST") != is_text:
        raise ValueError(
            f"labels must be of the kind of the classes, such as {classes[0]!r}; "
            f"got {labels.tolist()[0]!r}."
        )
    classes = np.unique(labels if classes is None else np.concatenate([classes, labels]))
    codes = np.full(len(values), -1, dtype=np.int64)
    codes[known] = np.searchsorted(classes, labels)
    return codes, classes


def _dense(y: Any) -> NDArray[Any]:
    if sparse.issparse(y):
        if y.shape[1] == 1:
            return np.asarray(y.toarray()).ravel()
        matrix = y.tocsr()
        entries = np.asarray((matrix != 0).sum(axis=1)).ravel()
        if entries.max(initial=0) > 1:
            raise ValueError(
                "a sparse y of several columns must have at most one entry per row; "
                f"row {entries.argmax()} has more."
            )
        return np.where(entries == 1, np.asarray(matrix.argmax(axis=1)).ravel(), -1)
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    plain = isinstance(y, np.ndarray) and y.ndim == 1
    return y if plain else np.asarray(column_or_1d(y, warn=True, dtype=None))


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask (n,) of the entries that are no label."""
    if values.dtype.kind in "fiub":
        return np.asarray(np.isnan(values) | (values == -1))
    if values.dtype.kind == "O":
        return np.array([label_text(value) is None for value in values], dtype=bool)
    names, places = np.unique(values, return_inverse=True)
    return np.array([label_text(name) is None for name in names], dtype=bool)[places]
