"""How long tests that try many cases go on, and by which seed; both can be set from outside to try
others.
"""

import os


def seed() -> int:
    """SEMIGPC_FUZZ_SEED, or 0."""
    return int(os.environ.get("SEMIGPC_FUZZ_SEED", "0"))


def cases(usual: int) -> int:
    """SEMIGPC_FUZZ_CASES, or as many as ``make test`` has time for."""
    return int(os.environ.get("SEMIGPC_FUZZ_CASES", usual))
