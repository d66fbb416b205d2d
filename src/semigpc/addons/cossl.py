"""CoSSL (Fan et al., 2022): a balanced head on the moving average's features makes the labels."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, Step, Survey
from semigpc.io.errors import SettingsError
from semigpc.types import Clock, HostState, ModelOutput, Task, check_ranges

ADAM_BETAS = (0.9, 0.999)  # of the balanced head's optimiser
ADAM_EPSILON = 1e-8
MIXING_BETA = 0.75  # both parameters of the Beta distribution of mixing weights


@dataclass(frozen=True, kw_only=True)
class CoSSLConfig(AddOnConfig):
    """Options of CoSSL.

    A class without labels is left out when the head starts, and a note says so.

    Args:
        warmup: share of training without the head; 400 of 500 epochs in the original. In a run of
            fewer than 1 / (1 - warmup) steps it never starts.
        head_rate: learning rate of the head's Adam.
        head_decay: its weight decay, which leaves the bias alone.
        head_momentum: of the head's moving average.
        least_own: the least share of its own that an enhanced feature keeps, r ~ U(least_own, 1).
        start_steps: batches on which the head is first trained; 10 epochs of 500 in the original,
            which its moving average needs to forget the initial weights.
    """

    needs_average: ClassVar[bool] = True
    needs_balanced_batch: ClassVar[bool] = True

    warmup: float = 0.8
    head_rate: float = 0.002
    head_decay: float = 5e-4
    head_momentum: float = 0.999
    least_own: float = 0.6
    start_steps: int = 5000

    def __post_init__(self) -> None:
        check_ranges(
            self,
            fractions=("warmup", "head_momentum", "least_own"),
            positive=("head_rate",),
            not_negative=("head_decay",),
            at_least_one=("start_steps",),
        )


class BalancedHead(HostState):
    """z = W h + b, trained by Adam with explicit gradients, and its moving average.

    No gradient reaches a network. The bias is the last column of ``weights`` (C, D + 1), which
    start as those of nn.Linear. Everything is a buffer, so that the run's optimiser does not update
    it and a checkpoint holds it. A step costs O(B C D).

    Args:
        config: rate, decay and momentum. n_features: D. n_classes: C.
    """

    on_host = ("updates",)
    weights: Tensor
    average: Tensor
    first: Tensor
    second: Tensor
    updates: Tensor

    def __init__(self, config: CoSSLConfig, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.config = config
        weights = (2 * torch.rand(n_classes, n_features + 1) - 1) / math.sqrt(n_features)
        self.register_buffer("weights", weights)
        self.register_buffer("average", weights.clone())
        self.register_buffer("first", torch.zeros_like(weights))
        self.register_buffer("second", torch.zeros_like(weights))
        self.register_buffer("updates", torch.tensor(0))

    @torch.no_grad()
    def learn(self, features: Tensor, y: Tensor) -> None:
        """Minimise mean_b H(W h_b + b, y_b) by one step, for features (B, D) and y (B,)."""
        config = self.config
        beta1, beta2 = ADAM_BETAS
        errors = torch.softmax(affine(self.weights, features), dim=1)  # (B, C)
        errors.scatter_add_(1, y.unsqueeze(1), errors.new_full((len(y), 1), -1))
        gradient = errors.mT @ F.pad(features, (0, 1), value=1.0) / len(y)  # (C, D + 1)
        gradient[:, :-1].add_(self.weights[:, :-1], alpha=config.head_decay)
        self.updates += 1
        steps = int(self.updates)
        self.first.lerp_(gradient, 1 - beta1)
        self.second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (self.second / (1 - beta2**steps)).sqrt_().add_(ADAM_EPSILON)
        self.weights.addcdiv_(self.first, scale, value=-config.head_rate / (1 - beta1**steps))
        self.average.lerp_(self.weights, 1 - config.head_momentum)


def affine(weights: Tensor, features: Tensor) -> Tensor:
    """Return W h + b, (M, C), for features (M, D); b is the last column of weights (C, D + 1)."""
    return F.linear(features, weights[:, :-1], weights[:, -1])


class CoSSL(AddOn):
    """After the warm-up, z_w = W h_teacher + b: a head on the moving average's features.

    The head is trained in every step, after it has labelled the weak views, by cross-entropy on
    features of the class-balanced batch. With probability (n_max - n_y) / n_max, y the row's class,
    a feature is enhanced: f = r f_x + (1 - r) f_u, r ~ U(0.6, 1), label y; f_u is a feature of any
    training image of this step, labelled or not. No gradient reaches the network. The head starts
    on a balanced set of all features (:func:`balanced_features`), with a fresh Adam afterwards. As
    in the original, pseudo-labels come from the head itself, evaluation uses its moving average.
    Unlike there, the head sees weak views instead of strong ones, and un-augmented images as it
    starts.

    Draws, in a step: partners, whether to enhance, r; as it starts: see there, then a permutation
    for each pass. A step after the warm-up costs one more pass of the moving average over U + 2 B
    images, without gradient; the start a pass over all images and ``start_steps`` steps of the
    head, about a second.
    """

    answers = True
    config: CoSSLConfig
    mixing: Tensor
    active: Tensor

    def __init__(self, config: CoSSLConfig, task: Task) -> None:
        super().__init__(config, task)
        if task.n_features < 1:
            raise SettingsError(
                f"CoSSL has a head: Task.n_features must be at least 1; got {task.n_features}."
            )
        self.head = BalancedHead(config, task.n_features, task.n_classes)
        counts = task.class_counts.float()
        self.register_buffer("mixing", (counts.max() - counts) / counts.max())  # (C,)
        self.register_buffer("active", torch.tensor(False))
        self._started = False  # a copy of ``active`` on the host, once it is true
        self.register_load_state_dict_post_hook(_look_again)  # type: ignore[no-untyped-call]

    def surveys(self, clock: Clock) -> bool:
        return clock.progress >= self.config.warmup and not self._has_started()

    @torch.no_grad()
    def survey(self, survey: Survey) -> None:
        y = survey.y
        n_classes = self.task.n_classes
        if missing := (torch.bincount(y, minlength=n_classes) == 0).nonzero().flatten().tolist():
            names = ", ".join(map(str, missing))
            self.note(f"CoSSL: no labelled features of class {names}; the head starts without.")
        labeled = survey.labeled.features.to(self.head.weights)
        unlabeled = survey.unlabeled.features.to(self.head.weights)
        features, classes = balanced_features(labeled, y, unlabeled, n_classes)
        size = min(self.task.labeled_batch, len(features))
        batches: list[Tensor] = []
        for _ in range(self.config.start_steps):
            if not batches:  # all whole batches of a fresh permutation
                order = torch.randperm(len(features)).to(y.device)
                batches = list(order[: len(features) // size * size].split(size))
            rows = batches.pop(0)
            self.head.learn(features[rows], classes[rows])
        for moment in (self.head.first, self.head.second, self.head.updates):
            moment.zero_()  # a fresh Adam
        self.active.fill_(True)

    def weak(self, step: Step, output: ModelOutput) -> ModelOutput:
        """Return the output with the balanced head's logits (U, C), and train the head."""
        if step.clock.progress < self.config.warmup or not self._has_started():
            return output
        batch = step.batch
        balanced = batch.balanced
        if balanced is None:
            raise ValueError("CoSSL needs a class-balanced batch; Batch.balanced is None.")
        parts = (batch.views["weak"], batch.x, balanced.x)
        features = step.networks.ask_teacher(torch.cat(parts)).features.to(self.head.weights)
        unlabeled, labeled, own = features.split([len(part) for part in parts])
        logits = affine(self.head.weights, unlabeled)
        self.head.learn(self._enhance(own, balanced.y, labeled, unlabeled), balanced.y)
        return output._replace(logits=logits.to(output.logits))

    def answer(self, output: ModelOutput) -> Tensor:
        """Return the logits (M, C) of the head's moving average, once it has started."""
        logits = affine(self.head.average.to(output.features), output.features)
        return torch.where(self.active, logits, output.logits)

    def _has_started(self) -> bool:
        """Return whether the head has started; the device is asked until it has."""
        self._started = self._started or bool(self.active)
        return self._started

    def _enhance(self, own: Tensor, y: Tensor, labeled: Tensor, unlabeled: Tensor) -> Tensor:
        """Return r f_x + (1 - r) f_u or f_x, (B, D).

        f_u is a labelled image as often as an image of all the data is.
        """
        least = self.config.least_own
        parts = ((labeled, self.task.n_labeled), (unlabeled, self.task.n_unlabeled))
        odds = torch.cat([part.new_full((len(part),), n / len(part)) for part, n in parts])
        chosen = torch.multinomial(odds, len(own), replacement=True)
        partners = torch.cat([labeled, unlabeled])[chosen]
        enhanced = torch.rand(len(own), device=y.device) < self.mixing[y]
        r = least + (1 - least) * torch.rand(len(own), device=y.device).to(own)
        r = torch.where(enhanced, r, 1.0).unsqueeze(1)
        return r * own + (1 - r) * partners


