"""Tables: a column of texts, quoted as people's programs quote, and the same documents wherever segments end."""

from __future__ import annotations

import csv
import gzip
import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.data.corpus.sources import Source
from headrace.errors import CorpusError
from tests.data.corpus.test_readers import documents

FIELDS = ["plain", "", 'a "quoted" word', "one, two", "first\nsecond", "\r\n", '5" disk', "é語", "x" * 900, "a;b\tc|d"]


def rows_of(text: str, delimiter: str = ",") -> list[bytes]:
    """What Python's own reader finds in the column `text`."""
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    return [row["text"].encode() for row in reader if row["text"]]


def test_a_column_of_texts_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\r\n1,"hello, ""you""\nagain"\r\n2,plain 5" disk\r\n\r\n3,\r\n4,"end"')
    cache = hr.prepare(tmp_path / "a.csv", tokenizer="byte", out=tmp_path / "cache")
    assert documents(Source(path=str(tmp_path / "a.csv"))) == [b'hello, "you"\nagain', b'plain 5" disk', b"end"]
    assert cache.num_documents == 3
    assert cache.noticed == {"empty_documents": 1}


@pytest.mark.parametrize(
    ("name", "delimiter"), [("a.csv", ","), ("a.csv", ";"), ("a.csv", "\t"), ("a.csv", "|"), ("a.tsv", "\t")]
)
def test_delimiters_are_found_in_the_first_row(tmp_path: Path, name: str, delimiter: str) -> None:
    text = delimiter.join(["id", "text", "more"]) + "\n" + delimiter.join(["1", '"a, b; c"', "d"]) + "\n"
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert documents(Source(path=str(tmp_path / name))) == [b"a, b; c"]


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("suffix", ["", ".gz"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(st.sampled_from(FIELDS), st.sampled_from(FIELDS)), min_size=30))
def test_documents_of_segments_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, rows: list[tuple[str, str]]
) -> None:
    root = tmp_path_factory.mktemp("table")
    written = io.StringIO(newline="")
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["other", "text"])
    writer.writerows(rows * 4)
    raw = written.getvalue().encode()
    (root / f"a.csv{suffix}").write_bytes(gzip.compress(raw) if suffix else raw)
    assert documents(Source(path=str(root / f"a.csv{suffix}"))) == rows_of(written.getvalue())


@pytest.mark.usefixtures("small_scale")
def test_tokens_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    rows = "".join(f'{number},"row {number}\n, of ""many"""\n' for number in range(2000))
    (tmp_path / "a.csv").write_text("id,text\n" + rows)
    hashes = set()
    for workers in (1, 3):
        cache = hr.prepare(tmp_path / "a.csv", tokenizer="byte", out=tmp_path / f"{workers}", num_workers=workers)
        assert len(cache.segments) > 5
        hashes.add((cache.content_hash(range(len(cache.segments))), cache.num_documents))
    assert len(hashes) == 1
    assert hashes.pop()[1] == 2000


def test_without_the_column_the_message_has_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,the review,label\n1,A long and winding text,good\n")
    with pytest.raises(CorpusError) as caught:
        hr.prepare(tmp_path / "a.csv", tokenizer="byte", out=tmp_path / "cache")
    said = str(caught.value)
    assert "no column 'text' (it has: id, the review, label)" in said
    assert "'data.text_field=the review'" in said
    assert documents(Source(path=str(tmp_path / "a.csv"), text_field="the review")) == [b"A long and winding text"]
    assert "data.as_plain_text=true" in said
    plain = documents(Source(path=str(tmp_path / "a.csv"), as_plain_text=True))
    assert plain == [(tmp_path / "a.csv").read_bytes()]


def test_in_a_folder_a_table_without_the_column_is_left_out_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "prices.csv").write_text("id,price\n1,2\n")
    pq.write_table(pa.table({"price": [1, 2]}), folder / "prices.parquet")
    with pytest.raises(CorpusError, match="no column 'text'"):  # nothing else is there
        hr.prepare(folder, tokenizer="byte", out=tmp_path / "none")
    (folder / "a.txt").write_text("first")
    (folder / "z.csv").write_text("id,text\n1,second\n")
    cache = hr.prepare(folder, tokenizer="byte", out=tmp_path / "cache")
    assert documents(Source(path=str(folder))) == [b"first", b"second"]
    (reason,) = cache.skipped
    assert reason.startswith("table(s) without a column 'text'")
    assert cache.skipped[reason] == 2
    for named in (folder / "prices.csv", folder / "prices.parquet", folder / "*.csv"):
        with pytest.raises(CorpusError, match="no column 'text'"):
            hr.prepare([folder / "a.txt", named], tokenizer="byte", out=tmp_path / "named")


def test_a_row_of_other_length_is_named_or_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,"two\nlines"\n2,one,too many\n3,fine\n')
    with pytest.raises(CorpusError, match=re.escape("a.csv:4: 3 fields where the first row has 2")):
        documents(Source(path=str(tmp_path / "a.csv")))
    assert documents(Source(path=str(tmp_path / "a.csv"), malformed_lines="skip")) == [b"two\nlines", b"fine"]


def test_a_quote_that_is_never_closed_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,fine\n2,"no end\n3,more\n')
    with pytest.raises(CorpusError, match=r"a\.csv:3: the closing quote of a field is missing"):
        documents(Source(path=str(tmp_path / "a.csv")))


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("unit", ["words, and more\n", '""', ',"'])
def test_a_giant_quoted_field_ends_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    monkeypatch.setattr("headrace.data.corpus.formats.table.ROW_LIMIT_BYTES", 1 << 16)
    (tmp_path / "a.csv").write_text('id,text\n1,fine\n2,"' + unit * ((1 << 18) // len(unit)))
    with pytest.raises(CorpusError, match="a row is longer"):
        documents(Source(path=str(tmp_path / "a.csv")))


def test_tables_that_were_read_as_text_before_are_read_again(tmp_path: Path) -> None:
    """A cache of the plain text of a table is not taken for the texts in it, nor the other way round."""
    (tmp_path / "a.csv").write_text("id,text\n1,some words\n")
    counts = [
        hr.prepare({"path": str(tmp_path / "a.csv"), "as_plain_text": plain}, "byte", tmp_path / "cache").num_tokens
        for plain in (True, False, True)
    ]
    assert counts == [21 + 1, 10 + 1, 21 + 1]
