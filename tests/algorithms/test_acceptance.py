"""What each algorithm promises in so many words (algorithms sections 11 and 12), on images that say
their own logits.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.algorithms import SimMatch
from semigpc.algorithms.comatch import pseudo_label_graph
from semigpc.algorithms.remixmatch import frozen_statistics, mixup
from semigpc.pseudo_labels import last_of_each
from semigpc.refiners import NoRefiner
from semigpc.types import Batch, Clock, ModelOutput, Networks, StepOutput
from tests.algorithms.tiny import CLASSES, LABELS, SIDE, learn, make_algorithm, pair, seeded, stream

LATE = Clock(step=50, total_steps=100, epoch_steps=10)
EARLY = Clock(step=0, total_steps=100, epoch_steps=10)


class Plain(nn.Module):
    """Reads logits from an image's first channel and the projection from its second."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale, dtype=torch.float64))

    def forward(self, images: Tensor) -> ModelOutput:
        logits = self.scale * images[:, 0].flatten(1)[:, :CLASSES]
        projection = F.normalize(images[:, 1].flatten(1)[:, :5], dim=1)
        return ModelOutput(logits, logits, {"projection": projection})


def image(logits: Tensor, projection: Tensor | None = None) -> Tensor:
    """Images (M, 3, SIDE, SIDE) that say these logits (M, C) and look this way (M, 5)."""
    images = torch.zeros(len(logits), 3, SIDE * SIDE, dtype=torch.float64)
    images[:, 0, :CLASSES] = logits
    images[:, 1, :5] = torch.ones(len(logits), 5) if projection is None else projection
    return images.view(-1, 3, SIDE, SIDE)


def rolled(row: list[float]) -> Tensor:
    """A row of logits and its rotations: every class is said equally often."""
    return torch.stack(
        [torch.tensor(row, dtype=torch.float64).roll(shift) for shift in range(len(row))]
    )


def batch_of(weak: Tensor, strong: Tensor, index: list[int], x: Tensor | None = None) -> Batch:
    labels = LABELS[index]
    x = image(3.0 * F.one_hot(labels, CLASSES).double()) if x is None else x
    return Batch(
        x, labels, torch.tensor(index), {"weak": weak, "strong": strong}, torch.arange(len(weak))
    )


def step(algorithm: Any, batch: Batch, clock: Clock = LATE, scale: float = 1.0) -> StepOutput:
    network = Plain(scale)
    output: StepOutput = algorithm.step(Networks(network, network), batch, clock)
    return output


def term(output: StepOutput, name: str) -> float:
    return float(output.metrics[name].detach())


# FreeMatch ----------------------------------------------------------------------------------------


def test_freematch_thresholds_start_at_one_over_the_classes() -> None:
    algorithm: Any = make_algorithm("freematch", NoRefiner())
    assert float(algorithm.threshold) == 1 / CLASSES
    assert algorithm.class_thresholds().tolist() == [1 / CLASSES] * CLASSES


def test_the_largest_freematch_threshold_is_the_global_one() -> None:
    algorithm: Any = make_algorithm("freematch", NoRefiner(), momentum=0.7)
    networks = pair()
    for number, batch in enumerate(stream(6)):
        learn(networks, algorithm.step(networks, batch, Clock(number, 10, 2)).loss)
        thresholds = algorithm.class_thresholds()
        assert float(thresholds.max()) == pytest.approx(float(algorithm.threshold), rel=1e-6)
        assert float(thresholds.min()) < 0.95 * float(algorithm.threshold)


def test_freematch_without_a_confident_image_has_no_fairness_term() -> None:
    algorithm: Any = make_algorithm("freematch", NoRefiner(), clip=(0.99, 1.0)).double()
    weak = rolled([1.0, 0.0, 0.0, 0.0])
    output = step(algorithm, batch_of(image(weak), image(weak), [0, 7]))
    assert output.pseudo is not None
    assert not output.pseudo.mask.any()
    assert term(output, "loss_f") == 0
    assert term(output, "loss_u") == 0
    torch.testing.assert_close(output.loss, output.metrics["loss_x"])
    logits = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    algorithm._fairness(logits, torch.zeros(2, dtype=torch.bool)).backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros(2, 4)), "no NaN of an empty mean"


# ReMixMatch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "expected"), [(0, 0.0), (2, 0.2), (5, 0.5), (9, 0.9), (10, 1.0), (11, 1.0), (639, 1.0)]
)
def test_the_remixmatch_warm_up_is_linear_and_over_after_a_64th_of_training(
    at: int, expected: float
) -> None:
    algorithm = make_algorithm("remixmatch", NoRefiner()).double()
    output = seeded(0, algorithm.step, pair(), stream(1)[0], Clock(at, 640, 64))
    ramped = float(output.loss.detach()) - term(output, "loss_x") - 0.5 * term(output, "loss_rot")
    ramp = ramped / (1.5 * term(output, "loss_u") + 0.5 * term(output, "loss_pre"))
    assert ramp == pytest.approx(expected, abs=1e-9)


