"""The grid of the page in a real browser: labels checked many at once, filters, and other tabs."""

import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from semigpc.review.session import NOTHING_SHOWN, open_session
from tests.review.browser import Server, chromium, expect, journal, open_page, served_here
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


def grid(address: str, filters: str = "status=unreviewed") -> str:
    """The address of the grid with filters, which keep it from choosing a class by itself."""
    return f"{address}#mode=grid&{filters}"


def labelled(page: Any) -> int:
    return int(page.locator("#grades .figure dd").first.inner_text())


def expect_labelled(page: Any, count: int) -> None:
    expect(page.locator("#grades .figure dd").first).to_have_text(str(count))


def expect_saved(page: Any) -> None:
    expect(page.locator("#saved")).to_have_text("Saved")


def current(page: Any) -> Any:
    return page.locator(".card.current")


def rows(page: Any) -> list[str]:
    return list(page.locator(".card").evaluate_all("all => all.map((card) => card.dataset.row)"))


def mark(page: Any, *positions: int) -> list[str]:
    """Mark cards of a class by a click on the image."""
    for position in positions:
        page.locator(".card .shot").nth(position).click()
    expect(page.locator(".card.selected")).to_have_count(len(positions))
    marked = page.locator(".card.selected")
    return list(marked.evaluate_all("all => all.map((card) => card.dataset.row)"))


def accepted_now(page: Any) -> int:
    return int(re.findall(r"\d+", page.locator("#accept-rest span").inner_text())[0])


# Many at once -------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1280, 390])
def test_a_class_is_checked_marked_accepted_moved_and_undone(
    address: str, out: Path, browser: Any, width: int
) -> None:
    page = open_page(browser, f"{address}#mode=grid", width=width)
    page.locator("#cards.tiles .card").nth(5).wait_for()
    label = page.locator("#class-choice").input_value()[1:]
    assert label in page.locator("#found").inner_text(), "it begins with the largest class"
    before = labelled(page)
    shown = rows(page)
    sure = [
        int(each.split()[0].strip(">")) for each in page.locator(".card .sure").all_inner_texts()
    ]
    assert sure == sorted(sure, reverse=True)
    marked = mark(page, 0, 2, 3)
    expect(page.locator("#marked-text")).to_have_text("3 marked as wrong")
    assert accepted_now(page) == len(shown) - 3

    page.locator("#accept-rest").click()
    expect_saved(page)
    expect_labelled(page, before + len(shown) - 3)
    lines = journal(out)
    assert [line["action"] for line in lines] == ["accept"], "one step"
    assert {change["after"] for change in lines[0]["changes"]} == {label}
    assert set(rows(page)) & set(shown) == set(marked), "the marked ones stay, and stay marked"
    expect(page.locator(".card.selected")).to_have_count(3)

    page.locator("#move").click()
    expect(page.locator("#picker-title")).to_contain_text("3 cards")
    page.locator("#picker-text").press_sequentially("hexagon")
    expect(page.locator("#picker-list .name")).to_have_text(["Add the class “hexagon”"])
    page.keyboard.press("Enter")
    expect_saved(page)
    expect_labelled(page, before + len(shown))
    lines = journal(out)
    assert len(lines) == 2, "split off in one step"
    assert [change["after"] for change in lines[1]["changes"]] == ["hexagon"] * 3
    assert not set(rows(page)) & set(marked)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width

    page.locator("#undo").click()
    expect_labelled(page, before + len(shown) - 3)
    expect(page.locator(f"#card-{marked[0]}")).to_be_visible()
    page.locator("#undo").click()
    expect_labelled(page, before)
    expect(page.locator(f"#card-{shown[1]}")).to_be_visible()
    assert [line["action"] for line in journal(out)[2:]] == ["undo", "undo"]
    assert page.problems == []


