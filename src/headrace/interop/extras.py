"""Optional libraries of neighbours: see `headrace.extras`, which the data engine uses too."""

from headrace.extras import require

__all__ = ["require"]