def test_mixup_keeps_most_of_every_image_and_mixes_its_label_alike() -> None:
    labels = torch.eye(6, dtype=torch.float64)
    images = labels.view(6, 6, 1, 1)
    weights = []
    for seed in range(20):
        mixed, mixed_labels = seeded(seed, mixup, images, labels, 0.75)
        assert torch.equal(mixed.view(6, 6), mixed_labels)
        torch.testing.assert_close(mixed_labels.sum(dim=0), torch.ones(6, dtype=torch.float64))
        weights.append(float(mixed_labels.diagonal().min()))
    assert min(weights) >= 0.5 - 1e-6
    assert len(set(weights)) > 10


def test_frozen_statistics_normalise_by_the_batch_and_forget_it() -> None:
    network = pair().student
    before = {name: value.clone() for name, value in network.state_dict().items()}
    images = stream(1)[0].x
    with frozen_statistics(network):
        frozen = network(images).logits
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(frozen, network(images).logits)
    assert not torch.equal(
        network.state_dict()["backbone.2.running_mean"], before["backbone.2.running_mean"]
    )


# SimMatch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", [EARLY, LATE], ids=["epoch 0", "later"])
def test_simmatch_that_trusts_the_classifier_alone_is_fixmatch_with_soft_labels(
    clock: Clock,
) -> None:
    weak = rolled([2.0, 0.0, -1.0, 0.5])
    # mean uniform, so that alignment is at its fixed point; half of it unsure
    weak = torch.cat([weak, 0.3 * weak])
    batch = batch_of(image(weak), image(weak.flip(1)), [0, 7, 12])
    simmatch = make_algorithm(
        "simmatch", NoRefiner(), smoothing=1.0, instance_weight=0.0, threshold=0.5
    ).double()
    fixmatch = make_algorithm(
        "fixmatch", NoRefiner(), hard_labels=False, temperature=1.0, threshold=0.5
    ).double()
    step(simmatch, batch, EARLY)  # fills the bank
    one, other = step(simmatch, batch, clock), step(fixmatch, batch, clock)
    assert one.pseudo is not None
    assert other.pseudo is not None
    assert one.pseudo.mask.tolist() == other.pseudo.mask.tolist() == [True] * 4 + [False] * 4
    torch.testing.assert_close(one.pseudo.probs, other.pseudo.probs, rtol=0, atol=1e-12)
    torch.testing.assert_close(one.loss, other.loss, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bank", ["momentum", "teacher", "full_teacher"])
def test_written_bank_rows_are_unit_vectors(bank: str) -> None:
    algorithm: Any = make_algorithm("simmatch", NoRefiner(), bank=bank).double()
    networks = pair()
    for number, batch in enumerate(stream(4)):
        learn(networks, algorithm.step(networks, batch, Clock(number, 10, 2)).loss)
    visited = algorithm.visited
    assert bool(visited.any())
    lengths = algorithm.bank[visited].norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=0, atol=1e-12)


def test_images_not_seen_yet_have_no_say_in_simmatch() -> None:
    weak = rolled([2.0, 0.0, -1.0, 0.5])
    only_ones = [7, 8]  # of class 1; slots of class 0 exist and are empty
    algorithm = make_algorithm("simmatch", NoRefiner(), smoothing=0.0).double()
    batch = batch_of(image(weak), image(weak), only_ones)
    step(algorithm, batch, EARLY)
    output = step(algorithm, batch)
    assert output.pseudo is not None
    probs = output.pseudo.probs
    torch.testing.assert_close(probs.sum(dim=1), torch.ones(4, dtype=torch.float64))
    assert float(probs[:, 1].min()) >= 1 - 1e-12
    assert bool(output.loss.isfinite())


def test_the_simmatch_instance_target_sums_to_one() -> None:
    """With a classifier that knows nothing and equal views, L_in is the entropy of the
    similarities.
    """
    generator = torch.Generator().manual_seed(0)
    looks = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    algorithm: Any = make_algorithm("simmatch", NoRefiner(), temperature=0.5).double()
    x = image(torch.zeros(3, CLASSES), torch.randn(3, 5, generator=generator, dtype=torch.float64))
    views = image(torch.zeros(6, CLASSES), looks)
    batch = batch_of(views, views, [0, 7, 15], x)
    assert term(step(algorithm, batch, EARLY), "loss_in") == 0
    scores = F.normalize(looks, dim=1) @ algorithm.bank[[0, 7, 15]].clone().mT / 0.5
    s = torch.softmax(scores, dim=1)
    entropy = -(s * s.log()).sum(dim=1).mean()
    torch.testing.assert_close(
        step(algorithm, batch).metrics["loss_in"], entropy, rtol=0, atol=1e-12
    )


