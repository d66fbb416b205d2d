"""An algorithm and its reference side by side, each with networks of its own that learn from its
own gradient.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from semigpc.refiners import GaussianProcessRefiner, Refiner
from semigpc.types import Batch, Clock, Networks, StepOutput, Task
from tests.algorithms.references import (
    Expected,
    Reference,
    SlowFixMatch,
    SlowFreeMatch,
    SlowReMixMatch,
    SlowSupervised,
)
from tests.algorithms.references_memory import SlowCoMatch, SlowSimMatch
from tests.algorithms.slow_refiners import Silent, SlowGP, SlowRefiner
from tests.algorithms.tiny import (
    TASK,
    Steppable,
    configure,
    copy_of,
    learn,
    make_algorithm,
    pair,
    seeded,
)

TOLERANCE = 1e-7  # shares of counts are float32 on their way into float64 state


class Shadow:
    """What happened: how many images passed and how many did not, and every loss."""

    def __init__(self) -> None:
        self.passed, self.stopped = 0, 0
        self.losses: list[float] = []


def make_reference(name: str, algorithm: Any, refiner: SlowRefiner, **options: Any) -> Reference:
    config = configure(name, **options)
    match name:
        case "supervised":
            return SlowSupervised(refiner)
        case "fixmatch":
            return SlowFixMatch(config, refiner)
        case "freematch":
            return SlowFreeMatch(config, refiner)
        case "remixmatch":
            return SlowReMixMatch(config, refiner)
        case "simmatch":
            return SlowSimMatch(config, refiner, algorithm.bank)
        case "comatch":
            return SlowCoMatch(config, refiner, len(algorithm.features))
        case _:
            raise AssertionError(f"{name} has no reference: add a case here")


def follow(
    name: str,
    batches: Sequence[Batch],
    refiner: Refiner,
    slow: SlowRefiner | None = None,
    *,
    epoch_steps: int = 2,
    task: Task = TASK,
    **options: Any,
) -> Shadow:
    """Step both over the batches and compare answers, gradients, networks and state after every
    one.
    """
    slow = slow or Silent()
    algorithm = make_algorithm(name, refiner, task=task, **options).double()
    reference = make_reference(name, algorithm, slow, **options)
    networks = pair()
    # which has to see to the teacher's mode itself
    networks.teacher.train(options.get("bank") == "full_teacher")
    shadows = copy_of(networks)
    shadow = Shadow()
    for step, batch in enumerate(batches):
        clock = Clock(step, len(batches) + 2, epoch_steps)
        output = seeded(step, algorithm.step, networks, batch, clock)
        expected = seeded(step, reference.step, shadows, batch, clock)
        where = f"{name}, step {step}"
        same_answers(output, expected, where)
        same_gradients(learn(networks, output.loss), learn(shadows, expected.loss), where)
        same_networks(networks, shadows, where)
        same_state(algorithm, reference, where)
        if isinstance(slow, SlowGP):
            same_memory(refiner, slow, where)
        shadow.losses.append(float(expected.loss.detach()))
        if expected.mask is not None:
            shadow.passed += sum(expected.mask)
            shadow.stopped += len(expected.mask) - sum(expected.mask)
    return shadow


def close(actual: Tensor, expected: Tensor, what: str, tolerance: float = TOLERANCE) -> None:
    assert actual.shape == expected.shape, what
    error = float((actual.detach().double() - expected.detach().double()).abs().max())
    assert error <= tolerance, f"{what}: off by {error:.3g}"


def same_answers(output: StepOutput, expected: Expected, where: str) -> None:
    for name, term in expected.terms.items():
        close(output.metrics[name], term, f"{where}, {name}")
    close(output.loss, expected.loss, f"{where}, loss")
    if expected.probs is None or expected.mask is None:
        assert output.pseudo is None
        return
    assert output.pseudo is not None
    close(output.pseudo.probs, expected.probs, f"{where}, probs")
    assert output.pseudo.mask.bool().tolist() == expected.mask, f"{where}, mask"
    assert not output.pseudo.probs.requires_grad
    if "mask_rate" in output.metrics:
        share = sum(expected.mask) / len(expected.mask)
        close(output.metrics["mask_rate"], torch.tensor(share), f"{where}, mask_rate", 1e-6)


def same_gradients(actual: dict[str, Tensor], expected: dict[str, Tensor], where: str) -> None:
    largest = max(float(value.abs().max()) for value in expected.values())
    assert largest > 1e-3, f"{where}: no gradient to compare"
    for name, value in expected.items():
        close(actual[name], value, f"{where}, gradient of {name}")


def same_networks(actual: Networks, expected: Networks, where: str) -> None:
    for role, ours, theirs in zip(("student", "teacher"), actual, expected, strict=True):
        assert ours.training == theirs.training, f"{where}: the {role} was left in another mode"
        values = ours.state_dict()
        for name, value in theirs.state_dict().items():
            close(values[name], value, f"{where}, {role}'s {name}")


def same_state(algorithm: Steppable, reference: Reference, where: str) -> None:
    actual, expected = algorithm.state_dict(), reference.state()
    own = {name for name in actual if not name.startswith("refiner.")}
    assert own == set(expected), where
    for name, value in expected.items():
        close(actual[name], value, f"{where}, state {name}")


def same_memory(refiner: Refiner, slow: SlowGP, where: str) -> None:
    assert isinstance(refiner, GaussianProcessRefiner)
    ledger = refiner.buffer.entries
    slots = [int(slot) for slot in ledger.times.argsort() if ledger.times[slot] >= 0]
    assert ledger.labels[slots].tolist() == [entry.label for entry in slow.entries], where
    assert ledger.indices[slots].tolist() == [entry.index for entry in slow.entries], where
    stored = torch.stack([entry.feature for entry in slow.entries])
    close(refiner.engine.features[slots], stored, f"{where}, stored features")
    assert int(refiner.placement.steps) == slow.steps, where
