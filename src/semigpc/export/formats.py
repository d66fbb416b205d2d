"""The two formats: how each is written, and how it is read again to be checked."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from semigpc.export.network import INPUT, ExportedNetwork
from semigpc.threads import allowed

Floats = NDArray[np.float32]
Answer = Callable[[Floats], dict[str, Floats]]
ANY_NUMBER = {INPUT: {0: torch.export.Dim("M", min=1)}}
ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


class NotExportableError(RuntimeError):
    """A run that has no such form; the message says what can be exported instead."""


class Format(NamedTuple):
    """A kind of file: its ``suffix``, the packages it ``needs``, how it is written, and how what was written answers."""

    suffix: str
    needs: tuple[str, ...]
    write: Callable[[ExportedNetwork, int, Path], None]
    open: Callable[[Path], Answer]

    def require(self) -> None:
        """Refuse early if a package is missing."""
        missing = [name for name in self.needs if find_spec(name) is None]
        if missing:
            raise ImportError(f"This format needs {', '.join(missing)}, an extra: pip install 'semigpc[export]'.")


def trace(network: ExportedNetwork, size: int) -> torch.export.ExportedProgram:
    """The network as a graph for any number of images."""
    try:
        shown = (torch.zeros(2, 3, size, size),)  # of one, a tracer would take the number for a constant
        return torch.export.export(network, shown, dynamic_shapes=ANY_NUMBER, strict=False)
    except Exception as error:  # whatever a network's own code raises when it is shown symbols
        raise NotExportableError(f"the network cannot be traced: {_reason(error)}. Another model may do.") from error


def write_onnx(network: ExportedNetwork, size: int, path: Path) -> None:
    """One ONNX file, with its weights beside it only if they are more than the 2 GB that a file of this format can hold."""
    names = list(network.outputs)
    try:
        program = torch.onnx.export(
            trace(network, size), dynamo=True, dynamic_shapes=ANY_NUMBER, input_names=[INPUT], output_names=names, verbose=False
        )
    except torch.onnx.OnnxExporterError as error:
        raise NotExportableError(
            f"the network has no ONNX form: {_reason(error)}. --format torch may do, or --head linear."
        ) from error
    assert program is not None
    program.save(path)


def open_onnx(path: Path) -> Answer:
    """The file as ONNX Runtime answers on a CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = allowed()
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        raise NotExportableError(
            f"ONNX Runtime lacks what the network needs: {_reason(error)}. --format torch may do, or --head linear."
        ) from error
    names = [output.name for output in session.get_outputs()]
    return lambda images: dict(zip(names, session.run(names, {INPUT: images}), strict=True))


def write_torch(network: ExportedNetwork, size: int, path: Path) -> None:
    """One file of torch.export."""
    torch.export.save(trace(network, size), path)


def open_torch(path: Path) -> Answer:
    """The file as torch answers on a CPU."""
    module = torch.export.load(path).module()

    def answer(images: Floats) -> dict[str, Floats]:
        with torch.no_grad():
            return {name: values.numpy() for name, values in module(torch.from_numpy(images)).items()}

    return answer


FORMATS = {
    "onnx": Format(".onnx", ONNX_PACKAGES, write_onnx, open_onnx),
    "torch": Format(".pt2", (), write_torch, open_torch),
}


def _reason(error: BaseException) -> str:
    """The first line of what went wrong at the bottom."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
