"""A small network with a process, and one step of NP-Match from its equations: float64, loops over
images and samples.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from semigpc.algorithms import NPMatchConfig
from semigpc.models.neural_process import ContextMemory, NeuralProcess
from semigpc.refiners import NoRefiner
from semigpc.types import Batch, ModelOutput, Networks, Task
from tests.algorithms.tiny import CLASSES, COUNTS, LABELED, SIDE, UNLABELED

D, L, T = 9, 2, 10
ROWS = 12  # a memory that three steps of five labelled images go around
TASK = Task(torch.tensor(COUNTS), LABELED, UNLABELED, n_unlabeled=UNLABELED + 3, n_features=D)
LAST = (0, 0, 0, 0, 1, 2, 3, 0, 0, 1, 1, -1, -1)  # what some images were last taken for
CONFIG = NPMatchConfig(threshold=0.7, entropy=1.0, unlabeled_weight=1.3, divergence_weight=0.7)


class Network(nn.Module):
    """tanh(W x + b), a classifier nobody trains, and a process with a short memory."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, D), nn.Tanh())
        self.classifier = nn.Linear(D, CLASSES)
        process = NeuralProcess(D, CLASSES)
        process.contexts, process.latents = ContextMemory(ROWS, L), ContextMemory(ROWS, L)
        nn.init.normal_(process.out.weight, std=8.0)  # sure of something
        self.heads = nn.ModuleDict({"neural_process": process})
        self.double()

    def forward(self, images: Tensor) -> ModelOutput:
        features = self.backbone(images)
        heads = {name: head(features) for name, head in self.heads.items()}
        return ModelOutput(self.classifier(features), features, heads)


def leaky(v: Tensor) -> Tensor:
    return torch.stack([value if value > 0 else 0.1 * value for value in v])


def softmax(z: Tensor) -> Tensor:
    return torch.exp(z) / torch.exp(z).sum()


def average(values: list[Tensor]) -> Tensor:
    return torch.stack(values).sum(dim=0) / len(values)


def entropy(p: Tensor) -> float:
    return -sum(float(value) * math.log(float(value)) for value in p)


