"""The server under requests that no page sends: each is answered, and nothing is printed."""

import json
import random
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from semigpc.review.session import open_session
from tests import fuzzing
from tests.review.browser import Server

pytest.importorskip("uvicorn", reason="the extra review is not installed")
PATIENCE = 60  # seconds for an answer that must come
LITTLE = 0.2  # seconds for one that may not come, as what was sent may be half a request
HUGE: tuple[Any, ...] = (2**63, 2**64, -(2**63) - 1, 10**4000)
ODD_VALUES: tuple[Any, ...] = (*HUGE, -1, 1.5, True, None, "1", [], {}, [[]])
TEXTS = (
    *("\ud800", "\udcff", "a\x00b", "\x1b]0;title\x07", "\u202e", "x" * 900_000, "é" * 4097),
    *("", " ", "-1.0", "[/b]", "=1+1"),
)
NUMBERS = ("9223372036854775808", "1e999", "NaN", "Infinity", "-Infinity", "9" * 5000, "-1")
CORRECT = {"row": 3, "version": 0, "label": "square"}
CARDS: dict[str, Any] = {
    "status": "all",
    "label": None,
    "text": "",
    "least": 0,
    "most": 1,
    "sort": "need",
    "count": 5,
    "seen": [],
}
ACCEPT = {"rows": [1, 2], "versions": [0, 0], "labels": ["circle", "square"]}
VIEW = {"visible": [1, 2], "since": 0, "choices": [1]}
BODIES: dict[str, dict[str, Any]] = {
    "cards": CARDS,
    "accept": ACCEPT | VIEW,
    "correct": CORRECT | VIEW,
    "skip": {"row": 3, "version": 0} | VIEW,
    "undo": {"step": 1} | VIEW,
    "refresh": VIEW,
}


