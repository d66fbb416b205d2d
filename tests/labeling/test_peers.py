"""Every peer takes the same rows, prepared the same way, and answers with codes."""

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.semi_supervised import LabelSpreading

from semigpc.labeling.evidence import PEERS, Peer, fit_peer


def two_groups(
    width: int, *, scale: float = 1.0
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]:
    rng = np.random.default_rng(0)
    codes = np.repeat([2, 5], 12)
    x = rng.normal(size=(24, width)) + 3.0 * (codes == 5)[:, None]
    unlabeled = rng.normal(size=(40, width)) + 3.0 * (np.arange(40) % 2)[:, None]
    x[:, 0], unlabeled[:, 0] = x[:, 0] * scale, unlabeled[:, 0] * scale
    return x, codes, unlabeled


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
@pytest.mark.parametrize("width", [4, 130])
def test_a_peer_tells_two_groups_apart_with_codes_of_its_own(peer: Peer, width: int) -> None:
    x, codes, unlabeled = two_groups(width)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = fit_peer(peer, x, codes, unlabeled)
        predicted = fitted.predict(x)
    assert predicted.dtype == np.int64
    assert (predicted == codes).mean() > 0.9


def test_columns_of_a_table_count_the_same_whatever_their_units() -> None:
    x, codes, unlabeled = two_groups(4)
    rng = np.random.default_rng(1)
    tried = rng.normal(size=(50, 4)) + 1.5
    noises = [rng.normal(size=(len(rows), 1)) for rows in (x, unlabeled, tried)]
    answers = []
    for unit in (1, 1000):
        columns = zip((x, unlabeled, tried), noises, strict=True)
        given, others, asked = (np.hstack([rows, unit * noise]) for rows, noise in columns)
        answers.append(fit_peer(PEERS["knn5"], given, codes, others).predict(asked))
    assert (answers[0] == answers[1]).all()


def test_the_length_of_an_embedding_does_not_matter() -> None:
    x, codes, unlabeled = two_groups(130)
    fitted = fit_peer(PEERS["class_mean"], x, codes, unlabeled)
    assert (fitted.predict(x) == fitted.predict(50 * x)).all()
    assert PEERS["logistic"].build(24, True).C == 10
    assert PEERS["logistic"].build(24, False).C == 1


def test_rows_that_no_label_reaches_are_counted() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(8, 2)), 5 + rng.normal(size=(8, 2))])
    codes = np.repeat([0, 1], 8)
    far = 500 + rng.normal(size=(30, 2))
    fitted = fit_peer(PEERS["label_spreading"], x, codes, far)
    assert isinstance(fitted.classifier, LabelSpreading)
    assert fitted.predict(500 + rng.normal(size=(4, 2))).tolist() == [0] * 4
    assert "no label reaches 4 of 4 rows: they get the first class" in fitted.remarks
