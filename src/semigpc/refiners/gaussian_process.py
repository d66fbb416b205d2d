"""SemiGPC: the posterior mean of a Gaussian process over labelled features, in place of the classifier's opinion."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.buffers import BalancedBuffer, FIFOBuffer
from semigpc.gp import ExactGP
from semigpc.refiners.engines import build_engine
from semigpc.refiners.gp_config import GPConfig
from semigpc.refiners.placement import Moment, Placement, Site
from semigpc.types import Batch, ModelOutput, Networks

SURE = 0.95  # the confidence that a posterior mean of ASSURING on one class should just reach
ASSURING = 0.8


def auto_logit_scale(n_classes: int) -> float:
    """lambda = ln((C - 1) tau / (1 - tau)) / 0.8 with tau = 0.95: 6.43 for 10 classes, 9.42 for 100, 12.05 for 810."""
    return math.log(max(n_classes - 1, 1) * SURE / (1 - SURE)) / ASSURING


class GaussianProcessRefiner(nn.Module):
    """z(x) = lambda k(h(x), h_Q) K^-1 y_Q over a buffer of labelled features (equation 3 of the paper; algorithms section 3).

    ``refine`` answers with softmax(z) for the weak view, ``observe`` writes a labelled batch into the buffer and moves the
    inverse. A query costs O(M N (D + C)), a write O(B N^2). All of it is float32 or float64, whatever the network's precision.

    Args:
        config: the switches.
        n_features: D, of the feature the config names.
        n_classes: C.
        device: where the engine lives.
    """

    observes = True

    def __init__(self, config: GPConfig, n_features: int, n_classes: int, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.config, self.n_features, self.n_classes = config, n_features, n_classes
        self.logit_scale = config.logit_scale or auto_logit_scale(n_classes)
        self.placement = Placement(config)
        if config.balanced:
            self.buffer: BalancedBuffer | FIFOBuffer = BalancedBuffer(config.buffer_size, n_classes, balance=config.balance)
        else:
            self.buffer = FIFOBuffer(config.buffer_size, n_classes)
        self.engine = build_engine(config, n_features, n_classes, device=device)

    # Asking ---------------------------------------------------------------------------------------------------------

    def logits(self, output: ModelOutput, index: Tensor | None = None) -> Tensor:
        """z, (M, C), differentiable in the features. Far from every entry, and while the buffer is empty, it is 0.

        Args:
            output: of M pictures.
            index: (M,) labelled pictures whose copies in the buffer must not answer for them.
        """
        queries = self.placement.features(output).to(self.engine.dtype)
        counts = self.buffer.entries.class_counts().to(queries)
        shares = counts / counts.sum().clamp_min(1)
        mean = self.engine.mean(queries, offset=shares if self.config.class_prior == "frequency" else None)
        if index is not None:
            mean = mean - self._copies(queries, index, shares)
        if self.config.class_prior == "frequency":
            mean = mean * (counts.mean() / counts.clamp_min(1)).sqrt()
        return self.logit_scale * mean

    def _copies(self, queries: Tensor, index: Tensor, shares: Tensor) -> Tensor:
        """What the entries of the same pictures add to the mean, (M, C)."""
        same = (index.unsqueeze(1) == self.buffer.entries.indices.to(index.device)).to(queries)  # (M, N)
        assert isinstance(self.engine, ExactGP)  # the config insists on it
        features, weights = self.engine.features.clone(), self.engine.alpha.to(queries, copy=True)  # (N, D), (N, C)
        if self.config.class_prior == "frequency":
            weights = weights - weights.sum(dim=1, keepdim=True) * shares  # K^-1 1, as rows of Y sum to 1
        return (self.engine.kernel(queries, features) * same) @ weights

    def classify(self, output: ModelOutput, index: Tensor | None = None) -> ModelOutput:
        """The GP's logits in place of the linear ones, with role ``classifier`` and after the warm-up."""
        if self.config.role == "refine" or not self.placement.warm:
            return output
        logits = self.logits(output, index if self.config.exclude_same_index else None)
        return output._replace(logits=logits.to(output.logits))

    @torch.no_grad()
    def refine(self, site: Site, output: ModelOutput, probs: Tensor) -> Tensor:
        """p_GP(x) in place of ``probs`` (U, C), at the site and after the warm-up that are configured."""
        if self.config.role == "classifier" or not self.placement.speaks_at(site):
            return probs
        return self.placement.mix(probs, torch.softmax(self.logits(output), dim=1))

    # Changing -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def observe(self, moment: Moment, networks: Networks, x: ModelOutput, batch: Batch) -> None:
        """Write the labelled batch and move the inverse, at the moment that is configured."""
        if moment == self.config.push:
            self.write(self.placement.memorable(networks, x, batch), batch.y, batch.index)
        if moment == "after":
            self.placement.steps += 1

    @torch.no_grad()
    def write(self, features: Tensor, labels: Tensor, index: Tensor | None = None) -> None:
        """Put labelled features into the buffer. O(B N^2).

        Args:
            features: (B, D), normalised already. labels: (B,). index: (B,) positions in the labelled set.
        """
        written = self.buffer.write(labels, index)
        rows = features.detach().to(self.engine.dtype)[written.rows]
        self.engine.remove(written.dropped)
        self.engine.replace(written.slots, rows, F.one_hot(labels[written.rows].long(), self.n_classes).to(rows))

    def rebuild(self) -> None:
        """Invert K afresh, as loading a checkpoint does. O(N^3)."""
        self.engine.rebuild()

    def empty_copy(self) -> "GaussianProcessRefiner":
        """A refiner with the same switches and nothing in its buffer."""
        device = self.engine.features.device
        return GaussianProcessRefiner(self.config, self.n_features, self.n_classes, device=device)
