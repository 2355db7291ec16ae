"""Files that are not text, recognised by how they begin, with what to do about each."""

from __future__ import annotations

import shlex

from headrace.errors import CorpusError

_EXTRACT = "Extract its text first"
_CONVERT = "Convert it to UTF-8 text first"
_UNPACK = "Unpack it first, and name the folder"
_RENAME = "Give the file its usual suffix, {suffix}, and headrace reads it"

# How a file begins, what that makes it, and what to do. Short or wordlike beginnings carry more than their magic bytes.
_BEGINNINGS = (
    (b"%PDF-", "a PDF document", f"{_EXTRACT}: pdftotext {{path}}"),
    (
        b"PK\x03\x04",
        "a zip archive (.docx, .xlsx, .odt and .epub are too)",
        f"{_RENAME.format(suffix='.zip or .docx')}; or {_EXTRACT.lower()}",
    ),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document (.doc, .xls)", _CONVERT),
    (b"{\\rtf", "a rich text document", _CONVERT),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", _UNPACK),
    (b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (b"\x1f\x8b\x08", "gzip data", _RENAME.format(suffix=".txt.gz")),
    (b"\x28\xb5\x2f\xfd", "Zstandard data", _RENAME.format(suffix=".txt.zst")),
    (b"\xfd7zXZ\x00", "xz data", _RENAME.format(suffix=".txt.xz")),
    (b"PAR1", "a parquet file", _RENAME.format(suffix=".parquet")),
    (b"ARROW1\x00\x00", "an Arrow file", _RENAME.format(suffix=".arrow")),
    (b"\x89PNG\r\n\x1a\n", "a PNG image", "Leave it out"),
    (b"\xff\xd8\xff", "a JPEG image", "Leave it out"),
    (b"GIF87a", "a GIF image", "Leave it out"),
    (b"GIF89a", "a GIF image", "Leave it out"),
    (b"II*\x00", "a TIFF image", "Leave it out"),
    (b"MM\x00*", "a TIFF image", "Leave it out"),
    (b"OggS\x00", "an Ogg recording", "Leave it out"),
    (b"\x7fELF", "a program", "Leave it out"),
    (b"SQLite format 3\x00", "an SQLite database", "Save its texts as .jsonl"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "Save its texts as .jsonl"),
    (b"\x93NUMPY", "a NumPy array", "Leave it out"),
)
_AT_OTHER_PLACES = (
    (4, b"1AY&SY", "bzip2 data", _RENAME.format(suffix=".txt.bz2")),
    (257, b"ustar", "a tar archive", _RENAME.format(suffix=".tar or .tar.gz")),
    (8, b"WEBP", "a WebP image", "Leave it out"),
    (8, b"WAVEfmt", "a WAVE recording", "Leave it out"),
    (4, b"ftyp", "a video or a recording (MP4)", "Leave it out"),
)
_ALL_BEGINNINGS = tuple(magic for magic, _, _ in _BEGINNINGS)
_LOOKED_AT_BYTES = 4096
_LEAST_ZERO_SHARE = 0.3


def refuse_what_is_not_text(beginning: bytes, path: str) -> None:
    """Refuse a file that begins as something else than UTF-8 text; the error says what it is and what to do."""
    utf16 = _utf16(beginning[:_LOOKED_AT_BYTES])
    if utf16:
        raise CorpusError(
            f"{path}: this is UTF-16 text; headrace reads UTF-8. Convert it: iconv -f {utf16} -t UTF-8"
            f" {shlex.quote(path)} > converted.txt"
        )
    at_start = [(0, *facts) for facts in _BEGINNINGS] if beginning.startswith(_ALL_BEGINNINGS) else []
    for place, magic, kind, remedy in (*at_start, *_AT_OTHER_PLACES):
        if beginning.startswith(magic, place):
            raise CorpusError(f"{path}: {kind}, not text. {remedy.format(path=shlex.quote(path))}.")


def _utf16(beginning: bytes) -> str:
    """Return which UTF-16 this is, by its byte order mark, or because nearly every other byte is zero."""
    if beginning.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    pairs = len(beginning) // 2
    if pairs >= 8 and b"\0" in beginning:
        even, odd = beginning[::2], beginning[1::2]
        for name, zeros, others in (("UTF-16LE", odd, even), ("UTF-16BE", even, odd)):
            if zeros.count(0) >= _LEAST_ZERO_SHARE * pairs and others.count(0) == 0:
                return name
    return ""


def looks_like_latin1(raw: bytes, mended: str) -> bool:
    """Check whether bytes that are not UTF-8 look like Latin-1 or Windows-1252: no character beyond ASCII is UTF-8."""
    return b"\0" not in raw and all(character == "\ufffd" or character.isascii() for character in set(mended))
