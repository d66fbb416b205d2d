from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from semigpc.review.app import MOST_BYTES
from semigpc.review.session import Session
from tests.review.shapes import HTML_NAME, LINK_NAME, OUTSIDE, TEXT_NAME

starlette = pytest.importorskip("starlette.testclient", reason="the extra review is not installed")
from semigpc.review.app import make_app  # noqa: E402

TOKEN = "a-secret"
HOST = "http://127.0.0.1:1234"


@pytest.fixture
def client(session: Session) -> Iterator[Any]:
    options = {
        "base_url": f"{HOST}/{TOKEN}/",
        "follow_redirects": False,
        "raise_server_exceptions": False,
    }
    with starlette.TestClient(make_app(session, TOKEN), **options) as client:
        yield client


def post(client: Any, question: str, **body: Any) -> httpx.Response:
    response: httpx.Response = client.post(f"api/{question}", json=body)
    return response


def rows_of(client: Any, **filters: Any) -> list[int]:
    return [card["row"] for card in post(client, "cards", **filters).json()["cards"]]


def row_named(session: Session, name: str) -> int:
    return session.project.ids.index(name)


def test_the_page_and_all_that_it_loads_are_there(client: Any) -> None:
    page = client.get("")
    assert page.status_code == 200
    assert "<script" in page.text
    for path in (
        "static/app.js",
        "static/page.css",
        "static/cards.css",
        "static/dialogs.css",
        "static/icons.svg",
        "static/icon.svg",
    ):
        assert path in page.text
        assert client.get(path).status_code == 200
    assert client.get("static/app.js").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("path", ["", "static/app.js", "api/about", "images/96/0", "api/cards"])
@pytest.mark.parametrize("token", ["wrong", "", "a-secre", "a-secret2", "A-SECRET", "%61-secreT"])
def test_without_the_token_nothing_is_served(client: Any, path: str, token: str) -> None:
    refused = client.get(f"{HOST}/{token}/{path}")
    assert refused.status_code == 403
    assert "Copy the whole address that `semigpc review` printed" in refused.text
    assert client.post(f"{HOST}/{token}/{path}", json={}).status_code == 403


def test_the_token_alone_leads_to_the_page(client: Any) -> None:
    answer = client.get(f"{HOST}/{TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (307, f"/{TOKEN}/")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:1234", "127.0.0.1.evil.example", "", "[::1]", "localhost@evil"],
)
def test_another_host_is_refused_so_that_no_name_can_be_pointed_here(
    client: Any, host: str
) -> None:
    refused = client.get("api/about", headers={"host": host})
    assert refused.status_code == 403
    assert "127.0.0.1 and localhost alone" in refused.text


def test_localhost_is_this_machine(client: Any) -> None:
    assert client.get("api/about", headers={"host": "localhost:1234"}).status_code == 200


def test_every_answer_carries_the_headers_that_keep_others_out(client: Any) -> None:
    for answer in (
        client.get(""),
        client.get("api/about"),
        client.get(f"{HOST}/wrong/"),
        client.get("images/96/1"),
    ):
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in answer.headers
    assert client.get("api/about").headers["cache-control"] == "no-store"
    assert client.get("").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "images/96/..%2F..%2Fsecret.png",
        "images/96/../../../secret.png",
        "images/96/%2e%2e/%2e%2e/secret.png",
        "images/96//etc/hostname",
        "images/96/-1",
        "images/96/100000",
        "images/97/0",
        "images/0",
        "static/../app.py",
        "static/..%2Fapp.py",
        "static/%2e%2e/app.py",
        "static//etc/hostname",
        "photos/a/000.png",
    ],
)
def test_no_path_leads_to_another_file(client: Any, path: str) -> None:
    assert client.get(f"{HOST}/{TOKEN}/{path}").status_code in (403, 404)


@pytest.mark.parametrize("name", [LINK_NAME, *OUTSIDE])
def test_images_outside_of_the_folder_are_not_served(
    client: Any, session: Session, name: str
) -> None:
    answer = client.get(f"images/384/{row_named(session, name)}")
    assert answer.status_code == 415
    assert answer.json() == {"error": "There is no image of this row in the folder of images."}


