"""Parquet: every row of a text column is a document, read in bounded batches whatever the file claims about itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.data.corpus.expansion import check_expansion, expansion_limit
from headrace.data.corpus.formats.arrow.columns import BATCH_BYTES, bounded_texts, check_text_column
from headrace.data.corpus.formats.format import Piece, RecordFormat
from headrace.data.corpus.formats.parquet_pages import page_bytes
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError

DECODED_BYTES = 16 << 20
MAX_BATCH_ROWS = 1024


class Parquet(RecordFormat):
    """Parquet files, divided between row groups."""

    name = "parquet"
    suffixes = frozenset([".parquet"])
    shown = ".parquet"

    def divide(self, source: Source, file: SourceFile) -> list[Piece]:
        pieces: list[Piece] = []
        begin = nbytes = 0
        sizes = row_group_bytes(file.path, source.text_field)
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
        for first_row, values in iterate_texts(file.path, source.text_field, begin, end, limit):
            expanded += sum(len(value) for value in values if value)
            check_expansion(source, file, expanded)
            yield first_row, values


def row_group_bytes(path: str, column: str) -> list[int]:
    """Return the uncompressed bytes of the text column in each row group, as the footer claims."""
    with _opened(path, column) as file:
        number = _column_number(file, column)
        groups = range(file.metadata.num_row_groups)
        return [file.metadata.row_group(group).column(number).total_uncompressed_size for group in groups]


def iterate_texts(
    path: str, column: str, begin: int, end: int, max_page_bytes: int
) -> Iterator[tuple[int, list[bytes | None]]]:
    """Yield the texts of row groups [begin, end) as UTF-8 bytes, about a MiB at a time, each batch with the number of
    its first row in the file; None where a row has no text. Pages that expand beyond a limit are refused unread."""
    import pyarrow as pa

    with _opened(path, column) as file:
        metadata = file.metadata
        number = _column_number(file, column)
        row = sum(metadata.row_group(group).num_rows for group in range(begin))
        for group in range(begin, end):
            facts = metadata.row_group(group)
            try:
                expanded, dictionary_bytes = page_bytes(path, facts.column(number))
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
def _opened(path: str, column: str) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pa.OSFile(os.fsencode(path)) as handle:  # as bytes: a path may be anything, and is never an address
            metadata = pq.read_metadata(handle)
            check_text_column(path, column, metadata.schema.to_arrow_schema())
            # Without these, pyarrow reads whole column chunks ahead. (Asked for dictionaries, it would make one of all
            # values of a row group, also where the file has none.)
            options = {"pre_buffer": False, "buffer_size": 1 << 20}
            with pq.ParquetFile(handle, metadata=metadata, **options) as file:
                yield file
    except (pa.ArrowException, OSError) as problem:
        raise CorpusError(f"{path}: not a readable parquet file: {problem}") from None
