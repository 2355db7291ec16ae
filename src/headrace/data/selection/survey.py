"""The survey: a pass over the raw text that records every document before any is tokenised.

Dropping duplicates needs it: whether a document repeats an earlier one is known only when all earlier ones are. It
reads and hashes, which is several times as fast as tokenising, and only segments that have no record yet.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from headrace.activity import Activity
from headrace.data.corpus.readers import Reader
from headrace.data.corpus.remote.fetch import stopping_when
from headrace.data.corpus.segments import Segment
from headrace.data.corpus.sources import Source
from headrace.data.selection.folder import RecordFolder
from headrace.data.selection.sieve import Sieve
from headrace.units import human_bytes

# As much as a worker of the survey holds: a chunk, its documents, and arrays of hashes.
WORKER_BYTES = 64 << 20


def survey(
    sources: Sequence[Source],
    segments: Sequence[Segment],
    sieve: Sieve,
    records: RecordFolder,
    num_workers: int | None,
    memory_budget: int | None,
    activity: Activity,
) -> None:
    """Record the documents of all segments that have no record yet, with several workers."""
    missing = [unit for unit in _units(segments) if not all(map(records.has, unit))]
    if not missing:
        return
    size = sum(segments[index].nbytes for unit in missing for index in unit)
    activity(f"looking for duplicates in {human_bytes(size)} of text")
    stopping = threading.Event()
    workers = min(num_workers or os.cpu_count() or 1, len(missing), max(1, (memory_budget or 1 << 30) // WORKER_BYTES))
    reader = Reader(sources)

    def record(unit: list[int]) -> None:
        with stopping_when(stopping.is_set):  # waiting for a remote file ends too
            for index in unit:
                if not records.has(index) and not stopping.is_set():
                    _record(segments[index], index, reader, sieve, records, stopping)

    try:
        with ThreadPoolExecutor(workers, thread_name_prefix="headrace-survey") as pool:
            try:
                futures = [pool.submit(record, unit) for unit in missing]
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                stopping.set()
                for future in done:
                    future.result()
            except BaseException:
                stopping.set()
                pool.shutdown(cancel_futures=True)
                raise
    finally:
        reader.close()


def _record(
    segment: Segment, index: int, reader: Reader, sieve: Sieve, records: RecordFolder, stopping: threading.Event
) -> None:
    for _ in sieve.chunks(reader, segment, store=lambda record: records.write(index, record)):
        if stopping.is_set():
            return  # the record is not written: the generator is not run to its end


def _units(segments: Sequence[Segment]) -> Iterator[list[int]]:
    """Yield segments that can be read apart from each other; those of a file that is read front to back, together."""
    unit: list[int] = []
    for index, segment in enumerate(segments):
        if unit and not segment.needs_previous:
            yield unit
            unit = []
        unit.append(index)
    if unit:
        yield unit
