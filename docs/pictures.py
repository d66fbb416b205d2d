"""Take the two pictures of ``semigpc open`` in the README: the first image, and work in progress.

    python docs/pictures.py PHOTOS [--answers 60] [--wait 3]

PHOTOS has one folder per class. Its images are linked into a folder without classes, the page is
opened on it in Chromium, and every question is answered by the folder that the image came from. At
the end the answers to all images are compared with the guarantees on the page, which is printed for
the caption. Needs playwright and Chromium.
"""

import argparse
import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

IMAGES = Path(__file__).parent / "images"
WIDTH = 1280
HEIGHT = 800
SAVED = (1024, 640)  # pixels
COLOURS = (256, 192, 128, 96, 64)  # of a picture, fewer until it is small enough
MOST_BYTES = 150_000
SETTLED = 25  # seconds: an idle page fits a last model, which takes some


def link_images(photos: Path, folder: Path) -> dict[str, str]:
    """Link the images of class folders into one folder; return the class of each by its name."""
    folder.mkdir()
    truth = {}
    files = sorted(path for path in photos.glob("*/*") if path.is_file())
    for number, path in enumerate(files):
        name = f"img_{number:04d}{path.suffix.lower()}"
        (folder / name).symlink_to(path.resolve())
        truth[name] = path.parent.name
    return truth


def serve(folder: Path) -> tuple["subprocess.Popen[str]", str]:
    """Start ``semigpc open`` and return its process and address."""
    command = [sys.executable, "-m", "semigpc", "open", str(folder), "--no-browser"]
    process = subprocess.Popen(
        [*command, "--follow-links"], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("open http"):
            return process, line.split()[-1]
    raise SystemExit("semigpc open ended before it had an address.")


def answer(page: Any, truth: dict[str, str]) -> None:
    """Answer the image that is shown, by its key or by typing its class."""
    name = page.locator("#stage-id").text_content()
    known = page.locator("#options .option").evaluate_all(
        "all => all.map((option) => option.dataset.label)"
    )
    if truth[name] in known[:9]:
        page.keyboard.press(str(known.index(truth[name]) + 1))
    else:
        page.keyboard.type(truth[name])
        page.keyboard.press("Enter")
    page.wait_for_function(
        "name => document.getElementById('ask').hidden || "
        "document.getElementById('stage-id').textContent !== name",
        arg=name,
    )


LOADED = """() => [...document.querySelectorAll("#work img, #cards img")].every((image) => {
    const { width, top, bottom } = image.getBoundingClientRect();
    const seen = width > 0 && bottom > 0 && top < innerHeight;
    return !seen || (image.complete && image.naturalWidth > 0);
})"""


def settle(page: Any) -> None:
    """Wait until the counts have not changed for SETTLED seconds."""
    page.locator("#reward:not(.cold):not(.fitting)").wait_for()
    before = ""
    while before != (now := page.locator("#grades").inner_text()):
        before = now
        page.wait_for_timeout(1000 * SETTLED)


def take(page: Any, path: Path) -> None:
    """Save what the page shows, with few colours so that the file is small."""
    page.wait_for_function(LOADED)
    page.screenshot(path=path)
    with Image.open(path) as shot:
        image = shot.convert("RGB").resize(SAVED, Image.Resampling.LANCZOS)
    for colours in COLOURS:  # an octree keeps the few pixels of a rare colour
        few = image.quantize(colours, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
        if path.stat().st_size <= MOST_BYTES:
            break
    print(f"wrote {path}: {path.stat().st_size / 1000:.0f} kB")


def sit(address: str, truth: dict[str, str], answers: int, wait: float) -> None:
    """Answer as a person would, and take both pictures."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(120_000)
        page.goto(address)
        page.locator("body[data-ready]").wait_for()
        take(page, IMAGES / "open_cold.png")
        for _ in range(answers):
            answer(page, truth)
            page.wait_for_timeout(1000 * wait)
        settle(page)
        take(page, IMAGES / "open_work.png")
        grades = page.locator("#grades").inner_text().split()
        print(f"the header: {' '.join(grades)}; {page.locator('#outlook').inner_text()}")
        browser.close()


def check(out: Path, truth: dict[str, str]) -> None:
    """Print how many of the guaranteed labels are right, from the export that the page leaves."""
    with (out / "exports" / "labels.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] != "labelled"]
    for precision in (0.99, 0.95, 0.9, 0.8, 0.0):
        reached = [row for row in rows if float(row["grade"] or 0) >= precision - 1e-6]
        right = sum(row["guess"] == truth[row["file_name"]] for row in reached)
        print(f"guaranteed at {precision:.0%}: {len(reached)}, of which {right} are right")


def main() -> None:
    """Take both pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--answers", type=int, default=60)
    parser.add_argument("--wait", type=float, default=3.0, help="seconds between answers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "photos"
        truth = link_images(options.photos, folder)
        process, address = serve(folder)
        try:
            sit(address, truth, options.answers, options.wait)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
        check(Path(place) / "photos-labelled", truth)


if __name__ == "__main__":
    main()
