"""Arrow files, as Hugging Face datasets keep them: every row of a text column is a document, mapped and never copied.

Both layouts of the Arrow format are read: a stream of record batches (what `datasets` writes) and the same with a table
of contents behind it (.feather). A piece is a range of bytes between two record batches.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.data.corpus.expansion import check_expansion
from headrace.data.corpus.formats.arrow.columns import bounded_texts, check_text_column
from headrace.data.corpus.formats.format import Piece, RecordFormat
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.sources import Source, SourceFile
from headrace.errors import CorpusError

_FILE_MAGIC = b"ARROW1\0\0"
_MOST_EXPANDED_BYTES = 64 << 20


class Arrow(RecordFormat):
    """Arrow files, divided between record batches."""

    name = "arrow"
    suffixes = frozenset([".arrow", ".feather"])
    shown = ".arrow"

    def divide(self, source: Source, file: SourceFile) -> list[Piece]:
        pieces: list[Piece] = []
        with _opened(file, source.text_field) as arrow:
            begin, nbytes = arrow.start, 0
            for end, batch in arrow.batches():
                nbytes += _text_bytes(batch.column(source.text_field))
                if nbytes >= current_scale().segment_bytes:
                    pieces.append(Piece(begin, end, nbytes))
                    begin, nbytes = end, 0
            if nbytes or not pieces:
                pieces.append(Piece(begin, arrow.size, nbytes))
        return pieces

    def records(
        self, source: Source, file: SourceFile, begin: int, end: int
    ) -> Iterator[tuple[int, list[bytes | None]]]:
        expanded = 0
        with _opened(file, source.text_field) as arrow:
            row = sum(batch.num_rows for _, batch in arrow.batches(stop=begin))
            for _, batch in arrow.batches(begin, end):
                for texts in bounded_texts(batch.column(source.text_field)):
                    expanded += sum(len(text) for text in texts if text)
                    check_expansion(source, file, expanded)
                    yield row, texts
                    row += len(texts)


class _ArrowFile:
    """An Arrow file mapped into memory: its schema, and its record batches from any of their offsets on."""

    def __init__(self, path: str, mapped: Any) -> None:
        import pyarrow as pa

        self.path = path
        self.size = mapped.size()
        self._mapped = mapped
        if mapped.read(len(_FILE_MAGIC)) != _FILE_MAGIC:
            mapped.seek(0)
        self.schema = pa.ipc.read_schema(pa.ipc.read_message(mapped))
        self.start = mapped.tell()

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Any]]:
        """Yield the record batches that begin in [start, stop), each with the offset where it ends.

        Compressed batches, which are the only ones that take memory, are refused beyond 64 MiB before they are read.
        """
        import pyarrow as pa

        self._mapped.seek(start or self.start)
        while stop is None or self._mapped.tell() < stop:
            before = self._mapped.tell()
            try:
                message = pa.ipc.read_message(self._mapped)
            except EOFError:  # the mark at the end of the stream
                if before == self.size:
                    raise CorpusError(f"{self.path}: truncated Arrow file (it lacks the mark at its end).") from None
                return
            if message.type != "record batch":
                raise CorpusError(
                    f"{self.path}: holds a {message.type}, which headrace does not read. Save it as .parquet instead."
                )
            place = self._mapped.tell()
            expanded = _expanded_bytes(message)
            if expanded > _MOST_EXPANDED_BYTES:
                raise CorpusError(
                    f"{self.path}: a compressed record batch of {expanded >> 20:,} MiB does not fit in bounded memory."
                    " Save the file without compression, or as .parquet."
                )
            yield place, pa.ipc.read_record_batch(message, self.schema)
            self._mapped.seek(place)


@contextmanager
def _opened(file: SourceFile, column: str) -> Iterator[_ArrowFile]:
    import pyarrow as pa

    path = file.path
    if file.is_remote:
        raise CorpusError(
            f"{path}: Arrow files are mapped from this disk, not read from a server. Copy the file here, or save it as"
            " .parquet."
        )
    try:
        with pa.memory_map(os.fsencode(path)) as mapped:
            arrow = _ArrowFile(path, mapped)
            check_text_column(path, column, arrow.schema)
            yield arrow
    except FileNotFoundError:
        raise CorpusError(f"{path}: was removed while the corpus was being read. Run again.") from None
    except (pa.ArrowException, OSError, EOFError, struct.error) as problem:
        raise CorpusError(f"{path}: damaged or truncated Arrow file ({problem}).") from None


def _text_bytes(values: Any) -> int:
    """Return the bytes of text in a column, from its offsets alone: the text is not touched."""
    import pyarrow.compute as pc

    return int(pc.sum(pc.binary_length(values)).as_py() or 0)


def _expanded_bytes(message: Any) -> int:
    """Return how many bytes the buffers of a record batch say they expand to; 0 if it is not compressed.

    The message is a table of flatbuffers: a table begins with its distance to the offsets of its fields. pyarrow has
    checked it, but does not tell this. Each compressed buffer begins with its expanded length.
    """
    data, body = message.metadata.to_pybytes(), memoryview(message.body)

    def field(table: int, number: int) -> int:
        offsets = table - struct.unpack_from("<i", data, table)[0]
        is_there = 4 + 2 * number < struct.unpack_from("<H", data, offsets)[0]
        offset = struct.unpack_from("<H", data, offsets + 4 + 2 * number)[0] if is_there else 0
        return table + offset if offset else 0

    def follow(place: int) -> int:
        return place + int(struct.unpack_from("<I", data, place)[0])

    batch = follow(field(follow(0), 2))
    if not field(batch, 3):
        return 0
    buffers = follow(field(batch, 2))
    places = struct.iter_unpack(
        "<qq", data[buffers + 4 : buffers + 4 + 16 * struct.unpack_from("<I", data, buffers)[0]]
    )
    return sum(max(struct.unpack_from("<q", body, place)[0], length) for place, length in places if length)
