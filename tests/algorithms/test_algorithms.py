"""Batteries over every algorithm with every refiner: it steps, it resumes, and a silent refiner is
none at all.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semigpc.algorithms import ALGORITHMS
from semigpc.refiners import REFINERS, NoRefiner
from semigpc.types import Batch, Clock, Labeled, ModelOutput, Networks, StepOutput
from tests.algorithms.tiny import (
    LABELS,
    Steppable,
    TinyNetwork,
    learn,
    make_algorithm,
    make_refiner,
    pair,
    seeded,
    stream,
)
from tests.batteries import combinations

MEMORY: dict[str, Any] = {"buffer_size": 12, "warmup_steps": 1}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("none", {}),
    "similarity": ("similarity", MEMORY),
    "similarity-balanced-before": ("similarity", {**MEMORY, "balanced": True, "push": "before"}),
    "gp": ("gp", MEMORY),
    "gp-balanced-prior": ("gp", {**MEMORY, "balanced": True, "class_prior": "frequency"}),
    "gp-classifier": ("gp", {**MEMORY, "role": "classifier", "exclude_same_index": True}),
    "gp-before": ("gp", {**MEMORY, "push": "before"}),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "fixmatch": {"threshold": 0.6},
    "simmatch": {"threshold": 0.6},
    "comatch": {"threshold": 0.6, "queue_batches": 2},
    "remixmatch": {"warmup": 0.3},
}
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
every_pair = pytest.mark.parametrize(
    ("name", "setting"), combinations(list(ALGORITHMS), list(SETTINGS))
)


def make(name: str, setting: str, **changes: Any) -> Steppable:
    kind, options = SETTINGS[setting]
    refiner = make_refiner(kind, **options | changes)
    return make_algorithm(name, refiner, **OPTIONS.get(name, {}))


class Record:
    """Every answer and gradient of a run, to be compared bit for bit."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []

    def add(self, output: StepOutput, gradients: dict[str, Tensor]) -> None:
        self.values += [output.loss.detach(), *gradients.values()]
        self.values += [metric.detach().clone() for metric in output.metrics.values()]
        if output.pseudo is not None:
            self.values += list(output.pseudo)

    def add_state(self, *modules: Any) -> None:
        for module in modules:
            self.values += [value.clone() for value in module.state_dict().values()]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Record)
        as_many = len(self.values) == len(other.values)
        return as_many and all(map(torch.equal, self.values, other.values))

    __hash__ = None  # type: ignore[assignment]


def run(algorithm: Steppable, networks: Networks, batches: list[Batch], start: int = 0) -> Record:
    record = Record()
    for step, batch in enumerate(batches, start):
        output = seeded(step, algorithm.step, networks, batch, Clock(step, 20, 2))
        record.add(output, learn(networks, output.loss))
    record.add_state(*networks)
    return record


def test_the_tables_name_what_is_tested() -> None:
    assert {refiner for refiner, _ in SETTINGS.values()} == set(REFINERS)
    assert all(entry.label for entry in ALGORITHMS.values())


@every_pair
def test_every_algorithm_steps_with_every_refiner(name: str, setting: str) -> None:
    algorithm, networks = make(name, setting), pair(dtype=torch.float32)
    for step, batch in enumerate(stream(6, dtype=torch.float32)):
        output = seeded(step, algorithm.step, networks, batch, Clock(step, 20, 2))
        assert output.loss.shape == ()
        assert output.loss.dtype == torch.float32
        assert bool(output.loss.isfinite())
        for metric in output.metrics.values():
            assert metric.shape == ()
            assert bool(metric.isfinite())
        if output.pseudo is not None:
            rows = len(batch.views["weak"])
            assert output.pseudo.mask.shape == (rows,)
            torch.testing.assert_close(output.pseudo.probs.sum(dim=1), torch.ones(rows))
        for network in networks:
            assert all(parameter.grad is None for parameter in network.parameters())
        gradients = learn(networks, output.loss)
        assert all(bool(value.isfinite().all()) for value in gradients.values())
        assert float(gradients["backbone.1.weight"].abs().max()) > 0


@every_pair
def test_a_run_resumed_from_its_state_goes_on_bit_for_bit(name: str, setting: str) -> None:
    running, networks, batches = make(name, setting), pair(), stream(9)
    run(running, networks, batches[:5])
    if hasattr(running.refiner, "rebuild"):
        running.refiner.rebuild()  # loading does
    state, others = copy.deepcopy(running.state_dict()), copy.deepcopy(networks)
    resumed = make(name, setting)
    if name == "simmatch":
        resumed.bank.mul_(-1)  # type: ignore[attr-defined]  # a fresh one starts at other random rows
    resumed.load_state_dict(state)
    rest = run(running, networks, batches[5:], start=5)
    again = run(resumed, others, batches[5:], start=5)
    rest.add_state(running)
    again.add_state(resumed)
    assert rest == again


