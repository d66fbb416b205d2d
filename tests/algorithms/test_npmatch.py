"""NP-Match, step by step against a slow reading of its equations, and what it promises beside them."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semigpc.addons import AddOn, AddOnConfig, ExtraLoss, Step
from semigpc.algorithms import NPMatch, NPMatchConfig
from semigpc.models.neural_process import Memory, NeuralProcess
from semigpc.recipes import RECIPES
from semigpc.refiners import NoRefiner
from semigpc.training import train
from semigpc.types import Batch, Clock, ModelOutput, Networks, StepOutput, Task
from tests.algorithms.tiny import CLASSES, COUNTS, LABELED, SIDE, UNLABELED, learn, seeded, stream

D, L, T = 9, 2, 10
ROWS = 12  # a memory that three steps of five labelled pictures go around
TASK = Task(torch.tensor(COUNTS), LABELED, UNLABELED, n_unlabeled=UNLABELED + 3, n_features=D)
LAST = (0, 0, 0, 0, 1, 2, 3, 0, 0, 1, 1, -1, -1)  # what some pictures were last taken for
CONFIG = NPMatchConfig(threshold=0.7, entropy=1.0, unlabeled_weight=1.3, divergence_weight=0.7)


class Network(nn.Module):
    """tanh(W x + b), a classifier nobody trains, and a process with a short memory."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, D), nn.Tanh())
        self.classifier = nn.Linear(D, CLASSES)
        process = NeuralProcess(D, CLASSES)
        process.contexts, process.latents = Memory(ROWS, L), Memory(ROWS, L)
        nn.init.normal_(process.out.weight, std=8.0)  # sure of something
        self.heads = nn.ModuleDict({"neural_process": process})
        self.double()

    def forward(self, pictures: Tensor) -> ModelOutput:
        features = self.backbone(pictures)
        return ModelOutput(self.classifier(features), features, {name: head(features) for name, head in self.heads.items()})


def leaky(v: Tensor) -> Tensor:
    return torch.stack([value if value > 0 else 0.1 * value for value in v])


def softmax(z: Tensor) -> Tensor:
    return torch.exp(z) / torch.exp(z).sum()


def average(values: list[Tensor]) -> Tensor:
    return torch.stack(values).sum(dim=0) / len(values)


def entropy(p: Tensor) -> float:
    return -sum(float(value) * math.log(float(value)) for value in p)


