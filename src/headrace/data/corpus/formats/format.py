"""The interface of a file format: which files have it, how a file is divided, and how its parts become documents.

There are families. Text formats are runs of bytes that can be cut at any boundary, compressed as a whole, and read
together with other small files. Record formats know themselves where their records lie. Archives hold other files.
"""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from headrace.data.corpus.chunks import DOCUMENT_OVERHEAD_BYTES, Chunk, FilePart, TextRange
from headrace.data.corpus.planned_files import PlannedFile, open_planned, unchanged
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.signatures import refuse_what_is_not_text
from headrace.data.corpus.sources import Source, SourceFile
from headrace.data.corpus.streams import FileStream, SequentialFile
from headrace.data.corpus.utf8 import as_utf8, without_byte_order_mark
from headrace.errors import CorpusError

BOUNDARY_BYTES = 68 << 10
"""Text in which the end of a document is looked for first; 16 times as much is more than any text format needs."""
ASSUMED_EXPANSION = 4
"""Bytes of text that a byte of a compressed file is taken for before it is read."""


@dataclass(frozen=True)
class Piece:
    """Part of a large file that becomes one segment."""

    begin: int
    end: int
    """Bytes [begin, end), or whatever else the format counts in."""
    nbytes: int
    """Raw bytes, as far as they can be estimated without reading."""


class Format(ABC):
    """A file format."""

    name: str
    """Identifies the format in hashes of what is cached, so it never changes."""
    suffixes: frozenset[str]
    """Suffixes of its files, in lower case, each with its dot."""
    shown: str
    """The format as error messages list it."""
    is_text: bool
    """Whether small files share a segment and compressed ones are read front to back."""
    is_markup = False
    """Whether its files can also be read as plain text (`data.as_plain_text`)."""
    is_archive = False
    """Whether its files hold other files, which are named in shards."""
    mark = ""
    """What is added to the fingerprint of its files, so that tokens of another way of reading them are not used. Files
    of the formats that headrace has always had are fingerprinted without one."""

    def is_sequential(self, file: SourceFile) -> bool:
        """Check whether a file can only be read front to back."""
        return False

    def open_stream(self, source: Source, file: SourceFile) -> SequentialFile:
        """Open a file that can only be read front to back."""
        raise AssertionError(f"{file.path}: {self.name} is not read front to back")

    @abstractmethod
    def divide(self, source: Source, file: SourceFile) -> list[Piece]:
        """Divide a file into pieces of about a segment each."""

    @abstractmethod
    def read(self, source: Source, file: SourceFile, begin: int, end: int, is_last: bool) -> Iterator[Chunk]:
        """Yield the chunks of a piece of a file that is not compressed; `is_last`: the file ends with it."""


class TextFormat(Format):
    """A format of text: it says where bytes may be cut, and how they are split into documents."""

    is_text = True

    @abstractmethod
    def find_boundary(self, source: Source, window: bytes, start: int, is_end: bool) -> tuple[int, bool] | None:
        """Return the first place at or after `start` where the text may be cut, and whether a document ends there.

        No cut falls inside a character or a separator: the window shows `context_bytes` before `start`, or begins at a
        cut. `is_end`: the file ends with the window. None: the window is too short to decide.
        """

    @abstractmethod
    def split(self, source: Source, text: TextRange, raw: bytes, noticed: Counter[str]) -> Iterator[list[bytes]]:
        """Yield the documents of a range, some at a time; `raw` is its text in valid UTF-8."""

    def context_bytes(self, source: Source) -> int:
        """Return how many bytes before its start `find_boundary` looks at: by default a character."""
        return 4

    def reach_bytes(self, source: Source) -> int:
        """Return how many bytes after a segment's nominal end usually show where it really ends."""
        return BOUNDARY_BYTES

    def is_sequential(self, file: SourceFile) -> bool:
        return bool(file.compression)

    def open_stream(self, source: Source, file: SourceFile) -> SequentialFile:
        return FileStream(source, file, lambda _: self)

    def divide(self, source: Source, file: SourceFile) -> list[Piece]:
        return divide_evenly(expected_bytes(file))

    def read(self, source: Source, file: SourceFile, begin: int, end: int, is_last: bool) -> Iterator[Chunk]:
        chunk = Chunk()
        chunk.add(self.read_range(source, file, begin, end, is_last))
        yield chunk

    def read_range(self, source: Source, file: SourceFile, begin: int, end: int, is_last: bool) -> FilePart:
        """Read the bytes [begin, end) of a file, both moved on to the next boundary."""
        with unchanged(file) as handle:
            reach = 0 if is_last else self.reach_bytes(source)
            handle.expect(max(begin - self.context_bytes(source), 0), min(end + reach, file.size))
            start, starts_document = self._boundary_at(source, file, handle, begin) if begin else (0, True)
            stop, ends_document = (file.size, True) if is_last else self._boundary_at(source, file, handle, end)
            raw = handle.read_at(stop - start, start)
            if len(raw) != stop - start:
                raise CorpusError(
                    f"{file.path}: changed while the corpus was being read. Run again when it is complete."
                )
        line = functools.partial(_line_number, file, start)
        text = TextRange(raw, _place(file, start), start, not starts_document, not ends_document, line, is_last)
        return self.part(source, file, text)

    def part(self, source: Source, file: SourceFile, text: TextRange) -> FilePart:
        """Return a range of a file as part of a chunk."""
        how = f"{source.reading_hash} {self.name} {text.is_continuation} {text.is_open}"
        content = hashlib.blake2b(how.encode(), digest_size=20)
        content.update(text.raw)
        documents = functools.partial(self.documents, source, text)
        return FilePart(file.name, content.hexdigest(), len(text.raw), text.is_open, documents, text.is_continuation)

    def documents(self, source: Source, text: TextRange, noticed: Counter[str]) -> Iterator[list[bytes]]:
        """Yield the documents of a range, some at a time, so that millions of tiny ones never exist at once.

        Empty documents are left out, except an empty rest of a document that began before the range and ends here.
        """
        raw = text.raw
        if text.offset == 0:
            refuse_what_is_not_text(raw, text.path)
            raw = without_byte_order_mark(raw, noticed)
        raw = as_utf8(source, raw, text.path, text.offset, noticed)
        yield from self.split(source, text, raw, noticed)

    def _boundary_at(self, source: Source, file: SourceFile, handle: PlannedFile, nominal: int) -> tuple[int, bool]:
        """Return where the text may be cut at or after a nominal offset: a function of the file's bytes alone."""
        reach = BOUNDARY_BYTES
        context = self.context_bytes(source)
        while True:
            window = handle.read_at(context + reach, nominal - context)
            is_end = nominal - context + len(window) >= file.size
            try:
                found = self.find_boundary(source, window, context, is_end)
            except CorpusError as problem:
                raise CorpusError(f"{_place(file, nominal)}:{_line_number(file, nominal)}: {problem}.") from None
            if found is not None:
                return found[0] + nominal - context, found[1]
            reach *= 4


