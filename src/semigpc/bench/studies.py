"""A study: a measurement on every problem and seed, kept as it goes, so that it can be stopped and go on."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from semigpc.bench.long_tails import Pool

Record = dict[str, Any]


class OnData(Protocol):
    """A problem that is cut out of a data set."""

    @property
    def data(self) -> str:
        """Name of the data set."""

    @property
    def name(self) -> str:
        """For tables."""


Case = TypeVar("Case", bound=OnData)


def run_study(
    problems: Sequence[Case],
    loaders: Mapping[str, Callable[[], Pool]],
    seeds: int,
    out: Path,
    *,
    measure: Callable[[Case, Pool, int], Record],
    summarise: Callable[[Sequence[Record]], Record],
    advance: Callable[[str], None],
) -> list[Record]:
    """All problems and seeds; what ``out`` holds already is not run again, and it is written after every one of them.

    Args:
        problems: to measure. loaders: of their data sets. seeds: of each, from 0. out: JSON of summary and records.
        measure: a record, with ``problem`` and ``seed``, of a problem, its data and a seed. summarise: all records.
        advance: told the name of a problem whenever a seed of it is done.
    """
    records: list[Record] = json.loads(out.read_text())["records"] if out.exists() else []
    done = {(record["problem"], record["seed"]) for record in records}
    pools: dict[str, Pool] = {}
    for problem in problems:
        for seed in range(seeds):
            if (problem.name, seed) not in done:
                if problem.data not in pools:
                    pools = {problem.data: loaders[problem.data]()}
                records.append(measure(problem, pools[problem.data], seed))
                draft = out.with_name(out.name + ".part")
                draft.write_text(json.dumps({"summary": summarise(records), "records": records}, indent=1) + "\n")
                draft.replace(out)
            advance(problem.name)
    return records
