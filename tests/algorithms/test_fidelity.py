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
from tests.algorithms.shadowing import Shadow, follow
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

ADAPTIVE = {"momentum": 0.6, "fairness_weight": 0.3}
BANK: dict[str, Any] = {"threshold": 0.6, "temperature": 0.3}
QUEUE = {"threshold": 0.5, "queue_batches": 3, "smoothing": 0.6}
MIXED = {"warmup": 0.25, "temperature": 0.3, "mixup": 2.0}
# The name of an algorithm, and after a hyphen what is special about its options.
MASKED: dict[str, dict[str, Any]] = {
    "fixmatch": {"threshold": 0.7, "unlabeled_weight": 1.3},
    "fixmatch-soft": {"threshold": 0.7, "hard_labels": False, "temperature": 0.4},
    "freematch": ADAPTIVE | {"unlabeled_weight": 1.3},
    "freematch-quantile": ADAPTIVE | {"quantile": 0.8},
    "freematch-clip": ADAPTIVE | {"clip": (0.62, 0.66)},
    "simmatch": BANK | {"smoothing": 0.7, "alignment_batches": 3},
    "simmatch-teacher": BANK | {"bank": "teacher", "alignment_batches": 3},
    "simmatch-full-teacher": BANK | {"bank": "full_teacher"},
    "simmatch-weights": {"threshold": 0.5, "unlabeled_weight": 0.7, "bank_momentum": 0.4}
    | {"instance_weight": 1.9},
    "comatch": {"threshold": 0.6, "queue_batches": 2, "alignment_batches": 3}
    | {"graph_threshold": 0.5},
    "comatch-weights": QUEUE | {"unlabeled_weight": 0.7, "contrastive_weight": 1.9},
}
UNMASKED: dict[str, dict[str, Any]] = {
    "supervised": {},
    "remixmatch": {"warmup": 0.5, "alignment_momentum": 0.6},
    "remixmatch-weights": MIXED
    | {"unlabeled_weight": 0.7, "premix_weight": 1.9, "rotation_weight": 1.3},
    "remixmatch-unturned": {"warmup": 0.5, "alignment_momentum": 0.6, "rotation_weight": 0.0},
}
EXCLUDING: dict[str, Any] = {"role": "classifier", "exclude_same_index": True}
GP_CASES: dict[str, dict[str, Any]] = {
    "semantic": {},
    "blend": {"blend": 0.5},
    "push-before": {"push": "before"},
    "class-prior": {"class_prior": "frequency"},
    "agreement": {"confidence": "agreement"},
    "agreement-prior": {"confidence": "agreement", "class_prior": "frequency", "balanced": True},
    "balanced": {"balanced": True},
    "balanced-prior": {"balanced": True, "class_prior": "frequency", "logit_scale": 3.0},
    "raw-features": {"l2norm": False, "length_scale": 2.0},
    "clipped": {"kernel_clip": 0.1},
    "classifier": {"role": "classifier"},
    "classifier-prior": {"role": "classifier", "class_prior": "frequency"},
    "classifier-exclude": EXCLUDING,
    "classifier-exclude-prior": EXCLUDING | {"class_prior": "frequency"},
}
ON_AGGREGATE: list[dict[str, Any]] = [
    {"site": "aggregate"},
    {"site": "aggregate", "blend": 0.5},
    {"site": "aggregate", "confidence": "agreement"},
    {"feature": "projection"},
    {"feature": "projection", "site": "aggregate", "push": "before"},
    {"feature": "projection", "role": "classifier"},
]
MEMORY_CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, setting) for name in ("simmatch", "comatch") for setting in ON_AGGREGATE),
    *(("simmatch-full-teacher", ON_AGGREGATE[i]) for i in (0, 2, 3)),
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
    memory = {"warmup_steps": 1, "buffer_size": 12} | paper_scales(CLASSES)
    options = memory | {"length_scale": 0.7} | options
    width = PROJECTION if options.get("feature") == "projection" else WIDTH
    return make_refiner("gp", width, **options), SlowGP(GPConfig(**options))


class Flat(TinyNetwork):
    """Takes rows of numbers, and has no head to guess turns with."""

    def forward(self, images: Tensor) -> ModelOutput:
        assert images.ndim == 2
        return super().forward(images)._replace(heads={})


def follow_case(case: str, refiner: Any, slow: SlowGP | None = None) -> Shadow:
    """Compare the algorithm with its reference; some images must pass the mask and some not."""
    name, options = case.partition("-")[0], (MASKED | UNMASKED)[case]
    shadow = follow(name, stream(STEPS), refiner, slow, **options)
    assert case in UNMASKED or min(shadow.passed, shadow.stopped) > 0, "nothing shown"
    return shadow


@functools.cache
def losses_alone(case: str) -> list[float]:
    """The losses without a refiner."""
    return follow_case(case, NoRefiner()).losses


@pytest.mark.parametrize("case", [*MASKED, *UNMASKED])
def test_the_base_algorithm_follows_its_equations(case: str) -> None:
    follow_case(case, NoRefiner())


PLAIN = ["supervised", "fixmatch", "freematch", "remixmatch", "simmatch", "comatch"]


@pytest.mark.parametrize(("case", "setting"), combinations(PLAIN, list(GP_CASES)))
def test_the_algorithm_with_a_gp_follows_its_equations(case: str, setting: str) -> None:
    refiner, slow = gp(**GP_CASES[setting])
    shadow = follow_case(case, refiner, slow)
    silent = case == "supervised" and slow.config.role == "refine"
    assert (slow.answers == 0) == silent
    assert (shadow.losses == losses_alone(case)) == silent, "the GP changed nothing"


@pytest.mark.parametrize(("case", "setting"), MEMORY_CASES, ids=str)
def test_the_gp_may_speak_for_the_memory(case: str, setting: dict[str, Any]) -> None:
    refiner, slow = gp(**setting)
    follow_case(case, refiner, slow)
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
        views = {name: view.flatten(1) for name, view in batch.views.items()}
        rows = batch._replace(x=batch.x.flatten(1), views=views)
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
