"""The rows of an engine that keeps no matrix of them: features, targets, and which slots are in use."""

from typing import Any

import torch
from torch import Tensor, nn

SAVED = ("features", "targets", "occupied")


class StoredRows(nn.Module):
    """Features (N, D), targets (N, C) and occupied (N,); rows of empty slots are 0.

    Args:
        capacity: N. n_features: D. n_classes: C.
    """

    features: Tensor
    targets: Tensor
    occupied: Tensor

    def __init__(
        self, capacity: int, n_features: int, n_classes: int, *, dtype: torch.dtype, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("features", torch.zeros(capacity, n_features, dtype=dtype, device=device))
        self.register_buffer("targets", torch.zeros(capacity, n_classes, dtype=dtype, device=device))
        self.register_buffer("occupied", torch.zeros(capacity, dtype=torch.bool, device=device))
        self.count = 0
        self.register_load_state_dict_pre_hook(_refuse_what_does_not_fit)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_count)  # type: ignore[no-untyped-call]

    def write(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Put rows into slots (B,), or empty them with None. O(B (D + C))."""
        self.count += (0 if features is None else len(slots)) - int(self.occupied[slots].sum())
        self.occupied[slots] = features is not None
        self.features[slots] = 0 if features is None else features
        self.targets[slots] = 0 if targets is None else targets


def _refuse_what_does_not_fit(rows: StoredRows, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Look at a state before any of it is copied."""
    for name in SAVED:
        saved, ours = state.get(prefix + name), getattr(rows, name)
        if saved is not None and saved.shape != ours.shape:
            raise ValueError(f"saved {name} have shape {tuple(saved.shape)}; this engine holds {tuple(ours.shape)}.")
        if saved is not None and not bool(saved.to(ours.dtype).square().isfinite().all()):
            raise ValueError(
                f"saved {name} are not all finite, or too large for {ours.dtype}: the file is damaged or not for this engine."
            )


def _count(rows: StoredRows, _incompatible_keys: object) -> None:
    rows.count = int(rows.occupied.sum())
