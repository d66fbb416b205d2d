"""The page in a real browser, on the server as a user starts it."""

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from semigpc.review.queue import Filters
from semigpc.review.session import open_session
from tests.review.browser import Server, chromium, journal, open_page, served_here
from tests.review.shapes import HTML_NAME, TEXT_NAME, make_labelled

pytestmark = pytest.mark.slow  # a browser
BIRDS = ("ruby-throated hummingbird", "black-crowned night heron", "yellow-bellied woodpeckerlings")
WRONG_LABEL, RIGHT_LABEL = BIRDS[1], BIRDS[0]  # of the first label
BROKEN_WORDS = """() => {
  const all = [...document.querySelectorAll(".card .fit")];
  const names = all.filter((element) => element.offsetParent);
  const lines = (element, start, end) => {
    const range = document.createRange();
    range.setStart(element.firstChild, start);
    range.setEnd(element.firstChild, end);
    return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size;
  };
  const words = (element) => [...element.textContent.matchAll(/[^ -]+/g)];
  const isBroken = (element, word) => lines(element, word.index, word.index + word[0].length) > 1;
  const broken = names.filter((element) => element.scrollWidth > element.clientWidth ||
    words(element).some((word) => isBroken(element, word)));
  const size = (element) => parseFloat(getComputedStyle(element).fontSize);
  return [broken.map((element) => element.textContent), names.map(size)];
}"""


def expect(what: Any) -> Any:
    from playwright.sync_api import expect as playwright_expect

    return playwright_expect(what)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def start(out: Path, browser: Any) -> Iterator[Callable[[], Server]]:
    """Starts servers; depends on the browser, so that there is none without it."""
    started: list[Server] = []

    def start() -> Server:
        started.append(Server(out))
        return started[-1]

    yield start
    for server in started:
        server.end(signal.SIGKILL)


@pytest.fixture
def address(out: Path, browser: Any) -> Iterator[str]:
    with served_here(out) as address:
        yield address


def expect_reviewed(page: Any, count: int) -> None:
    expect(page.locator("#progress-text")).to_have_text(re.compile(rf"^{count} of \d+ reviewed$"))


def current(page: Any) -> Any:
    return page.locator(".card.current")


def press(page: Any, *keys: str) -> None:
    """Keys, each of which is an answer: wait until it is saved."""
    for key in keys:
        row = current(page).get_attribute("data-row")
        page.keyboard.press(key)
        expect(page.locator(f"#card-{row}:not([data-answer='']):not(.pending)")).to_be_visible()


def answers(page: Any) -> dict[str, tuple[str, str]]:
    """What the page shows as answered: by id, the label and the kind of answer."""
    cards = page.locator(".card:not([data-answer=''])").all()
    return {
        card.locator(".foot .id").inner_text(): (
            card.locator(".believed b").inner_text(),
            card.get_attribute("data-answer"),
        )
        for card in cards
    }


