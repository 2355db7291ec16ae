"""Every kind of tokenizer against Hugging Face's own: ids on nasty text, special tokens in text, and hostile files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

import headrace as hr
from headrace.data.tokens.encoders import (
    ByteEncoder,
    CharacterEncoder,
    HuggingFaceEncoder,
    byte_vocabulary,
    make_encoder,
)
from headrace.data.tokens.special_tokens import unknown_token
from headrace.data.tokens.tokenizers import END_OF_TEXT, Tokenizer, check_spec, from_json, load_tokenizer
from headrace.errors import CacheError, HeadraceError, TokenizerError, UsageError
from tests.conftest import make_text
from tests.data.tokens.tokenizer_kinds import KINDS, kind_json, tokenizer_of_kind

Command = Callable[..., tuple[int, str, str]]

NASTY = [
    "",
    " ",
    "  two  spaces, \t tab\r\nline \n\n\n end ",
    "It's we'll CAN'T 3.14159 1234567890 ½ Ⅷ ﬁ",
    "naïve café e\u0301 Ünïcödé ΑΒΓ привет עברית العربية हिन्दी",
    "日本語のテキスト。中文没有空格 한국어 \u3000\u00a0\u2028\u200b",
    "👩‍👩‍👧 \U0001f33e \U0010ffff \uffff \x00\x01\x7f\ufeff\ufffd",
    "▁the▁mill Ġthe ##ing <0x0A> @@",
    "a" * 3000 + "水" * 1000,
]


def backend_ids(backend: Backend, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in backend.encode_batch(texts, add_special_tokens=False)]


def own_ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    ids, offsets = tokenizer.encoder().encode([text.encode() for text in texts])
    return [part.tolist() for part in np.split(ids, offsets[1:-1])]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_on_nasty_text_are_those_of_hugging_face(kind: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    texts = [*NASTY, make_text(5000, seed=3)]
    expected = backend_ids(Backend.from_str(tokenizer.json), texts)
    assert own_ids(tokenizer, texts) == expected
    assert own_ids(replace(tokenizer, special_tokens_in_text="special"), texts) == expected


def with_special_tokens(tokenizer: Tokenizer) -> list[str]:
    return [text for token in tokenizer.special_tokens for text in (token, f"the {token} mill", f"a{token}b{token}")]


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_in_text_are_ordinary_text(kind: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    unknown = unknown_token(json.loads(tokenizer.json))
    special = {index for token, index in tokenizer.special_tokens.items() if token != unknown}
    texts = with_special_tokens(tokenizer)
    for text, ids in zip(texts, own_ids(tokenizer, texts), strict=True):
        assert ids
        assert not special & set(ids), text
    if tokenizer.gives_text_back and kind != "char":
        text = "".join(with_special_tokens(tokenizer))
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_in_text_are_kept_when_asked(kind: str) -> None:
    tokenizer = replace(tokenizer_of_kind(kind), special_tokens_in_text="special")
    texts = with_special_tokens(tokenizer)
    ids = own_ids(tokenizer, texts)
    assert ids == backend_ids(Backend.from_str(tokenizer.json), texts)
    assert all(set(tokenizer.special_tokens.values()) & set(row) for row in ids)


def test_a_special_token_of_one_character_is_refused() -> None:
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "\n": 2, "?": 3}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.add_special_tokens(["\n"])
    tokenizer = from_json("lines", backend.to_str(), "lines")
    with pytest.raises(TokenizerError, match=r"'\\n' is a single character.*special_tokens_in_text=special"):
        tokenizer.encode("a\nb")
    assert replace(tokenizer, special_tokens_in_text="special").encode("a\nb").tolist() == [0, 2, 1]


def test_the_spelling_of_a_special_token_may_lie_on_a_cut(tmp_path: Path) -> None:
    """Documents are encoded in pieces of 64 KiB; wherever those are cut, no end-of-text comes out of the text."""
    text = "x" * ((64 << 10) - 6) + END_OF_TEXT + "y" * 100 + END_OF_TEXT
    (tmp_path / "a.txt").write_text(text)
    for spec in ("byte", "char", tokenizer_of_kind("bpe:400")):
        cache = hr.prepare([tmp_path / "a.txt"], tokenizer=spec, out=tmp_path / str(hash(spec)))
        tokens = np.concatenate(list(cache.tokens(0, 0, cache.num_tokens)))
        assert (tokens == cache.tokenizer.end_of_text_id).sum() == 1  # at its end
        assert cache.tokenizer.decode(tokens) == text + END_OF_TEXT


def test_a_special_token_that_is_looked_for_is_never_cut(tmp_path: Path) -> None:
    for shift in range(1, len(END_OF_TEXT)):
        (tmp_path / f"{shift:02}.txt").write_text("x" * ((64 << 10) - shift) + END_OF_TEXT + "y" * 100)
    tokenizer = replace(tokenizer_of_kind("byte"), special_tokens_in_text="special")
    cache = hr.prepare([str(tmp_path / "*.txt")], tokenizer, tmp_path / "cache")
    assert count_ends(cache) == 2 * cache.num_documents


# What is kept in caches


def count_ends(cache: hr.Cache) -> int:
    tokens = [part for index in range(len(cache.segments)) for part in cache.tokens(index, 0, 1 << 40)]
    return int((np.concatenate(tokens) == cache.tokenizer.end_of_text_id).sum())


@pytest.mark.usefixtures("small_scale")
def test_old_tokens_are_used_where_no_special_token_was_spelled(tmp_path: Path) -> None:
    """A cache of before (special tokens looked for in text) goes on as one of today; only what differs is redone."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text(make_text(10_000, seed=number))
    (folder / "9.txt").write_text(f"{make_text(9000, seed=9)} {END_OF_TEXT} and on")
    for number in range(3):
        (folder / f"small-{number}.txt").write_text(f"few words {END_OF_TEXT} {number}")
    options: dict[str, Any] = {"tokenizer": "bpe:400", "out": tmp_path / "cache"}
    old = hr.prepare([folder], **options, special_tokens_in_text="special")
    assert count_ends(old) == old.num_documents + 4
    written: list[int] = []
    new = hr.prepare([folder], **options, on_progress=lambda progress: written.append(progress.tokenised_bytes))
    assert count_ends(new) == new.num_documents == old.num_documents
    assert 0 < written[-1] < 0.4 * new.num_bytes
    clean = hr.prepare([folder], tokenizer=str(new.path / "tokenizer.json"), out=tmp_path / "clean")
    for index in range(len(new.segments)):
        pair = [np.concatenate(list(cache.tokens(index, 0, 1 << 40))) for cache in (new, clean)]
        assert np.array_equal(*pair)
    assert not new.verify()
    with pytest.raises(CacheError, match="built with special_tokens_in_text=ordinary, not with special"):
        hr.prepare([folder], **options, special_tokens_in_text="special")
    with pytest.raises(UsageError, match="use one of ordinary, special"):
        hr.prepare([folder], **options, special_tokens_in_text="both")  # type: ignore[arg-type]


