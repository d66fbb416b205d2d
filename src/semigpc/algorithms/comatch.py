"""CoMatch (Li et al., 2021): a graph of pseudo-labels regularises a graph of embeddings."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from semigpc.addons import Step
from semigpc.algorithms.base import Algorithm, AlgorithmConfig
from semigpc.pseudo_labels import QueueAlignment, one_hot
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
class CoMatchConfig(AlgorithmConfig):
    """Options of CoMatch.

    Args:
        threshold: tau, of the refiner's confidence; without a GP that is max p.
        temperature: T of both similarities.
        smoothing: a, the weight of the classifier's label beside the memory's.
        unlabeled_weight: w_u.
        contrastive_weight: w_c.
        graph_threshold: pairs of pseudo-labels that agree less than this are not joined.
        alignment_batches: batch means that distribution alignment remembers.
        queue_batches: batches that the memory holds.
        projection: width of e.
    """

    presets: ClassVar = {
        "digits": {"unlabeled_weight": 0.5, "queue_batches": 8},
        "own_data": {"queue_batches": 8},
        "short": {"threshold": 0.8, "queue_batches": 8},
    }
    uses_average: ClassVar[bool] = True

    threshold: float = 0.95
    temperature: float = 0.2
    smoothing: float = 0.9
    unlabeled_weight: float = 1.0
    contrastive_weight: float = 1.0
    graph_threshold: float = 0.8
    alignment_batches: int = 32
    queue_batches: int = 32
    projection: int = 64

    def __post_init__(self) -> None:
        fractions = ("threshold", "smoothing", "graph_threshold")
        check_ranges(self, fractions=fractions, positive=("temperature",))

    @property
    def heads(self) -> dict[str, HeadSpec]:
        """The projection e."""
        return {"projection": HeadSpec("projection", self.projection)}


class CoMatch(Algorithm):
    """L = H(z_x, y) + w_u 1[conf(p) >= tau] H(z_s, p) + w_c mean - sum_j G_ij log S_ij.

    p = a p_w + (1 - a) A P, the aligned weak label smoothed by the memory's labels P with A =
    softmax(e(u_w) . F / T), once the memory is full. G joins images whose pseudo-labels agree, S is
    the softmax of e(u_s) . e(u_s2) / T.
    """

    views = ("weak", "strong", "strong2")
    sites = ("semantic", "aggregate")
    takes_addons = True
    on_host = ("pushed",)
    config: CoMatchConfig
    features: Tensor
    probs: Tensor
    pushed: Tensor

    def prepare(self, task: Task) -> None:
        config = self.config
        uniform = torch.full((task.n_classes,), 1 / task.n_classes)
        self.alignment = QueueAlignment(uniform, config.alignment_batches)
        rows = config.queue_batches * (task.unlabeled_batch + task.labeled_batch)
        self.register_buffer("features", torch.zeros(rows, config.projection))
        self.register_buffer("probs", torch.zeros(rows, task.n_classes))
        self.register_buffer("pushed", torch.tensor(0))

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        config = self.config
        refiner = self.refiner
        addon = self.addon
        step = Step(networks, batch, clock)
        views = (batch.views[name] for name in self.views)
        x, weak, strong, strong2 = networks.forward(batch.x, *views)

        refiner.observe("before", x, batch)
        logits_x = refiner.classify(x, batch.index).logits  # (B, C)
        logits_s = refiner.classify(strong).logits  # (U, C)
        with torch.no_grad():
            weak_output, probs_w = self.weak_probs(step, weak)
            probs_w = self.alignment(probs_w)
            probs = addon.targets(step, weak_output, self._smooth(weak_output, probs_w))  # (U, C)
            mask = refiner.confidence(weak_output, probs) >= config.threshold  # (U,)
            self._push(weak.heads["projection"], probs_w)
            self._push(x.heads["projection"], one_hot(batch.y, probs.shape[1]).to(probs))
            graph = pseudo_label_graph(probs, config.graph_threshold)  # (U, U)
        refiner.observe("after", x, batch)

        products = strong.heads["projection"] @ strong2.heads["projection"].mT  # (U, U)
        similarities = products / config.temperature
        loss_x = addon.labeled_loss(step, logits_x, batch.y)
        loss_u = addon.unlabeled_loss(step, logits_s, probs, mask)
        loss_c = -(graph * torch.log(torch.softmax(similarities, dim=1) + 1e-7)).sum(dim=1).mean()
        output = StepOutput(
            loss_x + config.unlabeled_weight * loss_u + config.contrastive_weight * loss_c,
            {
                "loss_x": loss_x,
                "loss_u": loss_u,
                "loss_c": loss_c,
                "mask_rate": mask.float().mean(),
            },
            PseudoLabels(probs, mask),
        )
        return addon.with_extra_loss(output, step, x, weak, strong)

    def _smooth(self, weak: ModelOutput, probs_w: Tensor) -> Tensor:
        """a p_w + (1 - a) A P, (U, C); p_w (U, C) itself until the memory is full."""
        if int(self.pushed) < len(self.features):
            return probs_w
        products = weak.heads["projection"] @ self.features.to(probs_w).mT
        weights = torch.softmax(products / self.config.temperature, dim=1)
        aggregate = self.refiner.refine("aggregate", weak, weights @ self.probs.to(probs_w))
        return self.config.smoothing * probs_w + (1 - self.config.smoothing) * aggregate

    def _push(self, features: Tensor, probs: Tensor) -> None:
        """Write (M, width) and (M, C) over the oldest rows of the memory."""
        rows = torch.arange(len(features), device=features.device)
        slots = (int(self.pushed) + rows) % len(self.features)
        self.features[slots] = features.detach().to(self.features)
        self.probs[slots] = probs.to(self.probs)
        self.pushed += len(features)


def pseudo_label_graph(probs: Tensor, threshold: float) -> Tensor:
    """Return G = p p^T, (U, U): ones on the diagonal, 0 below the threshold, rows summing to 1."""
    graph = (probs @ probs.mT).fill_diagonal_(1)
    graph = torch.where(graph >= threshold, graph, 0)
    return graph / graph.sum(dim=1, keepdim=True)
