"""How many rows scikit-learn's semi-supervised classifiers can label before time, memory or NaN stops them."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from semigpc.bench.clusters import Clusters
from semigpc.bench.resident import resident_bytes

NAMES = ("label_spreading", "self_training")
LOOK_SECONDS = 0.05
Record = dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """What a peer may use for one size: seconds, and bytes of its process in RAM, rows and libraries included."""

    seconds: float = 60.0
    bytes: int = 4 * 2**30


def largest_size(
    name: str,
    clusters: Clusters,
    *,
    labels: int,
    rows: int,
    budget: Budget,
    report: Callable[[str, int, int | None], object] = lambda *_: None,
) -> Record:
    """Let one peer label more and more rows in a process of its own, until it is done with ``rows`` or is stopped.

    Sizes double from twice the labels on. A size counts if every row gets an answer that is not NaN within the budget.

    Args:
        name: one of NAMES. labels: given, among the rows of every size.
        report: told what is being tried, for a progress display.

    Returns:
        ``rows`` at the largest size that counts (0 for none), ``seconds`` and ``rows_per_s`` there; ``stopped`` by "memory",
        "time", "nan", an error, or None if all rows were labelled; and ``stopped_at`` how many rows.
    """
    record: Record = {"rows": 0, "seconds": None, "rows_per_s": None, "stopped": None, "stopped_at": None}
    context = multiprocessing.get_context("spawn")  # a copy of this process would inherit its threads' locks
    ours, theirs = context.Pipe()
    child = context.Process(target=_label_more_and_more, args=(theirs, name, clusters, labels, rows), daemon=True)
    child.start()
    theirs.close()
    try:
        for size in sizes(labels, rows):
            report(f"{name}, {size:,} rows", 0, None)
            answer = _answer(ours, child.pid, budget)
            if isinstance(answer, str):
                return record | {"stopped": answer, "stopped_at": size}
            record |= {"rows": size, "seconds": answer, "rows_per_s": size / answer}
        return record
    finally:
        child.kill()
        child.join()


def sizes(labels: int, rows: int) -> Iterator[int]:
    """Twice the labels, doubled until ``rows`` is reached."""
    size = 2 * labels
    while size < rows:
        yield size
        size *= 2
    yield rows


def _answer(connection: Connection, pid: int | None, budget: Budget) -> float | str:
    """Seconds of the size under way, or what stops it. The clock starts when the rows are there."""
    began: float | None = None
    while True:
        if connection.poll(LOOK_SECONDS):
            try:
                message = connection.recv()
            except EOFError:
                return "killed"
            if message != "began":
                return message  # type: ignore[no-any-return]
            began = time.monotonic()
        if began is not None and time.monotonic() - began > budget.seconds:
            return "time"
        if (resident_bytes(pid or 0) or 0) > budget.bytes:
            return "memory"


def _label_more_and_more(connection: Connection, name: str, clusters: Clusters, labels: int, rows: int) -> None:
    """In the child: "began", then seconds or what went wrong, for size after size."""
    from semigpc.estimator.peers import PEERS, fit_peer

    for size in sizes(labels, rows):
        X, codes = clusters.draw(size)
        connection.send("began")
        began = time.perf_counter()
        try:
            fitted = fit_peer(PEERS[name], X[:labels], codes[:labels], X[labels:])
            found = fitted.classifier
            probs = found.label_distributions_ if name == "label_spreading" else found.predict_proba(fitted.scaler.transform(X))
            seconds = time.perf_counter() - began
            connection.send(seconds if np.isfinite(probs).all() else "nan")
        except MemoryError:
            connection.send("memory")
        except Exception as error:  # whatever it is, it is the peer's answer
            connection.send(f"{type(error).__name__}: {error}")
