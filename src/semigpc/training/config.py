"""How long, how fast and in what pieces to train."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The loop's options; the defaults are the ViT recipe of USB (recipe section 1).

    Args:
        steps: optimiser steps in all.
        epoch_steps: steps that make an "epoch", which is no pass over the data.
        labeled_batch: B. unlabeled_ratio: mu, U = mu B unlabelled images a step.
        optimizer: AdamW, or SGD with Nesterov momentum 0.9.
        lr: of the heads. layer_decay: d in lr d^(depth - layer). weight_decay: of matrices; vectors and positions have none.
        warmup_steps: over which the rate rises from 0; then it follows cos(7/16 pi t).
        schedule: or stay constant after the warm-up.
        ema: momentum of the moving average that is evaluated; 0 for none.
        clip_norm: largest norm of a gradient; 0 for no limit.
        precision: of the network. The GP has its own.
        compat_usb_decay: decay position embeddings and class tokens too, as USB does in wrapped networks.
        compat_usb_order: let the order of images depend on the epoch alone and not on the seed.
        eval_steps, checkpoint_steps, log_steps: how often to do each.
        eval_batch: images at a time in evaluation. workers: processes that load images; 0 loads in the loop.
        threads: of torch on the CPU, on whose number the last bits depend; 0 for as many as torch is set to, but no more than
            there are cores granted to the process.
        tensorboard: write TensorBoard files too.
    """

    steps: int = 204_800
    epoch_steps: int = 1024
    labeled_batch: int = 8
    unlabeled_ratio: int = 1
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = 5e-4
    layer_decay: float = 0.5
    weight_decay: float = 5e-4
    warmup_steps: int = 5120
    schedule: Literal["cosine", "constant"] = "cosine"
    ema: float = 0.0
    clip_norm: float = 0.0
    precision: Literal["32-true", "64-true", "16-mixed", "bf16-mixed"] = "32-true"
    compat_usb_decay: bool = False
    compat_usb_order: bool = False
    eval_steps: int = 2048
    checkpoint_steps: int = 2048
    log_steps: int = 128
    eval_batch: int = 256
    workers: int = 2
    threads: int = 0
    tensorboard: bool = False

    def __post_init__(self) -> None:
        positive = ("steps", "epoch_steps", "labeled_batch", "unlabeled_ratio", "eval_steps", "checkpoint_steps", "log_steps")
        for name in (*positive, "eval_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        for name in ("weight_decay", "warmup_steps", "clip_norm", "workers", "threads"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative; got {getattr(self, name)}.")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive; got {self.lr}.")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay must lie in (0, 1]; got {self.layer_decay}.")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must lie in [0, 1); got {self.ema}.")

    @property
    def unlabeled_batch(self) -> int:
        """U."""
        return self.unlabeled_ratio * self.labeled_batch
