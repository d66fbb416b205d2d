"""The exported network, from images to probabilities, and the two formats in which it is written
and read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semigpc.data import AugmentConfig
from semigpc.gp import KernelHead
from semigpc.io.errors import NotExportableError
from semigpc.io.threads import allowed
from semigpc.models import Classifier, OnFrozen
from semigpc.models import encoder as onnx_form
from semigpc.models.encoder import ONNX_PACKAGES, trace
from semigpc.training.calibration import GP_SHARE
from semigpc.training.metrics import Head
from semigpc.training.state import EvaluationNetwork
from semigpc.types import ModelOutput

PROBABILITIES = "probabilities"
Floats = NDArray[np.float32]
Answer = Callable[[Floats], dict[str, Floats]]


class ExportedNetwork(nn.Module):
    """What each head of a run reports: :func:`semigpc.training.calibration.calibrated` of
    softmax(z(x)), as one module.

    Images, RGB in [0, 1], are normalised inside by x / std - mean / std.

    Returns a dictionary of (M, C) float32. ``probabilities`` are those of the judged head; if there
    are two heads, each is also there under its own name, ``linear_probabilities`` and
    ``gp_probabilities``.

    Args:
        network: a classifier, alone or with an add-on that replaces its logits, or one of these on
            a frozen network.
        gp: the GP's head, if it is to be inside. gp_feature: its input, ``backbone`` or
            ``projection``.
        augment: contains the mean and deviation of pixels.
        outputs_of: ``linear``, ``gp`` or both, the judged one first. temperatures: T of each head
            of the run that has one.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        network: Classifier | EvaluationNetwork | OnFrozen,
        gp: KernelHead | None,
        *,
        gp_feature: str,
        augment: AugmentConfig,
        outputs_of: Sequence[Head],
        temperatures: Mapping[Head, float],
    ) -> None:
        super().__init__()
        frozen, classifier = (
            ([network.frozen], network.classifier)
            if isinstance(network, OnFrozen)
            else ([], network)
        )
        self.answering = classifier if isinstance(classifier, EvaluationNetwork) else None
        classifier = classifier.network if isinstance(classifier, EvaluationNetwork) else classifier
        assert isinstance(classifier, Classifier)
        self.backbone = nn.Sequential(*frozen, classifier.backbone)
        self.mixes = "gp" in outputs_of and {"linear", "gp"} <= temperatures.keys()
        self.linear = classifier.classifier if "linear" in outputs_of or self.mixes else None
        self.projection = (
            classifier.heads["projection"]
            if gp is not None and gp_feature == "projection"
            else None
        )
        self.gp = gp
        self.outputs_of = tuple(outputs_of)
        self.temperatures = dict(temperatures)
        mean, std = (
            torch.tensor(values, dtype=torch.float64).view(3, 1, 1)
            for values in (augment.mean, augment.std)
        )
        self.register_buffer("scale", (1 / std).float())
        self.register_buffer("shift", (-mean / std).float())

    @property
    def outputs(self) -> dict[str, Head]:
        """Which head each output comes from, in the order of the outputs."""
        named = {f"{head}_probabilities": head for head in self.outputs_of}
        return {PROBABILITIES: self.outputs_of[0]} | (named if len(named) > 1 else {})

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return probabilities (M, C) for images (M, 3, s, s), float32, RGB in [0, 1]."""
        features = self.backbone(images * self.scale + self.shift)
        probs: dict[str, Tensor] = {}
        if self.linear is not None:
            logits: Tensor = self.linear(features)
            if self.answering is not None:  # an add-on replaces the logits of the linear head
                made = self.answering.network.heads.items()  # type: ignore[union-attr,operator]
                heads = {name: head(features) for name, head in made}
                logits = self.answering.replaced(ModelOutput(logits, features, heads)).logits
            probs["linear"] = torch.softmax(logits / self.temperatures.get("linear", 1.0), dim=1)
        if self.gp is not None:
            queries = features if self.projection is None else self.projection(features)
            probs["gp"] = torch.softmax(
                self.gp(queries) / self.temperatures.get("gp", 1.0), dim=1
            ).float()
        if self.mixes:
            probs["gp"] = GP_SHARE * probs["gp"] + (1 - GP_SHARE) * probs["linear"]
        return {name: probs[head] for name, head in self.outputs.items()}


Bare = Classifier | EvaluationNetwork | OnFrozen


def bare(network: nn.Module) -> Bare:
    """Return the network of a run without the wrappers of training, on the CPU in float32, whatever
    its training precision.

    Weights of convolutions are made contiguous, since torch.export fails to save some that are
    channels last.
    """
    if isinstance(network, OnFrozen):
        unwrapped: Bare = OnFrozen(network.frozen, bare(network.classifier))
    elif isinstance(network, EvaluationNetwork):
        unwrapped = EvaluationNetwork(bare(network.network), network.own, network.addon)
    else:
        inner = network if isinstance(network, Classifier) else network.module
        assert isinstance(inner, Classifier)
        unwrapped = inner
    return unwrapped.to("cpu", memory_format=torch.contiguous_format).eval().requires_grad_(False)  # type: ignore[call-overload,no-any-return]


class Format(NamedTuple):
    """A kind of file: its ``suffix``, the packages it ``needs``, and functions that write it and
    open it for inference.
    """

    suffix: str
    needs: tuple[str, ...]
    write: Callable[[ExportedNetwork, int, Path], None]
    open: Callable[[Path], Answer]

    def require(self) -> None:
        """Raise if a package is missing."""
        missing = [name for name in self.needs if find_spec(name) is None]
        if missing:
            raise ImportError(
                f"This format needs {', '.join(missing)}, an extra: pip install 'semigpc[export]'."
            )


@contextmanager
def _other_ways() -> Iterator[None]:
    """Add to an error about ONNX what can be exported instead."""
    try:
        yield
    except NotExportableError as error:
        raise NotExportableError(f"{error} Try kind=torch or head=linear.") from error


def write_onnx(network: ExportedNetwork, size: int, path: Path) -> None:
    """Write one ONNX file, as :func:`semigpc.models.encoder.write_onnx`."""
    graph = trace(network, _examples(size))
    with _other_ways():
        onnx_form.write_onnx(graph, list(network.outputs), path)


def open_onnx(path: Path) -> Answer:
    """Open the file in ONNX Runtime on a CPU."""
    with _other_ways():
        return onnx_form.open_onnx(path, allowed())


def _examples(size: int) -> Tensor:
    return torch.zeros(2, 3, size, size)


def write_torch(network: ExportedNetwork, size: int, path: Path) -> None:
    """Write one file of torch.export."""
    torch.export.save(trace(network, _examples(size)), path)


def open_torch(path: Path) -> Answer:
    """Open the file in torch on a CPU."""
    module = torch.export.load(path).module()

    def answer(images: Floats) -> dict[str, Floats]:
        with torch.no_grad():
            return {
                name: values.numpy() for name, values in module(torch.from_numpy(images)).items()
            }

    return answer


FORMATS = {
    "onnx": Format(".onnx", ONNX_PACKAGES, write_onnx, open_onnx),
    "torch": Format(".pt2", (), write_torch, open_torch),
}
