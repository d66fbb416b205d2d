"""CoSSL against a slow reading of its three parts, and the defects of USB's."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semigpc.addons import CoSSL, CoSSLConfig, Step
from semigpc.addons.cossl import balanced_features, imprinted_probs
from semigpc.types import Clock, Labeled, Networks, Task
from tests.addons.slow_cossl import (
    AFTER,
    OPTIONS,
    POOL,
    TASK,
    SlowHead,
    a_survey,
    batches,
    features_only,
    make,
    slow_start,
    slow_step,
    started,
)
from tests.algorithms.tiny import (
    CLASSES,
    COUNTS,
    LABELED,
    LABELS,
    SIDE,
    UNLABELED,
    WIDTH,
    TinyNetwork,
    copy_of,
    learn,
    make_algorithm,
    make_refiner,
    pair,
    seeded,
    stream,
)

STEPS = 4


def test_head_and_pseudo_labels_follow_the_equations_from_the_start_on() -> None:
    # five batches a pass: three passes, the last cut short
    addon, networks, survey = (make(start_steps=13), pair(), a_survey())
    slow = SlowHead(addon)
    seeded(4, addon.survey, survey)
    seeded(4, slow_start, slow, survey, 13)
    slow.agrees(addon)
    enhanced: list[bool] = []
    for k, batch in enumerate(batches(STEPS)):
        said = networks.forward(batch.x, batch.views["weak"])[1]
        heard = seeded(k, addon.weak, Step(networks, batch, AFTER), said)
        expected, which = seeded(k, slow_step, slow, networks, batch)
        torch.testing.assert_close(heard.logits, expected, rtol=1e-9, atol=1e-11)
        assert heard.features is said.features
        slow.agrees(addon)
        enhanced += which
        # the teacher moves on
        learn(networks, nn.functional.cross_entropy(networks.forward(batch.x)[0].logits, batch.y))
    assert 0 < sum(enhanced) < len(enhanced), "both ways must be seen"


def test_every_class_has_as_many_features_at_the_start() -> None:
    survey = a_survey()
    features, classes = balanced_features(
        survey.labeled.features, LABELS, survey.unlabeled.features, CLASSES
    )
    assert torch.bincount(classes).tolist() == [max(COUNTS)] * CLASSES
    assert torch.equal(features[: len(LABELS)], survey.labeled.features)


def test_imprinting_ranks_by_the_unit_means_of_the_classes_there_are() -> None:
    labeled = torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 0.1]])
    y = torch.tensor([0, 0, 2])
    probs = imprinted_probs(torch.tensor([[1.0, 3.0]]), labeled, y, 3)
    expected = torch.softmax(torch.tensor([[1.0, 3.0]]), dim=1)[0]
    torch.testing.assert_close(probs[0], torch.stack([expected[0], torch.tensor(0.0), expected[1]]))


def test_pseudo_labels_come_from_moving_average_and_head_not_from_the_student() -> None:
    """USB asks the student's head: nothing is learnt together."""
    batch = batches(1)[0]

    def ask(networks: Networks, addon: CoSSL) -> Tensor:
        algorithm: Any = make_algorithm("fixmatch", make_refiner("none"), task=TASK)
        algorithm.addon = addon
        probs: Tensor = seeded(0, algorithm.step, networks, batch, AFTER).pseudo.probs
        return probs

    networks, addon = pair(), started()
    features = networks.ask_teacher(batch.views["weak"]).features
    expected = torch.softmax(
        features @ addon.head.weights[:, :-1].mT + addon.head.weights[:, -1], dim=1
    )
    other_student = Networks(TinyNetwork(9), copy_of(networks).teacher)
    other_teacher = Networks(copy_of(networks).student, TinyNetwork(9))
    other_average, other_head = copy.deepcopy(addon), copy.deepcopy(addon)
    other_average.head.average.mul_(-1)
    other_head.head.weights.mul_(-1)

    torch.testing.assert_close(
        ask(other_student, copy.deepcopy(addon)), expected, rtol=1e-10, atol=0
    )
    torch.testing.assert_close(ask(copy_of(networks), other_average), expected, rtol=1e-10, atol=0)
    assert (ask(other_teacher, copy.deepcopy(addon)) - expected).abs().max() > 1e-3
    assert (ask(copy_of(networks), other_head) - expected).abs().max() > 1e-3


def test_features_are_enhanced_as_often_as_their_own_class_is_rare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """USB takes the argmax of a scalar for the class, which is always 0, and enhances none."""
    rows = 3000 * CLASSES
    y = torch.arange(rows) % CLASSES
    addon, networks, batch = started(), pair(), stream(1)[0]
    images = torch.randn(rows, 3, SIDE, SIDE, dtype=torch.float64)
    learnt: list[Tensor] = []
    monkeypatch.setattr(addon.head, "learn", lambda features, _: learnt.append(features))
    step = Step(networks, batch._replace(balanced=Labeled(images, y, y)), AFTER)
    seeded(0, addon.weak, step, networks.forward(batch.x)[0])
    plain = networks.ask_teacher(images).features
    enhanced = (learnt[0] - plain).abs().amax(dim=1) > 1e-9
    for c, n in enumerate(COUNTS):
        share = (max(COUNTS) - n) / max(COUNTS)
        assert enhanced[y == c].double().mean().item() == pytest.approx(share, abs=0.04)

    partners = (batch.x, batch.views["weak"])
    pool = torch.cat([networks.ask_teacher(images).features for images in partners])
    # f lies on the way from x to some partner, at most 0.4 of it from x
    for f, x in zip(learnt[0][enhanced][:50], plain[enhanced][:50], strict=True):
        shares = ((f - x) * (pool - x)).sum(dim=1) / (pool - x).pow(2).sum(dim=1)
        gaps = (x + shares[:, None] * (pool - x) - f).norm(dim=1)
        assert gaps.min() < 1e-9
        assert 0 <= shares[gaps.argmin()] <= 0.4


