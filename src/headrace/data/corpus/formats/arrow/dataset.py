"""Rows of a Hugging Face dataset in this process: each is a document, taken from its Arrow table without copying it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from headrace.data.corpus.chunks import Chunk
from headrace.data.corpus.datasets.objects import DatasetTable, require_table
from headrace.data.corpus.formats.arrow.columns import BATCH_BYTES, bounded_texts, check_text_column
from headrace.data.corpus.formats.format import Piece, RecordFormat
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import Source, SourceFile


class DatasetRows(RecordFormat):
    """Datasets of this process, divided into equal numbers of rows."""

    name = "dataset"
    suffixes = frozenset[str]()
    shown = "Hugging Face datasets"

    def divide(self, source: Source, file: SourceFile) -> list[Piece]:
        num_rows = require_table(file.path).num_rows
        count = max(1, min(num_rows, round(file.size / current_scale().segment_bytes)))
        bounds = [number * num_rows // count for number in range(count + 1)]
        sizes = [number * file.size // count for number in range(count + 1)]
        return [
            Piece(begin, end, after - before)
            for (begin, end), (before, after) in zip(pairwise(bounds), pairwise(sizes), strict=True)
        ]

    def read(self, source: Source, file: SourceFile, begin: int, end: int, is_last: bool) -> Iterator[Chunk]:
        dataset = require_table(file.path)
        dataset.check_unchanged()
        yield from self.chunks(source, file, begin, end)
        dataset.check_unchanged()

    def records(
        self, source: Source, file: SourceFile, begin: int, end: int
    ) -> Iterator[tuple[int, list[bytes | None]]]:
        dataset = require_table(file.path)
        column = _column(dataset, source.text_field)
        if dataset.indices is not None:
            yield from _chosen_rows(column, dataset.indices.slice(begin, end - begin), begin)
            return
        row = begin
        for chunk in column.slice(begin, end - begin).chunks:
            for texts in bounded_texts(chunk):
                yield row, texts
                row += len(texts)


DATASET = DatasetRows()


def text_bytes(dataset: DatasetTable, column: str) -> int:
    """Return the bytes of text in a dataset, from lengths alone; an estimate if it has only some rows of its table."""
    import pyarrow.compute as pc

    total = sum(int(pc.sum(pc.binary_length(chunk)).as_py() or 0) for chunk in _column(dataset, column).chunks)
    return int(total * dataset.num_rows // max(dataset.table.num_rows, 1))


def _column(dataset: DatasetTable, column: str) -> Any:
    remedy = "hr.Source(path=dataset, text_field=NAME)"
    check_text_column(dataset.path, column, dataset.table.schema, remedy)
    return dataset.table.column(column)


def _chosen_rows(column: Any, rows: Any, first: int) -> Iterator[tuple[int, list[bytes | None]]]:
    """Yield rows in an order of their own, about a MiB at a time, each batch with the number of its first row."""
    texts: list[bytes | None] = []
    nbytes = 0
    for chunk in rows.chunks:
        for row in chunk.to_numpy(zero_copy_only=False):
            value = column[int(row)]
            texts.append(value.as_buffer().to_pybytes() if value.is_valid else None)
            nbytes += len(texts[-1] or b"")
            if nbytes >= BATCH_BYTES:
                yield first, texts
                first += len(texts)
                texts, nbytes = [], 0
    if texts:
        yield first, texts