class SlowNPMatch:
    """One step from the equations: loops over pictures, samples and classes; memories are lists."""

    def __init__(self, config: NPMatchConfig, refiner: Any) -> None:
        self.config, self.refiner = config, refiner
        self.contexts: list[Tensor] = []
        self.latents: list[Tensor] = []
        self.last = list(LAST)
        self.unsure = self.uncertain = 0

    def encode(self, name: str, h: Tensor, y: int) -> Tensor:
        classes = torch.tensor([float(c == y) for c in range(CLASSES)], dtype=torch.float64)
        return leaky(self.layer(f"{name}.2", leaky(self.layer(f"{name}.0", torch.cat([h, classes])))))

    def layer(self, name: str, v: Tensor) -> Tensor:
        return self.weights[f"{name}.weight"] @ v + self.weights[f"{name}.bias"]

    def gaussian(self, e: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.layer("location.2", leaky(self.layer("location.0", e)))
        return mean, 0.1 + 0.9 * torch.log(1 + torch.exp(self.layer("spread.2", leaky(self.layer("spread.0", e)))))

    def decode(self, h: Tensor, latent: tuple[Tensor, Tensor], r: Tensor, noise: Tensor) -> list[Tensor]:
        """T logits of one picture."""
        answers = []
        for t in range(T):
            z = latent[0] + latent[1] * noise[t]
            answers.append(self.layer("out", leaky(self.layer("hidden", leaky(self.layer("joint", torch.cat([z, h, r])))))))
        return answers

    def thresholds(self) -> list[float]:
        counts = [self.last.count(c) for c in range(-1, CLASSES)]
        betas = [count / max(counts) for count in counts[1:]]
        return [self.config.threshold * beta / (2 - beta) for beta in betas]

    def step(self, networks: Networks, batch: Batch) -> tuple[Tensor, dict[str, Tensor], list[Tensor], list[bool]]:
        self.weights = dict(networks.student.get_submodule("heads.neural_process").named_parameters())
        x, weak, strong = (networks.student(v).features for v in (batch.x, batch.views["weak"], batch.views["strong"]))
        noise = [torch.randn(T, L, dtype=torch.float64) for _ in range(3)]

        nothing = [torch.zeros(L, dtype=torch.float64)]
        latent, r = self.gaussian(average(self.latents or nothing)), average(self.contexts or nothing)
        opinions = []
        for h in weak:
            samples = [softmax(z).detach() for z in self.decode(h, latent, r, noise[0])]
            opinions.append(self.refiner.opinion(average(samples)))
        batch_mean = average(opinions)
        thresholds, labels, believed, probs = self.thresholds(), [], [], []
        for b, p_w in enumerate(opinions):
            p = torch.stack([p_w[c] * (1 / CLASSES + 1e-6) / (batch_mean[c] + 1e-6) for c in range(CLASSES)])
            p = p / p.sum()
            c, sure, certain = int(p.argmax()), self.refiner.trust(p), entropy(p_w) <= self.config.entropy
            self.unsure += certain and sure < thresholds[c]
            self.uncertain += not certain
            labels.append(c)
            probs.append(p)
            believed.append(sure >= thresholds[c] and certain)
            if sure >= self.config.threshold and certain:
                self.last[int(batch.view_index[b])] = c

        pairs = list(zip(x, batch.y.tolist(), strict=True))
        contexts = [self.encode("context_encoder", h, y) for h, y in pairs]
        latents_x = [self.encode("latent_encoder", h, y) for h, y in pairs]
        latents_s = [self.encode("latent_encoder", h, c) for h, c, m in zip(strong, labels, believed, strict=True) if m]
        r, known = average(contexts), self.gaussian(average(latents_x))
        guessed = self.gaussian(average(latents_s or nothing))
        said_x = [self.decode(h, known, r, noise[1]) for h in x]
        said_s = [self.decode(h, guessed, r, noise[2]) for h in strong]
        zero = torch.zeros((), dtype=torch.float64)
        loss_x = average([-torch.log(softmax(z)[y]) for said, (_, y) in zip(said_x, pairs, strict=True) for z in said])
        loss_u = zero
        for said, c, m in zip(said_s, labels, believed, strict=True):
            loss_u = loss_u + float(m) * average([-torch.log(softmax(z)[c]) for z in said]) / len(said_s)
        doubts = [[entropy(average([softmax(z).detach() for z in said])) for said in views] for views in (said_x, said_s)]
        loss_d = zero
        if any(believed):
            guesses = [doubt for doubt, m in zip(doubts[1], believed, strict=True) if m]
            u_c, u_s = sum(doubts[0]) / len(doubts[0]), sum(guesses) / len(guesses)
            loss_d = self.divergence(known, guessed, u_c / (u_c + u_s))
        self.contexts = [*self.contexts, *(e.detach() for e in contexts)][-ROWS:]
        self.latents = [*self.latents, *(e.detach() for e in [*latents_x, *latents_s])][-ROWS:]
        loss = loss_x + self.config.unlabeled_weight * loss_u + self.config.divergence_weight * loss_d
        return loss, {"loss_x": loss_x, "loss_u": loss_u, "loss_d": loss_d}, probs, believed

    @staticmethod
    def divergence(known: tuple[Tensor, Tensor], guessed: tuple[Tensor, Tensor], a: float) -> Tensor:
        """(1 - a) KL(N_c | N_a) + a KL(N_s | N_a)."""
        v = 1 / ((1 - a) / known[1] ** 2 + a / guessed[1] ** 2)
        m = v * ((1 - a) * known[0] / known[1] ** 2 + a * guessed[0] / guessed[1] ** 2)
        total = torch.zeros((), dtype=torch.float64)
        for weight, (mean, sigma) in ((1 - a, known), (a, guessed)):
            for i in range(L):
                ratio = sigma[i] ** 2 / v[i]
                total = total + weight * 0.5 * (ratio + (m[i] - mean[i]) ** 2 / v[i] - 1 - torch.log(ratio))
        return total


class Plain(NoRefiner):
    """Nothing, in both languages."""

    def opinion(self, p: Tensor) -> Tensor:
        return p

    def trust(self, p: Tensor) -> float:
        return float(p.max())


class Bold(Plain):
    """Squares probabilities, and trusts the square root of the largest."""

    def refine(self, site: Any, output: ModelOutput, probs: Tensor) -> Tensor:
        assert site == "semantic"
        assert len(output.features) == len(probs)
        return probs.square() / probs.square().sum(dim=1, keepdim=True)

    def confidence(self, output: ModelOutput, probs: Tensor) -> Tensor:  # noqa: ARG002
        return probs.amax(dim=1).sqrt()

    def opinion(self, p: Tensor) -> Tensor:
        return p**2 / (p**2).sum()

    def trust(self, p: Tensor) -> float:
        return math.sqrt(float(p.max()))


def networks(seed: int = 0) -> Networks:
    return Networks(Network(seed), Network(seed + 1))


def process(pair: Networks) -> NeuralProcess:
    found = pair.student.get_submodule("heads.neural_process")
    assert isinstance(found, NeuralProcess)
    return found


def take(algorithm: NPMatch, pair: Networks, batch: Batch, step: int) -> StepOutput:
    return seeded(step, algorithm.step, pair, batch, Clock(step, 20, 4))


@pytest.mark.parametrize("kind", [Plain, Bold])
def test_steps_are_those_of_the_equations(kind: type[Plain]) -> None:
    algorithm, reference = NPMatch(CONFIG, kind(), TASK).double(), SlowNPMatch(CONFIG, kind())
    algorithm.last_class.copy_(torch.tensor(LAST))
    pair, shadow, passed = networks(), networks(), 0
    for step, batch in enumerate(stream(4)):
        output = take(algorithm, pair, batch, step)
        loss, terms, probs, believed = seeded(step, reference.step, shadow, batch)
        for name, term in terms.items():
            torch.testing.assert_close(output.metrics[name], term, rtol=0, atol=1e-7, msg=f"{name} at step {step}")
        torch.testing.assert_close(output.loss, loss, rtol=0, atol=1e-7)
        assert output.pseudo is not None
        torch.testing.assert_close(output.pseudo.probs, torch.stack(probs), rtol=0, atol=1e-9)
        assert output.pseudo.mask.tolist() == believed
        assert algorithm.last_class.tolist() == reference.last
        gradients, expected = learn(pair, output.loss), learn(shadow, loss)
        for name, value in expected.items():
            torch.testing.assert_close(gradients[name], value, rtol=0, atol=1e-7, msg=f"gradient of {name} at step {step}")
        made = process(pair)
        for memory, rows in ((made.contexts, reference.contexts), (made.latents, reference.latents)):
            torch.testing.assert_close(memory.mean(), average(rows), rtol=0, atol=1e-9)
        passed += sum(believed)
    assert passed > 0
    assert reference.unsure > 0, "some are stopped by a class threshold"
    assert reference.uncertain > 0, "and some by their entropy"
    assert reference.last != list(LAST)
    assert int(process(pair).contexts.written) > ROWS


def test_a_batch_is_judged_by_thresholds_from_before_it_and_the_entropy() -> None:
    algorithm = NPMatch(NPMatchConfig(threshold=0.6, entropy=0.5), Plain(), TASK)
    probs = torch.tensor([[0.7, 0.3, 0, 0], [0.2, 0.8, 0, 0], [0.9, 0.1, 0, 0], [0.0, 0.55, 0.45, 0]])
    doubts, index = torch.tensor([0.5, 0.4, 0.51, 0.1]), torch.tensor([3, 1, 2, 0])
    assert algorithm.class_thresholds().tolist() == [0, 0, 0, 0]
    assert algorithm._select(probs, probs.amax(dim=1), doubts, index).tolist() == [True, True, False, True]
    assert algorithm.last_class[:4].tolist() == [-1, 1, -1, 0], "believed is not yet sure"
    algorithm.last_class.copy_(torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, -1, -1, -1, -1]))
    betas = [1, 3 / 4, 2 / 4, 0]
    torch.testing.assert_close(algorithm.class_thresholds(), torch.tensor([0.6 * b / (2 - b) for b in betas]))
    confidence = torch.tensor([0.59, 0.6 * 0.75 / 1.25 + 1e-6, 0.6, 0.3])
    assert algorithm._select(probs, confidence, doubts, index).tolist() == [False, True, False, False]


