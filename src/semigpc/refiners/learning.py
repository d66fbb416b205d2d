"""When a refiner's kernel is learned from its buffer, and how the engine goes on with it."""

import logging
import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from semigpc.gp import Engine, Kernel, NotPositiveDefiniteError, learn_kernel
from semigpc.gp.scales import scales_of, with_scales
from semigpc.refiners.engines import GPConfig, build_kernel

logger = logging.getLogger(__name__)

ROWS_LEARNED_FROM = 512  # at most: takes a few seconds
NOISE_FACTORS = (1, 2, 4, 8)  # tried in turn, where the engine cannot carry what was learned
ENOUGH = 2  # rows in the buffer for each class, on average, before anything is learned


class KernelLearner(nn.Module):
    """Learns l, eta and sigma from the buffer every ``learn_steps`` steps, and re-anchors the
    engine with them.

    The online rule is exact for ONE kernel: it moves K^-1 as rows come and go. Another kernel
    changes every entry of K, so the engine is rebuilt with it from the rows it holds, once, O(N^3)
    for the exact one, and the rule goes on from there. Between two such moments nothing differs
    from a run with that kernel from the beginning. Learning itself looks at 512 rows at most, as
    many of every class as fit, and takes a few seconds.

    What was learned is the state, as logarithms; the engine's kernel is always made from it, so
    that a resumed run has it to
    the bit. Targets are learned from as they are stored: the class prior of the config has no part
    in it.

    Args:
        config: the switches. n_classes: C.
    """

    log_scales: Tensor
    times: Tensor

    def __init__(
        self, config: GPConfig, n_classes: int, *, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.config, self.n_classes = config, n_classes
        scales = scales_of(build_kernel(config), config.noise_std).unsqueeze(0)
        self.register_buffer("log_scales", scales.to(device))  # (1, 3) log l, log eta, log sigma
        self.register_buffer("times", torch.tensor(0, device=device))

    @property
    def learned(self) -> dict[str, Any]:
        """How often something better was found, and the scales as they are now."""
        kernel, noise_std = self._kernel()
        length_scale, output_scale, _ = scales_of(kernel, noise_std).exp().tolist()
        learned: dict[str, Any] = {"times": int(self.times)}
        if self.config.has_length_scale:
            learned["length_scale"] = length_scale
        return learned | {"output_scale": output_scale, "noise_std": noise_std}

    def after_step(self, step: int, engine: Engine, *, logit_scale: Tensor | float) -> None:
        """Learn, if it is time and the buffer holds enough.

        Args:
            step: steps done, from 1. logit_scale: lambda, which predictions are made with.
        """
        if step % self.config.learn_steps:
            return
        rows = engine.occupied.nonzero().squeeze(1)
        targets = engine.targets[rows]
        in_class = torch.bincount(targets.argmax(dim=1), minlength=self.n_classes)
        if len(rows) < ENOUGH * self.n_classes or int((in_class >= ENOUGH).sum()) < 2:
            logger.info(
                "step %d: too few rows to learn a kernel from: %s a class", step, in_class.tolist()
            )
            return
        found = learn_kernel(
            engine.features[rows],
            targets,
            *self._kernel(),
            logit_scale=float(logit_scale),
            rows=ROWS_LEARNED_FROM,
            seed=step,
        )
        if found.improved:
            self._go_on(engine, scales_of(found.kernel, found.noise_std), step)

    def _go_on(self, engine: Engine, scales: Tensor, step: int) -> None:
        """Re-anchor the engine; where K is too near to singular for its precision, with more noise
        or not at all.
        """
        before = self.log_scales.clone(), self.times.clone()
        self.times += 1
        for factor in NOISE_FACTORS:
            self.log_scales[0] = scales
            self.log_scales[:, 2] += math.log(factor)
            try:
                self.anchor(engine)
            except NotPositiveDefiniteError as error:
                logger.info(
                    "step %d: learned, with %g times the noise, and not taken: %s",
                    step,
                    factor,
                    error,
                )
            else:
                logger.info(
                    "step %d: learned, with %g times the noise: %s", step, factor, self.learned
                )
                return
        self.log_scales.copy_(before[0])
        self.times.copy_(before[1])

    def anchor(self, engine: Engine) -> None:
        """Give an engine what was learned; what the config says, if that is nothing."""
        engine.reanchor(*self._kernel())

    def adopt(self, state: dict[str, Tensor], engine: Engine) -> None:
        """Take over what another has learned, its ``state_dict``, and give it to an engine."""
        scales, times = state["log_scales"], state["times"]
        if scales.shape != self.log_scales.shape or not bool(scales.isfinite().all()):
            raise ValueError(
                f"learned scales must be finite and have shape {tuple(self.log_scales.shape)}; the saved ones have "
                f"{tuple(scales.shape)}, or are damaged."
            )
        self.log_scales.copy_(scales)
        self.times.copy_(times)
        self.anchor(engine)

    def _kernel(self) -> tuple[Kernel, float]:
        kernel = build_kernel(self.config)
        if not int(self.times):
            return kernel, self.config.noise_std
        return with_scales(kernel, self.log_scales[0].cpu())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow a surrounding module to its device, never to its dtype."""
        device = fn(torch.empty(0, device=self.log_scales.device)).device
        super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]
        return self


def build_learner(
    config: GPConfig, n_classes: int, *, device: torch.device | str | None = None
) -> KernelLearner | None:
    """A learner, if the config wants one."""
    return None if config.learn == "never" else KernelLearner(config, n_classes, device=device)