class ChosenFormat(Format):
    """A suffix that says too little: each file is read by the text format that `for_beginning` returns for it."""

    is_text = True
    is_markup = True

    @abstractmethod
    def for_beginning(self, source: Source, path: str, beginning: bytes) -> Format:
        """Return the format of one file by how it begins (some 64 KiB)."""

    def divide(self, source: Source, file: SourceFile) -> list[Piece]:
        raise AssertionError(f"{file.path}: divided before its format was chosen")

    def read(self, source: Source, file: SourceFile, begin: int, end: int, is_last: bool) -> Iterator[Chunk]:
        raise AssertionError(f"{file.path}: read before its format was chosen")


class RecordFormat(Format):
    """A format of records, each a document: it says itself where they lie, and yields them in batches."""

    is_text = False

    @abstractmethod
    def records(
        self, source: Source, file: SourceFile, begin: int, end: int
    ) -> Iterator[tuple[int, list[bytes | None]]]:
        """Yield the texts of a piece, about a MiB at a time, each batch with the number of its first record in the
        file; None where a record has no text."""

    def read(self, source: Source, file: SourceFile, begin: int, end: int, is_last: bool) -> Iterator[Chunk]:
        with unchanged(file):
            yield from self.chunks(source, file, begin, end)

    def chunks(self, source: Source, file: SourceFile, begin: int, end: int) -> Iterator[Chunk]:
        """Yield the records of a piece in chunks, without looking whether the file has changed."""
        documents: list[bytes] = []
        noticed: Counter[str] = Counter()
        cost = 0
        for first, values in self.records(source, file, begin, end):
            for number, value in enumerate(values, start=first):
                if value:
                    documents.append(as_utf8(source, value, f"{file.path}, row {number}", 0, noticed))
                    cost += len(documents[-1]) + DOCUMENT_OVERHEAD_BYTES
                else:
                    noticed["empty_documents"] += 1
            if cost >= current_scale().segment_bytes:
                yield _record_chunk(source, file, documents, noticed)
                documents, noticed, cost = [], Counter(), 0
        if documents or noticed:
            yield _record_chunk(source, file, documents, noticed)


def expected_bytes(file: SourceFile) -> int:
    """Estimate how much text a file holds."""
    return file.size * (ASSUMED_EXPANSION if file.compression else 1)


def divide_evenly(total: int) -> list[Piece]:
    """Divide a number of bytes into pieces of about a segment each."""
    size = current_scale().segment_bytes
    count = max(1, round(total / size))
    bounds = [number * size for number in range(count)] + [total]
    return [Piece(begin, end, end - begin) for begin, end in pairwise(bounds)]


def _record_chunk(source: Source, file: SourceFile, documents: list[bytes], noticed: Counter[str]) -> Chunk:
    content = hashlib.blake2b(f"{source.reading_hash} rows".encode(), digest_size=20)
    for document in documents:
        content.update(len(document).to_bytes(8, "little") + document)

    def split(counted: Counter[str]) -> Iterator[list[bytes]]:
        counted.update(noticed)
        yield documents

    chunk = Chunk()
    chunk.add(FilePart(file.name, content.hexdigest(), sum(map(len, documents)), False, split))
    return chunk


def _place(file: SourceFile, offset: int) -> str:
    """Return what the numbers of lines in an error are counted from: a file, or a place in a remote one."""
    return f"{file.path} from byte {offset:,} on" if file.is_remote and offset else file.path


def _line_number(file: SourceFile, offset: int) -> int:
    """Count the lines up to an offset, which begins the line of the number returned. Reads all before it, except of a
    remote file, of which that may be very much."""
    lines, place = 1, 0
    if file.is_remote:
        return lines
    with open_planned(file) as handle:
        while place < offset:
            block = handle.read_at(min(offset - place, 1 << 20), place)
            if not block:
                break
            lines += block.count(b"\n")
            place += len(block)
    return lines
