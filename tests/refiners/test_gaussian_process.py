"""SemiGPC's own promises (algorithms sections 3.4, 3.6 and 3.7); its place in each algorithm is
tested there.
"""

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from semigpc.gp import KERNELS, Clipped, NotPositiveDefiniteError
from semigpc.io.errors import SettingsError
from semigpc.refiners import EnsembleOptions, GPConfig, MatrixFreeOptions, auto_logit_scale
from tests.refiners.outputs import (
    CLASSES,
    WIDTH,
    make,
    points,
    said,
    show,
    state_of,
    unchanged,
    unit,
)


@pytest.mark.parametrize(
    ("n_classes", "expected"), [(10, 6.43), (100, 9.42), (200, 10.30), (810, 12.05)]
)
def test_the_automatic_logit_scale_is_that_of_the_method(n_classes: int, expected: float) -> None:
    scale = auto_logit_scale(n_classes)
    assert scale == pytest.approx(expected, abs=0.005)
    sure = math.exp(0.8 * scale) / (math.exp(0.8 * scale) + n_classes - 1)
    # 0.8 on one class and 0 elsewhere just reaches the threshold
    assert sure == pytest.approx(0.95, abs=1e-9)


def test_the_logit_scale_may_be_given(generator: torch.Generator) -> None:
    features, labels = points(10, generator)
    answers = []
    for scale in (2.0, 6.0):
        refiner = make("gp", logit_scale=scale)
        show(refiner, features, labels)
        answers.append(refiner.logits(said(features)))
    torch.testing.assert_close(3 * answers[0], answers[1])
    start = make("gp", logit_scale="auto").logit_scale
    assert start == auto_logit_scale(CLASSES)


@pytest.mark.parametrize("prior", ["none", "frequency"])
def test_a_query_far_from_everything_gets_no_confidence(
    prior: str, generator: torch.Generator
) -> None:
    refiner = make("gp", l2norm=False, class_prior=prior)
    features, labels = points(20, generator)
    show(refiner, features, labels)
    far = said(features + 100)
    own = torch.eye(CLASSES)[labels]
    torch.testing.assert_close(
        refiner.refine("semantic", far, own), torch.full((20, CLASSES), 1 / CLASSES)
    )
    near = refiner.refine("semantic", said(features), own)
    assert float(near.max(dim=1).values.min()) > 0.4


def test_the_class_prior_helps_the_rare_class(generator: torch.Generator) -> None:
    features, labels = points(0, generator, counts=(16, 6, 2))
    plain, prior = (make("gp", class_prior=each, logit_scale=1.0) for each in ("none", "frequency"))
    for refiner in (plain, prior):
        show(refiner, features, labels)
    between = unit(features[labels == 0].mean(dim=0) + features[labels == 2].mean(dim=0)[None])
    answers = [refiner.logits(said(between))[0] for refiner in (plain, prior)]
    assert float(answers[0][2] - answers[0][0]) < float(answers[1][2] - answers[1][0])


@pytest.mark.parametrize("exclude", [False, True])
def test_a_class_not_seen_yet_has_no_say_under_the_class_prior(
    exclude: bool, generator: torch.Generator
) -> None:
    options: dict[str, Any] = {"role": "classifier", "exclude_same_index": True} if exclude else {}
    refiner = make("gp", class_prior="frequency", **options)
    features, labels = points(0, generator, counts=(5, 3, 0))
    show(refiner, features, labels)
    logits = refiner.logits(said(features), labels if exclude else None)
    assert bool(logits.isfinite().all())
    assert float(logits[:, 2].abs().max()) == 0


@pytest.mark.parametrize("options", [{}, {"balanced": True}], ids=["fifo", "balanced"])
def test_a_write_that_the_engine_rejects_leaves_buffer_and_engine_as_they_were(
    options: dict[str, Any], generator: torch.Generator
) -> None:
    refiner, other = (make("gp", kernel="rbf", noise_std=1e-9, **options) for _ in range(2))
    features, labels = (part[:8] for part in points(0, generator, counts=(4, 4, 4)))
    queries = said(points(10, generator)[0])
    for each in (refiner, other):
        show(each, features, labels)
    state = state_of(refiner)
    answers = refiner.logits(queries)
    # six copies of one point cannot be told apart with so little noise
    same = torch.ones(6, WIDTH, dtype=torch.float64)
    with pytest.raises(NotPositiveDefiniteError, match="Raise noise_std"):
        refiner.write(unit(same), torch.tensor([2, 2, 2, 2, 2, 2]))
    assert unchanged(refiner, state)
    torch.testing.assert_close(refiner.logits(queries), answers, rtol=1e-6, atol=1e-6)
    more, classes = points(5, generator)
    for each in (refiner, other):
        each.write(unit(more), classes)
    assert torch.equal(refiner.buffer.entries.labels, other.buffer.entries.labels)
    torch.testing.assert_close(refiner.logits(queries), other.logits(queries), rtol=1e-6, atol=1e-6)