class SlowNPMatch:
    """One step from the equations: loops over images, samples and classes; memories are lists."""

    def __init__(self, config: NPMatchConfig, refiner: Any) -> None:
        self.config, self.refiner = config, refiner
        self.contexts: list[Tensor] = []
        self.latents: list[Tensor] = []
        self.last = list(LAST)
        self.unsure = self.uncertain = 0

    def encode(self, name: str, h: Tensor, y: int) -> Tensor:
        classes = torch.tensor([float(c == y) for c in range(CLASSES)], dtype=torch.float64)
        hidden = leaky(self.layer(f"{name}.0", torch.cat([h, classes])))
        return leaky(self.layer(f"{name}.2", hidden))

    def layer(self, name: str, v: Tensor) -> Tensor:
        return self.weights[f"{name}.weight"] @ v + self.weights[f"{name}.bias"]

    def gaussian(self, e: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.layer("location.2", leaky(self.layer("location.0", e)))
        spread = self.layer("spread.2", leaky(self.layer("spread.0", e)))
        return mean, 0.1 + 0.9 * torch.log(1 + torch.exp(spread))

    def decode(
        self, h: Tensor, latent: tuple[Tensor, Tensor], r: Tensor, noise: Tensor
    ) -> list[Tensor]:
        """T logits of one image."""
        answers = []
        for t in range(T):
            z = latent[0] + latent[1] * noise[t]
            joint = leaky(self.layer("joint", torch.cat([z, h, r])))
            answers.append(self.layer("out", leaky(self.layer("hidden", joint))))
        return answers

    def thresholds(self) -> list[float]:
        counts = [self.last.count(c) for c in range(-1, CLASSES)]
        betas = [count / max(counts) for count in counts[1:]]
        return [self.config.threshold * beta / (2 - beta) for beta in betas]

    def step(
        self, networks: Networks, batch: Batch
    ) -> tuple[Tensor, dict[str, Tensor], list[Tensor], list[bool]]:
        process = networks.student.get_submodule("heads.neural_process")
        self.weights = dict(process.named_parameters())
        views = (batch.x, batch.views["weak"], batch.views["strong"])
        x, weak, strong = (networks.student(view).features for view in views)
        noise = [torch.randn(T, L, dtype=torch.float64) for _ in range(3)]

        nothing = [torch.zeros(L, dtype=torch.float64)]
        latent = self.gaussian(average(self.latents or nothing))
        r = average(self.contexts or nothing)
        opinions = []
        for h in weak:
            samples = [softmax(z).detach() for z in self.decode(h, latent, r, noise[0])]
            opinions.append(self.refiner.opinion(average(samples)))
        batch_mean = average(opinions)
        thresholds, labels, believed, probs = self.thresholds(), [], [], []
        for b, p_w in enumerate(opinions):
            p = p_w * (1 / CLASSES + 1e-6) / (batch_mean + 1e-6)
            p = p / p.sum()
            c = int(p.argmax())
            sure = self.refiner.trust(p)
            certain = entropy(p_w) <= self.config.entropy
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
        guesses = zip(strong, labels, believed, strict=True)
        latents_s = [self.encode("latent_encoder", h, c) for h, c, m in guesses if m]
        r, known = average(contexts), self.gaussian(average(latents_x))
        guessed = self.gaussian(average(latents_s or nothing))
        said_x = [self.decode(h, known, r, noise[1]) for h in x]
        said_s = [self.decode(h, guessed, r, noise[2]) for h in strong]
        zero = torch.zeros((), dtype=torch.float64)
        answered = zip(said_x, pairs, strict=True)
        loss_x = average([-torch.log(softmax(z)[y]) for said, (_, y) in answered for z in said])
        loss_u = zero
        for said, c, m in zip(said_s, labels, believed, strict=True):
            wrong = average([-torch.log(softmax(z)[c]) for z in said])
            loss_u = loss_u + float(m) * wrong / len(said_s)
        doubts = [
            [entropy(average([softmax(z).detach() for z in said])) for said in answers]
            for answers in (said_x, said_s)
        ]
        loss_d = zero
        if any(believed):
            guessing = [doubt for doubt, m in zip(doubts[1], believed, strict=True) if m]
            u_c, u_s = sum(doubts[0]) / len(doubts[0]), sum(guessing) / len(guessing)
            loss_d = self.divergence(known, guessed, u_c / (u_c + u_s))
        self.contexts = [*self.contexts, *(e.detach() for e in contexts)][-ROWS:]
        self.latents = [*self.latents, *(e.detach() for e in [*latents_x, *latents_s])][-ROWS:]
        loss = loss_x + self.config.unlabeled_weight * loss_u
        loss = loss + self.config.divergence_weight * loss_d
        return loss, {"loss_x": loss_x, "loss_u": loss_u, "loss_d": loss_d}, probs, believed

    @staticmethod
    def divergence(
        known: tuple[Tensor, Tensor], guessed: tuple[Tensor, Tensor], a: float
    ) -> Tensor:
        """(1 - a) KL(N_c | N_a) + a KL(N_s | N_a)."""
        v = 1 / ((1 - a) / known[1] ** 2 + a / guessed[1] ** 2)
        m = v * ((1 - a) * known[0] / known[1] ** 2 + a * guessed[0] / guessed[1] ** 2)
        total = torch.zeros((), dtype=torch.float64)
        for weight, (mean, sigma) in ((1 - a, known), (a, guessed)):
            for i in range(L):
                ratio = sigma[i] ** 2 / v[i]
                apart = ratio + (m[i] - mean[i]) ** 2 / v[i] - 1 - torch.log(ratio)
                total = total + weight * 0.5 * apart
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

    def confidence(self, output: ModelOutput, probs: Tensor) -> Tensor:
        return probs.amax(dim=1).sqrt()

    def opinion(self, p: Tensor) -> Tensor:
        return p**2 / (p**2).sum()

    def trust(self, p: Tensor) -> float:
        return math.sqrt(float(p.max()))
