"""A function of tensors as a file: traced by torch, written as ONNX, opened in ONNX Runtime.

Users: frozen networks (models.encoder), exported runs and labellings (export), and the estimator
alone (estimator.head).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semigpc.io.errors import NotExportableError

IMAGES = "images"  # name of the input of a network
METADATA = "semigpc"  # name of the facts that a file contains, as JSON
ANY_NUMBER = ({0: torch.export.Dim("M", min=1)},)
ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")

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
            f"the network cannot be traced: {innermost(error)}. Another model may do."
        ) from error


def write_onnx(
    graph: torch.export.ExportedProgram,
    outputs: Sequence[str],
    path: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    input_name: str = IMAGES,
) -> None:
    """Write one ONNX file; weights are beside it only if they exceed the 2 GB that a file of this
    format can hold.

    Takes some seconds for a network of a hundred layers.

    Args:
        graph: of a network, from :func:`trace`. outputs: their names. path: of the file.
        metadata: texts by name, stored in the file.
        input_name: of the only input.
    """
    names: dict[str, Any] = {"input_names": [input_name], "output_names": list(outputs)}
    try:
        program = torch.onnx.export(
            graph, dynamo=True, dynamic_shapes=ANY_NUMBER, verbose=False, **names
        )
    except torch.onnx.OnnxExporterError as error:
        raise NotExportableError(f"the network has no ONNX form: {innermost(error)}.") from error
    assert program is not None
    program.model.metadata_props.update(metadata or {})
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
            f"ONNX Runtime lacks what the network needs: {innermost(error)}."
        ) from error
    names = [output.name for output in session.get_outputs()]
    (own,) = session.get_inputs()
    return lambda values: dict(zip(names, session.run(names, {own.name: values}), strict=True))


def innermost(error: BaseException) -> str:
    """Return the first line of the error that caused all others, after its class."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
