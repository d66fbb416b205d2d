"""Each algorithm, step by step, against a slow reading of its equations: answers, gradients,
networks and state.
"""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.refiners import GPConfig, NoRefiner
from semigpc.types import Clock, ModelOutput, Networks, Task
from tests.algorithms.shadowing import follow
from tests.algorithms.slow_refiners import SlowGP
from tests.algorithms.tiny import (
    CLASSES,
    COUNTS,
    LABELED,
    PROJECTION,
    UNLABELED,
    WIDTH,
    TinyNetwork,
    configure,
    make_algorithm,
    make_refiner,
    seeded,
    stream,
)
from tests.batteries import combinations
from tests.refiners.outputs import paper_scales

MASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "fixmatch": ("fixmatch", {"threshold": 0.7, "unlabeled_weight": 1.3}),
    "fixmatch-soft": ("fixmatch", {"threshold": 0.7, "hard_labels": False, "temperature": 0.4}),
    "freematch": ("freematch", {"momentum": 0.6, "fairness_weight": 0.3, "unlabeled_weight": 1.3}),
    "freematch-quantile": ("freematch", {"momentum": 0.6, "fairness_weight": 0.3, "quantile": 0.8}),
    "freematch-clip": (
        "freematch",
        {"momentum": 0.6, "fairness_weight": 0.3, "clip": (0.62, 0.66)},
    ),
    "simmatch": (
        "simmatch",
        {"threshold": 0.6, "temperature": 0.3, "smoothing": 0.7, "alignment_batches": 3},
    ),
    "simmatch-teacher": (
        "simmatch",
        {"threshold": 0.6, "temperature": 0.3, "bank": "teacher", "alignment_batches": 3},
    ),
    "simmatch-full-teacher": (
        "simmatch",
        {"threshold": 0.6, "temperature": 0.3, "bank": "full_teacher"},
    ),
    "simmatch-weights": (
        "simmatch",
        {"threshold": 0.5, "unlabeled_weight": 0.7, "instance_weight": 1.9, "bank_momentum": 0.4},
    ),
    "comatch": (
        "comatch",
        {"threshold": 0.6, "queue_batches": 2, "alignment_batches": 3, "graph_threshold": 0.5},
    ),
    "comatch-weights": (
        "comatch",
        {
            "threshold": 0.5,
            "queue_batches": 3,
            "smoothing": 0.6,
            "unlabeled_weight": 0.7,
            "contrastive_weight": 1.9,
        },
    ),
}
UNMASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "supervised": ("supervised", {}),
    "remixmatch": ("remixmatch", {"warmup": 0.5, "alignment_momentum": 0.6}),
    "remixmatch-weights": (
        "remixmatch",
        {
            "warmup": 0.25,
            "temperature": 0.3,
            "mixup": 2.0,
            "unlabeled_weight": 0.7,
            "premix_weight": 1.9,
            "rotation_weight": 1.3,
        },
    ),
    "remixmatch-unturned": (
        "remixmatch",
        {"warmup": 0.5, "alignment_momentum": 0.6, "rotation_weight": 0.0},
    ),
}
GP_CASES: dict[str, dict[str, Any]] = {
    "semantic": {},
    "blend": {"blend": 0.5},
    "push-before": {"push": "before"},
    "class-prior": {"class_prior": "frequency"},
    "balanced": {"balanced": True},
    "balanced-prior": {"balanced": True, "class_prior": "frequency", "logit_scale": 3.0},
    "raw-features": {"l2norm": False, "length_scale": 2.0},
    "clipped": {"kernel_clip": 0.1},
    "classifier": {"role": "classifier"},
    "classifier-prior": {"role": "classifier", "class_prior": "frequency"},
    "classifier-exclude": {"role": "classifier", "exclude_same_index": True},
    "classifier-exclude-prior": {
        "role": "classifier",
        "exclude_same_index": True,
        "class_prior": "frequency",
    },
}
MEMORY_CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {"site": "aggregate"}) for name in ("simmatch", "simmatch-full-teacher", "comatch")),
    *((name, {"site": "aggregate", "blend": 0.5}) for name in ("simmatch", "comatch")),
    *(
        (name, {"feature": "projection"})
        for name in ("simmatch", "simmatch-full-teacher", "comatch")
    ),
    *(
        (name, {"feature": "projection", "site": "aggregate", "push": "before"})
        for name in ("simmatch", "comatch")
    ),
    *((name, {"feature": "projection", "role": "classifier"}) for name in ("simmatch", "comatch")),
    ("fixmatch-soft", {"blend": 0.5}),
    ("simmatch", {"site": "final"}),
    ("simmatch", {"site": "final", "blend": 0.5}),
    ("simmatch-full-teacher", {"site": "final"}),
    ("simmatch-full-teacher", {"push": "before"}),
    ("simmatch-full-teacher", {"role": "classifier"}),
    ("simmatch-teacher", {"feature": "projection"}),
]
STEPS = 4


