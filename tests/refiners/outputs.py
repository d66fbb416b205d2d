"""What a network would have said, and refiners that have seen something."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from semigpc.refiners import (
    REFINERS,
    EnsembleOptions,
    ExactOptions,
    MatrixFreeOptions,
    auto_logit_scale,
)
from semigpc.types import Batch, ModelOutput

CLASSES, WIDTH = 3, 8
# every engine, for a buffer of 24 rows
ENGINES_OF_24 = {
    "exact": ExactOptions(),
    "ensemble": EnsembleOptions(members=2),
    "matrix_free": MatrixFreeOptions(rank=24, dtype="float64"),
}


def said(features: Tensor) -> ModelOutput:
    """An output with these features, logits of no use, and a projection that is the features turned
    by one.
    """
    return ModelOutput(
        features.new_zeros(len(features), CLASSES),
        features,
        {"projection": features.roll(1, dims=1)},
    )


def points(
    rows: int,
    generator: torch.Generator,
    *,
    dtype: torch.dtype = torch.float64,
    counts: tuple[int, ...] | None = None,
) -> tuple[Tensor, Tensor]:
    """Features (rows, WIDTH), not of unit length, and labels (rows,); of ``counts`` for each class
    if given.
    """
    axes = 2 * torch.eye(CLASSES, WIDTH, dtype=dtype)
    if counts is None:
        labels = torch.randint(CLASSES, (rows,), generator=generator)
    else:
        labels = torch.repeat_interleave(torch.arange(CLASSES), torch.tensor(counts))
    return axes[labels] + 0.5 * torch.randn(
        len(labels), WIDTH, generator=generator, dtype=dtype
    ), labels


def batch_of(features: Tensor, labels: Tensor, index: Tensor | None = None) -> Batch:
    """A labelled batch whose images are the features."""
    return Batch(
        features, labels, torch.arange(len(labels)) if index is None else index, {}, torch.arange(0)
    )


def paper_scales(n_classes: int = CLASSES) -> dict[str, Any]:
    """Options of a GP by the paper's rule, whose scales stay: l^2 = 0.1, lambda by the threshold,
    and no class prior.
    """
    return {
        "length_scale": 0.1**0.5,
        "logit_scale": auto_logit_scale(n_classes),
        "class_prior": "none",
    }


def make(name: str, **options: Any) -> Any:
    """A refiner from the registry; unless asked for otherwise without a warm-up, and a GP with
    ``paper_scales``.
    """
    entry = REFINERS[name]
    scales = paper_scales() if name == "gp" else {}
    return entry.build(
        entry.config(**{"warmup_steps": 0, "buffer_size": 24, **scales, **options}), WIDTH, CLASSES
    )


def show(refiner: Any, features: Tensor, labels: Tensor) -> None:
    """One whole step in which nothing is asked."""
    batch = batch_of(features, labels)
    for moment in ("before", "after"):
        refiner.observe(moment, said(features), batch)


def unit(features: Tensor) -> Tensor:
    return F.normalize(features, dim=1)
