"""How many threads torch and the BLAS libraries use: one for small work, the cores granted to this process for large work."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch
from threadpoolctl import ThreadpoolController

# Multiply-adds of a product or a factorisation, below which one thread is used. Measured on two cores that other work kept
# busy, in float64: with two threads, which wait for each other, a product of two n x n matrices took 20 times as long as with
# one at n = 300, twice as long at n = 450 and as long at n = 900; eigenvectors 140 times, twice and (n = 600) three times.
# On idle cores one thread takes some 5 ms for this much, which is all that can be lost.
SMALL = 1e8

CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class _Thread(threading.local):
    outside: int | None = None  # what torch was set to, while this thread is within ``suited_to``
    known = False  # whether it has been here before


_thread, _lock = _Thread(), threading.Lock()
_inside: list[int] = []  # what torch was set to, for every thread within ``suited_to``


@contextmanager
def suited_to(work: float) -> Iterator[None]:
    """One thread if ``work``, the multiply-adds of a product, is small; otherwise as many as are allowed.

    Inside another block like this the number depends on the inner work alone, so that the same product is computed by the same
    number of threads, and with the same bits, whatever it is a part of.
    """
    if _thread.outside is not None:
        with using(_suited(work, _thread.outside)):
            yield
        return
    with _lock:
        # A thread that begins while another one is in here inherits the number that is set there.
        outside = _inside[0] if _inside and not _thread.known else torch.get_num_threads()
        _inside.append(outside)
    _thread.outside, _thread.known = outside, True
    try:
        with using(_suited(work, outside)):
            yield
    finally:
        _thread.outside = None
        torch.set_num_threads(outside)
        with _lock:
            _inside.remove(outside)


def _suited(work: float, outside: int) -> int:
    return 1 if work < SMALL else min(outside, granted())


@contextmanager
def using(threads: int) -> Iterator[None]:
    """Let torch use so many threads, and the BLAS libraries no more than that; both as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with _above(_libraries(), threads).limit(limits=threads):
            yield
    finally:
        torch.set_num_threads(before)


def hold(threads: int) -> None:
    """The same for the rest of a worker process."""
    torch.set_num_threads(threads)
    _above(ThreadpoolController(), threads).limit(limits=threads)


def allowed() -> int:
    """What torch is set to, but no more than was granted."""
    return min(torch.get_num_threads(), granted())


def granted(processes: int = 1) -> int:
    """Threads for each of several processes that share the cores of this one; each gets OMP_NUM_THREADS if that is set."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(wanted) if wanted.isdecimal() and int(wanted) else max(1, cores() // processes)


def cores() -> int:
    """Cores that this process may use: those of its affinity, but in a container no more than the quota of its cgroup."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(CGROUPS, MEMBERSHIP)
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def _quota(mount: Path, membership: Path) -> float | None:
    """Cores by the tightest limit among this process's cgroup and those above it, of version 1 or 2; None without a limit."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # not Linux, or no /proc
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        roots = [mount / controllers, mount / "cpu"] if "cpu" in controllers.split(",") else [] if controllers else [mount]
        for root in roots:
            folder = root / path.lstrip("/")  # inside a container it need not be there; the root then holds the limit
            limits += [_limit(group) for group in (folder, *folder.parents) if group.is_relative_to(root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit(group: Path) -> float | None:
    """Cores that a cgroup grants; None if it is not there or sets no limit."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # ValueError: the quota is "max"
        return None


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    """OpenMP and BLAS libraries as loaded at the first call; finding them takes milliseconds."""
    return ThreadpoolController()


def _above(libraries: ThreadpoolController, threads: int) -> ThreadpoolController:
    """Those that are set to more threads, so that no library is ever given more than it had."""
    return libraries.select(filepath=[library["filepath"] for library in libraries.info() if library["num_threads"] > threads])
