"""One file per job, wiring the parts. Read these first."""
