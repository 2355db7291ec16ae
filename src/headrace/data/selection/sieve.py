"""The sieve between files and tokenizer: it lets through the documents that are kept, and records all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.data.corpus.chunks import Chunk, FilePart
from headrace.data.corpus.readers import Reader
from headrace.data.corpus.segments import Segment
from headrace.data.corpus.sources import Source
from headrace.data.selection.filters import Filters
from headrace.data.selection.hashing import Hashes, document_hashes
from headrace.data.selection.minhash import band_keys
from headrace.data.selection.options import Selection
from headrace.data.selection.reasons import KEPT, count_dropped
from headrace.data.selection.records import GatheredRecord, Slab, pack_facts
from headrace.files import digest

_SLAB_DOCUMENTS = 4096
"""Documents whose keys are computed together."""


@dataclass(frozen=True)
class Verdict:
    """What was decided about the documents of a segment, before it is tokenised."""

    parts: list[int]
    """How many documents each part of the segment has."""
    reasons: npt.NDArray[np.uint8]


class Sieve:
    """Reads segments through the selection of a corpus; safe to use from several threads."""

    def __init__(self, sources: Sequence[Source], selection: Selection) -> None:
        self._selection = selection
        self._filters = [Filters(source, selection.keep) for source in sources]
        self._marks = [selection.filters(source) for source in sources]

    def chunks(
        self,
        reader: Reader,
        segment: Segment,
        verdict: Verdict | None = None,
        store: Callable[[GatheredRecord], None] | None = None,
    ) -> Iterator[Chunk]:
        """Yield the text of a segment without what is left out: by the verdict, or else by the filters.

        `store` gets the record of all of its documents at the end.
        """
        first, parts = 0, 0
        recorded: list[_SievedPart] = []
        for chunk in reader.chunks(segment):
            sieved = []
            for part in chunk.parts:
                reasons = None
                if verdict is not None:
                    count = verdict.parts[parts]
                    reasons = verdict.reasons[first : first + count]
                    first, parts = first + count, parts + 1
                sieved.append(_SievedPart(self, segment, part, reasons, store is not None))
            through = Chunk()
            for one in sieved:
                through.add(one.file_part())
            yield through
            for one in sieved if store is not None else ():
                one.finish_recording()
            recorded += sieved
        if store is not None:
            counts = [sum(len(slab.facts) for slab in one.slabs) for one in recorded]
            slabs = [slab for one in recorded for slab in one.slabs]
            store(GatheredRecord(counts, slabs, self._selection.num_keys))

    def filters(self, segment: Segment) -> Filters:
        return self._filters[segment.source]

    def mark(self, segment: Segment) -> str:
        """Return what identifies the filters of a segment's source; "" if it has none."""
        return self._marks[segment.source]

    def keys(self, documents: Sequence[bytes]) -> Hashes:
        """Return the keys of documents by which duplicates are found: (keys, documents)."""
        exact = document_hashes(documents)[None]
        if not self._selection.is_near:
            return exact
        return np.concatenate([exact, band_keys(documents, self._selection.near_threshold)])


class _SievedPart:
    """One file's part of a chunk, without what is left out."""

    def __init__(
        self,
        sieve: Sieve,
        segment: Segment,
        part: FilePart,
        reasons: npt.NDArray[np.uint8] | None,
        is_recorded: bool,
    ) -> None:
        self._sieve, self._segment, self._part = sieve, segment, part
        self._reasons = reasons
        self._is_recorded = is_recorded
        self._is_read = False
        self.slabs: list[Slab] = []

    def file_part(self) -> FilePart:
        """Return the part as the tokenizer sees it."""
        part = self._part
        name, is_open = part.digest, part.is_open
        if self._reasons is not None:
            if self._reasons.any():
                name = digest(part.digest, self._reasons.tobytes())
            is_open = is_open and (not len(self._reasons) or self._reasons[-1] == KEPT)
        elif self._sieve.mark(self._segment):
            name = digest(part.digest, self._sieve.mark(self._segment))
            is_open = is_open and not self._sieve.filters(self._segment).drops_pieces
        return FilePart(part.name, name, part.nbytes, bool(is_open), self._documents, part.is_continuation)

    def finish_recording(self) -> None:
        """Record documents whose tokens were there already, so that nobody asked for their text."""
        if not self._is_read:
            for _ in self._documents(Counter()):
                pass

    def _documents(self, noticed: Counter[str]) -> Iterator[list[bytes]]:
        self._is_read = True
        self.slabs = []
        number = 0
        for batch, is_last in _with_last(self._part.documents(noticed)):
            if not batch:
                continue
            starts_inside = self._part.is_continuation and number == 0
            ends_inside = self._part.is_open and is_last
            reasons = self._judge(batch, number, starts_inside, ends_inside, noticed)
            if self._is_recorded:
                facts = pack_facts([len(text) for text in batch], reasons, starts_inside, ends_inside)
                for start in range(0, len(batch), _SLAB_DOCUMENTS):
                    stop = start + _SLAB_DOCUMENTS
                    self.slabs.append(Slab.of(facts[start:stop], self._sieve.keys(batch[start:stop])))
            number += len(batch)
            if any(reasons):
                for reason, text, is_piece in zip(reasons, batch, _only_last(len(batch), ends_inside), strict=True):
                    if reason:
                        count_dropped(noticed, reason, not is_piece, len(text))
                batch = [text for text, reason in zip(batch, reasons, strict=True) if not reason]
            if batch:
                yield batch

    def _judge(
        self, batch: list[bytes], first: int, starts_inside: bool, ends_inside: bool, noticed: Counter[str]
    ) -> list[int]:
        if self._reasons is not None:
            reasons: list[int] = self._reasons[first : first + len(batch)].tolist()
            return reasons
        filters = self._sieve.filters(self._segment)
        if not filters.is_any:
            return [KEPT] * len(batch)
        is_one_piece = starts_inside and ends_inside and len(batch) == 1
        begin, end = int(starts_inside), len(batch) - int(ends_inside and not is_one_piece)
        head = [filters.judge_piece(not is_one_piece, noticed)] if starts_inside else []
        tail = [filters.judge_piece(False, noticed)] if ends_inside and not is_one_piece else []
        return [*head, *filters.judge(batch[begin:end], self._place(), first + begin), *tail]

    def _place(self) -> str:
        """Return the file, and which segment of it, for error messages."""
        segment = self._segment
        file = segment.path[: segment.root_length] + self._part.name if segment.names_files else segment.path
        return f"{file} (segment {segment.ordinal})" if segment.ordinal else file


def _with_last(batches: Iterator[list[bytes]]) -> Iterator[tuple[list[bytes], bool]]:
    """Yield each batch with whether it is the last."""
    held: list[bytes] | None = None
    for batch in batches:
        if held is not None:
            yield held, False
        held = batch
    if held is not None:
        yield held, True


def _only_last(count: int, is_last: bool) -> Iterator[bool]:
    return (is_last and number == count - 1 for number in range(count))
