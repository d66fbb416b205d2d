"""Two processes on gloo that run several jobs in one start: importing torch twice is the largest
cost of such a test.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 500  # time limit on a busy machine; on a quiet one it takes a tenth
# A small network that several processes can share on a CPU, for images of 8 x 8 pixels.
WITHOUT_BATCH_NORM = ("model.name=test_vit", "model.image_size=8", "model.patch_size=4")


def start_all(
    module: str, *arguments: str, n: int = 2, only_last: Sequence[str] = ()
) -> "list[subprocess.Popen[str]]":
    """Start ``python -m module arguments`` as ranks 0 to n - 1 of one group, as torchrun does.

    ``only_last`` are further arguments of the last rank.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": n, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    return [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments, *(only_last if rank == n - 1 else ())],
            env=os.environ
            | {
                key: str(value)
                for key, value in (group | {"RANK": rank, "LOCAL_RANK": rank}).items()
            },
            cwd=ROOT,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(n)
    ]


def finish(processes: "Sequence[subprocess.Popen[str]]") -> list[str]:
    """Wait for all, and return what each wrote to standard error; none is left running."""
    try:
        return [process.communicate(timeout=SECONDS)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def run_all(module: str, *arguments: str, n: int = 2) -> None:
    """Start, wait, and insist on success."""
    processes = start_all(module, *arguments, n=n)
    errors = finish(processes)
    assert [process.returncode for process in processes] == [0] * n, "\n".join(errors)


def main(jobs: list[dict[str, Any]]) -> None:
    """Train one experiment after the other; the process group stays.

    A job may ``stop_at`` a step, by Ctrl-C on the first process alone, or have settings that
    ``differ`` on the second; what is then raised goes to a file of each process.
    """
    from semigpc.io.errors import ProcessesError
    from semigpc.training import Experiment, Listener, Stopped, train
    from semigpc.training.processes import join

    class Impatient(Listener):
        def step(self, step: int) -> None:
            if step + 1 == job.get("stop_at"):
                os.kill(os.getpid(), signal.SIGINT)

    rank, fabric = int(os.environ["RANK"]), None
    for job in jobs:
        experiment, path = Experiment.from_plain(job["experiment"]), Path(job["path"])
        if "precision" in job:
            experiment = replace(
                experiment, train=replace(experiment.train, precision=job["precision"])
            )
        if rank:
            experiment = experiment.override(job.get("differ", []))
        fabric = fabric or join(experiment)
        try:
            train(
                experiment,
                path,
                resume=job.get("resume", False),
                fabric=fabric,
                listener=None if rank else Impatient(),
            )
        except (Stopped, ProcessesError) as error:
            path.with_name(f"{path.name}-{rank}.txt").write_text(str(error))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
