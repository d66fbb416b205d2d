import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from PIL import Image

from semigpc.io import images
from semigpc.io.errors import ImageError
from semigpc.review.session import Session
from tests.review.shapes import HTML_NAME, LINK_NAME, OUTSIDE, TEXT_NAME

starlette = pytest.importorskip("starlette.testclient", reason="the extra review is not installed")
from semigpc.review import app  # noqa: E402
from semigpc.review.app import MOST_BYTES, Thumbnails, make_app  # noqa: E402

TOKEN = "a-secret"
PORT = 1234
HOST = f"http://127.0.0.1:{PORT}"
LOADED = ("app.js", "page.css", "cards.css", "dialogs.css", "icons.svg", "icon.svg")


@pytest.fixture
def client(session: Session) -> Iterator[Any]:
    options = {"follow_redirects": False, "raise_server_exceptions": False}
    address = f"{HOST}/{TOKEN}/"
    guarded = make_app(session, TOKEN, PORT)
    with starlette.TestClient(guarded, base_url=address, **options) as client:
        yield client


def post(client: Any, question: str, **body: Any) -> httpx.Response:
    response: httpx.Response = client.post(f"api/{question}", json=body)
    return response


def rows_of(client: Any, **filters: Any) -> list[int]:
    return [card["row"] for card in post(client, "cards", **filters).json()["cards"]]


def row_named(session: Session, name: str) -> int:
    return session.project.ids.index(name)


# Who may ask, and for what --------------------------------------------------------------------


def test_the_page_and_all_that_it_loads_are_there(client: Any) -> None:
    page = client.get("")
    assert page.status_code == 200
    assert "<script" in page.text
    for name in LOADED:
        assert f"static/{name}" in page.text
        assert client.get(f"static/{name}").status_code == 200
    assert client.get("static/app.js").headers["content-type"].startswith("text/javascript")


def test_without_the_token_nothing_is_served(client: Any) -> None:
    for token in ("wrong", "", "a-secre", "a-secret2", "A-SECRET", "%61-secreT"):
        for path in ("", "static/app.js", "api/about", "images/96/0", "api/cards"):
            refused = client.get(f"{HOST}/{token}/{path}")
            assert refused.status_code == 403, (token, path)
            assert "Copy the whole address that `semigpc review` printed" in refused.text
            assert client.post(f"{HOST}/{token}/{path}", json={}).status_code == 403


def test_the_token_alone_leads_to_the_page(client: Any) -> None:
    response = client.get(f"{HOST}/{TOKEN}")
    assert (response.status_code, response.headers["location"]) == (307, f"/{TOKEN}/")


OTHER_HOSTS = (
    *("evil.example", "evil.example:1234", "127.0.0.1.evil.example:1234", "", "10.0.0.1:1234"),
    *("user:pw@localhost:1234", "localhost:1234@evil", "localhost:1234#x", "localhost:1234/x"),
    *("localhost:1234, evil.com", "localhost, evil.com", "localhost:1234 evil", "localhost."),
    *("localhost", "127.0.0.1", "[::1]", "localhost:", "localhost:80", "localhost:99999"),
    *("localhost:01234", "localhost:+1234", "[::1]:1235", "[::1", "[", "::1:1234"),
)
OTHER_ORIGINS = (
    *("http://evil.example", "https://127.0.0.1:1234", "http://localhost:1234", ""),
    "http://127.0.0.1:8888",  # another server of this machine
    "null",  # a file, or a frame without rights
)


def test_only_this_machine_with_the_port_of_the_server_is_a_host(client: Any) -> None:
    for host in OTHER_HOSTS:
        refused = client.get("api/about", headers={"host": host})
        assert refused.status_code == 403, host
        assert "localhost:1234" in refused.text
        assert "same port" in refused.text
    for name in ("127.0.0.1", "localhost", "[::1]", "LocalHost"):
        headers = {"host": f"{name}:{PORT}"}
        assert client.get("api/about", headers=headers).status_code == 200, name


def test_only_port_80_may_be_left_out(session: Session) -> None:
    with starlette.TestClient(make_app(session, TOKEN, 80)) as client:
        for host, status in (("localhost", 200), ("localhost:80", 200), ("localhost:1234", 403)):
            response = client.get(f"/{TOKEN}/api/about", headers={"host": host})
            assert response.status_code == status, host


