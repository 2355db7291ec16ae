"""HTML and Word documents: their text alone, whatever is around it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from headrace.data.corpus.formats.html import text_of_page
from headrace.data.corpus.sources import Source
from headrace.errors import CorpusError
from tests.data.corpus.test_readers import documents

PAGE = """<!DOCTYPE html><html><head><title>The mill</title><style>p { color: red }</style></head>
<body><!-- <p>hidden</p> --><h1>The
   mill</h1><p>It's <b>5 &lt; 6</b> &amp; so&nbsp;on.<br>Next <a title="a > b" href='x'>line</a></p>
<script>if (a < b) { document.write("<p>no</p>") }</script>
<ul><li>one<li>two</ul><pre>  kept
    as it is</pre></body></html>"""
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def test_the_text_of_a_page() -> None:
    lines = text_of_page(PAGE).split("\n")
    assert lines == [
        "The mill", "The mill", "It's 5 < 6 & so\xa0on.", "Next line", "one", "two", "kept", "    as it is", "",
    ]  # fmt: skip


@pytest.mark.parametrize("unit", ["<", "<a ", "<!--", '<a "', "<script>", "<p>", "&", "<script", "</script", "<pre>\n"])
def test_a_hostile_page_ends(unit: str) -> None:
    """A megabyte of what sends other parsers back to the beginning again and again."""
    assert len(text_of_page(unit * (1_000_000 // len(unit)))) <= 1_000_001


def test_pages_are_documents_or_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>one</p><p>two</p>")
    (tmp_path / "b.htm").write_text("<script></script>")
    assert documents(Source(path=str(tmp_path))) == [b"one\ntwo\n"]
    assert documents(Source(path=str(tmp_path), document="line")) == [b"one", b"two"]
    assert documents(Source(path=str(tmp_path / "a.html"), as_plain_text=True)) == [b"<p>one</p><p>two</p>"]


def word(xml: str, name: str = "word/document.xml") -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("[Content_Types].xml", "<Types/>")
        file.writestr(name, xml)
    return data.getvalue()


def test_the_text_of_a_word_document(tmp_path: Path) -> None:
    body = (
        f'<w:document xmlns:w="{W}" xmlns:a="urn:other"><w:body><w:p><w:r><w:t>The </w:t></w:r><w:r><w:t>mill &amp;'
        " wheel</w:t></w:r></w:p><w:p/><w:p><w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:delText>gone</w:delText><a:t>not"
        "</a:t></w:r></w:p></w:body></w:document>"
    )
    (tmp_path / "a.docx").write_bytes(word(body))
    assert documents(Source(path=str(tmp_path))) == [b"The mill & wheel\na\tb\n"]


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;">]><x>&b;</x>'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (word("<x/>", "other.xml"), "no Word document"),
        (word("<x>"), "no Word document"),
        (word(BOMB), "declares entities"),
        (word(f'<w:p xmlns:w="{W}"><w:t>' + "a" * (33 << 20)), "more than 32 MiB"),
        (word("<x/>")[:60], "no Word document"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "an old Office document"),
        (b"plain text", "no Word document"),
    ],
    # The bytes have the time in them, and processes that share the tests must give them the same names.
    ids=["another file", "cut off XML", "entities", "too large", "cut off", "old Office", "plain"],
)
def test_what_is_no_word_document_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.docx").write_bytes(content)
    with pytest.raises(CorpusError, match=f"a.docx: .*{says}"):
        documents(Source(path=str(tmp_path / "a.docx")))
