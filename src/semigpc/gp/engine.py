"""What all engines have in common: the public methods, and the checks of their arguments.

An engine implements the methods that begin with an underscore. They receive tensors of the right
shape, on the right device, finite, and run without autocast or reduced precision.
"""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from semigpc.gp.kernels import RBF, Kernel, squared_distances
from semigpc.io.errors import SemiGPCError

MIN_NOISE_STD = 1e-12
INTEGER_TYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
MATMULS = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]


class NotPositiveDefiniteError(SemiGPCError, ValueError):
    """K + noise cannot be inverted in the engine's precision."""


class NoExpansionError(SemiGPCError, TypeError):
    """The engine's mean is not a fixed sum of kernels; the message names an option that helps."""


class Expansion(NamedTuple):
    """A mean as a sum of kernels, mu(h) = k(h, points) @ weights, to compute it elsewhere.

    Shapes: ``points`` (P, D), ``weights`` (P, C) float64.
    """

    points: Tensor
    weights: Tensor


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch off autocast and TF32 or bfloat16 products. Also a decorator."""
    reduced = [
        (matmul, matmul.fp32_precision)
        for matmul in MATMULS
        if matmul.fp32_precision not in ("none", "ieee")
    ]
    autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    if not reduced and not autocast and not torch.is_inference_mode_enabled():
        yield  # the usual case, and this runs at every step
        return
    for matmul, _ in reduced:
        matmul.fp32_precision = "ieee"
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.autocast("cpu", enabled=False))
            stack.enter_context(torch.autocast("cuda", enabled=False))
            if torch.is_inference_mode_enabled():  # stored tensors must stay writable outside of it
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.no_grad())
            yield
    finally:
        for matmul, before in reduced:
            matmul.fp32_precision = before


class Engine(nn.Module):
    """A Gaussian process over ``capacity`` slots whose rows come and go.

        mu(h)  = k(h, h_Q) K^-1 y_Q                               K = k(h_Q, h_Q) + sigma^2 I
        var(h) = k(h, h) - k(h, h_Q) K^-1 k(h_Q, h)

    N slots, D features, C classes, M queries, B rows changed. Each engine documents what a call
    costs and how exact it is.
    A call that raises an error leaves the engine as it was: bit for bit if its arguments were at
    fault, and with the same rows and the same results up to rounding if K could not be inverted.

    An engine follows a surrounding module to another device, and never to another dtype.

    Args:
        capacity: N. n_features: D. n_classes: C, columns of the targets.
        kernel: k; ``RBF()`` by default.
        noise_std: sigma. The mean depends on sigma^2 / eta alone.
        dtype: of the stored rows.
    """

    features: Tensor  # h_Q, (N, D); rows of empty slots are 0
    targets: Tensor  # y_Q, (N, C); rows of empty slots are 0
    occupied: Tensor  # (N,) bool
    SAVED: ClassVar[tuple[str, ...]] = ()  # buffers in the state; all else is rebuilt on load

    def __init__(
        self,
        capacity: int,
        n_features: int,
        n_classes: int,
        *,
        kernel: Kernel | None = None,
        noise_std: float = 0.1**0.5,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        sizes = {"capacity": capacity, "n_features": n_features, "n_classes": n_classes}
        for name, value in sizes.items():
            if not isinstance(value, int):
                raise TypeError(f"{name} must be an integer; got {value!r}.")
            if value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}.")
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be torch.float32 or torch.float64; got {dtype}.")
        kernel = RBF() if kernel is None else kernel
        self._check_kernel(kernel, noise_std)
        self.capacity = capacity
        self.n_features = n_features
        self.n_classes = n_classes
        self.dtype = dtype
        self.kernel = kernel
        self.noise_std = noise_std
        self._held: set[int] = set()  # occupied slots, on the host
        self._before_load: dict[str, Tensor] | None = None
        self.register_state_dict_pre_hook(_store_counts)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_check_state)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_restore)  # type: ignore[no-untyped-call]

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.occupied.device

    def __len__(self) -> int:
        """Return the number of occupied slots."""
        return len(self._held)

    # Queries --------------------------------------------------------------------------------------

    @full_precision()
    def mean(
        self, queries: Tensor, *, offset: Tensor | None = None, trusted: bool = False
    ) -> Tensor:
        """Return mu(h) for targets less ``offset``, (M, C); differentiable in the queries.

        The gradient is that of the rows as they are at the call, and may be taken after later
        changes.

        Args:
            queries: (M, D) of any floating dtype, which is also that of the result.
            offset: (C,) subtracted from every target and not added back, such as the class
                frequencies of a class prior; it may change from call to call at no cost. 0 by
                default.
            trusted: do not check that the queries are finite, which makes the host wait for the
                device; the mean of those that are not is NaN.
        """
        stored = self._checked_queries(queries, trusted)
        return self._mean(stored, self._checked_offset(offset)).to(queries.dtype)

    @full_precision()
    @torch.no_grad()
    def predict(self, queries: Tensor, *, offset: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return :meth:`mean` (M, C) and :meth:`variance` (M,) at queries (M, D)."""
        stored = self._checked_queries(queries)
        mean = self._mean(stored, self._checked_offset(offset))
        variance = self._variance(stored).clamp_min(0)
        return mean.to(queries.dtype), variance.to(queries.dtype)

    @full_precision()
    @torch.no_grad()
    def variance(self, queries: Tensor) -> Tensor:
        """Return var(h) of the noise-free function, (M,), at least 0.

        Args:
            queries: (M, D).
        """
        return self._variance(self._checked_queries(queries)).clamp_min(0).to(queries.dtype)

    @full_precision()
    @torch.no_grad()
    def nearest(self, queries: Tensor) -> Tensor:
        """Return the squared distance to the nearest row, (M,); infinite without rows. O(M N D).

        Args:
            queries: (M, D), which are trusted to be finite.
        """
        return self._nearest(self._checked_queries(queries, trusted=True)).to(queries.dtype)

    @full_precision()
    @torch.no_grad()
    def explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        """Return what each slot adds to the mean of one class per query, (M, N).

        Args:
            queries: (M, D). classes: (M,) the class to explain for each query, usually the
                predicted one.
        """
        stored = self._checked_queries(queries)
        check_tensor("classes", classes)
        if classes.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"classes must be int64 or int32; got {classes.dtype}.")
        if classes.shape != queries.shape[:1]:
            shape = tuple(classes.shape)
            raise ValueError(
                f"classes must have shape ({len(queries)},), one per query; got {shape}."
            )
        if len(classes):
            smallest, largest = (int(bound) for bound in classes.aminmax())
            if smallest < 0 or largest >= self.n_classes:
                raise IndexError(
                    f"classes must lie in [0, {self.n_classes}); got {smallest}..{largest}."
                )
        return self._explain(stored, classes).to(queries.dtype)

    @full_precision()
    @torch.no_grad()
    def expansion(self, *, offset: Tensor | None = None) -> Expansion:
        """Return the mean as a sum of kernels; NoExpansionError if it is not one."""
        return self._expansion(self._checked_offset(offset))

    # Changes --------------------------------------------------------------------------------------

    def replace(self, slots: Tensor, features: Tensor, targets: Tensor) -> None:
        """Put new rows into slots, empty or occupied.

        Args:
            slots: (B,) distinct integers in [0, capacity), best on the CPU, where they are needed.
            features: (B, D) finite, of any floating dtype. targets: (B, C) finite; usually one-hot
                labels.
        """
        slots = self._checked_slots(slots)
        self.put(slots, *self.checked_rows(len(slots), features, targets))

    @full_precision()
    @torch.no_grad()
    def put(self, slots: Tensor, features: Tensor, targets: Tensor) -> None:
        """Replace rows that :meth:`checked_rows` has returned, without another check.

        Slots (B,) must be distinct and on the CPU.
        """
        self._change(slots, features, targets)
        self._held.update(slots.tolist())

    @full_precision()
    @torch.no_grad()
    def remove(self, slots: Tensor) -> None:
        """Empty some occupied slots.

        Args:
            slots: (B,) distinct, occupied; may be empty.
        """
        check_tensor("slots", slots)
        if slots.shape != (0,):
            slots = self._checked_slots(slots, occupied=True)
            self._change(slots, None, None)
            self._held.difference_update(slots.tolist())

    @full_precision()
    @torch.no_grad()
    def rebuild(self) -> None:
        """Compute everything anew from the stored rows, which removes rounding errors.

        Deterministic.
        """
        self._rebuild()

    @full_precision()
    @torch.no_grad()
    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        """Continue over the same rows as if kernel and noise had always been these."""
        self._check_kernel(kernel, noise_std)
        old_kernel = self.kernel
        old_noise_std = self.noise_std
        self.kernel = kernel
        self.noise_std = noise_std
        try:
            self._reanchor()
        except BaseException:  # also an interrupt: this can take minutes
            self.kernel = old_kernel
            self.noise_std = old_noise_std
            self._go_back(self._reanchor)
            raise

    def _nearest(self, queries: Tensor) -> Tensor:
        distances = squared_distances(queries, self.features)
        return distances.masked_fill(~self.occupied, torch.inf).amin(dim=1)

    # What an engine implements --------------------------------------------------------------------

    @abstractmethod
    def _mean(self, queries: Tensor, offset: Tensor | None) -> Tensor: ...

    @abstractmethod
    def _variance(self, queries: Tensor) -> Tensor: ...

    @abstractmethod
    def _explain(self, queries: Tensor, classes: Tensor) -> Tensor: ...

    @abstractmethod
    def _expansion(self, offset: Tensor | None) -> Expansion: ...

    @abstractmethod
    def _change(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Write rows (B, D), (B, C) to slots (B,) on the CPU, or empty these.

        An implementation undoes the change before it raises an error.
        """

    @abstractmethod
    def _rebuild(self) -> None: ...

    def _reanchor(self) -> None:
        """Recompute after a change of ``kernel`` and ``noise_std``."""
        self._rebuild()

    def _go_back(self, follow: Callable[[], None]) -> None:
        """Recompute by ``follow`` after a failed call, whose kernel or rows have been restored.

        An engine that has restored its results itself does nothing here.
        """
        follow()

    # Checks ---------------------------------------------------------------------------------------

    def checked_rows(self, count: int, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (count, D) and targets (count, C) in the engine's dtype, checked.

        One synchronisation with the device for both.
        """
        self._check_matrix("features", features, (count, self.n_features))
        hint = " One-hot them first." if isinstance(targets, Tensor) and targets.ndim == 1 else ""
        self._check_matrix("targets", targets, (count, self.n_classes), hint)
        features = features.detach().to(self.dtype)
        targets = targets.detach().to(self.dtype)
        norms = torch.linalg.vector_norm(features) + torch.linalg.vector_norm(targets)
        if not math.isfinite(float(norms)):
            self._raise_not_finite("features", features)
            self._raise_not_finite("targets", targets)
        return features, targets

    def _checked_queries(self, queries: Tensor, trusted: bool = False) -> Tensor:
        """Return queries (M, D) in the engine's dtype, with their gradient."""
        self._check_matrix("queries", queries, (None, self.n_features))
        stored = queries.to(self.dtype)
        if not trusted and not math.isfinite(float(torch.linalg.vector_norm(stored.detach()))):
            self._raise_not_finite("queries", stored.detach())
        return stored

    def _checked_offset(self, offset: Tensor | None) -> Tensor | None:
        if offset is None:
            return None
        check_tensor("offset", offset)
        if offset.shape != (self.n_classes,):
            raise ValueError(
                f"offset must have shape ({self.n_classes},); got {tuple(offset.shape)}."
            )
        if offset.device.type == "cpu" and not bool(offset.isfinite().all()):
            raise ValueError(f"offset must be finite; got {offset.tolist()}.")
        return offset.to(self.device, torch.float64, non_blocking=True)

    def _checked_slots(self, slots: Tensor, *, occupied: bool = False) -> Tensor:
        """Return distinct slots in range (and ``occupied``) as int64 on the CPU."""
        check_tensor("slots", slots)
        if slots.ndim != 1 or not len(slots):
            raise ValueError(
                f"slots must be a vector of at least one slot; got shape {tuple(slots.shape)}."
            )
        if slots.dtype not in INTEGER_TYPES:
            raise TypeError(f"slots must be integers; got {slots.dtype}.")
        listed = slots.tolist()
        if min(listed) < 0 or max(listed) >= self.capacity:
            raise IndexError(
                f"slots must lie in [0, {self.capacity}); got {min(listed)}..{max(listed)}."
            )
        if len(set(listed)) < len(listed):
            repeated = next(slot for slot, times in Counter(listed).items() if times > 1)
            raise ValueError(
                f"slots must be distinct; slot {repeated} is given twice. Keep only its newest row."
            )
        if occupied and not self._held.issuperset(listed):
            empty = next(slot for slot in listed if slot not in self._held)
            raise IndexError(f"slots must be occupied; slot {empty} is empty.")
        return slots.detach().to("cpu", torch.int64)

    def _check_kernel(self, kernel: Kernel, noise_std: float) -> None:
        """Raise an error for a kernel or noise that this engine cannot work with."""
        if not MIN_NOISE_STD <= noise_std < math.inf:
            raise ValueError(
                f"noise_std must be a positive finite number (at least {MIN_NOISE_STD:g}), or K "
                f"cannot be inverted; got {noise_std}."
            )
        if isinstance(kernel, type) or not callable(kernel):
            raise TypeError(
                f"kernel must be a kernel object such as RBF(length_scale=0.3); got {kernel!r}."
            )

    def _check_matrix(
        self, name: str, value: Tensor, shape: tuple[int | None, int], hint: str = ""
    ) -> None:
        check_tensor(name, value)
        rows, columns = shape
        if value.ndim != 2 or value.shape[1] != columns or rows not in (None, value.shape[0]):
            wanted = f"({'any' if rows is None else rows}, {columns})"
            raise ValueError(f"{name} must have shape {wanted}; got {tuple(value.shape)}.{hint}")
        if not value.is_floating_point():
            raise TypeError(
                f"{name} must be floating point; got {value.dtype}. Call .float() on them first."
            )
        if value.device != self.device:
            raise ValueError(
                f"{name} must be on {self.device}, where the engine is; got {value.device}."
            )

    def _raise_not_finite(self, name: str, stored: Tensor) -> None:
        """Raise an error that names the first row whose squares are not finite, if any."""
        sound = stored.square().sum(dim=1).isfinite()
        if not bool(sound.all()):
            first = int((~sound).nonzero()[0, 0])
            worst = float(stored[first, stored[first].abs().nan_to_num(nan=torch.inf).argmax()])
            raise ValueError(
                f"{name} must be finite, and so must their squares; row {first} holds {worst:g} "
                f"in {self.dtype}. One such row would spoil every later result: find where the "
                "network produced it."
            )

    def _store_counts(self) -> None:
        """Copy counters that are Python numbers to buffers, before these are saved."""

    def _adopt_state(self) -> None:
        """Recompute from the buffers of ``SAVED``, which have just been loaded."""
        self._recount()
        self.rebuild()

    def _recount(self) -> None:
        """Read from the device which slots are occupied."""
        self._held = set(self.occupied.nonzero().squeeze(1).tolist())

    def _check_saved(self, state: dict[str, Tensor], prefix: str) -> None:
        """Raise an error for a state that does not fit this engine."""
        missing = [name for name in self.SAVED if prefix + name not in state]
        if len(missing) == len(self.SAVED):
            return
        hint = "the file is damaged or not for this engine."
        if missing:
            names = " and ".join(prefix + name for name in missing)
            raise ValueError(f"saved {names} are missing: {hint}")
        for name in self.SAVED:
            saved = state[prefix + name]
            ours = getattr(self, name)
            key = prefix + name
            if saved.shape != ours.shape:
                raise ValueError(
                    f"saved {key} have shape {tuple(saved.shape)}; "
                    f"this engine holds {tuple(ours.shape)}."
                )
            if not bool(saved.to(ours.dtype).square().isfinite().all()):
                raise ValueError(
                    f"saved {key} are not all finite, or too large for {ours.dtype}: {hint}"
                )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow a surrounding module to its device, never to its dtype."""
        device = fn(torch.empty(0, device=self.device)).device
        super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        return (
            f"capacity={self.capacity}, n_features={self.n_features}, "
            f"n_classes={self.n_classes}, kernel={self.kernel}, "
            f"noise_std={self.noise_std:g}, dtype={self.dtype}"
        )


def _store_counts(engine: Engine, *_: object) -> None:
    engine._store_counts()


def _check_state(engine: Engine, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Check all of a state before any of it is copied, and keep ours in case it is unusable."""
    engine._check_saved(state, prefix)
    if any(key.startswith(prefix) for key in state):
        engine._store_counts()
        engine._before_load = {name: getattr(engine, name).clone() for name in engine.SAVED}


def _restore(engine: Engine, _incompatible_keys: object) -> None:
    """Rebuild from a loaded state; restore the previous one if that is not possible."""
    before = engine._before_load
    engine._before_load = None
    if before is None:
        return
    try:
        engine._adopt_state()
    except BaseException:
        for name, ours in before.items():
            getattr(engine, name).copy_(ours)
        engine._go_back(engine._adopt_state)
        raise


def check_tensor(name: str, value: object) -> None:
    """Raise an error that names an argument which is not a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor; got {type(value).__name__}. Use torch.as_tensor."
        )
