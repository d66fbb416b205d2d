"""SimMatch (Zheng et al., 2022): a label has to agree with those of similar labelled images."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from semigpc.addons import Step
from semigpc.algorithms.base import Algorithm, AlgorithmConfig
from semigpc.pseudo_labels import QueueAlignment, last_of_each
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
class SimMatchConfig(AlgorithmConfig):
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
    """

    presets: ClassVar = {"digits": {"unlabeled_weight": 0.5}, "short": {"threshold": 0.8}}
    uses_average: ClassVar[bool] = True

    threshold: float = 0.95
    temperature: float = 0.1
    smoothing: float = 0.9
    unlabeled_weight: float = 1.0
    instance_weight: float = 1.0
    alignment_batches: int = 32
    projection: int = 128
    bank: Literal["momentum", "teacher", "full_teacher"] = "momentum"
    bank_momentum: float = 0.7

    def __post_init__(self) -> None:
        fractions = ("threshold", "smoothing", "bank_momentum")
        check_ranges(self, fractions=fractions, positive=("temperature",))

    @property
    def heads(self) -> dict[str, HeadSpec]:
        """The projection e."""
        return {"projection": HeadSpec("projection", self.projection)}

    def conflict(self, *, frozen: bool, average: bool) -> str | None:
        """Return why these options need a moving average of the network, or None."""
        if self.bank.endswith("teacher") and not average:
            return (
                f"algorithm.bank={self.bank!r} needs a moving average of the network; "
                "set train.ema, such as 0.999."
            )
        return None

    def in_paper(self, *, temperature: float, photographs: bool, average: bool) -> Self:
        """Return these options as in USB: T, and for photographs a bank written by the average.

        USB's Semi-iNat files have a moving average with momentum 0, which is the network itself, so
        that its bank holds the latest projections: a running average with momentum 0.
        """
        config = replace(self, temperature=temperature)
        if not photographs:
            return config
        if average:
            return replace(config, bank="teacher")
        return replace(config, bank="momentum", bank_momentum=0.0)


