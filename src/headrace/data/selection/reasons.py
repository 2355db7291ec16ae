"""Reasons why a document is left out of a cache, and how the counts of each travel with the tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

KEPT = 0
TOO_SHORT, TOO_LONG, LANGUAGE, FUNCTION, DUPLICATE, NEAR_DUPLICATE = range(1, 7)
NAMES = ("", "too_short", "too_long", "language", "function", "duplicate", "near_duplicate")
"""The reasons as reports and JSON call them, by number."""
NOT_JUDGED = "documents_not_judged"
"""Counts documents in pieces, which neither a language nor a user's function is asked about."""
_MARK = "dropped"


def count_dropped(noticed: Counter[str], reason: int, num_documents: int, num_bytes: int) -> None:
    """Count documents that are left out, among what is noticed in a text."""
    noticed[f"{_MARK} {NAMES[reason]} documents"] += num_documents
    noticed[f"{_MARK} {NAMES[reason]} bytes"] += num_bytes


def dropped_counts(noticed: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return what was left out: for each reason the number of documents and of bytes.

    >>> dropped_counts({"dropped too_short documents": 2, "dropped too_short bytes": 9, "empty_documents": 1})
    {'too_short': {'documents': 2, 'bytes': 9}}
    """
    return {
        name: {unit: noticed.get(f"{_MARK} {name} {unit}", 0) for unit in ("documents", "bytes")}
        for name in NAMES[1:]
        if f"{_MARK} {name} bytes" in noticed
    }


def without_dropped(noticed: Mapping[str, int]) -> Counter[str]:
    """Return what was noticed besides documents that were left out."""
    return Counter({kind: count for kind, count in noticed.items() if not kind.startswith(f"{_MARK} ")})
