"""Faults done to headrace from outside, through its command line: `make faults` runs them all as one table."""