def test_a_picture_that_stands_twice_in_a_batch_keeps_its_last_class() -> None:
    algorithm = NPMatch(NPMatchConfig(threshold=0.6), Plain(), TASK)
    probs = torch.eye(4)
    algorithm._select(probs, probs.amax(dim=1), torch.zeros(4), torch.tensor([5, 5, 5, 0]))
    assert algorithm.last_class[:6].tolist() == [3, -1, -1, -1, -1, 2]


def test_a_loaded_state_takes_the_same_next_step_bit_for_bit() -> None:
    algorithm, pair, batches = NPMatch(CONFIG, Plain(), TASK), networks(), stream(5)
    for step, batch in enumerate(batches[:4]):
        learn(pair, take(algorithm, pair, batch, step).loss)
    again, others = NPMatch(CONFIG, Plain(), TASK), networks(seed=5)
    again.load_state_dict(copy.deepcopy(algorithm.state_dict()))
    for network, saved in zip(others, pair, strict=True):
        network.load_state_dict(copy.deepcopy(saved.state_dict()))
    one, two = take(algorithm, pair, batches[4], 4), take(again, others, batches[4], 4)
    assert torch.equal(one.loss, two.loss)
    here, there = learn(pair, one.loss), learn(others, two.loss)
    assert all(torch.equal(here[name], there[name]) for name in here)
    assert torch.equal(algorithm.last_class, again.last_class)


