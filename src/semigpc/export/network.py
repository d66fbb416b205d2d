"""Exported networks, from images to probabilities, the two formats of their files, and how files
and the facts about them appear.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semigpc.data import AugmentConfig
from semigpc.estimator.head import ROWS, ClassifierHead, head_facts
from semigpc.gp import KernelHead
from semigpc.io import graphs
from semigpc.io.atomic import JsonObject, replacing, write_json, writing
from semigpc.io.errors import DifferenceError, NotExportableError, RunError, SettingsError
from semigpc.io.graphs import IMAGES, METADATA, ONNX_PACKAGES, trace
from semigpc.io.images import DRAFT_FACTOR
from semigpc.io.threads import allowed
from semigpc.models import Classifier, OnFrozen
from semigpc.models.backbones import input_statistics
from semigpc.models.encoder import Encoder
from semigpc.training.calibration import GP_SHARE
from semigpc.training.metrics import Head
from semigpc.training.run_folder import Choice
from semigpc.training.state import EvaluationNetwork
from semigpc.types import ModelOutput

PROBABILITIES = "probabilities"
Kind = Literal["onnx", "torch"]
Progress = Callable[[str, int, int | None], None]
TOLERANCE = 1e-4  # largest difference of a probability
# The same where rows are rounded to float16 in between: values whose last bits differ may be
# rounded to two neighbours, 5e-4 of each apart. Differences up to 1.3e-4 were seen on photographs.
ROUNDED_TOLERANCE = 1e-3
SMALL_BATCHES = (1, 7)  # images; sizes at which a traced network may go wrong
# As :data:`semigpc.estimator.head.EQUAL_ROWS`, for rows that a network computes anew: stored ones
# were rounded to float16, by up to 5e-4 of each number.
SAME_IMAGE = 4e-6
BATCH = 64  # inputs, the largest of the check
Floats = NDArray[np.float32]
Predictor = Callable[[Floats], dict[str, Floats]]


class ExportedNetwork(nn.Module):
    """Images to the probabilities of each head of a run, as one module.

    They are :func:`semigpc.training.calibration.calibrated` of softmax(z(x)). Images, RGB in [0,
    1], are normalised inside by x / std - mean / std.

    Returns a dictionary of (M, C) float32. ``probabilities`` are those of the head by which the run
    is evaluated; with two heads, there are also ``linear_probabilities`` and ``gp_probabilities``.

    Args:
        network: a classifier, alone or with an add-on that replaces its logits, or one of these on
            a frozen network.
        gp: the GP's head, if it is exported.
        gp_feature: the GP's input, ``backbone`` or ``projection``.
        augment: has mean and standard deviation of pixels.
        outputs_of: ``linear``, ``gp`` or both, first the one that ``probabilities`` are of.
        temperatures: T of each head of the run that has one.
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
        frozen: list[nn.Module] = []
        classifier: nn.Module = network
        if isinstance(network, OnFrozen):
            frozen = [network.frozen]
            classifier = network.classifier
        self.addon_network = classifier if isinstance(classifier, EvaluationNetwork) else None
        classifier = classifier.network if isinstance(classifier, EvaluationNetwork) else classifier
        assert isinstance(classifier, Classifier)
        self.backbone = nn.Sequential(*frozen, classifier.backbone)
        self.mixes = "gp" in outputs_of and {"linear", "gp"} <= temperatures.keys()
        self.linear = classifier.classifier if "linear" in outputs_of or self.mixes else None
        uses_projection = gp is not None and gp_feature == "projection"
        self.projection = classifier.heads["projection"] if uses_projection else None
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
            if self.addon_network is not None:  # an add-on replaces the logits of the linear head
                made = self.addon_network.network.heads.items()  # type: ignore[union-attr,operator]
                heads = {name: head(features) for name, head in made}
                logits = self.addon_network.replaced(ModelOutput(logits, features, heads)).logits
            probs["linear"] = torch.softmax(logits / self.temperatures.get("linear", 1.0), dim=1)
        if self.gp is not None:
            queries = features if self.projection is None else self.projection(features)
            scaled = self.gp(queries) / self.temperatures.get("gp", 1.0)
            probs["gp"] = torch.softmax(scaled, dim=1).float()
        if self.mixes:
            probs["gp"] = GP_SHARE * probs["gp"] + (1 - GP_SHARE) * probs["linear"]
        return {name: probs[head] for name, head in self.outputs.items()}


