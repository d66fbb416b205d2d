"""Scales of a GP that follow the features of a run: its length-scale, and the scale of its logits."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import Tensor

from semigpc.gp import Engine, NotPositiveDefiniteError
from semigpc.gp.scales import neighbour_length_scale
from semigpc.refiners.engines import GPConfig, build_kernel
from semigpc.types import HostState

logger = logging.getLogger(__name__)

RECENT = 512  # weak views looked at
COVERED = 0.8  # share of recent views that reach a confidence of SURE
# above the usual threshold of 0.95, so that alignment and smoothing, as in SimMatch, leave most
# above it too
SURE = 0.999
CHANGED = 0.1  # change of log l that is worth rebuilding the engine
STEPS = 50  # between two looks
# steps between two rebuilds of the engine: at least N / 4, since a rebuild costs as much as N / B
# updates
ROWS_PER_STEP = 4
LOGIT_SCALES = (0.1, 1e4)  # lambda lies between these
HALVINGS = 20  # of the range of log lambda, which is then right to 1e-5


class ScaleTuner(HostState):
    """Chooses l and lambda from recent weak views, when the warm-up ends and then every 50 steps.

        l^2     =  1.5 median_i min_j |h_i - h_j|^2                     views i, rows j of the buffer
        lambda  :  max softmax(lambda mu(h_i)) >= 0.999 for 0.8 of the views

    So the typical view has a neighbour within the kernel's reach, whatever the network, and four of
    five pseudo-labels are confident, whatever the number of classes. A look costs O(512 N (D + C)).
    Where l has changed by a tenth or more the engine is rebuilt, in O(N^3) if it is exact, and then
    not again for N / 4 steps.

    The views and the scales are its state, so that a resumed run goes on to the same bits. lambda
    stays on the device; the host waits for it once per look, for l, and where the engine is
    rebuilt.

    Args:
        config: the switches; a scale that is not "auto" keeps its value. n_features: D. n_classes:
            C.
    """

    on_host = ("length_scale", "filled", "due", "rebuild_due")
    recent: Tensor
    length_scale: Tensor
    logit_scale: Tensor
    filled: Tensor
    due: Tensor
    rebuild_due: Tensor

    def __init__(
        self,
        config: GPConfig,
        n_features: int,
        n_classes: int,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.tunes_length = (
            config.length_scale == "auto" and config.learn == "never" and config.has_length_scale
        )
        self.register_buffer("recent", torch.zeros(RECENT, n_features, device=device))
        self.register_buffer("filled", torch.tensor(0))
        self.register_buffer("due", torch.tensor(config.warmup_steps))
        self.register_buffer("rebuild_due", torch.tensor(0))
        for name, value in config.starting_scales(n_classes).items():
            place = None if name in self.on_host else device
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64, device=place))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow a surrounding module to its device, never to its dtype, as the engine does."""
        device = fn(torch.empty(0, device=self.recent.device)).device
        return super()._apply(lambda tensor: tensor.to(device), recurse)

    def sees(self, queries: Tensor) -> None:
        """Remember views (M, D), at the cost of copying 512 of them."""
        newest = queries[-RECENT:].detach().to(self.recent)
        self.recent = torch.cat([newest, self.recent[: RECENT - len(newest)]])
        self.filled.clamp_(max=RECENT - len(newest)).add_(len(newest))

    def is_due(self, step: int) -> bool:
        """Whether it is time for a look; if so, the next one is due so many steps later."""
        if step < int(self.due):
            return False
        self.due.fill_(step + STEPS)
        return True

    @property
    def has_looked(self) -> bool:
        """Whether the scales come from the features of the run."""
        return int(self.due) > self.config.warmup_steps

    @property
    def views(self) -> Tensor:
        """The recent views, (at most 512, D), the newest first."""
        return self.recent[: int(self.filled)]

    def tune_length(self, engine: Engine, step: int) -> None:
        """Follow the distance from views to the nearest rows, and give the engine the kernel with
        it.
        """
        if not self.tunes_length or step < int(self.rebuild_due):
            return
        views = self.views.to(engine.dtype)
        length = neighbour_length_scale(views, engine.features, engine.occupied)
        if abs(math.log(length / float(self.length_scale))) > CHANGED:
            before = self.length_scale.clone()
            self.length_scale.fill_(length)
            self.rebuild_due.fill_(step + self.config.buffer_size // ROWS_PER_STEP)
            try:
                self.anchor(engine)
            except NotPositiveDefiniteError as error:
                logger.info("length-scale %g is not taken: %s", length, error)
                self.length_scale.copy_(before)

    def tune_logits(self, mean: Tensor) -> None:
        """Follow the mean mu (M, C) of the recent views, lambda aside. O(M C), without waiting for
        a device.
        """
        if self.config.logit_scale != "auto":
            return
        low, high = (torch.full_like(self.logit_scale, bound) for bound in LOGIT_SCALES)
        for _ in range(HALVINGS):  # the share that is confident grows with lambda
            middle = (low * high).sqrt()
            covered = (
                torch.softmax(middle * mean, dim=1).amax(dim=1) >= SURE
            ).double().mean() >= COVERED
            low, high = torch.where(covered, low, middle), torch.where(covered, middle, high)
        self.logit_scale.copy_(high)

    def anchor(self, engine: Engine) -> None:
        """Give an engine the kernel with the length-scale that was found."""
        if self.tunes_length:
            engine.reanchor(
                build_kernel(self.config, float(self.length_scale)), self.config.noise_std
            )

    def adopt(self, state: Mapping[str, Tensor], engine: Engine) -> None:
        """Take over what another has seen and found, its ``state_dict``, and give it to an engine."""
        self.load_state_dict(dict(state))
        self.anchor(engine)


def build_tuner(
    config: GPConfig, n_features: int, n_classes: int, *, device: torch.device | str | None = None
) -> ScaleTuner | None:
    """A tuner, if some scale is "auto" and the GP refines; as the classifier itself it keeps the
    scales it starts with.
    """
    if config.role == "classifier" or "auto" not in (config.length_scale, config.logit_scale):
        return None
    return ScaleTuner(config, n_features, n_classes, device=device)
