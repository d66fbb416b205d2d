"""Whatever a verb shows of a row comes from one vector of probabilities."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from semigpc.estimator import SemiGPClassifier
from semigpc.labeling.project import Project
from semigpc.review.session import open_session
from tests.cli.calls import semigpc, worked
from tests.estimator.long_tail import blobs
from tests.labeling.samples import read_rows, write, write_labels


def make_inputs(folder: Path, seed: int) -> tuple[Path, Path]:
    """A table of noisy rows, and labels with a long tail."""
    X, codes, _ = blobs(counts=(30, 10, 3), unlabeled=50, seed=seed)
    X = X + 3 * np.random.default_rng(seed).standard_normal(X.shape).astype(np.float32)
    ids = [f"row {i}" for i in range(len(X))]
    labels = {ids[i]: f"class {codes[i]}" for i in np.flatnonzero(codes >= 0)}
    return write(folder, "parquet", X, ids), write_labels(folder / "labels.csv", labels)


def shown_and_known(
    model: SemiGPClassifier, x: NDArray[np.float32], prior: str
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Probabilities (M, C), what is maximised (M, C), and the names of the classes."""
    probs = model.predict_proba(x)
    worth = probs / np.sqrt(model.class_shares_) if prior == "balanced" else probs
    return probs, worth, model.classes_.astype(str)


@pytest.mark.parametrize("prior", ["estimated", "balanced"])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_verb_shows_the_class_and_the_confidence_of_one_posterior(
    tmp_path: Path, seed: int, prior: str
) -> None:
    data, labels = make_inputs(tmp_path, seed)
    out = tmp_path / "out"
    options = f"--prior {prior} --target-precision 0.8"
    worked("label", data, "--labels", labels, "--out", out, options)
    project = Project.open(out)
    table = parquet.read_table(out / "labels.parquet").to_pylist()
    rows = [i for i, row in enumerate(table) if row["status"] != "labelled"]
    probs, worth, names = shown_and_known(
        project.model(), project.embeddings(np.array(rows)), prior
    )
    place = {name: c for c, name in enumerate(names)}
    by_id: dict[str, int] = {}
    for i, row in enumerate(table[row] for row in rows):
        by_id[row["id"]] = i
        c = place[row["guess"]]
        assert worth[i, c] == pytest.approx(worth[i].max(), rel=1e-3)
        assert row["confidence"] == pytest.approx(probs[i, c], abs=1e-4)
        others = np.delete(probs[i], c)
        assert row["second_confidence"] == pytest.approx(others.max(), abs=1e-4)
        assert probs[i, place[row["second"]]] == pytest.approx(others.max(), abs=1e-4)
        assert row["status"] != "outlier" or row["confidence"] < (1 + 1 / 3) / 2
    tasks = {
        task["data"]["id"]: task for task in json.loads((out / "label_studio.json").read_text())
    }
    for name, i in by_id.items():
        (prediction,) = tasks[name]["predictions"]
        (result,) = prediction["result"]
        chosen = place[result["value"]["choices"][0]]
        assert prediction["score"] == pytest.approx(probs[i, chosen], abs=1e-4)
    worked("suggest", out, "--count 10")
    for row in read_rows(out / "suggestions.csv"):
        assert float(row["confidence"]) == pytest.approx(
            probs[by_id[row["id"]], place[row["guess"]]], abs=1e-4
        )
    sampled = semigpc("audit", out, "--sample 6")
    if sampled.exit_code == 0:  # at least one label was given out
        for row in read_rows(out / "audit.csv"):
            own = probs[by_id[row["id"]], place[row["label"]]]
            assert float(row["confidence"]) == pytest.approx(own, abs=1e-4)
    session = open_session(out)
    for name, share in session.choices([rows[0]])[rows[0]]:
        assert share == pytest.approx(probs[0, place[name]], abs=2e-4)
    session.close()
