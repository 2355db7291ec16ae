"""Bytes that should be UTF-8: checked, mended and counted."""

from __future__ import annotations

from collections import Counter

from headrace.data.corpus.signatures import looks_like_latin1
from headrace.data.corpus.sources import Source
from headrace.errors import CorpusError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_REPLACEMENT = "\ufffd".encode()


def without_byte_order_mark(raw: bytes, noticed: Counter[str]) -> bytes:
    """Return the beginning of a file without its byte order mark, which is counted."""
    if raw.startswith(_BYTE_ORDER_MARK):
        noticed["byte_order_marks"] += 1
        return raw[len(_BYTE_ORDER_MARK) :]
    return raw


def as_utf8(source: Source, raw: bytes, place: str, offset: int, noticed: Counter[str]) -> bytes:
    """Return valid UTF-8: the bytes themselves, or with replacement characters where the source allows them.

    `place` and `offset` say in an error where the bytes stand.
    """
    if b"\0" in raw:
        noticed["nul_bytes"] += raw.count(b"\0")
    if raw.isascii():
        return raw
    try:
        raw.decode()
        return raw
    except UnicodeDecodeError as problem:
        if source.invalid_utf8 == "refuse":
            where = f"byte {offset + problem.start:,}"
            raise CorpusError(f"{place}: not valid UTF-8 at {where} (0x{raw[problem.start]:02x}).") from None
        text = raw.decode("utf-8", "replace")
        if looks_like_latin1(raw, text):
            noticed["latin1_texts"] += 1
        mended = text.encode()
        noticed["invalid_utf8"] += mended.count(_REPLACEMENT) - raw.count(_REPLACEMENT)
        return mended
