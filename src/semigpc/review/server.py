"""The server: one process, this machine alone, and a thread that works when nobody is waiting."""

import logging
import secrets
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from semigpc.data import DataError
from semigpc.review.session import Session

HOST = "127.0.0.1"
IDLE = 1.5  # seconds without an answer by a human, after which rows that nobody looks at are scored again
PAUSE = 0.02  # between two pieces of that work, for whoever waits
# The same parser on every machine, whatever else is installed there. It is silent: a request that is no HTTP gets an answer of
# 400, and the application prints its own errors.
OPTIONS: dict[str, Any] = {"http": "h11", "ws": "none", "lifespan": "off", "log_level": "critical", "access_log": False}


def serve(session: Session, *, port: int = 0, ready: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Args:
        session: what is reviewed.
        port: 0 for any that is free.
        ready: told the address, secret and all, when the server listens.

    Raises:
        DataError: the port is taken.
    """
    import uvicorn

    from semigpc.review.app import make_app

    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # which reports what uvicorn raises on nonsense after an answer
    token = secrets.token_urlsafe(24)
    listener = _listen(port)
    config = uvicorn.Config(make_app(session, token), **OPTIONS, timeout_graceful_shutdown=2)
    worker = Background(session)
    before = signal.signal(signal.SIGTERM, _interrupt)  # the server stops for either signal, and then raises it again
    try:
        worker.start()
        ready(f"http://{HOST}:{listener.getsockname()[1]}/{token}/")
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        worker.stop()
        listener.close()


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise DataError(
            f"Port {port} of {HOST} cannot be used: {error.strerror or error}. Give another --port, or leave it out to have a "
            "free one chosen."
        ) from error
    listener.listen(128)
    return listener


class Background(threading.Thread):
    """Scores rows again that nobody looks at, a few at a time, once nobody has answered for a moment."""

    def __init__(self, session: Session) -> None:
        super().__init__(name="review-background", daemon=True)
        self.session = session
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until stopped."""
        steps, more = -1, True
        while not self._stopped.wait(PAUSE if more and steps == self.session.history.steps else IDLE):
            if steps != self.session.history.steps:
                steps, more = self.session.history.steps, True  # wait a moment longer: the next answer may be on its way
            elif more:
                more = self.session.catch_up()

    def stop(self) -> None:
        """And wait for the piece of work that is being done."""
        self._stopped.set()
        self.join()
