"""Export: a finished run as one file that answers without semigpc, checked against what it says here."""
