"""Word documents (.docx): the text of the paragraphs, one line each, from the XML in what is a zip archive."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from xml.parsers import expat

from headrace.data.corpus.chunks import TextRange
from headrace.data.corpus.formats.whole import FILE_LIMIT_BYTES, WholeFile
from headrace.data.corpus.signatures import refuse_what_is_not_text
from headrace.data.corpus.sources import Source
from headrace.data.corpus.streams import UNREADABLE
from headrace.errors import CorpusError

_BODY = "word/document.xml"
_BREAKS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


class Docx(WholeFile):
    """Word documents, without headers, footnotes, comments and deleted text."""

    name = "docx"
    suffixes = frozenset([".docx"])
    shown = ".docx"

    def extract(self, source: Source, text: TextRange, noticed: Counter[str]) -> bytes:
        if not text.raw.startswith(b"PK"):
            refuse_what_is_not_text(text.raw, text.path)
        try:
            return text_of_body(_body(text.raw)).encode("utf-8", "replace")
        except (*UNREADABLE, expat.ExpatError, KeyError) as problem:
            raise CorpusError(
                f"{text.path}: damaged, or no Word document ({problem}). Save it again as .txt."
            ) from None


def _body(raw: bytes) -> bytes:
    """Return the XML of the text, at most 32 MiB of it."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        info = archive.getinfo(_BODY)
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("its text is encrypted or compressed in an unusual way")
        with archive.open(info) as body:
            found = body.read(FILE_LIMIT_BYTES + 1)
    if len(found) > FILE_LIMIT_BYTES:
        raise ValueError(f"its text expands to more than {FILE_LIMIT_BYTES >> 20} MiB")
    return found


def text_of_body(xml: bytes) -> str:
    """Return the text of the paragraphs in the XML of a Word document."""
    pieces: list[str] = []
    is_text = False

    def start(name: str, _attributes: dict[str, str]) -> None:
        nonlocal is_text
        place, _, tag = name.rpartition(" ")
        if "wordprocessingml" in place:
            is_text = tag == "t"
            pieces.append(_BREAKS.get(tag, ""))

    def end(name: str) -> None:
        nonlocal is_text
        is_text = False
        place, _, tag = name.rpartition(" ")
        if tag == "p" and "wordprocessingml" in place:
            pieces.append("\n")

    def data(text: str) -> None:
        if is_text:
            pieces.append(text)

    def refuse(*_: object) -> None:
        raise ValueError("it declares entities, which no Word document does")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.EntityDeclHandler = data, refuse
    parser.Parse(xml, True)
    lines = (line.strip() for line in "".join(pieces).split("\n"))
    return "".join(f"{line}\n" for line in lines if line)
