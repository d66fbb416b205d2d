"""Small work runs on one thread, large work on the granted cores; torch stays as it was."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info
from torch import Tensor
from torch.utils.data import Dataset

from semigpc.data.loaders import InOrder
from semigpc.estimator import SemiGPClassifier
from semigpc.estimator.posterior import Posterior, Scored
from semigpc.gp import RBF, kernels
from semigpc.io import threads

GRANTED = 3  # and torch is set to more, as it is in a container with a quota


@pytest.fixture
def many_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that was granted 3 cores of a larger machine."""
    monkeypatch.setattr(threads, "granted", lambda: GRANTED)
    before = torch.get_num_threads()
    torch.set_num_threads(GRANTED + 2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Threads of torch at every call of the RBF kernel."""
    counts: list[int] = []
    compute = kernels.RBF.__call__

    def observed(self: RBF, *points: Tensor) -> Tensor:
        counts.append(torch.get_num_threads())
        return compute(self, *points)

    monkeypatch.setattr(kernels.RBF, "__call__", observed)
    return counts


def blobs(rows: int, labelled: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    truth = np.arange(rows) % 3
    X = rng.normal(size=(rows, 8)) + 3 * np.eye(8)[truth]
    return X.astype(np.float32), np.where(np.arange(rows) < labelled, truth, -1)


@pytest.mark.usefixtures("many_threads")
def test_a_small_problem_is_fitted_and_predicted_on_one_thread(
    seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = blobs(300, 60)
    model = SemiGPClassifier(random_state=0).fit(X, y)
    assert set(seen) == {1}
    assert torch.get_num_threads() == GRANTED + 2
    scored: list[int] = []
    score = Posterior.score

    def observed(self: Posterior, *arguments: Any, **options: Any) -> Scored:
        scored.append(torch.get_num_threads())
        return score(self, *arguments, **options)

    monkeypatch.setattr(Posterior, "score", observed)
    model.predict(X)
    model.predict_proba(X[:5])
    model.predict_variance(X[:5])
    model.partial_fit(X[100:101], [1], rows=[100])
    assert len(scored) >= 4
    assert set(scored) == {1}
    assert torch.get_num_threads() == GRANTED + 2


@pytest.mark.usefixtures("many_threads")
def test_the_large_parts_of_a_problem_use_the_cores_that_were_granted(
    seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "SMALL_WORK", 50**3)
    X, y = blobs(300, 60)
    SemiGPClassifier(random_state=0).fit(X, y)
    assert set(seen) == {1, GRANTED}  # tuning stays with one
    assert torch.get_num_threads() == GRANTED + 2


@pytest.mark.usefixtures("many_threads")
def test_an_error_inside_gives_the_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.RBF, "__call__", lambda *_: 1 / 0)
    X, y = blobs(60, 60)
    with pytest.raises(ZeroDivisionError):
        SemiGPClassifier().fit(X, y)
    assert torch.get_num_threads() == GRANTED + 2
    with threads.suited_to(np.inf):  # no memory of the block that failed
        assert torch.get_num_threads() == GRANTED


@pytest.mark.usefixtures("many_threads")
def test_work_gets_the_same_threads_whatever_it_is_a_part_of() -> None:
    with threads.suited_to(0):
        assert torch.get_num_threads() == 1
        with threads.suited_to(threads.SMALL_WORK):
            assert torch.get_num_threads() == GRANTED
            with threads.suited_to(threads.SMALL_WORK - 1):
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == GRANTED
        assert torch.get_num_threads() == 1
    torch.set_num_threads(2)  # the caller's own limit is kept
    with threads.suited_to(threads.SMALL_WORK):
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("many_threads")
def test_threads_that_begin_inside_do_not_inherit_one_for_ever() -> None:
    counts: dict[str, int] = {}
    begun, ended = threading.Event(), threading.Event()

    def inner() -> None:
        with threads.suited_to(threads.SMALL_WORK):
            counts["large"] = torch.get_num_threads()
            begun.set()
            ended.wait(60)
        counts["after"] = torch.get_num_threads()

    thread = threading.Thread(target=inner)
    with threads.suited_to(0):
        thread.start()
        assert begun.wait(60)
    ended.set()
    thread.join()
    later = threading.Thread(target=lambda: counts.update(later=torch.get_num_threads()))
    later.start()
    later.join()
    assert counts == {"large": GRANTED, "after": GRANTED + 2, "later": GRANTED + 2}
    assert torch.get_num_threads() == GRANTED + 2


def test_blas_libraries_are_lowered_and_never_raised() -> None:
    before = {library["filepath"]: library["num_threads"] for library in threadpool_info()}
    with threads.using(1):
        assert {library["num_threads"] for library in threadpool_info()} == {1}
        with threads.using(4):
            assert torch.get_num_threads() == 4
            blas = [library for library in threadpool_info() if library["user_api"] == "blas"]
            assert {library["num_threads"] for library in blas} == {1}
    assert {library["filepath"]: library["num_threads"] for library in threadpool_info()} == before


class Counted(Dataset[int]):
    def __getitem__(self, item: int) -> int:
        return max(
            torch.get_num_threads(), *(int(library["num_threads"]) for library in threadpool_info())
        )


@pytest.mark.slow
def test_a_worker_process_uses_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    assert list(InOrder(Counted(), range(2), workers=1, prefetch=1)) == [1, 1]


# What was granted ---------------------------------------------------------------------------------


def test_several_processes_share_the_cores_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads.granted(n) for n in (1, 3, 20)] == [8, 2, 1]
    for text, count in (("3", 3), (" 5,2", 5), ("", 4), ("0", 4), ("many", 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert threads.granted(2) == count


def test_cores_are_those_of_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= threads.cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert threads.cores() == 1
