"""``python -m semigpc``."""

from semigpc.cli import main

main()
