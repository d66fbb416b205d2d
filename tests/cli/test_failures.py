"""Errors become one paragraph and an exit code."""

import subprocess
import sys
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from semigpc.cli.failures import EXIT_CODES, STOPPED_ERROR, explain, reported
from semigpc.io import errors
from semigpc.io.errors import DataError, ImageError, SemiGPCError, WriteError
from semigpc.training import Stopped


def app_that_raises(error: BaseException) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @reported("go")
    def go(resume: bool = False) -> None:
        raise error

    return app


def test_every_error_of_the_family_has_an_exit_code() -> None:
    family = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert SemiGPCError in family
    for kind in family:
        assert any(parent in EXIT_CODES for parent in kind.__mro__)


def test_the_error_that_is_known_by_name_has_that_name() -> None:
    assert f"{Stopped.__module__}.{Stopped.__qualname__}" == STOPPED_ERROR


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (DataError("The folder\nis empty."), 2, "semigpc go: The folder is empty.\n"),
        (
            WriteError("x is full.", passing=True),
            1,
            "x is full. Run the same command with --resume",
        ),
        (WriteError("x is a folder."), 1, "semigpc go: x is a folder.\n"),
        (ImageError("The image x is bad."), 1, "semigpc go: The image x is bad.\n"),
        (FileNotFoundError(2, "No such file", "a.csv"), 1, "semigpc go: No such file: a.csv.\n"),
        (OSError(28, "No space left on device"), 1, "semigpc go: No space left on device.\n"),
        (ImportError("needs it: pip install it."), 1, "semigpc go: needs it: pip install it.\n"),
        (ModuleNotFoundError("No module 'timm'"), 1, "No module 'timm'. Run semigpc doctor"),
        (
            Stopped("stopped after step 3."),
            130,
            "step 3. Run the same command with --resume to continue",
        ),
        (KeyboardInterrupt(), 130, "interrupted; what was saved before is intact. Run the same"),
        (ZeroDivisionError("1 / 0"), 1, "1 / 0. Unexpected error. Re-run with --debug"),
    ],
)
def test_one_paragraph(error: BaseException, code: int, words: str) -> None:
    done = CliRunner().invoke(app_that_raises(error), [])
    assert done.exit_code == code
    assert done.stderr.startswith("semigpc go: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_what_goes_on_by_itself_says_so_when_it_is_stopped() -> None:
    app = typer.Typer()

    @app.command()
    @reported("table")
    def table(jobs: int = 1) -> None:
        raise Stopped("stopped after step 3.")

    words = "semigpc table: stopped after step 3. Run the same command again to continue.\n"
    assert CliRunner().invoke(app, []).stderr == words


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("Pass overwrite=True to replace it.", "Pass --overwrite to replace it."),
        ("Pass overwrite=True.", "Pass --overwrite."),
        ("Use share=0.2, or more.", "Use --share 0.2, or more."),
        ("Label with engine='ray'.", "Label with --engine ray."),
        ("Name it: features='f 1, f 2'.", "Name it: --features 'f 1, f 2'."),
        ("Choose another column with id=...", "Choose another column with --id"),
        ("Choose id_column=NAME (or engine=local).", "Choose --id NAME (or --engine local)."),
        ("Nothing was held out (report=False).", "Nothing was held out (--no-report)."),
        ("The parameter share must be positive.", "--share must be positive."),
        ("Check the parameter data.", "Check DATA."),
        ("Share and engine are words.", "Share and engine are words."),
        ("Set train.share=3 in a/share=3.", "Set train.share=3 in a/share=3."),
        ("Or overwrite them: stranger=3.", "Or overwrite them: stranger=3."),
        ("The parameter stranger, follow=False.", "The parameter stranger, follow=False."),
    ],
)
def test_parameters_of_a_library_error_become_options(message: str, printed: str) -> None:
    app = typer.Typer()

    @app.command()
    @reported("go")
    def go(
        data: Annotated[str, typer.Argument(metavar="DATA")],
        overwrite: Annotated[bool, typer.Option("--overwrite")] = False,
        share: Annotated[float, typer.Option("--share")] = 1.0,
        engine: Annotated[str, typer.Option("--engine")] = "local",
        features: Annotated[str, typer.Option("--features")] = "",
        id_column: Annotated[str, typer.Option("--id")] = "id",
        no_report: Annotated[bool, typer.Option("--no-report")] = False,
        follow: Annotated[bool, typer.Option("--follow")] = False,
    ) -> None:
        raise DataError(message)

    assert CliRunner().invoke(app, ["x"]).stderr == f"semigpc go: {printed}\n"


def test_typers_own_errors_stay_its_own() -> None:
    done = CliRunner().invoke(app_that_raises(typer.BadParameter("no such thing")), [])
    assert done.exit_code == 2
    assert "Usage:" in done.stderr
    assert CliRunner().invoke(app_that_raises(typer.Exit(7)), []).exit_code == 7


def test_a_verb_without_resume_does_not_speak_of_it() -> None:
    assert "--resume" not in explain(KeyboardInterrupt())[0]


def test_help_does_not_wait_for_torch() -> None:
    slow = {"torch", "sklearn", "matplotlib", "timm"}
    code = f"import sys, semigpc.cli; print(sorted({slow} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