def test_simmatch_does_not_read_its_bank_in_epoch_0() -> None:
    weak = rolled([2.0, 0.0, -1.0, 0.5])
    batch = batch_of(image(weak), image(weak), [0, 7])
    losses: dict[bool, list[float]] = {False: [], True: []}
    for other_bank in (False, True):
        algorithm: Any = make_algorithm("simmatch", NoRefiner()).double()
        for clock in (EARLY, LATE):
            if other_bank:
                algorithm.visited.fill_(True)
            losses[other_bank].append(float(step(algorithm, batch, clock).loss.detach()))
    assert losses[False][0] == losses[True][0]
    assert losses[False][1] != losses[True][1]


def test_simmatch_with_nothing_in_its_bank_yet_stays_finite() -> None:
    """As when a run starts from weights but without a memory, past epoch 0."""
    algorithm = make_algorithm("simmatch", NoRefiner(), projection=5)
    weak = image(rolled([4.0] + [0.0] * (CLASSES - 1)))
    output = step(algorithm, batch_of(weak, weak, [0, 1]))
    assert output.loss.isfinite()
    assert term(output, "loss_in") == 0


def test_a_image_of_classes_the_simmatch_bank_has_not_seen_has_no_instance_loss() -> None:
    """Its target is 0 / 0 when float32 rounds the probability of every class in the bank to
    nothing.
    """
    algorithm = make_algorithm("simmatch", NoRefiner(), projection=5)
    first = int(LABELS[0])
    same = [position for position, label in enumerate(LABELS.tolist()) if label == first][:1]
    sure = torch.zeros(CLASSES, dtype=torch.float64)
    sure[(first + 1) % CLASSES] = 2000.0  # beyond what float64 can tell from certainty
    weak = image(sure.expand(4, -1))
    step(algorithm, batch_of(weak, weak, same))
    output = step(algorithm, batch_of(weak, weak, same))
    assert output.loss.isfinite()
    assert term(output, "loss_in") == 0


def test_the_first_simmatch_reads_weak_views_through_the_teacher() -> None:
    batch = stream(1)[0]
    for bank in ("teacher", "full_teacher"):
        answers = []
        for seed in (0, 20):
            networks = pair()
            student = pair(seed).student
            algorithm = make_algorithm("simmatch", NoRefiner(), bank=bank).double()
            output = algorithm.step(Networks(student, networks.teacher), batch, EARLY)
            assert output.pseudo is not None
            answers.append(output.pseudo.probs)
        assert torch.equal(*answers) == (bank == "full_teacher"), "the student has no part in it"


def test_of_a_image_twice_in_a_batch_the_last_is_written() -> None:
    assert last_of_each(torch.tensor([3, 1, 3, 2, 1])).tolist() == [2, 4, 2, 3, 4]
    looks = torch.eye(5, dtype=torch.float64)[:3]
    views = image(rolled([1.0, 0.0, 0.0, 0.0]))
    batch = batch_of(views, views, [4, 4, 9], image(torch.zeros(3, CLASSES), looks))
    algorithm: Any = make_algorithm("simmatch", NoRefiner()).double()
    assert isinstance(algorithm, SimMatch)
    start = algorithm.bank[4].clone()
    step(algorithm, batch, EARLY)
    torch.testing.assert_close(algorithm.bank[4], F.normalize(0.7 * start + 0.3 * looks[1], dim=0))
    assert algorithm.bank_labels[[4, 9]].tolist() == [0, 1]
    assert algorithm.visited.sum() == 2


# CoMatch ------------------------------------------------------------------------------------------


def test_rows_of_the_comatch_graph_sum_to_one_and_join_every_image_to_itself(
    generator: torch.Generator,
) -> None:
    probs = torch.softmax(
        3 * torch.randn(40, CLASSES, generator=generator, dtype=torch.float64), dim=1
    )
    graph = pseudo_label_graph(probs, 0.8)
    torch.testing.assert_close(graph.sum(dim=1), torch.ones(40, dtype=torch.float64))
    assert bool((graph.diagonal() > 0).all())
    assert torch.equal(graph.diagonal(), graph.max(dim=1).values), (
        "nothing agrees with an image more than itself"
    )
    agreement = probs @ probs.mT
    others = ~torch.eye(40, dtype=torch.bool)
    assert torch.equal(graph[others] > 0, agreement[others] >= 0.8)
    assert 0 < int((agreement[others] >= 0.8).sum()) < 40 * 39


def test_comatch_asks_its_memory_once_it_is_full() -> None:
    algorithm: Any = make_algorithm("comatch", NoRefiner(), queue_batches=3, smoothing=0.0)
    networks = pair(dtype=torch.float32)
    for number, batch in enumerate(stream(5, dtype=torch.float32)):
        full = int(algorithm.pushed) >= len(algorithm.features)
        before = algorithm.probs.clone()
        output: StepOutput = algorithm.step(networks, batch, Clock(number, 10, 10))
        assert output.pseudo is not None
        assert full == (number >= 3)
        changed = (algorithm.probs != before).any(dim=1)
        written = algorithm.probs[changed][: len(batch.views["weak"])]
        assert torch.allclose(written, output.pseudo.probs) == (not full), (
            "p0 goes in, not what the memory made of it"
        )