class LabelingNetwork(nn.Module):
    """Images (M, 3, s, s), RGB in [0, 1], to the outputs of the classifier on their embeddings.

    Args:
        backbone: from images to rows. head: the classifier on these.
        rounded: whether rows are rounded to float16, as stored ones are: without it, probabilities
            of photographs differed by up to 2e-4.
    """

    def __init__(self, backbone: nn.Module, head: ClassifierHead, *, rounded: bool) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.rounded = rounded

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of the outputs, in their order."""
        return self.head.outputs

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return all outputs of the classifier."""
        rows: Tensor = self.backbone(images)
        found: dict[str, Tensor] = self.head(rows.half().float() if self.rounded else rows)
        return found


def network_facts(head: ClassifierHead, encoder: Encoder, class_names: list[str]) -> JsonObject:
    """Return what a user of the exported network must know, for JSON."""
    size = encoder.image_size
    mean, std = input_statistics(encoder.name)
    return head_facts(head, class_names) | {
        "network": {"name": encoder.name, "weights": encoder.weights},
        "preparation": {
            "decode": DRAFT_FACTOR * size,
            "shorter_side": None,
            "size": size,
            "square": True,
        },
        "input": {
            "name": IMAGES,
            "shape": ["M", 3, size, size],
            "dtype": "float32",
            "values": "RGB, a byte / 255, in [0, 1]; not normalised: that is done inside",
        },
        "normalised_inside_by": {"mean": list(mean), "std": list(std)},
    }


Bare = Classifier | EvaluationNetwork | OnFrozen


def bare(network: nn.Module) -> Bare:
    """Return the network of a run without the wrappers of training, on the CPU in float32.

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


class Exportable(Protocol):
    """A module whose outputs have names: from images, or from rows."""

    @property
    def outputs(self) -> Iterable[str]:
        """Return the names of the outputs, in their order."""

    def __call__(self, inputs: Tensor) -> dict[str, Tensor]:
        """Return the outputs by name."""


class Format(NamedTuple):
    """A kind of file: suffix, required packages, and functions to write it and to load it."""

    suffix: str
    needs: tuple[str, ...]
    write: "Callable[[Exportable, int | Tensor, Path, str], None]"
    open: Callable[[Path], Predictor]

    def require(self) -> None:
        """Raise if a package is missing."""
        missing = [name for name in self.needs if find_spec(name) is None]
        if missing:
            raise ImportError(
                f"This format needs {', '.join(missing)}, an extra: pip install 'semigpc[export]'."
            )


@contextmanager
def _other_ways() -> Iterator[None]:
    """Add the alternatives to an error of ONNX."""
    try:
        yield
    except NotExportableError as error:
        raise NotExportableError(f"{error} Try kind=torch or head=linear.") from error


def write_onnx(network: Exportable, size: int | Tensor, path: Path, facts: str) -> None:
    """Write one ONNX file with these facts, as :func:`semigpc.io.graphs.write_onnx`.

    Args:
        network: from images or rows to named outputs.
        size: of images, in pixels, or two rows as an example.
        path: of the file. facts: as JSON.
    """
    assert isinstance(network, nn.Module)
    graph = trace(network, _examples(size))
    names = list(network.outputs)
    with _other_ways():
        graphs.write_onnx(graph, names, path, {METADATA: facts}, input_name=_input_name(size))


def open_onnx(path: Path) -> Predictor:
    """Open the file in ONNX Runtime on a CPU."""
    with _other_ways():
        return graphs.open_onnx(path, allowed())


def _examples(size: int | Tensor) -> Tensor:
    return size if isinstance(size, Tensor) else torch.zeros(2, 3, size, size)


def _input_name(size: int | Tensor) -> str:
    return ROWS if isinstance(size, Tensor) else IMAGES


def write_torch(network: Exportable, size: int | Tensor, path: Path, facts: str) -> None:
    """Write one file of torch.export with these facts; arguments as of :func:`write_onnx`."""
    assert isinstance(network, nn.Module)
    torch.export.save(trace(network, _examples(size)), path, extra_files={METADATA: facts})


def open_torch(path: Path) -> Predictor:
    """Open the file in torch on a CPU."""
    module = torch.export.load(path).module()

    def predict(images: Floats) -> dict[str, Floats]:
        with torch.no_grad():
            outputs = module(torch.from_numpy(images))
        return {name: values.numpy() for name, values in outputs.items()}

    return predict


FORMATS = {
    "onnx": Format(".onnx", ONNX_PACKAGES, write_onnx, open_onnx),
    "torch": Format(".pt2", (), write_torch, open_torch),
}


# Files and what stands beside them ----------------------------------------------------------------


class InputFacts(TypedDict):
    """The input of an exported file."""

    name: str
    shape: list[str | int]
    dtype: str
    values: str


class OutputFacts(TypedDict):
    """One output of an exported file: probabilities by a head, with its temperature."""

    head: Head
    temperature: float
    shape: list[str | int]
    dtype: str


class CheckFacts(TypedDict):
    """How far the file's probabilities are from those of the run, and on how many images."""

    rows: int
    test_images: int
    random_images: int
    largest_difference: float
    of_each_output: dict[str, float]
    tolerance: float


