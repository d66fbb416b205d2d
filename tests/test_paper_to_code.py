"""Every line of docs/paper_to_code.md leads to something: a file, a name, a setting, a command with
its options.
"""

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from semigpc.addons import ADDONS
from semigpc.cli import app
from semigpc.io.errors import SettingsError
from semigpc.paper.recipes import fgvc
from semigpc.paper.tables import TABLES
from semigpc.training.experiment import flattened
from semigpc.training.presets import digits

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "paper_to_code.md"
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
# What the text of the paper claims; the numbers of each have to stand together in one line.
CLAIMS = (
    *("N_Q = 16300", "N_Q around 16K", "N_Q ~ 80K", "x 7.5 N_Q ~ 16k, B = 8", "~0.8", "~1.3"),
    *("+7.65 +1.84", "1.92 2 20.52", "17.39 9.54 45", "5.62 3.85 32", "+1.5", "7.63 10.17"),
    *("100 10", "4 1 1 3 3 80", "200 8 3", "7.9 10.1 8.5 2"),
    "200 200 800 5959 26640 122208 40",
    "200 200 1194 4141 13166 64871 20",
    "810 810 1629 13771 91336 221912 100",
    "100 100 100 1000 3853 5903 1000",
)
SUBJECTS = (  # equations, figures and tables
    *("kernel k(a, b)", "posterior mean", "softmax(lambda mu)", "kernel clipping", "block update"),
    *("smoothing", "FIFO buffer", "class-balanced buffer", "similarity aggregate", "Figure 1"),
    *("toy figures", "complexity of one update", "fine-grained benchmarks", "balanced CIFAR"),
    *("CIFAR-100-LT, settings A and B", "CIFAR-10-LT, settings A and B"),
    *("base algorithms on SemiAves", "pre-trainings on SemiAves"),
)


def rows(page: str) -> list[tuple[str, str]]:
    """What the paper has and what answers it here, for every line of the tables."""
    lines = [line for line in page.splitlines() if re.match(r"\|(?!---)", line)]
    cells = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines]
    return [(first.strip(), second.strip()) for first, second in cells if second.strip() != "here"]


def linked_modules(page: str) -> dict[str, ModuleType]:
    """The modules of Python files that the page links to, by target."""
    found = {}
    for target in re.findall(r"\(\.\./((?:src|benchmarks)/[\w/]+)\.py\)", page):
        dotted = target.removeprefix("src/").replace("/", ".").removesuffix(".__init__")
        found[f"../{target}.py"] = importlib.import_module(dotted)
    return found


def has(owner: object, dotted: str) -> bool:
    """Whether an object has an attribute, or a dataclass a field, by a dotted name."""
    *owners, last = dotted.split(".")
    for name in owners:
        owner = getattr(owner, name, None)
    return hasattr(owner, last) or last in getattr(owner, "__dataclass_fields__", {})


@cache
def experiments() -> tuple[Any, ...]:
    return digits(algorithm="simmatch", refiner="gp"), fgvc(root=".")


def check_setting(setting: str) -> None:
    """Check that a KEY=VALUE can be set, or that a KEY exists."""
    if "=" not in setting:
        known = [name for one in experiments() for name in flattened(one.to_plain())]
        assert setting in known, f"no setting {setting}"
        return
    refusals = []
    for one in experiments():
        try:
            one.override([setting])
            return
        except SettingsError as error:
            refusals.append(str(error))
    raise AssertionError(refusals)


def options_of(command: Any) -> set[str]:
    parameters = command.params
    return {name for one in parameters for name in (*one.opts, *one.secondary_opts)}


def check_command(words: list[str], command: Any) -> None:
    """Check a command line: its verbs, its options, and what is named after some of them."""
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), f"{words} is no verb"
    wanted = [word for word in words if word.startswith("--")]
    assert set(wanted) <= options_of(command), f"{command.name} has no {wanted}"
    if command.name == "reproduce" and not words[0].startswith("--"):
        assert words[0] in TABLES
    if "--addon" in words:
        assert words[words.index("--addon") + 1] in ADDONS


def check(code: str, target: str | None, modules: dict[str, ModuleType]) -> None:
    """Check one piece of code of the page; ``target`` is where it links to."""
    if target is not None:
        assert (PAGE.parent / target.partition("#")[0]).exists(), f"{target} does not exist"
    words = code.split()
    if words[0] == "semigpc":
        check_command(words[1:], get_command(app))
    elif words[0] == "python":
        script = Path(words[1])
        assert (ROOT / script).is_file(), f"{script} does not exist"
        module = importlib.import_module(".".join(script.with_suffix("").parts))
        check_command(words[2:], get_command(module.app))
    elif code.endswith((".py", ".md")):
        places = (ROOT / code, ROOT / "src" / "semigpc" / code)
        assert any(place.is_file() for place in places), f"{code} does not exist"
    elif "=" in code or re.match(r"(algorithm|augment|data|model|refiner|train)\.", code):
        check_setting(code)
    elif target is not None:
        assert has(modules[target], code), f"{target} has no {code}"
    else:
        assert any(has(module, code) for module in modules.values()), f"no linked module has {code}"


def pieces(text: str) -> Iterator[tuple[str, str | None]]:
    """The code in a text, with the target of its link."""
    for label, target in LINK.findall(text):
        for code in re.findall(r"`([^`]+)`", label):
            yield code, target
    for code in re.findall(r"`([^`]+)`", LINK.sub("", text)):
        yield code, None


ROWS = rows(PAGE.read_text())
MODULES = linked_modules(PAGE.read_text())


@pytest.mark.parametrize(("subject", "here"), ROWS, ids=[subject[:40] for subject, _ in ROWS])
def test_the_line_leads_to_what_it_names(subject: str, here: str) -> None:
    check_all(here)


def check_all(text: str) -> None:
    named = list(pieces(text))
    assert named, f"nothing to follow: {text}"
    for code, target in named:
        check(code, target, MODULES)


def test_what_stands_between_the_tables_is_followed_too() -> None:
    prose = "\n".join(line for line in PAGE.read_text().splitlines() if not line.startswith("|"))
    check_all(prose)
    assert "lambda, sigma and l are ours" in prose


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_claim_of_the_text_has_a_line(claim: str) -> None:
    numbers = re.findall(r"\d+(?:\.\d+)?", claim)
    assert any(_contains(re.findall(r"\d+(?:\.\d+)?", subject), numbers) for subject, _ in ROWS)


def _contains(found: list[str], wanted: list[str]) -> bool:
    return all(found.count(number) >= wanted.count(number) for number in wanted)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_equation_figure_and_table_has_a_line(subject: str) -> None:
    assert any(subject in line for line, _ in ROWS)


@pytest.mark.parametrize("table", TABLES)
def test_every_table_has_its_command(table: str) -> None:
    assert any(f"`semigpc reproduce {table}`" in here for _, here in ROWS)


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("ExactGP.meen", "../src/semigpc/gp/exact.py"),
        ("RBF.lengthscale", None),
        ("gone", "../src/semigpc/gone.py"),
        ("data/gone.py", None),
        ("refiner.engine=gone", None),
        ("refiner.gone", None),
        ("semigpc gone", None),
        ("semigpc toy --gone", None),
        ("semigpc data gone cub data", None),
        ("semigpc reproduce gone", None),
        ("semigpc train --addon gone", None),
        ("python benchmarks/gone.py", None),
        ("python benchmarks/update.py --gone 3", None),
    ],
)
def test_what_does_not_exist_is_noticed(code: str, target: str | None) -> None:
    with pytest.raises((AssertionError, ModuleNotFoundError)):
        check(code, target, MODULES)
