"""Clocks: contenders timed in turns, and the memory that a call takes on top of what is there."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]


def time_in_turns(
    steps: Mapping[str, Step],
    *,
    repetitions: int,
    budget_s: float = float("inf"),
    advance: Step = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each contender, one repetition of every contender before the next of any: all meet
    the same machine.

    Args:
        steps: contenders by name; each is warmed up by one untimed call if it is fast enough for
            that.
        repetitions: of each contender.
        budget_s: no further repetition is started once a contender has used that much; at least one
            is made.
        advance: called after every timed call, for a progress bar.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repetition in range(repetitions + 1):
        for name, step in steps.items():
            spent = sum(seconds[name])
            if spent > budget_s:
                continue
            start = time.perf_counter()
            step()
            elapsed = time.perf_counter() - start
            warming_up = repetition == 0 and elapsed < budget_s / 4
            if not warming_up and len(seconds[name]) < repetitions:
                seconds[name].append(elapsed)
                advance()
    return seconds


def peak_extra_bytes(step: Step) -> int:
    """Largest amount of tensor memory that one call holds at once beyond what existed before it
    (CPU tensors).
    """
    with mock.patch.dict(
        os.environ, {"KINETO_LOG_LEVEL": "6"}
    ):  # its start-up messages are not for our users
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            step()
        results = profiler.profiler.kineto_results
    held = peak = 0
    for event in sorted(results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


EVERY_SECONDS = 0.005


def resident_bytes(pid: int | str = "self") -> int | None:
    """Resident set of a process; None where there is no /proc, or no such process any more."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def peak_resident_bytes(step: Step) -> int | None:
    """How far the resident set of this process rises above where it was during one call, looked at
    every 5 ms.
    """
    before = resident_bytes()
    if before is None:
        step()
        return None
    highest = before
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(EVERY_SECONDS):
            highest = max(highest, resident_bytes() or 0)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        step()
    finally:
        highest = max(highest, resident_bytes() or 0)
        done.set()
        watcher.join()
    return highest - before
