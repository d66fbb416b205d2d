"""The pages of docs/: their length, words and commands, and the site that is made of them."""

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from semigpc import __all__ as public_names
from semigpc.cli import app
from tests.review.browser import chromium

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
MOST_LINES = 200
USER_PAGES = (
    *("index.md", "which-command.md", "how-many-labels.md", "faq.md", "walkthrough.md"),
    *("own-fixmatch-loop.md", "label.md", "train.md", "compare.md"),
    *("install.md", "which-network.md", "python.md"),
)
# Words of every day, too: they are linked where the special meaning is meant.
COMMON = {"Engine", "Expected", "Guess", "Prior", "Reasons", "Variance", "Views"}
OWN_VERB = "counts"  # which extend-training.md adds
MOST_PICTURE_BYTES = 150_000
EARLIER_PICTURES = {"bench_engines.png", "bench_update.png", "figure1.png"}  # of before that rule

# What is no prose: code, headings, pictures, comments.
NO_PROSE = re.compile(r"```.*?```|`[^`\n]+`|^#.*?$|!\[[^\]]*\]\([^)]*\)|<!--.*?-->", re.S | re.M)
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)]*)\)")


def page(name: str) -> str:
    return (DOCS / name).read_text()


def blanked(text: str, pattern: re.Pattern[str]) -> str:
    """The text with matches replaced by spaces, so that places stay."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def glossary() -> dict[str, re.Pattern[str]]:
    """Each term with the pattern of its uses."""
    terms = re.findall(r"^### (.+)$", page("glossary.md"), flags=re.MULTILINE)
    patterns = {}
    for term in terms:
        words = r"settings? [ABCRO]" if term.startswith("Setting ") else re.escape(term.lower())
        words = words.replace(r"\ ", "[ -]").replace(r"\-", "[ -]").removesuffix("s")
        patterns[term] = re.compile(rf"(?<![\w.-]){words}(?:s|ed)?(?![\w-])", re.IGNORECASE)
    return patterns


def first_use(text: str, pattern: re.Pattern[str]) -> tuple[str, str | None] | None:
    """The first use in prose, with the target of its link; uses in links to elsewhere do not
    count.
    """
    prose = blanked(text, NO_PROSE)
    links = list(LINK.finditer(prose))
    for match in pattern.finditer(prose):
        inside = [link for link in links if link.start() <= match.start() < link.end()]
        if not inside:
            return match[0], None
        if inside[0]["target"].startswith("glossary.md#") and match.end() <= inside[0].end("text"):
            return match[0], inside[0]["target"]
    return None


@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_longer_than_two_hundred_lines(name: str) -> None:
    assert len(page(name).splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", USER_PAGES)
def test_terms_of_the_glossary_are_linked_at_their_first_use(name: str) -> None:
    not_linked = []
    for term, pattern in glossary().items():
        used = first_use(page(name), pattern)
        if term not in COMMON and used and used[1] != f"glossary.md#{slug(term)}":
            not_linked.append(f"{used[0]} -> glossary.md#{slug(term)}")
    assert not_linked == []


def test_the_first_use_is_found_in_prose_alone() -> None:
    pattern = glossary()["Head"]
    link = "[head](glossary.md#head)"
    assert first_use(f"# A head\n`head` ![head](a.png) {link} head", pattern) == (
        "head",
        "glossary.md#head",
    )
    assert first_use(f"two heads, {link}", pattern) == ("heads", None)
    assert first_use(f"[a head](train.md) {link}", pattern) == ("head", "glossary.md#head")
    assert first_use("ahead header", pattern) is None


def test_common_words_are_terms() -> None:
    assert set(glossary()) >= COMMON


@pytest.mark.parametrize("name", PAGES)
def test_links_to_places_in_pages_lead_there(name: str) -> None:
    for target in (match["target"] for match in LINK.finditer(blanked(page(name), NO_PROSE))):
        file, _, anchor = target.partition("#")
        if anchor and not target.startswith("http") and not file.startswith(".."):
            headings = re.findall(r"^#+ (.+)$", page(file or name), flags=re.MULTILINE)
            slugs = [slug(re.sub(r"[`*]|\]\([^)]*\)", "", heading)) for heading in headings]
            assert anchor in slugs, f"{name} links to {target}"


def commands(name: str) -> Iterator[list[str]]:
    """The commands of semigpc in the blocks and in the inline code of a page."""
    text = page(name).replace("\\\n", " ")
    blocks = re.findall(r"```(?:bash|sh)?\n(.*?)```", text, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`(semigpc [^`\n]+)`", text)
    for line in lines:
        if re.match(rf"semigpc (?!{OWN_VERB}\b)[a-z-]", line):
            yield shlex.split(line, comments=True)[1:]


GROUP = typer.main.get_command(app)


@pytest.mark.parametrize("name", [name for name in PAGES if any(commands(name))])
def test_the_commands_and_options_of_a_page_exist(name: str) -> None:
    for words in commands(name):
        command = GROUP
        context = command.make_context("semigpc", ["--help"], resilient_parsing=True)
        rest = [word for word in words if word != "--debug"]
        while isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
            found = command.get_command(context, rest[0])
            assert found is not None, f"{name}: semigpc {' '.join(words)}"
            command = found
            rest = rest[1:]
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        used = {word.partition("=")[0] for word in rest if re.match(r"--\w", word)}
        assert used <= known | {"--help", "--version"}, f"{name}: semigpc {' '.join(words)}"


def test_pictures_are_small_and_used() -> None:
    texts = "".join(map(page, PAGES)) + (ROOT / "README.md").read_text()
    total = 0
    for path in sorted((DOCS / "images").rglob("*.*")):
        assert path.relative_to(DOCS).as_posix() in texts, f"{path.name} is on no page"
        if path.name not in EARLIER_PICTURES:
            assert path.stat().st_size <= MOST_PICTURE_BYTES, path.name
        total += path.stat().st_size
    assert total <= 2_000_000


# The site -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("zensical is not installed: pip install 'semigpc[dev]'")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, str(DOCS / "build_site.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_every_public_name(site: Path) -> None:
    made = {path.stem for path in site.glob("*.html")}
    assert made >= {Path(name).stem for name in PAGES} | {"label_photos"}
    api = (site / "api.html").read_text()
    for name in public_names:
        assert re.search(rf'id="semigpc\.(?:[\w.]+\.)?{name}"', api), name
    assert not re.search(r":(?:class|func|data|mod|meth|attr):", api)
    assert "../src/" not in (site / "architecture.html").read_text()
    assert (site / "search.json").exists()


# What is wider than the page, or than the text that it stands in.
TOO_WIDE = """() => {
  const right = document.querySelector("article").getBoundingClientRect().right + 1;
  const tables = [...document.querySelectorAll("article table")];
  const wide = tables.filter((each) => each.getBoundingClientRect().right > right);
  const page = document.documentElement.scrollWidth > window.innerWidth ? ["the page"] : [];
  return [...page, ...wide.map((each) => each.textContent.trim().slice(0, 60))];
}"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_and_no_table_is_wider_than_the_window(site: Path, width: int) -> None:
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": width, "height": 900})
        for path in sorted(site.glob("*.html")):
            tab.goto(path.as_uri())
            assert tab.evaluate(TOO_WIDE) == [], path.name


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "zensical.toml").read_text()
    for name in PAGES:
        assert f'"{name}"' in navigation


def test_a_broken_link_stops_the_site(tmp_path: Path) -> None:
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("zensical is not installed: pip install 'semigpc[dev]'")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[gone](nowhere.md)\n")
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "x"\n')
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
