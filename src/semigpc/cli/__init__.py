"""The ``semigpc`` command: one file for each verb, which parses, calls and prints."""

import warnings
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from semigpc.cli.audit import audit
from semigpc.cli.compare import compare_command
from semigpc.cli.demo import demo
from semigpc.cli.doctor import doctor
from semigpc.cli.embed import embed
from semigpc.cli.evaluate import evaluate
from semigpc.cli.export import export
from semigpc.cli.failures import Debug
from semigpc.cli.label import label
from semigpc.cli.list import list_command
from semigpc.cli.open import open_command
from semigpc.cli.predict import predict
from semigpc.cli.review import review
from semigpc.cli.suggest import suggest
from semigpc.cli.tables import make_tolerant, say
from semigpc.cli.train import train
from semigpc.io.text import printable


class Verbs(TyperGroup):
    """All verbs; in typer's own messages, control characters of arguments are escaped."""

    def invoke(self, ctx: Any) -> Any:
        """Run a verb."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(getattr(error, "message", None), str):
                error.message = printable(error.message)  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    name="semigpc",
    cls=Verbs,
    help="Label many images from few labels or none, say how many of the labels are right, or "
    "train a classifier on them. Begin with: semigpc open photos",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)
VERBS = (  # in the order of the help
    open_command,
    label,
    suggest,
    audit,
    review,
    predict,
    evaluate,
    export,
    embed,
    train,
    compare_command,
    demo,
    list_command,
    doctor,
)
for verb in VERBS:
    app.command(verb.__name__.removesuffix("_command"))(verb)

# The paper's verbs. semigpc.paper can be deleted, together with the files of these three.
if find_spec("semigpc.paper"):
    from semigpc.cli.data import app as data_app
    from semigpc.cli.reproduce import reproduce
    from semigpc.cli.toy import toy

    app.command()(reproduce)
    app.command()(toy)
    app.add_typer(data_app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"semigpc {version('semigpc')}")
        raise typer.Exit


@app.callback()
def semigpc(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
    _debug: Debug = False,
) -> None:
    """Options before the verb."""


def _note(message: Warning | str, category: type[Warning], *place: Any, **where: Any) -> None:
    """Print a warning as one line, without its place in the code."""
    if issubclass(category, UserWarning):
        say(f"note: {message}", err=True)
    else:
        _show_warning(message, category, *place, **where)


_show_warning = warnings.showwarning


def main() -> None:
    """Entry point."""
    make_tolerant()
    warnings.showwarning = _note
    app()
