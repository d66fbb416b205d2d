"""Where the nodes of a run find each other, and learn of each other's failures."""

import json
import socket
import time
from contextlib import suppress
from datetime import timedelta
from types import TracebackType

import torch
from torch._C._distributed_c10d import TCPStore

from semigpc.training.interrupt import Interrupt
from semigpc.training.processes import PATIENCE, Processes, ProcessesError

LINGER = 5.0  # seconds that node 0 stays for the others to hear of the end
LOOK_EVERY, TICK = 1.0, 0.2


class Meeting:
    """A small store that node 0 keeps for as long as it is entered; on one node it serves its own processes alone.

    Entering waits until all nodes are there and agree on how many they are.

    Args:
        processes: how many, and which node this is. resume: whether this node means to.
        interrupt: ends the waiting.
    """

    def __init__(self, processes: Processes, *, resume: bool, interrupt: Interrupt) -> None:
        self.processes, self.resume, self.interrupt = processes, resume, interrupt
        self.host, self.port = "127.0.0.1", 0
        if processes.nodes > 1 and processes.rendezvous is not None:
            host, _, port = processes.rendezvous.rpartition(":")
            self.host, self.port = host, int(port)
        self._heard: str | None = None
        self._looked = 0.0

    def __enter__(self) -> "Meeting":
        deadline = time.monotonic() + PATIENCE.total_seconds()
        if self.processes.node_rank:
            self._find_node_0(deadline)
        try:
            master = self.processes.node_rank == 0
            self.store = TCPStore(self.host, self.port, is_master=master, wait_for_workers=False, timeout=timedelta(seconds=30))
        except (torch.distributed.DistError, RuntimeError) as error:
            raise ProcessesError(f"--rendezvous {self.host}:{self.port} cannot be used on this node: {error}") from error
        self.port = self.store.port
        if self.processes.nodes > 1:
            self._gather(deadline)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.processes.nodes == 1:
            return
        with suppress(RuntimeError):  # the others may be gone
            self.store.add("left", 1)
            patience = time.monotonic() + LINGER
            while not self.processes.node_rank and time.monotonic() < patience:
                if self.store.add("left", 0) >= self.processes.nodes:
                    break
                time.sleep(0.1)

    def tell_failure(self, message: str) -> None:
        """Let the other nodes know; the first to tell is believed."""
        if self.processes.nodes > 1:
            with suppress(RuntimeError):
                self.store.compare_set("failure", "", f"node {self.processes.node_rank}: {message}")

    def failure_elsewhere(self, patience: float = 0.0) -> str | None:
        """What another node has told, waiting for it a little where asked; looked up once a second."""
        until = time.monotonic() + patience
        while self.processes.nodes > 1 and self._heard is None:
            if patience or time.monotonic() - self._looked > LOOK_EVERY:
                self._looked = time.monotonic()
                with suppress(RuntimeError):  # node 0 is gone: the collectives will tell
                    if self.store.check(["failure"]):
                        self._heard = self.store.get("failure").decode()
            if time.monotonic() >= until:
                break
            time.sleep(0.1)
        return self._heard

    def _find_node_0(self, deadline: float) -> None:
        """Wait until something listens there: torch's own client would fill the screen with its attempts."""
        while True:
            try:
                socket.create_connection((self.host, self.port), timeout=5).close()
                return
            except OSError as error:
                self._wait(deadline, f"node 0 cannot be reached at {self.host}:{self.port} ({error.strerror or error})")

    def _gather(self, deadline: float) -> None:
        """Wait for all nodes; all of them refuse alike if one was started otherwise."""
        ours = {"--devices": self.processes.devices, "--nodes": self.processes.nodes, "--resume": self.resume}
        self.store.set(f"node/{self.processes.node_rank}", json.dumps(ours))
        everyone = {f"node/{node}" for node in range(self.processes.nodes)}
        while True:
            words = {key: json.loads(self.store.get(key)) for key in sorted(everyone) if self.store.check([key])}
            for key, theirs in words.items() if "node/0" in words else ():
                _compare(key.replace("/", " "), theirs, words["node/0"])
            if words.keys() == everyone:
                return
            missing = min(everyone - words.keys()).replace("/", " ")
            self._wait(deadline, f"{missing} of {self.processes.nodes} did not come to {self.host}:{self.port}")

    def _wait(self, deadline: float, message: str) -> None:
        if self.interrupt.asked:
            raise KeyboardInterrupt
        if time.monotonic() > deadline:
            minutes = PATIENCE.total_seconds() / 60
            raise ProcessesError(f"{message} within {minutes:g} minutes. Start all nodes, and check address and firewall.")
        time.sleep(TICK)


def _compare(node: str, theirs: dict[str, object], first: dict[str, object]) -> None:
    keys = [key for key in first if theirs.get(key) != first[key]]
    if keys:
        shown = ", ".join(f"{key} is {theirs.get(key)}, not {first[key]}" for key in keys)
        raise ProcessesError(f"{node} was started otherwise than node 0: {shown}. Give all nodes the same command.")
