"""ONNX Runtime and torch.export against every engine and kernel that can be exported."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from semigpc.data import Augment, AugmentConfig
from semigpc.export.network import FORMATS, TOLERANCE, ExportedNetwork
from semigpc.export.run import differences
from semigpc.gp import EnsembleGP, ExactGP, MatrixFreeGP, NoExpansionError
from semigpc.io.errors import DifferenceError, NotExportableError
from semigpc.io.images import Pixels
from semigpc.models import Classifier
from semigpc.refiners import EnsembleOptions, GaussianProcessRefiner, GPConfig, MatrixFreeOptions
from semigpc.training.metrics import Head
from semigpc.types import HeadSpec

CLASSES, SIDE = 4, 4
AUGMENT = AugmentConfig(image_size=SIDE)
CHECK_IMAGES, BATCHES = 1000, (1, 7, 256, 736)
FREQUENCY = {"class_prior": "frequency"}
CASES: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "exact": (ExactGP, {"engine": "exact"}),
    "ensemble": (EnsembleGP, {"engine": EnsembleOptions(members=3, combine="mean"), **FREQUENCY}),
    "matrix_free": (MatrixFreeGP, {"engine": MatrixFreeOptions(rank=32), **FREQUENCY}),
    "laplace": (ExactGP, {"kernel": "laplace"}),
    "laplace_clipped": (ExactGP, {"kernel": "laplace", "kernel_clip": 0.05}),
    "rbf_clipped": (ExactGP, {"kernel_clip": 0.05, "feature": "projection"}),
    "cosine": (ExactGP, {"kernel": "cosine", "noise_std": 0.01, **FREQUENCY}),
    "ntk": (ExactGP, {"kernel": "ntk", "l2norm": False}),
}
Floats = npt.NDArray[np.float32]
# The linear layer is not trained, and should not outvote the GP.
TEMPERATURES: dict[Head, float] = {"gp": 2.0, "linear": 8.0}


class Flat(nn.Module):
    """Features (M, 48): the pixels."""

    num_features = 3 * SIDE**2

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def images(count: int, seed: int) -> tuple[Pixels, Tensor]:
    """Bytes (count, 4, 4, 3) about one point a class, with overlap, and labels (count,)."""
    rng = np.random.default_rng([7, seed])
    centres = np.random.default_rng(7).integers(60, 196, (CLASSES, SIDE, SIDE, 3))
    labels = rng.choice(CLASSES, count, p=(0.55, 0.25, 0.15, 0.05))
    pixels = centres[labels] + 30 * rng.standard_normal((count, SIDE, SIDE, 3))
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8), torch.from_numpy(labels)


def network() -> Classifier:
    """A linear classifier and a projection on the pixels."""
    torch.manual_seed(0)
    built = Classifier(Flat(), CLASSES, {"projection": HeadSpec("projection", 8)})
    return built.eval().requires_grad_(False)


def gp(classifier: Classifier, rows: int = 160, **options: Any) -> GaussianProcessRefiner:
    """A GP over so many images as the classifier sees them."""
    config = GPConfig(**{"buffer_size": 128, **options})
    width = 8 if config.feature == "projection" else Flat.num_features
    refiner = GaussianProcessRefiner(config, width, CLASSES)
    pixels, labels = images(rows, seed=1)
    for some in torch.arange(rows).split(16):
        output = classifier(Augment(AUGMENT).normalise(torch.from_numpy(pixels[some.numpy()])))
        refiner.write(refiner.placement.features(output), labels[some])
    return refiner


class Several(nn.Module):
    """Every case in one graph, since each export takes seconds."""

    def __init__(self, classifier: Classifier, refiners: dict[str, GaussianProcessRefiner]) -> None:
        super().__init__()
        self.each = nn.ModuleDict(
            {name: exported(classifier, refiner) for name, refiner in refiners.items()}
        )
        self.outputs = {f"of_{name}": "gp" for name in refiners}

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {f"of_{name}": module(images)["probabilities"] for name, module in self.each.items()}


class Compared(NamedTuple):
    """Refiners, what each returns for the rows, (M, C), and what each runtime does."""

    refiners: dict[str, GaussianProcessRefiner]
    expected: dict[str, npt.NDArray[np.float64]]
    said: dict[str, dict[str, Floats]]


pytestmark = pytest.mark.slow  # importing the exporters takes seconds


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    classifier, folder = network(), tmp_path_factory.mktemp("models")
    refiners = {name: gp(classifier, **options) for name, (_, options) in CASES.items()}
    pixels, _ = images(CHECK_IMAGES, seed=3)
    output = classifier(Augment(AUGMENT).normalise(torch.from_numpy(pixels)))
    linear = torch.softmax(output.logits.double() / 8, dim=1)
    expected = {
        name: ((2 * torch.softmax(refiner.logits(output).double() / 2, dim=1) + linear) / 3).numpy()
        for name, refiner in refiners.items()
    }
    raw = (pixels.transpose(0, 3, 1, 2) / 255).astype(np.float32)
    said = {}
    for kind, form in FORMATS.items():
        path = folder / f"model{form.suffix}"
        form.write(cast("ExportedNetwork", Several(classifier, refiners).eval()), SIDE, path, "{}")
        answers = [form.open(path)(part) for part in np.split(raw, np.cumsum(BATCHES)[:-1])]
        said[kind] = {
            name: np.concatenate([answer[f"of_{name}"] for answer in answers]) for name in refiners
        }
    return Compared(refiners, expected, said)


def exported(classifier: Classifier, refiner: GaussianProcessRefiner) -> ExportedNetwork:
    heads: Any = {"outputs_of": ("gp", "linear"), "temperatures": TEMPERATURES}
    feature = refiner.config.feature
    head = refiner.head()
    return ExportedNetwork(classifier, head, gp_feature=feature, augment=AUGMENT, **heads).eval()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_a_thousand_rows_say_what_the_engine_says(compared: Compared, name: str, kind: str) -> None:
    assert isinstance(compared.refiners[name].engine, CASES[name][0])
    said, expected = compared.said[kind][name], compared.expected[name]
    assert said.dtype == np.float32
    assert said.shape == expected.shape == (CHECK_IMAGES, 4)
    assert np.abs(said - expected).max() <= TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_the_rows_are_worth_comparing(compared: Compared, name: str) -> None:
    """Classes are found, and not every answer is the same."""
    labels = images(CHECK_IMAGES, seed=3)[1].numpy()
    assert (compared.expected[name].argmax(axis=1) == labels).mean() > 0.8
    assert compared.expected[name].max(axis=1).std() > 0.01


def test_a_mean_that_is_no_sum_of_kernels_is_refused() -> None:
    classifier = network()
    precise = gp(classifier, engine=EnsembleOptions(members=3, combine="precision"))
    assert isinstance(precise.engine, EnsembleGP)
    with pytest.raises(NoExpansionError, match="combine='mean' can be exported"):
        precise.head()


@dataclass(frozen=True)
class Angular:
    """k(a, b) = 1 - angle(a, b) / pi, by an arccos in float64, which ONNX Runtime does not have."""

    positive_definite = True
    output_scale = 1.0

    def __call__(self, x1: Tensor, x2: Tensor, square_norms2: Tensor | None = None) -> Tensor:
        cosines = nn.functional.normalize(x1, dim=1) @ nn.functional.normalize(x2, dim=1).mT
        return 1 - torch.acos(cosines.clamp(-1, 1)) / torch.pi

    def diagonal(self, x: Tensor) -> Tensor:
        return x.new_ones(len(x))


def test_what_onnx_runtime_cannot_compute_is_refused_and_torch_can(tmp_path: Path) -> None:
    classifier = network()
    refiner = gp(classifier)
    refiner.engine.reanchor(Angular(), 0.3)
    module, pixels = exported(classifier, refiner), images(CHECK_IMAGES, seed=2)[0]
    onnx, pt2 = (tmp_path / f"model{form.suffix}" for form in FORMATS.values())
    FORMATS["onnx"].write(module, SIDE, onnx, "{}")
    words = r"lacks what the network needs: .*kind=torch or head=linear"
    with pytest.raises(NotExportableError, match=words):
        FORMATS["onnx"].open(onnx)
    FORMATS["torch"].write(module, SIDE, pt2, "{}")
    answer = FORMATS["torch"].open(pt2)
    how: Any = {"augment": Augment(AUGMENT), "outputs": module.outputs, "pixels": pixels}
    found = differences(answer, classifier, refiner, temperatures=TEMPERATURES, **how)
    assert set(found) == {"probabilities", "gp_probabilities", "linear_probabilities"}
    assert max(found.values()) <= TOLERANCE


def test_a_network_that_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    class Moody(nn.Module):
        num_features = 48

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1) if float(images.sum()) > 0 else -images.flatten(1)

    moody = Classifier(Moody(), 4).eval()
    heads: Any = {"outputs_of": ("linear",), "temperatures": {}}
    module = ExportedNetwork(moody, None, gp_feature="backbone", augment=AUGMENT, **heads)
    for kind in FORMATS:
        with pytest.raises(NotExportableError, match="the network cannot be traced: "):
            FORMATS[kind].write(module, SIDE, tmp_path / "model", "{}")


def test_differences_are_seen() -> None:
    """Also in the last of the rows, in a batch of any size, and where they are no numbers."""
    classifier, pixels = network(), images(20, seed=4)[0]
    augment = Augment(AUGMENT)
    logits = classifier(augment.normalise(torch.from_numpy(pixels))).logits
    honest = torch.softmax(logits, dim=1).numpy()
    outputs = {"probabilities": "linear"}
    compared: Any = {"augment": augment, "outputs": outputs, "pixels": pixels, "temperatures": {}}
    sizes: list[int] = []

    def answer(given: Floats, change: float = 0.0) -> dict[str, Any]:
        start = sum(sizes)
        sizes.append(len(given))
        said = honest[start : start + len(given)].copy()
        if start + len(given) == 20:
            said[-1, 0] += change
        return {"probabilities": said}

    seen = differences(answer, classifier, None, **compared, largest_batch=5)
    assert sizes == [1, 7, 5, 1, 6]
    assert seen["probabilities"] < 1e-6
    for change in (0.25, float("nan")):
        sizes.clear()
        found = differences(partial(answer, change=change), classifier, None, **compared)
        assert json.dumps(round(found["probabilities"], 3)) == json.dumps(change)

    def narrow(given: Floats) -> dict[str, Any]:
        return {"probabilities": honest[: len(given), :3]}

    words = r"probabilities has shape \(1, 3\), and should have \(1, 4\)"
    with pytest.raises(DifferenceError, match=words):
        differences(narrow, classifier, None, **compared)
