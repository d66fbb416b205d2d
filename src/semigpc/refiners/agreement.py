"""Agreement: a pseudo-label of the GP counts where the network, which shares no rule with it, has
the same class.
"""

import torch
from torch import Tensor, nn

from semigpc.pseudo_labels import count_classes
from semigpc.refiners.base import Device


class LabelShares(nn.Module):
    """How often each class occurred among the labels so far, by which a network's logits are freed.

    A network that was trained on labels with class shares pi has learnt p(c | x) ~ pi_c p(x | c):
    z_c - log pi_c are its logits where all classes are equally frequent (logit adjustment, Menon et
    al., 2021). Its state is n_c, so that a resumed run continues bit for bit; the host never waits
    for it.

    Args:
        n_classes: C.
    """

    counts: Tensor

    def __init__(self, n_classes: int, *, device: Device = None) -> None:
        super().__init__()
        counts = torch.zeros(n_classes, dtype=torch.int64, device=device)
        self.register_buffer("counts", counts)

    def add(self, labels: Tensor) -> None:
        """Count labels (B,)."""
        self.counts += count_classes(labels.to(self.counts.device), len(self.counts))

    def freed(self, logits: Tensor) -> Tensor:
        """Return z - log(n + 1), (M, C), in float32 at least; the 1 keeps unseen classes finite."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits - torch.log1p(self.counts.to(logits))

    def agree(self, logits: Tensor, classes: Tensor) -> Tensor:
        """Return whether the network has these classes (M,), freed or as it is, (M,) bool.

        Where labels and unlabelled images have the same shares the network is right as it is;
        where they differ, freed. With equally many labels of each class both are the same. O(M C).

        Args:
            logits: (M, C) z of the network. classes: (M,).
        """
        own = logits.argmax(dim=1)
        return (own == classes) | (self.freed(logits).argmax(dim=1) == classes)
