"""How worker processes take signals, and how errors leave them."""

import multiprocessing
import pickle
import subprocess

import pytest
from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset

from semigpc.data.loaders import KNOWS_SENDER, InOrder
from semigpc.io.errors import DataError


class Squares(Dataset[int]):
    def __getitem__(self, item: int) -> int:
        if item == 13:
            raise DataError("Thirteen has no square here.")
        return item * item


@pytest.mark.skipif(not KNOWS_SENDER, reason="the sender of a signal cannot be told here")
@pytest.mark.slow
def test_workers_stop_for_nobody_but_the_main_process() -> None:
    before = set(multiprocessing.active_children())
    squares = InOrder(Squares(), range(12), workers=1, prefetch=1)
    passing = iter(squares)
    assert next(passing) == 0
    (worker,) = set(multiprocessing.active_children()) - before
    for signal_name in ("INT", "TERM"):
        subprocess.run(["kill", f"-{signal_name}", str(worker.pid)], check=True)
    assert list(passing) == [i * i for i in range(1, 12)]
    assert worker.is_alive()
    worker.terminate()
    worker.join(10)
    assert worker.exitcode == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_leaves_the_stream_as_the_paragraph_it_is(workers: int) -> None:
    squares = InOrder(Squares(), range(10, 16), workers, prefetch=2)
    seen: list[int] = []
    with pytest.raises(DataError, match=r"^Thirteen has no square here.$"):
        seen.extend(squares)
    assert len(squares) == 6


def test_a_data_error_also_survives_torchs_own_way_between_processes() -> None:
    try:
        raise DataError("The image x.png cannot be read.")
    except DataError:
        wrapped = pickle.loads(pickle.dumps(ExceptionWrapper(where="in a worker")))
    with pytest.raises(DataError, match=r"in a worker(.|\n)*The image x.png cannot be read."):
        wrapped.reraise()


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(DataError, match=r"workers must be 0.*and prefetch 1 or more; got -1 and 0"):
        InOrder(Squares(), range(3), workers=-1, prefetch=0)
