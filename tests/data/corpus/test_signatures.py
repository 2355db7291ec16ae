"""What is not UTF-8 text is recognised by its content and named, with what to do."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

import headrace as hr


def archive(kind: str) -> bytes:
    data = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(data, "w") as file:
            file.writestr("word/document.xml", "<w>text</w>")
    else:
        with tarfile.open(fileobj=data, mode="w") as tar:
            member = tarfile.TarInfo("a.txt")
            member.size = 5
            tar.addfile(member, io.BytesIO(b"hello"))
    return data.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("paper.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "a PDF document, not text. Extract its text first: pdftotext"),
        ("thesis.odt", archive("zip"), r"a zip archive .* Give the file its usual suffix, \.zip or \.docx"),
        ("corpus.txt", archive("tar"), r"a tar archive, not text. Give the file its usual suffix, \.tar"),
        ("photo.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG image, not text. Leave it out"),
        ("photo.md", b"\xff\xd8\xff\xe0\0\x10JFIF", "a JPEG image"),
        ("data.txt", b"\x1f\x8b\x08\0\0\0\0\0", r"gzip data, not text. Give the file its usual suffix, \.txt\.gz"),
        ("data.jsonl", b"PAR1\x15\x04", "a parquet file, not text"),
        ("letter.txt", "Grüße aus Köln, und so weiter".encode("utf-16-le"), "UTF-16 text.* iconv -f UTF-16LE"),
        ("letter.txt", "Grüße aus Köln, und so weiter".encode("utf-16-be"), "UTF-16 text.* iconv -f UTF-16BE"),
        ("letter.txt", "Grüße".encode("utf-16"), "UTF-16 text.* iconv -f UTF-16 "),
    ],
)
def test_what_is_not_text_is_refused_by_name(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(hr.HeadraceError, match=f"{name}: .*{message}"):
        hr.prepare([tmp_path / name], tokenizer="byte", out=tmp_path / "cache")


def test_latin1_is_recognised_and_counted(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_bytes("Grüße aus Köln\n".encode("latin-1") * 10)
    (tmp_path / "mixed.txt").write_bytes("Grüße\n".encode() + b"\xff one bad byte\n")
    (tmp_path / "new.txt").write_text("Grüße\n")
    cache = hr.prepare([tmp_path], tokenizer="byte", out=tmp_path / "cache")
    assert cache.noticed == {"latin1_texts": 1, "invalid_utf8": 31}


def test_text_that_begins_like_a_magic_word_is_text(tmp_path: Path) -> None:
    for number, text in enumerate(["BZh is how bzip2 begins", "MZ", "II. Chapter", "GIF images are", "PK"]):
        (tmp_path / f"{number}.txt").write_text(text)
    assert hr.prepare([tmp_path], tokenizer="byte", out=tmp_path / "cache").num_documents == 5