def gp(**options: Any) -> tuple[Any, SlowGP]:
    """The refiner and its slow reading: a buffer of 12 that batches of 5 wrap around from the third
    step on.
    """
    options = {
        "warmup_steps": 1,
        "buffer_size": 12,
        **paper_scales(CLASSES),
        "length_scale": 0.7,
        **options,
    }
    width = PROJECTION if options.get("feature") == "projection" else WIDTH
    return make_refiner("gp", width, **options), SlowGP(GPConfig(**options))


class Flat(TinyNetwork):
    """Takes rows of numbers, and has no head to guess turns with."""

    def forward(self, images: Tensor) -> ModelOutput:
        assert images.ndim == 2
        return super().forward(images)._replace(heads={})


@functools.cache
def losses_alone(case: str) -> list[float]:
    """The reference's losses without a refiner, which the algorithm has been seen to follow on the
    way.
    """
    name, options = {**MASKED, **UNMASKED}[case]
    return follow(name, stream(STEPS), NoRefiner(), **options).losses


@pytest.mark.parametrize("case", [*MASKED, *UNMASKED])
def test_the_base_algorithm_follows_its_equations(case: str) -> None:
    name, options = {**MASKED, **UNMASKED}[case]
    shadow = follow(name, stream(STEPS), NoRefiner(), **options)
    assert case in UNMASKED or min(shadow.passed, shadow.stopped) > 0, (
        "no mixed masks, nothing shown"
    )


@pytest.mark.parametrize(
    ("case", "setting"),
    combinations(
        ["supervised", "fixmatch", "freematch", "remixmatch", "simmatch", "comatch"], list(GP_CASES)
    ),
)
def test_the_algorithm_with_a_gp_follows_its_equations(case: str, setting: str) -> None:
    name, options = {**MASKED, **UNMASKED}[case]
    refiner, slow = gp(**GP_CASES[setting])
    shadow = follow(name, stream(STEPS), refiner, slow, **options)
    assert case in UNMASKED or min(shadow.passed, shadow.stopped) > 0, (
        "no mixed masks, nothing shown"
    )
    silent = case == "supervised" and slow.config.role == "refine"
    assert (slow.answers == 0) == silent
    assert (shadow.losses == losses_alone(case)) == silent, "the GP changed nothing"


@pytest.mark.parametrize(("case", "setting"), MEMORY_CASES, ids=str)
def test_the_gp_may_speak_for_the_memory(case: str, setting: dict[str, Any]) -> None:
    name, options = MASKED[case]
    refiner, slow = gp(**setting)
    shadow = follow(name, stream(STEPS), refiner, slow, **options)
    assert min(shadow.passed, shadow.stopped) > 0
    assert slow.answers > 0


def test_remixmatch_without_turns_needs_no_head_and_no_images() -> None:
    """As on features of a frozen network: rows of numbers, which nothing can turn."""
    assert configure("remixmatch", rotation_weight=0.0).heads == {}
    assert list(configure("remixmatch").heads) == ["rotation"]
    here, there = (
        make_algorithm("remixmatch", NoRefiner(), rotation_weight=0.0).double() for _ in range(2)
    )
    shown, flat = TinyNetwork(), Flat()
    for step, batch in enumerate(stream(STEPS)):
        rows = batch._replace(
            x=batch.x.flatten(1),
            views={name: view.flatten(1) for name, view in batch.views.items()},
        )
        expected = seeded(step, here.step, Networks(shown, shown), batch, Clock(step, STEPS, 2))
        output = seeded(step, there.step, Networks(flat, flat), rows, Clock(step, STEPS, 2))
        assert torch.equal(output.loss, expected.loss)
        assert int(output.metrics["loss_rot"]) == 0


def test_comatch_wraps_its_ring_when_pushes_do_not_divide_it() -> None:
    task = Task(torch.tensor(COUNTS), LABELED, UNLABELED)  # a ring of 15 rows, filled by 5 + 4
    options: dict[str, Any] = {"threshold": 0.5, "queue_batches": 1, "smoothing": 0.6}
    shadow = follow("comatch", stream(7, unlabeled=4), NoRefiner(), task=task, **options)
    assert min(shadow.passed, shadow.stopped) > 0


def test_comatch_takes_a_push_larger_than_its_ring() -> None:
    task = Task(torch.tensor(COUNTS), 2, 6)
    follow("comatch", stream(4), NoRefiner(), task=task, threshold=0.5, queue_batches=1)
