"""How verbs report errors: one paragraph and an exit code; the traceback only with ``--debug``.

A library error names parameters, never command-line options, and :func:`as_options` rewrites them
here. In a library message write a parameter in one of two ways:

    name=value           "Pass overwrite=True to replace it."  -> "Pass --overwrite to replace it."
                         "Use validation=0.2."                 -> "Use --validation 0.2."
                         "Name the column with id=..."         -> "Name the column with --id"
    the parameter name   "The parameter out must be a folder." -> "--out must be a folder."

Any other mention of the word stays as it is, and so do dotted settings such as train.lr=0.01.
"""

import functools
import inspect
import re
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperArgument

from semigpc.cli.tables import say
from semigpc.io.errors import (
    DataError,
    FileError,
    ImageError,
    InUseError,
    NotExportableError,
    SemiGPCError,
    SettingsError,
    WriteError,
)

# Exit codes.
FAILURE = 1
USAGE = 2
STOPPED = 130
# How to go on after a stop, by an option that the verb has; the first that applies.
GO_ON = {
    "resume": "Run the same command with --resume to continue.",
    "jobs": "Run the same command again to continue.",
    "out": "Run the same command again to continue.",
}

# The first class of an error's ancestry that is listed decides.
EXIT_CODES: dict[type[BaseException], int] = {
    InUseError: USAGE,
    NotExportableError: USAGE,
    SettingsError: USAGE,
    ImageError: FAILURE,  # the command was right, a file is broken
    FileError: FAILURE,
    DataError: USAGE,
    SemiGPCError: FAILURE,
    KeyboardInterrupt: STOPPED,
    ImportError: FAILURE,
    OSError: FAILURE,
}
# By name: importing the module would import torch.
STOPPED_ERROR = "semigpc.training.processes.Stopped"
# one process's own error, which decides on words and code
RANK_ERROR = "semigpc.training.processes.RankError"

Verb = TypeVar("Verb", bound=Callable[..., None])
QUOTE = "'"
# ``name=value``, where the value is quoted, or ends before punctuation or a space.
ASSIGNMENT = re.compile(
    r"(?<![\w./=-])(?P<name>[a-z][a-z_0-9]*)=(?P<value>\.\.\.|'[^']*'|[^\s,;:()']*[^\s,;:()'.])"
)
MENTION = re.compile(r"\b[Tt]he parameter (?P<name>[a-z][a-z_0-9]*)\b")
_running: ContextVar[typer.Context] = ContextVar("running")  # the verb that is
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def reported(verb: str) -> Callable[[Verb], Verb]:
    """Decorate a verb: print its errors on standard error as ``semigpc VERB: ...``, and add the
    option ``--debug``.

    ``--debug`` may also stand before the verb. Unexpected errors come with advice on how to report
    them.
    """

    def decorate(function: Verb) -> Verb:
        @functools.wraps(function)
        def wrapper(*arguments: Any, context: typer.Context, debug: bool, **options: Any) -> None:
            _running.set(context)
            try:
                _check_current_folder()
                function(*arguments, **options)
            except (Exception, KeyboardInterrupt) as error:
                if _belongs_to_typer(error):
                    raise
                if debug or context.find_root().params.get("_debug"):
                    for line in "".join(traceback.format_exception(error)).splitlines():
                        say(line, err=True)
                go_on = next((hint for option, hint in GO_ON.items() if option in options), "")
                message, code = explain(error, go_on)
                if isinstance(error, SemiGPCError | ImportError):
                    message = as_options(message, context)
                say(f"semigpc {verb}: {message}", err=True)
                raise typer.Exit(code) from None

        signature = inspect.signature(function)
        ours = {"context": typer.Context, "debug": Debug}
        extra = [
            inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
            inspect.Parameter(
                "debug", inspect.Parameter.KEYWORD_ONLY, annotation=Debug, default=False
            ),
        ]
        wrapper.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), *extra]
        )
        wrapper.__annotations__ = function.__annotations__ | ours
        return wrapper  # type: ignore[return-value]

    return decorate


def _check_current_folder() -> None:
    """Raise a DataError if it was deleted: loading torch would then end in a fatal error of MKL."""
    try:
        Path.cwd()
    except OSError as error:
        raise DataError(
            f"The current folder cannot be used: {error.strerror}. Change to another one (cd) and "
            "run the command there."
        ) from error


def as_options(message: str, context: typer.Context | None = None) -> str:
    """Rewrite the parameters that a message names as options of a verb, the running one if None.

    A parameter is known by its name in the verb's signature or by that of the option, so that
    both id_column and id become ``--id``; names that the verb does not have stay as they are.
    """
    context = context or _running.get()
    options: dict[str, str] = {}
    for parameter in context.command.params:
        if isinstance(parameter, TyperArgument):
            options[parameter.name or ""] = parameter.metavar or (parameter.name or "").upper()
            continue
        for option in (*parameter.opts, *parameter.secondary_opts):
            options[option.removeprefix("--").replace("-", "_")] = option
        options[parameter.name or ""] = parameter.opts[0]

    def assigned(match: re.Match[str]) -> str:
        name = match["name"]
        value = match["value"]
        if value == "False":
            return options.get(f"no_{name}", match[0])
        if name not in options:
            return match[0]
        if value in ("True", "..."):
            return options[name]
        return f"{options[name]} {value if ' ' in value else value.strip(QUOTE)}"

    message = ASSIGNMENT.sub(assigned, message)
    return MENTION.sub(lambda match: options.get(match["name"], match[0]), message)


def explain(error: BaseException, go_on: str = "") -> tuple[str, int]:
    """Return the paragraph for an error, and the exit code; ``go_on`` is added if the verb was
    stopped and can resume.
    """
    if f"{type(error).__module__}.{type(error).__qualname__}" == RANK_ERROR:
        message, decided = explain(error.error, go_on)  # type: ignore[attr-defined]
        return f"rank {error.rank}: {message}", decided  # type: ignore[attr-defined]
    for kind in type(error).__mro__:
        code = EXIT_CODES.get(kind)
        if f"{kind.__module__}.{kind.__qualname__}" == STOPPED_ERROR:
            code = STOPPED
        if code is not None:
            passing = isinstance(error, WriteError) and error.passing
            can_go_on = code == STOPPED or passing
            return f"{_paragraph(error)} {go_on if can_go_on else ''}".rstrip(), code
    name = type(error).__name__
    advice = "Unexpected error. Re-run with --debug and report the traceback."
    return f"{name}: {' '.join(str(error).split())}. {advice}", FAILURE


def _paragraph(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; what was saved before is intact."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}." if error.filename else f"{error.strerror}."
    text = str(error)
    if isinstance(error, ImportError) and "pip install" not in text:
        text = f"{text}. Run semigpc doctor to check the installation."
    return " ".join(text.split())


def _belongs_to_typer(error: BaseException) -> bool:
    """Whether it is an exit or a usage error, which typer prints itself."""
    return isinstance(error, typer.Exit | typer.Abort | typer.BadParameter) or type(
        error
    ).__module__.startswith("typer.")
