"""Classic re-balancing of the labelled loss, over steps, against plain loops."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.addons import ADDONS, AddOn, BalancedSamplingConfig, DeferredConfig, Step
from semigpc.addons.rebalancing import effective_number_weights
from semigpc.refiners import NoRefiner
from semigpc.types import Batch, Clock, ModelOutput, Task
from tests.algorithms.tiny import COUNTS, TASK, copy_of, learn, make_algorithm, pair, stream

STEPS = 4


def weights_by_loops(beta: float) -> list[float]:
    raw = [(1 - beta) / (1 - beta**n) for n in COUNTS]
    return [len(raw) * w / sum(raw) for w in raw]


def loss_by_loops(logits: Tensor, y: Tensor, weights: list[float], margin: list[float]) -> Tensor:
    """mean_b w_y ( log sum_c exp(z_c + m_c) - z_y - m_y )."""
    total = logits.new_zeros(())
    for row, label in zip(logits, y.tolist(), strict=True):
        shifted = torch.stack([row[c] + margin[c] for c in range(len(margin))])
        total = total + weights[label] * (torch.logsumexp(shifted, dim=0) - shifted[label])
    return total / len(y)


ONES, NONE = [1.0] * len(COUNTS), [0.0] * len(COUNTS)
PRIOR = [math.log(n / sum(COUNTS)) for n in COUNTS]
LATE = [ONES] * (STEPS // 2) + [weights_by_loops(0.99)] * (STEPS // 2)
# options, and the weights of the classes and what is added to the logits in each step
CASES: list[tuple[str, dict[str, Any], list[list[float]], list[float]]] = [
    ("effective_number", {"beta": 0.9}, [weights_by_loops(0.9)] * STEPS, NONE),
    ("logit_adjustment", {"strength": 1.5}, [ONES] * STEPS, [1.5 * p for p in PRIOR]),
    ("logit_adjustment", {"place": "answer"}, [ONES] * STEPS, NONE),
    ("deferred", {"start": 0.5, "beta": 0.99}, LATE, NONE),
    ("deferred", {"start": 0.5, "by": "sampling"}, [ONES] * STEPS, NONE),
]


def built(name: str, **options: Any) -> Any:
    return ADDONS[name].build(ADDONS[name].config(**options), TASK)


@pytest.mark.parametrize(("name", "options", "weights", "margin"), CASES)
@pytest.mark.parametrize("algorithm", ["supervised", "fixmatch"])
def test_the_labelled_loss_is_the_rule_over_steps_that_learn(
    algorithm: str, name: str, options: Any, weights: list[list[float]], margin: list[float]
) -> None:
    ours, networks = make(algorithm, built(name, **options)), pair()
    plain, others = make(algorithm, AddOn.none(TASK)), copy_of(networks)
    for number, batch in enumerate(stream(STEPS)):
        clock = Clock(number, STEPS, 2)
        output = ours.step(networks, batch, clock)
        without = plain.step(others, batch, clock)
        logits = labelled_logits(algorithm, others, batch)
        wanted = loss_by_loops(logits, batch.y, weights[number], margin)
        # weights are float32
        assert output.metrics["loss_x"].item() == pytest.approx(wanted.item(), rel=1e-6)
        rest = without.loss - without.metrics["loss_x"]
        total = (wanted + rest).item()
        assert output.loss.item() == pytest.approx(total, rel=1e-6), "nothing else changes"
        learn(networks, output.loss)
        learn(others, wanted + rest)


def make(algorithm: str, addon: AddOn) -> Any:
    made: Any = make_algorithm(algorithm, NoRefiner())
    made.addon = addon
    return made.double()


def labelled_logits(algorithm: str, networks: Any, batch: Batch) -> Tensor:
    """What the student says of the labelled images, in the batch that the algorithm forwards."""
    views = [] if algorithm == "supervised" else [batch.views["weak"], batch.views["strong"]]
    logits: Tensor = networks.forward(batch.x, *views)[0].logits
    return logits


def test_a_mixed_label_has_the_weight_of_each_of_its_classes() -> None:
    addon = built("effective_number", beta=0.9)
    logits = torch.randn(1, 4, dtype=torch.float64)
    mixed = torch.tensor([[0.7, 0.0, 0.0, 0.3]], dtype=torch.float64)
    w, log_p = weights_by_loops(0.9), torch.log_softmax(logits, dim=1)[0]
    wanted = -(0.7 * w[0] * log_p[0] + 0.3 * w[3] * log_p[3])
    loss = addon.labeled_loss(somewhere(), logits, mixed)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)


def test_a_plain_network_can_be_adjusted_when_it_answers() -> None:
    addon = built("logit_adjustment", place="answer", strength=0.5)
    logits = torch.randn(3, 4, dtype=torch.float64)
    found = addon.answer(ModelOutput(logits, logits, {}))
    assert addon.answers
    assert torch.allclose(found, logits - 0.5 * torch.tensor(PRIOR, dtype=torch.float64), atol=1e-6)
    assert not built("logit_adjustment").answers


def test_sampling_is_balanced_from_the_start_or_from_the_deferred_one() -> None:
    assert BalancedSamplingConfig().sampling_power(0.0) == 0
    assert BalancedSamplingConfig(power=0.5).sampling_power(0.9) == 0.5
    deferred = DeferredConfig(by="sampling", start=0.8)
    assert [deferred.sampling_power(progress) for progress in (0.0, 0.79, 0.8, 1.0)] == [1, 1, 0, 0]
    assert DeferredConfig(by="weights").sampling_power(0.9) == 1


@pytest.mark.parametrize(
    "name", ["effective_number", "logit_adjustment", "deferred", "saw", "crest", "crest_plus"]
)
def test_a_class_without_labels_counts_as_one_and_the_run_is_told(name: str) -> None:
    task = Task(torch.tensor([9, 0, 4]), 2, 2, n_unlabeled=3)
    addon = ADDONS[name].build(ADDONS[name].config(), task)
    (note,) = addon.take_notes()
    assert "[1] have no label" in note
    assert addon.take_notes() == []
    loss = addon.labeled_loss(somewhere(progress=0.9), torch.zeros(2, 3), torch.tensor([0, 2]))
    assert loss.isfinite()


def somewhere(progress: float = 0.0) -> Step:
    return Step(pair(), stream(1)[0], Clock(round(10 * progress), 10, 5))


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.999])
def test_weights_are_those_of_the_equation_scaled_to_the_number_of_classes(beta: float) -> None:
    counts, exact = [400, 20, 3, 1], Fraction(beta)
    raw = [(1 - exact) / (1 - exact**n) for n in counts]
    expected = [float(w * len(counts) / sum(raw)) for w in raw]
    weights = effective_number_weights(torch.tensor(counts), beta)
    assert weights.dtype == torch.float64
    assert weights.tolist() == pytest.approx(expected, rel=1e-12)
    assert float(weights.sum()) == pytest.approx(4)


def test_a_class_nobody_has_seen_weighs_as_much_as_one_seen_once() -> None:
    weights = effective_number_weights(torch.tensor([0, 1, 8]), 0.9)
    assert weights[0] == weights[1] > weights[2]


def test_a_beta_next_to_one_weighs_by_inverse_counts() -> None:
    weights = effective_number_weights(torch.tensor([1.0, 10.0, 1000.0]), 1 - 1e-12)
    assert weights.tolist() == pytest.approx([3 / 1.101, 0.3 / 1.101, 0.003 / 1.101], rel=1e-3)
    assert bool(effective_number_weights(torch.tensor([10**9, 1]), 0.5).isfinite().all())