def test_it_answers_by_the_process_and_the_linear_classifier_learns_nothing() -> None:
    algorithm, pair, batch = NPMatch(CONFIG, Plain(), TASK), networks(), stream(1)[0]
    gradients = learn(pair, take(algorithm, pair, batch, 0).loss)
    assert float(gradients["classifier.weight"].abs().max()) == 0
    assert all(float(value.abs().max()) > 0 for name, value in gradients.items() if name.endswith("weight") and "heads" in name)
    output = pair.teacher.eval()(batch.x)
    assert torch.equal(algorithm.answer(output), output.heads["neural_process"])
    assert torch.equal(algorithm.answer(pair.teacher(batch.x)), algorithm.answer(output)), "the same every time"
    torch.testing.assert_close(algorithm.answer(output).exp().sum(dim=1), torch.ones(LABELED, dtype=torch.float64))


class Replacing(Plain):
    """A refiner that is the classifier."""

    def classify(self, output: ModelOutput, index: Tensor | None = None) -> ModelOutput:  # noqa: ARG002
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

    def weak(self, step: Step, output: ModelOutput) -> ModelOutput:  # noqa: ARG002
        self.asked.append("weak")
        torch.testing.assert_close(output.logits.exp().sum(dim=1), torch.ones(UNLABELED, dtype=torch.float64))
        return output._replace(logits=output.logits.roll(1, dims=1))

    def opinion(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:  # noqa: ARG002
        self.asked.append("opinion")
        torch.testing.assert_close(probs, torch.softmax(output.logits, dim=1))
        return nn.functional.one_hot(probs.argmax(dim=1), CLASSES).to(probs)

    def targets(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:  # noqa: ARG002
        self.asked.append("targets")
        assert bool(((probs == 0) | (probs == 1)).all())
        return nn.functional.one_hot(torch.arange(UNLABELED) % CLASSES, CLASSES).to(probs)

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        self.asked.append("labeled_loss")
        assert torch.equal(targets.view(T, LABELED), step.batch.y.expand(T, LABELED))
        return 2 * super().labeled_loss(step, logits, targets)

    def unlabeled_loss(self, step: Step, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        self.asked.append("unlabeled_loss")
        assert torch.equal(targets.view(T, UNLABELED), (torch.arange(UNLABELED) % CLASSES).expand(T, UNLABELED))
        assert mask is not None
        assert mask.all()
        return logits.new_tensor(5.0)

    def extra_loss(self, step: Step, x: ModelOutput, weak: ModelOutput, strong: ModelOutput) -> ExtraLoss:  # noqa: ARG002
        self.asked.append("extra_loss")
        assert x.logits.requires_grad
        assert strong.logits.shape == weak.logits.shape == (UNLABELED, CLASSES)
        return ExtraLoss(x.logits.new_tensor(7.0), {"extra": x.logits.new_tensor(7.0)})


def test_an_add_on_is_asked_in_order_and_heard() -> None:
    addon = Meddling()
    algorithm, plain = NPMatch(CONFIG, Plain(), TASK, addon), NPMatch(CONFIG, Plain(), TASK)
    output, bare = (take(made, networks(), stream(1)[0], 0) for made in (algorithm, plain))
    assert addon.asked == ["weak", "opinion", "targets", "labeled_loss", "unlabeled_loss", "extra_loss"]
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


def test_a_network_without_a_process_and_a_task_without_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match=r"task\.n_unlabeled must be at least 1; got 0\. Say how many there are"):
        NPMatch(CONFIG, Plain(), Task(torch.tensor(COUNTS), LABELED, UNLABELED))
    pair = networks()
    del pair.student.heads["neural_process"]  # type: ignore[operator, union-attr]
    with pytest.raises(ValueError, match=r"needs a network with a head 'neural_process'; this one has none\. Build it"):
        NPMatch(CONFIG, Plain(), TASK).step(pair, stream(1)[0], Clock(0, 20, 4))


def test_it_learns_long_tailed_digits(tmp_path: Path) -> None:
    experiment = RECIPES["digits"](algorithm="npmatch", refiner="none", seed=0)
    short = experiment.override(["train.steps=80", "train.ema=0.9", "train.eval_steps=80", "train.checkpoint_steps=80"])
    assert train(short, tmp_path / "run")["results"]["last"]["top1"] > 0.4, "ten classes"
