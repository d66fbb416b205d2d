"""The classifier as a module of plain tensors, for export: rows in, probabilities and grades out.

It computes in float64 from the scaled points on, as :class:`semigpc.gp.head.KernelHead` does.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
)
from semigpc.estimator.memory import Memory
from semigpc.gp.head import KernelHead, kernel_values
from semigpc.gp.kernels import square_norms, squared_distances
from semigpc.io.atomic import JsonObject, replacing

ROWS = "rows"  # name of the input
PROBABILITIES = "probabilities"
VARIANCE = "variance"
# Labelled rows up to which the variance is exported: its matrix takes 8 bytes for each pair.
MOST_WITH_VARIANCE = 2000
# Squared distance, over the squared lengths, up to which a row is one that joined: the rounding of
# float32.
EQUAL_ROWS = 1e-12


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
        scaling: from rows to points. centre: (D,) what is subtracted from rows first, in float64.
        memory: the GP over the given labels. helped: that with joined rows, if there is one.
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
        scaling: Scaling,
        centre: Doubles | None,
        memory: Memory,
        helped: Memory | None,
        probabilities: Probabilities,
        rules: Rules,
        tolerance: float = EQUAL_ROWS,
    ) -> None:
        super().__init__()
        self.probabilities = probabilities
        self.rules = rules
        self.tolerance = tolerance
        self.scale = nn.Sequential(*(_plain(step) for step in scaling.steps))
        self._keep("centre", None if centre is None else torch.from_numpy(centre))
        self._keep("scales", memory.scales().clamp_min(1e-9))
        self._keep("shares", probabilities.shares.double())
        self._keep("counts", probabilities.counts.double())
        self.given = KernelHead(memory.kernel, memory.expansion())
        self.joined = None if helped is None else KernelHead(helped.kernel, helped.expansion())
        joined = None if helped is None else helped.joined()
        self._keep("joined_points", None if joined is None else joined.points.double())
        self._keep("joined_scores", None if joined is None else joined.scores)
        self._keep("factor", _inverse_factor(memory))
        self._keep("thresholds", torch.from_numpy(np.asarray(rules.thresholds, np.float64)))
        precisions = sorted(rules.grades)
        self._keep("precisions", torch.tensor([0.0, *precisions], dtype=torch.float64))
        least = np.full((1, len(rules.thresholds)), -np.inf)
        table = np.stack([least[0], *(rules.grades[each] for each in precisions)])
        self._keep("grades", torch.from_numpy(np.asarray(table, np.float64)))

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


# Scalings -----------------------------------------------------------------------------------------


def _plain(step: Any) -> nn.Module:
    """Return a step of a scaling as a module that computes the same bits."""
    if isinstance(step, StandardScaler):
        return _Standard(step)
    if isinstance(step, UnitRows):
        return _Unit()
    if isinstance(step, GaussianRanks):
        return _Ranks(step)
    weights = torch.from_numpy(step.weights)
    if isinstance(step, Steps):
        return _Steps(weights)
    assert isinstance(step, WeightedColumns)
    return _Weighted(weights)


class _Standard(nn.Module):
    """(x - mean) / scale, in float32 as scikit-learn computes it."""

    mean: Tensor | None
    scale: Tensor | None

    def __init__(self, scaler: StandardScaler) -> None:
        super().__init__()
        mean = torch.from_numpy(np.asarray(scaler.mean_, np.float32))
        self.register_buffer("mean", mean if scaler.with_mean else None)
        scale = np.asarray(scaler.scale_ if scaler.with_std else [1.0], np.float32)
        self.register_buffer("scale", torch.from_numpy(scale) if scaler.with_std else None)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.mean is None else x - self.mean
        return x if self.scale is None else x / self.scale


class _Unit(nn.Module):
    """x / |x|; a row of zeros stays."""

    def forward(self, x: Tensor) -> Tensor:
        lengths = x.double().square().sum(dim=1, keepdim=True).sqrt()
        return (x.double() / torch.where(lengths > 0, lengths, 1.0)).float()


class _Ranks(nn.Module):
    """Values of a standard normal by rank, linear between those of the quantiles."""

    knots: Tensor
    values: Tensor
    starts: Tensor

    def __init__(self, ranks: GaussianRanks) -> None:
        super().__init__()
        self.register_buffer("knots", ranks.knots.clone())
        self.register_buffer("values", ranks.values.clone())
        starts = torch.arange(len(ranks.knots)) * KNOTS  # of each column in the flat tables
        self.register_buffer("starts", starts)

    def forward(self, x: Tensor) -> Tensor:
        below = (self.knots < x.unsqueeze(2)).sum(dim=2)  # (M, D)
        lower = self.starts + (below - 1).clamp_min(0)
        upper = self.starts + below.clamp_max(KNOTS - 1)
        knots = self.knots.flatten()
        values = self.values.flatten()
        width = knots[upper] - knots[lower]
        part = ((x - knots[lower]) / torch.where(width > 0, width, 1.0)).clamp(0, 1)
        return values[lower] + part * (values[upper] - values[lower])


class _Weighted(nn.Module):
    """x w."""

    weights: Tensor

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights.clone())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights


class _Steps(nn.Module):
    """Columns encoded by STEPS columns each."""

    weights: Tensor
    starts: Tensor

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights.clone().unsqueeze(1))
        self.register_buffer("starts", torch.arange(STEPS).float())

    def forward(self, x: Tensor) -> Tensor:
        places = (x + FARTHEST_STEP) * (STEPS / (2 * FARTHEST_STEP))
        steps = (places.unsqueeze(2) - self.starts).clamp(0, 1) * self.weights
        return steps.flatten(1)


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
