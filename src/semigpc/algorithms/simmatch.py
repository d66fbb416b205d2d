"""SimMatch (Zheng et al., 2022): a label and its nearest labelled images have to agree."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.addons import AddOn, Step
from semigpc.pseudo_labels import QueueAlignment, last_of_each
from semigpc.refiners import Refiner
from semigpc.types import (
    Batch,
    Clock,
    HeadSpec,
    ModelOutput,
    Networks,
    PseudoLabels,
    StepOutput,
    Task,
    check_ranges,
)


@dataclass(frozen=True, kw_only=True)
class SimMatchConfig:
    """Options of SimMatch.

    Args:
        threshold: tau, of the refiner's confidence; without a GP that is max p.
        temperature: T of the similarities; 0.1 for CIFAR, 0.2 for larger images.
        smoothing: a, the weight of the semantic label beside the memory's.
        unlabeled_weight: w_u.
        instance_weight: w_in.
        alignment_batches: batch means that distribution alignment remembers.
        projection: width of e.
        bank: the source of the bank's rows: ``momentum``, a running average of the student's
            projections; ``teacher``, the moving average network; ``full_teacher``, the same, and
            the weak views go through it too, as in the original code, so that a refiner remembers
            the teacher's features as well.
        bank_momentum: m of ``momentum``.
        compat_usb: write and read the bank as USB does, for comparisons with it: rows normalised
            across the batch, and images not seen yet count as random members of class 0.
    """

    threshold: float = 0.95
    temperature: float = 0.1
    smoothing: float = 0.9
    unlabeled_weight: float = 1.0
    instance_weight: float = 1.0
    alignment_batches: int = 32
    projection: int = 128
    bank: Literal["momentum", "teacher", "full_teacher"] = "momentum"
    bank_momentum: float = 0.7
    compat_usb: bool = False

    def __post_init__(self) -> None:
        check_ranges(
            self, fractions=("threshold", "smoothing", "bank_momentum"), positive=("temperature",)
        )

    @property
    def heads(self) -> dict[str, HeadSpec]:
        """Extra heads of the network."""
        return {"projection": HeadSpec("projection", self.projection)}

    def conflict(self, *, frozen: bool, average: bool) -> str | None:
        """Return why these options do not fit a run without a moving average of the network, or
        None.
        """
        if self.bank.endswith("teacher") and not average:
            return f"algorithm.bank={self.bank!r} needs a moving average; set train.ema, such as 0.999."
        return None


class SimMatch(nn.Module):
    """L = H(z_x, y) + w_u 1[conf(p) >= tau] H(z_s, p) + w_in H(similarities of e(u_s) to the bank,
    q).

    p = a p_w + (1 - a) agg, where p_w is the aligned weak label and agg sums the similarities s of
    e(u_w) to the bank by class; q_j = s_j p_w[l_j], renormalised. The bank has one slot for each
    labelled image; it is read before it is written, and not read at all in epoch 0.
    """

    views = ("weak", "strong")
    sites = ("semantic", "aggregate", "final")
    takes_addons = True
    bank: Tensor
    bank_labels: Tensor
    visited: Tensor

    def __init__(
        self, config: SimMatchConfig, refiner: Refiner, task: Task, addon: AddOn | None = None
    ) -> None:
        super().__init__()
        self.config, self.refiner, self.addon = config, refiner, addon or AddOn.none(task)
        self.alignment = QueueAlignment(
            torch.full((task.n_classes,), 1 / task.n_classes), config.alignment_batches
        )
        self.register_buffer(
            "bank", F.normalize(torch.randn(task.n_labeled, config.projection), dim=1)
        )
        self.register_buffer("bank_labels", torch.zeros(task.n_labeled, dtype=torch.int64))
        self.register_buffer("visited", torch.full((task.n_labeled,), config.compat_usb))
        self.asks_teacher = config.bank == "full_teacher"  # for the weak views
        self._readable = config.compat_usb  # whether any entry was visited, on the host
        self.register_load_state_dict_post_hook(_restore_readable)  # type: ignore[no-untyped-call]

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        config, refiner, addon, step = (
            self.config,
            self.refiner,
            self.addon,
            Step(networks, batch, clock),
        )
        x, weak, strong = networks.forward(batch.x, batch.views["weak"], batch.views["strong"])
        banked, remembered, weak_view = (
            x,
            x,
            weak,
        )  # what refiner and weak views see is of one network
        if config.bank == "teacher":
            banked = networks.ask_teacher(batch.x)
        elif config.bank == "full_teacher":
            asked = networks.ask_teacher(torch.cat([batch.x, batch.views["weak"]]))
            banked, weak_view = asked.split([len(x.logits), len(weak.logits)])
            remembered = banked

        refiner.observe("before", remembered, batch)
        logits_x = refiner.classify(x, batch.index).logits  # (B, C)
        logits_s = refiner.classify(strong).logits  # (U, C)
        with torch.no_grad():
            weak_output = addon.weak(step, weak_view)
            probs_w = refiner.refine(
                "semantic", weak_output, refiner.classify(weak_output).logits.softmax(dim=1)
            )
            probs_w = self.alignment(addon.opinion(step, weak_output, probs_w))
            readable = clock.epoch > 0 and self._readable
            smoothed, instances = (
                self._smooth(weak_output, probs_w) if readable else (probs_w, None)
            )
            probs = addon.targets(
                step, weak_output, refiner.refine("final", weak_output, smoothed)
            )  # (U, C)
            mask = refiner.confidence(weak_output, probs) >= config.threshold  # (U,)

        loss_x = addon.labeled_loss(step, logits_x, batch.y)
        loss_u = addon.unlabeled_loss(step, logits_s, probs, mask)
        loss_in = (
            logits_s.new_zeros(()) if instances is None else self._instance_loss(strong, instances)
        )
        self._write(banked, batch)
        refiner.observe("after", remembered, batch)
        output = StepOutput(
            loss_x + config.unlabeled_weight * loss_u + config.instance_weight * loss_in,
            {
                "loss_x": loss_x,
                "loss_u": loss_u,
                "loss_in": loss_in,
                "mask_rate": mask.float().mean(),
            },
            PseudoLabels(probs, mask),
        )
        return addon.with_extra_loss(output, step, x, weak, strong)

    def _similarities(self, output: ModelOutput) -> Tensor:
        """e . E_j / T, (U, n_labeled); minus infinity where nothing has been written yet."""
        bank = self.bank.to(
            output.logits, copy=True
        )  # a copy, as the bank is written before the gradient is taken
        scores = output.heads["projection"] @ bank.mT / self.config.temperature
        return scores.masked_fill(~self.visited, -torch.inf)

    def _smooth(self, weak: ModelOutput, probs_w: Tensor) -> tuple[Tensor, Tensor]:
        """The smoothed label (U, C) and the instance target q (U, n_labeled), whose rows sum to 1."""
        s = torch.softmax(self._similarities(weak), dim=1)
        aggregate = torch.zeros_like(probs_w).index_add_(1, self.bank_labels, s.to(probs_w))
        aggregate = self.refiner.refine("aggregate", weak, aggregate)
        q = s * self.refiner.refine("final", weak, probs_w)[:, self.bank_labels]  # unfold and scale
        smoothed = self.config.smoothing * probs_w + (1 - self.config.smoothing) * aggregate
        return smoothed, q / q.sum(dim=1, keepdim=True).clamp_min(
            torch.finfo(q.dtype).tiny
        )  # 0 / 0: none of its classes seen

    def _instance_loss(self, strong: ModelOutput, instances: Tensor) -> Tensor:
        """mean_b - sum_j q_j log softmax_j(e(u_s) . E_j / T); the gradient flows through e(u_s)
        alone.
        """
        log_s = F.log_softmax(self._similarities(strong), dim=1).masked_fill(~self.visited, 0)
        return -(instances * log_s).sum(dim=1).mean()

    @torch.no_grad()
    def _write(self, x: ModelOutput, batch: Batch) -> None:
        config, index = self.config, batch.index
        last = last_of_each(
            index
        )  # an image may stand twice in a batch larger than the labelled set
        if config.bank == "momentum":
            m = config.bank_momentum
            mixed = m * self.bank[index] + (1 - m) * x.heads["projection"].to(self.bank)
            if config.compat_usb:
                once = last == torch.arange(len(last), device=last.device)
                entries = F.normalize(mixed * once.unsqueeze(1), dim=0)
            else:
                entries = F.normalize(mixed, dim=1)
        else:
            entries = x.heads["projection"].to(self.bank)
        self.bank[index], self.bank_labels[index], self.visited[index] = (
            entries[last],
            batch.y[last],
            True,
        )
        self._readable = True


def _restore_readable(algorithm: SimMatch, _incompatible_keys: object) -> None:
    algorithm._readable = bool(algorithm.visited.any())
