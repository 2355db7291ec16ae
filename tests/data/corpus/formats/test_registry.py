"""A file format is one class: what is defined here is discovered, divided, read and tokenised without another edit."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import headrace as hr
from headrace.data.corpus.chunks import TextRange
from headrace.data.corpus.formats import registry
from headrace.data.corpus.formats.format import Format, Piece, RecordFormat, TextFormat
from headrace.data.corpus.formats.registry import format_of, is_readable, register, shown_formats
from headrace.data.corpus.sources import Source, SourceFile

pytestmark = pytest.mark.usefixtures("small_scale")


class Poems(TextFormat):
    """Text in which a line of three stars ends a document."""

    name = "poems"
    suffixes = frozenset([".poem"])
    shown = ".poem"
    end = b"\n***\n"

    def context_bytes(self, source: Source) -> int:
        return len(self.end)

    def find_boundary(self, source: Source, window: bytes, start: int, is_end: bool) -> tuple[int, bool] | None:
        place = window.find(self.end, max(start - len(self.end) + 1, 0))
        if place >= 0:
            return place + len(self.end), True
        return (len(window), True) if is_end else None

    def split(self, source: Source, text: TextRange, raw: bytes, noticed: Counter[str]) -> Iterator[list[bytes]]:
        yield [poem for poem in raw.split(self.end) if poem]


class Cards(RecordFormat):
    """Records of 100 bytes, padded with zeros."""

    name = "cards"
    suffixes = frozenset([".cards"])
    shown = ".cards"
    size = 100

    def divide(self, source: Source, file: SourceFile) -> list[Piece]:
        count = file.size // self.size
        cuts = [*range(0, count, 40), count]
        return [Piece(begin, end, (end - begin) * self.size) for begin, end in pairwise(cuts)]

    def records(
        self, source: Source, file: SourceFile, begin: int, end: int
    ) -> Iterator[tuple[int, list[bytes | None]]]:
        data = Path(file.path).read_bytes()
        for number in range(begin, end):
            yield number, [data[number * self.size : (number + 1) * self.size].rstrip(b"\0") or None]


@pytest.fixture(params=[Poems, Cards])
def added(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Format:
    """Register a format for one test."""
    monkeypatch.setattr(registry, "FORMATS", [*registry.FORMATS])
    monkeypatch.setattr(registry, "_BY_SUFFIX", {**registry._BY_SUFFIX})
    format: Format = request.param()
    register(format)
    return format


def test_a_new_format_is_prepared_like_any_other(tmp_path: Path, added: Format) -> None:
    texts = [f"document {number}: the mill wheel turns" for number in range(300)]
    folder = tmp_path / "corpus"
    folder.mkdir()
    data = {
        "poems": b"".join(text.encode() + Poems.end for text in texts),
        "cards": b"".join(text.encode().ljust(Cards.size, b"\0") for text in texts),
    }[added.name]
    (folder / f"a{added.shown}").write_bytes(data)
    if added.is_text:
        (folder / f"b{added.shown}.gz").write_bytes(gzip.compress(data, 0))
    (folder / "ignored.bin").write_bytes(b"\0")
    cache = hr.prepare(folder, tokenizer="byte", out=tmp_path / "cache")
    assert len(cache.segments) > 2
    assert cache.num_documents == (2 if added.is_text else 1) * len(texts)
    with hr.Loader(cache, 4, 16, shuffle=False) as loader:
        spans = [span for row in loader.explain(0) for span in row.spans]
    assert "".join(span.text for span in spans).startswith("document 0")
    assert added.shown in shown_formats()


def test_a_file_has_the_format_of_its_suffix() -> None:
    names = {"a.txt": "text", "a.JSONL": "jsonl", "a.jsonl.zst": "jsonl", "a.parquet": "parquet", "unknown.abc": "text"}
    assert {name: format_of(name).name for name in names} == names
    readable = ["a.md", "a.ndjson.gz", "b.parquet", "a.parquet.gz", "a.bin", "README", ".txt"]
    assert [name for name in readable if is_readable(name)] == ["a.md", "a.ndjson.gz", "b.parquet"]
