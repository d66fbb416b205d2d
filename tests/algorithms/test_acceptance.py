"""What each algorithm promises in so many words (algorithms sections 11 and 12), on images that say
their own logits; and masks from a refiner's confidence, in every algorithm.
"""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.algorithms import ALGORITHMS
from semigpc.losses import soft_cross_entropy
from semigpc.refiners import NoRefiner
from semigpc.types import Batch, Clock, ModelOutput, Networks, StepOutput
from tests.algorithms import tiny
from tests.algorithms.tiny import CLASSES, LABELS, SIDE, UNLABELED, make_algorithm, pair, stream
from tests.refiners.outputs import paper_scales

LATE = Clock(step=50, total_steps=100, epoch_steps=10)
EARLY = Clock(step=0, total_steps=100, epoch_steps=10)
KINDS = ("agreement", "max_softmax", "variance", "expected")
MASKED = [
    name
    for name, entry in ALGORITHMS.items()
    if entry.config().has_threshold or "threshold" in entry.config.__dataclass_fields__
]
OPTIONS: dict[str, dict[str, Any]] = {name: {"threshold": 0.6} for name in MASKED}
OPTIONS["comatch"] |= {"queue_batches": 2}
OPTIONS["remixmatch"] |= {"warmup": 0.0, "rotation_weight": 0.0}
OPTIONS["freematch"] = {"momentum": 0.75}


class Plain(nn.Module):
    """Reads logits from an image's first channel, and looks alike in every image."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, images: Tensor) -> ModelOutput:
        logits = self.scale * images[:, 0].flatten(1)[:, :CLASSES]
        projection = F.normalize(torch.ones(len(images), 5, dtype=torch.float64), dim=1)
        return ModelOutput(logits, logits, {"projection": projection})


def image(logits: Tensor) -> Tensor:
    """Images (M, 3, SIDE, SIDE) that say these logits (M, C)."""
    images = torch.zeros(len(logits), 3, SIDE * SIDE, dtype=torch.float64)
    images[:, 0, :CLASSES] = logits
    return images.view(-1, 3, SIDE, SIDE)


def rolled(row: list[float]) -> Tensor:
    """A row of logits and its rotations: every class is said equally often."""
    logits = torch.tensor(row, dtype=torch.float64)
    return torch.stack([logits.roll(shift) for shift in range(len(row))])


def batch_of(weak: Tensor, strong: Tensor, index: list[int]) -> Batch:
    x = image(3.0 * F.one_hot(LABELS[index], CLASSES).double())
    views = {"weak": weak, "strong": strong}
    return Batch(x, LABELS[index], torch.tensor(index), views, torch.arange(len(weak)))


def step(algorithm: Any, batch: Batch, clock: Clock = LATE) -> StepOutput:
    network = Plain()
    output: StepOutput = algorithm.step(Networks(network, network), batch, clock)
    return output


def first_step(algorithm: Any, seed: int = 0) -> StepOutput:
    """The first step on the stream's first batch, by tiny networks."""
    output: StepOutput = tiny.seeded(seed, algorithm.step, pair(), stream(1)[0], Clock(0, 20, 2))
    assert output.pseudo is not None
    return output


def term(output: StepOutput, name: str) -> float:
    return float(output.metrics[name].detach())


# FreeMatch ----------------------------------------------------------------------------------------


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
    output = tiny.seeded(0, algorithm.step, pair(), stream(1)[0], Clock(at, 640, 64))
    ramped = float(output.loss.detach()) - term(output, "loss_x") - 0.5 * term(output, "loss_rot")
    ramp = ramped / (1.5 * term(output, "loss_u") + 0.5 * term(output, "loss_pre"))
    assert ramp == pytest.approx(expected, abs=1e-9)


