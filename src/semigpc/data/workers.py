"""Items of a stream in order, made here or ahead of time by worker processes; and how those live and end."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from semigpc.data.dataset import DataError
from semigpc.threads import hold

Item = TypeVar("Item")

# A fork copies locks that torch or OpenMP threads may be holding, and can hang. Behind a fork server a worker cannot tell that
# the main process was killed, and would live on. Starting afresh costs the seconds that importing torch takes, once a run.
START_METHOD = "spawn"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
CAN_TELL_SENDER = hasattr(signal, "sigwaitinfo")  # on Linux


class InOrder(Generic[Item]):
    """``stream[i]`` for i in ``items``, in that order for any number of workers. Workers stay alive between passes.

    A DataError leaves a worker as a value and is raised here, as the paragraph it is; torch would wrap it into two tracebacks.

    Args:
        stream: what makes the items; each worker gets a copy.
        items: which.
        workers: processes; with 0 an item is made when it is asked for.
        prefetch: items that each worker keeps ready.
    """

    def __init__(self, stream: Dataset[Item], items: Sequence[int], workers: int, prefetch: int) -> None:
        if workers < 0 or prefetch < 1:
            raise DataError(f"workers must be 0 or more and prefetch 1 or more; got {workers} and {prefetch}.")
        with_workers = {"prefetch_factor": prefetch, "persistent_workers": True, "multiprocessing_context": START_METHOD}
        options: dict[str, Any] = with_workers if workers else {}
        self._loader: DataLoader[Item | DataError] = DataLoader(
            _Guarded(stream),
            batch_size=None,
            sampler=items,
            collate_fn=_as_it_is,
            num_workers=workers,
            worker_init_fn=_prepare_worker,
            # Without one of its own a loader draws from torch's global generator, and changes what the model draws next.
            generator=torch.Generator(),
            **options,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Item]:
        for item in _start(self._loader):
            if isinstance(item, DataError):
                try:
                    raise item
                finally:
                    del item  # or the error and this frame would hold each other, and the workers with them
            yield item


class _Guarded(Dataset[Item | DataError]):
    def __init__(self, stream: Dataset[Item]) -> None:
        self.stream = stream

    def __getitem__(self, item: int) -> Item | DataError:
        try:
            return self.stream[item]
        except DataError as error:
            return error


def _as_it_is(item: Item) -> Item:
    return item


def _start(loader: DataLoader[Item]) -> Iterator[Item]:
    """Begin a pass; workers that are started for it block the stop signals from birth.

    Ctrl-C reaches every process of a terminal, and a batch system's SIGTERM every process of a job. It is for the main process
    to decide when to stop; the workers end when it does.
    """
    if not loader.num_workers or not CAN_TELL_SENDER:
        return iter(loader)
    resource_tracker.ensure_running()  # first, since it unblocks these signals when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare_worker(_worker: int) -> None:
    """One thread, since workers share the cores with training; and an ear for the main process alone."""
    hold(1)
    if CAN_TELL_SENDER:
        threading.Thread(target=_end_when_told, daemon=True).start()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end_when_told() -> None:
    """Heed SIGTERM from the main process, which is how it ends a worker that it can no longer reach otherwise."""
    while signal.sigwaitinfo((signal.SIGTERM,)).si_pid != os.getppid():
        pass
    os._exit(0)
