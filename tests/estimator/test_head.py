"""The exported classifier: what ``answer`` returns, by a file that needs no semigpc."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semigpc.estimator import SemiGPClassifier
from semigpc.estimator.answers import SCALINGS, WEIGHTED, WHITENED

TOLERANCE = 1e-4  # of a probability: the model itself computes in float32
Outputs = dict[str, Any]


def by_torch(model: SemiGPClassifier, X: Any) -> Outputs:
    with torch.no_grad():
        found = model.head().eval()(torch.from_numpy(X))
    return {name: values.numpy() for name, values in found.items()}


def by_file(path: Path, X: Any) -> Outputs:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs semigpc[export]")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    facts = json.loads(session.get_modelmeta().custom_metadata_map["semigpc"])
    assert list(facts["outputs"]) == names
    return dict(zip(names, session.run(names, {"rows": X}), strict=True)) | {"facts": facts}


def check(got: Outputs, model: SemiGPClassifier, X: Any, *, most: float = TOLERANCE) -> None:
    """Compare with the model; label, status and grade where no threshold is near."""
    expected = model.answer(X, top=0)
    probs = model.predict_proba(X)
    assert np.abs(got["probabilities"] - probs).max() <= most
    assert np.ptp(probs, axis=0).max() > 0.2, "rows do not all look alike"
    if "variance" in got:
        assert np.abs(got["variance"] - expected.variance).max() <= 1e-4
    first, second = np.sort(probs, axis=1)[:, :-3:-1].T
    thresholds = np.array([*model.promise_.grades.values(), model.threshold_])[:, expected.codes]
    clear = np.abs(thresholds - expected.confidence).min(axis=0) > TOLERANCE
    clear &= first - second > 1e-3
    weak = (1 + 1 / len(model.classes_)) / 2
    clear &= np.abs(expected.confidence - weak) > 1e-3
    assert expected.variance is not None
    clear &= np.abs(expected.variance - model.outlier_variance_) > 1e-4
    assert clear.mean() > 0.2
    assert np.array_equal(got["label"][clear], expected.codes[clear])
    if "variance" in got:
        assert np.array_equal(got["status"][clear], expected.status[clear])
        assert got["grade"][clear] == pytest.approx(expected.grade[clear], abs=1e-6)


@pytest.fixture(scope="module")
def data() -> tuple[Any, Any]:
    """Rows of four classes, a fifth of them labelled, with columns of unlike units."""
    rng = np.random.default_rng(0)
    codes = rng.choice(4, size=400, p=(0.4, 0.3, 0.2, 0.1))
    centres = rng.normal(size=(4, 6)) * 2
    X = (centres[codes] + rng.normal(size=(400, 6))) * (1, 10, 0.1, 1, 3, 1) + 2
    y = np.array(["ant", "bee", "cat", "dog"], object)[codes]
    y[rng.random(400) > 0.2] = None
    return X.astype(np.float32), y


def fitted(data: tuple[Any, Any], **options: Any) -> SemiGPClassifier:
    X, y = data
    model = SemiGPClassifier(**{"self_training": 1, "random_state": 0} | options)
    return model.fit(X[:300], y[:300])  # the others are new


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["rbf", "laplace"])
@pytest.mark.parametrize("scaling", [*SCALINGS, *WEIGHTED, WHITENED])
def test_the_module_returns_what_the_model_returns(
    data: tuple[Any, Any], scaling: str, kernel: str
) -> None:
    model = fitted(data, scaling=scaling, kernel=kernel)
    head = model.head()
    assert head.joined_points is not None, "rows joined"
    check(by_torch(model, data[0]), model, data[0])


def test_a_row_that_joined_is_judged_without_its_own_guess(data: tuple[Any, Any]) -> None:
    model = fitted(data, scaling="standard")
    head = model.head()
    assert head.joined_points is not None
    head.joined_points.zero_()
    with torch.no_grad():
        blind = head(torch.from_numpy(data[0]))["probabilities"].numpy()
    difference = np.abs(blind - model.predict_proba(data[0])).max(axis=1)
    assert difference[300:].max() <= TOLERANCE, "new rows are scored by both GPs"
    assert difference[:300].max() > 10 * TOLERANCE


def test_corrections_and_new_classes_are_exported(data: tuple[Any, Any]) -> None:
    X, y = data
    model = fitted(data, scaling="unit", class_prior="balanced")
    free = np.flatnonzero(y == None)[:6]
    model.partial_fit(X[free], np.array(["eel"] * 3 + ["ant"] * 3), rows=free)
    model.partial_fit(X[:1], np.array([None], object), rows=[0])
    # Of rows of unlike units on a sphere, the model's own rounding to float32 is 1.06e-4.
    check(by_torch(model, X), model, X, most=2e-4)
    assert by_torch(model, X)["probabilities"].shape == (400, 5)


def test_several_gps_and_no_self_training(
    data: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semigpc.gp.exact.EXACT_ROWS", 60)
    model = fitted(data, self_training=0)
    assert model.engine_ == "ensemble"
    got = by_torch(model, data[0])
    assert "variance" not in got
    check(got, model, data[0])


def test_an_offset_that_float32_cannot_hold(data: tuple[Any, Any]) -> None:
    X = data[0].astype(np.float64) + 1e9
    model = fitted((X, data[1]))
    check(by_torch(model, X), model, X)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"scaling": "weighted_rank", "kernel": "laplace"},
        {"scaling": "unit", "per_class": True, "self_training": 0},
        pytest.param({"scaling": "standard", "class_prior": "balanced"}, marks=pytest.mark.nightly),
        pytest.param({"scaling": "centered", "kernel": "cosine"}, marks=pytest.mark.nightly),
    ],
    ids=lambda options: options["scaling"],
)
def test_the_file_returns_what_the_model_returns(
    data: tuple[Any, Any], tmp_path: Path, options: dict[str, Any]
) -> None:
    pytest.importorskip("onnxscript", reason="needs semigpc[export]")
    model = fitted(data, **options)
    path = tmp_path / "model.onnx"
    model.to_onnx(path)
    got = by_file(path, data[0])
    check(got, model, data[0])
    one = by_file(path, data[0][3:4])["probabilities"]
    assert np.abs(one - got["probabilities"][3:4]).max() < 1e-6
    facts = got["facts"]
    assert facts["class_names"] == ["ant", "bee", "cat", "dog"]
    assert (
        facts["input"] | {"name": "rows", "shape": ["M", 6], "dtype": "float32"} == facts["input"]
    )
    assert facts["thresholds"] == model.threshold_.tolist()
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]
