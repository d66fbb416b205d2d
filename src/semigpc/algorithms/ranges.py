"""What the options of algorithms may be."""

from typing import Any


def check_ranges(config: Any, *, fractions: tuple[str, ...] = (), positive: tuple[str, ...] = ()) -> None:
    """Refuse options outside [0, 1], or not above 0, by their names; weights of losses must not be negative."""
    for name in fractions:
        if not 0 <= getattr(config, name) <= 1:
            raise ValueError(f"{name} must lie in [0, 1]; got {getattr(config, name)}.")
    for name in positive:
        if not getattr(config, name) > 0:
            raise ValueError(f"{name} must be positive; got {getattr(config, name)}.")
    for name, value in vars(config).items():
        if name.endswith("_weight") and not value >= 0:
            raise ValueError(f"{name} must not be negative; got {value}.")