def test_partners_are_labelled_as_often_as_training_images_are() -> None:
    addon = started()
    own, labeled, unlabeled = (
        torch.full((rows, WIDTH), value, dtype=torch.float64)
        for rows, value in ((8000, 0.0), (2, 1.0), (7, 2.0))
    )
    mixed = seeded(0, addon._enhance, own, torch.full((8000,), 3), labeled, unlabeled)
    # Mixed from 0, a labelled partner gives up to 0.4 and an unlabelled one up to 0.8 (uniform).
    above = (mixed[:, 0] > 0.4).double().sum() / (mixed[:, 0] > 0).sum()
    assert above.item() == pytest.approx(0.5 * POOL / (POOL + sum(COUNTS)), abs=0.04)


def test_the_head_learns_without_touching_the_networks() -> None:
    addon, networks, batch = started(), pair(), batches(1)[0]
    before = copy_of(networks)
    head = addon.head.weights.clone()
    said = networks.forward(batch.x, batch.views["weak"])[1]
    twin = copy_of(networks)
    heard = addon.weak(Step(networks, batch, AFTER), said)
    assert not torch.equal(addon.head.weights, head)
    assert not heard.logits.requires_grad
    assert not list(addon.parameters())
    for network, old in zip(networks, twin, strict=True):
        state = old.state_dict()
        assert all(torch.equal(a, state[name]) for name, a in network.state_dict().items())
        assert all(parameter.grad is None for parameter in network.parameters())
    assert all(map(torch.equal, before.teacher.parameters(), networks.teacher.parameters()))


def test_nothing_happens_during_the_warm_up() -> None:
    addon, networks, batch = make(), pair(), batches(1)[0]
    said = networks.forward(batch.x)[0]
    state = copy.deepcopy(addon.state_dict())
    early = Clock(7, 10, 5)
    assert not addon.surveys(early)
    assert addon.weak(Step(networks, batch, early), said) is said
    assert all(torch.equal(state[name], value) for name, value in addon.state_dict().items())
    assert torch.equal(addon.answer(said), said.logits)


def test_it_starts_once_and_then_answers_with_the_average_of_its_head() -> None:
    addon, output = make(), features_only(torch.randn(6, WIDTH, dtype=torch.float64))
    assert CoSSLConfig().warmup == 0.8
    assert addon.surveys(AFTER)
    addon.survey(a_survey())
    assert not addon.surveys(AFTER)
    assert addon.active
    average = addon.head.average
    expected = output.features @ average[:, :-1].mT + average[:, -1]
    torch.testing.assert_close(addon.answer(output), expected)
    assert not torch.equal(average, addon.head.weights)
    assert addon.answers
    assert not addon.learns, "no second pass over labelled images is asked for"


@pytest.mark.slow
def test_a_head_started_as_long_as_by_default_knows_every_class() -> None:
    survey = a_survey(torch.float32)
    addon = make(torch.float32, **{name: getattr(CoSSLConfig(), name) for name in OPTIONS})
    addon.survey(survey)
    guesses = addon.answer(survey.labeled).argmax(dim=1)
    assert all(((guesses == LABELS) & (c == LABELS)).any() for c in range(CLASSES))
    assert (guesses == LABELS).double().mean() > 0.8


def test_a_checkpoint_goes_on_with_the_same_bits() -> None:
    addon, networks = started(torch.float32), pair(dtype=torch.float32)
    first, second, third = batches(3, torch.float32)
    for batch in (first, second):
        seeded(0, addon.weak, Step(networks, batch, AFTER), networks.forward(batch.x)[0])
    again: CoSSL = seeded(77, CoSSL, addon.config, TASK)
    again.load_state_dict({name: value.clone() for name, value in addon.state_dict().items()})
    answers = []
    for one in (addon, again):
        assert not one.surveys(AFTER)
        said = networks.forward(third.x, third.views["weak"])[1]
        answers.append(seeded(5, one.weak, Step(networks, third, AFTER), said).logits)
    assert torch.equal(*answers)
    for name, value in addon.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_classes_without_labels_are_noted_and_left_out() -> None:
    y = torch.tensor([0, 0, 0, 2, 2, 3])
    task = Task(torch.tensor([3, 0, 2, 1]), LABELED, UNLABELED, POOL, WIDTH)
    addon = make(task=task)
    survey = a_survey(y=y)
    features, classes = balanced_features(
        survey.labeled.features, y, survey.unlabeled.features, CLASSES
    )
    assert torch.bincount(classes).tolist() == [3, 0, 3, 3]
    assert features.isfinite().all()
    addon.survey(survey)
    assert addon.take_notes() == [
        "CoSSL: no labelled features of class 1; the head starts without."
    ]
    assert all(value.isfinite().all() for value in addon.state_dict().values())


def test_a_step_without_a_balanced_batch_is_refused() -> None:
    networks, batch = pair(), stream(1)[0]
    with pytest.raises(ValueError, match=r"Batch.balanced is None"):
        started().weak(Step(networks, batch, AFTER), networks.forward(batch.x)[0])
