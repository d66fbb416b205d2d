"""NP-Match, step by step against a slow reading of its equations."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from semigpc.addons import AddOn, AddOnConfig, ExtraLoss, Step
from semigpc.algorithms import NPMatch, NPMatchConfig
from semigpc.models.neural_process import NeuralProcess
from semigpc.training import last_result, train
from semigpc.training.presets import RECIPES
from semigpc.types import Batch, Clock, ModelOutput, Networks, StepOutput, Task
from tests.addons.test_outside import ORDER
from tests.algorithms import references_npmatch as slow
from tests.algorithms.references_npmatch import CONFIG, TASK, Bold, Plain, T
from tests.algorithms.shadowing import close, same_gradients
from tests.algorithms.tiny import CLASSES, COUNTS, LABELED, UNLABELED, learn, seeded, stream


def networks(seed: int = 0) -> Networks:
    return Networks(slow.Network(seed), slow.Network(seed + 1))


def process(pair: Networks) -> NeuralProcess:
    found = pair.student.get_submodule("heads.neural_process")
    assert isinstance(found, NeuralProcess)
    return found


def take(algorithm: NPMatch, pair: Networks, batch: Batch, step: int) -> StepOutput:
    return seeded(step, algorithm.step, pair, batch, Clock(step, 20, 4))


@pytest.mark.parametrize("kind", [Plain, Bold])
def test_steps_are_those_of_the_equations(kind: type[Plain]) -> None:
    algorithm, reference = NPMatch(CONFIG, kind(), TASK).double(), slow.SlowNPMatch(CONFIG, kind())
    algorithm.last_class.copy_(torch.tensor(slow.LAST))
    pair, shadow, passed = networks(), networks(), 0
    for step, batch in enumerate(stream(4)):
        output = take(algorithm, pair, batch, step)
        loss, terms, probs, believed = seeded(step, reference.step, shadow, batch)
        for name, term in terms.items():
            close(output.metrics[name], term, f"{name} at step {step}")
        close(output.loss, loss, f"loss at step {step}")
        assert output.pseudo is not None
        close(output.pseudo.probs, torch.stack(probs), f"probs at step {step}", 1e-9)
        assert output.pseudo.mask.tolist() == believed
        assert algorithm.last_class.tolist() == reference.last
        same_gradients(learn(pair, output.loss), learn(shadow, loss), f"step {step}")
        made = process(pair)
        for name in ("contexts", "latents"):
            mean, rows = getattr(made, name).mean(), getattr(reference, name)
            torch.testing.assert_close(mean, slow.average(rows), rtol=0, atol=1e-9)
        passed += sum(believed)
    assert passed > 0
    assert reference.unsure > 0, "some are stopped by a class threshold"
    assert reference.uncertain > 0, "and some by their entropy"
    assert reference.last != list(slow.LAST)
    assert int(process(pair).contexts.written) > slow.ROWS


def test_a_image_that_stands_twice_in_a_batch_keeps_its_last_class() -> None:
    algorithm = NPMatch(NPMatchConfig(threshold=0.6), Plain(), TASK)
    probs = torch.eye(4)
    algorithm._select(probs, probs.amax(dim=1), torch.zeros(4), torch.tensor([5, 5, 5, 0]))
    assert algorithm.last_class[:6].tolist() == [3, -1, -1, -1, -1, 2]


def test_it_answers_by_the_process_and_the_linear_classifier_learns_nothing() -> None:
    algorithm, pair, batch = NPMatch(CONFIG, Plain(), TASK), networks(), stream(1)[0]
    gradients = learn(pair, take(algorithm, pair, batch, 0).loss)
    assert float(gradients["classifier.weight"].abs().max()) == 0
    for name, value in gradients.items():
        assert float(value.abs().max()) > 0 or "heads" not in name or not name.endswith("weight")
    output = pair.teacher.eval()(batch.x)
    answer = algorithm.answer(output)
    assert torch.equal(answer, output.heads["neural_process"])
    assert torch.equal(algorithm.answer(pair.teacher(batch.x)), answer), "the same every time"
    torch.testing.assert_close(answer.exp().sum(dim=1), torch.ones(LABELED, dtype=torch.float64))


class Replacing(Plain):
    """A refiner that is the classifier."""

    def classify(self, output: ModelOutput, index: Tensor | None = None) -> ModelOutput:
        return output._replace(logits=output.features[:, :CLASSES])


def test_a_refiner_that_is_the_classifier_is_learnt_from_in_the_place_of_the_samples() -> None:
    algorithm, pair, batch = NPMatch(CONFIG, Replacing(), TASK), networks(), stream(1)[0]
    features = pair.student(batch.x).features
    expected = nn.functional.cross_entropy(features[:, :CLASSES], batch.y)
    torch.testing.assert_close(take(algorithm, pair, batch, 0).metrics["loss_x"], expected)


class Meddling(AddOn):
    """Changes something at each point, and writes down the order."""

    learns = True

    def __init__(self) -> None:
        super().__init__(AddOnConfig(), TASK)
        self.asked: list[str] = []

    def weak(self, step: Step, output: ModelOutput) -> ModelOutput:
        self.asked.append("weak")
        torch.testing.assert_close(
            output.logits.exp().sum(dim=1), torch.ones(UNLABELED, dtype=torch.float64)
        )
        return output._replace(logits=output.logits.roll(1, dims=1))

    def opinion(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        self.asked.append("opinion")
        torch.testing.assert_close(probs, torch.softmax(output.logits, dim=1))
        return nn.functional.one_hot(probs.argmax(dim=1), CLASSES).to(probs)

    def targets(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        self.asked.append("targets")
        assert bool(((probs == 0) | (probs == 1)).all())
        return nn.functional.one_hot(torch.arange(UNLABELED) % CLASSES, CLASSES).to(probs)

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        self.asked.append("labeled_loss")
        assert torch.equal(targets.view(T, LABELED), step.batch.y.expand(T, LABELED))
        return 2 * super().labeled_loss(step, logits, targets)

    def unlabeled_loss(
        self, step: Step, logits: Tensor, targets: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        self.asked.append("unlabeled_loss")
        expected = (torch.arange(UNLABELED) % CLASSES).expand(T, UNLABELED)
        assert torch.equal(targets.view(T, UNLABELED), expected)
        assert mask is not None
        assert mask.all()
        return logits.new_tensor(5.0)

    def extra_loss(
        self, step: Step, x: ModelOutput, weak: ModelOutput, strong: ModelOutput
    ) -> ExtraLoss:
        self.asked.append("extra_loss")
        assert x.logits.requires_grad
        assert strong.logits.shape == weak.logits.shape == (UNLABELED, CLASSES)
        return ExtraLoss(x.logits.new_tensor(7.0), {"extra": x.logits.new_tensor(7.0)})


def test_an_add_on_is_asked_in_order_and_heard() -> None:
    addon = Meddling()
    algorithm, plain = NPMatch(CONFIG, Plain(), TASK, addon), NPMatch(CONFIG, Plain(), TASK)
    output, bare = (take(made, networks(), stream(1)[0], 0) for made in (algorithm, plain))
    assert addon.asked == ORDER
    assert output.pseudo is not None
    assert output.pseudo.probs.argmax(dim=1).tolist() == [b % CLASSES for b in range(UNLABELED)]
    torch.testing.assert_close(output.metrics["loss_x"], 2 * bare.metrics["loss_x"])
    parts = output.metrics["loss_x"] + 1.3 * 5 + 0.7 * output.metrics["loss_d"] + 7
    torch.testing.assert_close(output.loss, parts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 1.5}, r"threshold must lie in \[0, 1\]; got 1\.5"),
        ({"entropy": 0.0}, r"entropy must be positive; got 0\.0"),
        ({"divergence_weight": -1.0}, r"divergence_weight must not be negative; got -1\.0"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NPMatchConfig(**options)


def test_a_network_without_a_process_and_a_task_without_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"n_unlabeled must be at least 1; got 0"):
        NPMatch(CONFIG, Plain(), Task(torch.tensor(COUNTS), LABELED, UNLABELED))
    pair = networks()
    del pair.student.heads["neural_process"]  # type: ignore[operator, union-attr]
    with pytest.raises(ValueError, match=r"a head 'neural_process'; this one has none\. Build it"):
        NPMatch(CONFIG, Plain(), TASK).step(pair, stream(1)[0], Clock(0, 20, 4))


@pytest.mark.slow
def test_it_learns_long_tailed_digits(tmp_path: Path) -> None:
    settings = ["steps=60", "ema=0.9", "eval_steps=60", "checkpoint_steps=60"]
    experiment = RECIPES["digits"](algorithm="npmatch", refiner="none", seed=0)
    short = experiment.override([f"train.{setting}" for setting in settings])
    assert last_result(train(short, tmp_path / "run"))["top1"] > 0.4, "ten classes"