class Client:
    """Sends bytes to a server, and returns what comes back."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.host, self.port, self.token = parts.hostname, parts.port, parts.path.strip("/")
        self.name = parts.netloc

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=PATIENCE)

    def head(self, method: str, path: str, *headers: str, host: str = "") -> bytes:
        lines = (
            f"{method} /{self.token}/{path} HTTP/1.1",
            f"Host: {host or self.name}",
            *headers,
            "Connection: close",
            "",
            "",
        )
        return "\r\n".join(lines).encode()

    def post(self, path: str, body: bytes) -> bytes:
        return self.head("POST", path, f"Content-Length: {len(body)}") + body

    def send(self, request: bytes, *, patience: float = PATIENCE) -> tuple[int, bytes]:
        """Status and content; (0, b"") if the server waits for more, or has closed."""
        with self.connect() as link:
            link.settimeout(patience)
            answer = b""
            with suppress(OSError):  # it has read enough, and its answer may be there
                link.sendall(request)
            with suppress(OSError):
                while received := link.recv(65536):
                    answer += received
        head, _, content = answer.partition(b"\r\n\r\n")
        return (int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0), content


@pytest.fixture(scope="module")
def out(labelled_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile") / "shapes"
    shutil.copytree(labelled_once, root, symlinks=True)
    return root / "out"


@pytest.fixture(scope="module")
def server(out: Path) -> Iterator[Server]:
    """Ended while a request is half sent: prints no error, and its folder can be opened again."""
    running = Server(out)
    client = Client(running.address)
    try:
        yield running
    finally:
        with client.connect() as link:
            link.sendall(client.post("api/cards", json.dumps(CARDS).encode())[:-3])
            _, errors = running.end(signal.SIGTERM)
    assert (running.process.returncode, errors) == (0, "")
    open_session(out).close()


def nested(depth: int) -> bytes:
    return b'{"row": ' + b"[" * depth + b"]" * depth + b"}"


def bad_values(client: Client) -> Iterator[tuple[str, bytes]]:
    """Questions with a number or a text that no page sends."""

    def post(question: str, key: str, text: str) -> bytes:
        body = json.dumps(BODIES[question] | {key: "HERE"}).replace('"HERE"', text)
        return client.post(f"api/{question}", body.encode())

    keys = [("skip", "row"), ("skip", "version"), ("undo", "step"), ("refresh", "since")]
    keys += [("cards", "least"), ("cards", "most"), ("cards", "count")]
    for number in NUMBERS:
        for question, key in keys:
            yield f"{key} {number[:20]}", post(question, key, number)
    keys = [("correct", "label"), ("cards", "label"), ("cards", "text")]
    keys += [("cards", "status"), ("cards", "sort")]
    for text in ("\ud800", "x" * 900_000):
        for question, key in keys:
            yield f"{question} {key} {text[:4]!r}", post(question, key, json.dumps(text))
        yield f"shown {text[:4]!r}", post("accept", "labels", json.dumps(["a", text]))
    label = b'{"row": 3, "version": 0, "label": "\xff"}'
    yield "bytes that are not UTF-8", client.post("api/correct", label)
    yield "depth", client.post("api/skip", nested(100_000))
    unknown_key = b'{"x": ' + nested(5000) + b"}"
    yield "depth of a key that is not known", client.post("api/refresh", unknown_key)
    yield "a body beyond the limit", client.post("api/cards", b" " * (2**20 + 1))


def bad_paths(client: Client) -> Iterator[tuple[str, bytes]]:
    """Paths and methods that lead nowhere."""
    arabic_digit = "\u0663".encode().decode("latin1")
    for path in (
        *("images/96/" + "1" * 5000, "images/" + "9" * 5000 + "/1", f"images/96/{arabic_digit}"),
        *("images/96/%31%00", "static/%00", "static/" + "a" * 5000, "static/..%2fapp.py"),
        *("static/", "%ff%fe", "api/%00"),
    ):
        yield path[:20], client.head("GET", path)
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "BREW"):
        yield method, client.head(method, "api/cards")
        yield method, client.head(method, "images/96/1")


def bad_headers(client: Client) -> Iterator[tuple[str, bytes]]:
    """Requests that are hardly HTTP."""

    def with_headers(path: str, *headers: str, host: str = "") -> bytes:
        return client.head("POST", path, *headers, host=host)

    chunked = "Transfer-Encoding: chunked"
    no_chunks = b"nonsense\r\n\r\n"
    yield "host", client.head("GET", "", host="[")
    yield "host in brackets", client.head("GET", "", host="[::1")
    yield "another port", client.head("GET", "", host="127.0.0.1:99999")
    yield "another page", client.head("GET", "", "Origin: http://evil.example")
    yield "two hosts", client.head("GET", "", f"Host: {client.name}")
    yield "a huge header", client.head("GET", "", "X-Long: " + "x" * 500_000)
    yield "many headers", client.head("GET", "", *["X-Many: x"] * 20_000)
    lengths = ("Content-Length: 2", "Content-Length: 3")
    yield "two lengths", with_headers("api/cards", *lengths) + b"{}"
    for length in ("minus two", "9" * 5000):
        yield length[:20], with_headers("api/cards", f"Content-Length: {length}") + b"{}"
    yield "chunks that are none", with_headers("api/cards", chunked) + no_chunks
    yield "chunks of a file", client.head("GET", "static/none", chunked) + no_chunks
    yield "chunks for the guard", with_headers("", chunked, host="elsewhere") + no_chunks
    yield "TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200


@pytest.mark.slow
def test_requests_that_make_no_sense_are_refused_and_nothing_is_printed(
    server: Server, out: Path
) -> None:
    client = Client(server.address)
    requests = (*bad_values(client), *bad_paths(client), *bad_headers(client))
    for name, request in requests:
        status, content = client.send(request)
        assert 400 <= status < 500, (name, status, content[:200])
        assert len(content) < 1000, name
        if content.startswith(b"{"):
            assert json.loads(content)["error"], name
    assert (out / "reviews.jsonl").read_bytes() == b""


@pytest.mark.slow
def test_clients_that_leave_or_take_their_time_disturb_nobody(server: Server) -> None:
    client = Client(server.address)
    body = json.dumps(CARDS).encode()
    request = client.post("api/cards", body)
    slow = client.connect()
    slow.sendall(request[: -len(body) + 5])
    for part in (10, len(request) - len(body), len(request) - 3):
        with client.connect() as link:
            link.sendall(request[:part])
    for _ in range(3):  # and before the answer is there
        with client.connect() as link:
            link.sendall(client.post("api/export", b""))
    upgrade = (
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    for path in ("", "static/app.js", "api/about", "nothing"):
        status, _ = client.send(
            client.head("GET", path, *upgrade).replace(b": close", b": upgrade"), patience=LITTLE
        )
        assert status in (0, 200, 404)
    assert client.send(client.head("HEAD", "static/app.js")) == (200, b"")
    assert client.send(client.head("HEAD", "images/96/1")) == (200, b"")
    slow.sendall(request[-len(body) + 5 :])
    assert slow.recv(65536).startswith(b"HTTP/1.1 200")
    slow.close()
    with client.connect() as link:  # refused already, and then nonsense
        link.sendall(
            client.head("POST", "", "Transfer-Encoding: chunked", host="elsewhere").replace(
                b": close", b": keep-alive"
            )
        )
        answer = b""
        while not answer.endswith(b"ends.\n"):
            answer += link.recv(65536)
        link.sendall(b"nonsense\r\n\r\n")
        assert link.recv(65536) == b""


def mutated(rng: random.Random, client: Client) -> bytes:
    """A request that is right but for one or two things."""
    question = rng.choice(list(BODIES))
    body = dict(BODIES[question])
    if rng.random() < 0.7:
        body[rng.choice(list(body))] = rng.choice([*ODD_VALUES, *TEXTS])
    if rng.random() < 0.2:
        body["rows"] = [rng.choice(ODD_VALUES)] * rng.randrange(3)
    request = client.post(f"api/{question}", json.dumps(body).encode())
    if rng.random() < 0.2:
        path = rng.choice(["", "static/", "images/", "api/"]) + odd_path(rng)
        request = client.head(rng.choice(["GET", "HEAD", "POST"]), path)
    if rng.random() < 0.15:
        spot = rng.randrange(min(len(request), 400))
        noise = bytes(rng.randrange(256) for _ in range(rng.randrange(4)))
        request = request[:spot] + noise + request[spot + 1 :]
    return request


def odd_path(rng: random.Random) -> str:
    pieces = ["%00", "..", "/", "%2f", "96", "1", "app.js", "%ff", "?", "#", "{}", "cards", "%"]
    return "".join(rng.choice(pieces) for _ in range(4))


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(40, marks=pytest.mark.slow),
        pytest.param(300, marks=[pytest.mark.slow, pytest.mark.nightly]),
    ],
)
def test_mutated_requests_never_get_a_500(server: Server, cases: int) -> None:
    client = Client(server.address)
    rng = random.Random(fuzzing.seed())
    statuses: set[int] = set()
    for case in range(fuzzing.cases(cases)):
        request = mutated(rng, client)
        status, content = client.send(request, patience=LITTLE)
        assert status < 500, (fuzzing.seed(), case, request[:400], content[:400])
        statuses.add(status)
    assert {200, 400} <= statuses
    status, _ = client.send(client.post("api/cards", json.dumps(CARDS).encode()))
    assert status == 200