def test_a_text_file_named_as_a_image_is_told_and_harms_nothing(
    client: Any, session: Session
) -> None:
    answer = client.get(f"images/384/{row_named(session, TEXT_NAME)}")
    assert (answer.status_code, answer.json()) == (415, {"error": "This image cannot be read."})
    assert client.get("images/384/0").headers["content-type"] == "image/jpeg"


def test_a_name_of_html_travels_as_text(client: Any, session: Session) -> None:
    answer = post(client, "cards", status="all", text="<img")
    (card,) = answer.json()["cards"]
    assert card["id"] == HTML_NAME
    assert answer.headers["content-type"] == "application/json"
    assert client.get(f"images/96/{row_named(session, HTML_NAME)}").status_code == 200


def test_answers_change_the_session_and_come_back_with_cards(client: Any, session: Session) -> None:
    first, second, third, *more = rows_of(client)
    believed = session.beliefs.label(first)
    view = {
        "visible": [first, second, third, *more],
        "since": session.beliefs.clock,
        "choices": [second],
    }
    accepted = post(client, "accept", rows=[first], versions=[0], labels=[believed], **view).json()
    assert {card["row"]: card["answer"] for card in accepted["cards"]}[first] == "accepted"
    assert list(accepted["choices"]) == [str(second)]
    assert accepted["undo"] == {
        "step": 1,
        "action": "accept",
        "ids": [session.project.ids[first]],
        "count": 1,
    }
    assert (
        post(client, "correct", row=second, version=0, label="brand new", **view).status_code == 200
    )
    assert post(client, "skip", row=third, version=0, **view).json()["progress"]["reviewed"] == 3
    assert post(client, "undo", step=3, **view).json()["progress"]["reviewed"] == 2
    assert session.card(second)["label"] == "brand new"


def test_a_stale_answer_gets_the_fresh_card(client: Any) -> None:
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


@pytest.mark.parametrize(
    ("question", "body"),
    [
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
        (
            "accept",
            {"rows": list(range(1001)), "versions": [0] * 1001, "labels": ["circle"] * 1001},
        ),
        ("cards", {"status": "lost"}),
        ("cards", {"label": 3}),
        ("cards", {"least": "low"}),
        ("cards", {"seen": "all"}),
        ("refresh", {"visible": [0.5]}),
    ],
)
def test_questions_that_cannot_be_meant_are_refused_and_change_nothing(
    client: Any, session: Session, question: str, body: dict[str, Any]
) -> None:
    refused = post(client, question, **body)
    assert refused.status_code == 400
    assert refused.json()["error"]
    assert session.history.steps == 0


def test_requests_that_are_no_json_or_too_long_are_refused(client: Any) -> None:
    assert client.post("api/cards", content=b"{").status_code == 400
    assert client.post("api/cards", content=b"[]").status_code == 400
    assert client.post("api/cards", content=b" " * (MOST_BYTES + 1)).status_code == 413
    assert client.get("api/cards").status_code == 405
    assert client.get("api/nothing").status_code == 404


def test_an_answer_that_cannot_be_saved_is_told(
    client: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(session.journal, "append", full)
    refused = post(client, "skip", row=1, version=0)
    assert refused.status_code == 507
    assert "could not be saved: No space left on device" in refused.json()["error"]
    assert session.card(1)["answer"] is None


def test_what_was_not_foreseen_is_told(
    client: Any,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(session.beliefs.model, "partial_fit", lambda *_, **__: 1 / 0)
    refused = post(client, "correct", row=rows_of(client)[0], version=0, label="square")
    assert refused.status_code == 500
    assert "ZeroDivisionError: division by zero. What was saved is kept" in refused.json()["error"]
    assert "Traceback" in capsys.readouterr().err


def test_export_writes_beside_the_reviews(client: Any, session: Session) -> None:
    written = post(client, "export").json()
    assert written["rows"] == len(session)
    assert [path.rsplit("/", 1)[1] for path in written["files"]] == [
        "reviewed.parquet",
        "reviewed.csv",
        "reviewed_labels.csv",
    ]
