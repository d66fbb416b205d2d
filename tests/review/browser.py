"""A headless Chromium, and the server as a user starts it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from semigpc.review.session import open_session

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# milliseconds: as long as a busy machine may take, and no test waits that long for nothing
PATIENCE = 120_000


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, or the reason to skip."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    playwright.expect.set_options(timeout=PATIENCE)
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class Server:
    """``python -m semigpc review OUT``, or ``open``, in a process of its own."""

    def __init__(self, out: Path, *options: str, verb: str = "review") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "semigpc", verb, str(out), "--no-browser", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._ended: tuple[str, str] | None = None
        self.address = self._address()

    def _address(self) -> str:
        assert self.process.stdout is not None
        too_long = threading.Timer(PATIENCE / 1000, self.process.kill)
        too_long.start()
        try:
            for line in iter(self.process.stdout.readline, ""):
                if line.startswith("open http"):
                    return line.split()[-1]
        finally:
            too_long.cancel()
        _, errors = self.end(9)
        raise AssertionError(f"the server did not start: {errors}")

    def end(self, number: int) -> tuple[str, str]:
        """Signal it, and what it has printed."""
        if self._ended is None:
            if self.process.poll() is None:
                self.process.send_signal(number)
            self._ended = self.process.communicate(timeout=PATIENCE / 1000)
        return self._ended


@contextmanager
def served_here(out: Path, *, learns: bool = True) -> Iterator[str]:
    """The address of the same server on a thread of this process, which starts at once.

    Without ``learns`` the model stays what the folder holds.
    """
    import uvicorn

    from semigpc.cli.tables import use_commands
    from semigpc.review.app import Background, make_app

    session = open_session(out)
    worker = Background(session)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        commands = use_commands(out, of_images=session.project.images is not None)
        app = make_app(session, "token", port, commands)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        if learns:
            worker.start()
        try:
            yield f"http://127.0.0.1:{port}/token/"
        finally:
            if learns:
                worker.stop()
            server.should_exit = True
            thread.join()
            session.close()


def journal(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "reviews.jsonl").read_text().splitlines()]


def _close(page: Any, dialog: Any) -> None:
    if dialog.type == "beforeunload":  # some answers have not been sent
        dialog.accept()
        return
    page.problems.append(dialog.message)
    dialog.dismiss()


def expect(what: Any) -> Any:
    from playwright.sync_api import expect as playwright_expect

    return playwright_expect(what)


def open_page(browser: Any, address: str, *, width: int = 1280, height: int = 860) -> Any:
    """A page that is ready for keys; whatever goes wrong in it fails the test."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(PATIENCE)
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("dialog", lambda dialog: _close(page, dialog))
    page.goto(address)
    page.locator("body[data-ready]").wait_for()
    return page
