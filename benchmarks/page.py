"""How quick is the page of ``semigpc open``: until it is there, and after every answer?"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.problems import Clusters
from benchmarks.tables import Json, Seed, new_table, script, show
from semigpc.io.errors import RunError

POLL_SECONDS = 0.02  # between two looks at the counts, while they are not new
MOST_SECONDS = 120.0  # that the page or its counts may take
PREFETCHED = 8  # cards that the page asks for at once
Record = dict[str, Any]
Report = Callable[[str], object]


class Page:
    """The requests that the page sends, one after the other, over one address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, question: str, **body: Any) -> Record:
        """Return the reply to a request."""
        request = urllib.request.Request(
            f"{self.address}api/{question}",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=MOST_SECONDS) as response:
            reply: Record = json.loads(response.read())
        return reply

    def wait(self) -> float:
        """Return the seconds until everything that is shown is up to date."""
        began = time.perf_counter()
        while time.perf_counter() - began < MOST_SECONDS:
            if self.ask("refresh")["progress"]["state"] in ("ready", "cold"):
                return time.perf_counter() - began
            time.sleep(POLL_SECONDS)
        raise RunError(f"the counts were not up to date after {MOST_SECONDS:.0f} s.")


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Page, float]]:
    """Serve the table in a folder by the real command; yield its page, and the seconds to it."""
    command = [sys.executable, "-m", "semigpc", "open", "rows.npz", "--out", "out", "--no-browser"]
    began = time.perf_counter()
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        lines = (line for line in server.stdout if line.startswith("open http"))
        address = next(lines, None)
        if address is None:
            raise RunError(f"semigpc open ended with exit code {server.wait()}.")
        page = Page(address.split()[1])
        page.ask("next", count=PREFETCHED)
        yield page, time.perf_counter() - began
    finally:
        server.terminate()
        server.communicate()


def bench_page(
    rows: int = 20_000,
    *,
    width: int = 1280,
    classes: int = 20,
    answers: int = 60,
    seed: int = 0,
    report: Report = lambda _: None,
) -> Record:
    """Open a table without labels, and answer truthfully the cards that the page asks for.

    After every answer it waits until the counts are up to date. Models are fitted meanwhile, as for
    people. Then the page is opened again, with the answers that are there.

    Args:
        rows: n. width: D. classes: C. answers: how many.

    Returns:
        ``page_s`` and ``again_s`` from the command to the first cards; of ``answer_s`` and
        ``counts_s``, from the request on, median and largest.
    """
    X, codes = Clusters(width, classes, seed).draw(rows)
    answer_s: list[float] = []
    counts_s: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "rows.npz", x=X)
        report("opening the page")
        with opened(folder) as (page, page_s):
            for number in range(answers):
                report(f"answers: {number} of {answers}")
                card = page.ask("next", count=PREFETCHED)["cards"][0]
                label = f"class {codes[card['row']]:03}"
                began = time.perf_counter()
                page.ask("correct", row=card["row"], version=card["version"], label=label)
                answer_s.append(time.perf_counter() - began)
                counts_s.append(answer_s[-1] + page.wait())
        report("opening the page again")
        with opened(folder) as (_, again_s):
            pass
    return {
        "rows": rows,
        "width": width,
        "classes": classes,
        "answers": answers,
        "page_s": page_s,
        "again_s": again_s,
        "answer_s": {"median": median(answer_s), "largest": max(answer_s)},
        "counts_s": {"median": median(counts_s), "largest": max(counts_s)},
    }


def page(
    rows: Annotated[int, typer.Option(help="Rows of the table, n.", min=20)] = 20_000,
    width: Annotated[int, typer.Option(help="Numbers per row, D.", min=2)] = 1280,
    classes: Annotated[int, typer.Option(help="Classes, C.", min=2)] = 20,
    answers: Annotated[int, typer.Option(help="Answers to give.", min=1)] = 60,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time the page of `semigpc open` on a table without labels.

    From the command to the first cards, from an answer to its reply, and from
    an answer until all counts are new, with every class labelled on the way.

      python benchmarks/page.py --rows 2000 --answers 20
    """
    with Console(stderr=True).status("starting") as status:
        record = bench_page(
            rows, width=width, classes=classes, answers=answers, seed=seed, report=status.update
        )
    show(record, lambda: [_table(record)], as_json=as_json)


def _table(record: Record) -> Table:
    title = f"{record['rows']:,} rows of {record['width']}, {record['classes']} classes"
    table = new_table(title, "", "seconds", "largest")
    table.add_row("to the first cards", f"{record['page_s']:.1f}", "")
    table.add_row("opened again", f"{record['again_s']:.1f}", "")
    for name, key in (("an answer", "answer_s"), ("counts are new", "counts_s")):
        figures = record[key]
        table.add_row(name, f"{figures['median']:.3f}", f"{figures['largest']:.3f}")
    table.caption = f"median and largest of {record['answers']} answers"
    return table


app = script(page)
if __name__ == "__main__":
    app()
