"""Memory as the operating system counts it: pages of a process that are in RAM."""

import os
import threading
from pathlib import Path

from semigpc.bench.timing import Step

EVERY_SECONDS = 0.005


def resident_bytes(pid: int | str = "self") -> int | None:
    """Resident set of a process; None where there is no /proc, or no such process any more."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def peak_resident_bytes(step: Step) -> int | None:
    """How far the resident set of this process rises above where it was during one call, looked at every 5 ms."""
    before = resident_bytes()
    if before is None:
        step()
        return None
    highest, done = before, threading.Event()

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
