"""Starting the processes that train together, watching them, and ending all of them with the first error of any."""

import _thread
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from semigpc.threads import granted, hold
from semigpc.training.experiment import Experiment
from semigpc.training.interrupt import Interrupt
from semigpc.training.journal import Listener
from semigpc.training.loop import Stopped, train
from semigpc.training.meeting import Meeting
from semigpc.training.processes import Processes, ProcessesError, RankError, check_room, join, joined, lost_contact
from semigpc.training.run_folder import RunFolder
from semigpc.training.settings import SettingError

GRACE = 3.0  # seconds in which the others may say what happened to them, once one has failed
TICK = 0.2
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def train_together(
    experiment: Experiment,
    path: Path,
    processes: Processes,
    *,
    resume: bool = False,
    listener: Listener | None = None,
) -> dict[str, Any]:
    """Train on several processes, started here or, under torchrun or a batch system, by others; as :func:`train` otherwise.

    The batch is that of all processes together, so their number is no part of the experiment: losses are the same up to the
    order of sums, and a run may be resumed with another number. Ctrl-C saves once and stops all of them. If one fails or is
    killed the others are ended, within seconds, and its error is raised here.

    A monitor of our own, and not torch's elastic launcher: that one prints tables and tracebacks where a paragraph is wanted,
    and takes Ctrl-C for a failure.

    Args:
        experiment: what to do. path: of the run folder, on node 0.
        processes: how many, and where. resume, listener: as for :func:`train`; told about the first process.

    Raises:
        RankError: with the error of a process as its ``error``, where only that process had it.
        ProcessesError: a process was killed, or they do not fit together.
    """
    check_room(experiment, int(os.environ["WORLD_SIZE"]) if joined() else processes.total)
    if joined():
        return _take_part(experiment, path, resume, listener)
    if processes.total == 1:
        return train(experiment, path, resume=resume, listener=listener)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else processes.devices
    if processes.devices > gpus:
        raise SettingError(f"--devices asks for {processes.devices} GPUs, and this machine has {gpus}. Ask for at most {gpus}.")
    if processes.node_rank == 0 and not resume:
        RunFolder(path).refuse_if_taken()
    with Interrupt() as interrupt, Meeting(processes, resume=resume, interrupt=interrupt) as meeting:
        ranks = _start(experiment, path, processes, meeting, resume=resume)
        try:
            _watch(ranks, meeting, interrupt, listener or Listener())
        finally:
            _end(ranks)
        return _verdict(ranks, meeting)


def _take_part(experiment: Experiment, path: Path, resume: bool, listener: Listener | None) -> dict[str, Any]:
    """Be one of the processes that somebody else has started."""
    first = os.environ["RANK"] == "0"
    try:
        return train(experiment, path, resume=resume, listener=listener if first else None, fabric=join(experiment))
    except (Stopped, ProcessesError):
        raise
    except Exception as error:
        raise RankError(int(os.environ["RANK"]), error) from error


# Here --------------------------------------------------------------------------------------------------------------


@dataclass
class _Rank:
    """A process as its parent sees it; ``failure`` is what it said, or its death told of it, and when."""

    number: int
    process: BaseProcess
    reports: Connection
    orders: Connection
    summary: dict[str, Any] | None = None
    failure: BaseException | None = None
    when: float = 0.0
    ended: bool = False

    def fail(self, error: BaseException, when: float | None = None) -> None:
        if self.failure is None:
            self.failure, self.when = error, time.time() if when is None else when


