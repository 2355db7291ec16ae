"""Where text may be cut without changing its tokens.

A long document is encoded in pieces, and a huge file is read in segments. Both are cut only where the pre-tokenizers of
this field (GPT-2's pattern and its descendants) break in any case, whatever stands before or after:

* before a single space between two ASCII letters: "the| mill";
* after a single line feed between two characters that are not white space: "wheel\\n|turns".

Where there is no such place for 64 KiB (one endless "word"), the cut is made at a fixed distance, between two UTF-8
characters. Either way a cut is a function of the document's bytes alone, so tokens never depend on how the bytes were
read. `docs/design/tokens.md` has the argument; `tests/data/corpus/test_cuts.py` tries to refute it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

PIECE_BYTES = 64 << 10

# White space beyond ASCII begins with C2, E1, E2 or E3 80 80; the classes below leave those lead bytes out. A pattern
# begins with the one byte that it is about, so that text without any is passed over at the speed of a memory search.
_SPACE = re.compile(rb" (?=[A-Za-z])(?<=[A-Za-z] )")
_LINE_FEED = re.compile(
    rb"\n(?=[A-Za-z0-9\xc3-\xdf\xe4-\xf4]|\xe3[\x81-\xbf])"
    rb"(?:(?<=[!-~]\n)|(?<=[\xc3-\xdf][\x80-\xbf]\n)|(?<=\xe3\x80[\x81-\xbf]\n)"
    rb"|(?<=\xe3[\x81-\xbf][\x80-\xbf]\n)|(?<=[\xe4-\xef][\x80-\xbf]{2}\n))"
)


def first_safe_cut(data: bytes, start: int, stop: int) -> int | None:
    """Return the first safe cut in [start, stop), or None. Looks at one byte beyond `stop`."""
    space = _SPACE.search(data, start, stop + 1)
    if space is not None:
        stop = space.start() + 1
    line_feed = _LINE_FEED.search(data, max(start - 1, 0), stop + 1)
    if line_feed is not None and line_feed.end() < stop:
        return line_feed.end()
    return space.start() if space is not None else None


def last_safe_cut(data: bytes, start: int, stop: int) -> int | None:
    """Return the last safe cut in (start, stop], or None. Looks near `stop` first: there nearly always is one."""
    for reach in (512, 8192, stop - start):
        begin = max(start, stop - reach)
        spaces = [found.start() for found in _SPACE.finditer(data, begin, stop + 2)]
        line_feeds = [found.end() for found in _LINE_FEED.finditer(data, begin, stop + 2)]
        cut = max((cut for cut in spaces + line_feeds if start < cut <= stop), default=None)
        if cut is not None:
            return cut
        if reach >= stop - start:
            break
    return None


def character_start(data: bytes, position: int) -> int:
    """Return the nearest position at or before this one that does not split a UTF-8 character."""
    for back in range(4):
        if position - back <= 0 or position - back >= len(data) or data[position - back] & 0xC0 != 0x80:
            return position - back
    return position  # not UTF-8 at all: any place is as good


def split_document(document: bytes, limit: int = PIECE_BYTES, unbroken: Sequence[bytes] = ()) -> list[bytes]:
    """Cut a document into pieces of at most `limit` bytes whose tokens, put together, are the document's.

    No cut falls inside one of the `unbroken` strings, which must be shorter than the limit.

    >>> split_document(b"the mill wheel", limit=9)
    [b'the mill', b' wheel']
    """
    if len(document) <= limit:
        return [document]
    pieces = []
    start = 0
    while len(document) - start > limit:
        stop = last_safe_cut(document, start, start + limit) or character_start(document, start + limit)
        for string in unbroken:
            found = document.rfind(string, max(start + 1, stop - len(string) + 1), stop + len(string) - 1)
            stop = found if found != -1 else stop
        pieces.append(document[start:stop])
        start = stop
    pieces.append(document[start:])
    return pieces
