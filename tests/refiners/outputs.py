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
    """An output with these features, zero logits, and the features turned by one as projection."""
    logits = features.new_zeros(len(features), CLASSES)
    return ModelOutput(logits, features, {"projection": features.roll(1, dims=1)})


def points(
    rows: int,
    generator: torch.Generator,
    *,
    dtype: torch.dtype = torch.float64,
    counts: tuple[int, ...] | None = None,
) -> tuple[Tensor, Tensor]:
    """Features (rows, WIDTH), not of unit length, and labels (rows,), or ``counts`` per class."""
    axes = 2 * torch.eye(CLASSES, WIDTH, dtype=dtype)
    if counts is None:
        labels = torch.randint(CLASSES, (rows,), generator=generator)
    else:
        labels = torch.repeat_interleave(torch.arange(CLASSES), torch.tensor(counts))
    noise = torch.randn(len(labels), WIDTH, generator=generator, dtype=dtype)
    return axes[labels] + 0.5 * noise, labels


def batch_of(features: Tensor, labels: Tensor, index: Tensor | None = None) -> Batch:
    """A labelled batch whose images are the features."""
    index = torch.arange(len(labels)) if index is None else index
    return Batch(features, labels, index, {}, torch.arange(0))


def paper_scales(n_classes: int = CLASSES) -> dict[str, Any]:
    """Options of a GP by the paper's rule: fixed l^2 = 0.1 and lambda, no class prior, and the
    largest probability as confidence.
    """
    logit_scale = auto_logit_scale(n_classes)
    rule = {"class_prior": "none", "confidence": "max_softmax"}
    return {"length_scale": 0.1**0.5, "logit_scale": logit_scale} | rule


def make(name: str, **options: Any) -> Any:
    """A refiner from the registry, by default without a warm-up; a GP has ``paper_scales``."""
    entry = REFINERS[name]
    scales = paper_scales() if name == "gp" else {}
    config = entry.config(**{"warmup_steps": 0, "buffer_size": 24, **scales, **options})
    return entry.build(config, WIDTH, CLASSES)


def state_of(refiner: Any) -> dict[str, Tensor]:
    """A copy of the state, to compare with ``unchanged``."""
    return {name: value.clone() for name, value in refiner.state_dict().items()}


def unchanged(refiner: Any, state: dict[str, Tensor]) -> bool:
    """Whether the refiner still has this state, bit for bit and in the same types."""
    return all(
        value.dtype == state[name].dtype and torch.equal(value, state[name])
        for name, value in refiner.state_dict().items()
    )


def show(refiner: Any, features: Tensor, labels: Tensor) -> None:
    """One whole step in which nothing is asked."""
    batch = batch_of(features, labels)
    for moment in ("before", "after"):
        refiner.observe(moment, said(features), batch)


def unit(features: Tensor) -> Tensor:
    return F.normalize(features, dim=1)