# SimMatch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", [EARLY, LATE], ids=["epoch 0", "later"])
def test_simmatch_that_trusts_the_classifier_alone_is_fixmatch_with_soft_labels(
    clock: Clock,
) -> None:
    weak = rolled([2.0, 0.0, -1.0, 0.5])
    # mean uniform, so that alignment is at its fixed point; half of it unsure
    weak = torch.cat([weak, 0.3 * weak])
    batch = batch_of(image(weak), image(weak.flip(1)), [0, 7, 12])
    trusting: dict[str, Any] = {"smoothing": 1.0, "instance_weight": 0.0, "threshold": 0.5}
    soft: dict[str, Any] = {"hard_labels": False, "temperature": 1.0, "threshold": 0.5}
    simmatch = make_algorithm("simmatch", NoRefiner(), **trusting).double()
    fixmatch = make_algorithm("fixmatch", NoRefiner(), **soft).double()
    step(simmatch, batch, EARLY)  # fills the bank
    one, other = step(simmatch, batch, clock), step(fixmatch, batch, clock)
    assert one.pseudo is not None
    assert other.pseudo is not None
    assert one.pseudo.mask.tolist() == other.pseudo.mask.tolist() == [True] * 4 + [False] * 4
    torch.testing.assert_close(one.pseudo.probs, other.pseudo.probs, rtol=0, atol=1e-12)
    torch.testing.assert_close(one.loss, other.loss, rtol=0, atol=1e-12)


def test_simmatch_with_nothing_in_its_bank_yet_stays_finite() -> None:
    """As when a run starts from weights but without a memory, past epoch 0."""
    algorithm = make_algorithm("simmatch", NoRefiner(), projection=5)
    weak = image(rolled([4.0] + [0.0] * (CLASSES - 1)))
    output = step(algorithm, batch_of(weak, weak, [0, 1]))
    assert output.loss.isfinite()
    assert term(output, "loss_in") == 0


def test_a_image_of_classes_the_simmatch_bank_has_not_seen_has_no_instance_loss() -> None:
    """Its target is 0 / 0 when rounding takes the probability of every class in the bank away."""
    algorithm = make_algorithm("simmatch", NoRefiner(), projection=5)
    sure = torch.zeros(CLASSES, dtype=torch.float64)
    sure[int(LABELS[0]) + 1] = 2000.0  # beyond what float64 can tell from certainty
    weak = image(sure.expand(4, -1))
    step(algorithm, batch_of(weak, weak, [0]))
    output = step(algorithm, batch_of(weak, weak, [0]))
    assert output.loss.isfinite()
    assert term(output, "loss_in") == 0


# Confidence ---------------------------------------------------------------------------------------


class Vouching(NoRefiner):
    """As sure as it is told to be."""

    def __init__(self, confidence: list[float]) -> None:
        super().__init__()
        self.told = torch.tensor(confidence, dtype=torch.float64)
        self.asked: list[Tensor] = []

    def confidence(self, output: ModelOutput, probs: Tensor) -> Tensor:
        assert len(output.features) == len(probs) == len(self.told)
        assert not probs.requires_grad
        self.asked.append(probs)
        return self.told


@pytest.mark.parametrize("name", ["fixmatch", "simmatch", "comatch", "remixmatch"])
def test_the_mask_is_what_the_refiner_is_sure_enough_of(name: str) -> None:
    told = [0.6, 0.5999, 0.9, 0.0, 1.0, 0.61, 0.2, 0.3, 0.7, 0.1]
    refiner = Vouching(told)
    pseudo: Any = first_step(make_algorithm(name, refiner, **OPTIONS[name]).double()).pseudo
    assert pseudo.mask.tolist() == [value >= 0.6 for value in told], "the threshold is enough"
    (asked,) = refiner.asked  # about the finished label
    assert torch.equal(asked.argmax(dim=1), pseudo.probs.argmax(dim=1))


def test_freematch_thresholds_follow_the_confidence_and_not_the_probability() -> None:
    # every class as likely: all four thresholds are the global one
    weak = rolled([2.0, 0.0, 0.0, 0.0])
    refiner = Vouching([0.1, 0.3, 0.5, 0.7])
    algorithm: Any = make_algorithm("freematch", refiner, momentum=0.5).double()
    output = step(algorithm, batch_of(image(weak), image(weak), [0, 7]))
    assert float(algorithm.threshold) == pytest.approx(0.5 * 0.25 + 0.5 * 0.4, abs=1e-12)
    assert output.pseudo is not None
    assert output.pseudo.mask.tolist() == [False, False, True, True]
    assert float(output.metrics["threshold"]) == pytest.approx(0.325)