def _look_again(addon: CoSSL, _incompatible_keys: object) -> None:
    addon._started = False


def imprinted_probs(features: Tensor, labeled: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """Return softmax_c(h . w_c), (M, C), for features (M, D); w_c = unit(mean of class c).

    ``labeled`` (n, D) have classes ``y`` (n,). A class without any has probability 0.
    """
    members = F.one_hot(y, n_classes).to(labeled)  # (n, C)
    weights = F.normalize(members.mT @ labeled, dim=1)  # a sum points where the mean does
    scores = (features @ weights.mT).masked_fill(members.sum(dim=0) == 0, -torch.inf)
    return torch.softmax(scores, dim=1)


def balanced_features(
    labeled: Tensor, y: Tensor, unlabeled: Tensor, n_classes: int
) -> tuple[Tensor, Tensor]:
    """Return labelled features, and mixed ones until each class has n_max, and their classes.

    Row i of the n_max - n_c that class c lacks is r f_c + (1 - r) f_o, r ~ Beta(0.75, 0.75), with
    f_c any labelled feature of the class and f_o the i-th of all other features, labelled and
    unlabelled, by decreasing probability of c (:func:`imprinted_probs`). There are enough of these,
    as n >= n_max. Classes without a labelled feature get none. There are at most C n_max rows.
    Draws, class by class: which f_c (n_max - n_c), then r. Cost: C sorts of n + u numbers.

    Args:
        labeled: (n, D). y: (n,) their classes. unlabeled: (u, D). n_classes: C.
    """
    everything = torch.cat([labeled, unlabeled])
    probs = imprinted_probs(everything, labeled, y, n_classes)  # (n + u, C)
    counts = torch.bincount(y, minlength=n_classes).tolist()
    rows = [labeled]
    classes = [y]
    for c, count in enumerate(counts):
        lacking = max(counts) - count
        if not count or not lacking:
            continue
        is_own = torch.zeros(len(everything), dtype=torch.bool, device=y.device)
        is_own[: len(y)] = y == c
        own = is_own.nonzero().flatten()
        others = (~is_own).nonzero().flatten()
        others = others[probs[others, c].argsort(descending=True, stable=True)[:lacking]]
        own = own[torch.randint(count, (lacking,)).to(own.device)]
        r = torch.distributions.Beta(MIXING_BETA, MIXING_BETA).sample((lacking, 1)).to(labeled)
        rows.append(r * everything[own] + (1 - r) * everything[others])
        classes.append(torch.full((lacking,), c, device=y.device))
    return torch.cat(rows), torch.cat(classes)
