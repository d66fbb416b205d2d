"""Peers answer on the same folds, and one that fails is reported and stops nothing."""

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from semigpc.estimator.peers import PEERS, Peer, fit_peer
from semigpc.labeling import evidence as compared
from semigpc.labeling.evidence import Codes, assign_folds, compare_peers, preparation


def blobs(
    counts: tuple[int, ...] = (30, 12, 9), unlabeled: int = 60
) -> tuple[NDArray[Any], Codes, NDArray[Any]]:
    rng = np.random.default_rng(0)
    centres = np.eye(len(counts), 5) * 8
    codes = np.repeat(np.arange(len(counts)), counts)
    others = centres[rng.integers(0, len(counts), unlabeled)]
    return (
        centres[codes] + rng.normal(size=(len(codes), 5)),
        codes,
        others + rng.normal(size=(unlabeled, 5)),
    )


def test_every_peer_finds_classes_that_lie_apart() -> None:
    x, codes, unlabeled = blobs()
    ticks: list[int] = []
    found = compare_peers(
        x, codes, unlabeled, assign_folds(codes, 4, 0), tick=lambda: ticks.append(1)
    )
    assert [row["name"] for row in found] == list(compared.COMPARED)
    assert len(ticks) == 4 * len(compared.COMPARED)
    for row in found:
        assert row["failed"] is None
        assert row["balanced_accuracy"] > 0.95
        assert row["seconds"] >= 0
    assert json.loads(json.dumps(found)) == found


def test_a_peer_that_fails_is_reported_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("out of\n luck")

    monkeypatch.setattr(compared, "COMPARED", ("bad", "knn1"))
    monkeypatch.setattr(
        compared, "PEERS", {"bad": Peer("bad", "Bad", broken), "knn1": PEERS["knn1"]}
    )
    x, codes, unlabeled = blobs()
    bad, good = compare_peers(x, codes, unlabeled, assign_folds(codes, 4, 0))
    assert bad["failed"] == "RuntimeError: out of luck"
    assert bad["accuracy"] is None
    assert bad["balanced_accuracy_std"] is None
    assert good["failed"] is None


def test_too_few_rows_for_a_peer_are_its_failure_and_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compared, "COMPARED", tuple(PEERS))
    x, codes, unlabeled = blobs((3, 3), unlabeled=0)
    found = {
        row["name"]: row for row in compare_peers(x, codes, unlabeled, assign_folds(codes, 3, 0))
    }
    assert "n_neighbors" in found["label_spreading"]["failed"]
    assert found["knn5"]["failed"] is None
    assert found["self_training"]["remarks"] == ["y contains no unlabeled samples"]


@pytest.mark.parametrize("name", ["knn5", "class_mean", "logistic_balanced"])
def test_rotating_wide_rows_changes_no_answer(name: str) -> None:
    rng = np.random.default_rng(0)
    x, queries, codes = rng.normal(size=(30, 200)), rng.normal(size=(50, 200)), np.arange(30) % 3
    scaled, asked = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, queries))
    plain = PEERS[name].build(len(x), True).fit(scaled, codes)
    assert (fit_peer(PEERS[name], x, codes, queries).predict(queries) == plain.predict(asked)).all()


def test_wide_rows_are_taken_for_embeddings() -> None:
    assert preparation(64) == "standardised"
    assert preparation(384) == "unit"
