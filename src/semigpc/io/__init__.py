"""Files that are written completely or not at all and read with checks, and the errors of both."""
