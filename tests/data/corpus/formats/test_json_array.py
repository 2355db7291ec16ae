"""JSON: a list of texts or objects is documents, wherever segments end; other JSON is plain text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.data.corpus.sources import Source
from headrace.errors import CorpusError
from tests.data.corpus.test_readers import documents

ITEMS = ["plain", "", 'a "quoted" ]}, word', "back\\slash\\", "first\nsecond", "é語", "x" * 900, "[{"]


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("suffix", ["", ".gz"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    items=st.lists(st.tuples(st.sampled_from(ITEMS), st.booleans()), min_size=30),
    indent=st.sampled_from([None, 2]),
    plain=st.booleans(),
)
def test_documents_of_segments_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory,
    suffix: str,
    items: list[tuple[str, bool]],
    indent: int | None,
    plain: bool,
) -> None:
    root = tmp_path_factory.mktemp("list")
    values = [{"more": [1, {"text": "no"}], "text": text} if is_object else text for text, is_object in items] * 4
    raw = (json.dumps(values, indent=indent, ensure_ascii=plain) + "\n").encode()
    (root / f"a.json{suffix}").write_bytes(gzip.compress(raw) if suffix else raw)
    found = documents(Source(path=str(root / f"a.json{suffix}")))
    assert found == [text.encode() for text, _ in items * 4 if text]


@pytest.mark.parametrize("text", ['{"a": [1, 2]}\n', "[1, 2]\n", "[]", '[["a"]]', "[", "null"])
def test_other_json_is_plain_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert documents(Source(path=str(tmp_path / "a.json"))) == [text.encode()]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[{"text": "a"},\n {"body": "b"}]', r"a.json:2: no field 'text' \(fields here: body\); name the right one"),
        ('[{"text": "a"},\n\n3]', "a.json:3: a JSON int where an object"),
        ('["a",\n "b"', "a.json:2: the list is not closed: is the file complete"),
        ('["a",\n', "a.json:2: the list is not closed"),
        ('["a"] trailing', "a.json:1: not valid JSON"),
        ('["a",, "b"]', "a.json:1: not valid JSON"),
        ('[{"text": "a"},\n{"text": "x", "y": ' + "[" * 200_000 + "]" * 200_000 + "}]", "nested too deeply"),
    ],
)
def test_an_item_without_text_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(CorpusError, match=says):
        documents(Source(path=str(tmp_path / "a.json")))


def test_items_without_text_may_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('["a", 3, {"body": "b"}, [["c"], "d"], {"text": "e"}]')
    source = {"path": str(tmp_path / "a.json"), "malformed_lines": "skip"}
    cache = hr.prepare(source, tokenizer="byte", out=tmp_path / "cache")
    assert documents(Source.model_validate(source)) == [b"a", b"e"]
    assert cache.noticed == {"malformed_lines": 3}


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("unit", ["words, and more ", '\\"', "{", "["])
def test_a_giant_item_ends_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    """Neither its memory nor its time grows with the square of its length."""
    monkeypatch.setattr("headrace.data.corpus.formats.json_array.ITEM_LIMIT_BYTES", 1 << 16)
    opening = "" if unit in "{[" else '"'
    (tmp_path / "a.json").write_text(f'["fine", {opening}' + unit * ((1 << 18) // len(unit)))
    with pytest.raises(CorpusError, match="an item of the list is longer"):
        documents(Source(path=str(tmp_path / "a.json")))


@pytest.mark.parametrize("text", ['[{"text": "a list"}]', "{}"])
def test_a_json_file_is_a_corpus_if_it_is_a_list(tmp_path: Path, text: str) -> None:
    from headrace.cli.layers import gather

    (tmp_path / "a.json").write_text(text)
    layers = gather([str(tmp_path / "a.json")], "", None, None)
    assert ("data.sources" in layers.values) == text.startswith("[")