class ModelFacts(TypedDict):
    """What a user of an exported file must know; the file contains it, under METADATA.

    ``preparation`` has the fields of :class:`semigpc.data.augment.Preparation`.
    """

    checkpoint: Choice
    step: int
    class_names: list[str]
    preparation: dict[str, int | None]
    input: InputFacts
    normalised_inside_by: dict[str, list[float]]
    outputs: dict[str, OutputFacts]
    gp: dict[str, str | int] | None


class ExportFacts(ModelFacts):
    """The JSON file beside an exported one: the facts in it, and what its check showed."""

    file: str
    format: Kind
    run: str
    check: CheckFacts
    notes: list[str]
    versions: dict[str, str]


class ExportedFile(NamedTuple):
    """The file that was written, and the facts in the JSON file beside it."""

    path: Path
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Exported:
    """The file that was written, and the ``facts`` in the JSON file beside it."""

    path: Path
    facts: ExportFacts


def publish(path: Path, write: Callable[[Path], Mapping[str, Any]]) -> ExportedFile:
    """Let ``write`` make a file and return its facts, then put both in place, the file last."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent) as drafts:
        draft = Path(drafts) / path.name
        facts = write(draft)
        write_json(beside(draft), facts)
        for file in sorted(Path(drafts).iterdir(), key=lambda file: file == draft):  # model last
            with replacing(path.parent / file.name) as place:
                file.replace(place)
    return ExportedFile(path, facts)


def check_free(path: Path, kind: Kind, *, overwrite: bool) -> None:
    """Raise if a file of this kind cannot be written there."""
    suffix = FORMATS[kind].suffix
    if path.suffix != suffix:
        raise SettingsError(
            f"the name of the file must end in {suffix} for kind={kind}; got {path.name!r}."
        )
    for file in (path, beside(path)):
        if file.is_dir():
            raise SettingsError(f"{file} is a folder. Give the name of a file by out=...")
        if file.exists() and not overwrite:
            raise RunError(
                f"{file} exists. Give another name by out=..., or replace it by overwrite=True."
            )


def beside(path: Path) -> Path:
    """Return the path of the JSON file that describes the exported one."""
    return path.with_name(f"{path.name}.json")


def as_input(pixels: NDArray[np.uint8]) -> Floats:
    """Return images (M, s, s, 3) of bytes as the network takes them."""
    channels_first = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32)
    return channels_first / np.float32(255)


def largest_difference(
    predictor: Predictor,
    inputs: Floats,
    expected: NDArray[np.floating[Any]],
    report: Progress,
    *,
    tolerance: float = TOLERANCE,
) -> float:
    """Return the largest difference of a probability, in batches of several sizes.

    Raises:
        DifferenceError: it is above the tolerance, or NaN.
    """
    largest = 0.0
    start = 0
    sizes = cycle((*SMALL_BATCHES, BATCH))
    while start < len(inputs):
        own = slice(start, start + next(sizes))
        probs = predictor(inputs[own])[PROBABILITIES]
        largest = float(np.maximum(largest, np.abs(probs - expected[own]).max()))  # keeps NaN
        start = own.stop
        report("Checking", min(start, len(inputs)), len(inputs))
    if not largest <= tolerance:
        raise DifferenceError(
            f"the file differs from semigpc predict by {largest:.2g} in a probability, and "
            f"{tolerance:g} is allowed; it was removed. Try the other kind=..."
        )
    return largest
