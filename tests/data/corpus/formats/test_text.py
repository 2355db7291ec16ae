"""Where a file may be cut: never inside a character, a run of blank lines, a delimiter or a line end."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.data.corpus.chunks import TextRange
from headrace.data.corpus.formats.text import PlainText
from headrace.data.corpus.sources import Source
from tests.data.corpus.test_readers import COMPRESS, documents

SEPARATORS = {
    "line": ["\n", "\r\n"],
    "paragraph": ["\n\n", "\n  \n", "\r\n\t\r\n", "\n \n   \n", "\n\n\n"],
    "delimiter": ["\n\n", "\n\n\n", "\n\n\n\n\n"],
}


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("character", ["語", "é", "\U0001f33e"])
def test_a_cut_never_falls_inside_a_character(tmp_path: Path, suffix: str, character: str) -> None:
    for shift in range(4):
        text = "x" * shift + character * 9000
        path = tmp_path / f"{shift}.txt{suffix}"
        path.write_bytes(COMPRESS[suffix](text.encode()))
        cache = hr.prepare({"path": str(path)}, tokenizer="char", out=tmp_path / f"{shift}")
        assert not cache.noticed
        assert cache.num_tokens == len(text) + 1  # and end-of-text


def test_millions_of_characters_without_a_break_stay_as_they_are(tmp_path: Path) -> None:
    """At full scale: the window in which a boundary is looked for ends inside a character."""
    (tmp_path / "a.txt").write_text("語" * 4_500_000)
    assert b"".join(documents(Source(path=str(tmp_path / "a.txt")))).decode() == "語" * 4_500_000


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("kind", SEPARATORS)
@pytest.mark.parametrize("word", ["word ", "a"])
def test_a_separator_is_read_the_same_wherever_a_segment_ends(tmp_path: Path, kind: str, word: str) -> None:
    """One long document before each separator: cuts are forced, and shifted over the separator byte by byte."""
    delimiter = {"delimiter": "\n\n"} if kind == "delimiter" else {}
    for separator in SEPARATORS[kind]:
        for shift in range(-9, 10):
            first = (word * 6000)[: 4096 + 1024 + shift]
            text = first + separator + "second" + separator + "third"
            (tmp_path / "a.txt").write_bytes(text.encode())
            (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode(), 0))
            for name in ("a.txt", "b.txt.gz"):
                source = Source(path=str(tmp_path / name), document=kind, **delimiter)  # type: ignore[arg-type]
                assert documents(source) == _whole(source, text.encode()), (separator, shift, name)


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("kind", SEPARATORS)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.sampled_from(["a", "\n", "\r\n", "   ", " \t\n", "x" * 900, "b " * 400, "é" * 50]), min_size=8)
)
def test_documents_of_segments_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, kind: str, parts: list[str]
) -> None:
    root = tmp_path_factory.mktemp("corpus")
    text = ("".join(parts) * 8).encode()
    (root / "a.txt").write_bytes(text)
    source = Source(path=str(root / "a.txt"), document=kind, delimiter="\n\n" if kind == "delimiter" else "")  # type: ignore[arg-type]
    if text.strip():
        assert documents(source) == _whole(source, text)


def _whole(source: Source, text: bytes) -> list[bytes]:
    """The documents of a file that is read at once."""
    batches = PlainText().documents(source, TextRange(text, "a.txt"), Counter())
    return [document for batch in batches for document in batch if document]


def test_blank_lines_of_spaces_separate_paragraphs_at_both_ends_of_a_file() -> None:
    text = b"  \n\none\n \t \ntwo\n   \n"
    assert _whole(Source(path="a.txt", document="paragraph"), text) == [b"one", b"two"]


def test_a_boundary_waits_for_the_end_of_the_blank_lines() -> None:
    """The window ends in a line of spaces, which may turn out to be one more blank line."""
    source = Source(path="a.txt", document="paragraph")
    assert PlainText().find_boundary(source, b"one\n\n   ", 1, is_end=False) is None
    assert PlainText().find_boundary(source, b"one\n\n   \ntwo", 1, is_end=False) == (9, True)


def test_a_boundary_is_not_made_of_half_a_delimiter() -> None:
    source = Source(path="a.txt", document="delimiter", delimiter="--")
    text = b"one---two--three"  # one, -two, three
    assert _whole(source, text) == [b"one", b"-two", b"three"]
    assert PlainText().find_boundary(source, text, 4, is_end=True) == (11, True)
