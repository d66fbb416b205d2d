"""Scales that follow the features: l, lambda, and when they are chosen."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from semigpc.gp import RBF, NotPositiveDefiniteError
from semigpc.refiners import GaussianProcessRefiner, GPConfig, auto_logit_scale
from semigpc.refiners.gp_config import START_LENGTH, build_engine
from semigpc.refiners.tuning import LOGIT_SCALES, RECENT_VIEWS
from semigpc.types import ModelOutput
from tests.refiners.outputs import ENGINES_OF_24, batch_of, state_of, unchanged, unit

WIDTH, SIZE, WARMUP = 8, 24, 3
EVERY = 50  # steps between two looks, with a buffer of 24


def build(n_classes: int = 3, **options: Any) -> GaussianProcessRefiner:
    """A refiner with the default scales, which tune."""
    config = GPConfig(**{"buffer_size": SIZE, "warmup_steps": WARMUP, **options})
    return GaussianProcessRefiner(config, WIDTH, n_classes)


def draw(
    rows: int, generator: torch.Generator, n_classes: int = 3, spread: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Features (rows, WIDTH) around one fixed centre per class, and labels."""
    centres = torch.randn(n_classes, WIDTH, generator=torch.Generator().manual_seed(5))
    labels = torch.randint(n_classes, (rows,), generator=generator)
    return centres[labels] + spread * torch.randn(rows, WIDTH, generator=generator), labels


