from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from headrace.data.tokens.encoders import ByteEncoder, CharacterEncoder, GigatokenEncoder, HuggingFaceEncoder
from headrace.data.tokens.tokenizers import END_OF_TEXT, Tokenizer, from_json, load_tokenizer
from headrace.errors import HeadraceError, TokenizerError, UsageError
from tests.conftest import make_text
from tests.data.corpus.test_cuts import TEXTS


@functools.cache
def learned(spec: str) -> Tokenizer:
    return load_tokenizer(spec, lambda: iter([make_text(40_000).encode()]))


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS, max_size=5), st.sampled_from(["bpe:400", "byte", "char"]))
def test_ids_are_those_of_hugging_face(texts: list[str], spec: str) -> None:
    """The same tokenizer.json, read by Hugging Face tokenizers, gives the same ids for any text."""
    tokenizer = learned(spec)
    pieces = [text.encode() for text in texts]
    ids, offsets = tokenizer.encoder().encode(pieces)
    oracle_ids, oracle_offsets = HuggingFaceEncoder(tokenizer.json).encode(pieces)
    assert ids.tolist() == oracle_ids.tolist()
    assert offsets.tolist() == oracle_offsets.tolist()


@pytest.mark.parametrize(
    ("spec", "kind"), [("bpe:400", GigatokenEncoder), ("byte", ByteEncoder), ("char", CharacterEncoder)]
)
def test_the_fast_encoder_is_used(spec: str, kind: type) -> None:
    assert isinstance(learned(spec).encoder(), kind)


@pytest.mark.parametrize("spec", ["bpe:400", "byte", "char"])
def test_decoding_gives_the_text_back(spec: str) -> None:
    text = make_text(2000)
    tokenizer = learned(spec)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_vocabulary_sizes_and_types() -> None:
    assert learned("byte").vocab_size == 257
    assert learned("bpe:400").vocab_size == 400
    assert learned("bpe:400").dtype == np.uint16
    assert Tokenizer("x", "{}", 65_536, 0, END_OF_TEXT).dtype == np.uint16
    assert Tokenizer("x", "{}", 65_537, 0, END_OF_TEXT).dtype == np.uint32


def test_unseen_characters_are_unknown() -> None:
    tokenizer = learned("char")
    assert tokenizer.encode("a\u4e00").tolist()[1] == 1


def test_recycling_changes_nothing() -> None:
    encoder = learned("bpe:400").encoder()
    before = encoder.encode([make_text(1000).encode()])[0]
    encoder.recycle()
    assert np.array_equal(before, encoder.encode([make_text(1000).encode()])[0])


@functools.cache
def word_piece_json() -> str:
    """A kind of tokenizer that gigatoken does not know. (Its training is not deterministic, hence the cache.)"""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(
        [make_text(20_000)], trainers.WordPieceTrainer(vocab_size=400, show_progress=False, special_tokens=["[UNK]"])
    )
    return str(backend.to_str())


def word_piece() -> Backend:
    return Backend.from_str(word_piece_json())


def test_unknown_kinds_fall_back_to_hugging_face() -> None:
    tokenizer = from_json("wp", word_piece().to_str(), "wp")
    assert isinstance(tokenizer.encoder(), HuggingFaceEncoder)
    assert tokenizer.encode("the mill wheel").tolist() == word_piece().encode("the mill wheel").ids


def test_end_of_text_is_added_where_there_is_none() -> None:
    tokenizer = from_json("wp", word_piece().to_str(), "wp")
    assert tokenizer.end_of_text == END_OF_TEXT
    assert tokenizer.end_of_text_id == tokenizer.vocab_size - 1
    backend = word_piece()
    backend.add_special_tokens(["</s>"])
    assert from_json("wp", backend.to_str(), "wp").end_of_text == "</s>"


def test_end_of_text_never_gets_the_id_of_another_token() -> None:
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "z": 3}, unk_token="a"))  # 2 is free, and the library takes 3
    with pytest.raises(TokenizerError, match="the id 3 that it would get belongs to 'z'"):
        from_json("gap", backend.to_str(), "gap.json")


def test_a_tokenizer_file_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(learned("bpe:400").json)
    for spec in (tmp_path, tmp_path / "tokenizer.json"):
        assert load_tokenizer(str(spec), lambda: iter([])).hash == learned("bpe:400").hash


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bpe:100", "at least 257"),
        ("bpe:", "bpe:N"),
        ("missing/tokenizer.json", "no such tokenizer file"),
        ("not a name!", "neither a file nor a hub name"),
    ],
)
def test_wrong_specs_are_refused(spec: str, message: str) -> None:
    with pytest.raises(HeadraceError, match=message):
        load_tokenizer(spec, lambda: iter([b"text"]))
    assert issubclass(UsageError, HeadraceError)


def test_a_file_that_is_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a Hugging Face"):
        load_tokenizer(str(tmp_path), lambda: iter([]))


LOAD_FROM_HUB = """
import sys
from headrace.data.tokens.tokenizers import load_tokenizer
from headrace.errors import TokenizerError
try:
    print(load_tokenizer(sys.argv[1], lambda: iter([])).vocab_size)
except TokenizerError as problem:
    print(problem)
"""


def load_from_hub(name: str, endpoint: str, home: Path) -> str:
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        environment.pop(variable, None)
    done = subprocess.run(
        [sys.executable, "-c", LOAD_FROM_HUB, name], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Hub(http.server.BaseHTTPRequestHandler):
    """Just enough of a hub: one repository with a tokenizer.json."""

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def answer(self, with_body: bool) -> None:
        found = self.path.endswith("/mill/wheel/resolve/main/tokenizer.json")
        body = learned("bpe:400").json.encode() if found else json.dumps({"error": "Repository not found"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        if found:
            self.send_header("ETag", '"0123456789abcdef0123456789abcdef01234567"')
            self.send_header("X-Repo-Commit", "0123456789abcdef0123456789abcdef01234567")
        else:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_hub_name_is_fetched_once_and_then_cached(tmp_path: Path) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        assert load_from_hub("mill/wheel", endpoint, tmp_path) == "400"
        assert "no such public repository" in load_from_hub("mill/nothing", endpoint, tmp_path)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert load_from_hub("mill/wheel", endpoint, tmp_path) == "400"  # offline, but cached
    message = load_from_hub("mill/other", endpoint, tmp_path)
    assert "'mill/other'" in message
    assert "cannot be reached" in message