def test_ten_images_by_keyboard_then_undo_reload_kill_and_restart_lose_nothing(
    out: Path, browser: Any, start: Callable[[], Server]
) -> None:
    server = start()
    page = open_page(browser, server.address)
    expect_reviewed(page, 0)
    expect(page.locator(".card")).to_have_count(60)
    expect(page.locator(".card:not(.contested)").first.locator(".reasons img")).to_have_count(3)
    expect(page.locator("#choices .choice")).to_have_count(3)

    press(page, "Enter", "Enter", "1", "2", "s", "3", "Enter")
    second = page.locator("#choices .choice").nth(1).get_attribute("data-label")
    press(page, "2")
    page.keyboard.press("c")
    page.locator("#picker-text").press_sequentially("hexagon")
    expect(page.locator("#picker-list li")).to_have_text(["Add the class “hexagon”"])
    page.keyboard.press("Enter")
    expect_reviewed(page, 9)
    press(page, "Enter")
    expect_reviewed(page, 10)
    expect(page.locator("#live")).to_contain_text("10 of ")
    lines = journal(out)
    assert [line["action"] for line in lines] == [
        *("accept", "accept", "accept", "correct", "skip"),
        *("correct", "accept", "correct", "correct", "accept"),
    ]
    assert [lines[at]["changes"][0]["after"] for at in (7, 8)] == [second, "hexagon"]

    page.keyboard.press("u")
    expect_reviewed(page, 9)
    page.keyboard.press("Control+z")
    expect_reviewed(page, 8)
    assert current(page).locator(".foot .id").inner_text() == lines[8]["changes"][0]["id"]
    expect(page.locator("#classes .name", has_text="hexagon")).to_have_count(0)
    said = answers(page)
    assert len(said) == 8

    page.reload()
    expect_reviewed(page, 8)
    server.end(signal.SIGKILL)
    page.keyboard.press("Enter")
    expect(page.locator("#banner")).to_contain_text("The server does not respond")
    expect(page.locator("#live")).to_contain_text("Not saved")
    page.close()

    server = start()
    page = open_page(browser, f"{server.address}#status=reviewed")
    expect_reviewed(page, 8)
    expect(page.locator(".card")).to_have_count(7)
    page.locator("label.status.skipped").click()
    expect(page.locator(".card")).to_have_count(1)
    after = answers(page)
    page.locator("label.status.reviewed").click()
    expect(page.locator(".card")).to_have_count(7)
    assert after | answers(page) == said
    page.keyboard.press("u")
    expect_reviewed(page, 7)
    assert page.problems == []
    page.close()
    printed, errors = server.end(signal.SIGINT)
    assert re.search(
        r"^7 of \d+ reviewed: 4 accepted, 2 corrected, 1 skipped", printed, re.MULTILINE
    )
    assert errors == ""
    assert server.process.returncode == 0


def test_two_tabs_see_each_other_and_the_first_answer_counts(
    address: str, out: Path, browser: Any
) -> None:
    first = open_page(browser, address)  # each page has a context of its own: they share nothing
    second = open_page(browser, address)
    row = current(first).get_attribute("data-row")
    assert current(second).get_attribute("data-row") == row
    # A hidden page does not ask for changes.
    second.evaluate("() => Object.defineProperty(document, 'visibilityState', { value: 'hidden' })")
    press(first, "2")
    label = first.locator(f"#card-{row} .believed b").inner_text()
    second.keyboard.press("s")  # on the card as it was
    expect(second.locator("#live")).to_contain_text("answered elsewhere in the meantime")
    expect(second.locator(f"#card-{row}")).to_have_attribute("data-answer", "corrected")
    expect(second.locator(f"#card-{row} .believed b")).to_have_text(label)
    expect_reviewed(second, 1)
    assert [line["action"] for line in journal(out)] == ["correct"]
    other = first.locator(".card[data-answer='']").first.get_attribute("data-row")
    second.locator(f"#card-{other} .believed").click()
    press(second, "Enter")
    # The first page asks for changes every few seconds.
    expect(first.locator(f"#card-{other}")).to_have_attribute("data-answer", "accepted")
    expect_reviewed(first, 2)
    assert first.problems == second.problems == []


def test_names_are_shown_as_they_are_and_broken_images_are_told(address: str, browser: Any) -> None:
    page = open_page(browser, f"{address}#status=all&text=img+src")
    expect(page.locator(".card .foot .id")).to_have_text(HTML_NAME)
    assert page.locator(".card b, .card img[src='x']").all_inner_texts() != [HTML_NAME]
    assert page.locator("img[src='x']").count() == 0
    page.keyboard.press("c")
    page.locator("#picker-text").fill("<script>alert(2)</script>")
    page.keyboard.press("Enter")
    expect(page.locator(".card .believed b")).to_have_text("<script>alert(2)</script>")
    expect(page.locator("#classes .name", has_text="<script>")).to_have_count(1)
    page.locator("#text").fill(TEXT_NAME)
    expect(page.locator(".card .foot .id")).to_have_text(TEXT_NAME)
    expect(page.locator(".shot .broken")).to_have_text("This image cannot be read.")
    assert page.problems == []