def test_rebuilding_changes_no_answer(generator: torch.Generator) -> None:
    refiner = make("gp")
    for _ in range(8):
        show(refiner, *points(5, generator))
    queries = said(points(6, generator)[0])
    before = refiner.logits(queries)
    refiner.rebuild()
    torch.testing.assert_close(refiner.logits(queries), before, rtol=0, atol=1e-10)


def test_an_empty_copy_has_the_same_switches_and_a_memory_of_its_own(
    generator: torch.Generator,
) -> None:
    refiner = make("gp", length_scale=0.9, class_prior="frequency")
    features, labels = points(10, generator)
    show(refiner, features, labels)
    other = refiner.empty_copy()
    assert (len(refiner.buffer), len(other.buffer)) == (10, 0)
    # auto has been decided
    assert other.config == replace(refiner.config, engine=refiner.choice.options)
    queries = said(points(6, generator)[0])
    assert float(other.logits(queries).abs().max()) == 0
    other.write(unit(features), labels)
    torch.testing.assert_close(other.logits(queries), refiner.logits(queries), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_casting_the_algorithm_leaves_the_engine_as_it_is(
    dtype: Literal["float32", "float64"], generator: torch.Generator
) -> None:
    features, labels = points(10, generator)
    auto: dict[str, Any] = {"length_scale": "auto", "logit_scale": "auto"}
    cast, plain = (make("gp", engine=MatrixFreeOptions(dtype=dtype), **auto) for _ in range(2))
    for refiner in (cast, plain):
        show(refiner, features, labels)
    cast.to(torch.float16)
    assert torch.equal(cast.logits(said(features)), plain.logits(said(features)))


MATRIX_FREE, ENSEMBLE = MatrixFreeOptions(rank=41), EnsembleOptions(members=41)
EXCLUDING: dict[str, Any] = {"role": "classifier", "exclude_same_index": True}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"logit_scale": 0.0}, "logit_scale must be positive"),
        ({"logit_scale": -1.0}, "logit_scale must be positive"),
        ({"logit_scale": None}, "logit_scale must be positive, or 'auto'; got None"),
        ({"length_scale": "automatic"}, "length_scale must be positive, .*got 'automatic'"),
        ({"exclude_same_index": True}, "role='classifier'"),
        ({"role": "classifier", "site": "final"}, "leave site at 'semantic'"),
        ({"role": "classifier", "site": "aggregate"}, "leave site at 'semantic'"),
        ({"blend": 2.0}, "blend must lie in"),
        ({"learn_steps": 0}, "learn_steps must be at least 1; got 0"),
        ({"learn": "leave_one_out", "kernel_clip": 0.1}, "Leave kernel_clip at 0, got 0.1"),
        ({"engine": MATRIX_FREE}, r"engine\.rank must not be larger than buffer_size.*41 > 40"),
        ({"engine": ENSEMBLE}, r"engine\.members must not be more than buffer_size; got 41 > 40"),
        ({"engine": "low"}, "engine must be one of auto, exact, .*; got 'low'"),
        ({"engine": EnsembleOptions}, "engine must be one of auto"),
        ({"engine": "ensemble", "kernel_clip": 0.1}, "kernel_clip .*engine='ensemble'"),
        ({"engine": "ensemble"} | EXCLUDING, "exclude_same_index needs engine='exact'"),
    ],
)
def test_switches_that_contradict_each_other_are_refused(
    options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        GPConfig(buffer_size=40, **options)


def test_the_defaults_are_those_of_the_method() -> None:
    config = GPConfig()
    assert (config.buffer_size, config.warmup_steps) == (16300, 1024)
    assert config.noise_std**2 == pytest.approx(0.1)
    start = {"length_scale": 0.1**0.5, "logit_scale": auto_logit_scale(10)}
    assert config.starting_scales(10) == start
    assert (config.role, config.site, config.push) == ("refine", "semantic", "after")
    assert (config.feature, config.l2norm, config.blend) == ("backbone", True, 1.0)
    assert (config.class_prior, config.kernel_clip) == ("frequency", 0.0)


@pytest.mark.parametrize("name", ["noise_std", "length_scale", "buffer_size"])
def test_a_gp_that_cannot_be_is_refused_when_it_is_made(name: str) -> None:
    with pytest.raises(ValueError, match=r"must|at least"):
        make("gp", **{name: 0})
    with pytest.raises(ValueError, match=r"must|at least"):
        make("gp", buffer_size=2, balanced=True)


def test_a_kernel_that_cannot_be_learned_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(KERNELS, "clipped", Clipped)
    with pytest.raises(SettingsError, match=r"rbf.*learn='never'"):
        GPConfig(kernel="clipped", learn="leave_one_out")
