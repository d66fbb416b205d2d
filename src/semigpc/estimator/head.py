"""The classifier as a module of plain tensors, for export: rows in, probabilities and grades out.

It computes in float64 from the scaled points on, as :class:`semigpc.gp.head.KernelHead` does.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from semigpc.estimator.answers import (
    FARTHEST_STEP,
    KNOTS,
    STATUSES,
    STEPS,
    Doubles,
    GaussianRanks,
    Probabilities,
    Scaling,
    Status,
    Steps,
    UnitRows,
    WeightedColumns,
    WhitenedColumns,
)
from semigpc.estimator.memory import Memory
from semigpc.gp.engine import Expansion
from semigpc.gp.head import KernelHead, kernel_values
from semigpc.gp.kernels import KERNELS, make_kernel, square_norms, squared_distances
from semigpc.io.atomic import JsonObject, replacing

ROWS = "rows"  # name of the input
PROBABILITIES = "probabilities"
VARIANCE = "variance"
# Labelled rows up to which the variance is exported: its matrix takes 8 bytes for each pair.
MOST_WITH_VARIANCE = 2000
# Squared distance, over the squared lengths, up to which a row is one that joined: the rounding of
# float32.
EQUAL_ROWS = 1e-12
# Tensors of a head that are computed from a GP, or given; the others follow from facts.
KEPT = ("centre", "scales", "joined_points", "joined_scores", "factor")


@dataclass(frozen=True)
class Rules:
    """What makes a status and a grade of a probability.

    Args:
        grades: thresholds (C,) by the precision that they guarantee.
        thresholds: (C,) confidence below which a label is withheld.
        outlier_variance: variance above which a row may be an outlier.
    """

    grades: Mapping[float, Doubles]
    thresholds: Doubles
    outlier_variance: float


class ClassifierHead(nn.Module):
    """Rows (M, D) to what :meth:`SemiGPClassifier.answer` returns, as one module.

    Returns a dictionary: ``probabilities`` (M, C) float32, ``label`` (M,) int64, the place of the
    class that is decided, ``grade`` (M,) float32, ``status`` (M,) int64, a number of
    :class:`Status`, and ``variance`` (M,) float32 where one exact GP holds at most
    MOST_WITH_VARIANCE labels. Without it no row is called an outlier. A row that joined in
    self-training is recognised by its distance, and judged without its own guess.
    O(M N (D + C + N)).

    Args:
        scale: from rows to points. given: scores by the given labels. joined: the same with joined
            rows, if some joined.
        kept: tensors by name: ``scales`` (C,) that the first scores contain, and where there are
            any, ``centre`` (D,) that is subtracted from rows first, ``factor`` (N, N) of the
            variance, and ``joined_points`` (P, D) with ``joined_scores`` (P, C).
        probabilities: from scores to probabilities. rules: from these to status and grade.
        tolerance: squared distance over the squared length of a point, up to which it is the same.
    """

    grades: Tensor
    precisions: Tensor
    thresholds: Tensor
    scales: Tensor
    shares: Tensor
    counts: Tensor
    centre: Tensor | None
    factor: Tensor | None
    joined_points: Tensor | None
    joined_scores: Tensor | None

    def __init__(
        self,
        *,
        scale: nn.Sequential,
        given: KernelHead,
        joined: KernelHead | None,
        kept: Mapping[str, Tensor | None],
        probabilities: Probabilities,
        rules: Rules,
        tolerance: float = EQUAL_ROWS,
    ) -> None:
        super().__init__()
        self.probabilities = probabilities
        self.rules = rules
        self.tolerance = tolerance
        self.scale = scale
        self.given = given
        self.joined = joined
        for name in KEPT:
            self._keep(name, kept.get(name))
        self._keep("shares", probabilities.shares.double())
        self._keep("counts", probabilities.counts.double())
        self._keep("thresholds", torch.from_numpy(np.asarray(rules.thresholds, np.float64)))
        precisions = sorted(rules.grades)
        self._keep("precisions", torch.tensor([0.0, *precisions], dtype=torch.float64))
        least = np.full((1, len(rules.thresholds)), -np.inf)
        table = np.stack([least[0], *(rules.grades[each] for each in precisions)])
        self._keep("grades", torch.from_numpy(np.asarray(table, np.float64)))

    @classmethod
    def of(
        cls,
        *,
        scaling: Scaling,
        centre: Doubles | None,
        memory: Memory,
        helped: Memory | None,
        probabilities: Probabilities,
        rules: Rules,
        tolerance: float = EQUAL_ROWS,
    ) -> Self:
        """Return the head of a fitted classifier. O(n^3) for the factor of the variance.

        Args:
            scaling: from rows to points. centre: (D,) subtracted from rows first, in float64.
            memory: the GP over the given labels. helped: that with joined rows, if there is one.
            probabilities, rules, tolerance: as of the class.
        """
        joined = None if helped is None else helped.joined()
        kept = {
            "centre": None if centre is None else torch.from_numpy(centre),
            "scales": memory.scales().clamp_min(1e-9),
            "joined_points": None if joined is None else joined.points.double(),
            "joined_scores": None if joined is None else joined.scores,
            "factor": _inverse_factor(memory),
        }
        return cls(
            scale=nn.Sequential(*(_plain(step) for step in scaling.steps)),
            given=KernelHead(memory.kernel, memory.expansion()),
            joined=None if helped is None else KernelHead(helped.kernel, helped.expansion()),
            kept=kept,
            probabilities=probabilities,
            rules=rules,
            tolerance=tolerance,
        )

    def _keep(self, name: str, tensor: Tensor | None) -> None:
        self.register_buffer(name, None if tensor is None else tensor.clone())

    @property
    def outputs(self) -> list[str]:
        """Return the names of the outputs, in their order."""
        names = [PROBABILITIES, "label", "grade", "status"]
        return names if self.factor is None else [*names, VARIANCE]

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        """Return all outputs for rows (M, D), float32, or float64 if there is a centre."""
        points = self.scale((rows if self.centre is None else rows - self.centre).float())
        mean = self.given(points)
        even = mean if self.joined is None else self._unjoined(points, self.joined(points))
        chosen = replace(self.probabilities, shares=self.shares, counts=self.counts)
        probs = chosen.of(mean / self.scales, even)
        decided = chosen.decide(probs)
        codes = decided.classes
        confidence = decided.confidence
        status = torch.where(confidence < self.thresholds[codes], Status.ABSTAINED, Status.PSEUDO)
        reached = confidence >= self.grades[:, codes]  # (G, M)
        grade = (reached.double() * self.precisions.unsqueeze(1)).amax(dim=0)
        found = {PROBABILITIES: probs.float(), "label": codes, "grade": grade, "status": status}
        if self.factor is not None:
            k = kernel_values(self.given.kernel, points.double(), self.given.points.double())
            variance = (1 - (k @ self.factor).square().sum(dim=1)).clamp_min(0)
            weak = confidence < (1 + 1 / len(self.counts)) / 2
            outlier = (variance > self.rules.outlier_variance) & weak
            found["status"] = torch.where(outlier, Status.OUTLIER, status)
            found["grade"] = torch.where(outlier, 0.0, grade)
            found[VARIANCE] = variance.float()
        found["grade"] = found["grade"].float()
        return found

    def _unjoined(self, points: Tensor, scores: Tensor) -> Tensor:
        """Return scores (M, C), those of rows that joined without their own soft labels."""
        assert self.joined_points is not None
        assert self.joined_scores is not None
        wide = points.double()
        distances = squared_distances(wide, self.joined_points)
        limit = self.tolerance * square_norms(wide).clamp_min(1e-30)
        same = (distances <= limit.unsqueeze(1)).double()
        count = same.sum(dim=1, keepdim=True)
        own = (same @ self.joined_scores) / count.clamp_min(1)
        return torch.where(count > 0, own, scores)


def _inverse_factor(memory: Memory) -> Tensor | None:
    """Return L^-T (N, N) with L L^T = K, for var = 1 - |k L^-T|^2; None if it is too large."""
    if memory.engine != "exact" or len(memory) > MOST_WITH_VARIANCE:
        return None
    points = memory.expansion().points.double()
    K = memory.kernel(points, points)
    K.diagonal().copy_(memory.kernel.diagonal(points) + memory.noise_std**2)
    factor, failed = torch.linalg.cholesky_ex(K)
    if bool(failed):
        return None
    eye = torch.eye(len(K), dtype=K.dtype)
    inverse: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False)
    return inverse.mT.contiguous()


# Storing ------------------------------------------------------------------------------------------


class HeadFacts(TypedDict):
    """What a stored head needs besides its tensors, for JSON.

    ``steps`` are the names of the steps of its scaling, ``kernel`` and ``length_scale`` those of
    both GPs; the rest are fields of :class:`Probabilities` and :class:`Rules`, with the precisions
    of the grades.
    """

    steps: list[str]
    kernel: str
    length_scale: float
    logit_scale: float
    confidence_scale: float
    sharpness: float
    balanced: bool
    precisions: list[float]
    outlier_variance: float
    tolerance: float


def stored_head(head: ClassifierHead, length_scale: float) -> tuple[dict[str, Tensor], HeadFacts]:
    """Return the tensors and facts from which :func:`restored_head` makes the same head.

    Args:
        length_scale: of the kernel, whatever the kernel calls it.
    """
    kinds: dict[type[nn.Module], str] = {kind: name for name, kind in STEP_KINDS.items()}
    kernel_names = {kind: name for name, kind in KERNELS.items()}
    probabilities = head.probabilities
    facts: HeadFacts = {
        "steps": [kinds[type(step)] for step in head.scale],
        "kernel": kernel_names[type(head.given.kernel)],
        "length_scale": length_scale,
        "logit_scale": probabilities.logit_scale,
        "confidence_scale": probabilities.confidence_scale,
        "sharpness": probabilities.sharpness,
        "balanced": probabilities.balanced,
        "precisions": sorted(head.rules.grades),
        "outlier_variance": head.rules.outlier_variance,
        "tolerance": head.tolerance,
    }
    return dict(head.state_dict()), facts


def restored_head(tensors: Mapping[str, Tensor], facts: HeadFacts) -> ClassifierHead:
    """Return the head that :func:`stored_head` stored; it computes the same bits.

    Raises:
        KeyError: a tensor or a fact is missing, or a name is unknown.
    """
    kernel = make_kernel(facts["kernel"], facts["length_scale"])

    def scores(name: str) -> KernelHead | None:
        if f"{name}.points" not in tensors:
            return None
        expansion = Expansion(tensors[f"{name}.points"], tensors[f"{name}.weights"])
        return KernelHead(kernel, expansion)

    given = scores("given")
    if given is None:
        raise KeyError("given.points")
    kinds = [STEP_KINDS[name] for name in facts["steps"]]
    steps = [
        kind({name: tensors.get(f"scale.{i}.{name}") for name in kind.names})
        for i, kind in enumerate(kinds)
    ]
    thresholds = tensors["thresholds"].numpy()
    grades = dict(zip(facts["precisions"], tensors["grades"][1:].numpy(), strict=True))
    return ClassifierHead(
        scale=nn.Sequential(*steps),
        given=given,
        joined=scores("joined"),
        kept=tensors,
        probabilities=Probabilities(
            logit_scale=facts["logit_scale"],
            confidence_scale=facts["confidence_scale"],
            sharpness=facts["sharpness"],
            shares=tensors["shares"],
            counts=tensors["counts"],
            balanced=facts["balanced"],
        ),
        rules=Rules(grades, thresholds, facts["outlier_variance"]),
        tolerance=facts["tolerance"],
    ).eval()


# Scalings -----------------------------------------------------------------------------------------


class _Step(nn.Module):
    """A step of a scaling; all that it depends on are its buffers."""

    names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, buffers: Mapping[str, Tensor | None]) -> None:
        super().__init__()
        for name in self.names:
            tensor = buffers.get(name)
            self.register_buffer(name, None if tensor is None else tensor.clone())


class _Standard(_Step):
    """(x - mean) / scale, in float32 as scikit-learn computes it."""

    names = ("mean", "scale")
    mean: Tensor | None
    scale: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.mean is None else x - self.mean
        return x if self.scale is None else x / self.scale


class _Unit(_Step):
    """x / |x|; a row of zeros stays."""

    def forward(self, x: Tensor) -> Tensor:
        lengths = x.double().square().sum(dim=1, keepdim=True).sqrt()
        return (x.double() / torch.where(lengths > 0, lengths, 1.0)).float()


class _Ranks(_Step):
    """Values of a standard normal by rank, linear between those of the quantiles."""

    names = ("knots", "values", "starts")
    knots: Tensor
    values: Tensor
    starts: Tensor

    def forward(self, x: Tensor) -> Tensor:
        below = (self.knots < x.unsqueeze(2)).sum(dim=2)  # (M, D)
        lower = self.starts + (below - 1).clamp_min(0)
        upper = self.starts + below.clamp_max(KNOTS - 1)
        knots = self.knots.flatten()
        values = self.values.flatten()
        width = knots[upper] - knots[lower]
        part = ((x - knots[lower]) / torch.where(width > 0, width, 1.0)).clamp(0, 1)
        return values[lower] + part * (values[upper] - values[lower])


class _Weighted(_Step):
    """x w."""

    names = ("weights",)
    weights: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights


class _Whitened(_Step):
    """x W, in float64."""

    names = ("matrix",)
    matrix: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return (x.double() @ self.matrix).float()


class _Steps(_Step):
    """Columns encoded by STEPS columns each; weights (D, 1)."""

    names = ("weights", "starts")
    weights: Tensor
    starts: Tensor

    def forward(self, x: Tensor) -> Tensor:
        places = (x + FARTHEST_STEP) * (STEPS / (2 * FARTHEST_STEP))
        steps = (places.unsqueeze(2) - self.starts).clamp(0, 1) * self.weights
        return steps.flatten(1)


STEP_KINDS: dict[str, type[_Step]] = {
    "standard": _Standard,
    "unit": _Unit,
    "ranks": _Ranks,
    "weighted": _Weighted,
    "whitened": _Whitened,
    "steps": _Steps,
}


def _plain(step: Any) -> _Step:
    """Return a step of a scaling as a module that computes the same bits."""
    if isinstance(step, StandardScaler):
        mean = torch.from_numpy(np.asarray(step.mean_, np.float32))
        scale = torch.from_numpy(np.asarray(step.scale_ if step.with_std else [1.0], np.float32))
        with_mean = mean if step.with_mean else None
        return _Standard({"mean": with_mean, "scale": scale if step.with_std else None})
    if isinstance(step, UnitRows):
        return _Unit({})
    if isinstance(step, GaussianRanks):
        starts = torch.arange(len(step.knots)) * KNOTS  # of each column in the flat tables
        return _Ranks({"knots": step.knots, "values": step.values, "starts": starts})
    if isinstance(step, WhitenedColumns):
        return _Whitened({"matrix": step.matrix})
    weights = torch.from_numpy(step.weights)
    if isinstance(step, Steps):
        starts = torch.arange(STEPS).float()
        return _Steps({"weights": weights.unsqueeze(1), "starts": starts})
    assert isinstance(step, WeightedColumns)
    return _Weighted({"weights": weights})


# Files --------------------------------------------------------------------------------------------


def head_facts(head: ClassifierHead, class_names: list[Any]) -> JsonObject:
    """Return what a user of an exported classifier must know, for JSON."""
    classes = len(class_names)
    shapes: dict[str, list[str | int]] = {name: ["M"] for name in head.outputs}
    shapes[PROBABILITIES] = ["M", classes]
    kinds = {"label": "int64", "status": "int64"}
    return {
        "class_names": class_names,
        "statuses": list(STATUSES),
        "outputs": {
            name: {"shape": shape, "dtype": kinds.get(name, "float32")}
            for name, shape in shapes.items()
        },
        "grades": {f"{each:.6g}": at.tolist() for each, at in head.rules.grades.items()},
        "thresholds": np.asarray(head.rules.thresholds, np.float64).tolist(),
        "gp": {
            "kernel": repr(head.given.kernel),
            "points": len(head.given.points),
            "joined": 0 if head.joined_points is None else len(head.joined_points),
            "dtype": "float64",
        },
    }


def rows_input(head: ClassifierHead, width: int) -> JsonObject:
    """Return the description of the input of a classifier on rows."""
    dtype = "float32" if head.centre is None else "float64"
    return {"name": ROWS, "shape": ["M", width], "dtype": dtype, "values": "unscaled rows"}


def example_rows(head: ClassifierHead, width: int) -> Tensor:
    """Return two rows to trace a classifier with."""
    return torch.zeros(2, width, dtype=torch.float32 if head.centre is None else torch.float64)


def write_head(head: ClassifierHead, width: int, path: Path, facts: JsonObject) -> None:
    """Write a classifier on rows of some width as an ONNX file with these facts."""
    from semigpc.io import graphs  # imports torch.export, which takes a second

    graph = graphs.trace(head.eval(), example_rows(head, width))
    metadata = {graphs.METADATA: json.dumps(facts)}
    with replacing(path) as draft:
        graphs.write_onnx(graph, head.outputs, draft, metadata, input_name=ROWS)
