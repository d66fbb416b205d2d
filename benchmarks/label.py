"""How fast is a table labelled, beside the bare matrix products that this takes?"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.peers import LABELLERS, Budget, largest_size
from benchmarks.problems import Clusters
from benchmarks.references import kernel_matrix
from benchmarks.tables import Json, Seed, new_table, script, show
from benchmarks.timing import peak_resident_bytes
from semigpc.estimator import Answers, SemiGPClassifier
from semigpc.estimator.posterior import PRODUCT_ROWS, Posterior
from semigpc.gp.engine import full_precision
from semigpc.gp.kernels import RBF

TURN = 65_536  # rows that one contender labels before it is the other's turn
COMPARED = 1024  # rows whose numbers are compared
CARDS = 1000  # rows that are scored again after a correction
KERNEL = RBF(length_scale=0.7)
NOISE_STD = 0.3
Record = dict[str, Any]
Report = Callable[[str], object]


def bench_label(
    rows: int = 1_000_000,
    *,
    labels: int = 2000,
    width: int = 384,
    classes: int = 20,
    peers: bool = True,
    budget: Budget | None = None,
    correction_labels: int = 16_000,
    corrections: int = 7,
    seed: int = 0,
    report: Report = lambda _: None,
) -> Record:
    """Time ``SemiGPClassifier.answer`` against the products that it needs, and what a correction
    takes.

    Ours and the floor take turns of 65 536 rows over the same rows, with the variance and without.
    Hyper-parameters are given and self-training is off: it is the answering that is timed, from
    checking the rows to the status and the reasons.

    Args:
        rows: M. labels: N. width: D. classes: C.
        peers: whether LabelSpreading and SelfTraining are tried, within ``budget`` for each size.
        correction_labels: N of the model that is corrected; 0 leaves this out.
        corrections: of which the median time counts.
        report: called with the stage, for a progress display.

    Returns:
        ``rows_per_s`` of ours, ``floor_rows_per_s`` and the ``ratio`` of their times; the same in
        ``without_variance``. ``peak_bytes`` is how far the resident set of the process rises above
        what it was with the input while all rows are answered in one call. ``max_abs_error`` is
        that of scores and variances against the floor's. ``correction`` and ``peers`` are None if
        left out.
    """
    clusters = Clusters(width, classes, seed)
    record: Record = {
        "rows": rows,
        "labels": labels,
        "width": width,
        "classes": classes,
        "seed": seed,
    }
    record |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
    record |= bench_answers(clusters, rows, labels, report)
    record["correction"] = (
        bench_correction(clusters, correction_labels, corrections, report)
        if correction_labels
        else None
    )
    record["peers"] = None
    if peers:
        budget = budget or Budget()
        tried = {
            name: largest_size(
                name, clusters, labels=labels, rows=rows, budget=budget, report=report
            )
            for name in LABELLERS
        }
        record["peers"] = tried
    return record


def bench_answers(clusters: Clusters, rows: int, labels: int, report: Report) -> Record:
    """Ours beside the floor: whether the numbers are the same, memory, and rows a second."""
    report("drawing rows")
    X, _ = clusters.draw(rows)
    report("fitting")
    model = fitted(clusters, labels)
    floor = Floor(model)
    record: Record = {"max_abs_error": floor.difference(X[:COMPARED], model.answer(X[:COMPARED]))}
    report("all rows in one call")
    began = time.perf_counter()
    record["peak_bytes"] = peak_resident_bytes(lambda: model.answer(X))
    record["one_call_rows_per_s"] = rows / (time.perf_counter() - began)
    with_variance, without_variance = take_turns(model, floor, X, report)
    return record | with_variance | {"without_variance": without_variance}


def fitted(clusters: Clusters, labels: int) -> SemiGPClassifier:
    """A model of so many labelled rows, with given hyper-parameters."""
    X, codes = clusters.draw(labels, stream=1)
    model = SemiGPClassifier(
        length_scale=KERNEL.length_scale,
        noise_std=NOISE_STD,
        logit_scale=8.0,
        scaling="unit",
        self_training=0,
        abstain=0.5,
        random_state=0,
    )
    return model.fit(X, codes)


class Floor:
    """The products that labelling unit vectors cannot do without, and nothing else: x H^T and exp,
    k a, L^-1 k.

    Where all rows have length 1, k(h, h_i) = e^(-1/l^2) exp(h.h_i / l^2): the scale of h_Q, of the
    weights and of L takes up all constants, and the products alone give the mean and what the
    labels explain of the variance. Chunk by chunk as ours, into memory that is there already.
    """

    def __init__(self, model: SemiGPClassifier) -> None:
        posterior: Posterior = model._memory._view.posterior
        scale = KERNEL.length_scale**-2
        factor = torch.linalg.cholesky(
            kernel_matrix(posterior.features.double(), KERNEL, NOISE_STD)
        )
        self.columns = (posterior.features * scale).mT
        self.weights = posterior.weights * np.exp(-scale)
        self.factor = factor.mul_(np.exp(scale)).float()
        self.mean = self.weights.new_empty(PRODUCT_ROWS, self.weights.shape[1])
        self.k = self.weights.new_empty(PRODUCT_ROWS, len(posterior))

    @full_precision()
    @torch.no_grad()
    def products(self, rows: NDArray[np.float32], *, variance: bool) -> tuple[Tensor, Tensor]:
        """The mean (m, C), and L^-1 k (m, N) or k, of the last chunk of the rows."""
        for chunk in torch.from_numpy(rows).split(PRODUCT_ROWS):
            k = self.k[: len(chunk)]
            mean = self.mean[: len(chunk)]
            torch.mm(chunk, self.columns, out=k).exp_()
            torch.mm(k, self.weights, out=mean)
            if variance:
                torch.linalg.solve_triangular(self.factor, k.mT, upper=False, out=k.mT)
        return mean, k

    def difference(self, rows: NDArray[np.float32], answers: Answers) -> float:
        """Largest difference of scores and variances of at most PRODUCT_ROWS rows from those of the
        products.
        """
        mean, explained = self.products(rows, variance=True)
        scores = mean.gather(1, torch.from_numpy(answers.codes)[:, None]).squeeze(1)
        variance = (1 - explained.double().square().sum(dim=1)).clamp_min(0)
        assert answers.variance is not None
        of_scores = (scores - torch.from_numpy(answers.scores)).abs().max()
        of_variance = (variance - torch.from_numpy(answers.variance)).abs().max()
        return max(float(of_scores), float(of_variance))


def take_turns(
    model: SemiGPClassifier, floor: Floor, X: NDArray[np.float32], report: Report
) -> tuple[Record, Record]:
    """Rows a second of ours and of the floor, with the variance and without it."""
    seconds = {(name, variance): 0.0 for name in ("floor", "ours") for variance in (True, False)}
    for start in range(0, len(X), TURN):
        turn = X[start : start + TURN]
        for variance in (True, False):
            began = time.perf_counter()
            floor.products(turn, variance=variance)
            between = time.perf_counter()
            model.answer(turn, variance=variance)
            seconds["ours", variance] += time.perf_counter() - between
            seconds["floor", variance] += between - began
        report(f"in turns with the bare products: {min(start + TURN, len(X)):,} of {len(X):,} rows")
    records = [
        {
            "rows_per_s": len(X) / seconds["ours", variance],
            "floor_rows_per_s": len(X) / seconds["floor", variance],
            "ratio": seconds["ours", variance] / seconds["floor", variance],
        }
        for variance in (True, False)
    ]
    return records[0], records[1]


def bench_correction(clusters: Clusters, labels: int, corrections: int, report: Report) -> Record:
    """Seconds from a person's correction until 1000 rows are scored again: ``partial_fit`` of one
    of them, and ``answer``.
    """
    report(f"building a model of {labels:,} labels")
    began = time.perf_counter()
    model = fitted(clusters, labels)
    build_s = time.perf_counter() - began
    cards, codes = clusters.draw(CARDS, stream=2)
    seconds = []
    for row in range(corrections + 1):
        began = time.perf_counter()
        model.partial_fit(cards[row : row + 1], codes[row : row + 1], rows=[labels + row])
        model.answer(cards, variance=False)
        seconds.append(time.perf_counter() - began)
        report(f"corrections: {row} of {corrections}")
    return {
        "labels": labels,
        "cards": CARDS,
        "seconds": median(seconds[1:]),
        "slowest_s": max(seconds[1:]),
        "build_s": build_s,
    }


def label(
    rows: Annotated[int, typer.Option(help="Rows to label, M.", min=1)] = 1_000_000,
    labels: Annotated[int, typer.Option(help="Labelled rows, N.", min=2)] = 2000,
    width: Annotated[int, typer.Option(help="Numbers per row, D.", min=2)] = 384,
    classes: Annotated[int, typer.Option(help="Classes, C.", min=2)] = 20,
    correction_labels: Annotated[
        int,
        typer.Option(
            help="Labelled rows of the model that is corrected; 0 leaves corrections out.", min=0
        ),
    ] = 16_000,
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Whether to try scikit-learn's classifiers.")
    ] = True,
    peer_seconds: Annotated[
        float, typer.Option(help="Seconds that a peer may take for one size.", min=0)
    ] = 60.0,
    peer_gb: Annotated[
        float, typer.Option(help="Gigabytes of RAM that a peer's process may hold.", min=0)
    ] = 4.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time the labelling of a table against the products it needs.

    Class, confidence, variance, status and the three weightiest reasons of
    every row stand beside the floor: the kernel's matrix product with its exp,
    the mean, and the triangular solve for the variance, run bare in turns.

    LabelSpreading and SelfTraining get more and more rows until time, memory
    or NaN stops them. A correction is one label more in a model of 16 000,
    until 1000 rows are scored again; to build that model takes a minute.

      python benchmarks/label.py --rows 100000 --correction-labels 0 --no-peers
    """
    if labels < classes or 0 < correction_labels < classes:
        raise typer.BadParameter(
            f"{classes} classes need a labelled row each.", param_hint="--classes"
        )
    with Console(stderr=True).status("starting") as status:
        record = bench_label(
            rows,
            labels=labels,
            width=width,
            classes=classes,
            peers=peers,
            budget=Budget(peer_seconds, int(peer_gb * 1e9)),
            correction_labels=correction_labels,
            seed=seed,
            report=status.update,
        )
    show(record, lambda: [_table(record)], as_json=as_json)


