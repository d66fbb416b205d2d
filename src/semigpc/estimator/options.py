"""The estimator's parameters, checked."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, Self, get_args

from semigpc.estimator.confidence import Confidence
from semigpc.estimator.scaling import SCALINGS

UNIT_KERNELS = ("rbf", "laplace", "cosine")  # k(h, h) = 1: variances are shares of the prior variance
MOST_ROUNDS = 100  # of self-training, each of which is O(N^3)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What :class:`SemiGPClassifier` was asked for; None where something is to be found out."""

    kernel: str
    length_scale: float | None
    noise_std: float | None
    logit_scale: float | None
    scaling: str
    class_prior: Literal["balanced", "estimated"]
    rounds: int | None
    confidence: Confidence
    abstain: float | None
    target_precision: float | None
    outlier_quantile: float
    seed: int

    @classmethod
    def of(cls, parameters: dict[str, Any]) -> Self:
        """From ``get_params()``; refuses what makes no sense."""
        _require("kernel", parameters["kernel"], UNIT_KERNELS)
        _require("scaling", parameters["scaling"], ("auto", *SCALINGS))
        _require("class_prior", parameters["class_prior"], ("balanced", "estimated"))
        _require("confidence", parameters["confidence"], get_args(Confidence))
        for name in ("abstain", "target_precision", "outlier_quantile"):
            value = parameters[name]
            most = 2 if name == "abstain" else 1  # a threshold above 1 gives out no label at all
            sound = isinstance(value, Real) and 0 <= float(value) <= most
            if not sound and (value is not None or name == "outlier_quantile"):
                raise ValueError(f"{name} must lie in [0, 1]; got {value!r}.")
        if parameters["abstain"] is not None and parameters["target_precision"] is not None:
            raise ValueError("abstain is a threshold and target_precision finds one; give one of the two.")
        return cls(
            kernel=parameters["kernel"],
            length_scale=_positive("length_scale", parameters["length_scale"]),
            noise_std=_positive("noise_std", parameters["noise_std"]),
            logit_scale=_positive("logit_scale", parameters["logit_scale"]),
            scaling=parameters["scaling"],
            class_prior=parameters["class_prior"],
            rounds=None
            if parameters["self_training"] == "auto"
            else _whole("self_training", parameters["self_training"], 0, MOST_ROUNDS),
            confidence=parameters["confidence"],
            abstain=parameters["abstain"],
            target_precision=parameters["target_precision"],
            outlier_quantile=parameters["outlier_quantile"],
            seed=_whole("random_state", parameters["random_state"] or 0, 0),
        )


def _require(name: str, value: Any, known: Collection[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}.")


def _positive(name: str, value: Any) -> float | None:
    if isinstance(value, str) and value == "auto":
        return None
    if not (isinstance(value, Real) and 0 < float(value) < math.inf):
        raise ValueError(f"{name} must be 'auto' or a positive number; got {value!r}.")
    return float(value)


def _whole(name: str, value: Any, least: int, most: float = math.inf) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        limit = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"{name} must be a whole number, {limit}; got {value!r}.")
    return int(value)
