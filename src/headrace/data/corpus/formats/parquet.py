"""Parquet: every row of a text column is a document, read in bounded batches whatever the file claims about itself."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.data.corpus.expansion import check_expansion, expansion_limit
from headrace.data.corpus.formats.arrow.columns import BATCH_BYTES, bounded_texts, check_text_column
from headrace.data.corpus.formats.format import Piece, RecordFormat
from headrace.data.corpus.formats.parquet_pages import page_bytes
from headrace.data.corpus.planned_files import PlannedFile, open_planned
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError

DECODED_BYTES = 16 << 20
MAX_BATCH_ROWS = 1024
FOOTER_BYTES = 256 << 10
"""As much of the end of a file as usually holds its footer."""
KEPT_FOOTERS = 8


class Parquet(RecordFormat):
    """Parquet files, divided between row groups."""

    name = "parquet"
    suffixes = frozenset([".parquet"])
    shown = ".parquet"

    def divide(self, source: Source, file: SourceFile) -> list[Piece]:
        pieces: list[Piece] = []
        begin = nbytes = 0
        sizes = row_group_bytes(file, source.text_field)
        for number, size in enumerate(sizes, start=1):
            nbytes += size
            if nbytes >= current_scale().segment_bytes or number == len(sizes):
                pieces.append(Piece(begin, number, nbytes))
                begin, nbytes = number, 0
        return pieces

    def records(
        self, source: Source, file: SourceFile, begin: int, end: int
    ) -> Iterator[tuple[int, list[bytes | None]]]:
        expanded = 0
        limit = expansion_limit(source, file)
        for first_row, values in iterate_texts(file, source.text_field, begin, end, limit):
            expanded += sum(len(value) for value in values if value)
            check_expansion(source, file, expanded)
            yield first_row, values


def row_group_bytes(planned: SourceFile, column: str) -> list[int]:
    """Return the uncompressed bytes of the text column in each row group, as the footer claims."""
    with _opened(planned, column) as (file, _):
        number = _column_number(file, column)
        groups = range(file.metadata.num_row_groups)
        return [file.metadata.row_group(group).column(number).total_uncompressed_size for group in groups]


def iterate_texts(
    planned: SourceFile, column: str, begin: int, end: int, max_page_bytes: int
) -> Iterator[tuple[int, list[bytes | None]]]:
    """Yield the texts of row groups [begin, end) as UTF-8 bytes, about a MiB at a time, each batch with the number of
    its first row in the file; None where a row has no text. Pages that expand beyond a limit are refused unread."""
    import pyarrow as pa

    path = planned.path
    with _opened(planned, column) as (file, raw):
        metadata = file.metadata
        number = _column_number(file, column)
        row = sum(metadata.row_group(group).num_rows for group in range(begin))
        for group in range(begin, end):
            facts = metadata.row_group(group)
            try:
                expanded, dictionary_bytes = page_bytes(raw, facts.column(number))
                if expanded > max_page_bytes:
                    raise CorpusError(
                        f"{path}: row group {group} expands to {expanded >> 20:,} MiB: a decompression bomb? If it is"
                        " meant to, raise the limit: data.max_expansion=FACTOR"
                    )
                row_bytes = expanded / max(facts.num_rows, 1)
                # A row may stand for all of a dictionary, and a batch is decoded whole.
                most_rows = min(MAX_BATCH_ROWS, DECODED_BYTES / max(dictionary_bytes, 1))
                batch_rows = int(max(1, min(most_rows, BATCH_BYTES / max(row_bytes, 1))))
                for batch in file.iter_batches(batch_rows, row_groups=[group], columns=[column], use_threads=False):
                    for texts in bounded_texts(batch.column(0)):
                        yield row, texts
                        row += len(texts)
            except (pa.ArrowException, OSError, ValueError) as problem:
                raise CorpusError(
                    f"{path}: damaged or truncated parquet file (row group {group}, after row {row}: {problem})."
                ) from None


def _column_number(file: Any, column: str) -> int:
    schema = file.metadata.schema
    return next(i for i in range(file.metadata.num_columns) if schema.column(i).path == column)


@contextmanager
def _opened(planned: SourceFile, column: str) -> Iterator[tuple[Any, PlannedFile]]:
    """Open a file as parquet, and as itself."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = planned.path
    try:
        with open_planned(planned) as raw, _as_arrow(planned, raw) as handle:
            metadata = _footers.read(planned, raw, handle)
            check_text_column(path, column, metadata.schema.to_arrow_schema())
            # Without these, pyarrow reads whole column chunks ahead. (Asked for dictionaries, it would make one of all
            # values of a row group, also where the file has none.)
            options = {"pre_buffer": False, "buffer_size": 1 << 20}
            with pq.ParquetFile(handle, metadata=metadata, **options) as file:
                yield file, raw
    except (pa.ArrowException, OSError) as problem:
        raise CorpusError(f"{path}: not a readable parquet file: {problem}") from None


def _as_arrow(planned: SourceFile, raw: PlannedFile) -> Any:
    import pyarrow as pa

    # As bytes: the path of a file on this disk may be anything, and is never an address to pyarrow.
    return pa.PythonFile(raw, mode="r") if planned.is_remote else pa.OSFile(os.fsencode(planned.path))


class _Footers:
    """The footers of the remote files that were read last: each segment of a file needs its footer."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, planned: SourceFile, raw: PlannedFile, handle: Any) -> Any:
        import pyarrow.parquet as pq

        key = planned.fingerprint
        with self._lock:
            if planned.is_remote and key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        raw.expect(max(0, planned.size - FOOTER_BYTES), planned.size)
        metadata = pq.read_metadata(handle)
        if planned.is_remote:
            with self._lock:
                self._known[key] = metadata
                while len(self._known) > KEPT_FOOTERS:
                    self._known.popitem(last=False)
        return metadata


_footers = _Footers()