def test_a_narrow_screen_shows_everything_and_can_be_used_by_touch(
    address: str, browser: Any
) -> None:
    page = open_page(browser, address, width=390, height=844)
    for opened in (None, "#filters", "#other"):
        if opened is not None:
            page.locator(opened).click()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    page.keyboard.press("Escape")
    page.locator("#filters").click()
    for button in ("#accept", "#other", "#skip", "#undo", "#filters"):
        box = page.locator(button).bounding_box()
        assert box["height"] >= 44, button
    row = current(page).get_attribute("data-row")
    page.locator("#accept").click()
    expect(page.locator(f"#card-{row}")).to_have_attribute("data-answer", "accepted")
    page.locator("#skip").click()
    expect_reviewed(page, 2)
    page.locator("#undo").click()
    expect_reviewed(page, 1)
    assert page.problems == []


@pytest.fixture(scope="module")
def birds_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_labelled(tmp_path_factory.mktemp("birds"), wrong=1, names=BIRDS)


@pytest.fixture
def birds(birds_once: Path, tmp_path: Path) -> Path:
    """Classes with long names; the first label is wrong."""
    return shutil.copytree(birds_once.parent, tmp_path / "birds", symlinks=True) / "out"


@pytest.mark.parametrize("width", [1280, 390])
def test_a_suspected_card_has_both_classes_and_a_key_for_each(
    birds: Path, browser: Any, width: int
) -> None:
    wrong_id = (birds.parent / "labels.csv").read_text().splitlines()[1].split(",")[0]
    with served_here(birds) as address:
        filters = f"status=suspected&text={quote(wrong_id, safe='')}"
        page = open_page(browser, f"{address}#{filters}", width=width)
        sides = page.locator(".card .side")
        expect(sides.locator(".believed b")).to_have_text([WRONG_LABEL, RIGHT_LABEL])
        shares = [int(text.split()[0]) for text in sides.locator(".sure").all_inner_texts()]
        assert shares[0] < 50 < shares[1]
        expect(sides.locator(".reasons img")).to_have_count(6)
        expect(sides.locator(".pick")).to_have_text(["Keep1", "Change2"])
        spoken = re.compile(rf"{WRONG_LABEL}, .*{RIGHT_LABEL}, ")
        expect(page.locator(".cell")).to_have_attribute("aria-label", spoken)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        press(page, "2")
        expect(page.locator(".card .believed b")).to_have_text(RIGHT_LABEL)
        page.keyboard.press("u")
        expect(sides).to_have_count(2)
        sides.locator(".pick").first.click()
        expect_reviewed(page, 1)
        expect(page.locator(".card .believed b")).to_have_text(WRONG_LABEL)
        after = [line["changes"][0]["after"] for line in journal(birds)]
        assert after == [RIGHT_LABEL, None, WRONG_LABEL]
        assert page.problems == []
        page.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_names_of_classes_wrap_at_spaces_or_shrink(birds: Path, browser: Any, width: int) -> None:
    with served_here(birds) as address:
        page = open_page(browser, address, width=width)
        page.locator(".verdict .fit").first.wait_for()
        drawn = "requestAnimationFrame(() => requestAnimationFrame(done))"
        page.evaluate(f"() => new Promise((done) => {drawn})")
        broken, sizes = page.evaluate(BROKEN_WORDS)
        assert broken == []
        assert 7 < min(sizes) < max(sizes), "some have shrunk"
        page.close()


