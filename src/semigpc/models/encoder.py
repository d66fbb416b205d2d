"""Networks as ONNX, and in ONNX Runtime, which on a CPU takes a quarter to a half of torch's time."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semigpc.io.errors import NotExportableError

INPUT = "images"
ANY_NUMBER = ({0: torch.export.Dim("M", min=1)},)
ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
# Pixels that a network must see before ONNX Runtime saves the seven seconds that it takes to get
# the network there: on two cores torch takes 24 ms for an image of 224 x 224 and ONNX Runtime 8.
WORTHWHILE = 400 * 224**2
TOLERANCE = 1e-3  # largest difference from torch, relative to the root mean square of the outputs

Outputs = dict[str, NDArray[np.float32]]


def trace(network: nn.Module, images: Tensor) -> torch.export.ExportedProgram:
    """Return a network as a graph for any number of images.

    Args:
        network: its ``forward`` has one argument. images: two or more; one would be taken for a
            constant.
    """
    try:
        return torch.export.export(network, (images,), dynamic_shapes=ANY_NUMBER, strict=False)
    except Exception as error:  # whatever a network's own code raises on symbolic shapes
        raise NotExportableError(
            f"the network cannot be traced: {_reason(error)}. Another model may do."
        ) from error


def write_onnx(graph: torch.export.ExportedProgram, outputs: Sequence[str], path: Path) -> None:
    """Write one ONNX file; weights are beside it only if they exceed the 2 GB that a file of this
    format can hold.

    Takes some seconds for a network of a hundred layers.

    Args:
        graph: of a network, from :func:`trace`. outputs: their names. path: of the file.
    """
    names: dict[str, Any] = {"input_names": [INPUT], "output_names": list(outputs)}
    try:
        program = torch.onnx.export(
            graph, dynamo=True, dynamic_shapes=ANY_NUMBER, verbose=False, **names
        )
    except torch.onnx.OnnxExporterError as error:
        raise NotExportableError(f"the network has no ONNX form: {_reason(error)}.") from error
    assert program is not None
    program.save(path)


def open_onnx(path: Path, threads: int) -> Callable[[NDArray[Any]], Outputs]:
    """Open a file in ONNX Runtime on a CPU; the function that is returned may be called by several
    threads at once.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Its threads would keep the cores busy between two operations, which others could use.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        raise NotExportableError(
            f"ONNX Runtime lacks what the network needs: {_reason(error)}."
        ) from error
    names = [output.name for output in session.get_outputs()]
    return lambda images: dict(zip(names, session.run(names, {INPUT: images}), strict=True))


def in_onnx_runtime(
    network: nn.Module, images: Tensor, threads: int
) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
    """Return the network as a function in ONNX Runtime, once it agrees with torch on these images
    to TOLERANCE.

    Making it takes some seconds; nothing is left on disk.

    Args:
        network: on the CPU, from images to one tensor. images: two or more. threads: of each call.

    Raises:
        NotExportableError: a package is missing, the network has no ONNX form, or its outputs
            differ.
    """
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    if missing:
        raise NotExportableError(
            f"{', '.join(missing)} not installed: pip install 'semigpc[embedded]'."
        )
    try:
        with TemporaryDirectory(prefix="semigpc-") as folder:
            path = Path(folder) / "network.onnx"
            write_onnx(trace(network, images), ["features"], path)
            run = open_onnx(path, threads)
    except NotExportableError:
        raise
    except Exception as error:  # versions of the packages that do not fit raise errors of any kind, a full disk another
        raise NotExportableError(f"{_reason(error)}.") from error
    with torch.inference_mode():
        expected = network(images).numpy()
    size = float(np.sqrt(np.square(expected, dtype=np.float64).mean()))
    difference = float(np.abs(run(images.numpy())["features"] - expected).max())
    if not difference <= TOLERANCE * size:
        raise NotExportableError(
            f"ONNX Runtime differs from torch by {difference:.2g} in outputs of size {size:.2g}."
        )
    return lambda images: run(images)["features"]


def _reason(error: BaseException) -> str:
    """Return the first line of the error that caused all others."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
