"""A GPU that the tests pretend to have: its tensors are computed on the CPU, and report that they are on ``cuda:0``.

Every storage bears a mark of where it is; views share it. An operation on tensors of the host and of the device raises the
error that CUDA raises, with the same exceptions from the rule: a single number of the host may take part in elementwise
arithmetic, and an index of the host may select from a tensor of the device. Counted are the operations for which the host has
to wait until the device has done all queued work, and the copies from the host to the device.

A tensor that torch's C++ code makes inside an operation is on neither side until it meets one that is. What this cannot show:
the numbers and the speed of CUDA, nor gradients that cross devices; autocast is that of the CPU.
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

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
MARK, PINNED = "_pretended_device", "_pretended_to_be_pinned"
SOURCE = "/src/semigpc/"
SMALL = 2**16  # bytes; a copy of pageable memory waits for the device only if it is larger
CONSTRUCTORS = {make.__name__ for make in _device_constructors() if getattr(torch, make.__name__, None) is make}
LIKE = {f"{kind}_like" for kind in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")}
NEW = {f"new_{kind}" for kind in ("empty", "zeros", "ones", "full", "tensor", "empty_strided")}
FROM_DATA = {"tensor", "as_tensor", "asarray", "new_tensor"}
WAITING = {  # operations whose result, or the size of it, the host has to know
    *("_local_scalar_dense", "equal", "nonzero", "masked_select", "bincount"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive"),
    *("_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_lstsq"),
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
TAKE_NUMBERS = {"fill", "fill_", "masked_fill", "masked_fill_", "where"}  # of the host, beside elementwise arithmetic
DEVICE, TO = torch._C.TensorBase.device.__get__, Tensor.to
AUTOCAST, GROUPED = torch.autocast, torch._C._group_tensors_by_device_and_dtype
TAKE_NONE = {"clamp", "clamp_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_", "lerp", "lerp_", "addcmul", "addcdiv"}


class Copy(NamedTuple):
    """A copy from the host to the device, and the line of the package that made it."""

    where: str
    size: int  # bytes
    non_blocking: bool
    pinned: bool


class PretendDevice(TorchDispatchMode):
    """Context manager within which torch has one GPU; ``waits`` counts (operation, line of the package), ``copies`` is a list.

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
        self._target: torch.device | None = None  # where the tensor goes that a call of torch.zeros, for example, makes
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        for owner, names in ((torch, CONSTRUCTORS | LIKE), (Tensor, NEW)):
            for name in names:
                self._patch.setattr(owner, name, self._constructor(name, getattr(owner, name)))
        for name, value in _methods(self).items():
            self._patch.setattr(Tensor, name, value, raising=False)
        for name, value in _cuda(self).items():
            self._patch.setattr(torch.cuda, name, value)
        for name, value in ACCELERATOR.items():
            self._patch.setattr(torch.accelerator, name, value)
        self._patch.setattr(torch._C, "_group_tensors_by_device_and_dtype", _grouped)  # for optimisers and clipping
        self._patch.setattr(torch, "autocast", lambda device_type, **options: AUTOCAST("cpu", **options))
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patch.undo()

    def reset(self) -> None:
        """Count from zero."""
        self.waits.clear()
        self.copies.clear()

    def wait(self, operation: str) -> None:
        self.waits[operation, _place()] += 1

    def copied(self, source: Tensor, dtype: torch.dtype | None = None, *, non_blocking: bool) -> None:
        """Count a copy of a tensor to the device, and a wait unless CUDA can do without; the host converts to the dtype first."""
        dtype = dtype or source.dtype
        size, pinned = source.numel() * dtype.itemsize, dtype == source.dtype and source.is_pinned()
        self.copies.append(Copy(_place(), size, non_blocking, pinned))
        if not (non_blocking and (pinned or size <= SMALL)):
            self.wait("copy to the device")

    def move(self, tensor: Tensor, target: torch.device, convert: Callable[..., Tensor], name: str, **options: Any) -> Tensor:
        """``tensor.to(target, **options)``, where ``convert`` does what is left to do without a change of device."""
        origin = _known(tensor)
        if origin == target:
            return convert(tensor, **options)
        if target == CUDA and origin == CPU:
            self.copied(tensor, options.get("dtype"), non_blocking=options.get("non_blocking", False))
        elif origin == CUDA:
            self.wait(name)
        moved = convert(tensor, **options | {"copy": True})
        _put(moved, target)
        return moved

    def _constructor(self, name: str, make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(make)
        def made(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
            own = _device(args[0]) if args and isinstance(args[0], Tensor) else CPU
            target = own if device is None else _named(device)
            if target.type not in ("cpu", "cuda"):
                return make(*args, device=device, **kwargs)
            with self.making(own if name in FROM_DATA and name not in NEW else CPU if name in FROM_DATA else target):
                result = make(*args, **kwargs)
            return self.move(result, target, TO, name) if name in FROM_DATA else result

        return made

    @contextmanager
    def making(self, target: torch.device) -> Iterator[None]:
        before, self._target = self._target, target
        try:
            yield
        finally:
            self._target = before

    def __torch_dispatch__(
        self, operation: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = operation.overloadpacket.__name__, kwargs or {}
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if any(tensor.is_meta for tensor in tensors):
            return operation(*args, **kwargs)
        home = self._target or self._home(operation, name, args, kwargs, tensors)
        if home == CUDA and any(isinstance(leaf, torch.Generator) for leaf in leaves):
            raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu' ({name}).")
        if home == CUDA and (name in WAITING or _waits_sometimes(name, *args, **kwargs)):
            self.wait(name)
        with self._own_random_numbers(torch.Tag.nondeterministic_seeded in operation.tags and home == CUDA):
            result = operation(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                _put(tensor, home)
        return result

    def _home(
        self, operation: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: list[Tensor]
    ) -> torch.device | None:
        """Return where an operation takes place, None for either; raise if its tensors must not meet."""
        if name == "copy_":
            home, source = _known(args[0]), _known(args[1])
            if (home, source) == (CUDA, CPU):
                self.copied(args[1], args[0].dtype, non_blocking=args[2:3] == (True,) or bool(kwargs.get("non_blocking")))
            elif (home, source) == (CPU, CUDA):
                self.wait("copy_ to the host")
            return home or source
        if name in INDEXING:
            home, indices = _known(args[0]), [index for index in args[1] if index is not None]
            for index in indices:
                if home == CPU and _known(index) == CUDA:
                    raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
                if home == CUDA and _known(index) == CPU:
                    self.copied(index, non_blocking=False)
                elif home == CUDA and index.dtype in (torch.bool, torch.uint8):
                    self.wait(f"{name} by a mask")
            tensors = [args[0], *args[2:3]]
        places = {_known(tensor) for tensor in tensors} - {None}
        if len(places) > 1:
            on_host = [tensor for tensor in tensors if _known(tensor) == CPU]
            number = len(on_host) == 1 and on_host[0].dim() == 0
            takes = torch.Tag.pointwise in operation.tags or name in TAKE_NUMBERS | INDEXING
            written = kwargs.get("out") if "out" in kwargs else args[0] if name.endswith("_") or name == "where" else None
            if not (number and takes and name not in TAKE_NONE and on_host[0] is not written):
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({name})"
                )
            return CUDA
        home = next(iter(places), None)
        for tensor in tensors:
            _put(tensor, home)
        return home

    @contextmanager
    def _own_random_numbers(self, draws: bool) -> Iterator[None]:
        """Draw from the device's generator."""
        if not draws:
            yield
            return
        before = torch.get_rng_state()
        torch.set_rng_state(self.random)
        try:
            yield
        finally:
            self.random = torch.get_rng_state()
            torch.set_rng_state(before)


def _waits_sometimes(name: str, *args: Any, replacement: bool = False, output_size: int | None = None, **_: Any) -> bool:
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
    """Return the device that a string or number names; "cuda" is the only one of its kind."""
    named = torch.device(device)
    return CUDA if named.type == "cuda" else named


def _put(tensor: Tensor, home: torch.device | None) -> None:
    if not tensor.is_meta:
        setattr(tensor.untyped_storage(), MARK, home)


def _grouped(tensors: list[list[Tensor]], with_indices: bool) -> dict[Any, Any]:
    groups = GROUPED(tensors, with_indices)
    return {(_device(group[0][0][0]), dtype): group for (_, dtype), group in groups.items()}


def _place() -> str:
    """Return the line of the package that is being executed."""
    frames = (frame for frame in reversed(traceback.extract_stack()) if SOURCE in frame.filename)
    frame = next(frames, None)
    return "elsewhere" if frame is None else f"{frame.filename.rpartition(SOURCE)[2]}:{frame.lineno}"


# What torch has on a machine with one GPU -------------------------------------------------------------------------------


def _methods(pretended: PretendDevice) -> dict[str, Any]:
    numpy, array, tolist, deepcopy = Tensor.numpy, Tensor.__array__, Tensor.tolist, Tensor.__deepcopy__

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        target = kwargs.pop("device", None)
        if args and isinstance(args[0], Tensor):
            target, args = _device(args[0]), (args[0].dtype, *args[1:])
        elif args and isinstance(args[0], str | int | torch.device | None):
            target, *args = args  # type: ignore[assignment]
        options = dict(zip(("dtype", "non_blocking", "copy"), args, strict=False)) | kwargs
        options = {"dtype": tensor.dtype} | {name: value for name, value in options.items() if value is not None}
        target = _device(tensor) if target is None else _named(target)
        if target.type not in ("cpu", "cuda"):
            return TO(tensor, device=target, **options)
        return pretended.move(tensor, target, TO, "to", **options)

    def cpu(tensor: Tensor, **options: Any) -> Tensor:
        return pretended.move(tensor, CPU, TO, "cpu", dtype=tensor.dtype, **options)

    def cuda(tensor: Tensor, device: Any = None, non_blocking: bool = False, **options: Any) -> Tensor:  # noqa: ARG001
        return to(tensor, CUDA, non_blocking=non_blocking, **options)

    def listed(tensor: Tensor) -> Any:
        if _device(tensor) == CUDA:
            pretended.wait("tolist")
        return tolist(tensor)

    def deeply_copied(tensor: Tensor, memo: Any) -> Tensor:
        with pretended.making(_device(tensor)):
            return deepcopy(tensor, memo)

    def on_host_only(read: Callable[..., Any]) -> Callable[..., Any]:
        def checked(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if _device(tensor) == CUDA:
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it first.")
            return read(tensor, *args, **kwargs)

        return checked

    def pin_memory(tensor: Tensor, device: Any = None) -> Tensor:  # noqa: ARG001
        if _device(tensor) == CUDA:
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
        pinned = tensor.clone()
        setattr(pinned.untyped_storage(), PINNED, True)
        return pinned

    return {
        **{"to": to, "cpu": cpu, "cuda": cuda, "tolist": listed, "pin_memory": pin_memory},
        **{"numpy": on_host_only(numpy), "__array__": on_host_only(array), "__deepcopy__": deeply_copied},
        "is_pinned": lambda tensor, device=None: getattr(tensor.untyped_storage(), PINNED, False),
        "get_device": lambda tensor: _device(tensor).index if _device(tensor) == CUDA else -1,
        "device": property(_device),
        "is_cuda": property(lambda tensor: _device(tensor) == CUDA),
        "is_cpu": property(lambda tensor: _device(tensor) == CPU),
    }


def _cuda(pretended: PretendDevice) -> dict[str, Any]:
    def seed(number: int) -> None:
        pretended.random = torch.Generator().manual_seed(number).get_state()

    def set_rng_state(state: Tensor, device: Any = None) -> None:  # noqa: ARG001
        assert _device(state) == CPU, "the state of a generator must be a tensor of the host"
        pretended.random = state.clone()

    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: "pretended",
        "get_device_capability": lambda device=None: (7, 0),
        "get_device_properties": lambda device=None: SimpleNamespace(total_memory=2**34),
        "get_rng_state": lambda device=None: pretended.random.clone(),
        "set_rng_state": set_rng_state,
        "manual_seed": seed,
        "manual_seed_all": seed,
        "synchronize": lambda device=None: pretended.wait("synchronize"),
        "empty_cache": lambda: None,
    }


ACCELERATOR = {
    "is_available": lambda: True,
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "current_device_index": lambda: 0,
    "set_device_index": lambda device: None,
    "current_stream": lambda device=None: SimpleNamespace(is_capturing=lambda: False),
}
