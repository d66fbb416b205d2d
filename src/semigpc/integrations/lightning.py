"""A callback with which a LightningModule uses SemiGPC: it writes, moves and saves the memory."""

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor

from semigpc.refiners import GaussianProcessRefiner, GPConfig

# the same library under two names, whose classes do not mix
LIGHTNINGS = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> Any:
    """Return ``Callback`` of the Lightning imported already, else of the first installed one."""
    for name in sorted(LIGHTNINGS, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise ImportError(
        "semigpc.integrations.lightning needs lightning or pytorch_lightning; neither is "
        "installed. Install one: pip install 'semigpc[lightning]'."
    )


if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningModule, Trainer
else:
    Callback = _callback_class()
    LightningModule = Any
    Trainer = Any


class SemiGPCCallback(Callback):
    """Refines the probabilities of a module, and stores the labelled features that it passes on.

    The callback is ``self.semigpc`` in the module. In ``training_step`` it calls ``refine`` for
    the weak view and ``remember`` with labelled features, which are written at the end of the
    batch, after the optimiser's step. A batch is a step of the warm-up, whatever the gradient
    accumulation. ``refine`` costs O(U N (D + C)), writing O(B N^2).

    The memory is part of Lightning's checkpoints, not of the module's ``state_dict``:
    ``fit(ckpt_path=...)`` continues with the same labels, bit for bit. For that the inverse, which
    is not saved, is computed anew at each saving, O(N^3). With several processes each writes the
    rows of all, so all must pass on the same number of rows, and the memory is the same everywhere.

    Args:
        config: the options of SemiGPC.
        n_features: D, of the features that the module passes on.
        n_classes: C.
    """

    def __init__(self, config: GPConfig, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.refiner = GaussianProcessRefiner(config, n_features, n_classes)
        self._waiting: tuple[Tensor, Tensor] | None = None

    def refine(self, features: Tensor, probs: Tensor) -> Tensor:
        """Return p_GP (U, C) for features (U, D), or ``probs`` in the warm-up; no gradient."""
        return self.refiner.probs(features, own=probs.detach())

    def remember(self, features: Tensor, labels: Tensor) -> None:
        """Pass on features (B, D) and labels (B,) of this batch's labelled rows; once per batch."""
        if self._waiting is not None:
            raise RuntimeError(
                "remember must be called once per batch; "
                f"{len(self._waiting[1])} rows are waiting. Concatenate the rows first."
            )
        self._waiting = features.detach(), labels

    # Called by the trainer ------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Make the callback an attribute of the module."""
        pl_module.semigpc = self  # type: ignore[assignment]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Move the memory to the module's device."""
        self.refiner.to(pl_module.device)

    def on_train_batch_start(self, *_: Any) -> None:
        """Drop rows left by a sanity check or an interrupted batch."""
        self._waiting = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Write the rows that the module passed on."""
        if self._waiting is None:
            return
        features, labels = self._waiting
        if trainer.world_size > 1:
            gathered = pl_module.all_gather((features, labels))
            features, labels = (part.flatten(0, 1) for part in gathered)
        self._waiting = None
        self.refiner.remember(features, labels)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Warn if the module has passed on nothing."""
        if not len(self.refiner.buffer):
            warnings.warn(
                "SemiGPC received no labelled features in this epoch, so the labels are the "
                "module's own. Call self.semigpc.remember(features, labels) in training_step.",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the memory, tensors only."""
        self.refiner.rebuild()
        return dict(self.refiner.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a memory that was saved."""
        self.refiner.load_state_dict(state_dict)