class SimMatch(Algorithm):
    """L = H(z_x, y) + w_u 1[conf(p) >= tau] H(z_s, p) + w_in H(s(e(u_s)), q).

    p = a p_w + (1 - a) agg, where p_w is the aligned weak label and agg sums the similarities s of
    e(u_w) to the bank by class; q_j = s_j p_w[l_j], renormalised. The bank has one slot for each
    labelled image; it is read before it is written, and not read at all in epoch 0.
    """

    views = ("weak", "strong")
    sites = ("semantic", "aggregate", "final")
    takes_addons = True
    config: SimMatchConfig
    bank: Tensor
    bank_labels: Tensor
    visited: Tensor

    def prepare(self, task: Task) -> None:
        config = self.config
        uniform = torch.full((task.n_classes,), 1 / task.n_classes)
        self.alignment = QueueAlignment(uniform, config.alignment_batches)
        rows = torch.randn(task.n_labeled, config.projection)
        self.register_buffer("bank", F.normalize(rows, dim=1))
        self.register_buffer("bank_labels", torch.zeros(task.n_labeled, dtype=torch.int64))
        self.register_buffer("visited", torch.zeros(task.n_labeled, dtype=torch.bool))
        self._readable = False  # whether any entry was visited, on the host
        self.register_load_state_dict_post_hook(_restore_readable)  # type: ignore[no-untyped-call]

    @property
    def asks_teacher(self) -> bool:
        """Whether weak views and the refiner's rows go through the moving average."""
        return self.config.bank == "full_teacher"

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        config = self.config
        refiner = self.refiner
        addon = self.addon
        step = Step(networks, batch, clock)
        x, weak, strong = networks.forward(batch.x, batch.views["weak"], batch.views["strong"])
        banked, remembered, weak_view = self._sources(networks, batch, x, weak)

        refiner.observe("before", remembered, batch)
        logits_x = refiner.classify(x, batch.index).logits  # (B, C)
        logits_s = refiner.classify(strong).logits  # (U, C)
        with torch.no_grad():
            weak_output, probs_w = self.weak_probs(step, weak_view)
            probs_w = self.alignment(probs_w)
            smoothed = probs_w
            instances = None
            if clock.epoch > 0 and self._readable:
                smoothed, instances = self._smooth(weak_output, probs_w)
            probs = refiner.refine("final", weak_output, smoothed)
            probs = addon.targets(step, weak_output, probs)  # (U, C)
            mask = refiner.confidence(weak_output, probs) >= config.threshold  # (U,)

        loss_x = addon.labeled_loss(step, logits_x, batch.y)
        loss_u = addon.unlabeled_loss(step, logits_s, probs, mask)
        loss_in = logits_s.new_zeros(())
        if instances is not None:
            loss_in = self._instance_loss(strong, instances)
        self._write(banked, batch)
        refiner.observe("after", remembered, batch)
        parts = {"loss_x": loss_x, "loss_u": loss_u, "loss_in": loss_in}
        output = StepOutput(
            loss_x + config.unlabeled_weight * loss_u + config.instance_weight * loss_in,
            parts | {"mask_rate": mask.float().mean()},
            PseudoLabels(probs, mask),
        )
        return addon.with_extra_loss(output, step, x, weak, strong)

    def _sources(
        self, networks: Networks, batch: Batch, x: ModelOutput, weak: ModelOutput
    ) -> tuple[ModelOutput, ModelOutput, ModelOutput]:
        """Return what enters the bank and the refiner's memory (B rows), and the weak views (U).

        The last two are of one network: the refiner compares them with each other.
        """
        if self.config.bank == "teacher":
            return networks.ask_teacher(batch.x), x, weak
        if self.config.bank == "full_teacher":
            output = networks.ask_teacher(torch.cat([batch.x, batch.views["weak"]]))
            labeled, unlabeled = output.split([len(x.logits), len(weak.logits)])
            return labeled, labeled, unlabeled
        return x, x, weak

    def _similarities(self, output: ModelOutput) -> Tensor:
        """e . E_j / T, (U, n_labeled); minus infinity where nothing has been written yet."""
        # a copy, as the bank is written before the gradient is computed
        bank = self.bank.to(output.logits, copy=True)
        scores = output.heads["projection"] @ bank.mT / self.config.temperature
        return scores.masked_fill(~self.visited, -torch.inf)

    def _smooth(self, weak: ModelOutput, probs_w: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smoothed label (U, C) and the instance target q (U, n_labeled)."""
        s = torch.softmax(self._similarities(weak), dim=1)
        aggregate = torch.zeros_like(probs_w).index_add_(1, self.bank_labels, s.to(probs_w))
        aggregate = self.refiner.refine("aggregate", weak, aggregate)
        q = s * self.refiner.refine("final", weak, probs_w)[:, self.bank_labels]
        smoothed = self.config.smoothing * probs_w + (1 - self.config.smoothing) * aggregate
        # the sum is 0 where none of the label's classes is in the bank yet
        total = q.sum(dim=1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
        return smoothed, q / total

    def _instance_loss(self, strong: ModelOutput, instances: Tensor) -> Tensor:
        """mean_b - sum_j q_j log softmax_j(e(u_s) . E_j / T), with a gradient in e(u_s) alone."""
        log_s = F.log_softmax(self._similarities(strong), dim=1).masked_fill(~self.visited, 0)
        return -(instances * log_s).sum(dim=1).mean()

    @torch.no_grad()
    def _write(self, x: ModelOutput, batch: Batch) -> None:
        """Write the projections (B, width) and labels of the labelled batch into the bank."""
        index = batch.index
        last = last_of_each(index)  # a batch larger than the labelled set has images twice
        entries = x.heads["projection"].to(self.bank)
        if self.config.bank == "momentum":
            m = self.config.bank_momentum
            entries = F.normalize(m * self.bank[index] + (1 - m) * entries, dim=1)
        self.bank[index] = entries[last]
        self.bank_labels[index] = batch.y[last]
        self.visited[index] = True
        self._readable = True


def _restore_readable(algorithm: SimMatch, _incompatible_keys: object) -> None:
    algorithm._readable = bool(algorithm.visited.any())
