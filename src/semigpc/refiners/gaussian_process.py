"""SemiGPC: the posterior mean of a GP over labelled features replaces the classifier's output."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from semigpc.gp import ExactGP, KernelHead
from semigpc.gp.certainty import class_scales, expected_probability, explained_share
from semigpc.pseudo_labels import LabelShares, one_hot
from semigpc.refiners.base import Device, GPFacts, LearnedScales, Moment, Placement, Refiner, Site
from semigpc.refiners.buffers import build_buffer
from semigpc.refiners.gp_config import GPConfig, Posterior, build_engine, choose_engine
from semigpc.refiners.tuning import ClassReach, build_learner, build_tuner
from semigpc.types import Batch, ModelOutput


class Belief(NamedTuple):
    """The posterior of a GP for M images, before alignment, smoothing or blending.

    Shapes: ``logits`` (M, C) z = lambda mu, ``spread`` (M, C) their standard deviations,
    ``explained`` (M,) the share 1 - var(h) / k(h, h) of the prior variance that the buffer
    explains.
    """

    logits: Tensor
    spread: Tensor
    explained: Tensor

    def confidence(self, kind: Posterior, classes: Tensor) -> Tensor:
        """Return the confidence of ``classes`` (M,), (M,) in [0, 1].

        It is softmax(z)_c, the share explained, or E[ softmax(f)_c ].
        """
        if kind == "variance":
            return self.explained
        if kind == "expected":
            return expected_probability(self.logits, self.spread, classes)
        return torch.softmax(self.logits, dim=1).gather(1, classes.unsqueeze(1)).squeeze(1)


class GaussianProcessRefiner(Refiner):
    """z(x) = lambda k(h(x), h_Q) K^-1 y_Q over a buffer of labelled features (equation 3).

    ``refine`` returns softmax(z) for the weak view, ``observe`` writes a labelled batch into the
    buffer and updates the inverse. A query costs O(M N (D + C)), a write O(B N^2). All of it is
    float32 or float64, whatever the network's precision. In a loop of your own, ``probs`` and
    ``remember`` do the same with plain tensors::

        targets = refiner.probs(weak_features, own=weak_logits.softmax(dim=1))  # before the losses
        refiner.remember(labeled_features, labels)  # after the optimiser's step

    Scales that are "auto" follow the features that ``probs`` receives; ``refiner.eval()`` keeps
    them as they are.

    Args:
        config: the options.
        n_features: D, of the feature the config names.
        n_classes: C.
        device: of the engine.
    """

    observes = True

    def __init__(
        self, config: GPConfig, n_features: int, n_classes: int, *, device: Device = None
    ) -> None:
        super().__init__()
        self.config = config
        self.n_features = n_features
        self.n_classes = n_classes
        self.placement = Placement(config)
        self.buffer = build_buffer(config.buffer_size, n_classes, balanced=config.balanced)
        self.choice = choose_engine(config, device)
        self.engine = build_engine(config, n_features, n_classes, device=device)
        self.learner = build_learner(config, n_classes, device=device)
        self.tuner = build_tuner(config, n_features, n_classes, device=device)
        asks = config.confidence == "agreement" and config.role == "refine"
        self.label_shares = LabelShares(n_classes, device=device) if asks else None
        self.reach = (
            ClassReach(n_classes, first=config.warmup_steps, device=device) if asks else None
        )
        self._latest: _Refined | None = None
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
        """l and lambda as they are now; no l if the kernel has none or it is learned."""
        scales: dict[str, Tensor | float] = dict(self.config.starting_scales(self.n_classes))
        if self.tuner is not None:
            scales["length_scale"] = float(self.tuner.length_scale)
            scales["logit_scale"] = self.tuner.logit_scale
        if self.learner is not None or not self.config.has_length_scale:
            del scales["length_scale"]
        return scales

    @property
    def logit_scale(self) -> Tensor | float:
        """lambda, as it is now."""
        if self.tuner is not None:
            return self.tuner.logit_scale
        return self.config.starting_scales(self.n_classes)["logit_scale"]

    @property
    def is_tuned(self) -> bool:
        """Whether scales that are "auto" were chosen, which needs weak views after the warm-up."""
        return self.tuner is None or self.tuner.has_tuned

    # Queries --------------------------------------------------------------------------------------

    def logits(self, output: ModelOutput, index: Tensor | None = None) -> Tensor:
        """Return z, (M, C), differentiable in the features; 0 far from every entry.

        Args:
            output: of M images.
            index: (M,) labelled images whose copies in the buffer are left out.
        """
        return self._logits(self._queries(output), index)

    def _logits(
        self, queries: Tensor, index: Tensor | None = None, *, trusted: bool = False
    ) -> Tensor:
        """Return z, (M, C), for queries (M, D); ``trusted`` skips the check for NaN."""
        prior = self._class_prior()
        mean = self._mean(queries, prior, trusted=trusted)
        if index is not None:
            mean = mean - self._copies(queries, index, prior)
        return self.logit_scale * mean

    def _mean(
        self, queries: Tensor, prior: "_ClassPrior | None", *, trusted: bool = False
    ) -> Tensor:
        """Return mu, (M, C), with equal evidence for all classes if there is a class prior."""
        if prior is None:
            return self.engine.mean(queries, trusted=trusted)
        mean = self.engine.mean(queries, offset=prior.shares, trusted=trusted)
        return mean * prior.evidence.to(mean, non_blocking=True)

    def _queries(self, output: ModelOutput) -> Tensor:
        """Return h(x), (M, D), in float32 at least, which is the type of the results too."""
        features = self.placement.features(output)
        return features.to(torch.promote_types(features.dtype, torch.float32))

    def _class_prior(self) -> "_ClassPrior | None":
        """Return n_c / n and sqrt(nbar / n_c) of the entries, on the CPU; None without a prior."""
        if self.config.class_prior == "none":
            return None
        counts = self.buffer.entries.class_counts().double()
        return _ClassPrior(counts / counts.sum().clamp_min(1), class_scales(counts))

    def _copies(self, queries: Tensor, index: Tensor, prior: "_ClassPrior | None") -> Tensor:
        """Return what entries of the same images add to the mean, (M, C)."""
        stored = self.buffer.entries.indices.to(index.device, non_blocking=True)
        same = index.unsqueeze(1) == stored  # (M, N)
        assert isinstance(self.engine, ExactGP)  # the config requires it
        features = self.engine.features.clone()  # (N, D)
        weights = self.engine.alpha.clone()  # (N, C)
        if prior is not None:
            ones = weights.sum(dim=1, keepdim=True)  # K^-1 1, as rows of Y sum to 1
            shares, evidence = (part.to(weights, non_blocking=True) for part in prior)
            weights = (weights - ones * shares) * evidence
        return ((self.engine.kernel(queries.to(features), features) * same) @ weights).to(queries)

    def classify(self, output: ModelOutput, index: Tensor | None = None) -> ModelOutput:
        """Return the output with the GP's logits, with role ``classifier`` after the warm-up."""
        if self.config.role == "refine" or not self.placement.warm:
            return output
        # in training, features that are not finite show in the loss
        trusted = torch.is_grad_enabled()
        left_out = index if self.config.exclude_same_index else None
        logits = self._logits(self._queries(output), left_out, trusted=trusted)
        return output._replace(logits=logits.to(output.logits))

    @torch.no_grad()
    def refine(self, site: Site, output: ModelOutput, probs: Tensor) -> Tensor:
        """Return p_GP(x) in place of ``probs`` (U, C), at the configured site.

        With confidence ``agreement``, (p_GP + p) / 2 where the network has another class.
        """
        if self.config.role == "classifier" or site != self.config.site:
            return probs
        queries = self._queries(output)
        self._tune(queries)
        if not self.placement.warm:
            return probs
        refined = torch.softmax(self._logits(queries), dim=1)
        self._latest = _Refined(output.features, refined)
        return self._finished(probs, refined, output.logits)

    @torch.no_grad()
    def probs(self, features: Tensor, own: Tensor | None = None) -> Tensor:
        """Return p_GP = softmax(z), (M, C), for features (M, D), in a loop of your own.

        ``own`` (M, C) are the classifier's probabilities. They are returned during the warm-up, and
        keep a share of 1 - blend afterwards. With confidence ``agreement`` the mean of that and
        ``own`` is returned where the GP has another class, which keeps the label below the usual
        thresholds. Without ``own`` the GP is used from its first entry on, with 1/C for each class
        while there is none. ``role``, ``site``, ``feature`` and ``push`` have no effect here.
        """
        if own is not None and own.shape != (len(features), self.n_classes):
            raise ValueError(
                f"own must have shape ({len(features)}, {self.n_classes}), a row per feature row; "
                f"got {tuple(own.shape)}. Pass the classifier's probabilities for the same rows."
            )
        queries = self._queries(_as_output(features))
        self._tune(queries)
        if own is not None and not self.placement.warm:
            return own
        refined = torch.softmax(self._logits(queries), dim=1)
        return refined if own is None else self._finished(own, refined, own.log())

    def _finished(self, probs: Tensor, refined: Tensor, logits: Tensor) -> Tensor:
        """Return what ``probs`` (U, C) become: ``refined``, blended, and half where they disagree.

        Half and half, no class has more than 0.75.

        Args:
            logits: (U, C) of the network, whose class is compared.
        """
        mixed = self.placement.mix(probs, refined)
        if self.label_shares is None:
            return mixed
        agree = self.label_shares.agree(logits, refined.argmax(dim=1))
        return torch.where(agree.unsqueeze(1), mixed, (mixed + probs) / 2)

    @torch.no_grad()
    def belief(self, output: ModelOutput) -> Belief:
        """Return z, its standard deviation lambda sqrt(nbar / n_c) var(h)^(1/2), and the share.

        The variance is one for all classes. It costs O(M N^2) with the exact engine, more than the
        mean's O(M N (D + C)).
        """
        queries = self._queries(output)
        prior = self._class_prior()
        offset = None if prior is None else prior.shares
        mean, variance = self.engine.predict(queries, offset=offset)
        evidence = queries.new_ones(self.n_classes)
        if prior is not None:
            evidence = prior.evidence.to(queries, non_blocking=True)
        scales = self.logit_scale * evidence
        explained = explained_share(variance, self.engine.kernel.diagonal(queries))
        return Belief(scales * mean, scales * variance.sqrt().unsqueeze(1), explained)

    @torch.no_grad()
    def confidence(self, output: ModelOutput, probs: Tensor) -> Tensor:
        """Return the confidence (U,) of ``probs`` (U, C), by the configured measure.

        In the warm-up it is the largest probability. Alignment, smoothing and blending change
        ``probs`` and not the posterior: ``agreement`` and ``expected`` take the class from
        ``probs``, and its probability from the GP's own posterior. ``agreement`` is 0 where the
        network has another class, or the view is too far from every labelled one. ``variance``
        does not depend on the class; with ``blend=0`` the GP changes no label and only decides
        which are used.
        """
        kind = self.config.confidence
        if not self.placement.warm or kind == "max_softmax":
            return probs.amax(dim=1)
        if kind != "agreement":
            return self.belief(output).confidence(kind, probs.argmax(dim=1)).to(probs)
        if self.label_shares is None:  # the GP is the classifier
            return probs.amax(dim=1)
        classes = probs.argmax(dim=1)
        own = self._refined(output).gather(1, classes.unsqueeze(1)).squeeze(1).to(probs)
        believed = self.label_shares.agree(output.logits, classes)
        if self.reach is not None and self.reach.known:
            believed &= self.reach.covers(self._queries(output), classes, self.engine)
        return torch.where(believed, own, 0)

    def _refined(self, output: ModelOutput) -> Tensor:
        """Return softmax(z), (U, C), of the views that ``refine`` has just seen, or of others."""
        latest = self._latest
        if latest is not None and latest.features is output.features:
            return latest.probs
        return torch.softmax(self._logits(self._queries(output), trusted=True), dim=1)

    @torch.no_grad()
    def head(self) -> KernelHead:
        """Return a module of plain tensors from features (M, D) of the network to z, (M, C).

        It holds the buffer as it is now; NoExpansionError if the engine's mean is no fixed sum of
        kernels.
        """
        prior = self._class_prior()
        scales = torch.full((self.n_classes,), float(self.logit_scale), dtype=torch.float64)
        if prior is None:
            expansion = self.engine.expansion()
        else:
            expansion = self.engine.expansion(offset=prior.shares)
            scales = scales * prior.evidence
        scales = scales.to(expansion.weights.device)
        return KernelHead(self.engine.kernel, expansion, scales=scales, unit=self.config.l2norm)

    # Updates --------------------------------------------------------------------------------------

    @torch.no_grad()
    def observe(self, moment: Moment, x: ModelOutput, batch: Batch) -> None:
        """Write the labelled batch and update the inverse, at the configured moment."""
        if moment == self.config.push:
            self.store(x, batch.y, batch.index)
            self._follow(batch.y)
        if moment == "after":
            self._count()

    @torch.no_grad()
    def remember(self, features: Tensor, labels: Tensor, index: Tensor | None = None) -> None:
        """Write labelled features and count a step of a loop of your own. O(B N^2).

        Args:
            features: (B, D) as the network has them. labels: (B,). index: (B,) positions in the
                labelled set, if known.
        """
        self.store(_as_output(features), labels, index)
        self._follow(labels)
        self._count()

    def _follow(self, labels: Tensor) -> None:
        """Count the labels (B,) that the network is trained on."""
        if self.label_shares is not None:
            self.label_shares.add(labels)

    def _tune(self, queries: Tensor) -> None:
        """Pass the weak views (U, D) of a step to the tuner; not in evaluation mode."""
        if self.tuner is None or not self.training:
            return
        self.tuner.see(queries)
        step = int(self.placement.steps)
        if len(self.engine) and self.tuner.is_due(step):
            self.tuner.tune_length(self.engine, step)
            self.tuner.tune_logits(self._mean(self.tuner.views, self._class_prior()))

    def _count(self) -> None:
        """Count a step, after which the kernel may be learned."""
        self._latest = None
        self.placement.steps += 1
        if self.reach is not None and self.training:
            self.reach.after_step(int(self.placement.steps), self.engine, self.buffer.entries)
        if self.learner is not None:
            step = int(self.placement.steps)
            self.learner.after_step(step, self.engine, logit_scale=self.logit_scale)

    def store(self, output: ModelOutput, labels: Tensor, index: Tensor | None = None) -> None:
        """Write labelled images (B rows) into the buffer, and count no step. O(B N^2)."""
        self.write(self.placement.features(output), labels, index)

    @torch.no_grad()
    def write(self, features: Tensor, labels: Tensor, index: Tensor | None = None) -> None:
        """Write labelled features into the buffer; nothing changes if an error is raised.

        O(B N^2).

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
        """Return a refiner with these options, engine and scales, and an empty buffer."""
        config = replace(self.config, engine=self.choice.options)
        device = self.engine.features.device
        copy = GaussianProcessRefiner(config, self.n_features, self.n_classes, device=device)
        _adopt(copy, self.state_dict())
        return copy

    @property
    def learned(self) -> LearnedScales | None:
        """The learned scales, and how often they changed; None with learn="never"."""
        return None if self.learner is None else self.learner.learned

    def notes(self, *, has_threshold: bool) -> list[str]:
        """Return which engine ``auto`` chose, and whether ``confidence`` has no effect."""
        notes = []
        if self.config.engine.name == "auto" and self.choice.name != "exact":
            name = self.choice.name
            reason = self.choice.reason
            notes.append(f"The GP is computed by the {name} engine: {reason}.")
        if self.config.confidence in ("variance", "expected") and not has_threshold:
            notes.append("refiner.confidence has no effect: the algorithm has no threshold.")
        return notes

    def facts(self) -> GPFacts:
        """Return the engine and why it was chosen, the entries, and the scales."""
        return {
            "engine": self.choice.name,
            "engine_reason": self.choice.reason,
            "entries": len(self.engine),
            "class_counts": self.buffer.entries.class_counts().tolist(),
            "scales": {name: float(value) for name, value in self.scales.items()},
            "learned": self.learned,
        }


class _Refined(NamedTuple):
    """Features (U, D) of the weak views of a step, as the network has them, and softmax(z)."""

    features: Tensor
    probs: Tensor


class _ClassPrior(NamedTuple):
    """``shares`` (C,) are subtracted from targets; means are multiplied by ``evidence`` (C,)."""

    shares: Tensor
    evidence: Tensor


def _as_output(features: Tensor) -> ModelOutput:
    """Return features as a network's output, under both names that a config may select."""
    return ModelOutput(features, features, {"projection": features})


def _adopt(
    refiner: GaussianProcessRefiner, state: dict[str, Tensor], prefix: str = "", *_: object
) -> None:
    """Load the scales of a state, before its rows: loading those rebuilds the engine."""
    for name, part in (("learner", refiner.learner), ("tuner", refiner.tuner)):
        if part is None:
            continue
        keys = {key: f"{prefix}{name}.{key}" for key in part.state_dict()}
        if all(key in state for key in keys.values()):
            part.adopt({own: state[key] for own, key in keys.items()}, refiner.engine)