def _table(record: dict[str, Any]) -> Table:
    title = (
        f"{record['rows']:,} rows of {record['width']}, {record['labels']:,} labels, "
        f"{record['classes']} classes"
    )
    table = new_table(title, "", "rows per second", "floor", "time / floor")
    for name, figures in (("with variance", record), ("without", record["without_variance"])):
        rate = f"{figures['rows_per_s']:,.0f}"
        floor = f"{figures['floor_rows_per_s']:,.0f}"
        table.add_row(f"semigpc, {name}", rate, floor, f"{figures['ratio']:.2f}")
    for name, peer in (record["peers"] or {}).items():
        rate = f"{peer['rows_per_s'] or 0:,.0f}"
        table.add_row(f"{name}, {peer['rows']:,} rows", rate, "", _end(peer))
    notes = [f"error {record['max_abs_error']:.1e}"]
    if record["peak_bytes"] is not None:
        notes.insert(0, f"{record['peak_bytes'] / 1e6:,.0f} MB beyond the input")
    if record["correction"]:
        correction = record["correction"]
        labels = f"{correction['labels']:,} labels"
        notes.append(f"a correction among {labels} takes {correction['seconds']:.2f} s")
    table.caption = "; ".join(notes)
    return table


def _end(peer: dict[str, Any]) -> str:
    return f"{peer['stopped']} at {peer['stopped_at']:,}" if peer["stopped"] else "all rows"


app = script(label)
if __name__ == "__main__":
    app()