def _start(experiment: Experiment, path: Path, processes: Processes, meeting: Meeting, *, resume: bool) -> list[_Rank]:
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # first, since it unblocks the stop signals when it starts
    ranks = []
    for local in range(processes.devices):
        number = processes.node_rank * processes.devices + local
        place: dict[str, Any] = {
            "RANK": number,
            "LOCAL_RANK": local,
            "WORLD_SIZE": processes.total,
            "LOCAL_WORLD_SIZE": processes.devices,
        }
        place |= {"GROUP_RANK": processes.node_rank, "MASTER_ADDR": meeting.host, "MASTER_PORT": meeting.port}
        quiet = {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCH_CPP_LOG_LEVEL": "FATAL"}  # the store is the parent's
        heard, reports = context.Pipe(duplex=False)
        obeyed, orders = context.Pipe(duplex=False)
        process = context.Process(target=_be, args=(number, experiment, path, resume, reports, obeyed))
        with _environment(place | quiet), _deaf():
            process.start()
        reports.close()
        obeyed.close()
        ranks.append(_Rank(number, process, heard, orders))
    return ranks


def _watch(ranks: list[_Rank], meeting: Meeting, interrupt: Interrupt, listener: Listener) -> None:
    """Hand on what the first says, pass on Ctrl-C, and return when all have ended or some must be."""
    asked, deadline = False, float("inf")
    while running := [rank for rank in ranks if not rank.ended]:
        wait([item for rank in running for item in (rank.reports, rank.process.sentinel)], timeout=TICK)
        for rank in running:
            _hear(rank, listener)
        if interrupt.asked and not asked:
            asked = True
            for rank in running:
                with suppress(OSError):
                    rank.orders.send("stop")
        failed = any(rank.failure is not None and not isinstance(rank.failure, Stopped) for rank in ranks)
        if (failed or meeting.failure_elsewhere() is not None) and deadline == float("inf"):
            deadline = time.monotonic() + GRACE
        if time.monotonic() > deadline:
            return


def _hear(rank: _Rank, listener: Listener) -> None:
    """All that a process has said so far, and its death."""
    dead = not rank.process.is_alive()  # before its words are read, of which the last may be on their way
    try:
        while rank.reports.poll():
            kind, *content = rank.reports.recv()
            if kind == "told":
                getattr(listener, content[0])(*content[1])
            elif kind == "done":
                rank.summary = content[0]
            else:
                rank.fail(*content)
    except (EOFError, OSError):
        dead = True
        rank.process.join(GRACE)
    if dead:
        rank.ended = True
        if rank.summary is None:
            rank.fail(_death(rank))


def _death(rank: _Rank) -> ProcessesError:
    code, saved = rank.process.exitcode, "What was saved before is intact; --resume goes on from there."
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        why = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        return ProcessesError(f"rank {rank.number} was killed by {name} (signal {-code}){why}; all ranks were ended. {saved}")
    return ProcessesError(f"rank {rank.number} ended with exit code {code} and no word of why; all ranks were ended. {saved}")


def _end(ranks: list[_Rank]) -> None:
    for rank in ranks:
        if rank.process.is_alive():
            rank.process.kill()
        rank.process.join()
        rank.orders.close()


def _verdict(ranks: list[_Rank], meeting: Meeting) -> dict[str, Any]:
    """The summary, or the first error: of its own, before one that is but an echo of another process's end."""
    failed = [rank for rank in ranks if rank.failure is not None]
    own = [rank for rank in failed if not lost_contact(rank.failure)]
    first = min(own or failed, key=lambda rank: rank.when, default=None)
    if first is None or not own:
        elsewhere = meeting.failure_elsewhere(patience=GRACE if failed else 0)
        if elsewhere is not None:
            raise ProcessesError(elsewhere)
    if first is None:
        summary = ranks[0].summary
        assert summary is not None
        return summary
    assert first.failure is not None
    told = first.failure
    if not own:
        told = ProcessesError(f"rank {first.number} lost contact with the others, and all ranks were ended: {told}")
    same = len(failed) == len(ranks) and len({str(rank.failure) for rank in ranks}) == 1
    if not same and not isinstance(told, ProcessesError | Stopped | KeyboardInterrupt):
        told = RankError(first.number, told)
    if not isinstance(told, Stopped | KeyboardInterrupt):
        meeting.tell_failure(str(told))
    raise told from first.failure.__cause__


@contextmanager
def _environment(variables: dict[str, Any]) -> Iterator[None]:
    """For a process that is started inside: set before it imports anything."""
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _deaf() -> Iterator[None]:
    """Let a process that is started inside be born with stop signals blocked: its parent tells it when to stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# There -------------------------------------------------------------------------------------------------------------


class _Told(Listener):
    """Passes what the first process says on to the one that started it."""

    def __init__(self, reports: Connection) -> None:
        self.reports = reports

    def features(self, done: int, total: int) -> None:
        self.reports.send(("told", "features", (done, total)))

    def begin(self, first_step: int, total_steps: int) -> None:
        self.reports.send(("told", "begin", (first_step, total_steps)))

    def step(self, step: int) -> None:
        self.reports.send(("told", "step", (step,)))

    def entry(self, entry: dict[str, Any]) -> None:
        self.reports.send(("told", "entry", (entry,)))


def _be(number: int, experiment: Experiment, path: Path, resume: bool, reports: Connection, orders: Connection) -> None:
    """The life of a process: join, train, and say how it ended."""
    os.dup2(2, 1)  # standard output is the parent's alone; libraries greet each other there
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_obey, args=(orders,), daemon=True).start()
    hold(granted(int(os.environ["LOCAL_WORLD_SIZE"])))
    try:
        listener = None if number else _Told(reports)
        reports.send(("done", train(experiment, path, resume=resume, listener=listener, fabric=join(experiment))))
        torch.distributed.destroy_process_group()
    except BaseException as error:
        when = time.time()
        with suppress(OSError):
            reports.send(("failed", _portable(error), when))
        os._exit(1)  # at once: whatever waits for the others would wait in vain


def _portable(error: BaseException) -> BaseException:
    """An error that can be sent, with its traceback as a note."""
    try:
        sent: BaseException = pickle.loads(pickle.dumps(error))
    except Exception:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note("".join(traceback.format_exception(error)))
    return sent


def _obey(orders: Connection) -> None:
    """Take the parent's word for Ctrl-C, and its end for one's own."""
    try:
        while orders.recv() == "stop":
            _thread.interrupt_main(signal.SIGINT)
    except (EOFError, OSError):
        os._exit(1)