def test_classes_that_get_nothing_are_named_on_top(birds: Path, browser: Any) -> None:
    with served_here(birds) as address:
        page = open_page(browser, address)
        expect(page.locator("#nothing")).to_be_hidden()
        page.close()
    settings = json.loads((birds / "project.json").read_text())
    settings["fitted"]["threshold"] = [1.5] * len(BIRDS)
    (birds / "project.json").write_text(json.dumps(settings))
    summary = json.loads((birds / "summary.json").read_text())
    summary["promise"] = {"needed": dict.fromkeys(BIRDS, 6)}
    (birds / "summary.json").write_text(json.dumps(summary))
    session = open_session(birds)
    card = session.page(Filters(status="abstained"), count=1)["cards"][0]
    session.accept([card["row"]])  # one class needs only 5 more now
    session.close()
    with served_here(birds) as address:
        page = open_page(browser, address)
        notice = page.locator("#nothing")
        words = rf"^No new labels for: {', '.join(sorted(BIRDS))}\. Label 5 to 6 more"
        expect(notice).to_have_text(re.compile(words))
        card_top = page.locator(".card").first.bounding_box()["y"]
        assert notice.bounding_box()["y"] < card_top
        page.close()


def test_many_cards_are_accepted_at_once_and_undone_at_once(
    address: str, out: Path, browser: Any
) -> None:
    page = open_page(browser, address)
    page.keyboard.press("x")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(page.locator("#selected-text")).to_have_text("2 cards selected")
    page.keyboard.press("a")
    expect(page.locator("#bulk-ok")).to_have_text("Accept 2 cards")
    page.keyboard.press("Enter")
    expect_reviewed(page, 2)
    page.keyboard.press("a")
    page.locator("#bulk-least").fill("95")
    sure = int(page.locator("#bulk-ok").inner_text().split()[1])
    assert sure > 5
    page.locator("#bulk-ok").click()
    expect_reviewed(page, 2 + sure)
    assert [len(line["changes"]) for line in journal(out)] == [2, sure]
    page.keyboard.press("u")
    expect_reviewed(page, 2)
    page.keyboard.press("a")
    page.keyboard.press("Escape")
    expect(page.locator("#bulk")).to_be_hidden()
    page.locator("#export").click()
    expect(page.locator("#exported-files li")).to_have_count(3)
    assert (out / "reviewed.parquet").exists()
    assert page.problems == []


def test_guarantees_are_counted_beside_the_cards(tmp_path: Path, browser: Any) -> None:
    out = make_labelled(tmp_path, count=300, each=20, target=0.9)
    with served_here(out) as address:
        check_guarantees(open_page(browser, address))


def check_guarantees(page: Any) -> None:
    names = page.locator("#grades dt").all_inner_texts()
    counts = [int(text.replace(",", "")) for text in page.locator("#grades dd").all_inner_texts()]
    *grades, open_rows, outliers = zip(names, counts, strict=True)
    assert grades, "the shapes are easy enough for some guarantee"
    assert [name for name, _ in grades] == sorted((name for name, _ in grades), reverse=True)
    assert (open_rows[0], outliers[0]) == ("open", "unlike everything")
    page.locator(".status.pseudo").click()
    expect(page.locator(".card .chip.grade").first).to_be_visible()
    assert page.locator(".card .chip.grade").first.inner_text() in dict(grades)
    assert page.problems == []


def test_a_screen_reader_is_told_what_is_where(address: str, browser: Any) -> None:
    page = open_page(browser, address)
    grid = page.get_by_role("grid", name="Cards")
    assert int(grid.get_attribute("aria-rowcount")) >= 72
    focused = page.locator(":focus")
    expect(focused).to_have_attribute("role", "gridcell")
    page.locator(".card:not(.contested) .believed").first.click()
    label = focused.get_attribute("aria-label")
    believed = current(page).locator(".believed b").inner_text()
    assert label.startswith(f"{believed}, ")
    assert "percent" in label
    assert "looks like these 3" in label
    press(page, "Enter")
    expect(page.get_by_role("status")).to_contain_text(f"Accepted {believed} for ")
    expect(focused).not_to_have_attribute("aria-label", label)
    assert page.locator(".cell[tabindex='0']").count() == 1
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(focused).to_have_attribute("role", "gridcell")
    unnamed = """() => [...document.querySelectorAll("button, input, select")].filter((e) =>
      e.offsetParent && !(e.getAttribute("aria-label") || e.textContent.trim() ||
      e.closest("label"))).length"""
    assert page.evaluate(unnamed) == 0
    assert page.problems == []