def stream(
    steps: int, generator: torch.Generator, n_classes: int = 3, views: int = 40
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Weak views, and a labelled batch of four, for each step."""
    for _ in range(steps):
        yield draw(views, generator, n_classes)[0], *draw(4, generator, n_classes)


def steps_of(refiner: GaussianProcessRefiner, batches: Any) -> list[Tensor]:
    """What a loop of its own gets from ``probs`` in each step."""
    answers = []
    for weak, features, labels in batches:
        own = torch.full((len(weak), refiner.n_classes), 1 / refiner.n_classes)
        answers.append(refiner.probs(weak, own=own))
        refiner.remember(features, labels)
    return answers


def scales(refiner: GaussianProcessRefiner) -> tuple[float, ...]:
    """l, where the refiner has one that is not learned, and lambda."""
    return tuple(float(scale) for scale in refiner.scales.values())


def nearest_by_hand(views: Tensor, rows: Tensor) -> float:
    """sqrt(1.5 median_i min_j |h_i - h_j|^2), pair by pair, with the lower median."""
    here, there = views.double().numpy(), rows.double().numpy()
    nearest = [min(float(np.sum((view - row) ** 2)) for row in there) for view in here]
    return math.sqrt(1.5 * sorted(nearest)[(len(nearest) - 1) // 2])


def share_of_sure(logits: Tensor) -> float:
    """The share of rows (M, C) whose largest probability is 0.999 or more, row by row."""
    sure = 0
    for row in logits.double().tolist():
        powers = [math.exp(z - max(row)) for z in row]
        sure += max(powers) / sum(powers) >= 0.999
    return sure / len(logits)


every_engine = pytest.mark.parametrize("engine", sorted(ENGINES_OF_24))


@every_engine
@pytest.mark.parametrize("l2norm", [True, False])
def test_l_follows_the_distance_to_the_nearest_labelled_row(
    engine: str, l2norm: bool, generator: torch.Generator
) -> None:
    refiner = build(engine=ENGINES_OF_24[engine], l2norm=l2norm)
    # 12 of 24 slots: rows of zeros in the others must not count
    batches = list(stream(WARMUP, generator))
    steps_of(refiner, batches)
    assert scales(refiner) == (START_LENGTH, auto_logit_scale(3)), "the warm-up has not ended"
    now = draw(41, generator)[0]
    refiner.probs(now)
    views = torch.cat([now, *(weak for weak, _, _ in batches)])
    rows = torch.cat([features for _, features, _ in batches])
    if l2norm:
        views, rows = unit(views), unit(rows)
    assert scales(refiner)[0] == pytest.approx(nearest_by_hand(views, rows), rel=1e-5)
    assert refiner.engine.kernel == RBF(length_scale=scales(refiner)[0])


def test_the_newest_views_count_and_no_more_than_512(generator: torch.Generator) -> None:
    refiner = build()
    seen: list[Tensor] = []
    for number, rows in enumerate((300, 300, 700, 90)):
        weak = draw(rows, generator, spread=1 + number)[0]
        seen.insert(0, weak[-RECENT_VIEWS:])  # the newest first
        refiner.probs(weak)
        views = refiner.tuner.views if refiner.tuner is not None else weak[:0]
        expected = unit(torch.cat(seen)[:RECENT_VIEWS])
        assert torch.equal(views, expected)


@pytest.mark.parametrize("prior", ["none", "frequency"])
@pytest.mark.parametrize("n_classes", [2, 10, 200])
def test_four_of_five_views_are_confident(
    n_classes: int, prior: str, generator: torch.Generator
) -> None:
    refiner = build(n_classes, class_prior=prior, buffer_size=400, warmup_steps=1)
    refiner.remember(*draw(400, generator, n_classes))
    views = draw(RECENT_VIEWS, generator, n_classes)[0]
    refiner.probs(views)
    logits = refiner.logits(ModelOutput(views, views, {}))
    logit_scale = scales(refiner)[1]
    assert LOGIT_SCALES[0] < logit_scale < LOGIT_SCALES[1]
    assert share_of_sure(logits * 1.0001) >= 0.8
    assert share_of_sure(logits * 0.9999) < 0.8, "and no larger than it needs to be"


def test_a_share_that_no_scale_reaches_ends_at_the_largest(generator: torch.Generator) -> None:
    """One image with two labels stays undecided, and more than a fifth of the views show it."""
    refiner = build(2, class_prior="none", warmup_steps=1)
    same = torch.ones(1, WIDTH)
    refiner.remember(same.expand(2, -1), torch.tensor([0, 1]))
    refiner.probs(same.expand(50, -1))
    assert scales(refiner) == pytest.approx((1e-3, LOGIT_SCALES[1]))
    assert bool(refiner.probs(torch.cat([same, draw(5, generator)[0]])).isfinite().all())


def test_it_looks_again_after_so_many_steps_and_not_between(generator: torch.Generator) -> None:
    refiner = build()
    found = []
    for batch in stream(WARMUP + 2 * EVERY + 1, generator):
        steps_of(refiner, [batch])
        found.append(scales(refiner))
    looks = [step for step, (before, now) in enumerate(pairwise(found), start=1) if before != now]
    assert looks == [WARMUP, WARMUP + EVERY, WARMUP + 2 * EVERY]


def test_the_engine_is_not_rebuilt_again_within_n_over_4_steps_and_lambda_follows_all_the_same(
    generator: torch.Generator,
) -> None:
    refiner = build(buffer_size=4 * 3 * EVERY, warmup_steps=0)
    refiner.remember(*draw(SIZE, generator))
    found = []
    for look in range(5):  # features shrink, so that l has to follow
        refiner.placement.steps.fill_(look * EVERY)
        refiner.probs(draw(RECENT_VIEWS, generator, spread=0.5**look)[0])
        found.append(scales(refiner))
    lengths, logits = zip(*found, strict=True)
    assert lengths[0] == lengths[1] == lengths[2] != lengths[3] == lengths[4]
    assert len(set(logits)) == 5


def test_a_small_change_of_l_is_not_worth_a_rebuild(generator: torch.Generator) -> None:
    refiner = build(warmup_steps=1)
    features, labels = draw(SIZE, generator)
    refiner.remember(features, labels)
    views = draw(RECENT_VIEWS, generator)[0]
    refiner.probs(views)
    before, kernel = scales(refiner), refiner.engine.kernel
    for step in range(EVERY):
        # the same rows again, in the same slots
        refiner.remember(features[step % SIZE, None], labels[step % SIZE, None])
    refiner.probs(views + 0.05 * draw(RECENT_VIEWS, generator)[0])
    assert refiner.engine.kernel is kernel
    assert scales(refiner)[0] == before[0]
    assert scales(refiner)[1] != before[1], "lambda costs nothing to follow"


@pytest.mark.parametrize(
    ("options", "tuned"),
    [
        ({"length_scale": 0.4, "logit_scale": 5.0}, set()),
        ({"length_scale": 0.4}, {"logit_scale"}),
        ({"logit_scale": 5.0}, {"length_scale"}),
        ({"kernel": "cosine"}, {"logit_scale"}),
        ({"learn": "leave_one_out", "learn_steps": 1000}, {"logit_scale"}),
        ({"role": "classifier"}, set()),
    ],
    ids=str,
)
def test_a_scale_that_is_set_or_learned_otherwise_is_not_tuned(
    options: dict[str, Any], tuned: set[str], generator: torch.Generator
) -> None:
    refiner = build(**options)
    kernel = refiner.engine.kernel
    before = {name: float(value) for name, value in refiner.scales.items()}
    starts = {"length_scale": START_LENGTH, "logit_scale": auto_logit_scale(3)} | options
    assert before == {name: starts[name] for name in before}
    steps_of(refiner, stream(WARMUP + 1, generator))
    assert {name for name, value in refiner.scales.items() if float(value) != before[name]} == tuned
    assert (refiner.engine.kernel != kernel) == ("length_scale" in tuned)


def test_nothing_is_kept_by_a_refiner_that_does_not_tune() -> None:
    for options in ({"length_scale": 0.4, "logit_scale": 5.0}, {"role": "classifier"}):
        assert not [name for name in build(**options).state_dict() if "tuner" in name]


@every_engine
def test_a_tuned_refiner_answers_as_one_that_always_had_these_scales(
    engine: str, generator: torch.Generator
) -> None:
    refiner = build(engine=ENGINES_OF_24[engine])
    # 28 rows through 24 slots, the last of them after the look
    steps_of(refiner, stream(WARMUP + 4, generator))
    length, logit_scale = scales(refiner)
    config = GPConfig(buffer_size=SIZE, length_scale=length, engine=ENGINES_OF_24[engine])
    fresh = build_engine(config, WIDTH, 3)
    rows = torch.arange(SIZE)
    fresh.replace(rows, refiner.engine.features, refiner.engine.targets)
    # landmarks at all rows, as they are now
    refiner.engine.reanchor(refiner.engine.kernel, refiner.engine.noise_std)
    queries = draw(10, generator)[0]
    counts = refiner.engine.targets.sum(dim=0).double()
    mean = fresh.mean(unit(queries).double(), offset=counts / SIZE)
    expected = torch.softmax(logit_scale * (SIZE / 3 / counts).sqrt() * mean, dim=1)
    atol = 1e-3 if engine == "matrix_free" else 1e-5  # that one solves to a tolerance of 1e-3
    torch.testing.assert_close(refiner.probs(queries), expected.float(), rtol=0, atol=atol)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"balanced": True},
        {"learn": "leave_one_out", "learn_steps": 7},
        {"learn": "leave_one_out", "learn_steps": 7, "balanced": True},
        {"engine": ENGINES_OF_24["ensemble"]},
        {"engine": ENGINES_OF_24["matrix_free"]},
    ],
    ids=str,
)
def test_a_resumed_refiner_goes_on_and_tunes_to_the_same_bits(
    options: dict[str, Any], generator: torch.Generator
) -> None:
    whole, resumed = build(**options), build(**options)
    steps_of(whole, stream(WARMUP + 5, generator))
    whole.rebuild()  # as saving does
    state = state_of(whole)
    resumed.load_state_dict(state)
    assert (scales(resumed), resumed.learned) == (scales(whole), whole.learned)
    assert whole.learned is None or whole.learned["times"] > 0
    tuned = scales(whole)
    # fewer than 512: what was seen before the break counts too
    batches = list(stream(EVERY, generator, views=5))
    for ours, theirs in zip(steps_of(whole, batches), steps_of(resumed, batches), strict=True):
        assert torch.equal(ours, theirs)
    assert scales(resumed) == scales(whole) != tuned, "there was another look"
    assert resumed.learned == whole.learned
    assert unchanged(resumed, state_of(whole))


def test_questions_in_evaluation_mode_tune_nothing(generator: torch.Generator) -> None:
    refiner = build()
    steps_of(refiner, stream(WARMUP, generator))
    before = state_of(refiner)
    refiner.eval()
    refiner.probs(draw(30, generator)[0])
    assert unchanged(refiner, before)
    refiner.train()
    refiner.probs(draw(30, generator)[0])
    assert not torch.equal(refiner.state_dict()["tuner.logit_scale"], before["tuner.logit_scale"])


def test_an_empty_copy_has_the_scales_that_were_found(generator: torch.Generator) -> None:
    refiner = build(engine=ENGINES_OF_24["exact"])
    steps_of(refiner, stream(WARMUP + 1, generator))
    copy = refiner.empty_copy()
    assert (len(copy.engine), scales(copy)) == (0, scales(refiner))
    copy.write(*rows_of(refiner))
    queries = draw(10, generator)[0]
    output = ModelOutput(queries, queries, {})
    torch.testing.assert_close(copy.logits(output), refiner.logits(output), rtol=0, atol=1e-5)
    assert float(copy.logit_scale) != auto_logit_scale(3)


def test_both_ways_in_tune_alike_and_other_sites_show_nothing(generator: torch.Generator) -> None:
    """Our algorithms call refine and observe; a loop of its own calls probs and remember."""
    ours, plain = build(), build()
    for weak, features, labels in stream(WARMUP + 2, generator):
        own = torch.full((len(weak), 3), 1 / 3)
        asked = ModelOutput(own.log(), weak, {})
        other = ModelOutput(own.log(), 9 * weak.roll(1, dims=1), {})
        assert ours.refine("aggregate", other, own) is own
        assert torch.equal(ours.refine("semantic", asked, own), plain.probs(weak, own=own))
        output = ModelOutput(torch.zeros(4, 3), features, {})
        ours.observe("after", output, batch_of(features, labels))
        plain.remember(features, labels)
    assert scales(ours) == scales(plain) != (START_LENGTH, auto_logit_scale(3))


def test_asking_for_logits_tunes_nothing(generator: torch.Generator) -> None:
    refiner = build(warmup_steps=0)
    features, labels = draw(12, generator)
    refiner.remember(features, labels)
    before = state_of(refiner)
    output = ModelOutput(features, features, {})
    for ask in (refiner.logits, refiner.classify, refiner.belief):
        ask(output)
    assert unchanged(refiner, before)


def test_a_length_scale_that_the_engine_rejects_is_not_taken(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    refiner = build()
    kernel = refiner.engine.kernel

    def reject(*_: object) -> None:
        raise NotPositiveDefiniteError("cannot be inverted")

    monkeypatch.setattr(refiner.engine, "reanchor", reject)
    steps_of(refiner, stream(WARMUP + 1, generator))
    assert refiner.engine.kernel is kernel
    assert scales(refiner)[0] == START_LENGTH
    assert scales(refiner)[1] != auto_logit_scale(3), "lambda follows all the same"


@pytest.mark.parametrize("options", [{}, {"learn": "leave_one_out", "learn_steps": 4}])
def test_casting_the_algorithm_changes_no_scale(
    options: dict[str, Any], generator: torch.Generator
) -> None:
    refiner = build(**options)
    steps_of(refiner, stream(WARMUP + 1, generator))
    before = state_of(refiner)
    refiner.to(torch.float16).double()
    assert unchanged(refiner, before)


def rows_of(refiner: GaussianProcessRefiner) -> tuple[Tensor, Tensor]:
    """Stored features and labels."""
    occupied = refiner.engine.occupied
    return refiner.engine.features[occupied], refiner.engine.targets[occupied].argmax(dim=1)
