"""SemiGPC: the posterior mean of a Gaussian process over labelled features, in place of the
classifier's probabilities.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semigpc.gp import ExactGP, KernelHead
from semigpc.gp.certainty import class_scales, expected_probability, explained_share
from semigpc.pseudo_labels import one_hot
from semigpc.refiners.base import Moment, Placement, Refiner, Site
from semigpc.refiners.buffers import build_buffer
from semigpc.refiners.engines import Confidence, GPConfig, build_engine, choose_engine
from semigpc.refiners.learning import build_learner
from semigpc.refiners.tuning import build_tuner
from semigpc.types import Batch, ModelOutput


class Belief(NamedTuple):
    """What a GP believes of M images before anything else has been made of it.

    Shapes: ``logits`` (M, C) z = lambda mu, ``spread`` (M, C) their standard deviations,
    ``explained`` (M,) the share 1 - var(h) / k(h, h) of the prior variance that the buffer
    explains.
    """

    logits: Tensor
    spread: Tensor
    explained: Tensor

    def confidence(self, kind: Confidence, classes: Tensor) -> Tensor:
        """(M,) how sure the ``classes`` (M,) are, in [0, 1]: softmax(z)_c, the share explained, or
        E[ softmax(f)_c ].
        """
        if kind == "variance":
            return self.explained
        if kind == "expected":
            return expected_probability(self.logits, self.spread, classes)
        return torch.softmax(self.logits, dim=1).gather(1, classes.unsqueeze(1)).squeeze(1)


class GaussianProcessRefiner(Refiner):
    """z(x) = lambda k(h(x), h_Q) K^-1 y_Q over a buffer of labelled features (equation 3 of the
    paper).

    ``refine`` returns softmax(z) for the weak view, ``observe`` writes a labelled batch into the
    buffer and updates the inverse. A query costs O(M N (D + C)), a write O(B N^2). All of it is
    float32 or float64, whatever the network's precision. In a loop of your own, ``probs`` and
    ``remember`` do the same with plain tensors::

        targets = refiner.probs(weak_features, own=weak_logits.softmax(dim=1))  # before the losses
        refiner.remember(labeled_features, labels)  # after the optimiser's step

    Scales that are "auto" follow the features that ``probs`` is asked about; ``refiner.eval()``
    leaves them as they are.

    Args:
        config: the switches.
        n_features: D, of the feature the config names.
        n_classes: C.
        device: where the engine lives.
    """

    observes = True

    def __init__(
        self,
        config: GPConfig,
        n_features: int,
        n_classes: int,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.config, self.n_features, self.n_classes = config, n_features, n_classes
        self.placement = Placement(config)
        self.buffer = build_buffer(config.buffer_size, n_classes, balanced=config.balanced)
        self.choice = choose_engine(config, device)
        self.engine = build_engine(config, n_features, n_classes, device=device)
        self.learner = build_learner(config, n_classes, device=device)
        self.tuner = build_tuner(config, n_features, n_classes, device=device)
        self.register_load_state_dict_pre_hook(_adopt)  # type: ignore[no-untyped-call]

    @property
    def gp(self) -> "GaussianProcessRefiner":
        """The refiner itself: its logits can be evaluated and exported."""
        return self

    @property
    def entries_per_class(self) -> int:
        """Rows of each class in a balanced buffer, which training fills; 0 otherwise."""
        return self.buffer.entries_per_class

    @property
    def scales(self) -> dict[str, Tensor | float]:
        """l and lambda as they are now: ``length_scale``, unless the kernel has none or it is
        learned, and ``logit_scale``.
        """
        scales: dict[str, Tensor | float] = dict(self.config.starting_scales(self.n_classes))
        if self.tuner is not None:
            scales = {
                "length_scale": float(self.tuner.length_scale),
                "logit_scale": self.tuner.logit_scale,
            }
        if self.learner is not None or not self.config.has_length_scale:
            del scales["length_scale"]
        return scales

    @property
    def logit_scale(self) -> Tensor | float:
        """lambda, as it is now."""
        return self.scales["logit_scale"]

    @property
    def is_tuned(self) -> bool:
        """Whether scales that are "auto" have been found: not during the warm-up, nor where no weak
        view is ever seen.
        """
        return self.tuner is None or self.tuner.has_looked

    # Asking ---------------------------------------------------------------------------------------

    def logits(self, output: ModelOutput, index: Tensor | None = None) -> Tensor:
        """z, (M, C), differentiable in the features. Far from every entry, and while the buffer is
        empty, it is 0.

        Args:
            output: of M images.
            index: (M,) labelled images whose copies in the buffer must not answer for them.
        """
        return self._logits(self._queries(output), index)

    def _logits(
        self, queries: Tensor, index: Tensor | None = None, *, trusted: bool = False
    ) -> Tensor:
        prior = self._class_prior()
        mean = self._mean(queries, prior, trusted=trusted)
        return self.logit_scale * (
            mean if index is None else mean - self._copies(queries, index, prior)
        )

    def _mean(
        self, queries: Tensor, prior: "_ClassPrior | None", *, trusted: bool = False
    ) -> Tensor:
        """mu, (M, C), with equal evidence for all classes where there is a class prior."""
        mean = self.engine.mean(
            queries, offset=None if prior is None else prior.shares, trusted=trusted
        )
        return mean if prior is None else mean * prior.evidence.to(mean, non_blocking=True)

    def _queries(self, output: ModelOutput) -> Tensor:
        """h(x), (M, D), in float32 at least, which is also what comes back."""
        features = self.placement.features(output)
        return features.to(torch.promote_types(features.dtype, torch.float32))

    def _class_prior(self) -> "_ClassPrior | None":
        """n_c / n and sqrt(nbar / n_c) of the entries, on the CPU, if a class prior is configured."""
        if self.config.class_prior == "none":
            return None
        counts = self.buffer.entries.class_counts().double()
        return _ClassPrior(counts / counts.sum().clamp_min(1), class_scales(counts))

    def _copies(self, queries: Tensor, index: Tensor, prior: "_ClassPrior | None") -> Tensor:
        """What the entries of the same images add to the mean, (M, C), with equal evidence for all
        classes as there.
        """
        same = index.unsqueeze(1) == self.buffer.entries.indices.to(
            index.device, non_blocking=True
        )  # (M, N)
        assert isinstance(self.engine, ExactGP)  # the config insists on it
        features, weights = (
            self.engine.features.clone(),
            self.engine.alpha.clone(),
        )  # (N, D), (N, C)
        if prior is not None:
            ones = weights.sum(dim=1, keepdim=True)  # K^-1 1, as rows of Y sum to 1
            shares, evidence = (part.to(weights, non_blocking=True) for part in prior)
            weights = (weights - ones * shares) * evidence
        return ((self.engine.kernel(queries.to(features), features) * same) @ weights).to(queries)

    def classify(self, output: ModelOutput, index: Tensor | None = None) -> ModelOutput:
        """The GP's logits in place of the linear ones, with role ``classifier`` and after the
        warm-up.
        """
        if self.config.role == "refine" or not self.placement.warm:
            return output
        trusted = (
            torch.is_grad_enabled()
        )  # in training, features that are not finite show in the loss
        logits = self._logits(
            self._queries(output),
            index if self.config.exclude_same_index else None,
            trusted=trusted,
        )
        return output._replace(logits=logits.to(output.logits))

    @torch.no_grad()
    def refine(self, site: Site, output: ModelOutput, probs: Tensor) -> Tensor:
        """p_GP(x) in place of ``probs`` (U, C), at the site and after the warm-up that are
        configured.
        """
        if self.config.role == "classifier" or site != self.config.site:
            return probs
        queries = self._queries(output)
        self._tune(queries)
        return (
            self.placement.mix(probs, torch.softmax(self._logits(queries), dim=1))
            if self.placement.warm
            else probs
        )

    @torch.no_grad()
    def probs(self, features: Tensor, own: Tensor | None = None) -> Tensor:
        """p_GP = softmax(z) for features (M, D) as a network has them: (M, C), for loops that are
        not ours.

        ``own`` is what the loop's classifier says, (M, C). It is the answer during the warm-up, and
        keeps a share of 1 - blend
        afterwards. Without it the GP answers alone from its first entry on: 1/C for each class
        while there is none. Where and when to ask is the caller's choice: ``role``, ``site``,
        ``feature`` and ``push`` have no say here.
        """
        if own is not None and own.shape != (len(features), self.n_classes):
            raise ValueError(
                f"own must have shape ({len(features)}, {self.n_classes}), a row for each of the features; "
                f"got {tuple(own.shape)}. Hand over the classifier's probabilities for the same rows."
            )
        queries = self._queries(_said(features))
        self._tune(queries)
        if own is not None and not self.placement.warm:
            return own
        refined = torch.softmax(self._logits(queries), dim=1)
        return refined if own is None else self.placement.mix(own, refined)

    @torch.no_grad()
    def belief(self, output: ModelOutput) -> Belief:
        """z, the standard deviation lambda sqrt(nbar / n_c) var(h)^(1/2) of each, and the share of
        the variance explained.

        The variance is one for all classes. It costs O(M N^2) with the exact engine, more than the
        mean's O(M N (D + C)).
        """
        queries = self._queries(output)
        prior = self._class_prior()
        mean, variance = self.engine.predict(
            queries, offset=None if prior is None else prior.shares
        )
        evidence = (
            queries.new_ones(self.n_classes)
            if prior is None
            else prior.evidence.to(queries, non_blocking=True)
        )
        scales = self.logit_scale * evidence
        explained = explained_share(variance, self.engine.kernel.diagonal(queries))
        return Belief(scales * mean, scales * variance.sqrt().unsqueeze(1), explained)

    @torch.no_grad()
    def confidence(self, output: ModelOutput, probs: Tensor) -> Tensor:
        """How sure ``probs`` (U, C) are, (U,), by the measure that is configured; the largest
        probability in the warm-up.

        What alignment, smoothing and blending made of the GP's answer is in ``probs`` and not in
        the posterior: ``expected`` takes the class from ``probs``, and the probability of it from
        the GP's own mean and variance. ``variance`` says nothing about the class; with ``blend=0``
        the GP changes no label and only decides which are accepted.
        """
        kind = self.config.confidence
        if kind == "max_softmax" or not self.placement.warm:
            return probs.amax(dim=1)
        return self.belief(output).confidence(kind, probs.argmax(dim=1)).to(probs)

    @torch.no_grad()
    def head(self) -> KernelHead:
        """The logits of :meth:`logits` as a module of plain tensors: features as the network has
        them, (M, D), to z, (M, C).

        It holds the buffer as it stands now; NoExpansionError if the engine's mean is no fixed sum
        of kernels.
        """
        prior = self._class_prior()
        scales = torch.full((self.n_classes,), float(self.logit_scale), dtype=torch.float64)
        expansion = self.engine.expansion(offset=None if prior is None else prior.shares)
        scales = (scales if prior is None else scales * prior.evidence).to(expansion.weights.device)
        return KernelHead(self.engine.kernel, expansion, scales=scales, unit=self.config.l2norm)

    # Changing -------------------------------------------------------------------------------------

    @torch.no_grad()
    def observe(self, moment: Moment, x: ModelOutput, batch: Batch) -> None:
        """Write the labelled batch and move the inverse, at the moment that is configured."""
        if moment == self.config.push:
            self.store(x, batch.y, batch.index)
        if moment == "after":
            self._count()

    @torch.no_grad()
    def remember(self, features: Tensor, labels: Tensor, index: Tensor | None = None) -> None:
        """One step of a loop that is not ours: write labelled features, and count the step for
        warm-up and learning. O(B N^2).

        Args:
            features: (B, D) as the network has them. labels: (B,). index: (B,) positions in the
                labelled set, if known.
        """
        self.store(_said(features), labels, index)
        self._count()

    def _tune(self, queries: Tensor) -> None:
        """Show the weak views of a step to the tuner, and let it follow them when it is time; not
        in evaluation mode.
        """
        if self.tuner is None or not self.training:
            return
        self.tuner.sees(queries)
        step = int(self.placement.steps)
        if len(self.engine) and self.tuner.is_due(step):
            self.tuner.tune_length(self.engine, step)
            self.tuner.tune_logits(self._mean(self.tuner.views, self._class_prior()))

    def _count(self) -> None:
        self.placement.steps += 1
        if self.learner is not None:
            self.learner.after_step(
                int(self.placement.steps), self.engine, logit_scale=self.logit_scale
            )

    def store(self, output: ModelOutput, labels: Tensor, index: Tensor | None = None) -> None:
        """Write labelled images (B rows) into the buffer, and count no step. O(B N^2)."""
        self.write(self.placement.features(output), labels, index)

    @torch.no_grad()
    def write(self, features: Tensor, labels: Tensor, index: Tensor | None = None) -> None:
        """Put labelled features into the buffer. O(B N^2). A batch that raises an error changes
        neither buffer nor engine.

        Args:
            features: (B, D), normalised already. labels: (B,). index: (B,) positions in the
                labelled set.
        """
        on_host, index = self.buffer.entries.checked(labels, index)
        targets = one_hot(labels, self.n_classes).to(features)
        features, targets = self.engine.checked_rows(len(labels), features, targets)
        written = self.buffer.plan(on_host)
        rows = written.rows.to(features.device, non_blocking=True)
        self.engine.put(written.slots, features[rows], targets[rows])
        self.buffer.commit(written, on_host, index)

    def rebuild(self) -> None:
        """Invert K afresh, as loading a checkpoint does. O(N^3)."""
        self.engine.rebuild()

    def empty_copy(self) -> "GaussianProcessRefiner":
        """A refiner with the same switches, the same engine and the scales found so far, and
        nothing in its buffer.
        """
        config = replace(self.config, engine=self.choice.options)
        copy = GaussianProcessRefiner(
            config, self.n_features, self.n_classes, device=self.engine.features.device
        )
        _adopt(copy, self.state_dict())
        return copy

    @property
    def learned(self) -> dict[str, Any] | None:
        """Length-scale, output scale and noise as they were learned, and how often; None with
        learn="never".
        """
        return None if self.learner is None else self.learner.learned

    def notes(self, *, has_threshold: bool) -> list[str]:
        """Return which engine ``auto`` chose, and whether ``confidence`` has no effect."""
        notes = []
        if self.config.engine.name == "auto" and self.choice.name != "exact":
            name, reason = self.choice.name, self.choice.reason
            notes.append(f"The GP is computed by the {name} engine: {reason}.")
        if self.config.confidence != "max_softmax" and not has_threshold:
            notes.append("refiner.confidence has no effect: the algorithm has no threshold.")
        return notes

    def facts(self) -> dict[str, Any]:
        """What to say of it: the engine and why it is that one, the entries, what was learned."""
        return {
            "engine": self.choice.name,
            "engine_reason": self.choice.reason,
            "entries": len(self.engine),
            "class_counts": self.buffer.entries.class_counts().tolist(),
            "scales": {name: float(value) for name, value in self.scales.items()},
            "learned": self.learned,
        }


class _ClassPrior(NamedTuple):
    """Shapes: ``shares`` (C,), ``evidence`` (C,), by which means are multiplied so that every class
    has equal evidence.
    """

    shares: Tensor
    evidence: Tensor


def _said(features: Tensor) -> ModelOutput:
    """Return features as a network's output, under both names that a config may select; the logits
    are not used.
    """
    return ModelOutput(features, features, {"projection": features})


def _adopt(
    refiner: GaussianProcessRefiner, state: dict[str, Any], prefix: str = "", *_: object
) -> None:
    """Give a refiner the scales of a state; before its rows are loaded, as that rebuilds the engine
    with its kernel.
    """
    for name in ("learner", "tuner"):
        part = getattr(refiner, name)
        wanted = [] if part is None else list(part.state_dict())
        saved = {
            key: state[f"{prefix}{name}.{key}"]
            for key in wanted
            if f"{prefix}{name}.{key}" in state
        }
        if part is not None and len(saved) == len(wanted):
            part.adopt(saved, refiner.engine)
