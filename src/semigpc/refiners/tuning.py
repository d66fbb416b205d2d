"""What follows the features of a run: a GP's scales, and how far images of a class lie apart."""

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import Tensor

from semigpc.gp import Engine, Kernel, NotPositiveDefiniteError, learn_kernel
from semigpc.gp.kernels import squared_distances
from semigpc.gp.scales import neighbour_length_scale, scales_of, with_scales
from semigpc.pseudo_labels import count_classes
from semigpc.refiners.base import Device, LearnedScales
from semigpc.refiners.buffers import Ledger
from semigpc.refiners.gp_config import GPConfig, build_kernel
from semigpc.types import HostState

logger = logging.getLogger(__name__)

RECENT_VIEWS = 512  # weak views that scales are chosen from
CONFIDENT_SHARE = 0.8  # share of recent views that reach CONFIDENT
# above the usual threshold of 0.95, so that alignment and smoothing, as in SimMatch, leave most
# above it too
CONFIDENT = 0.999
LENGTH_CHANGE = 0.1  # change of log l that is worth rebuilding the engine
TUNING_STEPS = 50  # between two choices of the scales
# steps between two rebuilds are at least N / 4, since a rebuild costs as much as N / B updates
ROWS_PER_STEP = 4
LOGIT_SCALES = (0.1, 1e4)  # lambda lies between these
HALVINGS = 20  # of the range of log lambda, which is then right to 1e-5
LEARNED_ROWS = 512  # rows that a kernel is learned from at most: a few seconds
NOISE_FACTORS = (1, 2, 4, 8)  # tried in turn, where K with the learned noise is near to singular
ROWS_PER_CLASS = 2  # on average, before a kernel is learned
LABELS_PER_CLASS = 8  # images of each class, before distances between them say how far it reaches
EVEN = 2  # times as many labelled images as the smallest class has, in the largest, are still even
REACHED_SHARE = 0.8  # of the labelled images of a class lie within its reach of another one
NO_LIMIT = torch.finfo(torch.float64).max  # on a distance: finite, as all that is saved
MEASURED_ROWS = 1024  # rows of the buffer whose distances are measured


class FeatureState(HostState):
    """State of the features of a run: it follows them to their device, never to their dtype."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow a surrounding module to its device, never to its dtype, as the engine does."""
        here = next(value for name, value in self.named_buffers() if name not in self.on_host)
        device = fn(torch.empty(0, device=here.device)).device
        return super()._apply(lambda tensor: tensor.to(device), recurse)