@every_pair
def test_the_state_says_all_there_is(name: str, setting: str) -> None:
    """A step changes the state or nothing: what is not in ``state_dict`` cannot be told apart after
    loading an old one.
    """
    algorithm, batches = make(name, setting), stream(8)
    before = copy.deepcopy(algorithm.state_dict())
    first = run(algorithm, pair(), batches)
    algorithm.load_state_dict(before)
    assert run(algorithm, pair(), batches) == first


@pytest.mark.parametrize(
    ("name", "setting"), combinations(list(ALGORITHMS), ["similarity", "gp", "gp-classifier"])
)
def test_a_refiner_in_its_warm_up_is_none_at_all(name: str, setting: str) -> None:
    warming, bare = make(name, setting, warmup_steps=6), make(name, "none")
    here, there, batches = pair(), pair(), stream(9)
    assert run(warming, here, batches[:6]) == run(bare, there, batches[:6])
    own = warming.state_dict()
    assert all(torch.equal(own[key], value) for key, value in bare.state_dict().items())
    speaks = name != "supervised" or setting == "gp-classifier"
    with_it, without = run(warming, here, batches[6:], 6), run(bare, there, batches[6:], 6)
    assert (with_it != without) == speaks, "and then it speaks"


REFINING = [setting for setting in SETTINGS if setting not in ("none", "gp-classifier")]


@pytest.mark.parametrize(("name", "setting"), combinations(list(ALGORITHMS), REFINING))
def test_a_refiner_without_weight_changes_no_bit(name: str, setting: str) -> None:
    own: dict[str, Any] = {}  # the GP would decide which labels are used
    if setting.startswith("gp"):
        own["confidence"] = "max_softmax"
    mute = make(name, setting, blend=0.0, **own)
    networks, others = pair(), pair()
    for pair_ in (networks, others):
        pair_.teacher.eval()
    assert run(mute, networks, stream(6)) == run(make(name, "none"), others, stream(6))


class Probe(NoRefiner):
    """Writes down what it is asked."""

    observes = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.indexed: list[Tensor] = []

    def classify(self, output: ModelOutput, index: Tensor | None = None) -> ModelOutput:
        self.asked.append("classify")
        if index is not None:
            self.indexed.append(index)
        return super().classify(output, index)

    def refine(self, site: Any, output: ModelOutput, probs: Tensor) -> Tensor:
        self.asked.append(site)
        assert not probs.requires_grad
        assert len(output.features) == len(probs)
        return super().refine(site, output, probs)

    def observe(self, moment: Any, x: ModelOutput, batch: Batch) -> None:
        self.asked.append(moment)
        assert len(x.features) == len(batch.y)
        super().observe(moment, x, batch)


@every_algorithm
def test_a_refiner_is_asked_at_the_sites_the_algorithm_names_between_two_observations(
    name: str,
) -> None:
    probe = Probe()
    algorithm: Any = make_algorithm(name, probe, **OPTIONS.get(name, {}))
    networks = pair()
    for step, batch in enumerate(stream(6)):
        probe.asked.clear()
        probe.indexed.clear()
        learn(networks, algorithm.step(networks, batch, Clock(step, 20, 2)).loss)
        assert probe.asked[0] == "before"
        assert probe.asked[-1] == "after"
        inner = probe.asked[1:-1]
        assert "classify" in inner
        assert all(torch.equal(index, batch.index) for index in probe.indexed)
        assert set(inner) - {"classify"} <= set(algorithm.sites)
    assert name == "supervised" or set(inner) - {"classify"} == set(algorithm.sites)
    assert name == "remixmatch" or len(probe.indexed) == 1, "of the labelled images"


@every_algorithm
def test_a_batch_holds_no_true_label_of_an_unlabelled_image(name: str) -> None:
    assert Batch._fields == ("x", "y", "index", "views", "view_index", "balanced")
    assert Labeled._fields == ("x", "y", "index")
    algorithm, other = make(name, "gp"), make(name, "gp")
    batches = stream(4)
    # a position in the unlabelled set is no information
    blind = [batch._replace(view_index=batch.view_index.flip(0)) for batch in batches]
    assert run(algorithm, pair(), batches) == run(other, pair(), blind)


@pytest.mark.parametrize("bank", ["teacher", "full_teacher"])
def test_a_look_through_the_teacher_moves_no_statistics(bank: str) -> None:
    """Where there is no moving average the teacher is the student: its batch normalisation must not
    see a batch twice.
    """
    looking = make_algorithm("simmatch", make_refiner("gp", buffer_size=12), bank=bank)
    plain = make_algorithm("simmatch", NoRefiner())
    batch = stream(1)[0]
    means = []
    for algorithm in (looking, plain):
        student: nn.Module = TinyNetwork()
        seeded(0, algorithm.step, Networks(student, student), batch, Clock(0, 20, 2))
        assert student.training
        means.append(student.state_dict()["backbone.2.running_mean"])
    assert torch.equal(*means)


def test_the_stream_is_long_tailed_and_repeats_images() -> None:
    batches = stream(6)
    assert all(torch.equal(LABELS[batch.index], batch.y) for batch in batches)
    repeats = [len(batch.index) - len(set(batch.index.tolist())) for batch in batches]
    assert set(repeats) == {0, 1}