def test_keys_of_the_grid(address: str, out: Path, browser: Any) -> None:
    page = open_page(browser, grid(address, "sort=least+sure"))
    expect(current(page).locator(".cell")).to_be_focused()
    first = rows(page)[0]
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("x")
    expect(page.locator(".card.selected")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator(".card.selected")).to_have_count(0)
    page.keyboard.press("Home")
    page.keyboard.press("Enter")  # open it, large
    expect(page.locator("#picture img")).to_be_visible()
    expect(page.locator("#place")).to_have_text(re.compile(r"^1 of \d+$"))
    expect(page.locator("#options .share:not([hidden])")).to_have_count(3)
    page.keyboard.press("1")
    expect(page.locator("#place")).to_have_text(re.compile(r"^2 of \d+$"))
    expect_saved(page)
    assert len(journal(out)) == 1
    page.keyboard.press("Escape")
    expect(page.locator("#cards")).to_be_visible()
    expect(page.locator(f"#card-{first}")).to_have_count(0)  # it is answered
    page.keyboard.press("n")
    expect(page.locator("#cards.tiles")).to_be_visible()
    chosen = page.locator("#class-choice").input_value()
    page.keyboard.press("n")
    expect(page.locator("#class-choice")).not_to_have_value(chosen)
    now = page.locator("#class-choice").input_value()[1:]
    expect(page.locator("#found")).to_contain_text(now)
    page.keyboard.press("x")
    page.keyboard.press("m")
    expect(page.locator("#picker")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#picker")).to_be_hidden()
    page.keyboard.press("f")
    expect(page.locator("#text")).to_be_focused()
    assert page.problems == []


@pytest.mark.parametrize("width", [1280, 390])
def test_a_class_is_renamed_merged_and_both_are_undone(
    address: str, out: Path, browser: Any, width: int
) -> None:
    page = open_page(browser, grid(address), width=width)
    if width < 900:
        page.locator("#filters").click()
    names = page.locator("#classes .name")
    expect(names).to_have_count(3)
    item = page.locator("#classes li[data-name='circle']")
    if width < 900:
        item.locator(".edit").click()
    else:
        item.locator(".class").dblclick()
    expect(page.locator("#rename")).to_be_visible()
    expect(page.locator("#rename-ok")).to_be_disabled()
    page.locator("#rename-text").fill("disc")
    page.keyboard.press("Enter")
    expect(names.filter(has_text="disc")).to_have_count(1)
    expect(names.filter(has_text="circle")).to_have_count(0)
    expect(page.locator(".toast")).to_have_text("circle is called disc now.")

    page.locator("#classes li[data-name='disc'] .edit").click()
    page.locator("#rename-text").fill("Square")  # the case of a known class does not matter
    expect(page.locator("#rename-ok")).to_have_text("Merge into square")
    expect(page.locator("#rename-note")).to_contain_text("6 labels")
    page.locator("#rename-cancel").click()
    expect(names).to_have_count(3)
    page.locator("#classes li[data-name='disc'] .edit").click()
    page.locator("#rename-text").fill("square")
    page.locator("#rename-ok").click()
    expect(names).to_have_count(2)
    expect_saved(page)
    assert [line["action"] for line in journal(out)] == ["rename", "rename"]
    page.locator("#undo").click()
    expect(names.filter(has_text="disc")).to_have_count(1)
    page.locator("#undo").click()
    expect(names.filter(has_text="circle")).to_have_count(1)
    expect(names).to_have_count(3)
    assert page.problems == []


# The rest of it -----------------------------------------------------------------------------------


def test_a_restart_keeps_filters_answers_and_undo(
    out: Path, browser: Any, start: Callable[[], Server]
) -> None:
    server = start()
    page = open_page(browser, grid(server.address))
    before = labelled(page)
    page.locator(".card").first.wait_for()
    page.keyboard.press("Enter")
    for key in ("1", "1", "Space", "0"):
        name = page.locator("#stage-id").inner_text()
        page.keyboard.press(key)
        expect(page.locator("#stage-id")).not_to_have_text(name)
    expect_saved(page)
    expect_labelled(page, before + 2)
    answered = {line["changes"][0]["id"]: line["changes"][0]["after"] for line in journal(out)}
    page.close()
    printed, errors = server.end(signal.SIGINT)
    assert re.search(r"^4 of \d+ reviewed: .*1 skipped", printed, re.MULTILINE)
    assert errors == ""
    assert server.process.returncode == 0

    server = start()
    page = open_page(browser, grid(server.address, "status=reviewed"))
    expect_labelled(page, before + 2)
    expect(page.locator(".card")).to_have_count(2)
    shown = {
        card.locator(".foot .id").inner_text(): card.locator(".believed b").inner_text()
        for card in page.locator(".card").all()
    }
    assert shown.items() <= answered.items()
    page.locator("label.status.skipped").click()
    expect(page.locator(".card .badge").first).to_be_visible()
    page.keyboard.press("u")
    page.keyboard.press("u")
    expect_labelled(page, before + 2)
    page.keyboard.press("u")
    expect_labelled(page, before + 1)
    assert page.problems == []


def test_two_tabs_see_each_other_and_the_first_answer_counts(
    address: str, out: Path, browser: Any
) -> None:
    here = grid(address)
    first = open_page(browser, here)  # each page has a context of its own: they share nothing
    second = open_page(browser, here)
    before = labelled(first)
    first.locator(".card").first.wait_for()
    row = current(first).get_attribute("data-row")
    assert current(second).get_attribute("data-row") == row
    # A hidden page does not ask for changes.
    second.evaluate("() => Object.defineProperty(document, 'visibilityState', { value: 'hidden' })")
    for page in (first, second):
        page.keyboard.press("Enter")
        expect(page.locator("#options .share:not([hidden])")).to_have_count(3)
    label = first.locator("#options .option").nth(1).get_attribute("data-label")
    first.keyboard.press("2")
    expect_saved(first)
    expect_labelled(first, before + 1)
    second.keyboard.press("Space")  # on the card as it was
    expect(second.locator("#live")).to_contain_text("answered elsewhere in the meantime")
    expect(second.locator("#question")).to_have_text(f"You said: {label}")
    expect_labelled(second, before + 1)
    assert [line["action"] for line in journal(out)] == ["correct"]
    second.keyboard.press("ArrowRight")
    second.keyboard.press("1")
    expect_saved(second)
    # The first page asks for changes every few seconds.
    expect_labelled(first, before + 2)
    assert first.problems == second.problems == []


def test_names_are_shown_as_they_are_and_broken_images_are_told(address: str, browser: Any) -> None:
    page = open_page(browser, grid(address, "status=all&text=img+src"))
    expect(page.locator(".card .foot .id")).to_have_text(HTML_NAME)
    assert page.locator("img[src='x']").count() == 0
    page.keyboard.press("Enter")
    expect(page.locator("#stage-id")).to_have_text(HTML_NAME)
    page.locator("#name").fill("<script>alert(2)</script>")
    page.keyboard.press("Enter")
    expect_saved(page)
    page.locator("#mode-grid").click()
    expect(page.locator(".card .believed b")).to_have_text("<script>alert(2)</script>")
    expect(page.locator("#classes .name", has_text="<script>")).to_have_count(1)
    page.locator("#classes li[data-name*='script'] .edit").click()
    expect(page.locator("#rename-title")).to_contain_text("<script>alert(2)</script>")
    page.keyboard.press("Escape")
    page.locator("#text").fill(TEXT_NAME)
    expect(page.locator(".card .foot .id")).to_have_text(TEXT_NAME)
    expect(page.locator(".shot .broken")).to_have_text("This image cannot be read.")
    page.locator(".card .believed").click()
    page.keyboard.press("Enter")
    expect(page.locator("#picture .broken")).to_have_text("This image cannot be read.")
    assert page.problems == []


def test_a_narrow_screen_shows_everything_and_can_be_used_by_touch(
    address: str, browser: Any
) -> None:
    page = open_page(browser, grid(address), width=390, height=844)
    page.locator(".card").first.wait_for()
    for opened in (None, "#filters", "#next-class"):
        if opened is not None:
            page.locator(opened).click()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    page.locator("#filters").click()
    page.locator("#cards.tiles .card").nth(1).wait_for()
    mark(page, 1)
    for button in ("#accept-rest", "#move", "#clear", "#undo", "#filters", "#next-class"):
        box = page.locator(button).bounding_box()
        assert box["height"] >= 44, button
    before = labelled(page)
    count = accepted_now(page)
    page.locator("#accept-rest").click()
    expect_labelled(page, before + count)
    page.locator("#undo").click()
    expect_labelled(page, before)
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
        page = open_page(
            browser, grid(address, f"status=suspected&text={quote(wrong_id, safe='')}"), width=width
        )
        sides = page.locator(".card .side")
        expect(sides.locator(".believed b")).to_have_text([WRONG_LABEL, RIGHT_LABEL])
        shares = [int(text.split()[0]) for text in sides.locator(".sure").all_inner_texts()]
        assert shares[0] < 50 < shares[1]
        expect(sides.locator(".reasons img")).to_have_count(6)
        expect(sides.locator(".pick")).to_have_text(["Keep1", "Change2"])
        spoken = re.compile(rf"{WRONG_LABEL}, .*{RIGHT_LABEL}, ")
        expect(page.locator(".cell")).to_have_attribute("aria-label", spoken)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        expect(page.locator("#accept-rest")).to_be_disabled()
        page.keyboard.press("2")
        expect(page.locator(".card .believed b")).to_have_text(RIGHT_LABEL)
        expect_saved(page)
        page.keyboard.press("u")
        expect(sides).to_have_count(2)
        sides.locator(".pick").first.click()
        expect_saved(page)
        expect(page.locator(".card .believed b")).to_have_text(WRONG_LABEL)
        after = [line["changes"][0]["after"] for line in journal(birds)]
        assert after == [RIGHT_LABEL, None, WRONG_LABEL]
        page.keyboard.press("u")
        expect(sides).to_have_count(2)
        page.keyboard.press("z")
        expect(page.locator("#why")).to_contain_text("contradict")
        expect(page.locator("#because .likes")).to_have_count(2)
        first = page.locator("#options .option").first
        expect(first).to_have_attribute("data-label", RIGHT_LABEL)  # the most probable
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        assert page.problems == []
        page.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_names_of_classes_wrap_at_spaces_or_shrink(birds: Path, browser: Any, width: int) -> None:
    with served_here(birds) as address:
        page = open_page(browser, grid(address), width=width)
        page.locator(".verdict .fit").first.wait_for()
        drawn = "requestAnimationFrame(() => requestAnimationFrame(done))"
        page.evaluate(f"() => new Promise((done) => {drawn})")
        broken, sizes = page.evaluate(BROKEN_WORDS)
        assert broken == []
        assert 7 < min(sizes) < max(sizes), "some have shrunk"
        page.close()


def test_classes_that_get_nothing_are_counted_and_named(tmp_path: Path, browser: Any) -> None:
    out = make_labelled(tmp_path, each=3, names=BIRDS, target=0.95)
    session = open_session(out)
    told = session.refresh(NOTHING_SHOWN)["progress"]
    session.close()
    assert told["without"] == 3, "9 labels are too few for any guarantee"
    with served_here(out, learns=False) as address:
        page = open_page(browser, address)
        expect(page.locator("#outlook .needs")).to_have_text("none guaranteed for 3 classes")
        page.locator("#explain").click()
        for name in BIRDS:
            expect(page.locator("#guarantee-body .needs")).to_contain_text(name)
        page.keyboard.press("Escape")
        page.locator("#mode-grid").click()
        expect(page.locator("#nothing")).to_have_text(told["nothing"])
        expect(page.locator("#classes .sizes .needs")).to_have_text(["none"] * 3)
        assert page.problems == []
        page.close()


def test_guarantees_are_counted_in_the_header(tmp_path: Path, browser: Any) -> None:
    out = make_labelled(tmp_path, count=300, each=20, target=0.9)
    with served_here(out) as address:
        page = open_page(browser, grid(address, "status=pseudo"))
        expect(page.locator("#reward:not(.fitting)")).to_be_visible()
        names = page.locator("#grades dt").all_inner_texts()
        assert names == ["labelled", "99 %", "95 %", "90 %", "80 %"]
        expect(page.locator("#status-note")).to_contain_text("guaranteed at 90 %")
        counts = [int(text.split()[0]) for text in page.locator("#grades dd").all_inner_texts()]
        assert counts[0] == 60
        assert counts[1:] == sorted(counts[1:])
        assert counts[-1] > 0, "the shapes are easy enough for some guarantee"
        widths = page.locator("#bar i").evaluate_all(
            "all => all.map((i) => parseFloat(i.style.width))"
        )
        assert sum(widths) == pytest.approx(100 * (counts[0] + counts[-1]) / 300, abs=0.5)
        expect(page.locator("#outlook")).to_contain_text("of all expected right")
        page.locator("#explain").click()
        expect(page.locator("#guarantee-body tr")).to_have_count(4)
        expect(page.locator("#guarantee-body")).to_contain_text("Guaranteed means")
        page.keyboard.press("Escape")
        chip = page.locator(".card .chip.grade").first
        expect(chip).to_be_visible()
        assert chip.inner_text() in names
        assert page.problems == []
        page.close()


def test_a_screen_reader_is_told_what_is_where(address: str, browser: Any) -> None:
    page = open_page(browser, grid(address))
    cards = page.get_by_role("grid", name="Cards")
    expect(page.locator(".card").first).to_be_visible()
    assert int(cards.get_attribute("aria-rowcount")) >= 60
    focused = page.locator(":focus")
    expect(focused).to_have_attribute("role", "gridcell")
    page.locator(".card:not(.contested) .believed").first.click()
    label = focused.get_attribute("aria-label")
    believed = current(page).locator(".believed b").inner_text()
    assert label.startswith(f"{believed}, ")
    assert "percent" in label
    assert "looks like these 3" in label
    page.keyboard.press("Space")
    expect(focused).to_have_attribute("aria-selected", "true")
    expect(page.locator("#live")).to_contain_text("Marked")
    assert page.locator(".cell[tabindex='0']").count() == 1
    page.keyboard.press("a")
    expect(page.locator("#live")).to_contain_text(re.compile(r"Accepted \d+ cards"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(focused).to_have_attribute("role", "gridcell")
    unnamed = """() => [...document.querySelectorAll("button, input, select")].filter((e) =>
      e.offsetParent && !(e.getAttribute("aria-label") || e.textContent.trim() ||
      e.closest("label"))).length"""
    assert page.evaluate(unnamed) == 0
    assert page.problems == []
