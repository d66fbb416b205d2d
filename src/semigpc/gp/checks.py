"""What the engines refuse, and the numerical conditions that they insist on."""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

import torch
from torch import Tensor

MIN_NOISE_STD = 1e-12


class Shapes(Protocol):
    """What an engine checks its arguments against."""

    capacity: int
    n_features: int
    n_classes: int
    dtype: torch.dtype

    @property
    def occupied(self) -> Tensor:
        """(N,) bool."""


@contextmanager
def full_precision() -> Iterator[None]:
    """No autocast and no TF32 or bfloat16 products within, whatever the caller has switched on. Also a decorator."""
    precision = torch.get_float32_matmul_precision()
    autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    if precision == "highest" and not autocast and not torch.is_inference_mode_enabled():
        yield  # the usual case, and this runs at every step
        return
    torch.set_float32_matmul_precision("highest")
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.autocast("cpu", enabled=False))
            stack.enter_context(torch.autocast("cuda", enabled=False))
            if torch.is_inference_mode_enabled():  # what is stored must remain writable outside of it
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.no_grad())
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def check_engine(
    capacity: int, n_features: int, n_classes: int, *, kernel: object, noise_std: float, dtype: torch.dtype
) -> None:
    """Refuse what no engine can be made of."""
    for name, value in (("capacity", capacity), ("n_features", n_features), ("n_classes", n_classes)):
        if not isinstance(value, int):
            raise TypeError(f"{name} must be an integer; got {value!r}.")
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}.")
    if not MIN_NOISE_STD <= noise_std < math.inf:
        raise ValueError(
            f"noise_std must be a positive finite number (at least {MIN_NOISE_STD:g}), or K cannot be inverted; "
            f"got {noise_std}."
        )
    if kernel is not None and (isinstance(kernel, type) or not callable(kernel)):
        raise TypeError(f"kernel must be a kernel object such as RBF(length_scale=0.3); got {kernel!r}.")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64; got {dtype}.")


def check_queries(engine: Shapes, queries: Tensor) -> None:
    """Refuse queries of a wrong shape, dtype or device, or that are not finite."""
    _check_matrix(engine, "queries", queries, (None, engine.n_features))


def check_offset(engine: Shapes, offset: Tensor) -> Tensor:
    """Refuse an offset that is not one finite number a class."""
    check_tensor("offset", offset)
    if not bool(offset.isfinite().all()):
        raise ValueError(f"offset must be finite; got {offset.tolist()}.")
    if offset.shape != (engine.n_classes,):
        raise ValueError(f"offset must have shape ({engine.n_classes},); got {tuple(offset.shape)}.")
    return offset


def check_classes(engine: Shapes, queries: Tensor, classes: Tensor) -> None:
    """Refuse queries that are none, and classes that are not one a query."""
    check_queries(engine, queries)
    check_tensor("classes", classes)
    if classes.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"classes must be int64 or int32; got {classes.dtype}.")
    if classes.shape != queries.shape[:1]:
        raise ValueError(f"classes must have shape ({len(queries)},), one a query; got {tuple(classes.shape)}.")
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < engine.n_classes:
        raise IndexError(f"classes must lie in [0, {engine.n_classes}); got {int(classes.min())}..{int(classes.max())}.")


def check_rows(engine: Shapes, slots: Tensor, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Refuse features or targets that do not fit the slots; answer with both in the engine's dtype."""
    _check_matrix(engine, "features", features, (len(slots), engine.n_features))
    hint = " One-hot them first." if isinstance(targets, Tensor) and targets.ndim == 1 else ""
    _check_matrix(engine, "targets", targets, (len(slots), engine.n_classes), hint)
    return features.detach().to(engine.dtype), targets.detach().to(engine.dtype)


def check_slots(engine: Shapes, slots: Tensor, *, occupied: bool = False) -> Tensor:
    """Refuse slots that are empty, repeated, out of range or (if asked) unoccupied; answer with them as int64 on the device."""
    check_tensor("slots", slots)
    if slots.ndim != 1 or not len(slots):
        raise ValueError(f"slots must be a vector of at least one slot; got shape {tuple(slots.shape)}.")
    if slots.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        raise TypeError(f"slots must be integers; got {slots.dtype}.")
    listed = slots.tolist()
    if min(listed) < 0 or max(listed) >= engine.capacity:
        raise IndexError(f"slots must lie in [0, {engine.capacity}); got {min(listed)}..{max(listed)}.")
    if len(set(listed)) < len(listed):
        repeated = next(slot for slot, times in Counter(listed).items() if times > 1)
        raise ValueError(f"slots must be distinct; slot {repeated} is given twice. Keep only its newest row.")
    slots = slots.detach().to(engine.occupied.device, torch.int64)
    if occupied and not bool(engine.occupied[slots].all()):
        empty = slots[~engine.occupied[slots]]
        raise IndexError(f"slots must be occupied; slot {int(empty[0])} is empty.")
    return slots


def _check_matrix(engine: Shapes, name: str, value: Tensor, shape: tuple[int | None, int], hint: str = "") -> None:
    check_tensor(name, value)
    rows, columns = shape
    if value.ndim != 2 or value.shape[1] != columns or rows not in (None, value.shape[0]):
        wanted = f"({'any' if rows is None else rows}, {columns})"
        raise ValueError(f"{name} must have shape {wanted}; got {tuple(value.shape)}.{hint}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be floating point; got {value.dtype}. Call .float() on them first.")
    if value.device != engine.occupied.device:
        raise ValueError(f"{name} must be on {engine.occupied.device}, where the engine is; got {value.device}.")
    stored = value.detach().to(engine.dtype)
    sound = stored.square().sum(dim=1).isfinite()  # squares are what distances are made of
    if not bool(sound.all()):
        first = int((~sound).nonzero()[0, 0])
        worst = float(stored[first, stored[first].abs().nan_to_num(nan=torch.inf).argmax()])
        raise ValueError(
            f"{name} must be finite, and so must their squares; row {first} holds {worst:g} in {engine.dtype}. "
            "One such row would spoil every later answer: find where the network produced it."
        )


def check_tensor(name: str, value: object) -> None:
    """Refuse what is not a tensor, by name."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(value).__name__}. torch.as_tensor makes one.")
