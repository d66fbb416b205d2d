"""A callback that carries SemiGPC for a LightningModule: it owns the memory, writes it, moves it and saves it."""

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor

from semigpc.refiners import GaussianProcessRefiner, GPConfig

LIGHTNINGS = ("lightning.pytorch", "pytorch_lightning")  # the same library under two names, whose classes do not mix


def _callback_class() -> Any:
    """``Callback`` of the Lightning that the program uses: the one imported already, else the first that is installed."""
    for name in sorted(LIGHTNINGS, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise ImportError(
        "semigpc.integrations.lightning needs Lightning, as lightning or as pytorch_lightning; neither is installed. "
        "Install one: pip install 'semigpc[lightning]'."
    )


if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningModule, Trainer
else:
    Callback, LightningModule, Trainer = _callback_class(), Any, Any


class SemiGPCCallback(Callback):
    """Lends a module SemiGPC's opinion, and remembers the labelled features that the module hands over.

    The module finds the callback as ``self.semigpc``. In ``training_step`` it asks ``refine`` for the weak view's probabilities
    and hands over labelled features with ``remember``; they are written when the batch is over, after the optimiser's step. A
    batch counts as a step of the warm-up, whatever the gradient accumulation. Asking costs O(U N (D + C)), writing O(B N^2).

    The memory is part of Lightning's checkpoints, not of the module's ``state_dict``: ``fit(ckpt_path=...)`` goes on with the
    same labels to the bit. For that the inverse, which is not saved, is made anew at each saving, O(N^3). Where several
    processes train together each writes the rows of all, so all must hand over the same number of rows, and the memory is
    the same everywhere.

    Args:
        config: the switches of SemiGPC.
        n_features: D, of the features that the module hands over.
        n_classes: C.
    """

    def __init__(self, config: GPConfig, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.refiner = GaussianProcessRefiner(config, n_features, n_classes)
        self._waiting: tuple[Tensor, Tensor] | None = None

    # What the module calls ------------------------------------------------------------------------------------------

    def refine(self, features: Tensor, probs: Tensor) -> Tensor:
        """p_GP (U, C) for features (U, D), in place of the module's own ``probs``; these during the warm-up. No gradient."""
        return self.refiner.probs(features, own=probs.detach())

    def remember(self, features: Tensor, labels: Tensor) -> None:
        """Hand over features (B, D) and labels (B,) of this batch's labelled rows; once a batch."""
        if self._waiting is not None:
            raise RuntimeError(
                f"remember must be called once a batch; {len(self._waiting[1])} rows wait already. Concatenate the rows first."
            )
        self._waiting = features.detach(), labels

    # What the trainer calls -----------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Make oneself known to the module."""
        pl_module.semigpc = self  # type: ignore[assignment]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Follow the module to its device."""
        self.refiner.to(pl_module.device)

    def on_train_batch_start(self, *_: Any) -> None:
        """Forget what a sanity check or an interrupted batch may have left."""
        self._waiting = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Write what waits."""
        if self._waiting is None:
            return
        features, labels = self._waiting
        if trainer.world_size > 1:
            gathered = pl_module.all_gather((features, labels))
            features, labels = (part.flatten(0, 1) for part in gathered)
        self._waiting = None
        self.refiner.remember(features, labels)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Say so if nobody has handed anything over."""
        if not len(self.refiner.buffer):
            warnings.warn(
                "SemiGPC needs labelled features, and an epoch has gone by without any, so the labels are the module's own. "
                "Call self.semigpc.remember(features, labels) in training_step.",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        """The memory, tensors only."""
        self.refiner.rebuild()
        return dict(self.refiner.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a memory that was saved."""
        self.refiner.load_state_dict(state_dict)