class ClassReach(FeatureState):
    """How near to a labelled image an unlabelled one has to be, to count as one of its class.

        r_c  =  the 0.8-quantile over rows i of class c of  min_j |h_i - h_j|^2

    over rows j of class c that are of other images than i; between two of them, the larger. An
    image of a class that nobody labelled often lies farther from every labelled row. Distances are
    measured when the warm-up ends, and then every 50 steps, from at most 1024 rows: O(1024 N D).

    No label is turned down where some class has fewer than eight labelled images, whose distances
    say too little, or fewer than half as many as another: the more labels a class has, the nearer
    is the next one, and a smaller reach for frequent classes would change the shares of all.

    Args:
        n_classes: C. first: steps before the first measurement.
    """

    on_host = ("due", "known")
    limits: Tensor
    due: Tensor
    known: Tensor

    def __init__(self, n_classes: int, *, first: int, device: Device = None) -> None:
        super().__init__()
        limits = torch.full((n_classes,), NO_LIMIT, dtype=torch.float64, device=device)
        self.register_buffer("limits", limits)
        self.register_buffer("due", torch.tensor(first))
        self.register_buffer("known", torch.tensor(False))

    def after_step(self, step: int, engine: Engine, entries: Ledger) -> None:
        """Measure the distances if it is time to; the host does not wait for the device."""
        if step < int(self.due):
            return
        self.due.fill_(step + TUNING_STEPS)
        slots = entries.occupied.nonzero().squeeze(1)
        images = torch.stack([entries.labels[slots], entries.indices[slots]]).unique(dim=1)
        counts = torch.bincount(images[0], minlength=len(self.limits))
        fewest = int(counts.min())
        even = fewest >= LABELS_PER_CLASS and int(counts.max()) <= EVEN * fewest
        self.known.fill_(even and int(images[1].min()) >= 0)
        if self.known:
            slots = slots[:: -(-len(slots) // MEASURED_ROWS)]
            self._measure(engine, entries, slots)

    def _measure(self, engine: Engine, entries: Ledger, slots: Tensor) -> None:
        device = self.limits.device
        labels = entries.labels.to(device, non_blocking=True)
        images = entries.indices.to(device, non_blocking=True)
        rows = slots.to(device, non_blocking=True)
        distances = squared_distances(engine.features[rows], engine.features)  # (n, N)
        others = (labels[rows, None] == labels) & (images[rows, None] != images)
        nearest = distances.masked_fill(~others, torch.inf).amin(dim=1)
        ascending = nearest.argsort()
        order = ascending[labels[rows][ascending].argsort(stable=True)]  # by class, then distance
        counts = count_classes(labels[rows], len(self.limits))
        place = counts.cumsum(0) - counts + (REACHED_SHARE * (counts - 1)).ceil().long()
        self.limits.copy_(nearest[order][place.clamp(0, len(rows) - 1)])
        self.limits.masked_fill_(counts == 0, NO_LIMIT).clamp_(max=NO_LIMIT)

    def covers(self, queries: Tensor, classes: Tensor, engine: Engine) -> Tensor:
        """Return whether views are within their class's reach of a labelled row, (M,) bool.

        O(M N D).

        Args:
            queries: (M, D). classes: (M,).
        """
        return engine.nearest(queries) <= self.limits[classes]


class RunScales(FeatureState):
    """Scales found in a run. They are state: the engine's kernel is always made from them."""

    config: GPConfig

    @abstractmethod
    def anchor(self, engine: Engine) -> None:
        """Rebuild an engine with the scales found so far."""

    def adopt(self, state: Mapping[str, Tensor], engine: Engine) -> None:
        """Load the scales of another run, its ``state_dict``, and rebuild an engine with them."""
        self.load_state_dict(dict(state))
        self.anchor(engine)


class ScaleTuner(RunScales):
    """Chooses l and lambda from recent weak views, when the warm-up ends and then every 50 steps.

        l^2     =  1.5 median_i min_j |h_i - h_j|^2             views i, rows j of the buffer
        lambda  :  max softmax(lambda mu(h_i)) >= 0.999 for 0.8 of the views

    So the typical view has a neighbour within the kernel's reach, whatever the network, and four of
    five pseudo-labels are confident, whatever the number of classes. A choice costs O(512 N (D +
    C)). Where l has changed by a tenth or more the engine is rebuilt, in O(N^3) if it is exact, and
    then not again for N / 4 steps.

    The views and the scales are its state, so that a resumed run continues bit for bit. lambda
    stays on the device; the host waits for it once per choice, for l, and where the engine is
    rebuilt.

    Args:
        config: options; a scale that is not "auto" keeps its value. n_features: D. n_classes: C.
    """

    on_host = ("length_scale", "filled", "due", "rebuild_due")
    recent: Tensor
    length_scale: Tensor
    logit_scale: Tensor
    filled: Tensor
    due: Tensor
    rebuild_due: Tensor

    def __init__(
        self, config: GPConfig, n_features: int, n_classes: int, *, device: Device = None
    ) -> None:
        super().__init__()
        self.config = config
        automatic = "length_scale" in config.automatic and config.has_length_scale
        self.tunes_length = automatic and config.learn == "never"
        self.register_buffer("recent", torch.zeros(RECENT_VIEWS, n_features, device=device))
        self.register_buffer("filled", torch.tensor(0))
        self.register_buffer("due", torch.tensor(config.warmup_steps))
        self.register_buffer("rebuild_due", torch.tensor(0))
        for name, value in config.starting_scales(n_classes).items():
            place = None if name in self.on_host else device
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64, device=place))

    def see(self, queries: Tensor) -> None:
        """Remember views (M, D), at the cost of copying 512 of them."""
        newest = queries[-RECENT_VIEWS:].detach().to(self.recent)
        self.recent = torch.cat([newest, self.recent[: RECENT_VIEWS - len(newest)]])
        self.filled.clamp_(max=RECENT_VIEWS - len(newest)).add_(len(newest))

    def is_due(self, step: int) -> bool:
        """Return whether to choose scales at this step, and if so set the next time."""
        if step < int(self.due):
            return False
        self.due.fill_(step + TUNING_STEPS)
        return True

    @property
    def has_tuned(self) -> bool:
        """Whether the scales come from the features of the run."""
        return int(self.due) > self.config.warmup_steps

    @property
    def views(self) -> Tensor:
        """The recent views, (at most 512, D), the newest first."""
        return self.recent[: int(self.filled)]

    def tune_length(self, engine: Engine, step: int) -> None:
        """Choose l by the distances from views to their nearest rows, and rebuild the engine."""
        if not self.tunes_length or step < int(self.rebuild_due):
            return
        views = self.views.to(engine.dtype)
        length = neighbour_length_scale(views, engine.features, engine.occupied)
        if abs(math.log(length / float(self.length_scale))) > LENGTH_CHANGE:
            before = self.length_scale.clone()
            self.length_scale.fill_(length)
            self.rebuild_due.fill_(step + self.config.buffer_size // ROWS_PER_STEP)
            try:
                self.anchor(engine)
            except NotPositiveDefiniteError as error:
                logger.info("length-scale %g is not used: %s", length, error)
                self.length_scale.copy_(before)

    def tune_logits(self, mean: Tensor) -> None:
        """Choose lambda for the mean mu (M, C) of the recent views. O(M C), without waiting."""
        if "logit_scale" not in self.config.automatic:
            return
        low, high = (torch.full_like(self.logit_scale, bound) for bound in LOGIT_SCALES)
        for _ in range(HALVINGS):  # the share that is confident grows with lambda
            middle = (low * high).sqrt()
            confident = torch.softmax(middle * mean, dim=1).amax(dim=1) >= CONFIDENT
            enough = confident.double().mean() >= CONFIDENT_SHARE
            low = torch.where(enough, low, middle)
            high = torch.where(enough, middle, high)
        self.logit_scale.copy_(high)

    def anchor(self, engine: Engine) -> None:
        """Rebuild an engine with the length-scale found so far."""
        if self.tunes_length:
            kernel = build_kernel(self.config, float(self.length_scale))
            engine.reanchor(kernel, self.config.noise_std)


class KernelLearner(RunScales):
    """Learns l, eta and sigma from the buffer every ``learn_steps`` steps.

    The online rule is exact for ONE kernel: it moves K^-1 as rows come and go. Another kernel
    changes every entry of K, so the engine is rebuilt with it from the rows it holds, once, O(N^3)
    for the exact one, and the rule goes on from there. Between two such moments nothing differs
    from a run with that kernel from the beginning. Learning itself uses 512 rows at most, as many
    of every class as fit, and takes a few seconds. Targets are used as they are stored, without the
    class prior of the config.

    Args:
        config: options. n_classes: C.
    """

    log_scales: Tensor
    times: Tensor

    def __init__(self, config: GPConfig, n_classes: int, *, device: Device = None) -> None:
        super().__init__()
        self.config = config
        self.n_classes = n_classes
        scales = scales_of(build_kernel(config), config.noise_std).unsqueeze(0)
        self.register_buffer("log_scales", scales.to(device))  # (1, 3) log l, log eta, log sigma
        self.register_buffer("times", torch.tensor(0, device=device))

    @property
    def learned(self) -> LearnedScales:
        """How often something better was found, and the scales as they are now."""
        kernel, noise_std = self._kernel()
        length_scale, output_scale, _ = scales_of(kernel, noise_std).exp().tolist()
        learned = LearnedScales(
            times=int(self.times), output_scale=output_scale, noise_std=noise_std
        )
        if self.config.has_length_scale:
            learned["length_scale"] = length_scale
        return learned

    def after_step(self, step: int, engine: Engine, *, logit_scale: Tensor | float) -> None:
        """Learn, if it is time and the buffer holds enough rows.

        Args:
            step: steps done, from 1. logit_scale: lambda, which predictions are made with.
        """
        if step % self.config.learn_steps:
            return
        rows = engine.occupied.nonzero().squeeze(1)
        targets = engine.targets[rows]
        counts = torch.bincount(targets.argmax(dim=1), minlength=self.n_classes)
        usable_classes = int((counts >= ROWS_PER_CLASS).sum())
        if len(rows) < ROWS_PER_CLASS * self.n_classes or usable_classes < 2:
            logger.info("step %d: too few rows to learn from: %s", step, counts.tolist())
            return
        result = learn_kernel(
            engine.features[rows],
            targets,
            *self._kernel(),
            logit_scale=float(logit_scale),
            rows=LEARNED_ROWS,
            seed=step,
        )
        if result.improved:
            self._take(scales_of(result.kernel, result.noise_std), engine, step)

    def _take(self, scales: Tensor, engine: Engine, step: int) -> None:
        """Rebuild the engine with learned scales (3,); with more noise where K is near singular.

        If that is not enough, nothing changes.
        """
        scales_before = self.log_scales.clone()
        times_before = self.times.clone()
        self.times += 1
        for factor in NOISE_FACTORS:
            self.log_scales[0] = scales
            self.log_scales[:, 2] += math.log(factor)
            try:
                self.anchor(engine)
            except NotPositiveDefiniteError as error:
                logger.info("step %d: not used, with %g times the noise: %s", step, factor, error)
            else:
                logger.info("step %d: with %g times the noise: %s", step, factor, self.learned)
                return
        self.log_scales.copy_(scales_before)
        self.times.copy_(times_before)

    def anchor(self, engine: Engine) -> None:
        """Rebuild an engine with the scales learned so far; the config's before any."""
        engine.reanchor(*self._kernel())

    def adopt(self, state: Mapping[str, Tensor], engine: Engine) -> None:
        """Load the scales of another run, its ``state_dict``, and rebuild an engine with them."""
        scales = state["log_scales"]
        if scales.shape != self.log_scales.shape or not bool(scales.isfinite().all()):
            raise ValueError(
                f"learned scales must be finite and have shape {tuple(self.log_scales.shape)}; "
                f"the saved ones have {tuple(scales.shape)}, or are damaged."
            )
        super().adopt(state, engine)

    def _kernel(self) -> tuple[Kernel, float]:
        """Return the kernel and sigma as they are now."""
        kernel = build_kernel(self.config)
        if not int(self.times):
            return kernel, self.config.noise_std
        return with_scales(kernel, self.log_scales[0].cpu())


def build_tuner(
    config: GPConfig, n_features: int, n_classes: int, *, device: Device = None
) -> ScaleTuner | None:
    """Return a tuner, if some scale is "auto"; a GP that is the classifier keeps its scales."""
    if config.role == "classifier" or not config.automatic:
        return None
    return ScaleTuner(config, n_features, n_classes, device=device)


def build_learner(
    config: GPConfig, n_classes: int, *, device: Device = None
) -> KernelLearner | None:
    """Return a learner, if the config has one."""
    return None if config.learn == "never" else KernelLearner(config, n_classes, device=device)
