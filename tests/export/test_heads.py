"""A thousand rows through ONNX Runtime and through torch.export, for every engine and every kernel
that can be exported.
"""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from semigpc.data import Augment
from semigpc.export.network import FORMATS, ExportedNetwork
from semigpc.export.run import TOLERANCE, differences
from semigpc.gp import EnsembleGP, ExactGP, MatrixFreeGP, NoExpansionError
from semigpc.io.errors import DifferenceError, NotExportableError
from semigpc.models import Classifier
from semigpc.refiners import (
    EnsembleOptions,
    GaussianProcessRefiner,
    MatrixFreeOptions,
)
from semigpc.training.metrics import Head
from tests.export.clusters import AUGMENT, SIDE, gp, images, network

CHECK_IMAGES, BATCHES = 1000, (1, 7, 256, 736)
CASES: dict[str, tuple[type[torch.nn.Module], dict[str, Any]]] = {
    "exact": (ExactGP, {"engine": "exact"}),
    "ensemble": (
        EnsembleGP,
        {"engine": EnsembleOptions(members=3, combine="mean"), "class_prior": "frequency"},
    ),
    "matrix_free": (
        MatrixFreeGP,
        {"engine": MatrixFreeOptions(rank=32), "class_prior": "frequency"},
    ),
    "laplace": (ExactGP, {"kernel": "laplace"}),
    "laplace_clipped": (ExactGP, {"kernel": "laplace", "kernel_clip": 0.05}),
    "rbf_clipped": (ExactGP, {"kernel_clip": 0.05, "feature": "projection"}),
    "cosine": (ExactGP, {"kernel": "cosine", "noise_std": 0.01, "class_prior": "frequency"}),
    "ntk": (ExactGP, {"kernel": "ntk", "l2norm": False}),
}
Floats = npt.NDArray[np.float32]
TEMPERATURES: dict[Head, float] = {
    "gp": 2.0,
    "linear": 8.0,
}  # its layer is not trained, and should not outvote the GP


class Several(torch.nn.Module):
    """Every case in one graph, since each export takes seconds."""

    def __init__(self, classifier: Classifier, refiners: dict[str, GaussianProcessRefiner]) -> None:
        super().__init__()
        self.each = torch.nn.ModuleDict(
            {name: exported(classifier, refiner) for name, refiner in refiners.items()}
        )
        self.outputs = {f"of_{name}": "gp" for name in refiners}

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {f"of_{name}": module(images)["probabilities"] for name, module in self.each.items()}


class Compared(NamedTuple):
    """Refiners, what the refiner of each case returns for the rows, (M, C), and what each runtime
    does.
    """

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
    feature = refiner.config.feature
    return ExportedNetwork(
        classifier,
        refiner.head(),
        gp_feature=feature,
        augment=AUGMENT,
        outputs_of=("gp", "linear"),
        temperatures=TEMPERATURES,
    ).eval()


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
        cosines = (
            torch.nn.functional.normalize(x1, dim=1) @ torch.nn.functional.normalize(x2, dim=1).mT
        )
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
    with pytest.raises(
        NotExportableError,
        match=r"lacks what the network needs: .*kind=torch or head=linear",
    ):
        FORMATS["onnx"].open(onnx)
    FORMATS["torch"].write(module, SIDE, pt2, "{}")
    answer = FORMATS["torch"].open(pt2)
    found = differences(
        answer,
        classifier,
        refiner,
        augment=Augment(AUGMENT),
        outputs=module.outputs,
        temperatures=TEMPERATURES,
        pixels=pixels,
    )
    assert set(found) == {"probabilities", "gp_probabilities", "linear_probabilities"}
    assert max(found.values()) <= TOLERANCE


def test_a_network_that_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    class Moody(torch.nn.Module):
        num_features = 48

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1) if float(images.sum()) > 0 else -images.flatten(1)

    module = ExportedNetwork(
        Classifier(Moody(), 4).eval(),
        None,
        gp_feature="backbone",
        augment=AUGMENT,
        outputs_of=("linear",),
        temperatures={},
    )
    for kind in FORMATS:
        with pytest.raises(NotExportableError, match="the network cannot be traced: "):
            FORMATS[kind].write(module, SIDE, tmp_path / "model", "{}")


def test_differences_are_seen() -> None:
    """Also in the last of the rows, in a batch of any size, and where they are no numbers."""
    classifier, pixels = network(), images(20, seed=4)[0]
    honest = torch.softmax(
        classifier(Augment(AUGMENT).normalise(torch.from_numpy(pixels))).logits, dim=1
    ).numpy()
    compared: dict[str, Any] = {
        "augment": Augment(AUGMENT),
        "outputs": {"probabilities": "linear"},
        "pixels": pixels,
        "temperatures": {},
    }
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
    with pytest.raises(
        DifferenceError, match=r"probabilities has shape \(1, 3\), and should have \(1, 4\)"
    ):
        differences(
            lambda given: {"probabilities": honest[: len(given), :3]}, classifier, None, **compared
        )
