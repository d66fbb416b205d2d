"""SemiGPC in Lightning: a FixMatch module on long-tailed digits, which asks the callback for its
targets.

Run it: ``python examples/lightning_callback.py`` (some ten seconds; needs ``pip install
'semigpc[lightning]'``).
"""

import logging
import warnings

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from semigpc.integrations.lightning import SemiGPCCallback
from semigpc.refiners import GPConfig

CLASSES = 10
WIDTH = 64
LABELED = [int(40 * 0.05 ** (c / 9)) for c in range(CLASSES)]  # of each class: 40 down to 2


class FixMatch(pl.LightningModule):
    """Knows nothing of Gaussian processes but two calls."""

    semigpc: SemiGPCCallback  # the callback puts itself here

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, CLASSES)

    def training_step(self, batch: dict[str, list[Tensor]]) -> Tensor:
        (x, y) = batch["labeled"]
        (u,) = batch["unlabeled"]
        weak = u + 0.05 * torch.randn_like(u)
        strong = u * (torch.rand_like(u) > 0.3)
        h_x, h_weak, h_strong = (self.body(part) for part in (x, weak, strong))
        targets = self.semigpc.refine(h_weak, self.head(h_weak).softmax(dim=1))
        self.semigpc.remember(h_x, y)
        sure = (targets.max(dim=1).values >= 0.95).float()
        unlabeled_loss = (
            F.cross_entropy(self.head(h_strong), targets.argmax(dim=1), reduction="none") * sure
        ).mean()
        return F.cross_entropy(self.head(h_x), y) + unlabeled_loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    """Train for a few epochs, and say how it went."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")  # few workers, few batches
    pl.seed_everything(0, verbose=False)
    pixels, truth = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels).float() / 16
    y = torch.from_numpy(truth)
    rows = torch.cat([(y[:1200] == c).nonzero()[: LABELED[c], 0] for c in range(CLASSES)])
    loaders = {
        "labeled": DataLoader(TensorDataset(x[rows], y[rows]), batch_size=32, shuffle=True),
        "unlabeled": DataLoader(TensorDataset(x[:1200]), batch_size=128, shuffle=True),
    }
    callback = SemiGPCCallback(
        GPConfig(buffer_size=300, balanced=True, warmup_steps=50), WIDTH, CLASSES
    )
    module = FixMatch()
    pl.Trainer(
        max_epochs=30,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    ).fit(module, loaders)
    with torch.no_grad():
        right = (module.head(module.body(x[1200:])).argmax(dim=1) == y[1200:]).float()
    by_class = [float(right[y[1200:] == c].mean()) for c in range(CLASSES)]
    print(f"{len(callback.refiner.buffer)} labelled features remembered")
    print(f"balanced accuracy: {sum(by_class) / CLASSES:.3f}")


if __name__ == "__main__":
    main()
