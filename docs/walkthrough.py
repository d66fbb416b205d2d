"""Make the pictures of docs/walkthrough.md: ``make walkthrough PHOTOS=trashnet``.

1 200 photographs are drawn from a folder with one sub-folder for each class and copied under names
that say nothing. Then the commands of the page run: ``semigpc open``, on whose page a browser gives
truthful answers and takes pictures, ``semigpc predict`` and ``semigpc export``. What came of it, by
the true classes, is printed as JSON.
"""

import argparse
import csv
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pictures import HEIGHT, IMAGES, WIDTH, answer, serve, settle, take

COUNT = 1200  # photographs
NEW = 100  # more, that the finished model labels
ANSWERS = 60  # before the check
CHECKED = 50  # at random, which the page offers
EARLY = 12  # answers, after which the page is shown again
PATIENCE = 300_000  # milliseconds
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
GRADES = (0.99, 0.95, 0.9, 0.8, 0.0)
ROUNDING = 1e-6  # grades are float32
Row = dict[str, str]


def copy_photographs(source: Path, work: Path, count: int) -> dict[str, str]:
    """Copy ``count`` photographs to work/photos and NEW others to work/new_photos; return the class
    of each by its new name.
    """
    found = sorted(path for path in source.glob("*/*") if path.suffix.lower() in SUFFIXES)
    if len(found) < count + NEW:
        raise SystemExit(f"{source} has {len(found)} photographs; {count + NEW} are needed.")
    random.Random(0).shuffle(found)
    truth = {}
    for number, path in enumerate(found[: count + NEW]):
        folder = work / ("photos" if number < count else "new_photos")
        folder.mkdir(exist_ok=True)
        name = f"IMG_{number:04d}{path.suffix.lower()}"
        shutil.copyfile(path, folder / name)
        truth[name] = path.parent.name
    return truth


@contextmanager
def opened(photos: Path) -> Iterator[Any]:
    """Yield the page of ``semigpc open`` in Chromium; Ctrl-C ends the command afterwards."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    process, address = serve(photos)
    try:
        with sync_playwright() as running:
            browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.set_default_timeout(PATIENCE)
            page.goto(address)
            page.locator("body[data-ready]").wait_for()
            yield page
            browser.close()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def give(page: Any, truth: dict[str, str]) -> None:
    """Give the true answer, and wait until it is saved."""
    answer(page, truth)
    page.wait_for_function("() => document.getElementById('saved').textContent === 'Saved'")


def sit(page: Any, truth: dict[str, str], answers: int, out: Path) -> None:
    """Give the answers of a first sitting, check at random, and take a picture of every step."""
    page.locator("#picture img").wait_for()
    take(page, out / "start.png")
    for number in range(answers):
        give(page, truth)
        if number + 1 == min(EARLY, answers - 1):
            settle(page)
            take(page, out / "early.png")
    settle(page)
    take(page, out / "late.png")
    page.locator("#check-random").click()
    page.wait_for_function("() => document.getElementById('place').textContent.includes(' of ')")
    for _ in range(CHECKED):
        give(page, truth)
    page.locator("#end .result").first.wait_for()
    settle(page)
    take(page, out / "checked.png")
    page.locator("#audit-close").click()
    page.locator("#explain").click()
    page.locator("#guarantee[open]").wait_for()
    take(page, out / "guaranteed.png")
    page.keyboard.press("Escape")
    page.locator("#mode-grid").click()
    page.locator("#cards img").first.wait_for()
    page.wait_for_load_state("networkidle")
    take(page, out / "check.png")
    page.locator("#export").click()
    page.locator("#leaving[open]").wait_for()
    take(page, out / "export.png")


# What came of it ----------------------------------------------------------------------------------


def run(work: Path, *command: str) -> None:
    """Run a command of the page."""
    print("semigpc", *command, file=sys.stderr)
    subprocess.run(
        [sys.executable, "-m", "semigpc", *command], cwd=work, check=True, stdout=sys.stderr
    )


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a table."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def judged(rows: Iterable[Row], truth: Mapping[str, str]) -> list[dict[str, float]]:
    """Return for each grade how many rows reach it, and how many of their guesses are right."""
    rows = list(rows)
    figures = []
    for grade in GRADES:
        reached = [row for row in rows if float(row["grade"] or 0) >= grade - ROUNDING]
        right = sum(row["guess"] == truth[Path(row["file_name"]).name] for row in reached)
        figures.append({"grade": grade, "rows": len(reached), "right": right})
    return figures


def walk(source: Path, out: Path, count: int, answers: int) -> None:
    """Do what the page describes, write its pictures to ``out``, and print the figures."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="semigpc-walkthrough-") as name:
        work = Path(name)
        truth = copy_photographs(source, work, count)
        with opened(work / "photos") as page:
            sit(page, truth, answers, out)
        labels = read_rows(work / "photos-labelled" / "exports" / "labels.csv")
        run(work, "predict", "photos-labelled", "new_photos", "--out", "new.csv")
        figures = {
            "photographs": len(labels),
            "answers": sum(row["status"] == "labelled" for row in labels),
            "rest": judged((row for row in labels if row["status"] != "labelled"), truth),
            "new": judged(read_rows(work / "new.csv"), truth),
        }
        print(json.dumps(figures, indent=1), flush=True)
        run(work, "export", "photos-labelled", "--out", "model.onnx")


def main() -> None:
    """Make the pictures, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path, help="one sub-folder for each class")
    parser.add_argument("--out", type=Path, default=IMAGES / "walkthrough")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--answers", type=int, default=ANSWERS)
    options = parser.parse_args()
    walk(options.photos, options.out, options.count, options.answers)


if __name__ == "__main__":
    main()
