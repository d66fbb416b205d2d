"""``--help``: the verbs that people start with fit a screen."""

import pytest
from typer.testing import CliRunner

from semigpc.cli import app

runner = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
VERBS = (
    *("train", "evaluate", "predict", "export", "compare", "embed"),
    *("label", "suggest", "audit", "review", "reproduce"),
)


def help_of(verb: str) -> str:
    done = runner.invoke(app, [verb, "--help"])
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def test_the_options_of_label_fit_a_screen_in_named_panels() -> None:
    text = help_of("label")
    assert len(text.splitlines()) <= 50
    options = text[text.index("Options ─") :]
    places = [options.index(name) for name in ("--out", "--labels", "Which labels to give out")]
    assert places == sorted(places)
    for panel in ("Which labels to give out", "Columns of a table", "Images", "How to run"):
        assert panel in text


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_an_example_of_itself(verb: str) -> None:
    text = help_of(verb)
    assert text.count(f"semigpc {verb} ") >= 2  # the first is the usage
    assert len(text.splitlines()) <= 70
    assert "…" not in text
