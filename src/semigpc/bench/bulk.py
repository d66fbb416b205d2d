"""Bulk labelling on Ray: a worker is killed, the run is stopped, it goes on, and the labels are those of the local engine.

Everything is done by the command line in processes of its own, so that there is something to kill.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from semigpc.bench.clusters import Clusters
from semigpc.threads import cores

EVERY_SECONDS = 0.2  # between looks at what is finished
COMPARED = 65_536  # rows at a time
GROUP = 65_536  # rows of a row group
TASK = "map"  # in the title of a worker's process while it does something; those of Ray itself are to be left alone
TRIES = 100  # to find one that does
Record = dict[str, Any]
Report = Callable[[str, int, int | None], object]


def bench_bulk(
    folder: Path,
    rows: int,
    *,
    partitions: int = 40,
    labels: int = 500,
    width: int = 32,
    classes: int = 10,
    seed: int = 0,
    report: Report = lambda *_: None,
) -> Record:
    """Label generated partitions on Ray and by the local engine, and compare.

    On Ray a worker is killed (SIGKILL) once a quarter of the partitions are labelled, and the command is stopped (SIGINT) once
    half of them are. The same command then goes on.

    Args:
        folder: to write to, about 300 bytes a row for 32 numbers a row. rows: M, cut into ``partitions`` of about one size.
        labels: N, spread over the partitions. width: D. classes: C. report: told the stage, and how much of how much is done.

    Returns:
        Rows a second of both, rows a core-second of both passes on Ray, what the kill and the stop left behind, and how many
        rows differ between the two engines.
    """
    began = time.perf_counter()
    _generate(folder, rows, partitions, labels, Clusters(width, classes, seed), report)
    record: Record = {
        "rows": rows,
        "partitions": partitions,
        "labels": labels,
        "width": width,
        "classes": classes,
        "seed": seed,
    }
    record |= {"cores": cores(), "generate_s": time.perf_counter() - began}
    record["bytes_in"] = _bytes(folder / "data")
    record["ray"] = _label_on_ray(folder, rows, partitions, report)
    record["bytes_out"] = _bytes(folder / "ray" / "labels")
    report("labelling, local engine", 0, None)
    began = time.perf_counter()
    _finish(_start(folder, "local"))
    seconds = time.perf_counter() - began
    record["local"] = {"seconds": seconds, "rows_per_s": rows / seconds}
    record["differences"] = compare(folder / "local" / "labels.parquet", sorted((folder / "ray" / "labels").iterdir()), report)
    return record


def _generate(folder: Path, rows: int, partitions: int, labels: int, clusters: Clusters, report: Report) -> None:
    """Partitions of ids and embeddings, and a table of labels with some rows of each partition."""
    (folder / "data").mkdir(parents=True)
    given = ["id,label"]
    bounds, shares = (np.linspace(0, total, partitions + 1).astype(int) for total in (rows, labels))
    for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
        report("writing partitions", number, partitions)
        x, codes = clusters.draw(stop - start, stream=number)
        ids = [f"row-{row:010d}" for row in range(start, stop)]
        table = pyarrow.table(
            {"id": ids, "embedding": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), clusters.width)}
        )
        parquet.write_table(table, folder / "data" / f"part-{number:05d}.parquet", row_group_size=GROUP)
        first = 0 if number == 0 else clusters.classes  # the first rows have one of each class, which need not be so everywhere
        chosen = range(first, first + int(shares[number + 1] - shares[number]))
        given += [f"{ids[row]},class {codes[row]}" for row in chosen]
    (folder / "labels.csv").write_text("\n".join(given) + "\n")


def _start(folder: Path, engine: str) -> "subprocess.Popen[str]":
    """``semigpc label``, in a session of its own."""
    command = [sys.executable, "-m", "semigpc", "label", str(folder / "data"), "--labels", str(folder / "labels.csv")]
    command += ["--out", str(folder / engine), "--engine", engine, "--no-report", "--json"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the background of a script is deaf to it
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    finally:
        signal.signal(signal.SIGINT, before)


def _finish(process: "subprocess.Popen[str]") -> Record:
    told, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"semigpc label ended with {process.returncode}: {' '.join(errors.split())[-500:]}")
    summary: Record = json.loads(told)
    return summary


def _label_on_ray(folder: Path, rows: int, partitions: int, report: Report) -> Record:
    """Kill a worker, stop, go on."""
    done = folder / "ray" / "labels"
    began = time.perf_counter()
    process = _start(folder, "ray")
    try:
        for _ in _until(lambda: _finished(done) >= max(1, partitions // 4), process):
            report("labelling on Ray, until a worker is killed", _finished(done), partitions)
        killed = _kill_a_worker(process.pid)
        for _ in _until(lambda: _finished(done) >= partitions // 2, process):
            report("labelling on Ray, until it is stopped", _finished(done), partitions)
        os.kill(process.pid, signal.SIGINT)
        process.communicate()
    except BaseException:
        process.kill()
        raise
    stopped_s = time.perf_counter() - began
    kept = {path: path.stat().st_mtime_ns for path in done.glob("*.parquet")}
    marked = (folder / "ray" / "_partial.json").exists() and not (folder / "ray" / "_complete.json").exists()
    report("labelling on Ray, going on", len(kept), partitions)
    began = time.perf_counter()
    summary = _finish(_start(folder, "ray"))
    resumed_s = time.perf_counter() - began
    core = summary["core_seconds"]
    return {
        "killed_worker": killed,
        "stopped_s": stopped_s,
        "stopped_exit_code": process.returncode,
        "partitions_when_stopped": len(kept),
        "marked_as_partial": marked,
        "partitions_kept": sum(path.stat().st_mtime_ns == time_ns for path, time_ns in kept.items()),
        "resumed_s": resumed_s,
        "complete": (folder / "ray" / "_complete.json").exists(),
        "seconds": stopped_s + resumed_s,
        "rows_per_s": rows / (stopped_s + resumed_s),
        "core_seconds": core,
        "rows_per_core_s": {name: rows / seconds for name, seconds in core.items()},
    }


def _until(reached: Callable[[], bool], process: "subprocess.Popen[str]") -> Iterator[None]:
    while not reached():
        if process.poll() is not None:
            _finish(process)
            raise RuntimeError("All partitions were labelled before the run could be disturbed. Take more rows.")
        yield
        time.sleep(EVERY_SECONDS)


def _finished(folder: Path) -> int:
    return sum(1 for _ in folder.glob("*.parquet"))


def _kill_a_worker(driver: int) -> bool:
    """Kill a worker of this driver while it is at work on a partition; False if none was found to be for a while."""
    for _ in range(TRIES):
        found = _busy_worker(driver)
        if found is not None:
            os.kill(found, signal.SIGKILL)
            return True
        time.sleep(EVERY_SECONDS)
    return False


def _busy_worker(driver: int) -> int | None:
    """A process that descends from the driver, by its title."""
    parents: dict[int, int] = {}
    titles: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            titles[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:  # gone
            continue
    for pid, title in titles.items():
        above = pid
        while above in parents and above != driver:
            above = parents[above]
        if above == driver and title.startswith("ray::") and TASK in title.lower():
            return pid
    return None


def compare(whole: Path, parts: list[Path], report: Report) -> Record:
    """How the labels of one file differ from those of partitions, row by row in their order."""
    numbers = ("confidence", "variance")
    rows, differing, largest = 0, dict.fromkeys(("label", "status", "reasons", *numbers), 0), dict.fromkeys(numbers, 0.0)
    theirs = (table for part in parts for table in parquet.ParquetFile(part).iter_batches(COMPARED))
    ours = parquet.ParquetFile(whole).iter_batches(COMPARED)
    held = parquet.read_schema(whole).empty_table()
    for mine in theirs:
        while held.num_rows < mine.num_rows:
            more = next(ours, None)
            if more is None:
                raise RuntimeError(f"{whole} has fewer rows than its partitions.")
            held = pyarrow.concat_tables([held, pyarrow.Table.from_batches([more])])
        here, held = held.slice(0, mine.num_rows).combine_chunks(), held.slice(mine.num_rows)
        if not here.column(0).combine_chunks().equals(mine.column(0)):
            raise RuntimeError(f"The rows from {rows} on are not the same in {whole} and its partitions.")
        for name in differing:
            one, other = here[name].combine_chunks(), mine.column(name)
            if not one.equals(other):
                differing[name] += sum(a != b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True))
            if name in numbers:
                largest[name] = max(largest[name], float(np.abs(one.to_numpy() - other.to_numpy()).max(initial=0)))
        rows += mine.num_rows
        report("comparing", rows, None)
    if held.num_rows or next(ours, None) is not None:
        raise RuntimeError(f"{whole} has more rows than its partitions.")
    return {"rows": rows, "rows_that_differ": differing, "largest_difference": largest}


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))