def test_both_ways_have_caches_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "caches"))
    (tmp_path / "a.txt").write_text(f"the mill {END_OF_TEXT} wheel " * 50)
    seen = []
    for choice in ("ordinary", "special"):
        arguments = ("prepare", tmp_path / "a.txt", "--tokenizer", "bpe:300", "--special-tokens-in-text", choice)
        code, out, err = command(*arguments, "--json")
        assert code == 0, err
        facts = json.loads(out.splitlines()[-1])
        seen.append(count_ends(hr.Cache.open(facts["cache"])))
        with hr.Loader(
            tmp_path / "a.txt",
            2,
            16,
            tokenizer="bpe:300",
            special_tokens_in_text=choice,  # type: ignore[arg-type]
        ) as loader:
            assert str(loader.cache.path) == facts["cache"]
    assert seen == [1, 51]
    assert "is not one of 'ordinary', 'special'" in command(*arguments[:-1], "maybe")[2]


# Tables are used only for what they are tables of


def test_a_byte_level_vocabulary_in_another_order_keeps_its_ids() -> None:
    order = sorted(byte_vocabulary())  # by stand-in, as trainers number them
    backend = Backend(models.BPE({token: index for index, token in enumerate(order)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.add_special_tokens([END_OF_TEXT])
    tokenizer = from_json("bytes", backend.to_str(), "bytes")
    assert own_ids(tokenizer, NASTY) == backend_ids(backend, NASTY)
    assert isinstance(load_tokenizer("byte", lambda: iter([])).encoder(), ByteEncoder)


@pytest.mark.parametrize("change", ["normalizer", "prefix space", "added token"])
@pytest.mark.parametrize("spec", ["char", "byte"])
def test_a_table_with_anything_added_is_not_taken_for_plain(spec: str, change: str) -> None:
    backend = Backend.from_str(tokenizer_of_kind(spec).json)
    if change == "normalizer":
        backend.normalizer = normalizers.Lowercase()
    elif change == "added token":
        backend.add_tokens(["mill"])
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    encoder = make_encoder(backend.to_str(), "ordinary")
    assert not isinstance(encoder, ByteEncoder | CharacterEncoder)
    texts = [*NASTY, "THE mill Wheel"]
    expected = HuggingFaceEncoder(backend.to_str()).encode([text.encode() for text in texts])
    ours = encoder.encode([text.encode() for text in texts])
    assert [part.tolist() for part in ours] == [part.tolist() for part in expected]


# What a tokenizer.json may say that is not for training


def test_truncation_and_padding_are_switched_off(tmp_path: Path, command: Command) -> None:
    backend = Backend.from_str(kind_json("gpt2"))
    backend.enable_truncation(max_length=50)
    backend.enable_padding(length=64, pad_id=0, pad_token=END_OF_TEXT)
    backend.save(str(tmp_path / "tokenizer.json"))
    text = make_text(20_000)
    (tmp_path / "a.txt").write_text(text)
    code, out, err = command(
        "prepare", tmp_path / "a.txt", "--tokenizer", tmp_path / "tokenizer.json", "--out", tmp_path / "cache", "--json"
    )
    assert code == 0, err
    facts = json.loads(out.splitlines()[-1])
    assert facts["tokens"] == len(Backend.from_str(kind_json("gpt2")).encode(text).ids) + 1
    notices = " ".join(facts["tokenizer"]["notices"])
    assert "truncation to 50 tokens" in notices
    assert "padding" in notices
    assert "truncation to 50 tokens" in " ".join(out.split())
    stored = json.loads((tmp_path / "cache" / "tokenizer.json").read_text())
    assert stored["truncation"] is None
    assert stored["padding"] is None


@pytest.mark.parametrize(
    ("normalizer", "named"),
    [
        (normalizers.Lowercase(), "Lowercase lowercases"),
        (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), "StripAccents strips accents"),
        (normalizers.NFKC(), "NFKC replaces"),
        (normalizers.NFC(), "NFC composes"),
        (normalizers.BertNormalizer(), "lowercases and strips accents"),
        (normalizers.Replace(" ", "▁"), ""),
        (None, ""),
    ],
    ids=str,
)
def test_normalizers_that_lose_text_are_named(normalizer: Any, named: str) -> None:
    backend = Backend.from_str(kind_json("gpt2"))
    backend.normalizer = normalizer
    notices = " ".join(from_json("x", backend.to_str(), "x").notices)
    assert named in notices
    assert bool(notices) == bool(named)


# Files that are no tokenizers, or hostile ones


def hostile(change: str) -> bytes:
    data = json.loads(kind_json("gpt2"))
    deep = "[" * 100_000 + "]" * 100_000
    if change == "not UTF-8":
        return "naïve".encode("latin-1")
    if change == "nested deep":
        return (json.dumps(data)[:-1] + f', "extra": {deep}}}').encode()
    if change == "only brackets":
        return deep.encode()
    if change == "no model":
        del data["model"]
    if change == "no vocabulary":
        del data["model"]["vocab"]
    if change == "vocabulary of numbers":
        data["model"]["vocab"] = 7
    if change == "empty vocabulary":
        data |= {"added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    if change == "absurd id":
        data["model"]["vocab"]["mill"] = 4_000_000_000
    if change == "prefix":  # ends the process in tokenizers itself
        data["model"]["continuing_subword_prefix"] = "x"
    if change == "a list":
        return b"[]"
    return json.dumps(data).encode()


def test_wrong_ids_of_added_tokens_are_not_believed() -> None:
    data = json.loads(kind_json("gpt2"))
    data["added_tokens"][0]["id"] = 77_777
    data["added_tokens"] += [{**data["added_tokens"][0], "content": "wörter", "special": False, "id": 99_999}]
    tokenizer = from_json("x", json.dumps(data), "x")
    assert tokenizer.end_of_text_id == tokenizer.special_tokens[END_OF_TEXT] == 0
    assert tokenizer.vocab_size == 401
    assert tokenizer.byte_lengths()[tokenizer.encode("wörter")].tolist() == [7]


@pytest.mark.parametrize(
    "change",
    ["not UTF-8", "nested deep", "only brackets", "no model", "no vocabulary", "vocabulary of numbers",
     "empty vocabulary", "absurd id", "prefix", "a list"],
)  # fmt: skip
def test_a_file_that_cannot_be_a_tokenizer_is_one_message(tmp_path: Path, change: str, command: Command) -> None:
    (tmp_path / "tokenizer.json").write_bytes(hostile(change))
    (tmp_path / "a.txt").write_text("the mill")
    code, _, err = command("prepare", tmp_path / "a.txt", "--tokenizer", tmp_path / "tokenizer.json")
    assert code == 1
    assert "Traceback" not in err
    assert "tokenizer.json" in err


def test_a_huge_tokenizer_file_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(1 << 40)  # takes no space on disk
    with pytest.raises(TokenizerError, match="larger than 64 MiB"):
        load_tokenizer(str(tmp_path), lambda: iter([]))


@pytest.mark.parametrize("spec", ["bpe:1000000000", "bpe:1000001", "bpe:" + "9" * 5000, "bpe:²"])
def test_absurd_vocabularies_end_at_once(spec: str) -> None:
    with pytest.raises(UsageError, match=r"at most 1,000,000|write bpe:N"):
        check_spec(spec)
    with pytest.raises(HeadraceError):
        hr.prepare([__file__], tokenizer=spec)


def test_a_damaged_tokenizer_in_a_cache_is_one_message(tmp_path: Path, command: Command) -> None:
    (tmp_path / "a.txt").write_text("the mill")
    cache = hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")
    (cache.path / "tokenizer.json").write_bytes(b"\xff\xfe")
    code, _, err = command("inspect", cache.path)
    assert code == 1
    assert "tokenizer.json: not UTF-8" in err