def test_remixmatch_hears_nothing_of_what_is_masked_mixed_or_not() -> None:
    """L is linear in the labels: with a mask it is what mixed labels give in which the masked ones
    are rows of zeros.
    """
    options = OPTIONS["remixmatch"]
    output, deaf = (
        first_step(make_algorithm("remixmatch", Vouching(told), **options).double(), seed=3)
        for told in ([1.0] * 4 + [0.0] * 6, [0.0] * 10)
    )
    assert output.pseudo is not None
    targets = output.pseudo.probs
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(UNLABELED, dtype=torch.float64))
    network = pair().student  # as it was: batch normalisation uses the batch in any case
    strong = network(stream(1)[0].views["strong"]).logits
    rows = -(targets * F.log_softmax(strong, dim=1)).sum(dim=1)
    torch.testing.assert_close(output.metrics["loss_pre"], rows[:4].sum() / UNLABELED)
    assert term(deaf, "loss_pre") == 0
    assert term(deaf, "loss_u") < term(output, "loss_u")


def test_remixmatch_without_a_threshold_uses_all_but_what_has_no_confidence() -> None:
    told = [0.001] * (UNLABELED - 2) + [0.0] * 2
    output = first_step(make_algorithm("remixmatch", Vouching(told)).double())
    pseudo: Any = output.pseudo
    assert pseudo.mask.tolist() == [True] * (UNLABELED - 2) + [False] * 2
    strong = pair().student(stream(1)[0].views["strong"]).logits
    expected = soft_cross_entropy(strong, pseudo.probs * pseudo.mask.unsqueeze(1))
    torch.testing.assert_close(output.metrics["loss_pre"], expected)


@pytest.mark.parametrize(("name", "kind"), list(itertools.product(MASKED, KINDS)))
def test_every_algorithm_masks_by_every_confidence_of_a_gp(name: str, kind: str) -> None:
    options = OPTIONS[name] if name == "freematch" else {**OPTIONS[name], "threshold": 0.4}
    memory = {"buffer_size": 12, "warmup_steps": 1} | paper_scales(CLASSES)
    refiner = tiny.make_refiner("gp", **memory | {"confidence": kind})
    algorithm: Any = make_algorithm(name, refiner, **options).double()
    networks, masks = pair(), []
    for number, batch in enumerate(stream(8)):
        output = tiny.seeded(number, algorithm.step, networks, batch, Clock(number, 20, 2))
        assert output.loss.isfinite()
        assert output.pseudo is not None
        masks.append(output.pseudo.mask)
        tiny.learn(networks, output.loss)
    assert 0 < int(torch.cat(masks[1:]).sum()) < 7 * UNLABELED, "some pass and some do not"


def test_a_image_unlike_all_labelled_ones_is_masked_by_variance_whatever_the_network_says() -> None:
    """By hand: sigma^2 = 0.1, one labelled image a class at unit features e_c, so that 1 / 1.1 is
    explained at each.
    """
    options: dict[str, Any] = {"warmup_steps": 0, "push": "before", "blend": 0.0}
    options |= {"confidence": "variance", "buffer_size": CLASSES}
    refiner: Any = tiny.make_refiner("gp", CLASSES, **options)
    algorithm = make_algorithm("fixmatch", refiner, threshold=0.9).double()
    index = [LABELS.tolist().index(c) for c in range(CLASSES)]
    like = 3.0 * torch.eye(CLASSES, dtype=torch.float64)
    # sure of class 1 or 2, and far from both
    unlike = torch.tensor([[-9.0, 1.0, 1.0, -9.0]], dtype=torch.float64)
    weak = image(torch.cat([like, unlike]))
    output = step(algorithm, batch_of(weak, weak, index))
    assert output.pseudo is not None
    assert output.pseudo.mask.tolist() == [True] * CLASSES + [False]
    explained = refiner.belief(ModelOutput(like, like, {})).explained
    assert explained.tolist() == pytest.approx([1 / 1.1] * CLASSES, abs=1e-6)
