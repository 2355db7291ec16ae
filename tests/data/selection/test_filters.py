"""Filters: lengths, languages and a user's function, counted by reason, and noticed by the cache when they change."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.data.selection.keep import Keep
from tests.conftest import make_text
from tests.data.selection.test_duplicates import texts, write_lines

LEAST = 4


def is_long(text: str) -> bool:
    return len(text) >= LEAST


def test_lengths_are_limits_in_bytes(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["a" * size for size in range(1, 11)] + ["é" * 4])
    source = hr.Source(path=str(tmp_path / "a.jsonl"), min_document_bytes=3, max_document_bytes=7)
    cache = hr.prepare(source, "byte", tmp_path / "cache")
    assert texts(cache) == ["a" * size for size in range(3, 8)]
    assert cache.dropped == {
        "too_short": {"documents": 2, "bytes": 3},
        "too_long": {"documents": 4, "bytes": 8 + 9 + 10 + 8},
    }
    with hr.Loader(cache, 1, 4) as loader:
        assert loader.ledger()[0].left_out == cache.dropped


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("deduplicate", ["none", "exact"])
def test_a_document_across_segments_is_too_long_as_a_whole(tmp_path: Path, deduplicate: Any) -> None:
    (tmp_path / "a.txt").write_text(make_text(30_000))
    (tmp_path / "b.txt").write_text("short enough")
    size = (tmp_path / "a.txt").stat().st_size
    source = hr.Source(path=str(tmp_path / "*.txt"), max_document_bytes=1000)
    cache = hr.prepare(source, "byte", tmp_path / "cache", deduplicate=deduplicate)
    assert texts(cache) == ["short enough"]
    assert cache.num_tokens == len("short enough") + 1
    assert cache.dropped == {"too_long": {"documents": 1, "bytes": size}}


@pytest.mark.usefixtures("small_scale")
def test_a_function_is_not_asked_about_documents_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(30_000))
    (tmp_path / "b.txt").write_text("no")
    cache = hr.prepare(tmp_path / "*.txt", "byte", tmp_path / "cache", keep=lambda text: False)
    assert cache.num_documents == 1
    assert cache.noticed["documents_not_judged"] == 1
    assert cache.dropped == {"function": {"documents": 1, "bytes": 2}}


def test_limits_that_keep_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hr.HeadraceError, match="no document is kept"):
        hr.prepare({"path": "a.txt", "min_document_bytes": 10, "max_document_bytes": 5}, "byte")
    with pytest.raises(hr.HeadraceError, match="max_document_bytes"):
        hr.prepare({"path": "a.txt", "max_document_bytes": "2MiB"}, "byte")
    write_lines(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(hr.HeadraceError, match="every document is left out"):
        hr.prepare({"path": str(tmp_path / "a.jsonl"), "min_document_bytes": 10}, "byte", tmp_path / "cache")


def test_languages_are_told_apart(tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    english = "The mill stands by the river, and its wheel has turned for three hundred years."
    german = "Die Mühle steht am Fluss, und ihr Rad dreht sich seit dreihundert Jahren ohne Pause."
    write_lines(tmp_path / "a.jsonl", [english, german] * 3)
    source = hr.Source(path=str(tmp_path / "a.jsonl"), languages="de, fr")
    cache = hr.prepare(source, "byte", tmp_path / "cache")
    assert texts(cache) == [german] * 3
    assert cache.dropped == {"language": {"documents": 3, "bytes": 3 * len(english)}}
    with pytest.raises(hr.HeadraceError, match="'klingon' is not one of the languages"):
        hr.prepare(hr.Source(path=str(tmp_path / "a.jsonl"), languages=("klingon",)), "byte", tmp_path / "other")


def test_a_missing_language_library_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.data.selection import language

    monkeypatch.setitem(sys.modules, "py3langid", None)
    language._library.cache_clear()
    language._known.cache_clear()
    write_lines(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(hr.HeadraceError, match=r"pip install 'headrace\[language\]'"):
        hr.prepare(hr.Source(path=str(tmp_path / "a.jsonl"), languages="en"), "byte", tmp_path / "cache")


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_function_chooses(tmp_path: Path, num_workers: int) -> None:
    documents = [make_text(200, seed=number) for number in range(100)]
    write_lines(tmp_path / "a.jsonl", documents)
    cache = hr.prepare(
        tmp_path / "a.jsonl", "byte", tmp_path / "cache", keep=lambda text: "mill" in text, num_workers=num_workers
    )
    assert texts(cache) == [text for text in documents if "mill" in text]
    assert cache.dropped["function"]["documents"] == sum("mill" not in text for text in documents)
    assert cache.selection["keep"].startswith("source ")


def test_a_function_that_fails_names_the_document(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["fine", "fine", "bad one"])

    def fails(text: str) -> bool:
        return bool(1 // (text != "bad one"))

    with pytest.raises(hr.HeadraceError, match=r"a\.jsonl, document 2: .*fails raised ZeroDivisionError.*'bad one'"):
        hr.prepare(tmp_path / "a.jsonl", "byte", tmp_path / "cache", keep=fails)
    with pytest.raises(hr.HeadraceError, match=r"document 0: .*returned None, not True or False"):
        hr.prepare(tmp_path / "a.jsonl", "byte", tmp_path / "cache", keep=lambda text: None)
    assert hr.prepare(tmp_path / "a.jsonl", "byte", tmp_path / "cache").num_documents == 3


def test_a_cache_notices_that_its_function_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path / "a.jsonl", ["one", "three", "seven", "twelve"])
    arguments = (tmp_path / "a.jsonl", "byte", tmp_path / "cache")
    assert texts(hr.prepare(*arguments, keep=is_long)) == ["three", "seven", "twelve"]
    assert texts(hr.prepare(*arguments, keep=is_long)) == ["three", "seven", "twelve"]
    monkeypatch.setitem(is_long.__globals__, "LEAST", 6)  # a value from outside is part of the function
    assert texts(hr.prepare(*arguments, keep=is_long)) == ["twelve"]
    names = {Keep(is_long).identity, Keep(is_long, "v1").identity, Keep(is_long, "v2").identity}
    assert len(names) == 3


def has_long_words(text: str) -> bool:
    return all(len(word) >= LEAST for word in text.split())


def has_longer_words(text: str) -> bool:
    def is_long_word(word: str) -> bool:
        return (lambda size: size >= LEAST)(len(word))

    return all(map(is_long_word, text.split()))


@pytest.mark.parametrize("function", [has_long_words, has_longer_words])
def test_values_used_in_inner_code_are_part_of_the_function(
    function: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Keep(function).identity
    assert Keep(function).identity == before
    monkeypatch.setitem(function.__globals__, "LEAST", 99)
    assert Keep(function).identity != before


def imports_inside(text: str) -> bool:
    import numpy

    return bool(numpy.array(len(text)) > 3)


@pytest.mark.parametrize("function", [lambda text: bool(np.array(len(text)) > 3), imports_inside])
def test_a_module_that_may_change_needs_a_name(function: Callable[[str], bool]) -> None:
    with pytest.raises(hr.HeadraceError, match=r"it uses (np|numpy), a module, which cannot be compared.*keep_name="):
        Keep(function)
    assert Keep(function, "mine").identity == "name mine"


def test_modules_of_python_need_no_name() -> None:
    assert Keep(lambda text: json.loads(text) is not None).identity.startswith("source ")


class Model:
    def __call__(self, text: str) -> bool:
        return True


MODEL = Model()


@pytest.mark.parametrize("function", [Model(), len, lambda text: MODEL(text), eval("lambda text: True")])
def test_a_function_that_cannot_be_compared_needs_a_name(function: Callable[[str], object]) -> None:
    with pytest.raises(hr.HeadraceError, match="keep_name="):
        Keep(function)
    assert Keep(function, "mine").identity == "name mine"


def test_wrong_arguments(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(hr.HeadraceError, match="not a function"):
        hr.prepare(tmp_path / "a.jsonl", "byte", keep="yes")
    with pytest.raises(hr.HeadraceError, match="keep_name"):
        hr.prepare(tmp_path / "a.jsonl", "byte", keep_name="v1")


def test_prepare_says_what_it_dropped(tmp_path: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    write_lines(tmp_path / "a.jsonl", ["one", "three", "three", "twelve"])
    path = str(tmp_path / "a.jsonl")
    code, out, _ = command("prepare", path, "--tokenizer", "byte", "--out", str(tmp_path / "kept"))
    assert code == 0
    assert "1 document that repeats an earlier one" in out.replace("\n  ", " ") or "repeat an earlier one" in out
    code, out, _ = command(
        "prepare", path, "--tokenizer", "byte", "--out", str(tmp_path / "c"), "--deduplicate", "exact",
        "--min-document-bytes", "4", "--json",
    )  # fmt: skip
    assert code == 0
    facts = json.loads(out.splitlines()[-1])
    assert facts["dropped"] == {"too_short": {"documents": 1, "bytes": 3}, "duplicate": {"documents": 1, "bytes": 5}}
    assert facts["duplicates"] == {"documents": 1, "bytes": 5}
    assert facts["selection"] == {"deduplicate": "exact"}
    assert facts["documents"] == 2
    code, _, err = command("prepare", path, "--tokenizer", "byte", "data.near_threshold=7")
    assert code == 2
    assert "near_threshold" in err
