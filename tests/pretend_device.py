"""A GPU that the tests pretend to have: its tensors are computed on the CPU, and report that they
are on ``cuda:0``.

Every storage bears a mark of where it is, which views share. An operation on tensors of the host
and of the device raises the error that CUDA raises, with CUDA's exceptions: a single number of the
host may take part in elementwise arithmetic, and an index of the host may select from a tensor of
the device. Counted are the operations for which the host has to wait until the device has done all
queued work, and the copies from the host to the device.

A tensor that torch's C++ code makes inside an operation is on neither side until it meets one that
is. What this cannot show: the numbers and the speed of CUDA, and gradients that cross devices.
Autocast is that of the CPU.
"""

import functools
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import pytest
import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
MARK = "_pretended_device"
PINNED = "_pretended_to_be_pinned"
SOURCE = "/src/semigpc/"
SMALL = 2**16  # bytes; a non-blocking copy of pageable memory waits only if it is larger
CONSTRUCTORS = {
    name
    for make in _device_constructors()
    if getattr(torch, name := getattr(make, "__name__", ""), None) is make
}
CONSTRUCTORS |= {
    f"{kind}_like" for kind in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
}
NEW = {f"new_{kind}" for kind in ("empty", "zeros", "ones", "full", "tensor", "empty_strided")}
FROM_DATA = {"tensor", "as_tensor", "asarray", "new_tensor"}
WAITING = {  # operations whose result, or the size of it, the host has to know
    *("_local_scalar_dense", "equal", "nonzero", "masked_select", "bincount"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive"),
    *("_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_lstsq"),
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
# of the host, as arithmetic does
TAKES_NUMBERS = {"fill", "fill_", "masked_fill", "masked_fill_", "where", *INDEXING}
TAKES_NONE = {"lerp", "lerp_", "addcmul", "addcdiv"}
TAKES_NONE |= {f"clamp{end}" for end in ("", "_", "_min", "_min_", "_max", "_max_")}

TORCH: Any = torch  # untyped, as what is replaced below
DEVICE = TORCH._C.TensorBase.device.__get__
TO = TORCH.Tensor.to
AUTOCAST = TORCH.autocast
GROUPED = TORCH._C._group_tensors_by_device_and_dtype


class Copy(NamedTuple):
    """A copy from the host to the device, and the line of the package that made it."""

    where: str
    size: int  # bytes
    non_blocking: bool
    pinned: bool


class PretendDevice(TorchDispatchMode):
    """Context manager within which torch has one GPU; ``waits`` counts (operation, line of the
    package), ``copies`` is a list.

    Example::

        with PretendDevice() as device:
            number = torch.tensor(3, device="cuda")
            int(number)
        assert device.waits.total() == 2  # for the copy and for the number
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: Counter[tuple[str, str]] = Counter()
        self.copies: list[Copy] = []
        self.random = torch.Generator().manual_seed(0).get_state()  # of the device's own generator
        self._target: torch.device | None = None  # where the tensor goes that is being made
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        for owner, names in ((torch, CONSTRUCTORS), (Tensor, NEW)):
            for name in names:
                self._patch.setattr(owner, name, self._constructor(name, getattr(owner, name)))
        for place, replaced in (
            (Tensor, _methods(self)),
            (torch.cuda, _cuda(self)),
            (torch.accelerator, ACCELERATOR),
            (torch._C, {"_group_tensors_by_device_and_dtype": _grouped}),  # for optimisers
            (torch, {"autocast": _autocast}),
        ):
            for name, value in replaced.items():
                self._patch.setattr(place, name, value)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patch.undo()

    def reset(self) -> None:
        """Count from zero."""
        self.waits.clear()
        self.copies.clear()

    def wait(self, operation: str) -> None:
        """Count one wait."""
        self.waits[operation, _line()] += 1

    def copied(self, source: Tensor, dtype: torch.dtype, *, non_blocking: bool) -> None:
        """Count a copy to the device, before which the host converts to the dtype; and a wait
        unless CUDA does without.
        """
        size = source.numel() * dtype.itemsize
        pinned = dtype == source.dtype and source.is_pinned()
        self.copies.append(Copy(_line(), size, non_blocking, pinned))
        if not (non_blocking and (pinned or size <= SMALL)):
            self.wait("copy to the device")

    def move(self, tensor: Tensor, target: torch.device, name: str, **options: Any) -> Tensor:
        """Return ``tensor.to(target, **options)``."""
        origin = _known(tensor)
        options = {"dtype": tensor.dtype} | options
        if target.type not in ("cpu", "cuda"):
            return TO(tensor, device=target, **options)  # type: ignore[no-any-return]
        if origin != target:
            options["copy"] = True
            if (origin, target) == (CPU, CUDA):
                non_blocking = options.get("non_blocking", False)
                self.copied(tensor, options["dtype"], non_blocking=non_blocking)
            elif origin == CUDA:
                self.wait(name)
        moved: Tensor = TO(tensor, **options)
        _put(moved, target)
        return moved

    @contextmanager
    def making(self, target: torch.device) -> Iterator[None]:
        """Put what is made on a device, without further questions."""
        before = self._target
        self._target = target
        try:
            yield
        finally:
            self._target = before

    def _constructor(self, name: str, make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(make)
        def made(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
            own = _device(args[0]) if args and isinstance(args[0], Tensor) else CPU
            target = own if device is None else _named(device)
            if target.type not in ("cpu", "cuda"):
                return make(*args, device=device, **kwargs)
            if name not in FROM_DATA:
                with self.making(target):
                    return make(*args, **kwargs)
            with self.making(CPU if name in NEW else own):  # where the data are
                return self.move(make(*args, **kwargs), target, name)

        return made

    def __torch_dispatch__(
        self,
        operation: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = operation.overloadpacket.__name__
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if any(tensor.is_meta for tensor in tensors):
            return operation(*args, **kwargs)
        home = self._target or self._home(operation, name, args, kwargs, tensors)
        if home == CUDA and any(isinstance(leaf, torch.Generator) for leaf in leaves):
            found = "Expected a 'cuda' device type for generator but found 'cpu'"
            raise RuntimeError(f"{found} ({name})")
        if home == CUDA and (name in WAITING or _waits_sometimes(name, *args, **kwargs)):
            self.wait(name)
        draws = torch.Tag.nondeterministic_seeded in operation.tags
        with self._own_random_numbers(home == CUDA and draws):
            result = operation(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                _put(leaf, home)
        return result

    def _home(
        self,
        operation: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        tensors: list[Tensor],
    ) -> torch.device | None:
        """Return where an operation takes place, None for either; raise an error if its tensors
        must not meet.
        """
        if name == "copy_":
            home = _known(args[0])
            source = _known(args[1])
            if (home, source) == (CUDA, CPU):
                non_blocking = args[2:3] == (True,) or kwargs.get("non_blocking", False)
                self.copied(args[1], args[0].dtype, non_blocking=non_blocking)
            elif (home, source) == (CPU, CUDA):
                self.wait("copy_ to the host")
            return home or source
        if name in INDEXING:
            self._check_indices(name, _known(args[0]), args[1])
            tensors = [args[0], *args[2:3]]
        homes = {_known(tensor) for tensor in tensors} - {None}
        if homes == {CPU, CUDA}:
            on_host = [tensor for tensor in tensors if _known(tensor) == CPU]
            number = len(on_host) == 1 and on_host[0].dim() == 0
            pointwise = torch.Tag.pointwise in operation.tags
            takes = (pointwise or name in TAKES_NUMBERS) and name not in TAKES_NONE
            first = args[0] if name == "where" or name.endswith("_") else None
            never = kwargs.get("out", first)  # a condition, or written
            if not (number and takes and on_host[0] is not never):
                expected = "Expected all tensors to be on the same device"
                raise RuntimeError(f"{expected}, but found cuda:0 and cpu ({name})")
            if name in INDEXING:
                self.copied(on_host[0], on_host[0].dtype, non_blocking=False)
            return CUDA
        home = next(iter(homes), None)
        for tensor in tensors:
            _put(tensor, home)
        return home

    def _check_indices(
        self, name: str, home: torch.device | None, indices: list[Tensor | None]
    ) -> None:
        for index in indices:
            own = None if index is None else _known(index)
            if index is None or home is None or own is None:
                continue
            if (home, own) == (CPU, CUDA):
                raise RuntimeError("indices should be on cpu or on the same device as the tensor")
            if (home, own) == (CUDA, CPU):
                self.copied(index, index.dtype, non_blocking=False)
            elif home == CUDA and index.dtype in (torch.bool, torch.uint8):
                self.wait(f"{name} by a mask")

    @contextmanager
    def _own_random_numbers(self, draws: bool) -> Iterator[None]:
        """Draw from the device's generator."""
        before = torch.get_rng_state() if draws else None
        if before is not None:
            torch.set_rng_state(self.random)
        try:
            yield
        finally:
            if before is not None:
                self.random = torch.get_rng_state()
                torch.set_rng_state(before)


def _waits_sometimes(
    name: str, *args: Any, replacement: bool = False, output_size: int | None = None, **_: Any
) -> bool:
    if name == "repeat_interleave":
        return isinstance(args[-1], Tensor) and output_size is None
    return name == "multinomial" and not (replacement or args[2:3] == (True,))


def _known(tensor: Tensor) -> torch.device | None:
    """Return where a tensor is; None if it was made by an operation and has met no other tensor."""
    device: torch.device = DEVICE(tensor)
    return getattr(tensor.untyped_storage(), MARK, device) if device == CPU else device


def _device(tensor: Tensor) -> torch.device:
    return _known(tensor) or CPU


def _named(device: Any) -> torch.device:
    named = torch.device(device)
    return CUDA if named.type == "cuda" else named


def _put(tensor: Tensor, home: torch.device | None) -> None:
    if not tensor.is_meta:
        setattr(tensor.untyped_storage(), MARK, home)


def _line() -> str:
    """Return the line of the package that is being executed."""
    frames = (frame for frame in reversed(traceback.extract_stack()) if SOURCE in frame.filename)
    frame = next(frames, None)
    if frame is None:
        return "elsewhere"
    return f"{frame.filename.rpartition(SOURCE)[2]}:{frame.lineno}"


# What torch has on a machine with one GPU ---------------------------------------------------------


def _methods(pretended: PretendDevice) -> dict[str, Any]:
    numpy, array, tolist, deepcopy = (
        getattr(Tensor, name) for name in ("numpy", "__array__", "tolist", "__deepcopy__")
    )

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        first, rest = (args[0], args[1:]) if args else (None, ())
        if isinstance(first, Tensor):
            kwargs = {"device": _device(first), **kwargs}
            rest = (first.dtype, *rest)
        elif isinstance(first, torch.dtype):
            rest = args
        elif first is not None:
            kwargs["device"] = first
        options = dict(zip(("dtype", "non_blocking", "copy"), rest, strict=False)) | kwargs
        target = options.pop("device", None)
        options = {name: value for name, value in options.items() if value is not None}
        home = _device(tensor) if target is None else _named(target)
        return pretended.move(tensor, home, "to", **options)

    def listed(tensor: Tensor) -> Any:
        if _device(tensor) == CUDA:
            pretended.wait("tolist")
        return tolist(tensor)

    def deeply_copied(tensor: Tensor, memo: Any) -> Any:
        with pretended.making(_device(tensor)):
            return deepcopy(tensor, memo)

    def on_host_only(read: Callable[..., Any]) -> Callable[..., Any]:
        def checked(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if _device(tensor) == CUDA:
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            return read(tensor, *args, **kwargs)

        return checked

    def pin_memory(tensor: Tensor, *_: Any) -> Tensor:
        if _device(tensor) == CUDA:
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor': only CPU tensors")
        pinned = tensor.clone()
        setattr(pinned.untyped_storage(), PINNED, True)
        return pinned

    return {
        "to": to,
        "cpu": lambda tensor, **options: pretended.move(tensor, CPU, "cpu", **options),
        "cuda": lambda tensor, _device=None, **options: to(tensor, CUDA, **options),
        "tolist": listed,
        "numpy": on_host_only(numpy),
        "__array__": on_host_only(array),
        "__deepcopy__": deeply_copied,
        "pin_memory": pin_memory,
        "is_pinned": lambda tensor, *_: getattr(tensor.untyped_storage(), PINNED, False),
        "get_device": lambda tensor: 0 if _device(tensor) == CUDA else -1,
        "device": property(_device),
        "is_cuda": property(lambda tensor: _device(tensor) == CUDA),
        "is_cpu": property(lambda tensor: _device(tensor) == CPU),
    }


def _cuda(pretended: PretendDevice) -> dict[str, Any]:
    def seed(number: int) -> None:
        pretended.random = torch.Generator().manual_seed(number).get_state()

    def set_rng_state(state: Tensor, *_: Any) -> None:
        assert _device(state) == CPU, "the state of a generator must be a tensor of the host"
        pretended.random = state.clone()

    return {
        "is_available": _returning(True),
        "device_count": _returning(1),
        "current_device": _returning(0),
        "set_device": _returning(None),
        "get_device_name": _returning("pretended"),
        "get_device_capability": _returning((8, 0)),
        "get_device_properties": _returning(SimpleNamespace(total_memory=2**34, major=8)),
        "get_rng_state": lambda *_: pretended.random.clone(),
        "set_rng_state": set_rng_state,
        "manual_seed": seed,
        "manual_seed_all": seed,
        "synchronize": lambda *_: pretended.wait("synchronize"),
        "empty_cache": _returning(None),
    }


def _autocast(*_: Any, **options: Any) -> Any:
    return AUTOCAST(**options | {"device_type": "cpu"})


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *_args, **_options: value


ACCELERATOR = {
    "is_available": _returning(True),
    "current_accelerator": _returning(torch.device("cuda")),
    "current_device_index": _returning(0),
    "set_device_index": _returning(None),
    "current_stream": _returning(SimpleNamespace(is_capturing=_returning(False))),
}


def _grouped(tensors: list[list[Tensor]], with_indices: bool) -> dict[Any, Any]:
    groups = GROUPED(tensors, with_indices)
    return {(_device(group[0][0][0]), dtype): group for (_, dtype), group in groups.items()}
