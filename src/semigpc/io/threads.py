"""How many threads torch and BLAS use: one for small work, the granted cores for large work."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import joblib
import torch
from threadpoolctl import ThreadpoolController

# Multiply-adds of a product or a factorisation, below which one thread is used. Measured on two
# cores that other work kept busy, in float64: with two threads, which wait for each other, a
# product of two n x n matrices took 20 times as long as with one at n = 300, twice as long at n =
# 450 and as long at n = 900; eigenvectors 140 times, twice and (n = 600) three times. On idle cores
# one thread takes some 5 ms for this much, which is all that can be lost.
SMALL_WORK = 1e8


class _Thread(threading.local):
    outside: int | None = None  # threads of torch before, while this thread is within ``suited_to``
    known = False  # whether this thread has used ``suited_to`` before


_thread = _Thread()
_lock = threading.Lock()
_inside: list[int] = []  # threads of torch before, for every thread within ``suited_to``


@contextmanager
def suited_to(work: float) -> Iterator[None]:
    """Use one thread if ``work``, in multiply-adds, is small; otherwise as many as are allowed.

    Inside another block like this the number depends on the inner work alone, so that the same
    product is computed by the same number of threads, and with the same bits, whatever it is a part
    of.
    """
    most = 1 if work < SMALL_WORK else granted()
    if _thread.outside is not None:
        with using(min(most, _thread.outside)):
            yield
        return
    with _lock:
        # A thread that starts while another one is within ``suited_to`` inherits the number that is
        # set there.
        outside = _inside[0] if _inside and not _thread.known else torch.get_num_threads()
        _inside.append(outside)
    _thread.outside = outside
    _thread.known = True
    try:
        with using(min(most, outside)):
            yield
    finally:
        _thread.outside = None
        torch.set_num_threads(outside)
        with _lock:
            _inside.remove(outside)


@contextmanager
def using(threads: int) -> Iterator[None]:
    """Let torch use this many threads, and BLAS no more than that; restore both afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with _above(_libraries(), threads).limit(limits=threads):
            yield
    finally:
        torch.set_num_threads(before)


def hold(threads: int) -> None:
    """Do the same for the rest of a worker process."""
    torch.set_num_threads(threads)
    _above(ThreadpoolController(), threads).limit(limits=threads)


def allowed() -> int:
    """Return the number of threads torch is set to, but no more than were granted."""
    return min(torch.get_num_threads(), granted())


def granted(processes: int = 1) -> int:
    """Return the threads of each of several processes: OMP_NUM_THREADS, or a share of cores."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(wanted) if wanted.isdecimal() and int(wanted) else max(1, cores() // processes)


def cores() -> int:
    """Return the cores this process may use, by its affinity and the quota of its container."""
    return int(joblib.cpu_count())


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    """OpenMP and BLAS libraries as loaded at the first call; finding them takes milliseconds."""
    return ThreadpoolController()


def _above(libraries: ThreadpoolController, threads: int) -> ThreadpoolController:
    """Select the libraries set to more threads, so that none ever gets more than it had."""
    found = libraries.info()
    paths = [library["filepath"] for library in found if library["num_threads"] > threads]
    return libraries.select(filepath=paths)