def test_a_request_from_another_page_is_refused(client: Any) -> None:
    for origin in OTHER_ORIGINS:
        assert client.post("api/cards", json={}, headers={"origin": origin}).status_code == 403
        twice = [("origin", HOST), ("origin", origin)]
        assert client.get("api/about", headers=twice).status_code == 403, origin
    assert client.post("api/cards", json={}, headers={"origin": HOST}).status_code == 200


def test_every_response_has_the_headers_that_keep_others_out(client: Any) -> None:
    for path in ("", "api/about", f"{HOST}/wrong/", "images/96/1"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    assert client.get("api/about").headers["cache-control"] == "no-store"
    assert client.get("").headers["cache-control"] == "no-store"


def test_no_path_leads_to_another_file(client: Any) -> None:
    for path in (
        *("images/96/..%2F..%2Fsecret.png", "images/96/../../../secret.png"),
        *("images/96/%2e%2e/%2e%2e/secret.png", "images/96//etc/hostname"),
        *("images/96/-1", "images/96/100000", "images/97/0", "images/0"),
        *("static/../app.py", "static/..%2Fapp.py", "static/%2e%2e/app.py"),
        *("static//etc/hostname", "photos/a/000.png"),
    ):
        assert client.get(f"{HOST}/{TOKEN}/{path}").status_code in (403, 404), path


def test_images_outside_of_the_folder_and_unreadable_ones_are_an_error(
    client: Any, session: Session
) -> None:
    for name in (LINK_NAME, *OUTSIDE):
        response = client.get(f"images/384/{row_named(session, name)}")
        assert response.status_code == 415
        assert response.json()["error"].startswith("There is no image of this row")
    response = client.get(f"images/384/{row_named(session, TEXT_NAME)}")
    assert (response.status_code, response.json()) == (415, {"error": "This image cannot be read."})
    assert client.get("images/384/0").headers["content-type"] == "image/jpeg"


def test_a_name_of_html_travels_as_text(client: Any, session: Session) -> None:
    response = post(client, "cards", status="all", text="<img")
    (card,) = response.json()["cards"]
    assert card["id"] == HTML_NAME
    assert response.headers["content-type"] == "application/json"
    assert client.get(f"images/96/{row_named(session, HTML_NAME)}").status_code == 200


# Questions ------------------------------------------------------------------------------------


def test_answers_change_the_session_and_return_cards(client: Any, session: Session) -> None:
    rows = rows_of(client)
    first, second, third = rows[:3]
    label = session.model.label(first)
    view = {"visible": rows, "since": session.model.clock, "choices": [second]}
    accepted = post(client, "accept", rows=[first], versions=[0], labels=[label], **view).json()
    assert {card["row"]: card["answer"] for card in accepted["cards"]}[first] == "accepted"
    assert list(accepted["choices"]) == [str(second)]
    ids = [session.project.ids[first]]
    assert accepted["undo"] == {"step": 1, "action": "accept", "ids": ids, "count": 1}
    assert post(client, "correct", row=second, version=0, label="new", **view).status_code == 200
    assert post(client, "skip", row=third, version=0, **view).json()["progress"]["reviewed"] == 3
    assert post(client, "undo", step=3, **view).json()["progress"]["reviewed"] == 2
    assert session.card(second)["label"] == "new"


def test_a_stale_answer_gets_the_current_card(client: Any) -> None:
    row = rows_of(client)[0]
    assert post(client, "correct", row=row, version=0, label="square").status_code == 200
    for question, body in (
        ("correct", {"row": row, "version": 0, "label": "circle"}),
        ("skip", {"row": row, "version": 0}),
        ("accept", {"rows": [row], "versions": [0], "labels": ["circle"]}),
    ):
        stale = post(client, question, **body)
        assert stale.status_code == 409
        assert "answered elsewhere" in stale.json()["error"]
        (card,) = stale.json()["cards"]
        assert (card["row"], card["label"], card["version"]) == (row, "square", 1)
    assert post(client, "skip", row=row, version=1).status_code == 200
    assert post(client, "undo", step=1).status_code == 409


TOO_MANY = {"rows": [*range(1001)], "versions": [0] * 1001, "labels": ["circle"] * 1001}


def test_invalid_questions_are_refused_and_change_nothing(client: Any, session: Session) -> None:
    for question, body in (
        ("correct", {"row": 1, "version": 0}),
        ("correct", {"row": "1", "version": 0, "label": "circle"}),
        ("correct", {"row": True, "version": 0, "label": "circle"}),
        ("correct", {"row": 10**9, "version": 0, "label": "circle"}),
        ("correct", {"row": 1, "version": 0, "label": ""}),
        ("correct", {"row": 1, "version": 0, "label": ["circle"]}),
        ("skip", {"row": -1, "version": 0}),
        ("skip", {"row": 1}),
        ("accept", {"rows": [1, 1], "versions": [0, 0], "labels": ["circle", "circle"]}),
        ("accept", {"rows": [1], "versions": [], "labels": ["circle"]}),
        ("accept", {"rows": [1], "versions": [0], "labels": [None]}),
        ("accept", TOO_MANY),
        ("cards", {"status": "lost"}),
        ("cards", {"label": 3}),
        ("cards", {"least": "low"}),
        ("cards", {"seen": "all"}),
        ("refresh", {"visible": [0.5]}),
    ):
        refused = post(client, question, **body)
        assert refused.status_code == 400, (question, body)
        assert refused.json()["error"]
    assert session.history.steps == 0
    assert client.post("api/cards", content=b"{").status_code == 400
    assert client.post("api/cards", content=b"[]").status_code == 400
    assert client.post("api/cards", content=b" " * (MOST_BYTES + 1)).status_code == 413
    assert client.get("api/cards").status_code == 405
    assert client.get("api/nothing").status_code == 404


def test_an_answer_that_cannot_be_saved_is_reported(
    client: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(session.journal, "append", full)
    refused = post(client, "skip", row=1, version=0)
    assert refused.status_code == 507
    assert "not saved: No space left on device" in refused.json()["error"]
    assert session.card(1)["answer"] is None


def test_an_unexpected_error_is_reported(
    client: Any,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(session.model.classifier, "partial_fit", lambda *_, **__: 1 / 0)
    refused = post(client, "correct", row=rows_of(client)[0], version=0, label="square")
    assert refused.status_code == 500
    assert "ZeroDivisionError: division by zero. What was saved is kept" in refused.json()["error"]
    assert "Traceback" in capsys.readouterr().err


def test_export_writes_beside_the_reviews(client: Any, session: Session) -> None:
    written = post(client, "export", format="parquet").json()
    assert written["rows"] == len(session)
    names = [path.rsplit("/", 1)[1] for path in written["files"]]
    assert names == ["labels.parquet"]


# Thumbnails -----------------------------------------------------------------------------------


def thumbnails_of(path: Path) -> Thumbnails:
    project: Any = SimpleNamespace(image=lambda _: path)
    return Thumbnails(project)


def thumbnail(path: Path, size: int = 384) -> Image.Image:
    return Image.open(io.BytesIO(thumbnails_of(path).get(0, size)))


def test_an_image_is_made_small_but_never_large(tmp_path: Path) -> None:
    Image.new("RGB", (1000, 500), "red").save(tmp_path / "a.jpg")
    Image.new("RGB", (20, 10), "red").save(tmp_path / "b.png")
    assert thumbnail(tmp_path / "a.jpg").size == (384, 192)
    assert thumbnail(tmp_path / "a.jpg", 96).size == (96, 48)
    assert thumbnail(tmp_path / "b.png").size == (20, 10)


def test_a_bomb_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (1200, 1200)).save(path)
    monkeypatch.setattr(images, "MOST_PIXELS", 1_000_000)
    with pytest.raises(ImageError, match=r"bomb\.png .*1440000 .*1000000"):
        thumbnails_of(path).get(0, 96)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # Pillow's own limit
    with pytest.raises(ImageError, match=r"bomb\.png .*1440000 .*2000"):
        thumbnails_of(path).get(0, 96)


def test_a_broken_image_is_reported_without_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.effect_noise((200, 200), 50).save(path)
    cut_off = path.read_bytes()[:1500]
    for content in (b"", b"text", b"\x89PNG\r\n\x1a\n broken", b"\xff\xd8\xff\xe0 broken", cut_off):
        path.write_bytes(content)
        with pytest.raises(ImageError, match=r"^This image cannot be read\.$"):
            thumbnails_of(path).get(0, 96)


def test_the_cache_stays_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    Image.effect_noise((200, 200), 50).save(path)
    monkeypatch.setattr(app, "THUMBNAIL_CACHE_BYTES", 40_000)
    served = thumbnails_of(path)
    size = len(served.get(0, 384))
    for row in range(10):
        served.get(row, 384)
        assert 0 < sum(map(len, served._cache.values())) <= 40_000
    assert len(served._cache) == 40_000 // size
    path.unlink()
    assert served.get(9, 384), "from memory"
    with pytest.raises(ImageError, match="no longer there"):
        served.get(0, 96)
