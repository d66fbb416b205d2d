"""CDMAD against a slow reading of its equation; what it does with an image without content."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.addons import ADDONS, CDMAD, CDMADConfig
from semigpc.algorithms import ALGORITHMS
from semigpc.training import RunFolder, train
from semigpc.training.inference import load_run
from semigpc.training.processes import Stopped
from semigpc.training.run_folder import read_checkpoint
from semigpc.training.state import EvaluationNetwork
from semigpc.types import Clock, ModelOutput, Networks
from tests.algorithms.tiny import (
    SIDE,
    TASK,
    TinyNetwork,
    copy_of,
    make_algorithm,
    make_refiner,
    pair,
    seeded,
    stream,
)
from tests.training.small_runs import StopAt, small_run

LEARNERS = [name for name in ALGORITHMS if name != "supervised"]
PIXEL = 0.5
BLANK = torch.full((1, 3, SIDE, SIDE), PIXEL, dtype=torch.float64)
AFTER = Clock(5, 10, 5)  # after the warm-up


def with_cdmad(name: str, **options: Any) -> Any:
    """An algorithm with the add-on, which has seen nothing yet."""
    algorithm: Any = make_algorithm(name, make_refiner("none")).double()
    config = CDMADConfig(pixel=PIXEL, **options)
    algorithm.addon = CDMAD(config, replace(TASK, blank=BLANK)).double()
    return algorithm


def experienced(networks: Networks) -> Networks:
    """The same networks, with running statistics that are not those of any batch."""
    network: Any
    for network in networks:
        norm = network.backbone[2]
        norm.running_mean.add_(torch.linspace(-1, 1, len(norm.running_mean)))
        norm.running_var.mul_(torch.linspace(0.5, 2, len(norm.running_var)))
    return networks


@torch.no_grad()
def slow_logits(network: Any) -> list[float]:
    """Number by number: the logits of the blank image, normalised by the running statistics."""
    linear, norm = network.backbone[1], network.backbone[2]
    features = []
    for d in range(len(linear.bias)):
        h = sum(float(w) * PIXEL for w in linear.weight[d]) + float(linear.bias[d])
        h = (h - float(norm.running_mean[d])) / (float(norm.running_var[d]) + norm.eps) ** 0.5
        features.append(h * float(norm.weight[d]) + float(norm.bias[d]))
    head = network.classifier
    return [
        3 * (sum(float(w) * h for w, h in zip(row, features, strict=True)) + float(bias))
        for row, bias in zip(head.weight, head.bias, strict=True)
    ]


def softmax(logits: Tensor) -> Tensor:
    return logits.exp() / logits.exp().sum(dim=1, keepdim=True)


def test_a_label_is_that_of_the_logits_less_those_of_the_blank_image() -> None:
    networks = experienced(pair())
    (batch,) = stream(1)
    slow = copy_of(networks)
    _, weak, _ = slow.forward(batch.x, batch.views["weak"], batch.views["strong"])
    bias = torch.tensor(slow_logits(slow.student), dtype=torch.float64)
    algorithm = with_cdmad("fixmatch")
    pseudo = algorithm.step(networks, batch, AFTER).pseudo
    torch.testing.assert_close(pseudo.probs, softmax(weak.logits - bias), rtol=1e-10, atol=0)
    assert pseudo.probs.argmax(dim=1).tolist() != weak.logits.argmax(dim=1).tolist()

    algorithm.show_blank(networks.teacher)  # as before an evaluation
    output = networks.ask_teacher(batch.x)
    bias = torch.tensor(slow_logits(networks.teacher), dtype=torch.float64)
    torch.testing.assert_close(algorithm.addon.answer(output), output.logits - bias)


@pytest.mark.parametrize("name", LEARNERS)
def test_before_the_warm_up_nothing_changes(name: str) -> None:
    """Neither the loss nor the statistics of the network, in which the image is not counted."""
    plain: Any = make_algorithm(name, make_refiner("none")).double()
    debiased = with_cdmad(name, warmup=0.6)
    ours = experienced(pair())
    theirs = copy_of(ours)
    for k, batch in enumerate(stream(3)):
        clock = Clock(k, 10, 5)
        expected = seeded(k, plain.step, theirs, batch, clock)
        output = seeded(k, debiased.step, ours, batch, clock)
        assert torch.equal(output.loss, expected.loss)
        assert torch.equal(output.pseudo.probs, expected.pseudo.probs)
    state = theirs.student.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in ours.student.state_dict().items())
    assert debiased.addon.bias.any(), "it was seen nevertheless"
    assert ours.student.training


def test_a_network_that_prefers_no_class_is_left_as_it_is() -> None:
    networks = pair()
    student: Any = networks.student
    with torch.no_grad():  # equal logits for the image, whose features are 0
        student.backbone[1].bias.zero_()
        student.backbone[2].momentum = 0.0
        student.classifier.bias.fill_(0.7)
    algorithm = with_cdmad("fixmatch")
    algorithm.addon.blank = torch.zeros_like(BLANK)
    plain: Any = make_algorithm("fixmatch", make_refiner("none"))
    (batch,) = stream(1)
    expected = plain.step(copy_of(networks), batch, AFTER)
    output = algorithm.step(networks, batch, AFTER)
    torch.testing.assert_close(output.pseudo.probs, expected.pseudo.probs, rtol=1e-12, atol=0)
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-12, atol=0)


def test_the_network_that_labels_is_the_one_that_sees_the_image() -> None:
    (batch,) = stream(1)
    networks = experienced(pair())
    original: Any = make_algorithm("simmatch", make_refiner("none"), bank="full_teacher").double()
    original.addon = with_cdmad("simmatch").addon
    original.step(networks, batch, AFTER)
    expected = networks.ask_teacher(BLANK).logits[0]
    torch.testing.assert_close(original.addon.bias, expected, rtol=1e-12, atol=0)


def test_an_algorithm_with_logits_of_its_own_has_them_debiased() -> None:
    (batch,) = stream(1)
    networks = pair()
    algorithm = with_cdmad("npmatch")
    before = copy_of(networks)
    before.forward(batch.x, batch.views["weak"], batch.views["strong"])
    algorithm.step(networks, batch, AFTER)
    image: ModelOutput = before.student.eval()(BLANK)
    expected = image.heads["neural_process"][0]
    torch.testing.assert_close(algorithm.addon.bias, expected, rtol=1e-12, atol=0)


def test_without_an_image_it_says_so() -> None:
    algorithm = with_cdmad("fixmatch")
    algorithm.addon = CDMAD(CDMADConfig(), TASK)
    with pytest.raises(ValueError, match=r"image without content; Task\.blank is None"):
        algorithm.step(pair(), stream(1)[0], AFTER)


@pytest.mark.slow
@pytest.mark.parametrize("refiner", ["none", "gp"])
def test_a_run_predicts_by_debiased_logits_also_where_it_was_stopped(
    refiner: str, tmp_path: Path
) -> None:
    """The checkpoint of a step without evaluation has the numbers of its own network."""
    plain = small_run("fixmatch", refiner, "train.ema=0.9")
    with pytest.raises(Stopped):
        train(replace(plain, addon=CDMADConfig(pixel=PIXEL)), tmp_path / "run", listener=StopAt(14))
    saved = read_checkpoint(RunFolder(tmp_path / "run").last)
    assert "addon.blank" not in saved.part("algorithm"), "the image itself is not saved"
    run = load_run(tmp_path / "run", "last")
    assert run.step % plain.train.eval_steps, "not a step of an evaluation"
    network = run.network
    assert isinstance(network, EvaluationNetwork)
    images = torch.rand(5, 3, 8, 8)
    with torch.no_grad():
        blank = network.network(torch.full((1, 3, 8, 8), PIXEL)).logits
        logits = network.network(images).logits
        torch.testing.assert_close(network(images).logits, logits - blank)
    assert (blank.amax() - blank.amin()) > 1e-3


def test_the_tiny_network_says_what_the_slow_one_says() -> None:
    network = TinyNetwork().eval()
    expected = torch.tensor(slow_logits(network), dtype=torch.float64)
    torch.testing.assert_close(network(BLANK).logits[0], expected, rtol=1e-10, atol=1e-12)
    assert ADDONS["cdmad"].config().blank_pixel == 0
    assert ADDONS["debiaspl"].config().blank_pixel is None
