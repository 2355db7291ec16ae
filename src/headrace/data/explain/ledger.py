"""What becomes of every token in one pass over a corpus. The sums are exact, always."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from headrace.data.order.packing import DocumentPacking
from headrace.data.order.stream import Stream
from headrace.data.selection.reasons import dropped_counts


@dataclass(frozen=True)
class Ledger:
    """What becomes of the tokens of one pass: `trained + carried + dropped == tokens`."""

    tokens: int
    """Tokens in this part of the corpus, end-of-text included."""
    trained: int
    """Tokens that rows of this pass read: as inputs, or as the end-of-text that closes a document."""
    carried: int
    """Tokens left over at the end, which the next pass begins with."""
    dropped: int
    """Tokens of skipped documents, and single tokens that nothing can be predicted from."""
    rows: int
    slots: int
    """Places for tokens in those rows."""
    filled: int
    """Places that hold a token to be trained on; the rest is padding."""
    source: str = ""
    """The source of a mixture; empty: the whole corpus."""
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    """Documents that never became tokens: for each reason, the number of `documents` and of `bytes`."""

    @property
    def fill_percent(self) -> float:
        return 100 * self.filled / max(self.slots, 1)


def pass_ledger(stream: Stream, source: str = "") -> Ledger:
    """Count one pass over a corpus or a source, without making its batches."""
    noticed: Counter[str] = Counter()
    for segment in stream.segments.tolist():
        noticed += stream.cache.entry(segment).noticed
    return replace(_token_ledger(stream), source=source, left_out=dropped_counts(noticed))


def _token_ledger(stream: Stream) -> Ledger:
    packing = stream.packing
    length = packing.sequence_length
    rows = packing.num_rows(stream.epoch_size())
    tokens = sum(map(stream.split.num_tokens, stream.segments.tolist()))
    if isinstance(packing, DocumentPacking):
        return _document_ledger(stream, packing, tokens, rows)
    dropped = _skipped_tokens(stream, rows * length)
    filled = rows * length
    return Ledger(tokens, filled - dropped, tokens - filled, dropped, rows, rows * length, filled - dropped)


def _document_ledger(stream: Stream, packing: DocumentPacking, tokens: int, rows: int) -> Ledger:
    filled = trained = 0
    for segment in stream.segments.tolist():
        first, last = stream.split.documents(segment)
        kept = last - first > 1
        for skip_start, skip_stop in stream.skipped.get(segment, []):
            kept &= (first >= skip_stop) | (last <= skip_start)
        trained += int((last - first)[kept].sum())
        filled += int((last - first - 1)[kept].sum())
    return Ledger(tokens, trained, 0, tokens - trained, rows, rows * packing.sequence_length, filled)


def _skipped_tokens(stream: Stream, limit: int) -> int:
    """Count the inputs of skipped documents among the first `limit` positions of a pass."""
    if not stream.skipped:
        return 0
    total = 0
    for extent in stream.extents(0, limit):
        for start, stop in stream.skipped.get(extent.segment, []):
            total += max(0, min(stop, extent.stop) - max(start, extent.start))
    return total
