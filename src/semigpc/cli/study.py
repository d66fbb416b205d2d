"""What the studies of ``semigpc bench`` have in common: their options are checked, and a bar follows problems and seeds."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import Progress

if TYPE_CHECKING:
    from semigpc.bench.studies import Case


def run_verb(
    problems: "Sequence[Case]",
    measure: "Callable[[Case, Any, int], dict[str, Any]]",
    summarise: Callable[[Sequence[dict[str, Any]]], dict[str, Any]],
    *,
    out: Path,
    plot: Path | None,
    embeddings: Path | None,
    data: list[str] | None,
    seeds: int,
) -> dict[str, Any]:
    """Run what is asked for of a study, and answer with its summary."""
    from semigpc.bench.long_tails import loaders
    from semigpc.bench.studies import run_study

    for option, path in (("--out", out), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent}.", param_hint=option)
    found = loaders(embeddings)
    names = {problem.data for problem in problems}
    unknown = [name for name in data or [] if name not in names]
    if unknown:
        raise typer.BadParameter(f"unknown data {unknown[0]!r}; known: {', '.join(sorted(names))}.", param_hint="--data")
    chosen = [problem for problem in problems if problem.data in (data or found)]
    missing = [problem.data for problem in chosen if problem.data not in found]
    if missing:
        raise typer.BadParameter(f"{missing[0]} needs --embeddings.", param_hint="--data")
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("problems", total=len(chosen) * seeds)

        def advance(name: str) -> None:
            bar.update(task, advance=1, description=name)

        return summarise(run_study(chosen, found, seeds, out, measure=measure, summarise=summarise, advance=advance))
