"""Export: a finished run as one file that needs no semigpc, checked against the run."""
