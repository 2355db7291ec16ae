"""Filters: whether a document is kept by its length, its language and a user's function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.data.corpus.sources import Source
from headrace.data.selection import language
from headrace.data.selection.keep import Keep
from headrace.data.selection.reasons import FUNCTION, KEPT, LANGUAGE, NOT_JUDGED, TOO_LONG, TOO_SHORT


class Filters:
    """The filters of one source. What they say of a document depends on that document alone."""

    def __init__(self, source: Source, keep: Keep | None) -> None:
        self._least = source.min_document_bytes or 0
        self._most = source.max_document_bytes
        self._languages = frozenset(source.languages)
        self._keep = keep
        self._ask = bool(self._languages or keep)
        self.is_any = bool(source.filters) or keep is not None

    @property
    def drops_pieces(self) -> bool:
        """Whether documents that lie across segments are left out: they are longer than any limit."""
        return self._most is not None

    def judge(self, documents: Sequence[bytes], place: str, first: int) -> list[int]:
        """Return a reason for each document, or KEPT; `place` and the number of the first one name them in errors."""
        if not self.is_any:
            return [KEPT] * len(documents)
        return [self._reason(document, place, number) for number, document in enumerate(documents, start=first)]

    def judge_piece(self, is_end: bool, noticed: Counter[str]) -> int:
        """Return the reason for a piece of a document, the same for all of its pieces."""
        if self.drops_pieces:
            return TOO_LONG
        if self._ask and is_end:
            noticed[NOT_JUDGED] += 1
        return KEPT

    def _reason(self, document: bytes, place: str, number: int) -> int:
        if len(document) < self._least:
            return TOO_SHORT
        if self._most is not None and len(document) > self._most:
            return TOO_LONG
        if self._languages and language.detect(_beginning(document)) not in self._languages:
            return LANGUAGE
        if self._keep is not None and not self._keep(document, f"{place}, document {number}"):
            return FUNCTION
        return KEPT


def _beginning(document: bytes) -> str:
    """Return as much of a document as its language is told by."""
    return document[: 4 * language.JUDGED_CHARACTERS].decode(errors="ignore")
