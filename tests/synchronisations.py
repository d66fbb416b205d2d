"""Counts what would make the host wait for a GPU, by running it on the CPU.

A tensor is on the "device" if it was placed there (:func:`place`) or computed from such a tensor; the mark is on
its storage, so that views share it. Tensors that the host makes for itself bear no mark and may be read at no cost. What CUDA
does after waiting, such as returning the number of non-zeros, is counted when its input is on the device.
"""

import copy
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MARK = "_pretends_to_be_on_a_device"
WAITING = {  # operations whose result, or the size of it, the host has to know
    *("_local_scalar_dense", "equal", "nonzero", "masked_select", "bincount"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive"),
    *("_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_lstsq"),
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
READING = {Tensor.tolist: "tolist", Tensor.numpy: "numpy", Tensor.__array__: "numpy", Tensor.cpu: "cpu"}
SOURCE = "/src/semigpc/"


def place(value: Any) -> Any:
    """Put tensors on the device: one, those of a batch, or all of a module that ``module.to(device)`` would move."""
    if isinstance(value, nn.Module):
        moved = dict(_tensors(copy.deepcopy(value).to("meta")))
        tensors = [tensor for name, tensor in _tensors(value) if moved[name].is_meta]
    else:
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    for tensor in tensors:
        _mark(tensor)
    return value


class Synchronisations:
    """Context manager; ``places`` counts operations by (operation, line of the package that called it).

    Example::

        number = place(torch.tensor(3))
        with Synchronisations() as counted:
            int(number)
        assert counted.total == 1
    """

    def __init__(self) -> None:
        self.places: Counter[tuple[str, str]] = Counter()
        self._modes = ExitStack()

    @property
    def total(self) -> int:
        return self.places.total()

    def count(self, operation: str) -> None:
        frames = (frame for frame in reversed(traceback.extract_stack()) if SOURCE in frame.filename)
        frame = next(frames, None)
        where = "elsewhere" if frame is None else f"{frame.filename.rpartition(SOURCE)[2]}:{frame.lineno}"
        self.places[operation, where] += 1

    def __enter__(self) -> Self:
        self._modes.enter_context(_Functions(self.count))
        self._modes.enter_context(_Dispatch(self.count))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._modes.__exit__(kind, error, trace)


class _Functions(TorchFunctionMode):
    """Sees what copies to the host, which is no operation where all is on the CPU; the copy is the host's own."""

    def __init__(self, count: Callable[[str], None]) -> None:
        super().__init__()
        self.count = count

    def __torch_function__(
        self, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = READING.get(function)
        if function is Tensor.to and (
            "cpu" in args[1:] or kwargs.get("device") == "cpu"
        ):  # a torch.device is the pretended one
            name = "to"
        if name is None or not _marked(args[0]):
            result = function(*args, **kwargs)
            if isinstance(kwargs.get("device"), torch.device) and isinstance(result, Tensor):
                _mark(result)
            return result
        self.count(name)
        host = args[0].detach().clone()
        setattr(host.untyped_storage(), MARK, False)
        return function(host, *args[1:], **kwargs)


class _Dispatch(TorchDispatchMode):
    def __init__(self, count: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = count

    def __torch_dispatch__(
        self, operation: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = operation.overloadpacket.__name__, kwargs or {}
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = [tensor for tensor in inputs if _marked(tensor)]
        if on_device and (name in WAITING or _waits_sometimes(name, *args, **kwargs)):
            self.count(name)
        if name in INDEXING:
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8) and _marked(index):
                    self.count(f"{name} by a mask")
        if name == "copy_" and on_device and not _marked(args[0]):
            self.count("copy_ to the host")
            return operation(*args, **kwargs)
        result = operation(*args, **kwargs)
        if on_device:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    _mark(leaf)
        return result


def _waits_sometimes(name: str, *args: Any, replacement: bool = False, output_size: int | None = None, **_: Any) -> bool:
    if name == "repeat_interleave":
        return isinstance(args[-1], Tensor) and output_size is None
    return name == "multinomial" and not (replacement or args[2:3] == (True,))


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _mark(tensor: Tensor) -> None:
    setattr(tensor.untyped_storage(), MARK, True)


def _marked(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and not tensor.is_meta and getattr(tensor.untyped_storage(), MARK, False)
