"""CReST and CReST+ (Wei et al., 2021): the model's labels join the training set."""

from dataclasses import dataclass

import torch
from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, Step, Survey
from semigpc.addons.rebalancing import known_counts
from semigpc.io.errors import SettingsError
from semigpc.pseudo_labels import EMAAlignment
from semigpc.types import ModelOutput, Task, check_ranges


@dataclass(frozen=True, kw_only=True)
class CReSTConfig(AddOnConfig):
    """Options of CReST.

    Args:
        generations: G; ``train.steps`` are shared among them, and each has a fresh network and a
            schedule of its own. Train G times as long to give each what a plain run has.
        power: alpha in the rate (n_{K+1-r} / n_1)^alpha at which the class of rank r joins.
    """

    generations: int = 6
    power: float = 1 / 3

    def __post_init__(self) -> None:
        if self.generations < 2:
            raise SettingsError(
                f"generations must be at least 2, or no label is added; got {self.generations}."
            )
        check_ranges(self, not_negative=("power",))


@dataclass(frozen=True, kw_only=True)
class CReSTPlusConfig(CReSTConfig):
    """CReST+: CReST with pseudo-labels aligned to class shares that flatten over the generations.

    Args:
        final_temperature: t of the last generation; the first has 1.
        momentum: of the running mean of pseudo-labels.
    """

    final_temperature: float = 0.5
    momentum: float = 0.999

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, fractions=("final_temperature", "momentum"))


class CReST(AddOn):
    """After each generation the most confident images of each class join with that label.

    Of U_c, the images that the evaluated network predicts as c, floor(|U_c| (n_{K+1-r} /
    n_1)^alpha) join; r is the rank of c by labelled counts, 1 the largest of K. They are chosen
    afresh from all of U each time and added to the labels given by people. The network's own
    prediction decides, also in a run that is evaluated by a GP. If a generation adds no image, a
    note in the run says so. A step costs nothing more; between generations every unlabelled image
    goes through the network once.
    """

    config: CReSTConfig

    def __init__(self, config: CReSTConfig, task: Task) -> None:
        super().__init__(config, task)
        known_counts(self, task)  # notes classes without labels

    def relabel(self, survey: Survey) -> Tensor:
        probs = torch.softmax(survey.unlabeled.logits.double(), dim=1)
        confidence, predicted = probs.max(dim=1)
        counts = torch.bincount(survey.y, minlength=probs.shape[1])
        rates = join_rates(counts.clamp_min(1), self.config.power)
        labels = torch.full_like(predicted, -1)
        for c, rate in enumerate(rates.tolist()):
            members = torch.nonzero(predicted == c).squeeze(1)
            ordered = members[confidence[members].argsort(descending=True, stable=True)]
            labels[ordered[: int(len(members) * rate)]] = c
        return labels


class CReSTPlus(CReST):
    """CReST+: pseudo-labels are aligned to class shares that flatten over the generations.

    The shares are SN(n^t): t falls from 1 to 0.5, t_g = 1 - (1 - 0.5) g / (G - 1), g = 0..G-1; n
    are the counts of labels given by people. This alignment follows the algorithm's own.
    """

    config: CReSTPlusConfig
    shares: Tensor

    def __init__(self, config: CReSTPlusConfig, task: Task) -> None:
        super().__init__(config, task)
        counts = task.given_counts.double().clamp_min(1)
        self.register_buffer("shares", (counts / counts.sum()).float())
        self.alignment = EMAAlignment(self.shares.clone(), config.momentum)

    def temperature(self, generation: int) -> float:
        """t_g."""
        return 1 - (1 - self.config.final_temperature) * generation / (self.config.generations - 1)

    def targets(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        flattened = self.shares ** self.temperature(step.clock.generation)
        self.alignment.target.copy_(flattened / flattened.sum())
        aligned: Tensor = self.alignment(probs)
        return aligned


def join_rates(counts: Tensor, power: float) -> Tensor:
    """Return (n_{K+1-r} / n_1)^alpha of each class, (C,) in float64: 1 for the rarest.

    Ranks are by counts (C,); of two classes with equal counts the first is the larger.
    """
    n = counts.double()
    order = n.argsort(descending=True, stable=True)
    rates = torch.empty_like(n)
    rates[order] = (n[order].flip(0) / n[order[0]]) ** power
    return rates
