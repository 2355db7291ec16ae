"""The text of a corpus as a cache takes it in: read through the sieve, with any verdicts about duplicates."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.activity import Activity
from headrace.data.corpus.chunks import Chunk
from headrace.data.corpus.readers import Reader
from headrace.data.corpus.segments import Segment
from headrace.data.corpus.sources import Source
from headrace.data.selection.folder import RecordFolder, Scratches, Verdicts
from headrace.data.selection.options import Selection
from headrace.data.selection.reasons import DUPLICATE, NAMES
from headrace.data.selection.sieve import Sieve
from headrace.data.selection.survey import survey
from headrace.files import digest


@dataclass(frozen=True)
class SelectedText:
    """The segments of a corpus without the documents that are left out."""

    segments: list[Segment]
    """The segments, with fingerprints that change with what is left out of them."""
    selection: Selection
    records: RecordFolder
    _sieve: Sieve
    _verdicts: Verdicts | None

    def chunks(self, reader: Reader, number: int) -> Iterator[Chunk]:
        """Yield what is kept of a segment; its documents are recorded on the way if they are not yet."""
        verdict = None if self._verdicts is None else self._verdicts.segments[number]
        store = None if self.records.has(number) else functools.partial(self.records.write, number)
        return self._sieve.chunks(reader, self.segments[number], verdict, store)

    def count_duplicates(self, dropped: dict[str, dict[str, int]]) -> dict[str, int] | None:
        """Return how many documents and bytes repeat earlier ones exactly, given what was dropped; None: not known."""
        if self._verdicts is not None:
            return dropped.get(NAMES[DUPLICATE], {"documents": 0, "bytes": 0})
        return self.records.count_duplicates()


def select_text(
    sources: Sequence[Source],
    segments: Sequence[Segment],
    selection: Selection,
    cache: Path,
    scratch: Scratches,
    activity: Activity,
    num_workers: int | None = None,
    memory_budget: int | None = None,
) -> SelectedText:
    """Prepare the reading of a corpus. If duplicates are to be dropped, all text is read once, now, and hashed."""
    sieve = Sieve(sources, selection)
    bands = f"near {selection.near_threshold!r}" if selection.is_near else ""
    names = [digest("documents-1", segment.fingerprint, sieve.mark(segment), bands) for segment in segments]
    records = RecordFolder(cache, scratch, names, selection.num_keys)
    verdicts = None
    if selection.drops_duplicates:
        survey(sources, segments, sieve, records, num_workers, memory_budget, activity)
        verdicts = records.decide()
    selected = []
    for number, segment in enumerate(segments):
        marks = [sieve.mark(segment), "" if verdicts is None else verdicts.digests[number]]
        selected.append(replace(segment, fingerprint=digest(segment.fingerprint, *marks)) if any(marks) else segment)
    return SelectedText(selected, selection, records, sieve, verdicts)
