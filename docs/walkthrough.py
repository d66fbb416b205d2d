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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

COUNT = 1200  # photographs
NEW = 50  # more, that the finished model labels
ANSWERS = 100
EARLY = 12  # answers, after which the page is shown for the first time
MOST_BYTES = 150_000  # of a picture
PATIENCE = 300_000  # milliseconds
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
PHOTOS = "photos"
LABELLED = "photos-labelled"
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


def copy_photographs(source: Path, work: Path, count: int) -> dict[str, str]:
    """Copy ``count`` photographs to work/photos and NEW others to work/new_photos; return the class
    of each by its new name.
    """
    found = sorted(p for p in source.rglob("*") if p.suffix.lower() in SUFFIXES)
    if len(found) < count + NEW:
        raise SystemExit(f"{source} has {len(found)} photographs; {count + NEW} are needed.")
    random.Random(0).shuffle(found)
    truth = {}
    for number, path in enumerate(found[: count + NEW]):
        folder = work / (PHOTOS if number < count else "new_photos")
        folder.mkdir(exist_ok=True)
        name = f"IMG_{number:04d}{path.suffix.lower()}"
        shutil.copyfile(path, folder / name)
        truth[name] = path.parent.name
    return truth


# The page -----------------------------------------------------------------------------------------


@contextmanager
def served(work: Path) -> Iterator[str]:
    """Yield the address of ``semigpc open photos``; Ctrl-C ends it afterwards."""
    command = [sys.executable, "-m", "semigpc", "open", PHOTOS, "--no-browser"]
    with subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", file=sys.stderr)
                if line.startswith("open http"):
                    yield line.split()[-1]
                    break
        finally:
            process.send_signal(signal.SIGINT)


@contextmanager
def browser_page(address: str) -> Iterator[Any]:
    """Yield the page in Chromium, ready for keys."""
    from playwright.sync_api import sync_playwright

    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1180, "height": 760})
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        page.locator("body[data-ready]").wait_for()
        yield page
        browser.close()


def answer(page: Any, truth: Mapping[str, str]) -> str:
    """Answer the image that is shown as a person would: by a key, or by typing a new name; return
    its name.
    """
    page.locator("#stage").wait_for()
    name = str(page.locator("#stage-id").text_content())
    label = truth[name]
    shown = [one.get_attribute("data-label") for one in page.locator("#options .option").all()]
    if label in shown[:9]:
        page.keyboard.press(str(shown.index(label) + 1))
    else:
        page.keyboard.type(label)
        page.keyboard.press("Enter")
    page.wait_for_function(
        "name => document.getElementById('stage-id').textContent !== name", arg=name
    )
    return name


def current(page: Any) -> None:
    """Wait until answers are saved, counts belong to a fitted model, and the picture is there."""
    page.wait_for_function("document.getElementById('saved').textContent === 'Saved'")
    page.locator("#reward:not(.cold):not(.fitting)").wait_for()
    page.wait_for_timeout(3000)  # counts that follow the last answers
    page.wait_for_load_state("networkidle")


def sit(page: Any, truth: Mapping[str, str], answers: int, keep: Callable[[str], None]) -> set[str]:
    """Give the answers of a first sitting, and keep a picture of every step; return the names that
    were answered.
    """
    named = set()
    page.locator("#picture img").wait_for()
    keep("start")
    for number in range(answers):
        named.add(answer(page, truth))
        if number + 1 == min(EARLY, answers - 1):
            current(page)
            keep("early")
    current(page)
    keep("late")
    page.locator("#explain").click()
    page.locator("#guarantee[open]").wait_for()
    keep("guaranteed")
    page.keyboard.press("Escape")
    page.locator("#mode-grid").click()
    page.locator("#cards img").first.wait_for()
    page.wait_for_load_state("networkidle")
    keep("check")
    page.locator("#use").click()
    page.locator("#leaving[open]").wait_for()
    keep("export")
    return named


def save(shot: bytes, path: Path) -> None:
    """Write a picture as a JPEG of MOST_BYTES at most."""
    image = Image.open(BytesIO(shot)).convert("RGB")
    for quality in (88, 80, 70, 60, 50):
        image.save(path, quality=quality, optimize=True, subsampling=0 if quality > 70 else 2)
        if path.stat().st_size <= MOST_BYTES:
            return
    raise SystemExit(f"{path} is larger than {MOST_BYTES} bytes.")


# What came of it ----------------------------------------------------------------------------------


def run(work: Path, *command: str) -> None:
    """Run a command of the page."""
    print("semigpc", *command, file=sys.stderr)
    subprocess.run([sys.executable, "-m", "semigpc", *command], cwd=work, check=True)


def judged(path: Path, truth: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return for each grade how many rows of a table reach it, and how many of these guesses are
    right; only rows of ``truth`` count.
    """
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if Path(row["file_name"]).name in truth]
    figures = []
    for grade in (0.99, 0.95, 0.9, 0.8, 0.0):
        reached = [row for row in rows if float(row["grade"] or 0) >= grade]
        right = sum(row["guess"] == truth[Path(row["file_name"]).name] for row in reached)
        figures.append({"grade": grade, "rows": len(reached), "right": right})
    return figures


def walk(source: Path, out: Path, count: int, answers: int) -> dict[str, Any]:
    """Do what the page describes, write its pictures to ``out``, and return the figures."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="semigpc-walkthrough-") as name:
        work = Path(name)
        truth = copy_photographs(source, work, count)
        with served(work) as address, browser_page(address) as page:
            keep = lambda step: save(page.screenshot(), out / f"{step}.jpg")  # noqa: E731
            named = sit(page, truth, answers, keep)
        run(work, "predict", LABELLED, PHOTOS, "--out", "all.csv")
        run(work, "predict", LABELLED, "new_photos", "--out", "new.csv")
        run(work, "export", LABELLED, "--out", "model.onnx")
        return {
            "photographs": count,
            "answers": answers,
            "rest": judged(work / "all.csv", {k: v for k, v in truth.items() if k not in named}),
            "new": judged(work / "new.csv", truth),
            "onnx_bytes": (work / "model.onnx").stat().st_size,
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path, help="one sub-folder for each class")
    parser.add_argument("--out", type=Path, default=Path("docs/images/walkthrough"))
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--answers", type=int, default=ANSWERS)
    wanted = parser.parse_args()
    print(json.dumps(walk(wanted.photos, wanted.out, wanted.count, wanted.answers), indent=1))
