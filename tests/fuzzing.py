"""How many cases the randomised tests try, and from which seed; ``make test-all`` sets both."""

import os


def seed() -> int:
    """Return SEMIGPC_FUZZ_SEED, or 0."""
    return int(os.environ.get("SEMIGPC_FUZZ_SEED", "0"))


def cases(usual: int) -> int:
    """Return the usual number of cases, times SEMIGPC_FUZZ_TIMES where that is set."""
    return usual * int(os.environ.get("SEMIGPC_FUZZ_TIMES", "1"))
