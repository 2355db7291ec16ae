"""Pure functions from counts, peaks and timings to the numbers that people quote; docs/metrics.md explains each."""
