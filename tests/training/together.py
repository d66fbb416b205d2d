"""Two processes on gloo that run several jobs in one start, since importing torch is slow."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 500  # time limit on a busy machine; on a quiet one it takes a tenth
# A small network that several processes can share on a CPU, for images of 8 x 8 pixels.
WITHOUT_BATCH_NORM = ("model.name=test_vit", "model.image_size=8", "model.patch_size=4")


def run_all(module: str, *arguments: str, n: int = 2) -> None:
    """Run a module as ranks 0 to n - 1 of one group, as torchrun does; all have to succeed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": n, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    streams: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    command = [sys.executable, "-m", module, *arguments]
    processes = []
    for rank in range(n):
        settings = group | {"RANK": rank, "LOCAL_RANK": rank}
        env = os.environ | {key: str(value) for key, value in settings.items()}
        processes.append(subprocess.Popen(command, env=env, cwd=ROOT, text=True, **streams))
    try:
        errors = [process.communicate(timeout=SECONDS)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0] * n, "\n".join(errors)


def main(jobs: list[dict[str, Any]]) -> None:
    """Train one experiment after the other; the process group stays.

    A job may ``stop_at`` a step, by Ctrl-C on the first process alone, or have settings that
    ``differ`` on the second; what is then raised goes to a file of each process.
    """
    from semigpc.io.errors import ProcessesError
    from semigpc.training import Experiment, Stopped, train
    from semigpc.training.processes import join
    from tests.training.small_runs import StopAt

    rank, fabric = int(os.environ["RANK"]), None
    for job in jobs:
        experiment, path = Experiment.from_plain(job["experiment"]), Path(job["path"])
        if "precision" in job:
            exact = replace(experiment.train, precision=job["precision"])
            experiment = replace(experiment, train=exact)
        if rank:
            experiment = experiment.override(job.get("differ", []))
        fabric = fabric or join(experiment)
        try:
            listener = None if rank else StopAt(job.get("stop_at"))
            resume = job.get("resume", False)
            train(experiment, path, resume=resume, fabric=fabric, listener=listener)
        except (Stopped, ProcessesError) as error:
            path.with_name(f"{path.name}-{rank}.txt").write_text(str(error))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
